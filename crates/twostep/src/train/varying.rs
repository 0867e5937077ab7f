//! The T-step of a linear surrogate whose sigma_A depends on the inputs: the parameters of sigma_A are sampled with the coefficients
//! integrated out, and these drawn exactly given them.

use super::density::{Errors, Priors};
use super::exact::{LinearModel, dot};
use super::{Block, Fit, LeaveOneOut, TrainSpec};
use crate::error::{Error, Result};
use crate::matrix::Matrix;
use crate::mcmc::Bayes;
use crate::monitor::Monitor;
use crate::prior::Marginal;
use crate::stream::Stream;
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use rand_distr::StandardNormal;
use rayon::prelude::*;

/// Transitions for each draw: they are cheap beside what is done with a draw, and four make draws of few parameters close to independent.
const STEPS: usize = 4;

/// `z ~ N(features m, features diag(sd^2) features' + diag(sigma_A(x_i)^2 + sigma_S,i^2))`: the posterior of the coefficients of
/// `log sigma_A`, then of `sigma_a` where it is unknown.
#[derive(Clone)]
pub(super) struct ErrorDensity<'a> {
    model: &'a LinearModel,
    errors: Errors,
    priors: Priors,
    variances: Vec<f64>,
    by_coefficients: Vec<f64>,
    /// Values and slopes at the point asked for last.
    natural: Vec<(f64, f64)>,
}

impl<'a> ErrorDensity<'a> {
    fn new(model: &'a LinearModel, errors: Errors, own: &[Marginal]) -> Self {
        let priors = Priors::new(own, &model.sigma_a);
        Self {
            variances: vec![0.0; model.z.len()],
            by_coefficients: vec![0.0; own.len()],
            natural: vec![(0.0, 1.0); priors.unknown.len()],
            model,
            errors,
            priors,
        }
    }

    /// Variances of all rows with these parameters.
    fn set(&mut self, coefficients: &[f64], sigma_a: f64) {
        self.errors.set(sigma_a, coefficients);
        for ((variance, sd), sigma_s) in self.variances.iter_mut().zip(&self.errors.sds).zip(&self.model.sigma_s) {
            *variance = sd * sd + sigma_s * sigma_s;
        }
    }
}

impl Bayes for ErrorDensity<'_> {
    fn dim(&self) -> usize {
        self.priors.unknown.len()
    }

    fn parts(&mut self, z: &[f64], prior_gradient: &mut [f64], likelihood_gradient: &mut [f64]) -> (f64, f64) {
        let mut log_prior = 0.0;
        for (j, prior) in self.priors.unknown.iter().enumerate() {
            let (x, slope, density, by_z) = prior.score_real(z[j]);
            log_prior += density;
            prior_gradient[j] = by_z;
            self.natural[j] = (x, slope);
        }
        let q = self.errors.len();
        let coefficients: Vec<f64> = self.natural[..q].iter().map(|(x, _)| *x).collect();
        let sigma_a = self.priors.fixed_sigma_a.unwrap_or_else(|| self.natural[q].0);
        self.set(&coefficients, sigma_a);
        likelihood_gradient.fill(0.0);
        let is_usable = self.variances.iter().all(|v| v.is_normal());
        let conditional = if is_usable { self.model.condition(&self.variances) } else { None };
        let Some(conditional) = conditional.filter(|found| found.log_marginal.is_finite()) else {
            return (log_prior, f64::NEG_INFINITY);
        };
        for i in 0..self.variances.len() {
            // With C the covariance of z: dlog p / dv_i = ((C^-1 (z - m))_i^2 - (C^-1)_ii) / 2.
            let v = self.variances[i];
            let half = conditional.seen_by(self.model, i);
            let pulled = (self.model.z[i] - dot(self.model.features.row(i), &conditional.mean)) / v;
            let precision = (1.0 - dot(&half, &half) / v) / v;
            self.errors.by_sd[i] = self.errors.sds[i] * (pulled * pulled - precision);
        }
        self.by_coefficients.fill(0.0);
        let by_sigma_a = self.errors.pull(&mut self.by_coefficients);
        let by_natural = self.by_coefficients.iter().copied().chain([by_sigma_a]);
        for ((out, by), (_, slope)) in likelihood_gradient.iter_mut().zip(by_natural).zip(&self.natural) {
            *out = by * slope;
        }
        (log_prior, conditional.log_marginal)
    }

    fn sample_prior(&mut self, rng: &mut ChaCha8Rng, z: &mut [f64]) {
        self.priors.sample(rng, z);
    }
}

