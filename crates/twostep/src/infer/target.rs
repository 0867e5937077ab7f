//! The I-posterior on the real line for samplers, and its components over natural units for the grid.

use super::likelihoods::{Likelihoods, Workspace};
use super::propagation::Propagation;
use crate::mcmc::Bayes;
use crate::mcmc::quadrature::{Axis, Components, NODES};
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
        }
    }

    /// Natural values at a point of the real line.
    pub fn natural(&self, z: &[f64]) -> Vec<f64> {
        self.prior.marginals().iter().zip(z).map(|(prior, &z)| prior.from_real(z).x).collect()
    }

    /// Pooled log-likelihood at natural values, with its gradient in `by_x` order; for benchmarks and tests.
    pub fn log_likelihood(&mut self, x: &[f64], gradient: &mut [f64]) -> f64 {
        let n = self.likelihoods.n_unknowns();
        let (omega, sigma) = x.split_at(n);
        self.likelihoods.set_unknowns(omega, &mut self.workspace);
        self.likelihoods.log_likelihoods(sigma, &self.workspace, &mut self.l);
        let value = self.propagation.pool(self.log_alpha, &mut self.l);
        gradient.fill(0.0);
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

    fn sample_prior(&mut self, rng: &mut ChaCha8Rng, z: &mut [f64]) {
        for (z, marginal) in z.iter_mut().zip(self.prior.marginals()) {
            *z = marginal.to_real(marginal.sample(rng));
        }
    }
}

/// The posteriors `p_s` of every T-draw, or the one pooled density of a method that is no mixture, for the grid.
pub struct PosteriorComponents<'a> {
    likelihoods: &'a Likelihoods,
    prior: &'a Prior,
    axes: Vec<Axis>,
    log_alpha: &'a [f64],
    /// `Some` pools all draws to one component.
    pooled: Option<&'a dyn Propagation>,
}

impl<'a> PosteriorComponents<'a> {
    /// One component per T-draw.
    pub fn per_draw(likelihoods: &'a Likelihoods, prior: &'a Prior, log_alpha: &'a [f64]) -> Self {
        Self { likelihoods, prior, axes: axes(prior), log_alpha, pooled: None }
    }

    /// One pooled component.
    pub fn pooled(
        likelihoods: &'a Likelihoods,
        prior: &'a Prior,
        log_alpha: &'a [f64],
        propagation: &'a dyn Propagation,
    ) -> Self {
        Self { likelihoods, prior, axes: axes(prior), log_alpha, pooled: Some(propagation) }
    }
}

fn axes(prior: &Prior) -> Vec<Axis> {
    prior
        .marginals()
        .iter()
        .map(|m| Axis::new(m.support(), m.median(), 0.5 * (m.quantile(0.84) - m.quantile(0.16))))
        .collect()
}

impl Components for PosteriorComponents<'_> {
    type Work = (Workspace, Vec<f64>);

    fn axes(&self) -> &[Axis] {
        &self.axes
    }

    fn len(&self) -> usize {
        if self.pooled.is_some() { 1 } else { self.likelihoods.n_draws() }
    }

    /// The larger of a draw's share in E-Post (alpha) and in E-Lik (alpha Z).
    fn importance(&self, log_evidence: &[f64]) -> Vec<f64> {
        if self.pooled.is_some() {
            return vec![1.0];
        }
        let raw: Vec<f64> = self.log_alpha.iter().zip(log_evidence).map(|(a, z)| a + z).collect();
        let total = crate::special::log_sum_exp(&raw);
        self.log_alpha.iter().zip(&raw).map(|(a, w)| a.exp().max((w - total).exp())).collect()
    }

    fn work(&self) -> Self::Work {
        (Workspace::default(), vec![0.0; self.likelihoods.n_draws()])
    }

    fn evaluate(&self, nodes: &[[f64; NODES]], (workspace, l): &mut Self::Work, out: &mut [f64]) {
        let (n, n_unknowns) = (self.likelihoods.n_draws(), self.likelihoods.n_unknowns());
        let dim = nodes.len();
        let per_omega = NODES.pow((dim - n_unknowns) as u32);
        let (mut omega, mut sigma) = (vec![0.0; n_unknowns], vec![0.0; dim - n_unknowns]);
        let digit = |index: usize, place: usize, places: usize| (index / NODES.pow((places - 1 - place) as u32)) % NODES;
        for outer in 0..NODES.pow(n_unknowns as u32) {
            let mut log_prior_omega = 0.0;
            for d in 0..n_unknowns {
                omega[d] = nodes[d][digit(outer, d, n_unknowns)];
                log_prior_omega += self.prior.marginals()[d].log_density(omega[d]);
            }
            self.likelihoods.set_unknowns(&omega, workspace);
            for inner in 0..per_omega {
                let mut log_prior = log_prior_omega;
                for d in 0..sigma.len() {
                    sigma[d] = nodes[n_unknowns + d][digit(inner, d, sigma.len())];
                    log_prior += self.prior.marginals()[n_unknowns + d].log_density(sigma[d]);
                }
                let node = outer * per_omega + inner;
                match self.pooled {
                    None => {
                        let row = &mut out[node * n..(node + 1) * n];
                        self.likelihoods.log_likelihoods(&sigma, workspace, row);
                        row.iter_mut().for_each(|l| *l += log_prior);
                    }
                    Some(propagation) => {
                        self.likelihoods.log_likelihoods(&sigma, workspace, l);
                        out[node] = propagation.pool(self.log_alpha, l) + log_prior;
                    }
                }
            }
        }
    }
}
