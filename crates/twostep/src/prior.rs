//! Maps texts such as `normal(2, 0.5)` to priors: density, probabilities, draws, and the map from the real line.

use std::fmt;
use std::str::FromStr;

use rand::distr::Open01;
use rand::{Rng, RngExt};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};
use crate::special::{
    HALF_LN_TAU, beta_logit_quantile, beta_tails, erf, erf_inverse, gamma_log_quantile, gamma_tails, gauss_legendre,
    ln_beta, ln_gamma, logistic, normal_cdf, normal_quantile,
};

/// A truncation must keep at least this probability of the family: below it, prior and range contradict each other.
const MIN_MASS: f64 = 1e-12;

/// Largest shape of gamma and beta and largest df: tail probabilities are good to 1e-9 there, and a normal is as good.
const MAX_SHAPE: f64 = 1e5;

/// Smallest df: below it a draw in a thousand million lies beyond 1e45, and squares of the far tail overflow.
const MIN_DF: f64 = 0.2;

/// Names as written in a study, with the parameters in order.
const FAMILIES: [(&str, &[&str]); 9] = [
    ("normal", &["mean", "sd"]),
    ("log-normal", &["mean", "sd"]),
    ("uniform", &["lower", "upper"]),
    ("half-normal", &["sd"]),
    ("exponential", &["rate"]),
    ("gamma", &["shape", "rate"]),
    ("beta", &["a", "b"]),
    ("student-t", &["df", "mean", "sd"]),
    ("log-uniform", &["lower", "upper"]),
];

/// A family of distributions before truncation, in Stan's parametrisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Family {
    /// `x ~ N(mean, sd^2)`.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        sd: f64,
    },
    /// `ln x ~ N(mean, sd^2)`.
    LogNormal {
        /// Mean of the log.
        mean: f64,
        /// Standard deviation of the log.
        sd: f64,
    },
    /// Constant density on [lower, upper].
    Uniform {
        /// Lower end.
        lower: f64,
        /// Upper end.
        upper: f64,
    },
    /// `|N(0, sd^2)|`.
    HalfNormal {
        /// Standard deviation of the normal whose absolute value is taken.
        sd: f64,
    },
    /// Density `rate exp(-rate x)` on x >= 0.
    Exponential {
        /// Inverse of the mean.
        rate: f64,
    },
    /// Density proportional to `x^(shape - 1) exp(-rate x)` on x >= 0.
    Gamma {
        /// Shape.
        shape: f64,
        /// Inverse scale.
        rate: f64,
    },
    /// Density proportional to `x^(a - 1) (1 - x)^(b - 1)` on [0, 1].
    Beta {
        /// Exponent at 0, plus one.
        a: f64,
        /// Exponent at 1, plus one.
        b: f64,
    },
    /// `(x - mean) / sd` is Student's t; `sd` is the scale, not the standard deviation.
    StudentT {
        /// Degrees of freedom.
        df: f64,
        /// Location: centre of symmetry.
        mean: f64,
        /// Scale.
        sd: f64,
    },
    /// `ln x` is uniform on [ln lower, ln upper]; both ends are positive.
    LogUniform {
        /// Lower end.
        lower: f64,
        /// Upper end.
        upper: f64,
    },
}

/// Which end a probability is counted from; the end with the smaller probability keeps the digits.
#[derive(Clone, Copy, PartialEq)]
enum Tail {
    Lower,
    Upper,
}

/// A log density up to its constant, with the derivative `slope + per_x / x - per_complement / (1 - x)`: split so that
/// the two singular parts can be multiplied by `dx/dz` before they overflow.
struct Kernel {
    log: f64,
    slope: f64,
    per_x: f64,
    per_complement: f64,
}

impl Family {
    /// Position in [`FAMILIES`].
    fn index(&self) -> usize {
        match self {
            Self::Normal { .. } => 0,
            Self::LogNormal { .. } => 1,
            Self::Uniform { .. } => 2,
            Self::HalfNormal { .. } => 3,
            Self::Exponential { .. } => 4,
            Self::Gamma { .. } => 5,
            Self::Beta { .. } => 6,
            Self::StudentT { .. } => 7,
            Self::LogUniform { .. } => 8,
        }
    }

    /// The family at `index` of [`FAMILIES`]; `values` holds its parameters in that order.
    fn from_values(index: usize, values: &[f64]) -> Self {
        match index {
            0 => Self::Normal { mean: values[0], sd: values[1] },
            1 => Self::LogNormal { mean: values[0], sd: values[1] },
            2 => Self::Uniform { lower: values[0], upper: values[1] },
            3 => Self::HalfNormal { sd: values[0] },
            4 => Self::Exponential { rate: values[0] },
            5 => Self::Gamma { shape: values[0], rate: values[1] },
            6 => Self::Beta { a: values[0], b: values[1] },
            7 => Self::StudentT { df: values[0], mean: values[1], sd: values[2] },
            _ => Self::LogUniform { lower: values[0], upper: values[1] },
        }
    }

    /// The parameters in the order of [`FAMILIES`].
    fn values(&self) -> Vec<f64> {
        match *self {
            Self::Normal { mean, sd } | Self::LogNormal { mean, sd } => vec![mean, sd],
            Self::Uniform { lower, upper } | Self::LogUniform { lower, upper } => vec![lower, upper],
            Self::HalfNormal { sd } => vec![sd],
            Self::Exponential { rate } => vec![rate],
            Self::Gamma { shape, rate } => vec![shape, rate],
            Self::Beta { a, b } => vec![a, b],
            Self::StudentT { df, mean, sd } => vec![df, mean, sd],
        }
    }

    /// Where the density is positive before truncation.
    fn support(&self) -> (f64, f64) {
        match *self {
            Self::Normal { .. } | Self::StudentT { .. } => (f64::NEG_INFINITY, f64::INFINITY),
            Self::LogNormal { .. } | Self::HalfNormal { .. } | Self::Exponential { .. } | Self::Gamma { .. } => {
                (0.0, f64::INFINITY)
            }
            Self::Uniform { lower, upper } | Self::LogUniform { lower, upper } => (lower, upper),
            Self::Beta { .. } => (0.0, 1.0),
        }
    }

    /// Checks every parameter by its name: means are finite, the others positive, shapes at most [`MAX_SHAPE`].
    fn validate(&self) -> Result<()> {
        let (_, parameters) = FAMILIES[self.index()];
        for (&parameter, value) in parameters.iter().zip(self.values()) {
            let (allowed, repair) = match parameter {
                "lower" | "upper" if matches!(self, Self::LogUniform { .. }) => (
                    value.is_normal() && value > 0.0,
                    "a positive number is needed, as zero has no logarithm".to_owned(),
                ),
                "mean" | "lower" | "upper" => (value.is_finite(), "a finite number is needed".to_owned()),
                "df" => (
                    (MIN_DF..=MAX_SHAPE).contains(&value),
                    format!("it must lie between {MIN_DF} and {MAX_SHAPE}; beyond, a normal is as good"),
                ),
                "shape" | "a" | "b" => (
                    value.is_normal() && value > 0.0 && value <= MAX_SHAPE,
                    format!("it must be positive and at most {MAX_SHAPE}; beyond, a normal is as good"),
                ),
                _ => (value.is_normal() && value > 0.0, "it must be positive and finite".to_owned()),
            };
            if !allowed {
                return Err(Error::invalid(self.to_string(), format!("{parameter} = {}", Shortest(value)), repair));
            }
        }
        Ok(())
    }

    /// What to add to [`Family::kernel`] so that the density integrates to one over the family's own support.
    fn log_constant(&self) -> f64 {
        match *self {
            Self::Normal { sd, .. } | Self::LogNormal { sd, .. } => -HALF_LN_TAU - sd.ln(),
            Self::Uniform { lower, upper } => -(upper - lower).ln(),
            Self::LogUniform { lower, upper } => -log_ratio(lower, upper).ln(),
            Self::HalfNormal { sd } => std::f64::consts::LN_2 - HALF_LN_TAU - sd.ln(),
            Self::Exponential { rate } => rate.ln(),
            Self::Gamma { shape, rate } => shape * rate.ln() - ln_gamma(shape),
            Self::Beta { a, b } => -ln_beta(a, b),
            Self::StudentT { df, sd, .. } => -ln_beta(0.5 * df, 0.5) - 0.5 * df.ln() - sd.ln(),
        }
    }

