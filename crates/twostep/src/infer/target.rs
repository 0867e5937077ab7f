//! The I-posterior on the real line, for samplers.

use super::likelihoods::{Likelihoods, Workspace};
use super::propagation::Propagation;
use crate::kernels::panels::POINTS;
use crate::matrix::Matrix;
use crate::mcmc::{Bayes, Point};
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
    /// Whether the draws are pooled in one pass.
    one_pass: bool,
    /// Several points with their values and gradients.
    points: Matrix,
    values: [f64; POINTS],
    gradients: Matrix,
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
        let is_single = likelihoods.n_draws() == 1 && propagation.linear_weights(&[0.0]).is_some();
        let one_pass = (is_single || propagation.is_log_mean_exp()) && likelihoods.is_quadratic();
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
            one_pass,
            points: Matrix::default(),
            values: [0.0; POINTS],
            gradients: Matrix::default(),
        }
    }

    /// The same without gradients, where those of the likelihood are dear or there are none.
    pub fn cheap(mut self) -> Self {
        self.gradient = self.likelihoods.has_gradient() && self.propagation.has_gradient();
        self
    }

    /// How often the coefficients of all draws were read, where one reading gives value and gradient: a measure of work.
    pub fn readings(&self) -> usize {
        self.workspace.readings()
    }

    /// Pooled log-likelihood at natural values, with its gradient in `by_x` order; for benchmarks and tests.
    pub fn log_likelihood(&mut self, x: &[f64], gradient: &mut [f64]) -> f64 {
        let n = self.likelihoods.n_unknowns();
        let (omega, sigma) = x.split_at(n);
        gradient.fill(0.0);
        let (by_omega, by_sigma) = gradient.split_at_mut(n);
        if self.one_pass {
            return self.likelihoods.pool(omega, sigma, self.log_alpha, &mut self.workspace, by_omega, by_sigma);
        }
        self.likelihoods.set_unknowns(omega, &mut self.workspace);
        self.likelihoods.log_likelihoods(sigma, &self.workspace, &mut self.l);
        let value = self.propagation.pool(self.log_alpha, &mut self.l);
        if !self.gradient {
            return value;
        }
        self.likelihoods.pull(sigma, &self.l, &mut self.workspace, by_omega, by_sigma);
        value
    }
}

impl Target<'_> {
    /// The log prior at a point of the real line; leaves natural values and their slopes behind.
    fn set_prior(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
        let mut log_prior = 0.0;
        for (j, marginal) in self.prior.marginals().iter().enumerate() {
            let (x, slope, density, by_z) = marginal.score_real(z[j]);
            (self.x[j], self.slopes[j], gradient[j]) = (x, slope, by_z);
            log_prior += density;
        }
        log_prior
    }
}

/// Of a derivative by the natural value: that by the real line, and zero where the value left all bounds.
fn chain(by_x: f64, slope: f64) -> f64 {
    let by_z = by_x * slope;
    if by_z.is_finite() { by_z } else { 0.0 }
}

impl Bayes for Target<'_> {
    fn dim(&self) -> usize {
        self.prior.len()
    }

    fn parts(&mut self, z: &[f64], prior_gradient: &mut [f64], likelihood_gradient: &mut [f64]) -> (f64, f64) {
        let log_prior = self.set_prior(z, prior_gradient);
        let (x, mut by_x) = (std::mem::take(&mut self.x), std::mem::take(&mut self.by_x));
        let log_likelihood = self.log_likelihood(&x, &mut by_x);
        for j in 0..z.len() {
            likelihood_gradient[j] = chain(by_x[j], self.slopes[j]);
        }
        (self.x, self.by_x) = (x, by_x);
        (log_prior, log_likelihood)
    }

    fn evaluate(&mut self, points: &mut [&mut Point]) {
        // Lanes without a point are computed all the same: few points are cheaper one by one.
        const WORTH: usize = POINTS / 2;
        let dim = self.dim();
        for points in points.chunks_mut(POINTS) {
            if !self.one_pass || points.len() < WORTH {
                points.iter_mut().for_each(|point| point.set(|z, prior, likelihood| self.parts(z, prior, likelihood)));
                continue;
            }
            self.points.reshape(points.len(), dim);
            self.gradients.reshape(points.len(), dim);
            for (p, point) in points.iter_mut().enumerate() {
                point.log_prior = self.set_prior(&point.z, &mut point.prior_gradient);
                self.points.row_mut(p).copy_from_slice(&self.x);
                // Until the likelihood is there, the slopes of the map.
                point.likelihood_gradient.copy_from_slice(&self.slopes);
            }
            let Self { likelihoods, log_alpha, points: x, values, gradients, workspace, .. } = &mut *self;
            likelihoods.pool_points(x, log_alpha, workspace, values, gradients);
            for (p, point) in points.iter_mut().enumerate() {
                point.log_likelihood = values[p];
                for (by, by_x) in point.likelihood_gradient.iter_mut().zip(gradients.row(p)) {
                    *by = chain(*by_x, *by);
                }
            }
        }
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
