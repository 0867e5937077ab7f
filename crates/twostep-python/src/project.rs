//! A study's stages and what they left, as Python calls and reads them.

use crate::arrays::{array, object, rows};
use crate::errors::{self, described, guarded, raise, raise_problems};
use crate::propagation::make_known;
use crate::pump::{Line, drive};
use crate::simulator::HostFunction;
use crate::surrogate::{PythonSurrogate, try_out};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde_json::to_value;
use std::path::PathBuf;
use std::sync::Arc;
use twostep::run::{self, Changed, Only, SettingResult};
use twostep::simulate::SharedFunction;
use twostep::study::{self, Host, Stage, parse_with};
use twostep::surrogate::SharedSurrogate;

/// A study whose results lie in a folder.
#[pyclass(module = "twostep._twostep", frozen)]
pub(crate) struct Project {
    project: run::Project,
    line: Arc<Line>,
}

/// The stage of a name.
fn stage(name: &str) -> Stage {
    Stage::ALL.into_iter().find(|stage| stage.name() == name).unwrap_or(Stage::Infer)
}

#[pymethods]
impl Project {
    /// `text` is a study file called `file` in the folder `base`; results lie in `folder`. `function` has the name and
    /// fingerprint of the Python function that stands for its simulator, `surrogates` those that are Python functions, by output or
    /// one for all, `methods` propagation methods that are.
    #[new]
    fn new(
        py: Python<'_>,
        text: &str,
        file: &str,
        base: PathBuf,
        folder: PathBuf,
        function: Option<(String, Vec<(String, String)>)>,
        surrogates: Vec<(Option<String>, Bound<'_, PyAny>)>,
        methods: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        guarded(py, || {
            let line = Arc::new(Line::default());
            let simulator =
                function.map(|(name, parts)| SharedFunction::new(HostFunction { name, parts, line: line.clone() }));
            let shared = |(output, caller): (Option<String>, Bound<'_, PyAny>)| {
                Ok((output, SharedSurrogate::new(PythonSurrogate::new(&caller, line.clone())?)))
            };
            let surrogates = surrogates.into_iter().map(shared).collect::<PyResult<_>>()?;
            let host = Host { simulator, surrogates };
            for caller in &methods {
                make_known(py, caller, &line)?;
            }
            let settings = parse_with(text, file, &base, &host).map_err(|problems| raise_problems(py, &problems))?;
            try_out(&settings[0].study, &line)?;
            Ok(Self { project: run::Project::new(settings, folder), line })
        })
    }

    /// The study's warnings: severity, message, what is expected, help.
    fn warnings(&self) -> Vec<(&'static str, String, String, Option<String>)> {
        study::warnings(self.project.settings()).map_or(Vec::new(), |problems| described(&problems))
    }

    /// Values of what is swept in each setting.
    fn labels(&self) -> Vec<Vec<(String, String)>> {
        self.project.settings().iter().map(|setting| setting.label.clone()).collect()
    }

    /// Names of everything that a run is given.
    fn run_inputs(&self) -> Vec<String> {
        self.project.settings()[0].study.run_input_names()
    }

    /// Where results lie.
    fn folder(&self) -> PathBuf {
        self.project.folder().to_path_buf()
    }

    /// Makes runs: `only` is "pending", "failed" or the number of a run; `changed` is "ask", "keep" or "rerun".
    fn make_runs(&self, py: Python<'_>, host: &Bound<'_, PyAny>, only: &str, changed: &str) -> PyResult<()> {
        let only = match only {
            "pending" => Only::Pending,
            "failed" => Only::Failed,
            number => Only::Run(number.parse().map_err(|_| errors::internal(py, "no number of a run"))?),
        };
        let changed = match changed {
            "keep" => Changed::Keep,
            "rerun" => Changed::Rerun,
            _ => Changed::Ask,
        };
        drive(py, host, &self.line, |monitor| {
            if self.project.settings()[0].study.simulator.is_external() {
                self.project.make_runs(&only, changed, monitor)?;
            }
            self.project.run(Stage::Simulate, monitor).map(drop)
        })
    }

    /// Does the stages up to that of a name; what came out, for each setting.
    fn run<'py>(&self, py: Python<'py>, host: &Bound<'py, PyAny>, until: &str) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let results = drive(py, host, &self.line, |monitor| self.project.run(stage(until), monitor))?;
        results.iter().map(|result| setting_result(py, result)).collect()
    }

