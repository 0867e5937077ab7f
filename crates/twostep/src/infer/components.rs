//! The posteriors of single T-draws that E-Lik and E-Post are mixtures of, for those who study the methods.

use super::propagation::Method;
use super::{Engine, IPosterior, InferSpec, Prepared, Workspace, engine_exact, engine_grid};
use crate::error::{Error, Result};
use crate::kernels::log_mean_exp_weights;
use crate::matrix::Matrix;
use crate::monitor::Monitor;
use crate::special::log_sum_exp;
use rayon::prelude::*;

/// `p(omega | y, theta_s)` for each of S T-draws.
#[derive(Clone, Debug, PartialEq)]
pub struct Components {
    /// Log-weight of each T-draw before the measurements.
    pub log_alpha: Vec<f64>,
    /// `log p(y | theta_s)`; up to a common constant where it comes from draws of an answer without a known evidence.
    pub log_evidence: Vec<f64>,
    /// Mean of each unknown (rows) given each T-draw (columns); NaN where nothing is known of a T-draw.
    pub means: Matrix,
    /// The same of standard deviations.
    pub sds: Matrix,
    /// Whether the numbers are quadrature or closed forms; otherwise importance-weighted sums over the I-draws.
    pub exact: bool,
}

impl Components {
    /// Log-weights of the components by a method; `None` where it is no mixture of them.
    pub fn log_weights(&self, method: Method, spec: &InferSpec) -> Option<Vec<f64>> {
        method.propagation(spec.point).mix(&self.log_alpha, &self.log_evidence)
    }
}

/// Sums of weights, weighted values and weighted squares of every component.
#[derive(Clone)]
pub(super) struct Moments {
    weight: Vec<f64>,
    first: Matrix,
    second: Matrix,
}

impl Moments {
    pub(super) fn new(n_unknowns: usize, n_components: usize) -> Self {
        let zeros = Matrix::zeros(n_unknowns, n_components);
        Self { weight: vec![0.0; n_components], first: zeros.clone(), second: zeros }
    }

    /// A point with its weight in each component, which is `scale * shares[s]`; values are taken from `centre`, where squares do not
    /// cancel.
    pub(super) fn add(&mut self, x: &[f64], centre: &[f64], scale: f64, shares: &[f64]) {
        self.weight.iter_mut().zip(shares).for_each(|(weight, share)| *weight += scale * share);
        for (d, (x, centre)) in x.iter().zip(centre).enumerate().take(self.first.rows()) {
            let (value, first, second) = (x - centre, self.first.row_mut(d), self.second.row_mut(d));
            for (s, share) in shares.iter().enumerate() {
                let moment = scale * share * value;
                first[s] += moment;
                second[s] += moment * value;
            }
        }
    }

    pub(super) fn merge(mut self, other: Self) -> Self {
        self.weight.iter_mut().zip(&other.weight).for_each(|(own, other)| *own += other);
        self.first.data_mut().iter_mut().zip(other.first.data()).for_each(|(own, other)| *own += other);
        self.second.data_mut().iter_mut().zip(other.second.data()).for_each(|(own, other)| *own += other);
        self
    }

    pub(super) fn weight(&self) -> &[f64] {
        &self.weight
    }

    /// Means and sds.
    pub(super) fn finish(&self, centre: &[f64]) -> (Matrix, Matrix) {
        let (rows, cols) = (self.first.rows(), self.first.cols());
        let mean = |d: usize, s: usize| self.first[(d, s)] / self.weight[s];
        let means = Matrix::from_fn(rows, cols, |d, s| centre[d] + mean(d, s));
        let variance = |d: usize, s: usize| (self.second[(d, s)] / self.weight[s] - mean(d, s).powi(2)).max(0.0);
        (means, Matrix::from_fn(rows, cols, |d, s| variance(d, s).sqrt()))
    }
}

