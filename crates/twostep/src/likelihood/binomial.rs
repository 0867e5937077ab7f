//! Binomial counts: successes of a known number of trials, whose probability is the output.

use super::counts::count;
use super::{Likelihood, Observed, Scored, Side};
use crate::special::{beta_tails, ln_gamma};

/// Probabilities are kept this far from zero and one, where one more or one less success would be impossible.
const EDGE: f64 = 1e-12;

/// The scale is the number of trials.
pub(super) struct Binomial;

impl Likelihood for Binomial {
    fn name(&self) -> &'static str {
        "binomial"
    }

    fn adds_errors(&self) -> bool {
        false
    }

    fn observe(&self, y: f64) -> Result<(Observed, f64), String> {
        Ok((Observed::Direct(count(y)?), 0.0))
    }

    fn constant(&self, z: f64, trials: f64) -> (f64, f64) {
        (ln_gamma(trials + 1.0) - ln_gamma(z + 1.0) - ln_gamma(trials - z + 1.0), 0.0)
    }

    fn score(&self, z: f64, p: f64, trials: f64) -> Scored {
        let p = p.clamp(EDGE, 1.0 - EDGE);
        let log_lik = z * p.ln() + (trials - z) * (-p).ln_1p();
        Scored { log_lik, by_mu: (z - trials * p) / (p * (1.0 - p)), by_scale: 0.0 }
    }

    fn location(&self, z: f64, trials: f64) -> f64 {
        (z + 0.5) / (trials + 1.0)
    }

    fn information(&self, p: f64, trials: f64) -> f64 {
        // Near the ends it is without bounds, and far from what the curve bends.
        let least = 0.5 / (trials + 1.0);
        let p = p.clamp(least, 1.0 - least);
        trials / (p * (1.0 - p))
    }

    fn score_side(&self, side: Side, z: f64, p: f64, trials: f64) -> Scored {
        let p = p.clamp(EDGE, 1.0 - EDGE);
        // P(Y >= m) is the beta distribution's P(X <= p) with parameters m and trials - m + 1.
        let m = if side == Side::Below { z } else { z + 1.0 };
        let certain = if m <= 0.0 { Some(1.0) } else { (m > trials).then_some(0.0) };
        let (at_least, below) = match certain {
            Some(at_least) => (at_least, 1.0 - at_least),
            None => beta_tails(m, trials - m + 1.0, p, 1.0 - p),
        };
        let (probability, sign) = if side == Side::Below { (below, -1.0) } else { (at_least, 1.0) };
        let probability = probability.max(f64::MIN_POSITIVE);
        let log_slope = (m - 1.0) * p.ln() + (trials - m) * (-p).ln_1p() + ln_gamma(trials + 1.0)
            - ln_gamma(m)
            - ln_gamma(trials - m + 1.0);
        let slope = if certain.is_some() { 0.0 } else { log_slope.exp() };
        Scored { log_lik: probability.ln(), by_mu: sign * slope / probability, by_scale: 0.0 }
    }
}
