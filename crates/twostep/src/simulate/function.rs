//! Simulators that are a function: of the program that calls this library, or of a Python file.

use super::command::check::digest;
use super::external::{Failure, Job, Reading, Wanted};
use crate::monitor::Proceed;
use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

/// A simulator that is a function of named inputs.
///
/// Runs are independent of each other, and several may be asked for at once.
pub trait Function: Send + Sync {
    /// What it is called in a table.
    fn name(&self) -> String;

    /// Everything that decides what a run gives, by the place in the study file.
    fn fingerprint_parts(&self) -> Vec<(String, String)>;

    /// One run: what it gives of each output. `proceed` is asked while the run is waited for.
    ///
    /// # Errors
    /// Why it gave nothing.
    fn run(&self, job: &Job, wanted: &[Wanted], proceed: Proceed<'_>) -> Result<Vec<Reading>, Failure>;

    /// No run will be asked for in a while: ends what was kept ready for more.
    fn rest(&self) {}
}

/// What a function of a Python file is known by: its name, and the content of the file.
pub fn python_parts(file: &Path, function: &str) -> Vec<(String, String)> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    vec![
        ("simulator.python".to_owned(), format!("{name}:{function}")),
        (format!("simulator.python: {name}"), digest(file)),
    ]
}

/// A function that studies share; equal where its fingerprint is.
#[derive(Clone)]
pub struct SharedFunction(Arc<dyn Function>);

impl SharedFunction {
    /// Shares a function.
    pub fn new(function: impl Function + 'static) -> Self {
        Self(Arc::new(function))
    }
}

impl Deref for SharedFunction {
    type Target = dyn Function;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for SharedFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedFunction").field(&self.name()).finish()
    }
}

impl PartialEq for SharedFunction {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name() && self.fingerprint_parts() == other.fingerprint_parts()
    }
}
