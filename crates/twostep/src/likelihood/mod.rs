//! Noise families: how a measured value enters the I-likelihood, its density, and how measurements are drawn.

mod data;
mod generate;
mod log_normal;
mod normal;
mod student_t;

pub(crate) use data::ClassForm;
pub use data::{Class, Error as ErrorSharing, Group, Reduced, Row, RowKind};
pub use generate::Generator;

use crate::error::Result;
use crate::matrix::Matrix;
use crate::prior::Marginal;
use log_normal::LogNormal;
use normal::Normal;
use student_t::StudentT;

/// What a measured value becomes on the scale on which the family measures deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observed {
    /// A value with a normal density: replicates reduce to mean and scatter, polynomials to quadratic forms.
    Gaussian(f64),
    /// A value whose density the family evaluates itself.
    Direct(f64),
    /// Only known to lie below this.
    Below(f64),
}

/// A log-likelihood with its derivatives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scored {
    /// `log p(z | mu, sd)`.
    pub log_lik: f64,
    /// By `mu`.
    pub by_mu: f64,
    /// By `sd`.
    pub by_sd: f64,
}

/// A family `p(y | mu, sd)` that can be inferred with. `z` is the value on the family's own scale.
pub trait Likelihood: Send + Sync {
    /// Name in the study file.
    fn name(&self) -> &'static str;

    /// Whether deviations are measured on the logarithm of the output.
    fn on_log_scale(&self) -> bool {
        false
    }

    /// How `y` enters, with the log of `|dz/dy|`.
    ///
    /// # Errors
    /// If the family cannot produce `y`.
    fn observe(&self, y: f64) -> Result<(Observed, f64), String>;

    /// Density of a value that [`Likelihood::observe`] called direct.
    fn score(&self, z: f64, mu: f64, sd: f64) -> Scored;

    /// `out[s] += sum_i log p(z_i | mu_i[s], sd(s))`: the same for all draws at once, which the grid asks for most.
    fn add_log_likelihoods(&self, batch: &Batch<'_>, out: &mut [f64]) {
        for (z, mu) in batch.rows() {
            for (s, (out, &mu)) in out.iter_mut().zip(mu).enumerate() {
                *out += self.score(z, mu, batch.sd(s)).log_lik;
            }
        }
    }
}

/// `log p(y | mu, sd)` of one measurement, `mu` on the family's scale; minus infinity where the family cannot produce it, or
/// where `mu` is NaN.
pub fn log_likelihood(family: &dyn Likelihood, y: f64, mu: f64, sd: f64) -> f64 {
    let value = match family.observe(y) {
        Ok((Observed::Gaussian(z) | Observed::Direct(z), log_slope)) => family.score(z, mu, sd).log_lik + log_slope,
        Ok((Observed::Below(z), _)) => RowKind::Below.score(family, z, mu, sd).log_lik,
        Err(_) => f64::NEG_INFINITY,
    };
    if value.is_nan() { f64::NEG_INFINITY } else { value }
}

/// Values with the same measurement sd and their locations under every draw.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The values.
    pub z: &'a [f64],
    /// Row of `mu` that belongs to each value.
    pub at: &'a [usize],
    /// Locations: points x draws.
    pub mu: &'a Matrix,
    /// The measurement sd.
    pub measured: f64,
    /// Approximation error of each draw, where it is propagated.
    pub sigma_a: Option<&'a [f64]>,
}

impl<'a> Batch<'a> {
    /// Each value with its locations.
    pub fn rows(&self) -> impl Iterator<Item = (f64, &'a [f64])> + Clone {
        let mu = self.mu;
        self.z.iter().copied().zip(self.at.iter().map(move |&at| mu.row(at)))
    }

    /// Measurement sd and approximation error together.
    pub fn sd(&self, s: usize) -> f64 {
        self.sigma_a.map_or(self.measured, |a| self.measured.hypot(a[s]))
    }

    fn sds(&self) -> (f64, Option<&'a [f64]>) {
        (self.measured, self.sigma_a)
    }
}

/// The measurement sd: known, unknown with a prior (sigma_I), or a column of the measurements.
#[derive(Clone, Debug, PartialEq)]
pub enum Sd {
    /// One number.
    Fixed(f64),
    /// The unknown sigma_I.
    Prior(Marginal),
    /// Column `sd` of the measurement file.
    Column,
}

/// Which noise family to infer with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Family {
    /// `y ~ N(eta, sd^2)`.
    Normal,
    /// `log y ~ N(eta, sd^2)`; zeros are left-censored at 1/2 unless refused.
    LogNormal {
        /// Whether a zero is an error instead.
        refuse_zeros: bool,
    },
    /// `(y - eta) / sd ~ t(df)`.
    StudentT {
        /// Degrees of freedom.
        df: f64,
    },
}

impl Family {
    /// The same family to generate measurements with.
    pub fn generator(&self, sd: f64) -> Generator {
        match *self {
            Self::Normal => Generator::Normal { sd },
            Self::LogNormal { .. } => Generator::LogNormal { sd },
            Self::StudentT { df } => Generator::StudentT { sd, df },
        }
    }

    /// The density.
    pub fn likelihood(&self) -> Box<dyn Likelihood> {
        match *self {
            Self::Normal => Box::new(Normal),
            Self::LogNormal { refuse_zeros } => Box::new(LogNormal { refuse_zeros }),
            Self::StudentT { df } => Box::new(StudentT::new(df)),
        }
    }
}

/// The noise of one output's measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct NoiseSpec {
    /// The family.
    pub family: Family,
    /// Its scale.
    pub sd: Sd,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::special::normal_cdf;

    #[test]
    fn a_measurement_has_the_density_of_its_own_scale() {
        let log_normal = Family::LogNormal { refuse_zeros: false }.likelihood();
        let (y, mu, sd) = (2.0, 0.5, 0.25);
        let normal = Family::Normal.likelihood();
        let expected = log_likelihood(&*normal, f64::ln(y), mu, sd) - y.ln();
        let rounding = 8.0 * f64::EPSILON * (1.0 + expected.abs());
        assert!((log_likelihood(&*log_normal, y, mu, sd) - expected).abs() <= rounding);
        // A zero lies below one half; its probability has few digits in the tail, relative to one.
        let below = normal_cdf((0.5f64.ln() - mu) / sd);
        assert!((log_likelihood(&*log_normal, 0.0, mu, sd).exp() - below).abs() <= 8.0 * f64::EPSILON);
        assert_eq!(log_likelihood(&*log_normal, -1.0, mu, sd), f64::NEG_INFINITY);
        assert_eq!(log_likelihood(&*log_normal, 1.0, f64::NAN, sd), f64::NEG_INFINITY);
    }
}
