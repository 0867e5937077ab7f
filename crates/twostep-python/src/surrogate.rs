//! A Python function as the surrogate of a study.

use crate::arrays::rows;
use crate::pump::Line;
use numpy::{PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};
use twostep::matrix::Matrix;
use twostep::study::Study;
use twostep::surrogate::{BoundSurrogate, FunctionDraws, SurrogateFunction};
use twostep::{Error, Result};

/// Draws that a surrogate is tried out with before anything long is done.
const FEW: usize = 3;

/// What the Python package's `_surrogate.Caller` makes of the user's functions.
pub(crate) struct PythonSurrogate {
    caller: Arc<Py<PyAny>>,
    name: String,
    fingerprint: String,
    has_gradient: bool,
    is_trained: bool,
    line: Arc<Line>,
    /// Training is left to one thread at a time: users' libraries have settings that all threads share.
    training: Mutex<()>,
}

impl PythonSurrogate {
    pub(crate) fn new(caller: &Bound<'_, PyAny>, line: Arc<Line>) -> PyResult<Self> {
        Ok(Self {
            name: caller.getattr("name")?.extract()?,
            fingerprint: caller.getattr("fingerprint")?.extract()?,
            has_gradient: caller.getattr("has_gradient")?.extract()?,
            is_trained: caller.getattr("is_trained")?.extract()?,
            caller: Arc::new(caller.clone().unbind()),
            line,
            training: Mutex::new(()),
        })
    }

    fn trained(&self, py: Python<'_>, x: &Matrix, z: &[f64], n_draws: usize, seed: u64) -> PyResult<FunctionDraws> {
        type Made<'py> = (Vec<String>, PyReadonlyArray2<'py, f64>, PyReadonlyArray1<'py, f64>, Option<Vec<f64>>);
        let caller = self.caller.bind(py);
        let arguments = (points(py, x), numpy::PyArray1::from_slice(py, z), n_draws, seed);
        let (names, values, log_weights, sigma_a): Made<'_> = caller.call_method1("train", arguments)?.extract()?;
        let (n_rows, n_cols) = values.as_array().dim();
        let values = Matrix::from_rows(n_rows, n_cols, values.as_array().iter().copied().collect());
        Ok(FunctionDraws { names, values, log_weights: log_weights.as_array().to_vec(), sigma_a })
    }
}

/// Points as an array of their own: the user may keep it.
fn points<'py>(py: Python<'py>, x: &Matrix) -> Bound<'py, PyArray2<f64>> {
    rows(py, x.rows(), x.cols(), x.data().to_vec())
}

impl SurrogateFunction for PythonSurrogate {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn has_gradient(&self) -> bool {
        self.has_gradient
    }

    fn is_trained(&self) -> bool {
        self.is_trained
    }

    fn train(&self, x: &Matrix, z: &[f64], n_draws: usize, seed: u64) -> Result<FunctionDraws> {
        // Before the interpreter, which whoever trains may let go of.
        let _alone = self.training.lock().unwrap_or_else(PoisonError::into_inner);
        if self.line.has_failed() {
            return Err(Error::Interrupted);
        }
        Python::attach(|py| self.trained(py, x, z, n_draws, seed)).map_err(|problem| {
            self.line.fail(problem);
            Error::Interrupted
        })
    }

    fn bind(&self, parameters: &[String], c: &Matrix) -> Arc<dyn BoundSurrogate> {
        let made = Python::attach(|py| -> PyResult<_> {
            let values = rows(py, c.rows(), c.cols(), c.data().to_vec());
            let bound = self.caller.bind(py).call_method1("bind", (parameters.to_vec(), values))?;
            let (predict, gradient, draws) = bound.extract::<(Py<PyAny>, Py<PyAny>, Py<PyAny>)>()?;
            Ok(Functions { predict, gradient, draws })
        });
        let functions = made.map_err(|problem| self.line.fail(problem)).ok();
        Arc::new(PythonBound { functions, caller: self.caller.clone(), n_draws: c.cols(), line: self.line.clone() })
    }
}

