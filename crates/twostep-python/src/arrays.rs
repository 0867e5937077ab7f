//! Values of the library as arrays and plain objects of Python.

use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray2};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;
use twostep::matrix::Matrix;

/// A matrix as an array; its values are moved.
pub(crate) fn array<'py>(py: Python<'py>, matrix: &Matrix) -> Bound<'py, PyArray2<f64>> {
    rows(py, matrix.rows(), matrix.cols(), matrix.data().to_vec())
}

/// Values, row after row, as an array; they are moved.
pub(crate) fn rows(py: Python<'_>, n_rows: usize, n_cols: usize, values: Vec<f64>) -> Bound<'_, PyArray2<f64>> {
    let made = Array2::from_shape_vec((n_rows, n_cols), values).expect("as many values as cells");
    made.into_pyarray(py)
}

/// A JSON value as an object of Python.
pub(crate) fn object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(flag) => flag.into_pyobject(py)?.to_owned().into_any(),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => whole.into_pyobject(py)?.into_any(),
            None => number.as_f64().unwrap_or(f64::NAN).into_pyobject(py)?.into_any(),
        },
        Value::String(text) => text.into_pyobject(py)?.into_any(),
        Value::Array(items) => {
            let items = items.iter().map(|item| object(py, item)).collect::<PyResult<Vec<_>>>()?;
            items.into_pyobject(py)?.into_any()
        }
        Value::Object(entries) => {
            let dict = PyDict::new(py);
            for (key, entry) in entries {
                dict.set_item(key, object(py, entry)?)?;
            }
            dict.into_any()
        }
    })
}
