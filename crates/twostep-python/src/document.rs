//! The text of a study file to plain values and back, by JSON, which Python reads.

use crate::errors;
use pyo3::prelude::*;
use serde_json::Value;
use std::path::PathBuf;
use twostep::study;

/// A study file's text as JSON.
#[pyfunction]
pub(crate) fn read_toml(py: Python<'_>, text: &str, file: &str) -> PyResult<String> {
    errors::guarded(py, || match toml::from_str::<Value>(text) {
        Ok(value) => Ok(value.to_string()),
        Err(problem) => {
            let found = problem.to_string().trim_end().to_owned();
            Err(errors::raise(py, twostep::Error::invalid(file, found, "correct the study file")))
        }
    })
}

/// Refuses the text of a study file called `file` in the folder `base` that has problems.
#[pyfunction]
pub(crate) fn check(py: Python<'_>, text: &str, file: &str, base: PathBuf) -> PyResult<()> {
    errors::guarded(py, || {
        study::parse(text, file, &base).map(drop).map_err(|problems| errors::raise_problems(py, &problems))
    })
}

/// JSON as the text of a study file.
#[pyfunction]
pub(crate) fn write_toml(py: Python<'_>, json: &str) -> PyResult<String> {
    errors::guarded(py, || {
        let refused = |problem: String| errors::raise(py, twostep::Error::invalid("study", problem, "leave it out"));
        let value: Value = serde_json::from_str(json).map_err(|problem| refused(problem.to_string()))?;
        toml::to_string(&value).map_err(|problem| refused(problem.to_string()))
    })
}
