//! E-Post: `p(omega | y) = sum_s alpha_s p(omega | y, theta_s)`.

use super::{Propagation, Targets};
use crate::kernels::log_mean_exp_weights;

pub(super) struct EPost;

impl Propagation for EPost {
    fn targets(&self) -> Targets {
        Targets::PerDraw
    }

    /// With the weights divided by the evidences this is E-Post itself; of a single draw, one of its fits.
    fn pool(&self, log_alpha: &[f64], l: &mut [f64]) -> f64 {
        log_mean_exp_weights(log_alpha, l)
    }

    fn is_log_mean_exp(&self) -> bool {
        true
    }

    fn mix(&self, log_alpha: &[f64], _: &[f64]) -> Option<Vec<f64>> {
        Some(log_alpha.to_vec())
    }
}
