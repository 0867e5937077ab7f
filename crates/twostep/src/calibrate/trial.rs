//! What a trial leaves behind: where the truth lies in each posterior, and how far the posterior is to be trusted.

use serde::{Deserialize, Serialize};

/// One method's outcome in one I-trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The T-trial, from zero.
    pub t_trial: usize,
    /// The I-trial within it, from zero.
    pub i_trial: usize,
    /// The method.
    pub method: String,
    /// What the method was, for one of the calling program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Prior over design density of the truth, up to a factor; 1 where truths are drawn from the prior.
    pub weight: f64,
    /// Where each true value lies; empty where the trial failed.
    pub ranked: Vec<Ranked>,
    /// What is known of the posterior and its surrogate.
    pub evidence: Evidence,
    /// Why the trial failed, where it did.
    pub failed: Option<String>,
}

/// Where the true value of one unknown lies in its posterior.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    /// The unknown.
    pub unknown: String,
    /// Its true value.
    pub truth: f64,
    /// Posterior probability below the truth: exact from a grid; from draws, `(rank + U) / (draws + 1)` with U uniform, which
    /// is uniform where the rank is.
    pub pit: f64,
    /// Posterior probability below the truth by all that is known of the posterior: what its intervals go by. The same as the
    /// PIT of a grid; from draws the share of all of them, which is not uniform where they are autocorrelated.
    pub below: f64,
    /// Number of draws below the truth, where there are draws.
    pub rank: Option<usize>,
    /// Number of draws that were ranked: at most their effective number.
    pub draws: Option<usize>,
    /// 5 % quantile of the posterior.
    pub q05: f64,
    /// 95 % quantile.
    pub q95: f64,
}

/// What tells why a calibration fails.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The engine of the I-step; empty where it failed before.
    pub engine: String,
    /// Largest R-hat of the I-step, where there are chains or runs.
    pub r_hat: Option<f64>,
    /// Divergent transitions of the I-step.
    pub divergences: Option<usize>,
    /// Quadrature error of the I-step in sds.
    pub quadrature_error: Option<f64>,
    /// Share of the T-draws that the data favour (E-Lik): see [`crate::infer::Diagnostics::evidence_agreement`].
    pub agreement: Option<f64>,
    /// Largest R-hat of the T-step, where there are chains or runs.
    pub t_r_hat: Option<f64>,
    /// Whether the T-step warned of its own sampling.
    pub t_warned: bool,
    /// Posterior mean of sigma_A, of the output where it counts most against its noise; on the surrogate's scale.
    pub sigma_a: Option<f64>,
    /// Epistemic sd of that output's surrogate: root mean square, over the training inputs, of the sd of eta over the T-draws.
    pub epistemic_sd: Option<f64>,
    /// sd of the mean of the replicates at one point of that output's measurements, on the same scale; none where its scale
    /// is another.
    pub noise_sd: Option<f64>,
}