impl Fit<'_> {
    /// Parameters of sigma_A by samplers, coefficients exactly given these.
    pub(super) fn varying(
        &self,
        model: LinearModel,
        spec: &TrainSpec,
        stream: Stream,
        monitor: &dyn Monitor,
    ) -> Result<Block> {
        let p = model.prior.len();
        let errors = Errors::new(&**self.surrogate, &self.rows.x);
        let density = ErrorDensity::new(&model, errors, &self.surrogate.priors()[p..]);
        let names = &self.surrogate.names()[p..];
        let sampled = self.sampled(&density, &|z| density.priors.natural(z), names, STEPS, spec, stream, monitor)?;
        let q = names.len();
        let drawn = sampled.columns.par_iter().enumerate().map(|(s, own)| {
            let mut density = density.clone();
            density.set(&own[..q], own[q]);
            let conditional = model.condition(&density.variances)?;
            let mut rng = stream.named("coefficients").at(s as u64).rng();
            let coefficients = conditional.at((0..p).map(|_| rng.sample(StandardNormal)).collect());
            Some((coefficients, model.leave_one_out(&conditional, &density.variances, 0.0)))
        });
        let drawn = drawn.collect::<Option<Vec<_>>>().ok_or_else(|| {
            Error::failed(
                format!("T-step of `{}`", self.name),
                "the coefficients' precision matrix is not positive definite",
                "lower the degree or give the coefficients a narrower prior",
            )
        })?;
        let (columns, left_out): (Vec<_>, Vec<_>) = drawn.into_iter().unzip();
        let coefficients =
            Matrix::from_fn(p + q, columns.len(), |j, s| if j < p { columns[s][j] } else { sampled.columns[s][j - p] });
        let sigma_a: Vec<f64> = sampled.columns.iter().map(|own| own[q]).collect();
        let log_weights = vec![0.0; columns.len()];
        let known = || (None, LeaveOneOut::of_nodes(&self.rows.z, &left_out));
        let method = format!("exact-given-{}", sampled.method);
        let mut report = self.report(&method, &coefficients, &sigma_a, &log_weights, Some(&known));
        sampled.add_to(&mut report);
        Ok(Block { coefficients, sigma_a, log_weights, report })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::surrogate::{InputScale, Normalisation, PolynomialChaos, SigmaA, Surrogate, VaryingError};
    use std::sync::Arc;

    /// With known simulation noise of its own size in each row, and without.
    #[test]
    fn the_gradient_is_the_derivative() {
        let normal = |text: &str| text.parse::<Marginal>().unwrap();
        let scales = vec![InputScale { lower: -1.0, upper: 1.0, log: false }];
        let polynomial = PolynomialChaos::new(2, Normalisation::Orthonormal, normal("normal(0.2, 2)"), scales.clone());
        let varying = VaryingError::new(Arc::new(polynomial), 2, &normal("normal(0, 0.5)"), &scales);
        let n = 9;
        let x = Matrix::from_fn(n, 1, |i, _| -0.9 + 0.2 * i as f64);
        let (_, features) = varying.linear(&x).unwrap();
        for noise in [0.0, 0.1] {
            let model = LinearModel {
                features: Matrix::from_fn(n, 3, |i, p| features[(i, p)]),
                z: (0..n).map(|i| (2.3 * i as f64).sin()).collect(),
                sigma_s: (0..n).map(|i| noise * (1.0 + i as f64)).collect(),
                runs: Vec::new(),
                prior: vec![(0.2, 2.0); 3],
                sigma_a: SigmaA::Prior(normal("exponential(1)")),
            };
            let mut density = ErrorDensity::new(&model, Errors::new(&varying, &x), &varying.priors()[3..]);
            let at = [0.4, -0.3, -0.7];
            let mut value = |at: &[f64]| {
                let (mut of_prior, mut of_likelihood) = ([0.0; 3], [0.0; 3]);
                (density.parts(at, &mut of_prior, &mut of_likelihood), of_prior, of_likelihood)
            };
            let (_, of_prior, of_likelihood) = value(&at);
            for d in 0..3 {
                let h = f64::EPSILON.cbrt();
                let mut central = |h: f64| {
                    let mut moved = |h: f64| {
                        let mut to = at;
                        to[d] += h;
                        value(&to).0
                    };
                    let (after, before) = (moved(h), moved(-h));
                    [after.0 - before.0, after.1 - before.1].map(|change| change / (2.0 * h))
                };
                let (near, far) = (central(h), central(2.0 * h));
                for (part, exact) in [of_prior[d], of_likelihood[d]].into_iter().enumerate() {
                    // A third of the change when the step doubles is truncation; the values are sums of some dozens of terms below 10,
                    // and the factor of a matrix of condition 100 at most.
                    let bound = (near[part] - far[part]).abs() + 100.0 * 30.0 * 10.0 * f64::EPSILON / h;
                    assert!((exact - near[part]).abs() <= bound, "{noise} {d} {part}: {exact} {}", near[part]);
                }
            }
        }
    }
}
