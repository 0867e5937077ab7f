//! Noise families: how a measured value enters the I-likelihood, its density, and how measurements are drawn.

mod data;
mod generate;
mod log_normal;
mod normal;
mod student_t;

pub use data::{Class, Error as ErrorSharing, Group, Reduced, Row, RowKind};
pub use generate::Generator;

use crate::error::Result;
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
