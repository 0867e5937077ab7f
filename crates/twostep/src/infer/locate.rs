//! Where true values lie in I-posteriors, at the least cost: what calibration asks thousands of times.

use super::propagation::Method;
use super::{Clusters, Diagnostics, Engine, IPosterior, InferSpec, Prepared, engine_exact, engine_grid, infer};
use crate::error::{Error, Result};
use crate::monitor::Monitor;
use crate::stream::Stream;
use rand::RngExt;

/// Most draws that a value is ranked among: with 99 of them ranks fill 100 bins evenly, and more would not be seen by fewer
/// than thousands of trials.
const MOST_RANKED: usize = 99;

/// Where a true value lies in its posterior.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Posterior probability below the value: known from mixtures and grids, [`rank`]'s from draws.
    pub pit: f64,
    /// Posterior probability below the value by all draws, which is what intervals go by; from a grid the same.
    pub below: f64,
    /// Number of draws below the value, and how many were ranked.
    pub rank: Option<(usize, usize)>,
    /// 5 % quantile of the posterior.
    pub q05: f64,
    /// 95 % quantile.
    pub q95: f64,
}

/// One method's posterior as seen from the truth.
#[derive(Clone, Debug, PartialEq)]
pub struct Located {
    /// The method.
    pub method: Method,
    /// The engine that computed it.
    pub engine: Engine,
    /// The place of each value that was given.
    pub places: Vec<Option<Place>>,
    /// What the engine knows about itself.
    pub diagnostics: Diagnostics,
}

/// Locates `truth`, whose values stand in the order of [`Prepared::prior`] where they are known, in the posterior by every
/// method of `spec`, in their order.
///
/// A method's result does not depend on which others are asked for. It is that of all T-draws where `clusters = "auto"` approximates
/// it: a trial needs no draws, and errors of another kind in each trial would be taken for the method's.
///
/// # Errors
/// Those of the engine, or an interruption.
pub fn locate(
    prepared: &Prepared,
    spec: &InferSpec,
    truth: &[Option<f64>],
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<Vec<Located>> {
    let mut out = Vec::new();
    let all = InferSpec { clusters: Clusters::None, ..spec.clone() };
    for part in prepared.by_engine(&all) {
        out.extend(locate_part(prepared, &part, truth, stream, monitor)?);
    }
    out.sort_by_key(|located: &Located| spec.methods.iter().position(|method| *method == located.method));
    Ok(out)
}

/// As [`locate`], by one engine.
fn locate_part(
    prepared: &Prepared,
    spec: &InferSpec,
    truth: &[Option<f64>],
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<Vec<Located>> {
    let engine = spec.engine;
    // A surrogate that failed on the way has asked to stop.
    let unless_stopped = |located| if monitor.proceed() { Ok(located) } else { Err(Error::Interrupted) };
    match engine {
        Engine::Exact => return engine_exact::locate(prepared, spec, truth, monitor),
        Engine::Grid => return engine_grid::locate(prepared, spec, truth, monitor).and_then(unless_stopped),
        Engine::Auto | Engine::Smc | Engine::Nuts => {}
    }
    let posteriors = infer(prepared, spec, stream, monitor)?;
    let located = posteriors.into_iter().zip(&spec.methods).map(|(posterior, &method)| {
        let places = truth.iter().enumerate().map(|(d, truth)| {
            truth.map(|truth| {
                let stream = stream.named("rank").named(method.name()).at(d as u64);
                place(&posterior, d, truth, stream)
            })
        });
        Located { method, engine, places: places.collect(), diagnostics: posterior.diagnostics.clone() }
    });
    Ok(located.collect())
}

fn place(posterior: &IPosterior, d: usize, truth: f64, stream: Stream) -> Place {
    let summary = &posterior.unknowns[d];
    let values: Vec<f64> = posterior.draws.iter().map(|x| x[d]).collect();
    // Draws that cannot be judged are worth nothing.
    let worth = |ess: Option<f64>| ess.map_or(f64::INFINITY, |ess| if ess.is_nan() { 0.0 } else { ess });
    let effective = worth(summary.ess_bulk).min(worth(summary.ess_tail));
    let (rank, ranked, pit) = rank(&values, effective, truth, stream);
    let below = values.iter().filter(|value| **value < truth).count() as f64 / values.len() as f64;
    Place { pit, below, rank: Some((rank, ranked)), q05: summary.q05, q95: summary.q95 }
}

/// The rank of `truth` among as many evenly spaced `draws` as are worth independent ones, 99 at most: draws below it, draws
/// ranked, and `(rank + U) / (ranked + 1)` with U uniform, which is uniform on the unit interval where the rank is uniform.
///
/// Ranks among all of autocorrelated draws would pile up at both ends.
pub fn rank(draws: &[f64], effective: f64, truth: f64, stream: Stream) -> (usize, usize, f64) {
    // Particles may be repeated.
    let mut distinct: Vec<u64> = draws.iter().map(|x| x.to_bits()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let ranked = (effective as usize).min(distinct.len()).clamp(1, MOST_RANKED);
    let mut rng = stream.rng();
    let offset = rng.random::<f64>();
    let picked = |k: usize| draws[((k as f64 + offset) * draws.len() as f64 / ranked as f64) as usize % draws.len()];
    let rank = (0..ranked).filter(|&k| picked(k) < truth).count();
    (rank, ranked, (rank as f64 + rng.random::<f64>()) / (ranked + 1) as f64)
}
