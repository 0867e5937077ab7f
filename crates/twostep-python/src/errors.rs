//! Errors and panics to exceptions of the Python package.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use twostep::Error;
use twostep::study::{Problems, Severity};

thread_local! {
    /// Place and words of the last panic of this thread.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps panics from being printed: they become exceptions.
pub(crate) fn quiet_panics() {
    std::panic::set_hook(Box::new(|panic| PANIC.with(|last| *last.borrow_mut() = Some(panic.to_string()))));
}

/// What the last panic of this thread said.
pub(crate) fn last_panic() -> String {
    PANIC.with(|last| last.borrow_mut().take()).unwrap_or_else(|| "a thread of it panicked".to_owned())
}

/// Calls `work`; a panic within it is an exception that asks for a report.
pub(crate) fn guarded<T>(py: Python<'_>, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(internal(py, &last_panic())))
}

/// The exception for a mistake of ours.
pub(crate) fn internal(py: Python<'_>, what: &str) -> PyErr {
    let arguments = PyDict::new(py);
    let filled = arguments.set_item("found", what.replace('\n', " "));
    filled.and_then(|()| exception(py, "InternalError", &arguments)).unwrap_or_else(|error| error)
}

/// An exception of the package, made with these arguments.
fn exception(py: Python<'_>, class: &str, arguments: &Bound<'_, PyDict>) -> PyResult<PyErr> {
    let class = py.import("twostep._errors")?.getattr(class)?;
    Ok(PyErr::from_value(class.call((), Some(arguments))?))
}

/// The exception for an error of the library.
pub(crate) fn raise(py: Python<'_>, error: Error) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let arguments = PyDict::new(py);
        let class = match &error {
            Error::Interrupted => return Ok(pyo3::exceptions::PyKeyboardInterrupt::new_err(error.to_string())),
            Error::Invalid { place, found, repair } => {
                arguments.set_item("place", place)?;
                arguments.set_item("found", found)?;
                arguments.set_item("repair", repair)?;
                "InvalidError"
            }
            Error::File { path, source, repair } => {
                arguments.set_item("place", path.display().to_string())?;
                arguments.set_item("found", source.to_string())?;
                arguments.set_item("repair", repair)?;
                arguments.set_item("errno", source.raw_os_error().or(number_of(source.kind())))?;
                "FileError"
            }
            Error::Failed { stage, problem, repair } => {
                arguments.set_item("place", stage)?;
                arguments.set_item("found", problem)?;
                arguments.set_item("repair", repair)?;
                "FailedError"
            }
            other => {
                arguments.set_item("place", "twostep")?;
                arguments.set_item("found", other.to_string())?;
                "FailedError"
            }
        };
        exception(py, class, &arguments)
    };
    made().unwrap_or_else(|problem| problem)
}

/// The system's number of an error that came without one.
fn number_of(kind: io::ErrorKind) -> Option<i32> {
    (kind == io::ErrorKind::NotFound).then_some(2)
}

/// The exception for a study with problems.
pub(crate) fn raise_problems(py: Python<'_>, problems: &Problems) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let arguments = PyDict::new(py);
        arguments.set_item("problems", described(problems))?;
        arguments.set_item("text", problems.to_string())?;
        exception(py, "StudyError", &arguments)
    };
    made().unwrap_or_else(|problem| problem)
}

/// Severity, message, what is expected and help of each problem.
pub(crate) fn described(problems: &Problems) -> Vec<(&'static str, String, String, Option<String>)> {
    let one = |problem: &twostep::study::Problem| {
        let severity = if problem.severity == Severity::Error { "error" } else { "warning" };
        (severity, problem.message.clone(), problem.label.clone(), problem.help.clone())
    };
    problems.problems.iter().map(one).collect()
}
