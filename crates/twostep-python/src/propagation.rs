//! Propagation methods that are Python functions.

use crate::errors::raise;
use crate::pump::Line;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use twostep::infer::propagation::{OwnKind, OwnPropagation, register};

/// What the Python package's `_propagation.Caller` makes of the user's functions.
pub(crate) struct PythonPropagation {
    name: String,
    fingerprint: String,
    kind: OwnKind,
    caller: RwLock<Py<PyAny>>,
    /// Of the studies that use it: those at work stop where it fails.
    lines: Mutex<Vec<Weak<Line>>>,
}

/// Those that were made, since several studies may use one.
static MADE: Mutex<Vec<Arc<PythonPropagation>>> = Mutex::new(Vec::new());

/// Makes a method known to studies, on behalf of the one with this line.
pub(crate) fn make_known(py: Python<'_>, caller: &Bound<'_, PyAny>, line: &Arc<Line>) -> PyResult<()> {
    let name: String = caller.getattr("name")?.extract()?;
    let fingerprint: String = caller.getattr("fingerprint")?.extract()?;
    let kind = match caller.getattr("kind")?.extract::<String>()?.as_str() {
        "weights" => OwnKind::Weights,
        "pool" => OwnKind::Pool { gradient: false },
        _ => OwnKind::Pool { gradient: true },
    };
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let is_same =
        |own: &&Arc<PythonPropagation>| own.name == name && own.fingerprint == fingerprint && own.kind == kind;
    let method = match made.iter().find(is_same) {
        Some(method) => method.clone(),
        None => {
            let (caller, lines) = (RwLock::new(caller.clone().unbind()), Mutex::new(Vec::new()));
            Arc::new(PythonPropagation { name: name.clone(), fingerprint, kind, caller, lines })
        }
    };
    let registered = register(method.clone());
    if registered.is_ok() && !made.iter().any(|own| Arc::ptr_eq(own, &method)) {
        made.push(method.clone());
    }
    // No Python code under a lock: it may let a thread on that waits for it.
    drop(made);
    registered.map_err(|error| raise(py, error))?;
    let mut lines = method.lines.lock().unwrap_or_else(PoisonError::into_inner);
    lines.retain(|line| line.strong_count() > 0);
    lines.push(Arc::downgrade(line));
    drop(lines);
    let before = {
        let mut kept = method.caller.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *kept, caller.clone().unbind())
    };
    drop(before);
    Ok(())
}

impl PythonPropagation {
    /// What the caller gives for these arrays; none once a call has failed in the work that is under way.
    fn call<T>(
        &self,
        which: &str,
        first: &[f64],
        second: &[f64],
        read: impl FnOnce(Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Option<T> {
        let lines = || {
            let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            // One that nobody works with would keep the failure, and with it all others from calling.
            lines.iter().filter_map(Weak::upgrade).filter(|line| line.is_at_work()).collect::<Vec<_>>()
        };
        if lines().iter().any(|line| line.has_failed()) {
            return None;
        }
        Python::attach(|py| {
            let caller = self.caller.read().unwrap_or_else(PoisonError::into_inner).clone_ref(py);
            let arrays = (PyArray1::from_slice(py, first), PyArray1::from_slice(py, second));
            let outcome = caller.bind(py).call_method1(which, arrays).and_then(read);
            outcome.map_err(|problem| lines().iter().for_each(|line| line.fail(problem.clone_ref(py)))).ok()
        })
    }
}

impl OwnPropagation for PythonPropagation {
    fn name(&self) -> &str {
        &self.name
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn kind(&self) -> OwnKind {
        self.kind
    }

    fn weights(&self, log_alpha: &[f64], log_evidence: &[f64]) -> Vec<f64> {
        let read = |found: Bound<'_, PyAny>| Ok(found.extract::<PyReadonlyArray1<'_, f64>>()?.as_array().to_vec());
        self.call("weights", log_evidence, log_alpha, read).unwrap_or_else(|| log_alpha.to_vec())
    }

    fn pool(&self, log_alpha: &[f64], l: &mut [f64]) -> f64 {
        let has_gradient = self.kind == OwnKind::Pool { gradient: true };
        let which = if has_gradient { "pool_with_gradient" } else { "pool" };
        let found = self.call(which, l, log_alpha, |found| match has_gradient {
            false => Ok((found.extract::<f64>()?, None)),
            true => {
                let (value, slopes) = found.extract::<(f64, PyReadonlyArray1<'_, f64>)>()?;
                Ok((value, Some(slopes.as_array().to_vec())))
            }
        });
        let (value, slopes) = found.unwrap_or((f64::NEG_INFINITY, None));
        match slopes {
            Some(slopes) => l.copy_from_slice(&slopes),
            None => l.fill(0.0),
        }
        value
    }
}