    /// The log density up to its constant at a finite x inside the support; `complement = 1 - x` with all its digits.
    fn kernel(&self, x: f64, complement: f64) -> Kernel {
        let smooth = |log, slope| Kernel { log, slope, per_x: 0.0, per_complement: 0.0 };
        match *self {
            Self::Normal { mean, sd } => {
                let t = (x - mean) / sd;
                smooth(-0.5 * t * t, -t / sd)
            }
            Self::LogNormal { mean, sd } => {
                // The limit: the formula would be infinity minus infinity.
                if x == 0.0 {
                    return smooth(f64::NEG_INFINITY, f64::INFINITY);
                }
                let t = (x.ln() - mean) / sd;
                Kernel { log: -0.5 * t * t - x.ln(), slope: 0.0, per_x: -1.0 - t / sd, per_complement: 0.0 }
            }
            Self::Uniform { .. } => smooth(0.0, 0.0),
            Self::LogUniform { .. } => Kernel { log: -x.ln(), slope: 0.0, per_x: -1.0, per_complement: 0.0 },
            Self::HalfNormal { sd } => {
                let t = x / sd;
                smooth(-0.5 * t * t, -t / sd)
            }
            Self::Exponential { rate } => smooth(-rate * x, -rate),
            Self::Gamma { shape, rate } => Kernel {
                log: times_log(shape - 1.0, x.ln()) - rate * x,
                slope: -rate,
                per_x: shape - 1.0,
                per_complement: 0.0,
            },
            Self::Beta { a, b } => {
                let log_complement = if x < 0.5 { (-x).ln_1p() } else { complement.ln() };
                Kernel {
                    log: times_log(a - 1.0, x.ln()) + times_log(b - 1.0, log_complement),
                    slope: 0.0,
                    per_x: a - 1.0,
                    per_complement: b - 1.0,
                }
            }
            Self::StudentT { df, mean, sd } => {
                let t = (x - mean) / sd;
                let ratio = t / df.sqrt();
                // The square overflows long before the density vanishes.
                let log_term = if ratio.abs() < 1e100 { (ratio * ratio).ln_1p() } else { 2.0 * ratio.abs().ln() };
                let pull = if t.abs() < 1.0 { t / (df + t * t) } else { 1.0 / (t + df / t) };
                smooth(-0.5 * (df + 1.0) * log_term, -(df + 1.0) * pull / sd)
            }
        }
    }

    /// `(P(X < x), P(X > x))`, each with small relative error.
    fn tails(&self, x: f64) -> (f64, f64) {
        let (lower, upper) = self.support();
        if x <= lower {
            return (0.0, 1.0);
        }
        if x >= upper {
            return (1.0, 0.0);
        }
        match *self {
            Self::Normal { mean, sd } => {
                let t = (x - mean) / sd;
                (normal_cdf(t), normal_cdf(-t))
            }
            Self::LogNormal { mean, sd } => {
                let t = (x.ln() - mean) / sd;
                (normal_cdf(t), normal_cdf(-t))
            }
            Self::Uniform { lower, upper } => ((x - lower) / (upper - lower), (upper - x) / (upper - lower)),
            Self::LogUniform { lower, upper } => {
                let width = log_ratio(lower, upper);
                (log_ratio(lower, x) / width, log_ratio(x, upper) / width)
            }
            Self::HalfNormal { sd } => (erf(x / (sd * std::f64::consts::SQRT_2)), 2.0 * normal_cdf(-x / sd)),
            Self::Exponential { rate } => (-(-rate * x).exp_m1(), (-rate * x).exp()),
            Self::Gamma { shape, rate } => gamma_tails(shape, rate * x),
            Self::Beta { a, b } => beta_tails(a, b, x, 1.0 - x),
            Self::StudentT { df, mean, sd } => {
                let t = (x - mean) / sd;
                let ratio = t / df.sqrt();
                let outside = 1.0 / (1.0 + ratio * ratio);
                let inside = if ratio.abs() < 1e100 { ratio * ratio * outside } else { 1.0 };
                let beyond = 0.5 * beta_tails(0.5 * df, 0.5, outside, inside).0;
                if t < 0.0 { (beyond, 1.0 - beyond) } else { (1.0 - beyond, beyond) }
            }
        }
    }

    /// The point with probability `p <= 1/2` beyond it on the side of `tail`.
    fn quantile(&self, p: f64, tail: Tail) -> f64 {
        let upper = tail == Tail::Upper;
        let normal_deviate = || if upper { -normal_quantile(p) } else { normal_quantile(p) };
        match *self {
            Self::Normal { mean, sd } => mean + sd * normal_deviate(),
            Self::LogNormal { mean, sd } => (mean + sd * normal_deviate()).exp(),
            Self::Uniform { lower, upper: end } => {
                if upper {
                    end - p * (end - lower)
                } else {
                    lower + p * (end - lower)
                }
            }
            Self::LogUniform { lower, upper: end } => {
                // In two halves, as the whole ratio may overflow.
                let half = (0.5 * p * log_ratio(lower, end)).exp();
                if upper { end / half / half } else { lower * half * half }
            }
            Self::HalfNormal { sd } if upper => -sd * normal_quantile(0.5 * p),
            Self::HalfNormal { sd } => sd * std::f64::consts::SQRT_2 * erf_inverse(p),
            Self::Exponential { rate } => {
                if upper {
                    -p.ln() / rate
                } else {
                    -(-p).ln_1p() / rate
                }
            }
            Self::Gamma { shape, rate } => (gamma_log_quantile(shape, p, upper) - rate.ln()).exp(),
            Self::Beta { a, b } => {
                logistic(if upper { -beta_logit_quantile(b, a, p) } else { beta_logit_quantile(a, b, p) })
            }
            Self::StudentT { df, mean, sd } => {
                // With y = df / (df + t^2), both tails beyond |t| together hold I_y(df/2, 1/2) = 2 p.
                let logit = if p < 0.25 {
                    beta_logit_quantile(0.5 * df, 0.5, 2.0 * p)
                } else {
                    -beta_logit_quantile(0.5, 0.5 * df, 1.0 - 2.0 * p)
                };
                let distance = sd * df.sqrt() * (-0.5 * logit).exp();
                if upper { mean + distance } else { mean - distance }
            }
        }
    }

    /// `P(a < X < b)` with small relative error, also where both tails are large and the interval is narrow.
    fn between(&self, a: f64, b: f64) -> f64 {
        let (lower, upper) = self.support();
        let (a, b) = (a.max(lower), b.min(upper));
        if a >= b {
            return 0.0;
        }
        match *self {
            Self::Uniform { .. } => return (b - a) / (upper - lower),
            Self::LogUniform { .. } => return log_ratio(a, b) / log_ratio(lower, upper),
            Self::Exponential { rate } => return -(-rate * a).exp() * (-rate * (b - a)).exp_m1(),
            _ => {}
        }
        let ((below_a, above_a), (below_b, above_b)) = (self.tails(a), self.tails(b));
        let (difference, largest) = if below_b <= 0.5 {
            (below_b - below_a, below_b)
        } else if above_a <= 0.5 {
            (above_a - above_b, above_a)
        } else {
            (1.0 - below_a - above_b, 1.0)
        };
        // The difference has lost ten bits or more. The density hardly changes over so small a part of the probability,
        // and with its singularities 8 widths away eight nodes err by about (2 * 17)^-16 = 3e-25.
        if difference < largest / 1024.0 && 8.0 * (b - a) < self.distance_to_singularity(a, b) {
            let (middle, half_width, constant) = (0.5 * (a + b), 0.5 * (b - a), self.log_constant());
            let (nodes, weights) = &*NARROW_RULE;
            let integral: f64 = std::iter::zip(nodes, weights)
                .map(|(node, weight)| {
                    let x = middle + half_width * node;
                    weight * (self.kernel(x, 1.0 - x).log + constant).exp()
                })
                .sum();
            return half_width * integral;
        }
        difference
    }

    /// Distance of [a, b] to the nearest point of the complex plane where the density is not analytic.
    fn distance_to_singularity(&self, a: f64, b: f64) -> f64 {
        match *self {
            Self::LogNormal { .. } | Self::Gamma { .. } => a,
            Self::Beta { .. } => a.min(1.0 - b),
            Self::StudentT { df, sd, .. } => sd * df.sqrt(),
            _ => f64::INFINITY,
        }
    }
}

/// Eight nodes for [`Family::between`].
static NARROW_RULE: std::sync::LazyLock<(Vec<f64>, Vec<f64>)> = std::sync::LazyLock::new(|| gauss_legendre(8));

/// `factor * log`, with 0 for a factor of 0 whatever the log.
fn times_log(factor: f64, log: f64) -> f64 {
    if factor == 0.0 { 0.0 } else { factor * log }
}

