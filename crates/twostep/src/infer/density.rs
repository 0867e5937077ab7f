//! The I-posterior as a density of the parameters in natural units, for those who look at it or sample it themselves.

use super::propagation::{Method, PointEstimate};
use super::{Engine, InferSpec, Likelihoods, Prepared, Target, Workspace, engine_grid};
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::prior::Prior;
use rayon::prelude::*;

/// `log p(x | y)` by one method: x are the unknowns, then the unknown sds.
pub struct Density {
    prior: Prior,
    likelihoods: Likelihoods,
    method: Method,
    estimate: PointEstimate,
    log_offsets: Vec<f64>,
    log_evidence: f64,
}

impl Density {
    /// Unknowns and unknown sds with their priors.
    pub fn prior(&self) -> &Prior {
        &self.prior
    }

    /// The log density at `x`, minus infinity outside the support; overwrites `gradient`, with zeros there.
    pub fn score(&self, x: &[f64], gradient: &mut [f64]) -> f64 {
        gradient.fill(0.0);
        let log_prior = self.prior.log_density(x);
        if log_prior == f64::NEG_INFINITY {
            return log_prior;
        }
        let propagation = self.method.propagation(self.estimate);
        let mut target = Target::new(&self.likelihoods, &self.prior, &*propagation, &self.log_offsets);
        let log_likelihood = target.log_likelihood(x, gradient);
        for ((slope, marginal), &x) in gradient.iter_mut().zip(self.prior.marginals()).zip(x) {
            *slope += marginal.score(x).1;
        }
        log_prior + log_likelihood - self.log_evidence
    }
}

/// T-draws that one evaluation of a pooled density may take where thousands are asked for.
const FEW_T_DRAWS: usize = 64;

impl Prepared {
    /// The log density of the I-posterior by `method` at each of `draws`, up to a constant. Where each has a T-draw, and the method
    /// is a mixture over them, that of its component: prior times the likelihood under that T-draw. None where the density
    /// pools so many T-draws that thousands of values would take seconds.
    pub fn log_densities(
        &self,
        spec: &InferSpec,
        method: Method,
        draws: &[Vec<f64>],
        t_draws: Option<&[usize]>,
    ) -> Option<Vec<f64>> {
        let propagation = method.propagation(spec.point);
        let n = self.likelihoods.n_unknowns();
        // I-draws of one T-draw together: its likelihood is made once.
        let mut groups: Vec<(Option<usize>, Vec<usize>)> = Vec::new();
        match t_draws.filter(|_| method.is_mixture() && !self.is_marginal(method)) {
            Some(own) => {
                let mut of_draw: Vec<Vec<usize>> = vec![Vec::new(); self.draws.n_draws()];
                own.iter().enumerate().for_each(|(k, &s)| of_draw[s].push(k));
                groups.extend(of_draw.into_iter().enumerate().map(|(s, of)| (Some(s), of)));
            }
            None => groups.push((None, (0..draws.len()).collect())),
        }
        let (pooled, log_alpha) = self.reduced(method, &*propagation);
        if groups[0].0.is_none() && (method.is_weighted() || pooled.n_draws() > FEW_T_DRAWS) {
            return None;
        }
        let of_group = |(s, members): &(Option<usize>, Vec<usize>)| -> Vec<(usize, f64)> {
            let own = s.map(|s| self.likelihoods.select(&[s]));
            let (likelihoods, alpha) = own.as_ref().map_or((&pooled, &log_alpha[..]), |own| (own, &[0.0][..]));
            let (mut workspace, mut l) = (Workspace::default(), vec![0.0; alpha.len()]);
            let mut at = |x: &[f64]| {
                likelihoods.set_unknowns(&x[..n], &mut workspace);
                likelihoods.log_likelihoods(&x[n..], &workspace, &mut l);
                self.prior.log_density(x) + if s.is_some() { l[0] } else { propagation.pool(alpha, &mut l) }
            };
            members.iter().map(|&k| (k, at(&draws[k]))).collect()
        };
        let mut out = vec![f64::NAN; draws.len()];
        for (k, value) in groups.par_iter().filter(|g| !g.1.is_empty()).flat_map_iter(of_group).collect::<Vec<_>>() {
            out[k] = value;
        }
        Some(out)
    }

    /// The I-posterior by `method`, divided by its evidence where `log_evidence` gives one. E-Post, which is a mean of
    /// normalised posteriors, computes the evidence of every T-draw first and needs none.
    ///
    /// # Errors
    /// E-Post on an engine that does not know those evidences well, or an interruption.
    pub fn density(
        &self,
        spec: &InferSpec,
        method: Method,
        log_evidence: Option<f64>,
        monitor: &dyn Monitor,
    ) -> Result<Density> {
        let propagation = method.propagation(spec.point);
        let (likelihoods, mut log_offsets) = self.reduced(method, &*propagation);
        if method.is_weighted() {
            if self.engine(spec) != Engine::Grid {
                let name = method.name();
                return Err(Error::invalid(
                    "--method",
                    format!("the density of {name} needs the evidence of every T-draw, which only the grid knows well"),
                    "use another method, or engine = \"grid\" with up to three unknowns",
                ));
            }
            let log_evidence = engine_grid::log_evidences(self, spec, monitor)?;
            log_offsets = propagation.mix(&log_offsets, &log_evidence).unwrap_or(log_offsets);
            for (offset, z) in log_offsets.iter_mut().zip(log_evidence) {
                // A draw that the measurements exclude has no posterior.
                *offset = if z.is_finite() { *offset - z } else { f64::NEG_INFINITY };
            }
        }
        Ok(Density {
            prior: self.prior.clone(),
            likelihoods,
            method,
            estimate: spec.point,
            log_offsets,
            log_evidence: log_evidence.filter(|_| !method.is_weighted()).unwrap_or(0.0),
        })
    }
}
