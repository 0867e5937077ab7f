//! Draws synthetic measurements around the simulator's output, by families that may differ from the inferring one.

use rand::{Rng, RngExt};
use rand_distr::{Binomial, Distribution, Gamma, Poisson, StandardNormal, StudentT};

/// A family to generate measurements with, around the simulator's own output `m` in natural units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Generator {
    /// `N(m, sd^2)`.
    Normal {
        /// Standard deviation.
        sd: f64,
    },
    /// `log y ~ N(log m, sd^2)`.
    LogNormal {
        /// Standard deviation of the logarithm.
        sd: f64,
    },
    /// `m + sd t(df)`.
    StudentT {
        /// Scale.
        sd: f64,
        /// Degrees of freedom.
        df: f64,
    },
    /// `N(m, sd^2 + (relative m)^2)`.
    Relative {
        /// Standard deviation where `m` is zero.
        sd: f64,
        /// Standard deviation in parts of `m`.
        relative: f64,
    },
    /// Counts with mean `m` and variance `m + m^2 / phi`.
    NegativeBinomial {
        /// Shape.
        phi: f64,
    },
    /// Counts with mean and variance `m`.
    Poisson,
    /// Successes of so many trials, with probability `m`.
    Binomial {
        /// How many.
        trials: f64,
    },
    /// `m` itself.
    None,
}

impl Generator {
    /// Its sd, where it has one.
    pub fn sd(&self) -> Option<f64> {
        match *self {
            Self::Normal { sd } | Self::LogNormal { sd } | Self::StudentT { sd, .. } => Some(sd),
            // An sd that depends on the output is none.
            Self::Relative { .. }
            | Self::NegativeBinomial { .. }
            | Self::Poisson
            | Self::Binomial { .. }
            | Self::None => None,
        }
    }

    /// The measurement around `m` that a standard normal number makes, where noise is normal on some scale.
    pub(crate) fn displaced(&self, m: f64, normal: f64) -> Option<f64> {
        match *self {
            Self::Normal { sd } => Some(m + sd * normal),
            Self::LogNormal { sd } => Some(m * (sd * normal).exp()),
            _ => None,
        }
    }

    /// One measurement around `m`. Counts around a mean that is not positive are zero, and probabilities are kept between zero and one.
    pub fn sample(&self, m: f64, rng: &mut impl Rng) -> f64 {
        match *self {
            Self::None => m,
            Self::Normal { sd } => m + sd * rng.sample::<f64, _>(StandardNormal),
            Self::LogNormal { sd } => m * (sd * rng.sample::<f64, _>(StandardNormal)).exp(),
            Self::StudentT { sd, df } => m + sd * StudentT::new(df).map_or(0.0, |t| t.sample(rng)),
            Self::Relative { sd, relative } => m + sd.hypot(relative * m) * rng.sample::<f64, _>(StandardNormal),
            // A Poisson count whose mean is gamma with mean m and shape phi.
            Self::NegativeBinomial { phi } => {
                poisson(Gamma::new(phi, m / phi).map_or(0.0, |gamma| gamma.sample(rng)), rng)
            }
            Self::Poisson => poisson(m, rng),
            Self::Binomial { trials } => {
                Binomial::new(trials.round() as u64, m.clamp(0.0, 1.0)).map_or(0.0, |b| b.sample(rng) as f64)
            }
        }
    }
}

fn poisson(mean: f64, rng: &mut impl Rng) -> f64 {
    Poisson::new(mean).map_or(0.0, |p| p.sample(rng))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Stream;

    #[test]
    fn moments_are_those_of_the_family() {
        let n = 100_000;
        let (m, phi) = (40.0, 9.6);
        for (generator, variance) in [
            (Generator::Normal { sd: 3.0 }, 9.0),
            (Generator::StudentT { sd: 3.0, df: 10.0 }, 9.0 * 10.0 / 8.0),
            (Generator::NegativeBinomial { phi }, m + m * m / phi),
            (Generator::Poisson, m),
            (Generator::Relative { sd: 3.0, relative: 0.1 }, 9.0 + 16.0),
        ] {
            let mut rng = Stream::root(7).rng();
            let draws: Vec<f64> = (0..n).map(|_| generator.sample(m, &mut rng)).collect();
            let mean = draws.iter().sum::<f64>() / n as f64;
            let var = draws.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
            let fourth = draws.iter().map(|y| (y - mean).powi(4)).sum::<f64>() / n as f64;
            // Two comparisons for each of five families at alpha = 1e-4: z = 4.42.
            let z = 4.42;
            assert!((mean - m).abs() < z * (variance / n as f64).sqrt(), "{generator:?}: mean {mean}");
            assert!((var - variance).abs() < z * ((fourth - var * var) / n as f64).sqrt(), "{generator:?}: var {var}");
        }
    }
}
