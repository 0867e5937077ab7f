//! Noise families: how a measured value enters the I-likelihood, its density, and how measurements are drawn.

mod binomial;
mod counts;
mod covariance;
mod data;
mod generate;
mod log_normal;
mod normal;
mod relative;
mod student_t;

pub(crate) use covariance::{Correlated, correlate};
pub(crate) use data::ClassForm;
pub use data::{Class, Error as ErrorSharing, Group, Reduced, Row, RowKind, Values};
pub use generate::Generator;

use crate::error::Result;
use crate::kernels::latent::{self, Cells, Curve, Integrals};
use crate::matrix::Matrix;
use crate::prior::Marginal;
use binomial::Binomial;
use counts::Counts;
use log_normal::LogNormal;
use normal::Normal;
use relative::Relative;
use student_t::StudentT;

/// What a measured value becomes on the scale on which the family measures deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observed {
    /// A value with a normal density: replicates reduce to mean and scatter, polynomials to quadratic forms.
    Gaussian(f64),
    /// A value whose density the family evaluates itself.
    Direct(f64),
    /// Only known to lie on this side of it.
    Censored(Side, f64),
}

/// On which side of a bound a censored value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Below it: left-censored.
    Below,
    /// Above it: right-censored.
    Above,
}

/// A log-likelihood with its derivatives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scored {
    /// `log p(z | mu, scale)`.
    pub log_lik: f64,
    /// By `mu`.
    pub by_mu: f64,
    /// By `scale`.
    pub by_scale: f64,
}

/// How the surrogate's output becomes the family's location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Both on one scale.
    Identity,
    /// The surrogate models the logarithm, the noise is on the natural scale.
    Exp,
    /// The surrogate models the natural output, the noise is on the logarithm.
    Log,
}

impl Link {
    /// Location and its derivative by eta.
    pub fn apply(self, eta: f64) -> (f64, f64) {
        match self {
            Self::Identity => (eta, 1.0),
            Self::Exp => (eta.exp(), eta.exp()),
            Self::Log => (eta.ln(), eta.recip()),
        }
    }

    /// The eta of a location; NaN where there is none.
    pub fn inverse(self, mu: f64) -> f64 {
        match self {
            Self::Identity => mu,
            Self::Exp => mu.ln(),
            Self::Log => mu.exp(),
        }
    }
}

/// A family `p(y | mu, scale)` that can be inferred with. `z` is the value on the family's own scale; what `scale` is, the family says.
pub trait Likelihood: Send + Sync {
    /// Name in the study file.
    fn name(&self) -> &'static str;

    /// What its scale is called where it is unknown.
    fn scale_name(&self) -> &'static str {
        "sigma_i"
    }

    /// Whether a normal error of the location adds its variance to that of the noise. Where it does not, it is integrated out by
    /// quadrature.
    fn adds_errors(&self) -> bool {
        true
    }

    /// How `y` enters, with the log of `|dz/dy|`.
    ///
    /// # Errors
    /// If the family cannot produce `y`.
    fn observe(&self, y: f64) -> Result<(Observed, f64), String>;

    /// What of the log density of a direct value depends on its scale, but not on its location, with the derivative.
    fn constant(&self, _z: f64, _scale: f64) -> (f64, f64) {
        (0.0, 0.0)
    }

    /// The rest of the log density of a value that [`Likelihood::observe`] called direct.
    fn score(&self, z: f64, mu: f64, scale: f64) -> Scored;

    /// Where a value by itself would have its location, inside of what locations may be.
    fn location(&self, z: f64, _scale: f64) -> f64 {
        z
    }

    /// Fisher's information of a value about its location.
    fn information(&self, mu: f64, scale: f64) -> f64;

    /// Log probability of a value on that side of the bound `z`.
    fn score_side(&self, side: Side, z: f64, mu: f64, scale: f64) -> Scored {
        normal::side(side, z, mu, scale)
    }

    /// `out[s] += sum_i log p(z_i | mu_i[s], scale(s))`: the same for all draws at once, which the grid asks for most.
    fn add_log_likelihoods(&self, batch: &Batch<'_>, out: &mut [f64]) {
        for (z, mu) in batch.rows() {
            let (constant, _) = self.constant(z, batch.measured);
            for (s, (out, &mu)) in out.iter_mut().zip(mu).enumerate() {
                *out += self.score(z, mu, batch.sd(s)).log_lik + constant;
            }
        }
    }

    /// `out[s] += sum_i log P(value i lies on that side of z_i | mu_i[s], scale(s))`.
    fn add_sides(&self, side: Side, batch: &Batch<'_>, out: &mut [f64]) {
        for (z, mu) in batch.rows() {
            for (s, (out, &mu)) in out.iter_mut().zip(mu).enumerate() {
                *out += self.score_side(side, z, mu, batch.sd(s)).log_lik;
            }
        }
    }

    /// `log p` of all members of a group whose common error of eta is integrated out, for all cells at once. The constants of the
    /// members are not in it.
    fn integrate(&self, groups: &[Members], link: Link, cells: &Cells<'_>, out: &mut Integrals) {
        integrate_any(self, groups, link, cells, out);
    }
}

