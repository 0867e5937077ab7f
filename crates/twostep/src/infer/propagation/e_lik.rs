//! E-Lik: `p(y | omega) = sum_s alpha_s p(y | omega, theta_s)`.

use super::{Propagation, Targets};
use crate::kernels::log_mean_exp_weights;
use crate::special::log_sum_exp;

pub(super) struct ELik;

impl Propagation for ELik {
    fn targets(&self) -> Targets {
        Targets::Pooled
    }

    fn pool(&self, log_alpha: &[f64], l: &mut [f64]) -> f64 {
        log_mean_exp_weights(log_alpha, l)
    }

    fn is_log_mean_exp(&self) -> bool {
        true
    }

    /// `w_s` proportional to `alpha_s Z_s`: the data argue with the surrogate.
    fn mix(&self, log_alpha: &[f64], log_evidence: &[f64]) -> Option<Vec<f64>> {
        let raw: Vec<f64> = log_alpha.iter().zip(log_evidence).map(|(a, z)| a + z).collect();
        let total = log_sum_exp(&raw);
        Some(raw.iter().map(|w| w - total).collect())
    }
}
