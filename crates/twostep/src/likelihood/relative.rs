//! Normal noise whose sd grows with the output: `y ~ N(eta, sd^2 + (relative eta)^2)`.

use super::{Likelihood, Observed, Scored, Side};

/// One of its two parts is the scale.
pub(super) struct Relative {
    /// The other one.
    known: f64,
    /// Whether the scale is the relative part.
    is_relative: bool,
}

impl Relative {
    /// The scale is the sd where eta is zero.
    pub(super) fn new(relative: f64) -> Self {
        Self { known: relative, is_relative: false }
    }

    /// The scale is the relative sd.
    pub(super) fn unknown(sd: f64) -> Self {
        Self { known: sd, is_relative: true }
    }

    /// The sd at `mu`, with its derivatives by `mu` and by the scale.
    fn sd(&self, mu: f64, scale: f64) -> (f64, f64, f64) {
        let (sd, relative) = if self.is_relative { (self.known, scale) } else { (scale, self.known) };
        let total = sd.hypot(relative * mu);
        let by_scale = if self.is_relative { relative * mu * mu } else { sd };
        (total, relative * relative * mu / total, by_scale / total)
    }

    /// Derivatives by `mu` and by the scale from those by the mean and by the sd.
    fn chain(&self, of_normal: Scored, (_, sd_by_mu, sd_by_scale): (f64, f64, f64)) -> Scored {
        let Scored { log_lik, by_mu, by_scale: by_sd } = of_normal;
        Scored { log_lik, by_mu: by_mu + by_sd * sd_by_mu, by_scale: by_sd * sd_by_scale }
    }
}

impl Likelihood for Relative {
    fn name(&self) -> &'static str {
        "normal"
    }

    fn scale_name(&self) -> &'static str {
        if self.is_relative { "relative" } else { "sigma_i" }
    }

    fn adds_errors(&self) -> bool {
        false
    }

    fn observe(&self, y: f64) -> Result<(Observed, f64), String> {
        Ok((Observed::Direct(y), 0.0))
    }

    fn score(&self, z: f64, mu: f64, scale: f64) -> Scored {
        let sd = self.sd(mu, scale);
        self.chain(super::normal::gaussian(z, mu, sd.0), sd)
    }

    fn information(&self, mu: f64, scale: f64) -> f64 {
        let (sd, by_mu, _) = self.sd(mu, scale);
        (1.0 + 2.0 * by_mu * by_mu) / (sd * sd)
    }

    fn score_side(&self, side: Side, z: f64, mu: f64, scale: f64) -> Scored {
        let sd = self.sd(mu, scale);
        self.chain(super::normal::side(side, z, mu, sd.0), sd)
    }
}
