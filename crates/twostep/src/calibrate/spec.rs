//! What the study file says about calibration.

use crate::likelihood::Generator;

/// Where the truths and data of the trials come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Truth {
    /// The paper's: truths from the prior, training and measurement data from the simulator.
    #[default]
    Simulator,
    /// theta* from its prior, both data sets from the surrogate itself: E-Lik is then the exact posterior, and its ranks are
    /// uniform by theorem.
    SurrogatePrior,
    /// Runs that exist already, each left out of the training in turn: no new run at all.
    HeldOutRuns,
}

impl Truth {
    /// All, in the order of their description.
    pub const ALL: [Self; 3] = [Self::Simulator, Self::SurrogatePrior, Self::HeldOutRuns];

    /// Name in the study file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Simulator => "simulator",
            Self::SurrogatePrior => "surrogate-prior",
            Self::HeldOutRuns => "held-out-runs",
        }
    }
}

/// The calibration of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibrateSpec {
    /// Number of T-trials: training sets, each with a surrogate of its own.
    pub t_trials: usize,
    /// I-trials of each T-trial: truths with measurements.
    pub i_trials: usize,
    /// Where truths and data come from.
    pub truth: Truth,
    /// Noise to measure with instead of the inferring one, for each output that has it.
    pub noise: Vec<(String, Generator)>,
}

impl Default for CalibrateSpec {
    fn default() -> Self {
        // Many T-trials with few I-trials: I-trials of one T-trial share its surrogate, so that their ranks are dependent.
        Self { t_trials: 100, i_trials: 2, truth: Truth::Simulator, noise: Vec::new() }
    }
}
