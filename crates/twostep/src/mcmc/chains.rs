//! NUTS chains started blind from the prior, and a check that notices the modes they did not visit.

use super::nuts::{self, Chain, Metric};
use super::{Bayes, LogDensity, Posterior, diagnostics, smc};
use crate::error::{Error, Result};
use crate::monitor::Proceed;
use crate::special::log_sum_exp;
use crate::stream::Stream;
use rayon::prelude::*;

/// Prior draws tried before a density is given up as zero everywhere.
const MAX_STARTS: usize = 1000;

/// Runs `n_chains` chains in parallel, each from its own draw of the prior; with a metric given only the step size is adapted.
///
/// # Errors
/// No start with positive density was found, or `proceed` says no.
pub fn sample<T: Bayes + Clone + Send + Sync>(
    target: &T,
    settings: &nuts::Settings,
    n_chains: usize,
    metric: Option<&Metric>,
    stream: Stream,
    proceed: Proceed<'_>,
) -> Result<Vec<Chain>> {
    (0..n_chains)
        .into_par_iter()
        .map(|chain| {
            let mut density = Posterior::new(target.clone());
            let stream = stream.at(chain as u64);
            let start = start(&mut density, stream.named("start"))?;
            let mut rng = stream.named("chain").rng();
            match metric {
                None => nuts::sample(&mut density, &start, settings, &mut rng, proceed),
                Some(metric) => nuts::sample_with(&mut density, &start, metric, settings, &mut rng, proceed),
            }
        })
        .collect()
}

/// Runs a chain from each of the starts, with a given metric; from a draw of the prior where a start has no density.
///
/// # Errors
/// As [`sample`].
pub fn sample_from<T: Bayes + Clone + Send + Sync>(
    target: &T,
    settings: &nuts::Settings,
    starts: &[Vec<f64>],
    metric: &Metric,
    stream: Stream,
    proceed: Proceed<'_>,
) -> Result<Vec<Chain>> {
    starts
        .par_iter()
        .enumerate()
        .map(|(chain, own)| {
            let mut density = Posterior::new(target.clone());
            let stream = stream.at(chain as u64);
            let mut gradient = vec![0.0; own.len()];
            let is_usable =
                density.log_density(own, &mut gradient).is_finite() && gradient.iter().all(|g| g.is_finite());
            let start = if is_usable { own.clone() } else { start(&mut density, stream.named("start"))? };
            nuts::sample_with(&mut density, &start, metric, settings, &mut stream.named("chain").rng(), proceed)
        })
        .collect()
}

/// A draw of the prior that has a positive density.
pub(super) fn start<T: Bayes>(density: &mut Posterior<T>, stream: Stream) -> Result<Vec<f64>> {
    let mut rng = stream.rng();
    let (mut z, mut gradient) = (vec![0.0; density.dim()], vec![0.0; density.dim()]);
    for _ in 0..MAX_STARTS {
        density.sample_prior(&mut rng, &mut z);
        if density.log_density(&z, &mut gradient).is_finite() && gradient.iter().all(|g| g.is_finite()) {
            return Ok(z);
        }
    }
    Err(Error::failed(
        "sampling",
        format!("none of {MAX_STARTS} draws from the prior has a positive density"),
        "check the measurements' units and the noise, or narrow the prior",
    ))
}

/// How the chains differ from tempered runs that started everywhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Overlooked {
    /// Index of the coordinate that differs most.
    pub coordinate: usize,
    /// Share of the posterior that lies outside everything the chains visited.
    pub share_unvisited: f64,
    /// Difference of the means, in sds of the tempered runs.
    pub mean_gap: f64,
    /// Sd of the chains over sd of the tempered runs.
    pub sd_ratio: f64,
}

/// What tempered runs from the prior say about chains.
pub struct Check {
    /// The runs.
    pub runs: Vec<smc::Population>,
    /// Whether the runs agree among themselves; otherwise they cannot judge.
    pub agree: bool,
    /// What the chains overlooked, in the judgement of runs that agree.
    pub overlooked: Option<Overlooked>,
}

impl Check {
    /// `n` draws of the runs, which count by their evidence.
    pub fn draws(&self, n: usize, stream: Stream) -> Vec<&[f64]> {
        let total = log_sum_exp(&self.runs.iter().map(|r| r.log_evidence).collect::<Vec<_>>());
        let weight = |r: &smc::Population| (r.log_evidence - total).exp() / r.draws.len() as f64;
        let weights: Vec<f64> = self.runs.iter().flat_map(|r| vec![weight(r); r.draws.len()]).collect();
        let all: Vec<&[f64]> = self.runs.iter().flat_map(|r| r.draws.iter().map(Vec::as_slice)).collect();
        smc::systematic(&weights, n, &mut stream.rng()).map(|i| all[i]).collect()
    }
}

