//! Log-normal noise: `log y ~ N(eta, sd^2)`, with zeros left-censored at 1/2.

use super::normal::{add_gaussian, add_normal_sides, gaussian};
use super::{Batch, Likelihood, Observed, Scored, Side};

/// A count of zero has no logarithm; all that is known is that it rounds to zero, so it lies below 1/2.
const ZERO_LIES_BELOW: f64 = 0.5;

pub(super) struct LogNormal {
    pub(super) refuse_zeros: bool,
}

impl Likelihood for LogNormal {
    fn name(&self) -> &'static str {
        "log-normal"
    }

    fn observe(&self, y: f64) -> Result<(Observed, f64), String> {
        if y > 0.0 {
            Ok((Observed::Gaussian(y.ln()), -y.ln()))
        } else if y == 0.0 && !self.refuse_zeros {
            Ok((Observed::Censored(Side::Below, ZERO_LIES_BELOW.ln()), 0.0))
        } else if y == 0.0 {
            Err("is zero, which has no logarithm".into())
        } else {
            Err("is negative, which log-normal noise cannot produce".into())
        }
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