/// The user's functions, and draws as they take them.
struct Functions {
    predict: Py<PyAny>,
    gradient: Py<PyAny>,
    draws: Py<PyAny>,
}

/// A surrogate with its draws.
struct PythonBound {
    functions: Option<Functions>,
    caller: Arc<Py<PyAny>>,
    n_draws: usize,
    line: Arc<Line>,
}

impl PythonBound {
    /// Calls one of the functions and gives its array, of the expected shape and without NaN, to `take`. After the first failure, which
    /// is raised once the work has stopped, nothing is called any more.
    fn call(
        &self,
        which: &str,
        x: &Matrix,
        bar: Option<&Matrix>,
        shape: [usize; 2],
        take: impl FnOnce(&mut dyn Iterator<Item = f64>),
    ) -> bool {
        let Some(functions) = self.functions.as_ref().filter(|_| !self.line.has_failed()) else { return false };
        let outcome = Python::attach(|py| -> PyResult<()> {
            let (x, draws) = (points(py, x), functions.draws.bind(py));
            let found = match bar {
                None => functions.predict.bind(py).call1((&x, draws)),
                Some(bar) => functions.gradient.bind(py).call1((&x, draws, points(py, bar))),
            };
            let explained = |problem: PyErr| -> PyErr {
                let arguments = (which, problem.value(py), &x, shape);
                let made = self.caller.bind(py).call_method1("explain", arguments);
                made.map_or_else(|other| other, PyErr::from_value)
            };
            let found = found.map_err(explained)?;
            // Most results are what they should be; all others are looked at in Python.
            let fast = found.cast::<PyArray2<f64>>().ok().filter(|array| array.shape() == shape);
            let array = match fast {
                Some(array) => array.clone(),
                None => self.caller.bind(py).call_method1("checked", (which, &found, &x, shape))?.extract()?,
            };
            // In the order of rows, whatever the order in memory.
            let array = array.try_readonly()?;
            let view = array.as_array();
            if view.iter().any(|value| value.is_nan()) {
                return Err(PyErr::from_value(self.caller.bind(py).call_method1("undefined", (which, &found, &x))?));
            }
            match view.as_slice() {
                Some(values) => take(&mut values.iter().copied()),
                None => take(&mut view.iter().copied()),
            }
            Ok(())
        });
        outcome.map_err(|problem| self.line.fail(problem)).is_ok()
    }
}

impl BoundSurrogate for PythonBound {
    fn predict(&self, x: &Matrix, eta: &mut Matrix) {
        let shape = [x.rows(), self.n_draws];
        let done = self.call("predict", x, None, shape, |values| {
            eta.data_mut().iter_mut().zip(values).for_each(|(eta, value)| *eta = value);
        });
        if !done {
            eta.data_mut().fill(f64::NAN);
        }
    }

    fn pull(&self, x: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix) {
        let shape = [x.rows(), x.cols()];
        self.call("gradient", x, Some(eta_bar), shape, |values| {
            x_bar.data_mut().iter_mut().zip(values).for_each(|(bar, value)| *bar += value);
        });
    }
}

/// Calls surrogates whose draws are there, once, with a few of them: mistakes are to show before the simulator runs.
pub(crate) fn try_out(study: &Study, line: &Line) -> PyResult<()> {
    for output in &study.outputs {
        let Some(function) = output.surrogate.function().filter(|function| !function.is_trained()) else { continue };
        if study.train.import.is_some() {
            continue;
        }
        let scales = &study.input_scales()[..study.n_inputs(output)];
        let x = Matrix::from_fn(2, scales.len(), |i, d| scales[d].at_fraction((1 + i) as f64 / 3.0));
        if let Ok(made) = function.train(&x, &[0.0; 2], 0, 0) {
            let few: Vec<usize> = (0..made.values.cols().min(FEW)).collect();
            let bound = function.bind(&made.names, &made.values.select_cols(&few));
            bound.predict(&x, &mut Matrix::zeros(2, few.len()));
            if function.has_gradient() {
                bound.pull(&x, &Matrix::zeros(2, few.len()), &mut Matrix::zeros(2, scales.len()));
            }
        }
        line.raise_failure()?;
    }
    Ok(())
}
