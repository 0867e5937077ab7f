//! Student-t noise: `(y - eta) / sd ~ t(df)`, for measurements with outliers.

use super::{Batch, Likelihood, Observed, Scored, Side};
use crate::kernels;
use crate::special::{beta_tails, ln_gamma};

pub(super) struct StudentT {
    df: f64,
    log_constant: f64,
}

impl StudentT {
    pub(super) fn new(df: f64) -> Self {
        let log_constant = ln_gamma(0.5 * (df + 1.0)) - ln_gamma(0.5 * df) - 0.5 * (df * std::f64::consts::PI).ln();
        Self { df, log_constant }
    }
}

impl Likelihood for StudentT {
    fn name(&self) -> &'static str {
        "student-t"
    }

    fn observe(&self, y: f64) -> Result<(Observed, f64), String> {
        Ok((Observed::Direct(y), 0.0))
    }

    fn score(&self, z: f64, mu: f64, sd: f64) -> Scored {
        let r = (z - mu) / sd;
        let slope = (self.df + 1.0) * r / (self.df + r * r);
        Scored {
            log_lik: self.log_constant - sd.ln() - 0.5 * (self.df + 1.0) * (r * r / self.df).ln_1p(),
            by_mu: slope / sd,
            by_scale: (r * slope - 1.0) / sd,
        }
    }

    fn information(&self, _mu: f64, sd: f64) -> f64 {
        (self.df + 1.0) / ((self.df + 3.0) * sd * sd)
    }

    fn score_side(&self, side: Side, z: f64, mu: f64, sd: f64) -> Scored {
        let sign = if side == Side::Below { 1.0 } else { -1.0 };
        let at = sign * (z - mu) / sd;
        // Both tails together are I_x(df / 2, 1 / 2) with x = df / (df + at^2).
        let (x, complement) = (self.df / (self.df + at * at), at * at / (self.df + at * at));
        let tail = 0.5 * beta_tails(0.5 * self.df, 0.5, x, complement).0;
        let p = if at < 0.0 { tail } else { 1.0 - tail }.max(f64::MIN_POSITIVE);
        let density = (self.log_constant - 0.5 * (self.df + 1.0) * (at * at / self.df).ln_1p()).exp();
        Scored { log_lik: p.ln(), by_mu: -sign * density / (p * sd), by_scale: -density * at / (p * sd) }
    }

    fn add_log_likelihoods(&self, batch: &Batch<'_>, out: &mut [f64]) {
        let constant = batch.z.len() as f64 * self.log_constant;
        out.iter_mut().for_each(|l| *l += constant);
        kernels::subtract_log_products(batch.rows(), batch.sds(), 1.0 / self.df, 0.5 * (self.df + 1.0), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_match_differences() {
        let t = StudentT::new(4.0);
        let (z, mu, sd) = (1.3, -0.4, 0.7);
        let scored = t.score(z, mu, sd);
        // Truncation of a central difference is h^2 f'''/6 with f''' of order 1/sd^3 < 3; rounding eps/h.
        let h = f64::EPSILON.cbrt();
        let bound = 3.0 * h * h + 4.0 * f64::EPSILON / h;
        let by_mu = (t.score(z, mu + h, sd).log_lik - t.score(z, mu - h, sd).log_lik) / (2.0 * h);
        let by_scale = (t.score(z, mu, sd + h).log_lik - t.score(z, mu, sd - h).log_lik) / (2.0 * h);
        assert!((scored.by_mu - by_mu).abs() < bound);
        assert!((scored.by_scale - by_scale).abs() < 10.0 * bound);
        // df = 1 is Cauchy: density 1 / (pi sd) at the centre.
        let cauchy = StudentT::new(1.0).score(2.0, 2.0, 0.5).log_lik;
        assert!((cauchy - (2.0 / std::f64::consts::PI).ln()).abs() < 1e-14);
    }
}
