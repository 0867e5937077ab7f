//! Normal noise: `y ~ N(eta, sd^2)`.

use super::{Batch, Likelihood, Observed, Scored};
use crate::kernels;
use crate::special::HALF_LN_TAU;

pub(super) struct Normal;

impl Likelihood for Normal {
    fn name(&self) -> &'static str {
        "normal"
    }

    fn observe(&self, y: f64) -> Result<(Observed, f64), String> {
        Ok((Observed::Gaussian(y), 0.0))
    }

    fn score(&self, z: f64, mu: f64, sd: f64) -> Scored {
        gaussian(z, mu, sd)
    }

    fn add_log_likelihoods(&self, batch: &Batch<'_>, out: &mut [f64]) {
        add_gaussian(batch, out);
    }
}

/// Adds `log N(z_i | mu_i[s], sd(s)^2)`.
pub(super) fn add_gaussian(batch: &Batch<'_>, out: &mut [f64]) {
    let constant = batch.z.len() as f64 * HALF_LN_TAU;
    out.iter_mut().for_each(|l| *l -= constant);
    kernels::subtract_squares(batch.rows(), batch.sds(), out);
}

/// `log N(z | mu, sd^2)` with derivatives.
pub(super) fn gaussian(z: f64, mu: f64, sd: f64) -> Scored {
    let r = (z - mu) / sd;
    Scored {
        log_lik: -0.5 * (r * r + (2.0 * std::f64::consts::PI).ln()) - sd.ln(),
        by_mu: r / sd,
        by_sd: (r * r - 1.0) / sd,
    }
}