/// `ln(upper / lower)` of two positive numbers, with all digits where they are near and without overflow.
fn log_ratio(lower: f64, upper: f64) -> f64 {
    let excess = (upper - lower) / lower;
    if excess < 1.0 {
        excess.ln_1p()
    } else if excess.is_finite() {
        (upper / lower).ln()
    } else {
        upper.ln() - lower.ln()
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = self.values().into_iter().map(|value| Shortest(value).to_string()).collect();
        write!(f, "{}({})", FAMILIES[self.index()].0, values.join(", "))
    }
}

/// A number as the shortest text that reads back as itself: `2`, `0.5`, `1e-7`.
struct Shortest(f64);

impl fmt::Display for Shortest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:?}", self.0);
        f.write_str(text.strip_suffix(".0").unwrap_or(&text))
    }
}

/// Image of a real number z under the increasing map onto a prior's support.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RealPoint {
    /// The point, strictly inside the support.
    pub x: f64,
    /// `dx/dz`, positive.
    pub dx_dz: f64,
    /// `ln dx/dz`, finite also where `dx_dz` underflows.
    pub log_jacobian: f64,
    /// `d/dz ln dx/dz`.
    pub d_log_jacobian: f64,
}

/// A one-dimensional prior: a [`Family`], possibly truncated.
///
/// Written and read as `normal(2, 0.5)` or `normal(mean=2, sd=1, lower=0)`, also by serde.
#[derive(Clone, Debug, PartialEq)]
pub struct Marginal {
    family: Family,
    lower: f64,
    upper: f64,
    /// Probabilities of the family below `lower`, above `upper` and between.
    below: f64,
    above: f64,
    mass: f64,
    /// Log normaliser of the family's kernel on [lower, upper].
    log_constant: f64,
}

impl Marginal {
    /// The family as it is; an error names the parameter that is out of range.
    pub fn new(family: Family) -> Result<Self> {
        family.validate()?;
        let (lower, upper) = family.support();
        if let Family::Uniform { .. } | Family::LogUniform { .. } = family {
            check_range(&family, lower, upper)?;
        }
        Ok(Self { family, lower, upper, below: 0.0, above: 0.0, mass: 1.0, log_constant: family.log_constant() })
    }

    /// This prior restricted to [lower, upper] (either may be infinite) and renormalised.
    ///
    /// An error if the range is empty or if the family has less than 1e-12 of its probability there. A truncated
    /// uniform or log-uniform is the narrower one.
    pub fn truncated(&self, lower: f64, upper: f64) -> Result<Self> {
        check_range(self, lower, upper)?;
        let (asked, lower, upper) = ((lower, upper), self.lower.max(lower), self.upper.min(upper));
        let mass = self.family.between(lower, upper);
        if mass.is_nan() || mass < MIN_MASS {
            return Err(Error::invalid(
                self.to_string(),
                format!("next to none of its probability is in [{}, {}]", Shortest(asked.0), Shortest(asked.1)),
                "move the range or widen the prior until they overlap",
            ));
        }
        if (lower, upper) == (self.lower, self.upper) {
            return Ok(self.clone());
        }
        check_range(self, lower, upper)?;
        match self.family {
            Family::Uniform { .. } => return Self::new(Family::Uniform { lower, upper }),
            Family::LogUniform { .. } => return Self::new(Family::LogUniform { lower, upper }),
            _ => {}
        }
        let (below, above) = (self.family.tails(lower).0, self.family.tails(upper).1);
        let log_constant = self.family.log_constant() - mass.ln();
        Ok(Self { family: self.family, lower, upper, below, above, mass, log_constant })
    }

    /// The family before truncation.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Ends of the truncated support; either may be infinite.
    pub fn support(&self) -> (f64, f64) {
        (self.lower, self.upper)
    }

    /// Mean and standard deviation if this is a normal without truncation.
    pub fn is_normal(&self) -> Option<(f64, f64)> {
        match self.family {
            Family::Normal { mean, sd } if !self.is_truncated() => Some((mean, sd)),
            _ => None,
        }
    }

    fn is_truncated(&self) -> bool {
        self.support() != self.family.support()
    }

    /// `ln p(x)`, normalised over the truncated support; minus infinity outside and at NaN.
    ///
    /// Plus infinity at an end where the density has a pole (gamma and beta with an exponent below zero).
    pub fn log_density(&self, x: f64) -> f64 {
        if self.contains(x) { self.family.kernel(x, 1.0 - x).log + self.log_constant } else { f64::NEG_INFINITY }
    }

    /// `(ln p(x), d/dx ln p(x))`; `(-inf, 0)` outside the support.
    pub fn score(&self, x: f64) -> (f64, f64) {
        if !self.contains(x) {
            return (f64::NEG_INFINITY, 0.0);
        }
        let Kernel { log, slope, per_x, per_complement } = self.family.kernel(x, 1.0 - x);
        let singular = |factor: f64, distance: f64| if factor == 0.0 { 0.0 } else { factor / distance };
        (log + self.log_constant, slope + singular(per_x, x) - singular(per_complement, 1.0 - x))
    }

    fn contains(&self, x: f64) -> bool {
        x.is_finite() && self.lower <= x && x <= self.upper
    }

    /// `P(X <= x)`; NaN at NaN.
    pub fn cdf(&self, x: f64) -> f64 {
        if x.is_nan() { x } else { self.mass_within(f64::NEG_INFINITY, x) }
    }

    /// `P(lower < X < upper)` under this prior; 0 for an empty interval.
    pub fn mass_within(&self, lower: f64, upper: f64) -> f64 {
        (self.family.between(lower.max(self.lower), upper.min(self.upper)) / self.mass).min(1.0)
    }

    /// The point x with `P(X <= x) = p`: the ends of the support at 0 and 1, NaN outside [0, 1].
    pub fn quantile(&self, p: f64) -> f64 {
        if p == 0.0 {
            self.lower
        } else if p == 1.0 {
            self.upper
        } else if !(0.0..=1.0).contains(&p) {
            f64::NAN
        } else if p <= 0.5 {
            self.tail_quantile(p, Tail::Lower)
        } else {
            self.tail_quantile(1.0 - p, Tail::Upper)
        }
    }

    /// The point strictly inside the support with probability p, in (0, 1/2], on the side of `tail`.
    fn tail_quantile(&self, p: f64, tail: Tail) -> f64 {
        let target = p * self.mass;
        let (from_below, from_above) = match tail {
            Tail::Lower => (self.below + target, self.above + (self.mass - target)),
            Tail::Upper => (self.below + (self.mass - target), self.above + target),
        };
        let mut x = self.inside(if from_below <= from_above {
            self.family.quantile(from_below, Tail::Lower)
        } else {
            self.family.quantile(from_above, Tail::Upper)
        });
        if !self.is_truncated() {
            return x;
        }
        // Where truncation leaves little of a large tail, x is known to a few ulp of the tail only: count from the end.
        for _ in 0..4 {
            let density = (self.family.kernel(x, 1.0 - x).log + self.family.log_constant()).exp();
            let step = match tail {
                Tail::Lower => (target - self.family.between(self.lower, x)) / density,
                Tail::Upper => (self.family.between(x, self.upper) - target) / density,
            };
            if !step.is_finite() {
                break;
            }
            let next = self.inside(x + step);
            let moved = (next - x).abs();
            x = next;
            if moved <= f64::EPSILON * x.abs() {
                break;
            }
        }
        x
    }

    /// x, or the nearest double strictly inside the support.
    fn inside(&self, x: f64) -> f64 {
        x.clamp(self.lower.next_up(), self.upper.next_down())
    }

    /// One draw, strictly inside the support, by inversion of one uniform number.
    pub fn sample(&self, rng: &mut impl Rng) -> f64 {
        self.quantile(rng.sample(Open01))
    }

    /// The point with half of the probability on either side.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// `E[X]`: in closed form without truncation, else by quadrature. NaN for a Student t with df <= 1, infinite if one
    /// of its tails is cut.
    pub fn mean(&self) -> f64 {
        if self.is_truncated() {
            return match self.family {
                Family::StudentT { df, .. } if df <= 1.0 && self.upper == f64::INFINITY => f64::INFINITY,
                Family::StudentT { df, .. } if df <= 1.0 && self.lower == f64::NEG_INFINITY => f64::NEG_INFINITY,
                _ => self.expectation(|x| x),
            };
        }
        match self.family {
            Family::Normal { mean, .. } => mean,
            Family::LogNormal { mean, sd } => (mean + 0.5 * sd * sd).exp(),
            Family::Uniform { lower, upper } => 0.5 * lower + 0.5 * upper,
            Family::LogUniform { lower, upper } => (upper - lower) / log_ratio(lower, upper),
            Family::HalfNormal { sd } => sd * std::f64::consts::FRAC_2_PI.sqrt(),
            Family::Exponential { rate } => 1.0 / rate,
            Family::Gamma { shape, rate } => shape / rate,
            Family::Beta { a, b } => a / (a + b),
            Family::StudentT { df, mean, .. } => {
                if df > 1.0 {
                    mean
                } else {
                    f64::NAN
                }
            }
        }
    }