impl Prepared {
    /// The posterior of every T-draw: in closed form or by quadrature where the engine has that, else from the draws of `answer`,
    /// an answer by E-Lik or E-Post.
    ///
    /// # Errors
    /// An answer by another method, where there is neither; an interruption.
    pub fn components(&self, spec: &InferSpec, answer: &IPosterior, monitor: &dyn Monitor) -> Result<Components> {
        let (log_evidence, means, sds) = match self.engine(spec) {
            Engine::Exact => engine_exact::components(self)?,
            Engine::Grid | Engine::Auto => engine_grid::components(self, spec, monitor)?,
            Engine::Smc | Engine::Nuts => return self.components_of_draws(answer),
        };
        Ok(Components { log_alpha: self.log_alpha().to_vec(), log_evidence, means, sds, exact: true })
    }

    /// Draws of `prior * sum_s w_s L_s / Z_s` have their responsibilities as weights in each component; `Z_s` are such that these
    /// have mean `w_s`.
    fn components_of_draws(&self, answer: &IPosterior) -> Result<Components> {
        const ROUNDS: usize = 50;
        const CONSISTENT: f64 = 1e-3;
        let Some(method) = Method::named(&answer.method).filter(|method| method.is_mixture()) else {
            let found = format!("{} is no mixture over the T-draws", answer.method);
            return Err(Error::invalid("method", found, "ask for those of e-lik or e-post"));
        };
        let (log_alpha, n) = (self.log_alpha().to_vec(), self.likelihoods.n_unknowns());
        let all: Vec<Vec<f64>> = answer
            .draws
            .par_iter()
            .map_init(Workspace::default, |workspace, x| {
                let mut l = vec![0.0; log_alpha.len()];
                self.likelihoods.set_unknowns(&x[..n], workspace);
                self.likelihoods.log_likelihoods(&x[n..], workspace, &mut l);
                l
            })
            .collect();
        let centre: Vec<f64> =
            (0..n).map(|d| answer.draws.iter().map(|x| x[d]).sum::<f64>() / answer.draws.len() as f64).collect();
        let sums = |offsets: &[f64]| {
            // In blocks of a fixed size, so that the sum does not depend on the number of threads.
            let of_block = |(draws, l): (&[Vec<f64>], &[Vec<f64>])| {
                let mut moments = Moments::new(n, offsets.len());
                let mut shares = vec![0.0; offsets.len()];
                for (x, l) in draws.iter().zip(l) {
                    shares.copy_from_slice(l);
                    log_mean_exp_weights(offsets, &mut shares);
                    moments.add(x, &centre, 1.0 / answer.draws.len() as f64, &shares);
                }
                moments
            };
            let blocks: Vec<Moments> = answer.draws.par_chunks(256).zip(all.par_chunks(256)).map(of_block).collect();
            blocks.into_iter().reduce(Moments::merge).unwrap_or_else(|| Moments::new(n, offsets.len()))
        };
        // E-Lik's draws are of the sum of all likelihoods; E-Post's of one in which every T-draw has its own weight.
        let mut offsets = log_alpha.clone();
        let mut moments = sums(&offsets);
        for _ in 0..if method == Method::EPost { ROUNDS } else { 0 } {
            let mut change = 0.0;
            for (s, offset) in offsets.iter_mut().enumerate() {
                let mean = moments.weight()[s];
                if mean > 0.0 {
                    let step = log_alpha[s] - mean.ln();
                    *offset += step;
                    change += log_alpha[s].exp() * step.abs();
                }
            }
            moments = sums(&offsets);
            if change < CONSISTENT {
                break;
            }
        }
        let relative: Vec<f64> = match method {
            Method::EPost => offsets.iter().zip(&log_alpha).map(|(offset, a)| a - offset).collect(),
            _ => moments.weight().iter().zip(&log_alpha).map(|(mean, a)| mean.ln() - a).collect(),
        };
        let joint: Vec<f64> = relative.iter().zip(&log_alpha).map(|(z, a)| z + a).collect();
        let level = answer.diagnostics.log_evidence.map_or(0.0, |known| known - log_sum_exp(&joint));
        let (means, sds) = moments.finish(&centre);
        let log_evidence = relative.into_iter().map(|z| z + level).collect();
        Ok(Components { log_alpha, log_evidence, means, sds, exact: false })
    }
}
