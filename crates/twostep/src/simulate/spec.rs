//! What the study file says about the simulator and the design.

use super::design::Method;
use std::path::PathBuf;

/// Which simulator.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatorSpec {
    /// Name of a built-in simulator.
    pub builtin: String,
    /// Standard deviation of the noise added to each output; 0 for none.
    pub sigma_s: f64,
}

/// Where the simulator runs.
#[derive(Clone, Debug, PartialEq)]
pub struct DesignSpec {
    /// How points are chosen; without meaning where they come from a file.
    pub method: Method,
    /// Number of runs N_T.
    pub runs: usize,
    /// A file with a column per unknown and condition, instead of a method.
    pub points: Option<PathBuf>,
}