    /// Standard deviation: in closed form without truncation, else by quadrature. Infinite for a Student t with
    /// df <= 2, NaN with df <= 1, unless both tails are cut.
    pub fn sd(&self) -> f64 {
        if self.is_truncated() {
            return match self.family {
                Family::StudentT { df, .. } if df <= 2.0 && (self.upper - self.lower).is_infinite() => {
                    if df > 1.0 {
                        f64::INFINITY
                    } else {
                        f64::NAN
                    }
                }
                _ => {
                    let mean = self.mean();
                    self.expectation(|x| (x - mean) * (x - mean)).sqrt()
                }
            };
        }
        match self.family {
            Family::Normal { sd, .. } => sd,
            Family::LogNormal { mean, sd } => (mean + 0.5 * sd * sd).exp() * (sd * sd).exp_m1().sqrt(),
            Family::Uniform { lower, upper } => (upper - lower) / 12.0_f64.sqrt(),
            // With h half the width of ln x and g the geometric mean of the ends, the mean is g sinh(h) / h and the
            // variance is the mean times g (cosh(h) - sinh(h) / h), whose series does not cancel where h is small.
            Family::LogUniform { lower, upper } => {
                let (mean, h) = (self.mean(), 0.5 * log_ratio(lower, upper));
                let squared = h * h;
                let excess = if h < 0.5 {
                    // sum_k h^2k 2k / (2k + 1)!: the next term is 1e-17 of the first.
                    const INVERSE: [f64; 7] = [3.0, 30.0, 840.0, 45360.0, 3991680.0, 518918400.0, 93405312000.0];
                    lower * h.exp() * squared * INVERSE.iter().rev().fold(0.0, |sum, term| sum * squared + 1.0 / term)
                } else {
                    0.5 * lower + 0.5 * upper - mean
                };
                mean.sqrt() * excess.sqrt()
            }
            Family::HalfNormal { sd } => sd * (1.0 - std::f64::consts::FRAC_2_PI).sqrt(),
            Family::Exponential { rate } => 1.0 / rate,
            Family::Gamma { shape, rate } => shape.sqrt() / rate,
            Family::Beta { a, b } => (a * b / (a + b + 1.0)).sqrt() / (a + b),
            Family::StudentT { df, .. } if df <= 1.0 => f64::NAN,
            Family::StudentT { df, .. } if df <= 2.0 => f64::INFINITY,
            Family::StudentT { df, sd, .. } => sd * (df / (df - 2.0)).sqrt(),
        }
    }

    /// `E[f(X)]` for a function that grows at most like a power, on the scale of z between quantiles.
    ///
    /// Panels that hold a given probability resolve the density wherever it lies. On an infinite side they go on until
    /// powers of x no longer matter; on a bounded side what is left sits at the bound.
    fn expectation(&self, f: impl Fn(f64) -> f64) -> f64 {
        const CORE: [f64; 14] = [0.5, 0.35, 0.2, 0.1, 0.05, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-10, 1e-13, 1e-16, 1e-20];
        const FAR: [f64; 8] = [1e-25, 1e-30, 1e-40, 1e-60, 1e-90, 1e-130, 1e-200, 1e-300];
        let (nodes, weights) = gauss_legendre(24);
        let mut sum = 0.0;
        for (tail, end) in [(Tail::Lower, self.lower), (Tail::Upper, self.upper)] {
            let far = if end.is_infinite() { &FAR[..] } else { &[] };
            let points: Vec<f64> = CORE.iter().chain(far).map(|&level| self.tail_quantile(level, tail)).collect();
            for pair in points.windows(2) {
                let (z, next) = (self.to_real(pair[0]), self.to_real(pair[1]));
                let (middle, half_width) = (0.5 * (z + next), 0.5 * (z - next).abs());
                for (node, weight) in nodes.iter().zip(&weights) {
                    let (x, _, log_density, _) = self.score_real(middle + half_width * node);
                    sum += half_width * weight * log_density.exp() * f(x);
                }
            }
            // More than the last level where a pole holds probability between the bound and the nearest double.
            if end.is_finite() {
                let last = points[points.len() - 1];
                sum += self.mass_within(last.min(end), last.max(end)) * f(end);
            }
        }
        sum
    }

    /// The increasing map from the real line onto the support: `lower + (upper - lower) / (1 + exp(-z))` between two
    /// bounds, `lower + exp(z)` or `upper - exp(-z)` with one, the identity with none.
    ///
    /// For |z| up to 700 all four numbers are finite. Where x would round to a bound it is the nearest double inside.
    pub fn from_real(&self, z: f64) -> RealPoint {
        let (x, dx_dz, log_jacobian, d_log_jacobian) = match (self.lower.is_finite(), self.upper.is_finite()) {
            (true, true) => {
                // Everything from one exponential: logistic(-|z|) = e / (1 + e), tanh(|z| / 2) = (1 - e) / (1 + e).
                let width = self.upper - self.lower;
                let e = (-z.abs()).exp();
                let share = 1.0 / (1.0 + e);
                let nearer = width * e * share;
                let x = if z < 0.0 { self.lower + nearer } else { self.upper - nearer };
                // The share is between a half and one: of the logarithm no digits are lost.
                let log_jacobian = (width * share * share).ln() - z.abs();
                (x, nearer * share, log_jacobian, ((e - 1.0) * share).copysign(-z))
            }
            (true, false) => {
                let beyond = z.exp();
                (self.lower + beyond, beyond, z, 1.0)
            }
            (false, true) => {
                let beyond = (-z).exp();
                (self.upper - beyond, beyond, -z, -1.0)
            }
            (false, false) => (z, 1.0, 0.0, 0.0),
        };
        RealPoint { x: self.inside(x), dx_dz, log_jacobian, d_log_jacobian }
    }

    /// The inverse of [`Marginal::from_real`]; a point on or beyond a bound counts as the nearest double inside.
    pub fn to_real(&self, x: f64) -> f64 {
        let x = self.inside(x);
        match (self.lower.is_finite(), self.upper.is_finite()) {
            (true, true) => (x - self.lower).ln() - (self.upper - x).ln(),
            (true, false) => (x - self.lower).ln(),
            (false, true) => -(self.upper - x).ln(),
            (false, false) => x,
        }
    }

    /// `(x, dx/dz, ln p(x) + ln dx/dz, d/dz of that)` at [`Marginal::from_real`] of z: the log density of z.
    pub fn score_real(&self, z: f64) -> (f64, f64, f64, f64) {
        let RealPoint { x, dx_dz, log_jacobian, d_log_jacobian } = self.from_real(z);
        // Near an upper bound of 1 the distance comes from z, as x has rounded: a beta density needs its digits.
        let complement = match self.family {
            Family::Beta { .. } if z > 0.0 => (1.0 - self.upper) + (self.upper - self.lower) * logistic(-z),
            _ => 1.0 - x,
        };
        let Kernel { log, slope, per_x, per_complement } = self.family.kernel(x, complement);
        let mut derivative = slope * dx_dz + d_log_jacobian;
        if per_x != 0.0 {
            derivative += per_x * (dx_dz / x);
        }
        if per_complement != 0.0 {
            derivative -= per_complement * (dx_dz / complement);
        }
        (x, dx_dz, log + self.log_constant + log_jacobian, derivative)
    }
}

/// Refuses a range that is empty, has NaN ends, a width beyond the doubles, or no double strictly inside.
fn check_range(prior: &impl fmt::Display, lower: f64, upper: f64) -> Result<()> {
    let range = format!("the range [{}, {}]", Shortest(lower), Shortest(upper));
    if lower.is_nan() || upper.is_nan() || lower >= upper {
        return Err(Error::invalid(prior.to_string(), format!("{range} is empty"), "lower must be less than upper"));
    }
    if lower.next_up() >= upper.next_down() {
        let repair = "move its ends apart, or shift the input towards zero";
        return Err(Error::invalid(prior.to_string(), format!("{range} is too narrow for double precision"), repair));
    }
    if lower.is_finite() && upper.is_finite() && (upper - lower).is_infinite() {
        let repair = "leave out a bound, or change the unit";
        return Err(Error::invalid(prior.to_string(), format!("{range} is wider than the largest double"), repair));
    }
    Ok(())
}

