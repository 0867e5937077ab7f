//! Normal noise: `y ~ N(eta, sd^2)`.

use super::{Batch, Likelihood, Observed, Scored, Side};
use crate::kernels;
use crate::special::{HALF_LN_TAU, log_normal_cdf};

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

    fn information(&self, _mu: f64, sd: f64) -> f64 {
        (sd * sd).recip()
    }

    fn add_log_likelihoods(&self, batch: &Batch<'_>, out: &mut [f64]) {
        add_gaussian(batch, out);
    }

    fn add_sides(&self, side: Side, batch: &Batch<'_>, out: &mut [f64]) {
        add_normal_sides(side, batch, out);
    }
}

/// Adds `log N(z_i | mu_i[s], sd(s)^2)`.
pub(super) fn add_gaussian(batch: &Batch<'_>, out: &mut [f64]) {
    let constant = batch.z.len() as f64 * HALF_LN_TAU;
    out.iter_mut().for_each(|l| *l -= constant);
    kernels::subtract_squares(batch.rows(), batch.sds(), out);
}

/// Adds log probabilities of lying on that side of normal tails.
pub(super) fn add_normal_sides(side: Side, batch: &Batch<'_>, out: &mut [f64]) {
    for (z, mu) in batch.rows() {
        match side {
            // Zeros of log-normal noise are what bounds are most of the time.
            Side::Below => kernels::add_log_cdf(z, mu, batch.measured, batch.sigma_a, out),
            Side::Above => {
                for (s, (out, &mu)) in out.iter_mut().zip(mu).enumerate() {
                    *out += log_normal_cdf((mu - z) / batch.sd(s));
                }
            }
        }
    }
}

/// `log N(z | mu, sd^2)` with derivatives.
pub(super) fn gaussian(z: f64, mu: f64, sd: f64) -> Scored {
    let r = (z - mu) / sd;
    Scored {
        log_lik: -0.5 * (r * r + (2.0 * std::f64::consts::PI).ln()) - sd.ln(),
        by_mu: r / sd,
        by_scale: (r * r - 1.0) / sd,
    }
}

/// Log probability of lying on that side of `z` under `N(mu, sd^2)`, with derivatives.
pub(super) fn side(side: Side, z: f64, mu: f64, sd: f64) -> Scored {
    let sign = if side == Side::Below { 1.0 } else { -1.0 };
    let at = sign * (z - mu) / sd;
    let log_lik = log_normal_cdf(at);
    // The inverse Mills ratio phi / Phi, from the logarithm that is there already.
    let slope = (-0.5 * at * at - HALF_LN_TAU - log_lik).exp();
    Scored { log_lik, by_mu: -sign * slope / sd, by_scale: -slope * at / sd }
}
