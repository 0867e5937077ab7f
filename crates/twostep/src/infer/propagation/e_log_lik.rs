//! E-Log-Lik: `log p(y | omega) = sum_s alpha_s log p(y | omega, theta_s)`.

use super::{Propagation, Targets};

pub(super) struct ELogLik;

impl Propagation for ELogLik {
    fn targets(&self) -> Targets {
        Targets::Pooled
    }

    fn pool(&self, log_alpha: &[f64], l: &mut [f64]) -> f64 {
        let mut sum = 0.0;
        for (l, a) in l.iter_mut().zip(log_alpha) {
            let weight = a.exp();
            // A draw without weight may exclude the data.
            if weight > 0.0 {
                sum += weight * *l;
            }
            *l = weight;
        }
        if sum == f64::NEG_INFINITY {
            l.fill(0.0);
        }
        sum
    }

    fn linear_weights(&self, log_alpha: &[f64]) -> Option<Vec<f64>> {
        Some(log_alpha.iter().map(|a| a.exp()).collect())
    }

    fn mix(&self, _: &[f64], _: &[f64]) -> Option<Vec<f64>> {
        None
    }
}