/// [`Likelihood::integrate`] by the densities of the members one by one.
fn integrate_any(
    family: &(impl Likelihood + ?Sized),
    groups: &[Members],
    link: Link,
    cells: &Cells<'_>,
    out: &mut Integrals,
) {
    let curve = |group: usize, _: [f64; 0], eta: f64| {
        let (mu, slope) = link.apply(eta);
        let mut sum = Curve::default();
        // A logarithm of what is not positive.
        if !mu.is_finite() {
            return Curve { log: f64::NEG_INFINITY, ..sum };
        }
        for &(kind, z, scale, by_unknown) in &groups[group] {
            let (scored, information) = match kind {
                RowKind::Value => (family.score(z, mu, scale), family.information(mu, scale)),
                // That of whether it lies there, which is less than that of the value.
                RowKind::Side(side) => {
                    let scored = family.score_side(side, z, mu, scale);
                    (scored, (scored.by_mu * scored.by_mu).min(family.information(mu, scale)))
                }
            };
            sum.log += scored.log_lik;
            sum.by_eta += scored.by_mu * slope;
            sum.information += information * slope * slope;
            sum.by_scale += scored.by_scale * by_unknown;
        }
        sum
    };
    let start = |group: usize, _: [f64; 0]| link.inverse(mean_location(family, &groups[group]));
    latent::integrate(|_| [], curve, start, cells, out);
}

/// Where the values of a group by themselves would have its location; NaN where there are none.
fn mean_location(family: &(impl Likelihood + ?Sized), group: &Members) -> f64 {
    let values = group.iter().filter(|member| member.0 == RowKind::Value);
    let sum = |(n, total): (f64, f64), &(_, z, scale, _): &(RowKind, f64, f64, f64)| {
        (n + 1.0, total + family.location(z, scale))
    };
    let (n, total) = values.fold((0.0, 0.0), sum);
    total / n
}

/// Members of a group: what each is, its value or bound, its scale, and the derivative of that by the unknown scale.
pub type Members = Vec<(RowKind, f64, f64, f64)>;

/// `log p(y | eta, scale)` of one measurement, or of its lying on that side of y, with a normal error of eta integrated out; minus
/// infinity where the family cannot produce it, or where eta has no location.
pub fn log_likelihood(
    family: &dyn Likelihood,
    (y, side): (f64, Option<Side>),
    link: Link,
    eta: f64,
    scale: f64,
    error: f64,
) -> f64 {
    let Ok((observed, log_slope)) = family.observe(y) else { return f64::NEG_INFINITY };
    let (kind, z) = match (observed, side) {
        (Observed::Censored(side, z), _) | (Observed::Gaussian(z) | Observed::Direct(z), Some(side)) => {
            (RowKind::Side(side), z)
        }
        (Observed::Gaussian(z) | Observed::Direct(z), None) => (RowKind::Value, z),
    };
    let constant = if kind == RowKind::Value { log_slope + family.constant(z, scale).0 } else { 0.0 };
    let value = if error == 0.0 || (family.adds_errors() && link == Link::Identity) {
        kind.score(family, z, link.apply(eta).0, scale.hypot(error)).log_lik
    } else {
        let mut integrals = Integrals::default();
        let cell = Cells { group: &[0], eta: &[eta], sds: &[error] };
        family.integrate(&[vec![(kind, z, scale, 0.0)]], link, &cell, &mut integrals);
        integrals.log[0]
    } + constant;
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

/// The scale of the noise, which for most families is the measurement sd: known, unknown with a prior (sigma_I), or a column of the
/// measurements.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// One number.
    Fixed(f64),
    /// Unknown.
    Prior(Marginal),
    /// Column `sd` of the measurement file, or `trials`.
    Column,
    /// The column times an unknown number.
    Multiple(Marginal),
}

impl Scale {
    /// The prior of what is unknown about it.
    pub fn prior(&self) -> Option<&Marginal> {
        match self {
            Self::Prior(prior) | Self::Multiple(prior) => Some(prior),
            Self::Fixed(_) | Self::Column => None,
        }
    }

    /// Whether it stands in the measurement file.
    pub fn is_column(&self) -> bool {
        matches!(self, Self::Column | Self::Multiple(_))
    }

