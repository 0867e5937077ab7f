//! The I-posterior as a density of the parameters in natural units, for those who look at it or sample it themselves.

use super::propagation::{Method, PointEstimate};
use super::{Engine, InferSpec, Likelihoods, Prepared, Target, engine_grid};
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::prior::Prior;

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

impl Prepared {
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
        if method == Method::EPost {
            if self.engine(spec) != Engine::Grid {
                return Err(Error::invalid(
                    "--method",
                    "the density of e-post needs the evidence of every T-draw, which only the grid knows well",
                    "use another method, or engine = \"grid\" with up to three unknowns",
                ));
            }
            for (offset, z) in log_offsets.iter_mut().zip(engine_grid::log_evidences(self, spec, monitor)?) {
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
            log_evidence: log_evidence.filter(|_| method != Method::EPost).unwrap_or(0.0),
        })
    }
}
