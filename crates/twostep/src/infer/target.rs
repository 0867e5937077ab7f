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
    /// Several points whose surrogates cost less together, each pooled by itself.
    fn evaluate_together(&mut self, points: &mut [&mut Point]) {
        self.set_points(points);
        let Self { likelihoods, propagation, log_alpha, points: x, values, gradients, gradient, workspace, l, .. } =
            &mut *self;
        let pool = |l: &mut [f64]| propagation.pool(log_alpha, l);
        let gradients = gradient.then_some(gradients);
        likelihoods.pool_together(x, pool, l, workspace, values, gradients);
        self.read_points(points);
    }

    /// Natural values and log priors of several points; their likelihoods' gradients hold the slopes of the map until these are there.
    fn set_points(&mut self, points: &mut [&mut Point]) {
        let dim = self.prior.len();
        self.points.reshape(points.len(), dim);
        self.gradients.reshape(points.len(), dim);
        self.gradients.data_mut().fill(0.0);
        for (p, point) in points.iter_mut().enumerate() {
            point.log_prior = self.set_prior(&point.z, &mut point.prior_gradient);
            self.points.row_mut(p).copy_from_slice(&self.x);
            point.likelihood_gradient.copy_from_slice(&self.slopes);
        }
    }

    /// Likelihoods of several points, with their gradients on the real line.
    fn read_points(&self, points: &mut [&mut Point]) {
        for (p, point) in points.iter_mut().enumerate() {
            point.log_likelihood = self.values[p];
            for (by, by_x) in point.likelihood_gradient.iter_mut().zip(self.gradients.row(p)) {
                *by = chain(*by_x, *by);
            }
        }
    }

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
        let together = !self.one_pass && self.likelihoods.gains_together();
        for points in points.chunks_mut(POINTS) {
            if together && points.len() > 1 {
                self.evaluate_together(points);
                continue;
            }
            if !self.one_pass || points.len() < WORTH {
                points.iter_mut().for_each(|point| point.set(|z, prior, likelihood| self.parts(z, prior, likelihood)));
                continue;
            }
            self.set_points(points);
            let Self { likelihoods, log_alpha, points: x, values, gradients, workspace, .. } = &mut *self;
            likelihoods.pool_points(x, log_alpha, workspace, values, gradients);
            self.read_points(points);
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
