//! The Python package's private module `_twostep`: studies, stages and results as plain values and arrays.
//!
//! What users see is written in Python, in `python/twostep`; this crate only carries values over.

mod arrays;
mod document;
mod errors;
mod project;
mod propagation;
mod pump;
mod results;
mod simulator;
mod surrogate;
mod threads;

use pyo3::prelude::*;
use std::ffi::OsString;

/// Does what a command line asks for, the program's name first, and returns the exit status.
#[pyfunction]
fn command(py: Python<'_>, command_line: Vec<OsString>) -> u8 {
    py.detach(|| twostep_cli::main(&command_line))
}

/// Lets work on all studies of this process use so many threads; only before the first of it.
#[pyfunction]
fn set_threads(py: Python<'_>, threads: usize) -> PyResult<()> {
    if threads::set(threads) {
        return Ok(());
    }
    let repair = "call it before any other work, once";
    Err(errors::raise(py, twostep::Error::invalid("set_threads", "work has begun with other threads", repair)))
}

/// Panics within long work, to test what becomes of it.
#[pyfunction]
fn panic(py: Python<'_>, host: &Bound<'_, PyAny>) -> PyResult<()> {
    pump::drive(py, host, &pump::Line::default(), |_| panic!("as asked for"))
}

/// The private module.
#[pymodule]
fn _twostep(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::quiet_panics();
    module.add("__version__", twostep::run::VERSION)?;
    module.add_function(wrap_pyfunction!(command, module)?)?;
    module.add_function(wrap_pyfunction!(panic, module)?)?;
    module.add_function(wrap_pyfunction!(set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(document::check, module)?)?;
    module.add_function(wrap_pyfunction!(results::compare, module)?)?;
    module.add_function(wrap_pyfunction!(simulator::time_calls, module)?)?;
    module.add_function(wrap_pyfunction!(simulator::python_parts, module)?)?;
    module.add_function(wrap_pyfunction!(document::read_toml, module)?)?;
    module.add_function(wrap_pyfunction!(document::write_toml, module)?)?;
    module.add_class::<project::Collector>()?;
    module.add_class::<project::Project>()?;
    module.add_class::<results::Setting>()?;
    module.add_class::<results::Calibrations>()?;
    module.add_class::<results::Server>()?;
    module.add_class::<simulator::Reply>()?;
    // Nobody imports all of a private module; its names stand in the stub.
    module.delattr("__all__")
}