/// The family with its parameters; `lower` and `upper` only where they cut the family's own support.
impl fmt::Display for Marginal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family.to_string();
        let (lower, upper) = self.family.support();
        f.write_str(family.strip_suffix(')').unwrap_or(&family))?;
        if self.lower > lower {
            write!(f, ", lower={}", Shortest(self.lower))?;
        }
        if self.upper < upper {
            write!(f, ", upper={}", Shortest(self.upper))?;
        }
        f.write_str(")")
    }
}

/// Reads `name(value, ..., parameter=value, ..., lower=value, upper=value)`.
impl FromStr for Marginal {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let place = || format!("`{}`", text.trim());
        let (name, rest) = text.trim().split_once('(').unwrap_or((text.trim(), ""));
        let name = name.trim();
        let Some(index) = FAMILIES.iter().position(|(known, _)| *known == name) else {
            return Err(Error::invalid(place(), format!("unknown distribution `{name}`"), suggestion(name)));
        };
        let parameters = FAMILIES[index].1;
        let expected = || format!("write {}, optionally with lower=... and upper=...", signature(index));
        let Some(arguments) = rest.strip_suffix(')') else {
            return Err(Error::invalid(place(), "the arguments are not in parentheses", expected()));
        };
        let refuse = |found: String| Error::invalid(place(), found, expected());

        let mut values: Vec<Option<f64>> = vec![None; parameters.len()];
        let (mut lower, mut upper) = (None, None);
        let arguments = arguments.trim();
        for (position, argument) in arguments.split(',').filter(|_| !arguments.is_empty()).enumerate() {
            let (key, number) = match argument.split_once('=') {
                Some((key, number)) => (key.trim(), number.trim()),
                None => (parameters.get(position).copied().unwrap_or(""), argument.trim()),
            };
            if key.is_empty() {
                return Err(refuse(format!("argument {} (`{number}`) is one too many", position + 1)));
            }
            let value: f64 = number.parse().map_err(|_| refuse(format!("`{number}` is not a number")))?;
            // A uniform's own bounds come first; given by position, the names are free to truncate.
            let slot = match parameters.iter().position(|&parameter| parameter == key) {
                Some(i) if values[i].is_none() || !matches!(key, "lower" | "upper") => &mut values[i],
                _ if key == "lower" => &mut lower,
                _ if key == "upper" => &mut upper,
                _ => return Err(refuse(format!("unknown argument `{key}`"))),
            };
            if slot.replace(value).is_some() {
                return Err(refuse(format!("`{key}` is given twice")));
            }
        }
        let missing = parameters.iter().zip(&values).find(|(_, value)| value.is_none());
        if let Some((parameter, _)) = missing {
            return Err(refuse(format!("`{parameter}` is missing")));
        }
        let values: Vec<f64> = values.into_iter().flatten().collect();
        let marginal = Self::new(Family::from_values(index, &values))?;
        match (lower, upper) {
            (None, None) => Ok(marginal),
            _ => marginal.truncated(lower.unwrap_or(f64::NEG_INFINITY), upper.unwrap_or(f64::INFINITY)),
        }
    }
}

/// `normal(mean, sd)`.
fn signature(index: usize) -> String {
    let (name, parameters) = FAMILIES[index];
    format!("{name}({})", parameters.join(", "))
}

/// The nearest known name, if it is near, and all known ones.
fn suggestion(name: &str) -> String {
    let spelled = name.to_lowercase().replace(['_', ' '], "-");
    let known: Vec<String> = (0..FAMILIES.len()).map(signature).collect();
    let list = format!("known are {}", known.join(", "));
    FAMILIES
        .iter()
        .map(|(known, _)| (strsim::damerau_levenshtein(&spelled, known), known))
        .min()
        // More than a third of the letters wrong is another word, not a slip.
        .filter(|(distance, known)| 3 * distance <= known.len())
        .map_or(list.clone(), |(_, known)| format!("did you mean `{known}`? {list}"))
}

impl Serialize for Marginal {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Marginal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Independent priors of named quantities, in a fixed order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prior {
    names: Vec<String>,
    marginals: Vec<Marginal>,
}

impl Prior {
    /// One marginal per name; an error if their numbers differ or a name occurs twice.
    pub fn new(names: Vec<String>, marginals: Vec<Marginal>) -> Result<Self> {
        if names.len() != marginals.len() {
            let found = format!("{} names for {} distributions", names.len(), marginals.len());
            return Err(Error::invalid("prior", found, "give each quantity one distribution"));
        }
        if let Some((_, name)) = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
            return Err(Error::invalid("prior", format!("`{name}` occurs twice"), "rename one of them"));
        }
        Ok(Self { names, marginals })
    }

    /// Number D of quantities.
    pub fn len(&self) -> usize {
        self.marginals.len()
    }

    /// Whether there is nothing to infer.
    pub fn is_empty(&self) -> bool {
        self.marginals.is_empty()
    }

    /// The D names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The D marginals, in the order of the names.
    pub fn marginals(&self) -> &[Marginal] {
        &self.marginals
    }