    /// The scale of a measurement, given what is unknown and what the file says; none where that is missing.
    pub fn of(&self, unknown: Option<f64>, own: Option<f64>) -> Option<f64> {
        match self {
            Self::Fixed(scale) => Some(*scale),
            Self::Prior(_) => unknown,
            Self::Column => own,
            Self::Multiple(_) => Some(unknown? * own?),
        }
    }
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
    /// `y ~ N(eta, sd^2 + (relative eta)^2)`; the scale is the sd.
    Relative {
        /// Sd in parts of eta.
        relative: f64,
    },
    /// The same; the scale is the relative sd.
    UnknownRelative {
        /// Sd where eta is zero.
        sd: f64,
    },
    /// Counts with mean and variance eta; the scale is zero.
    Poisson,
    /// Counts with mean eta and variance `eta + eta^2 / phi`; the scale is phi, or its inverse.
    NegativeBinomial {
        /// Whether it is the inverse.
        inverse: bool,
    },
    /// Successes of a number of trials, which is the scale; eta is the probability.
    Binomial,
}

impl Family {
    /// The same family to generate measurements with.
    pub fn generator(&self, scale: f64) -> Generator {
        match *self {
            Self::Normal => Generator::Normal { sd: scale },
            Self::LogNormal { .. } => Generator::LogNormal { sd: scale },
            Self::StudentT { df } => Generator::StudentT { sd: scale, df },
            Self::Relative { relative } => Generator::Relative { sd: scale, relative },
            Self::UnknownRelative { sd } => Generator::Relative { sd, relative: scale },
            Self::Poisson => Generator::Poisson,
            Self::NegativeBinomial { inverse } => {
                Generator::NegativeBinomial { phi: if inverse { scale.recip() } else { scale } }
            }
            Self::Binomial => Generator::Binomial { trials: scale },
        }
    }

    /// The scale with which this family is the generator, where it is that.
    pub fn scale_of(&self, generator: &Generator) -> Option<f64> {
        match (*self, *generator) {
            (Self::Normal, Generator::Normal { sd }) | (Self::LogNormal { .. }, Generator::LogNormal { sd }) => {
                Some(sd)
            }
            (Self::StudentT { df }, Generator::StudentT { sd, df: own }) if df == own => Some(sd),
            (Self::Relative { relative }, Generator::Relative { sd, relative: own }) if relative == own => Some(sd),
            (Self::UnknownRelative { sd }, Generator::Relative { sd: own, relative }) if sd == own => Some(relative),
            (Self::Poisson, Generator::Poisson) => Some(0.0),
            (Self::NegativeBinomial { inverse }, Generator::NegativeBinomial { phi }) => {
                Some(if inverse { phi.recip() } else { phi })
            }
            (Self::Binomial, Generator::Binomial { trials }) => Some(trials),
            _ => None,
        }
    }

    /// The density.
    pub fn likelihood(&self) -> Box<dyn Likelihood> {
        match *self {
            Self::Normal => Box::new(Normal),
            Self::LogNormal { refuse_zeros } => Box::new(LogNormal { refuse_zeros }),
            Self::StudentT { df } => Box::new(StudentT::new(df)),
            Self::Relative { relative } => Box::new(Relative::new(relative)),
            Self::UnknownRelative { sd } => Box::new(Relative::unknown(sd)),
            Self::Poisson => Box::new(Counts::Poisson),
            Self::NegativeBinomial { inverse: true } => Box::new(Counts::InversePhi),
            Self::NegativeBinomial { inverse: false } => Box::new(Counts::Phi),
            Self::Binomial => Box::new(Binomial),
        }
    }

    /// How an output that the surrogate models on its logarithm, or not, becomes the location.
    pub fn link(&self, on_log_scale: bool) -> Link {
        match (on_log_scale, matches!(self, Self::LogNormal { .. })) {
            (true, false) => Link::Exp,
            (false, true) => Link::Log,
            _ => Link::Identity,
        }
    }

    /// Whether measurements of an output on this scale reduce to sums of squares.
    pub fn reduces(&self, on_log_scale: bool) -> bool {
        matches!(self, Self::Normal | Self::LogNormal { .. }) && self.link(on_log_scale) == Link::Identity
    }
}

/// The noise of one output's measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct NoiseSpec {
    /// The family.
    pub family: Family,
    /// Its scale.
    pub scale: Scale,
}

impl NoiseSpec {
    /// What its unknown scale is called, where it has one.
    pub fn scale_name(&self) -> Option<&'static str> {
        match &self.scale {
            Scale::Prior(_) => Some(self.family.likelihood().scale_name()),
            Scale::Multiple(_) => Some("multiplier"),
            Scale::Fixed(_) | Scale::Column => None,
        }
    }
}

#[cfg(test)]
mod tests;