    /// Every run of every setting.
    fn runs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(py, || {
            let runs = py.detach(|| self.project.runs()).map_err(|error| raise(py, error))?;
            let entries = runs.into_iter().map(|run| {
                let dict = PyDict::new(py);
                dict.set_item("run", run.id)?;
                dict.set_item("state", run.state)?;
                dict.set_item("source", run.source)?;
                dict.set_item("inputs", run.inputs)?;
                let outputs: Vec<_> = run.outputs.into_iter().map(|(name, r)| (name, r.at, r.values)).collect();
                dict.set_item("outputs", outputs)?;
                dict.set_item("seconds", run.seconds)?;
                dict.set_item("attempts", run.attempts)?;
                dict.set_item("reason", run.reason)?;
                dict.set_item("is_current", run.is_current)?;
                Ok(dict)
            });
            PyList::new(py, entries.collect::<PyResult<Vec<_>>>()?)
        })
    }

    /// Freshness of every stage of every setting: label, stage, whether it is fresh, why not or when it was made.
    fn status(&self, py: Python<'_>) -> PyResult<Vec<(Vec<(String, String)>, &'static str, bool, String)>> {
        guarded(py, || {
            let status = py.detach(|| self.project.status()).map_err(|error| raise(py, error))?;
            Ok(status.into_iter().map(|s| (s.label, s.stage.name(), s.fresh, s.reason)).collect())
        })
    }

    /// What the T-step of a setting left: training rows, joint T-draws.
    fn training<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyDict>> {
        guarded(py, || {
            let found = py.detach(|| self.project.findings(index)).map_err(|error| raise(py, error))?;
            let dict = PyDict::new(py);
            dict.set_item("input_names", &found.training.input_names)?;
            dict.set_item("inputs", array(py, &found.training.inputs))?;
            dict.set_item("outputs", &found.training.outputs)?;
            dict.set_item("runs", &found.training.runs)?;
            if let Some(posterior) = &found.posterior {
                dict.set_item("draw_names", posterior.draws.names())?;
                dict.set_item("draws", array(py, posterior.draws.values()))?;
                dict.set_item("log_weights", posterior.draws.log_weights())?;
            }
            Ok(dict)
        })
    }
}

/// What is known of one setting.
fn setting_result<'py>(py: Python<'py>, result: &SettingResult) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let json = |value: serde_json::Result<serde_json::Value>| object(py, &value.unwrap_or_default());
    dict.set_item("label", &result.label)?;
    dict.set_item("folder", &result.folder)?;
    dict.set_item("runs", result.runs)?;
    dict.set_item("answer", &result.answer)?;
    dict.set_item("warnings", &result.warnings)?;
    dict.set_item("reports", json(to_value(&result.t_reports))?)?;
    dict.set_item("measured", &result.measured)?;
    let posteriors = result.posteriors.iter().map(|posterior| {
        let dict = PyDict::new(py);
        let n_columns = posterior.draws.first().map_or(0, Vec::len);
        dict.set_item("summary", json(to_value(posterior))?)?;
        dict.set_item("draws", rows(py, posterior.draws.len(), n_columns, posterior.draws.concat()))?;
        dict.set_item("t_draws", &posterior.t_draws)?;
        Ok(dict)
    });
    dict.set_item("posteriors", posteriors.collect::<PyResult<Vec<_>>>()?)?;
    Ok(dict)
}
