//! What the study file says about the simulator and the design.

use super::command::CommandSpec;
use super::design::Method;
use super::function::SharedFunction;
use super::umbridge::UmbridgeSpec;
use std::path::PathBuf;
use std::time::Duration;

/// Which simulator, and how it is run.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatorSpec {
    /// What is run.
    pub kind: SimulatorKind,
    /// A table of finished runs.
    pub table: Option<PathBuf>,
    /// Standard deviation of the noise added to each output of a built-in simulator; 0 for none.
    pub sigma_s: f64,
    /// Runs at once.
    pub concurrency: usize,
    /// What to do about a run that fails.
    pub on_failure: OnFailure,
    /// Largest share of failed runs with which the surrogate is trained.
    pub max_failed: f64,
    /// Whether a run counts whose series lacks some values.
    pub keep_partial: bool,
}

/// What is run.
#[derive(Clone, Debug, PartialEq)]
pub enum SimulatorKind {
    /// A simulator of ours, by name.
    Builtin(String),
    /// An executable.
    Command(Box<CommandSpec>),
    /// A model behind a UM-Bridge server.
    Umbridge(Box<UmbridgeSpec>),
    /// A function: of the calling program, or of a Python file.
    Function(SharedFunction),
    /// Nothing: runs are made elsewhere, and come by table or import.
    Elsewhere,
}

/// What to do about a run that fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OnFailure {
    /// Note it and go on with the others.
    Continue,
    /// Try again.
    Retry {
        /// Most attempts, the first among them.
        attempts: usize,
        /// Time before the second attempt; doubled before each one after it.
        wait: Duration,
    },
    /// End the simulation; finished runs are kept.
    Abort,
}

impl SimulatorSpec {
    /// The built-in simulator's name.
    pub fn builtin(&self) -> Option<&str> {
        match &self.kind {
            SimulatorKind::Builtin(name) => Some(name),
            _ => None,
        }
    }

    /// Whether runs are made outside this library, so that a ledger keeps them.
    pub fn is_external(&self) -> bool {
        !matches!(self.kind, SimulatorKind::Builtin(_) | SimulatorKind::Elsewhere)
    }

    /// What it is called in a table.
    pub fn name(&self) -> String {
        match &self.kind {
            SimulatorKind::Builtin(name) => name.clone(),
            SimulatorKind::Command(command) => {
                // `python3 model.py`, without what differs from run to run.
                let fixed = command.argv.iter().take_while(|argument| !argument.contains('{'));
                fixed.map(String::as_str).collect::<Vec<_>>().join(" ")
            }
            SimulatorKind::Function(function) => function.name(),
            SimulatorKind::Umbridge(server) => server.model.clone().unwrap_or_else(|| server.url.clone()),
            SimulatorKind::Elsewhere => {
                let file = self.table.as_ref().and_then(|path| path.file_name());
                file.map_or_else(|| "imported runs".to_owned(), |name| name.to_string_lossy().into_owned())
            }
        }
    }

    /// Everything that decides what a run gives, by the place in the study file. Nothing for what is not run by us.
    pub fn fingerprint_parts(&self) -> Vec<(String, String)> {
        match &self.kind {
            SimulatorKind::Builtin(_) | SimulatorKind::Elsewhere => Vec::new(),
            SimulatorKind::Command(command) => command.fingerprint_parts(),
            SimulatorKind::Umbridge(server) => server.fingerprint_parts(),
            SimulatorKind::Function(function) => function.fingerprint_parts(),
        }
    }
}

/// Where the simulator runs.
#[derive(Clone, Debug, PartialEq)]
pub struct DesignSpec {
    /// How points are chosen; without meaning where they come from a file.
    pub method: Method,
    /// Number of runs N_T; none where a table has them all.
    pub runs: usize,
    /// A file with a column per unknown and condition, instead of a method.
    pub points: Option<PathBuf>,
}