    /// Name and marginal of each quantity in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Marginal)> {
        self.names.iter().map(String::as_str).zip(&self.marginals)
    }

    /// `sum_d ln p(x_d)` for D values; minus infinity as soon as one of them is outside its support.
    pub fn log_density(&self, x: &[f64]) -> f64 {
        debug_assert_eq!(x.len(), self.len());
        let mut sum = 0.0;
        for (marginal, &value) in self.marginals.iter().zip(x) {
            let term = marginal.log_density(value);
            // Before a pole of another density turns the sum into NaN.
            if term == f64::NEG_INFINITY {
                return term;
            }
            sum += term;
        }
        sum
    }

    /// One draw of all D quantities, in order.
    pub fn sample(&self, rng: &mut impl Rng) -> Vec<f64> {
        self.marginals.iter().map(|marginal| marginal.sample(rng)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::*;

    const ULP: f64 = f64::EPSILON;

    /// Every family and every kind of bound, poles and cut tails included.
    const PRIORS: [&str; 23] = [
        "normal(2, 0.5)",
        "normal(2, 1, lower=0)",
        "normal(0, 1, upper=-1)",
        "normal(0, 1, lower=5, upper=6)",
        "log-normal(0, 1)",
        "log-normal(-1, 0.3, lower=0.4)",
        "uniform(0, 0.05)",
        "uniform(-3, 2)",
        "half-normal(0.5)",
        "half-normal(2, lower=1, upper=3)",
        "exponential(1)",
        "exponential(0.1, lower=2, upper=7)",
        "gamma(2, 1)",
        "gamma(0.5, 3)",
        "gamma(7, 0.01, lower=100, upper=2000)",
        "beta(2, 2)",
        "beta(0.5, 0.6)",
        "beta(20, 3, lower=0.9)",
        "student-t(4, 0, 1)",
        "student-t(1, 3, 0.2)",
        "student-t(2.5, 1, 2, lower=-3)",
        "log-uniform(0.001, 10)",
        "log-uniform(2, 2.5)",
    ];

    fn marginal(text: &str) -> Marginal {
        text.parse().unwrap()
    }

    fn message(text: &str) -> String {
        text.parse::<Marginal>().unwrap_err().to_string()
    }

    #[track_caller]
    fn assert_relative(found: f64, expected: f64, tolerance: f64) {
        assert!(
            (found - expected).abs() <= tolerance * expected.abs(),
            "{found:e} is not {expected:e} to {tolerance:e}"
        );
    }

    /// Bound on the relative error of a family's tail probabilities, from `special`.
    fn tail_error(family: Family) -> f64 {
        let largest = match family {
            Family::Gamma { shape, .. } => 4.0 * ln_gamma(shape).abs(),
            Family::Beta { a, b } => ln_gamma(a + b).abs(),
            _ => 0.0,
        };
        8.0 * ULP * (1.0 + largest)
    }

    /// Derivative of `function` at x by central differences, and a bound on its error: the truncation error is a third
    /// of what doubling the step changes, the rounding error that of the values (of size up to `size`) over the step.
    fn central_difference(function: impl Fn(f64) -> f64, x: f64, step: f64, size: f64) -> (f64, f64) {
        let difference = |h: f64| (function(x + h) - function(x - h)) / ((x + h) - (x - h));
        let (fine, coarse) = (difference(step), difference(2.0 * step));
        (fine, (fine - coarse).abs() + 8.0 * ULP * size / step)
    }

    #[test]
    fn text_reads_back_as_written() {
        for text in PRIORS {
            assert_eq!(marginal(text).to_string(), text);
        }
        assert_eq!(marginal(" normal( mean = 2 , sd=1,lower=-inf )").to_string(), "normal(2, 1)");
        assert_eq!(marginal("normal(2, sd=1e-7)").to_string(), "normal(2, 1e-7)");
        assert_eq!(marginal("half-normal(0.5, lower=-1)").to_string(), "half-normal(0.5)");
        assert_eq!(marginal("uniform(upper=1, lower=0)").to_string(), "uniform(0, 1)");
        assert_eq!(marginal("uniform(0, 1, lower=0.5)").to_string(), "uniform(0.5, 1)");
        assert_eq!(marginal("log-uniform(1, 9, upper=3)").to_string(), "log-uniform(1, 3)");
        assert_eq!(serde_json::to_string(&marginal("gamma(2,1)")).unwrap(), "\"gamma(2, 1)\"");
        let refused = serde_json::from_str::<Marginal>("\"gama(2, 1)\"").unwrap_err().to_string();
        assert!(refused.contains("did you mean `gamma`?"), "{refused}");
    }

    proptest! {
        #[test]
        fn any_prior_reads_back(
            index in 0..FAMILIES.len(), location in -1e6..1e6_f64, scale in -9.0..9.0_f64, shape in -3.0..5.0_f64,
            low in 0.0..0.5_f64, high in 0.5..1.0_f64, cut_below: bool, cut_above: bool,
        ) {
            let (scale, shape) = (10.0_f64.powf(scale), 10.0_f64.powf(shape));
            let family = match FAMILIES[index].0 {
                "uniform" => Family::Uniform { lower: location, upper: location + scale },
                "log-uniform" => Family::LogUniform { lower: scale, upper: scale * (1.0 + shape) },
                "log-normal" => Family::LogNormal { mean: location / 1e5, sd: shape / 1e4 },
                "half-normal" | "exponential" => Family::from_values(index, &[scale]),
                "gamma" => Family::Gamma { shape, rate: scale },
                "beta" => Family::Beta { a: shape, b: 10.0_f64.powf(-shape.log10()) },
                "student-t" => Family::StudentT { df: shape.max(MIN_DF), mean: location, sd: scale },
                _ => Family::Normal { mean: location, sd: scale },
            };
            let whole = Marginal::new(family).unwrap();
            let lower = if cut_below { whole.quantile(low) } else { f64::NEG_INFINITY };
            let upper = if cut_above { whole.quantile(high) } else { f64::INFINITY };
            // Where the two quantiles round to the same double there is nothing to read back.
            if let Ok(cut) = whole.truncated(lower, upper) {
                prop_assert_eq!(&cut.to_string().parse::<Marginal>().unwrap(), &cut);
                let json = serde_json::to_string(&cut).unwrap();
                prop_assert_eq!(&serde_json::from_str::<Marginal>(&json).unwrap(), &cut);
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-z-]{0,8}[(]?[-0-9.,=a-z ]{0,16}[)]?") {
            if let Ok(prior) = text.parse::<Marginal>() {
                prop_assert_eq!(prior.to_string().parse::<Marginal>().unwrap(), prior);
            }
        }

        #[test]
        fn any_arguments_are_taken_or_refused(
            index in 0..FAMILIES.len(),
            arguments in "((lower|upper|mean|sd|a) ?= ?)?(-?[0-9]{1,2}([.][0-9])?(e-?[0-9]{1,3})?|-?inf|nan)(, ?((lower|upper|sd|b)=)?-?[0-9]{1,2}(e-?[0-9]{1,3})?){0,4}",
        ) {
            if let Ok(prior) = format!("{}({arguments})", FAMILIES[index].0).parse::<Marginal>() {
                prop_assert_eq!(&prior.to_string().parse::<Marginal>().unwrap(), &prior);
                for p in [0.0, 1e-300, 0.05, 0.5, 1.0] {
                    let _ = prior.cdf(prior.quantile(p));
                }
            }
        }
    }

    #[test]
    fn refusals_name_the_repair() {
        let known = "known are normal(mean, sd), log-normal(mean, sd), uniform(lower, upper), half-normal(sd), \
                     exponential(rate), gamma(shape, rate), beta(a, b), student-t(df, mean, sd), \
                     log-uniform(lower, upper)";
        let write = "write normal(mean, sd), optionally with lower=... and upper=...";
        let found = "`nromal(2, 1)`: unknown distribution `nromal`; did you mean `normal`?";
        assert_eq!(message("nromal(2, 1)"), format!("{found} {known}"));
        assert_eq!(message("cauchy(0, 1)"), format!("`cauchy(0, 1)`: unknown distribution `cauchy`; {known}"));
        assert!(message("Half_Normal(1)").contains("did you mean `half-normal`?"));
        assert!(message("lognormal(0, 1)").contains("did you mean `log-normal`?"));
        assert_eq!(message("normal"), format!("`normal`: the arguments are not in parentheses; {write}"));
        assert_eq!(message("normal(2)"), format!("`normal(2)`: `sd` is missing; {write}"));
        assert_eq!(message("normal(2, x)"), format!("`normal(2, x)`: `x` is not a number; {write}"));
        assert_eq!(message("normal(2, 1, 3)"), format!("`normal(2, 1, 3)`: argument 3 (`3`) is one too many; {write}"));
        assert_eq!(message("normal(2, 1, sd=3)"), format!("`normal(2, 1, sd=3)`: `sd` is given twice; {write}"));
        assert_eq!(message("normal(2, tau=1)"), format!("`normal(2, tau=1)`: unknown argument `tau`; {write}"));
        assert_eq!(message("normal(2, -1)"), "normal(2, -1): sd = -1; it must be positive and finite");
        assert_eq!(message("normal(nan, 1)"), "normal(NaN, 1): mean = NaN; a finite number is needed");
        assert_eq!(
            message("gamma(1e6, 1)"),
            "gamma(1000000, 1): shape = 1000000; it must be positive and at most 100000; beyond, a normal is as good"
        );
        assert_eq!(
            message("log-uniform(0, 1)"),
            "log-uniform(0, 1): lower = 0; a positive number is needed, as zero has no logarithm"
        );
        assert_eq!(message("uniform(2, 1)"), "uniform(2, 1): the range [2, 1] is empty; lower must be less than upper");
        assert_eq!(
            message("normal(0, 1, lower=3, upper=nan)"),
            "normal(0, 1): the range [3, NaN] is empty; lower must be less than upper"
        );
        assert_eq!(
            message("exponential(1, upper=-2)"),
            "exponential(1): next to none of its probability is in [-inf, -2]; \
             move the range or widen the prior until they overlap"
        );
        assert!(message("uniform(1, 1.0000000000000002)").contains("too narrow for double precision"));
        assert!(message("uniform(-1e308, 1e308)").contains("wider than the largest double"));
        // P(Z > 7.2) = 3e-13.
        let refused = marginal("normal(0, 1)").truncated(7.2, 9.0).unwrap_err().to_string();
        assert_eq!(
            refused,
            "normal(0, 1): next to none of its probability is in [7.2, 9]; \
             move the range or widen the prior until they overlap"
        );
    }

    #[test]
    fn densities_integrate_to_one() {
        for text in PRIORS {
            let prior = marginal(text);
            let centre = prior.to_real(prior.median());
            let scale = prior.to_real(prior.quantile(0.84)) - centre;
            // Trapezoid rule in s, z = centre + scale sinh(s): the integrand decays like exp(-s) or faster.
            let integral = |step: f64| {
                let reach = (40.0 / step) as i32;
                (-reach..=reach)
                    .map(|k| f64::from(k) * step)
                    .map(|s| (centre + scale * s.sinh(), step * scale * s.cosh()))
                    .filter(|(z, _)| z.abs() <= 700.0 || !prior.lower.is_finite() && !prior.upper.is_finite())
                    .map(|(z, weight)| {
                        let point = prior.from_real(z);
                        let log_weight = f64::ln(weight) + point.log_jacobian;
                        // Poles: the density of a rounded x is not that of x, so take the one of z.
                        let complete = prior.score_real(z).2 + f64::ln(weight);
                        if point.x < 0.999 { (prior.log_density(point.x) + log_weight).exp() } else { complete.exp() }
                    })
                    .sum::<f64>()
            };
            let (coarse, fine) = (integral(1.0 / 16.0), integral(1.0 / 32.0));
            // Exponential convergence: halving the step squares the error. Rounding: logs up to a hundred in each term.
            let tolerance = (coarse - fine).powi(2) + 128.0 * ULP + tail_error(prior.family);
            assert!((coarse - fine).abs() < 1e-6, "{text}: {coarse} and {fine}");
            assert!((fine - 1.0).abs() <= tolerance, "{text}: {fine}, off by {:e}", fine - 1.0);
        }
    }

    #[test]
    fn quantiles_undo_probabilities() {
        for text in PRIORS {
            let prior = marginal(text);
            assert_eq!((prior.quantile(0.0), prior.quantile(1.0)), prior.support());
            assert!(prior.quantile(-0.1).is_nan() && prior.quantile(1.1).is_nan() && prior.quantile(f64::NAN).is_nan());
            assert_eq!((prior.cdf(f64::NEG_INFINITY), prior.cdf(f64::INFINITY)), (0.0, 1.0), "{text}");
            for p in [1e-100, 1e-15, 1e-6, 0.01, 0.3, 0.5, 0.8, 0.999, 1.0 - 1e-9] {
                let x = prior.quantile(p);
                // Rounding x, or ln x where that is larger, moves the probability on top of the error of the tails.
                let moved =
                    ULP * x.abs() * x.abs().max(f64::MIN_POSITIVE).ln().abs().max(1.0) * prior.log_density(x).exp();
                let tolerance = 2.0 * moved + 2.0 * tail_error(prior.family) * p.max(prior.below * 1e-3);
                let found = prior.cdf(x);
                assert!((found - p).abs() <= tolerance, "{text}: p = {p}, x = {x}, {found}, {tolerance:e}");
            }
        }
    }

    /// Reference values from mpmath with 50 digits.
    #[test]
    fn truncated_tails_keep_their_digits() {
        let tail = marginal("normal(0, 1, lower=5, upper=6)");
        let table = [
            (1e-6, 5.000000192144596),
            (0.1, 5.020202578936887),
            (0.5, 5.131371763283919),
            (0.9, 5.421484350937919),
            (0.999, 5.958572650387236),
        ];
        for (p, x) in table {
            assert_relative(tail.quantile(p), x, 4.0 * ULP);
        }
        // A sliver of a wide prior: the difference of the two probabilities alone would keep nine digits.
        let sliver = marginal("normal(0, 1000, lower=1, upper=1.001)");
        assert_relative(sliver.mass, 3.9894208073076087e-7, 8.0 * ULP + 2.0 * ULP / 1e-3);
        assert_relative(sliver.quantile(0.25), 1.0002499999999062, 2.0 * ULP);
        assert_relative(sliver.cdf(1.0002499999999062), 0.25, 8.0 * ULP + 4.0 * ULP / 1e-3);
        assert_relative(
            sliver.mass_within(1.0, 1.0005) + sliver.mass_within(1.0005, 2.0),
            1.0,
            8.0 * ULP + 4.0 * ULP / 1e-3,
        );
    }

    /// Reference values from mpmath with 50 digits.
    #[test]
    fn truncated_moments_match_references() {
        let table = [
            ("normal(0, 1, lower=5, upper=6)", 5.183147090477173, 0.17161710511625308),
            ("normal(2, 1, lower=0)", 2.05524786267899, 0.9415157716742846),
            ("normal(0, 1, lower=-8)", 5.052271083536895e-15, 0.9999999999999798),
            ("gamma(0.5, 1, lower=0.1, upper=2)", 0.587738816470972, 0.45626496929341986),
            ("gamma(0.5, 1, upper=2)", 0.3868706517749616, 0.45208227128209977),
            ("beta(2, 2, upper=0.3)", 0.19375, 0.07218682358990455),
            ("student-t(3, 0, 1, lower=-1000)", 1.6539817261439725e-6, 1.7310956173894545),
            ("log-normal(0, 1, upper=3)", 1.0290336389515993, 0.7155321587012384),
            ("exponential(1, lower=2)", 3.0, 1.0),
            ("uniform(0, 1, lower=0.5)", 0.75, 0.5 / 12.0_f64.sqrt()),
        ];
        for (text, mean, sd) in table {
            let prior = marginal(text);
            // 24 nodes a panel leave rounding: exp of a log density of size up to 50, x of the size of the bound.
            let (lower, upper) = prior.support();
            let bound =
                [lower, upper].into_iter().filter(|end| end.is_finite()).fold(sd, |size, end| size.max(end.abs()));
            assert!((prior.mean() - mean).abs() <= 50.0 * ULP * bound, "{text}: mean {}", prior.mean());
            assert!((prior.sd() - sd).abs() <= 50.0 * ULP * bound, "{text}: sd {}", prior.sd());
        }
        assert_eq!(marginal("student-t(1, 0, 1, lower=0)").mean(), f64::INFINITY);
        assert_eq!(marginal("student-t(1.5, 0, 1, lower=0)").sd(), f64::INFINITY);
        assert!(marginal("student-t(1, 0, 1)").mean().is_nan());
    }

    #[test]
    fn closed_moments_match_quadrature() {
        // The quadrature serves truncated priors: powers on the whole line, as of a t, are not its business.
        let priors = PRIORS.map(marginal).into_iter().filter(|prior| !prior.is_truncated());
        for prior in priors.filter(|prior| !matches!(prior.family, Family::StudentT { .. })) {
            let mean = prior.expectation(|x| x);
            let sd = prior.expectation(|x| (x - mean) * (x - mean)).sqrt();
            // Rounding, as in `truncated_moments_match_references`.
            let tolerance = 50.0 * ULP * (prior.mean().abs() + prior.sd()) + tail_error(prior.family);
            assert!((mean - prior.mean()).abs() <= tolerance, "{prior}: mean {mean} is not {}", prior.mean());
            assert!((sd - prior.sd()).abs() <= tolerance, "{prior}: sd {sd} is not {}", prior.sd());
        }
        assert_relative(marginal("student-t(4, 0, 1)").sd(), 2.0_f64.sqrt(), 2.0 * ULP);
        assert_eq!(marginal("student-t(2, 0, 1)").sd(), f64::INFINITY);
    }

    #[test]
    fn scores_match_differences() {
        for text in PRIORS {
            let prior = marginal(text);
            let scale = prior.quantile(0.6) - prior.quantile(0.4);
            for p in [0.02, 0.2, 0.45, 0.7, 0.97] {
                let x = prior.quantile(p);
                let (lower, upper) = prior.support();
                // Truncation h^2 and rounding eps / h balance at h = eps^(1/3); both steps stay inside the support.
                let step = ULP.cbrt() * scale.min(x - lower).min(upper - x);
                let (log_density, slope) = prior.score(x);
                assert_eq!(log_density, prior.log_density(x));
                // Rounding x by an ulp counts like rounding the value by |x slope| ulp.
                let size = 8.0 + log_density.abs() + (x * slope).abs() + prior.log_constant.abs();
                let (expected, error) = central_difference(|x| prior.log_density(x), x, step, size);
                assert!((slope - expected).abs() <= error, "{text} at {x}: {slope} is not {expected} +- {error:e}");
            }
            assert_eq!(prior.score(f64::NAN), (f64::NEG_INFINITY, 0.0));
            assert_eq!(prior.score(prior.upper.next_up()), (f64::NEG_INFINITY, 0.0), "{text}");
            assert_eq!(prior.log_density(prior.lower.next_down()), f64::NEG_INFINITY, "{text}");
        }
        // Limits at the ends of the support.
        for (text, x, limit) in [
            ("log-normal(0, 1)", 0.0, f64::NEG_INFINITY),
            ("gamma(2, 1)", 0.0, f64::NEG_INFINITY),
            ("gamma(1, 2)", 0.0, 2.0_f64.ln()),
            ("gamma(0.5, 1)", 0.0, f64::INFINITY),
            ("beta(1, 1)", 1.0, 0.0),
            ("beta(2, 0.5)", 1.0, f64::INFINITY),
        ] {
            assert_eq!(marginal(text).log_density(x), limit, "{text}");
        }
    }

    #[test]
    fn the_map_from_the_real_line_has_its_jacobian() {
        for text in PRIORS {
            let prior = marginal(text);
            for z in [-9.0, -2.5, -0.3, 0.0, 0.7, 3.0, 8.0] {
                let point = prior.from_real(z);
                // Rounding x by an ulp moves z by ulp |x| dz/dx, and so it does for each of the two bounds.
                let size = [prior.lower, prior.upper]
                    .into_iter()
                    .filter(|end| end.is_finite())
                    .fold(point.x.abs(), |a, b| a.max(b.abs()));
                let back = (prior.to_real(point.x) - z).abs();
                assert!(
                    back <= 4.0 * ULP * (1.0 + z.abs() + size / point.dx_dz),
                    "{text}: {z} comes back {back:e} off"
                );
                assert!((point.dx_dz.ln() - point.log_jacobian).abs() <= 8.0 * ULP * (1.0 + z.abs()), "{text} at {z}");

                let step = ULP.cbrt();
                let close = |found: f64, (expected, error): (f64, f64)| {
                    assert!((found - expected).abs() <= error, "{text} at {z}: {found} is not {expected} +- {error:e}");
                };
                close(point.dx_dz, central_difference(|z| prior.from_real(z).x, z, step, size));
                let jacobian = |z| prior.from_real(z).log_jacobian;
                close(point.d_log_jacobian, central_difference(jacobian, z, step, 1.0 + z.abs() + jacobian(z).abs()));

                let (x, dx_dz, log_density, slope) = prior.score_real(z);
                assert_eq!((x, dx_dz), (point.x, point.dx_dz));
                let direct = prior.log_density(x) + point.log_jacobian;
                // 1 - x of a beta at x near 1 is where the two may differ: by an ulp over 1 - x.
                let rounding = 16.0 * ULP * (1.0 + log_density.abs() + slope.abs() * size / dx_dz + size / dx_dz);
                assert!((log_density - direct).abs() <= rounding, "{text} at {z}: {log_density} is not {direct}");
                let total = 16.0 + log_density.abs() + prior.log_constant.abs() + (slope * size / dx_dz).abs();
                close(slope, central_difference(|z| prior.score_real(z).2, z, step, total));
            }
        }
    }

    #[test]
    fn the_map_from_the_real_line_survives_extremes() {
        for text in PRIORS {
            let prior = marginal(text);
            let (lower, upper) = prior.support();
            for z in [-700.0, -100.0, -40.0, 40.0, 100.0, 700.0] {
                let point = prior.from_real(z);
                assert!(lower < point.x && point.x < upper, "{text} at {z}: {}", point.x);
                assert!(point.dx_dz > 0.0 && point.dx_dz.is_finite(), "{text} at {z}");
                assert!(point.log_jacobian.is_finite() && point.d_log_jacobian.is_finite(), "{text} at {z}");
                let (_, _, log_density, slope) = prior.score_real(z);
                assert!(log_density < f64::INFINITY && !slope.is_nan(), "{text} at {z}: {log_density}, {slope}");
                assert!(prior.to_real(point.x).is_finite());
            }
            assert!(prior.to_real(lower).is_finite() && prior.to_real(upper).is_finite());
        }
        // Beyond where x rounds to 1 the log density of z goes on falling by b per unit, and by a on the other side.
        let arcs = marginal("beta(0.5, 0.6)");
        for (z, slope) in [(-700.0, 0.5), (-100.0, 0.5), (100.0, -0.6), (700.0, -0.6)] {
            let (_, _, log_density, found) = arcs.score_real(z);
            assert_relative(found, slope, 4.0 * ULP);
            assert_relative(log_density, slope * z - ln_beta(0.5, 0.6), 8.0 * ULP);
        }
        // Squares overflow, the density of a heavy tail does not: p(z) ~ exp(-df z).
        let heavy = marginal("student-t(4, 0, 1, lower=0)");
        assert_relative(heavy.score_real(700.0).3, -4.0, 4.0 * ULP);
        assert!(heavy.score_real(700.0).2.is_finite());
    }

    /// Kolmogorov-Smirnov: P(sqrt(n) D > c) = 2 exp(-2 c^2) to first order, so c = sqrt(ln(2 / alpha) / 2).
    #[test]
    fn draws_follow_the_distribution() {
        let n = 100_000;
        // Each way to invert: closed form, counted from a bound, from the upper tail, and the three by root finding.
        let priors = [
            "normal(2, 0.5)",
            "normal(2, 1, lower=0)",
            "normal(0, 1, lower=5, upper=6)",
            "log-normal(0, 1)",
            "uniform(-3, 2)",
            "half-normal(0.5)",
            "exponential(0.1, lower=2, upper=7)",
            "gamma(0.5, 3)",
            "beta(20, 3, lower=0.9)",
            "student-t(4, 0, 1)",
        ];
        let alpha = 1e-4 / priors.len() as f64;
        let critical = ((2.0 / alpha).ln() / 2.0 / n as f64).sqrt();
        for (number, text) in priors.into_iter().enumerate() {
            let prior = marginal(text);
            let mut rng = ChaCha8Rng::seed_from_u64(20250101 + number as u64);
            let mut draws: Vec<f64> = (0..n).map(|_| prior.sample(&mut rng)).collect();
            draws.sort_unstable_by(f64::total_cmp);
            let distance = draws.iter().enumerate().fold(0.0_f64, |distance, (i, &x)| {
                let cdf = prior.cdf(x);
                distance.max(cdf - i as f64 / n as f64).max((i + 1) as f64 / n as f64 - cdf)
            });
            assert!(distance <= critical, "{text}: {distance} exceeds {critical}");
            assert!(prior.lower < draws[0] && draws[n - 1] < prior.upper, "{text}");
        }
    }

    #[test]
    fn a_log_uniform_is_uniform_in_the_logarithm() {
        let prior = marginal("log-uniform(0.01, 100)");
        // Decades are equally likely; a logarithm of at most ln 1e4 = 9.2, to an ulp.
        for (p, x) in [(0.25, 0.1), (0.5, 1.0), (0.75, 10.0)] {
            assert_relative(prior.quantile(p), x, 10.0 * ULP);
            assert_relative(prior.cdf(x), p, 4.0 * ULP);
        }
        // Both sides of where the variance changes its formula; the difference of moments loses a factor of 13.
        for upper in [2.7_f64, 2.72] {
            let prior = marginal(&format!("log-uniform(1, {upper})"));
            let width = upper.ln();
            let second = (upper * upper - 1.0) / (2.0 * width);
            assert_relative(prior.sd().powi(2), second - prior.mean().powi(2), 100.0 * ULP);
        }
        // Ends whose ratio overflows.
        let wide = marginal("log-uniform(1e-300, 1e300)");
        assert_relative(wide.median(), 1.0, 2000.0 * ULP);
        assert!(wide.sd().is_finite() && wide.mean().is_finite());
    }

    #[test]
    fn only_whole_normals_are_normal() {
        assert_eq!(marginal("normal(2, 0.5)").is_normal(), Some((2.0, 0.5)));
        assert_eq!(marginal("normal(2, 0.5, lower=0)").is_normal(), None);
        assert_eq!(marginal("student-t(4, 2, 0.5)").is_normal(), None);
    }

    #[test]
    fn truncating_twice_intersects() {
        let once = marginal("normal(0, 1, lower=-1, upper=2)");
        let twice = marginal("normal(0, 1, lower=-1)").truncated(-3.0, 2.0).unwrap();
        assert_eq!(once, twice);
        assert_eq!(once.truncated(-5.0, 5.0).unwrap(), once);
    }

    #[test]
    fn a_prior_is_a_product() {
        let names = || vec!["beta".to_owned(), "gamma".to_owned()];
        let marginals = || vec![marginal("normal(2, 0.5)"), marginal("gamma(0.5, 1)")];
        let prior = Prior::new(names(), marginals()).unwrap();
        assert_eq!((prior.len(), prior.is_empty()), (2, false));
        assert_eq!(prior.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["beta", "gamma"]);
        let expected = prior.marginals()[0].log_density(1.5) + prior.marginals()[1].log_density(0.25);
        assert_eq!(prior.log_density(&[1.5, 0.25]), expected);
        assert_eq!(prior.log_density(&[1.5, -0.25]), f64::NEG_INFINITY);
        assert_eq!(prior.log_density(&[f64::NAN, 0.0]), f64::NEG_INFINITY);
        let draw = |seed| prior.sample(&mut ChaCha8Rng::seed_from_u64(seed));
        assert_eq!((draw(1).len(), draw(1) == draw(1), draw(1) == draw(2)), (2, true, false));

        let refused = Prior::new(names(), vec![]).unwrap_err().to_string();
        assert_eq!(refused, "prior: 2 names for 0 distributions; give each quantity one distribution");
        let refused = Prior::new(vec!["beta".to_owned(); 2], marginals()).unwrap_err().to_string();
        assert_eq!(refused, "prior: `beta` occurs twice; rename one of them");
    }
}
