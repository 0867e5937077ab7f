//! The T-step by a normal approximation, of Laplace or Pathfinder, and importance weights that say whether to trust it.

use super::density::TDensity;
use super::gp::RELIABLE;
use super::{Block, Fit, ImportanceReport, T_DRAWS, TrainMethod, TrainSpec};
use crate::error::{Error, Result};
use crate::mcmc::approximate::{self, Approximation, Resampled, STARTS};
use crate::monitor::{Monitor, counting};
use crate::stream::Stream;

impl Fit<'_> {
    /// Draws of the T-posterior resampled from those of its normal approximation.
    pub(super) fn approximated(&self, spec: &TrainSpec, stream: Stream, monitor: &dyn Monitor) -> Result<Block> {
        let density = TDensity::new(self.surrogate.clone(), self.rows, self.sigma_a);
        let is_laplace = spec.method == TrainMethod::Laplace;
        let stream = stream.named(if is_laplace { "laplace" } else { "pathfinder" });
        let made = |approximation: Approximation<TDensity>| {
            let proceed = counting(monitor, T_DRAWS, Approximation::<TDensity>::proposals(spec.draws));
            Ok((approximation.normals(), approximation.draws(spec.draws, stream.named("draws"), &proceed)?))
        };
        let proceed = &|| monitor.proceed();
        let found = if is_laplace {
            approximate::laplace(&density, stream, proceed)
        } else {
            approximate::pathfinder(&density, stream, proceed)
        };
        let (normals, Resampled { draws, k_hat, effective }) = found.and_then(made).map_err(|error| match error {
            Error::Failed { problem, .. } => Error::failed(
                format!("T-step of `{}`", self.name),
                problem,
                "check the formula and the priors of its parameters, or use train.method = \"auto\", which needs no normal approximation",
            ),
            error => error,
        })?;
        let columns: Vec<Vec<f64>> = draws.iter().map(|z| density.natural(z)).collect();
        let mut block = self.block(if is_laplace { "laplace" } else { "pathfinder" }, &columns);
        // Weights that all agree have no tail.
        block.report.importance = Some(ImportanceReport { k_hat: k_hat.max(0.0), effective, normals });
        block.report.troubled = k_hat > RELIABLE;
        if k_hat <= RELIABLE && effective < 0.5 * spec.draws as f64 {
            block.report.warnings.push(format!(
                "T-step of `{}`: the normal approximation fits the T-posterior badly enough that draws repeat: {} are worth {effective:.0}; raise \
                 train.draws, or use train.method = \"auto\"",
                self.name, spec.draws
            ));
        }
        if is_laplace && normals > 1 {
            block.report.warnings.push(format!(
                "T-step of `{}`: the T-posterior has {normals} modes, and the draws are of a mixture of normals around these; modes to which none \
                 of the {STARTS} paths led are missed, so compare with train.method = \"auto\"",
                self.name
            ));
        }
        Ok(block)
    }
}
