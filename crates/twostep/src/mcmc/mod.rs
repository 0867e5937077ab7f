//! Log densities to draws, evidence and what can be trusted of them; knows nothing of surrogates.

pub mod approximate;
pub mod chains;
pub mod diagnostics;
pub mod nuts;
pub mod optimise;
pub mod psis;
pub mod quadrature;
pub(crate) mod slice;
pub mod smc;

use rand::rngs::ChaCha8Rng;

/// A log density on the real space R^dim with its gradient.
pub trait LogDensity {
    /// Number of coordinates.
    fn dim(&self) -> usize;

    /// Returns log p(z) up to a constant and overwrites `gradient` (length [`LogDensity::dim`]); -inf outside the support,
    /// where `gradient` may hold anything.
    fn log_density(&mut self, z: &[f64], gradient: &mut [f64]) -> f64;
}

/// A point of R^dim with what a [`Bayes`] says of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// Its coordinates.
    pub z: Vec<f64>,
    /// Normalised log prior.
    pub log_prior: f64,
    /// Log likelihood.
    pub log_likelihood: f64,
    /// Gradient of the log prior.
    pub prior_gradient: Vec<f64>,
    /// Gradient of the log likelihood.
    pub likelihood_gradient: Vec<f64>,
}

impl Point {
    /// The origin.
    pub fn new(dim: usize) -> Self {
        let zeros = || vec![0.0; dim];
        Self { z: zeros(), prior_gradient: zeros(), likelihood_gradient: zeros(), ..Self::default() }
    }

    /// What `parts` says of it, in the form of [`Bayes::parts`].
    pub fn set(&mut self, parts: impl FnOnce(&[f64], &mut [f64], &mut [f64]) -> (f64, f64)) {
        (self.log_prior, self.log_likelihood) = parts(&self.z, &mut self.prior_gradient, &mut self.likelihood_gradient);
    }
}

/// A posterior on R^dim in its two factors, so that it can be tempered and started from its prior.
pub trait Bayes {
    /// Number of coordinates.
    fn dim(&self) -> usize;

    /// Normalised log prior and log likelihood; overwrites both gradients.
    fn parts(&mut self, z: &[f64], prior_gradient: &mut [f64], likelihood_gradient: &mut [f64]) -> (f64, f64);

    /// The same at several points, which may be cheaper together.
    fn evaluate(&mut self, points: &mut [&mut Point]) {
        points.iter_mut().for_each(|point| point.set(|z, prior, likelihood| self.parts(z, prior, likelihood)));
    }

    /// A draw from the prior.
    fn sample_prior(&mut self, rng: &mut ChaCha8Rng, z: &mut [f64]);

    /// Whether the gradients mean anything. Tempered sequential Monte Carlo does without.
    fn has_gradient(&self) -> bool {
        true
    }
}

/// The posterior of a [`Bayes`] as one log density.
#[derive(Clone, Debug)]
pub struct Posterior<T> {
    target: T,
    likelihood_gradient: Vec<f64>,
}

impl<T: Bayes> Posterior<T> {
    /// Prior times likelihood.
    pub fn new(target: T) -> Self {
        let likelihood_gradient = vec![0.0; target.dim()];
        Self { target, likelihood_gradient }
    }

    /// A draw from the prior.
    pub fn sample_prior(&mut self, rng: &mut ChaCha8Rng, z: &mut [f64]) {
        self.target.sample_prior(rng, z);
    }
}

impl<T: Bayes> LogDensity for Posterior<T> {
    fn dim(&self) -> usize {
        self.target.dim()
    }

    fn log_density(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        let (log_prior, log_likelihood) = self.target.parts(z, gradient, &mut self.likelihood_gradient);
        gradient.iter_mut().zip(&self.likelihood_gradient).for_each(|(g, l)| *g += l);
        log_prior + log_likelihood
    }
}
