//! The T-posterior on the real line, for samplers: coefficients and sigma_A given the training rows.

use super::Rows;
use super::exact::dot;
use crate::matrix::Matrix;
use crate::mcmc::Bayes;
use crate::prior::Marginal;
use crate::surrogate::{Scratch, SigmaA, Surrogate};
use rand::rngs::ChaCha8Rng;
use std::sync::Arc;

/// `z_i ~ N(M~(x_i, c), sigma_A(x_i)^2 + sigma_S,i^2)` with the surrogate's priors.
#[derive(Clone)]
pub(super) struct TDensity {
    surrogate: Arc<dyn Surrogate>,
    x: Matrix,
    z: Vec<f64>,
    variance_s: Vec<f64>,
    /// Of the coefficients, then of sigma_A.
    priors: Priors,
    errors: Errors,
    c: Matrix,
    c_bar: Matrix,
    eta: Matrix,
    eta_bar: Matrix,
    slopes: Vec<f64>,
    scratch: Scratch,
}

/// Priors of parameters, then of `sigma_a`, unless that is known.
#[derive(Clone)]
pub(super) struct Priors {
    pub(super) unknown: Vec<Marginal>,
    pub(super) fixed_sigma_a: Option<f64>,
}

impl Priors {
    pub(super) fn new(parameters: &[Marginal], sigma_a: &SigmaA) -> Self {
        let mut unknown = parameters.to_vec();
        let fixed_sigma_a = match sigma_a {
            SigmaA::Fixed(value) => Some(*value),
            SigmaA::Prior(prior) => {
                unknown.push(prior.clone());
                None
            }
        };
        Self { unknown, fixed_sigma_a }
    }

    /// The parameters and `sigma_a` at a point of the real line.
    pub(super) fn natural(&self, z: &[f64]) -> Vec<f64> {
        let values = self.unknown.iter().zip(z).map(|(prior, &z)| prior.from_real(z).x);
        values.chain(self.fixed_sigma_a).collect()
    }

    /// A point of the real line.
    pub(super) fn sample(&self, rng: &mut ChaCha8Rng, z: &mut [f64]) {
        for (z, prior) in z.iter_mut().zip(&self.unknown) {
            *z = prior.to_real(prior.sample(rng));
        }
    }
}

/// sigma_A of every training row.
#[derive(Clone)]
pub(super) struct Errors {
    /// Functions of the inputs in `log sigma_A`, N x Q.
    features: Matrix,
    /// What the inputs multiply `sigma_a` by.
    factors: Vec<f64>,
    /// sigma_A of each row.
    pub(super) sds: Vec<f64>,
    /// Derivative of a log density by each of these.
    pub(super) by_sd: Vec<f64>,
}

impl Errors {
    pub(super) fn new(surrogate: &dyn Surrogate, x: &Matrix) -> Self {
        let features = surrogate.error_field().map_or_else(|| Matrix::zeros(x.rows(), 0), |field| field.features(x));
        let zeros = || vec![0.0; x.rows()];
        Self { features, factors: vec![1.0; x.rows()], sds: zeros(), by_sd: zeros() }
    }

    /// Number of coefficients besides `sigma_a`.
    pub(super) fn len(&self) -> usize {
        self.features.cols()
    }

    /// Sets sigma_A of every row.
    pub(super) fn set(&mut self, sigma_a: f64, coefficients: &[f64]) {
        for (i, (sd, factor)) in self.sds.iter_mut().zip(&mut self.factors).enumerate() {
            if !coefficients.is_empty() {
                *factor = dot(self.features.row(i), coefficients).exp();
            }
            *sd = sigma_a * *factor;
        }
    }

    /// Derivative by `sigma_a`; adds those by the coefficients.
    pub(super) fn pull(&self, by_coefficients: &mut [f64]) -> f64 {
        for (i, by_sd) in self.by_sd.iter().enumerate() {
            let by_log = by_sd * self.sds[i];
            by_coefficients.iter_mut().zip(self.features.row(i)).for_each(|(by, feature)| *by += by_log * feature);
        }
        self.by_sd.iter().zip(&self.factors).map(|(by_sd, factor)| by_sd * factor).sum()
    }
}

impl TDensity {
    pub(super) fn new(surrogate: Arc<dyn Surrogate>, rows: &Rows, sigma_a: &SigmaA) -> Self {
        let priors = Priors::new(surrogate.priors(), sigma_a);
        let p = surrogate.names().len();
        Self {
            errors: Errors::new(&*surrogate, &rows.x),
            surrogate,
            x: rows.x.clone(),
            z: rows.z.clone(),
            variance_s: rows.sigma_s.iter().map(|s| s * s).collect(),
            slopes: vec![0.0; priors.unknown.len()],
            priors,
            c: Matrix::zeros(p, 1),
            c_bar: Matrix::zeros(p, 1),
            eta: Matrix::default(),
            eta_bar: Matrix::zeros(rows.z.len(), 1),
            scratch: Scratch::default(),
        }
    }

    /// Coefficients and sigma_A at a point of the real line.
    pub(super) fn natural(&self, z: &[f64]) -> Vec<f64> {
        self.priors.natural(z)
    }
}

impl Bayes for TDensity {
    fn dim(&self) -> usize {
        self.priors.unknown.len()
    }

    fn parts(&mut self, z: &[f64], prior_gradient: &mut [f64], likelihood_gradient: &mut [f64]) -> (f64, f64) {
        let p = self.c.rows();
        let mut log_prior = 0.0;
        let mut sigma_a = self.priors.fixed_sigma_a.unwrap_or(0.0);
        for (j, prior) in self.priors.unknown.iter().enumerate() {
            let (x, slope, density, by_z) = prior.score_real(z[j]);
            log_prior += density;
            prior_gradient[j] = by_z;
            self.slopes[j] = slope;
            if j < p { self.c[(j, 0)] = x } else { sigma_a = x }
        }
        self.surrogate.predict(&self.x, &self.c, &mut self.eta, &mut self.scratch);
        let log_two_pi = (2.0 * std::f64::consts::PI).ln();
        let mut log_likelihood = 0.0;
        self.errors.set(sigma_a, &self.c.data()[p - self.errors.len()..]);
        for i in 0..self.z.len() {
            let sd = self.errors.sds[i];
            let v = sd * sd + self.variance_s[i];
            let r = self.z[i] - self.eta[(i, 0)];
            log_likelihood -= 0.5 * (log_two_pi + v.ln() + r * r / v);
            self.errors.by_sd[i] = sd * (r * r / v - 1.0) / v;
            self.eta_bar[(i, 0)] = r / v;
        }
        self.c_bar.data_mut().fill(0.0);
        self.surrogate.pull_to_coefficients(&self.x, &self.c, &self.eta_bar, &mut self.c_bar, &mut self.scratch);
        let by_sigma_a = self.errors.pull(&mut self.c_bar.data_mut()[p - self.errors.len()..]);
        for j in 0..self.priors.unknown.len() {
            likelihood_gradient[j] = self.slopes[j] * if j < p { self.c_bar[(j, 0)] } else { by_sigma_a };
        }
        (log_prior, if log_likelihood.is_nan() { f64::NEG_INFINITY } else { log_likelihood })
    }

    fn sample_prior(&mut self, rng: &mut ChaCha8Rng, z: &mut [f64]) {
        self.priors.sample(rng, z);
    }
}