/// Compares the draws of chains with sequential Monte Carlo from the prior, which visits every mode.
///
/// A standard R-hat does not see a mode that no chain has visited; this does.
///
/// # Errors
/// Those of [`smc::sample`].
pub fn check<T: Bayes + Clone + Send + Sync>(
    target: &T,
    chains: &[&[Vec<f64>]],
    stream: Stream,
    proceed: Proceed<'_>,
) -> Result<Check> {
    const RUNS: usize = 8;
    let settings = smc::Settings { particles: 512, ..smc::Settings::default() };
    let runs: Vec<smc::Population> = (0..RUNS)
        .into_par_iter()
        .map(|run| smc::sample(&mut target.clone(), &settings, stream.at(run as u64), proceed))
        .collect::<Result<_>>()?;
    let mut worst: Option<Overlooked> = None;
    for d in 0..target.dim() {
        let islands: Vec<Vec<f64>> = runs.iter().map(|r| r.draws.iter().map(|z| z[d]).collect()).collect();
        if diagnostics::r_hat(&islands) > 1.05 {
            return Ok(Check { runs, agree: false, overlooked: None });
        }
        let visited: Vec<Vec<f64>> = chains.iter().map(|draws| draws.iter().map(|z| z[d]).collect()).collect();
        let (tempered_mean, tempered_sd, tempered_error) = island_moments(&islands);
        let (mean, sd, _) = island_moments(&visited);
        let error = tempered_error.hypot(diagnostics::mcse_mean(&visited));
        let (low, high) =
            visited.iter().flatten().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), &x| (l.min(x), h.max(x)));
        let outside = islands.iter().flatten().filter(|&&x| x < low || x > high).count();
        let total: usize = islands.iter().map(Vec::len).sum();
        let found = Overlooked {
            coordinate: d,
            share_unvisited: outside as f64 / total as f64,
            mean_gap: (mean - tempered_mean) / tempered_sd,
            sd_ratio: sd / tempered_sd,
        };
        // Of n effective draws about 1 in n falls outside the range of as many others: four such counts are allowed.
        let n = diagnostics::ess_bulk(&visited).max(100.0);
        let unvisited = found.share_unvisited > 4.0 / n + 4.0 * (found.share_unvisited / total as f64).sqrt();
        // Five standard errors, and large enough to change a reported digit.
        let shifted = (mean - tempered_mean).abs() > (5.0 * error).max(0.1 * tempered_sd);
        // The error of an sd is that of a mean of squares: about 1/sqrt(2 n), more with heavy tails.
        let ratio_error = sd_error(&islands).hypot(diagnostics::mcse_sd(&visited) / sd);
        let rescaled = found.sd_ratio.ln().abs() > (5.0 * ratio_error).max(0.15);
        let badness = |o: &Overlooked| o.share_unvisited + o.mean_gap.abs() + o.sd_ratio.ln().abs();
        if (unvisited || shifted || rescaled) && worst.as_ref().is_none_or(|w| badness(&found) > badness(w)) {
            worst = Some(found);
        }
    }
    Ok(Check { runs, agree: true, overlooked: worst })
}

/// Pooled mean and sd of runs of equal length, and the standard error of the mean from the spread between runs, not below
/// that of independent draws.
fn island_moments(runs: &[Vec<f64>]) -> (f64, f64, f64) {
    let n: usize = runs.iter().map(Vec::len).sum();
    let mean = runs.iter().flatten().sum::<f64>() / n as f64;
    let variance = runs.iter().flatten().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
    let means: Vec<f64> = runs.iter().map(|r| r.iter().sum::<f64>() / r.len() as f64).collect();
    let between = means.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / (runs.len().max(2) - 1) as f64;
    (mean, variance.sqrt(), (between / runs.len() as f64).max(variance / n as f64).sqrt())
}

/// Relative standard error of the pooled sd, from the spread between runs.
fn sd_error(runs: &[Vec<f64>]) -> f64 {
    let log_sds: Vec<f64> = runs.iter().map(|r| island_moments(std::slice::from_ref(r)).1.ln()).collect();
    let mean = log_sds.iter().sum::<f64>() / runs.len() as f64;
    let between = log_sds.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (runs.len().max(2) - 1) as f64;
    (between / runs.len() as f64).sqrt()
}
