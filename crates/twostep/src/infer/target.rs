//! The I-posterior on the real line, for samplers.

use super::likelihoods::{Likelihoods, Workspace};
use super::propagation::Propagation;
use crate::mcmc::Bayes;
use crate::prior::Prior;
use rand::rngs::ChaCha8Rng;

/// One pooled density: prior times the pooled likelihood of all T-draws.
#[derive(Clone)]
pub struct Target<'a> {
    likelihoods: &'a Likelihoods,
    prior: &'a Prior,
    propagation: &'a dyn Propagation,
    log_alpha: &'a [f64],
    workspace: Workspace,
    x: Vec<f64>,
    slopes: Vec<f64>,
    by_x: Vec<f64>,
    l: Vec<f64>,
    gradient: bool,
}

impl<'a> Target<'a> {
    /// `prior` holds the unknowns, then the unknown sds.
    pub fn new(
        likelihoods: &'a Likelihoods,
        prior: &'a Prior,
        propagation: &'a dyn Propagation,
        log_alpha: &'a [f64],
    ) -> Self {
        let dim = prior.len();
        Self {
            likelihoods,
            prior,
            propagation,
            log_alpha,
            workspace: Workspace::default(),
            x: vec![0.0; dim],
            slopes: vec![0.0; dim],
            by_x: vec![0.0; dim],
            l: vec![0.0; likelihoods.n_draws()],
            gradient: true,
        }
    }

    /// The same without gradients, where those of the likelihood are dear or there are none.
    pub fn cheap(mut self) -> Self {
        self.gradient = self.likelihoods.has_gradient() && self.propagation.has_gradient();
        self
    }

    /// Pooled log-likelihood at natural values, with its gradient in `by_x` order; for benchmarks and tests.
    pub fn log_likelihood(&mut self, x: &[f64], gradient: &mut [f64]) -> f64 {
        let n = self.likelihoods.n_unknowns();
        let (omega, sigma) = x.split_at(n);
        self.likelihoods.set_unknowns(omega, &mut self.workspace);
        self.likelihoods.log_likelihoods(sigma, &self.workspace, &mut self.l);
        let value = self.propagation.pool(self.log_alpha, &mut self.l);
        gradient.fill(0.0);
        if !self.gradient {
            return value;
        }
        let (by_omega, by_sigma) = gradient.split_at_mut(n);
        self.likelihoods.pull(sigma, &self.l, &mut self.workspace, by_omega, by_sigma);
        value
    }
}

impl Bayes for Target<'_> {
    fn dim(&self) -> usize {
        self.prior.len()
    }

    fn parts(&mut self, z: &[f64], prior_gradient: &mut [f64], likelihood_gradient: &mut [f64]) -> (f64, f64) {
        let mut log_prior = 0.0;
        for (j, marginal) in self.prior.marginals().iter().enumerate() {
            let (x, slope, density, by_z) = marginal.score_real(z[j]);
            (self.x[j], self.slopes[j], prior_gradient[j]) = (x, slope, by_z);
            log_prior += density;
        }
        let (x, mut by_x) = (std::mem::take(&mut self.x), std::mem::take(&mut self.by_x));
        let log_likelihood = self.log_likelihood(&x, &mut by_x);
        for j in 0..z.len() {
            let slope = by_x[j] * self.slopes[j];
            likelihood_gradient[j] = if slope.is_finite() { slope } else { 0.0 };
        }
        (self.x, self.by_x) = (x, by_x);
        (log_prior, log_likelihood)
    }

    fn has_gradient(&self) -> bool {
        self.gradient
    }

    fn sample_prior(&mut self, rng: &mut ChaCha8Rng, z: &mut [f64]) {
        for (z, marginal) in z.iter_mut().zip(self.prior.marginals()) {
            *z = marginal.to_real(marginal.sample(rng));
        }
    }
}
