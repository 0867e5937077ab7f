//! I-posteriors by NUTS, the paper's sampler: chains from the prior, E-Post by fits of as many T-draws as make all others known,
//! and a check for modes that no chain visited.

use super::clusters::Proposal;
use super::evidence::shares;
use super::fit::{Fit, FitSink};
use super::propagation::Method;
use super::reweight::{self, Points, Table};
use super::summary::{QuantitySummary, Replicated, Unit};
use super::target::Target;
use super::{Diagnostics, Fits, IPosterior, InferSpec, Prepared, favoured, per_draw};
use crate::error::{Error, Result};
use crate::kernels;
use crate::mcmc::nuts::{self, Chain, Metric, draws_of};
use crate::mcmc::{chains, diagnostics};
use crate::monitor::{Monitor, Proceed, counting};
use crate::stream::Stream;
use crate::train::PROBABILITIES;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Warm-up of a fit that begins where its neighbour's chains ended, with their metric: only the step size is adapted.
const TRANSFERRED_WARMUP: usize = 50;
/// The share of the full warm-up that chains from the prior have where the metric is known: they must still find the posterior, and with
/// only [`TRANSFERRED_WARMUP`] one chain in a hundred was on its way.
const BLIND_SHARE: usize = 4;
/// Fits of E-Post whose modes are checked.
const CHECKED_FITS: usize = 16;

pub(super) fn infer(
    prepared: &Prepared,
    spec: &InferSpec,
    method: Method,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<IPosterior> {
    let refused = |found: String| Error::invalid("infer.engine", found, "use \"auto\", \"grid\" or \"smc\"");
    if method.is_weighted() && method != Method::EPost {
        return Err(refused(format!("{} needs the evidence of every T-draw, which NUTS does not know", method.name())));
    }
    if !method.propagation(spec.point).has_gradient() {
        return Err(refused(format!("{} has no pool_gradient, which NUTS needs", method.name())));
    }
    let sample = if per_draw(&*method.propagation(spec.point)) { fits } else { pooled };
    sample(prepared, spec, method, stream, monitor)
}

fn overlooked_sentence(prepared: &Prepared, method: &str, found: &chains::Overlooked) -> String {
    format!(
        "{method}: NUTS OVERLOOKED PART OF THE POSTERIOR along {}: {:.0} % of it lies outside what the chains visited, their \
         mean is off by {:.1} sd and their sd {:.2} times the right one; do not use this result, use engine = \"grid\" or \"smc\"",
        prepared.prior.names()[found.coordinate],
        100.0 * found.share_unvisited,
        found.mean_gap,
        found.sd_ratio
    )
}

fn pooled(
    prepared: &Prepared,
    spec: &InferSpec,
    method: Method,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<IPosterior> {
    let proceed = || monitor.proceed();
    let propagation = method.propagation(spec.point);
    let (likelihoods, log_alpha) = prepared.reduced(method, &*propagation);
    let target = Target::new(&likelihoods, &prepared.prior, &*propagation, &log_alpha);
    let settings = nuts::Settings { warmup: spec.nuts.warmup, draws: spec.nuts.draws, ..nuts::Settings::default() };
    let counted = counting(monitor, method.name(), spec.nuts.chains * (settings.warmup + settings.draws));
    let chains = chains::sample(&target, &settings, spec.nuts.chains, None, stream.named("chains"), &counted)?;
    let overlooked =
        chains::check(&target.clone().cheap(), &draws_of(&chains), stream.named("check"), &proceed)?.overlooked;
    let replicated = Replicated {
        units: vec![Unit::equal(1.0, chains.iter().map(|c| natural_draws(prepared, &c.draws)).collect())],
    };
    let unknowns: Vec<QuantitySummary> = prepared
        .quantities()
        .iter()
        .map(|(name, f)| {
            let mut out = replicated.summary(name, &**f);
            let values = replicated.chains(0, &**f);
            out.mcse_mean = Some(diagnostics::mcse_mean(&values));
            out.mcse_sd = Some(diagnostics::mcse_sd(&values));
            out.mcse_quantiles = Some(PROBABILITIES.map(|p| diagnostics::mcse_quantile(&values, p)));
            out.ess_bulk = Some(diagnostics::ess_bulk(&values));
            out.ess_tail = Some(diagnostics::ess_tail(&values));
            out.r_hat = Some(diagnostics::r_hat(&values));
            out
        })
        .collect();
    let worst = unknowns.iter().filter_map(|u| u.r_hat).fold(1.0, f64::max);
    let effective = unknowns.iter().filter_map(|u| u.ess_bulk).fold(f64::INFINITY, f64::min);
    let mut info = Diagnostics {
        divergences: Some(chains.iter().map(Chain::divergences).sum()),
        e_bfmi: Some(chains.iter().map(|c| diagnostics::e_bfmi(&c.energy())).fold(f64::INFINITY, f64::min)),
        max_r_hat: Some(worst),
        evaluations: chains.iter().map(|c| c.gradients as usize).sum(),
        likelihood_evaluations: chains.iter().map(|c| c.gradients as usize * likelihoods.n_draws()).sum(),
        ..Diagnostics::default()
    };
    let mut warnings = Vec::new();
    if let Some(found) = &overlooked {
        warnings.push(overlooked_sentence(prepared, method.name(), found));
    }
    if worst > 1.01 {
        warnings.push(format!(
            "{}: R-hat is {worst:.2}: the chains disagree, most likely because the posterior has several modes; use engine = \
             \"grid\" or \"smc\"",
            method.name()
        ));
    }
    if effective < 400.0 {
        warnings.push(format!("{}: only {effective:.0} effective draws; lengthen infer.nuts.draws", method.name()));
    }
    if info.divergences.unwrap_or(0) > 0 {
        warnings.push(format!(
            "{}: {} divergent transitions: part of the posterior is too steep for NUTS, use engine = \"grid\" or \"smc\"",
            method.name(),
            info.divergences.unwrap_or(0)
        ));
    }
    if info.e_bfmi.is_some_and(|e| e < 0.3) {
        warnings.push(format!(
            "{}: E-BFMI below 0.3: the tails are explored slowly, distrust the outer quantiles",
            method.name()
        ));
    }
    let kept = kept(&draws_of(&chains), spec.draws);
    let draws: Vec<Vec<f64>> = kept.iter().map(|&(c, i)| prepared.natural(&chains[c].draws[i])).collect();
    let transitions = kept.iter().map(|&(c, i)| chains[c].transitions[i]).collect();
    let mut t_draws = None;
    let mut trust = format!("nuts, {} chains, R-hat {worst:.2}; {effective:.0} effective draws", chains.len());
    if method == Method::ELik && log_alpha.len() > 1 && !prepared.is_marginal(method) {
        let log_shares: Vec<f64> = shares(&likelihoods, &draws, &log_alpha).iter().map(|w| w.ln()).collect();
        prepared.note_shares(&log_shares, &log_alpha, &mut info);
        trust += &info.evidence_agreement.map_or_else(String::new, favoured);
        t_draws = Some(prepared.assign(&draws, &log_alpha, stream.named("t-draws")));
    }
    if overlooked.is_some() {
        trust = "DO NOT USE: NUTS overlooked part of the posterior".into();
    }
    Ok(IPosterior {
        method: method.name().into(),
        version: None,
        engine: "nuts".into(),
        unknowns,
        trust,
        diagnostics: info,
        warnings,
        draws,
        t_draws,
        chains: chains.len(),
        transitions: Some(transitions),
    })
}

/// Stretches of a chain that are taken for independent: each is many times as long as the chain remembers.
const STRETCHES: usize = 8;

/// E-Lik under clusters as a proposal for all T-draws; none where the chains disagree or overlooked part of it.
pub(super) fn propose<T>(
    clustered: &Prepared,
    spec: &InferSpec,
    stream: Stream,
    monitor: &dyn Monitor,
    judge: &mut dyn FnMut(&Proposal<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let proceed = || monitor.proceed();
    let propagation = Method::ELik.propagation(spec.point);
    let (likelihoods, log_alpha) = (&clustered.likelihoods, clustered.log_alpha());
    let target = Target::new(likelihoods, &clustered.prior, &*propagation, log_alpha);
    let sample = |draws: usize, stream: Stream| {
        let settings = nuts::Settings { warmup: spec.nuts.warmup, draws, ..nuts::Settings::default() };
        chains::sample(&target, &settings, spec.nuts.chains, None, stream, &proceed)
    };
    let base = sample(spec.nuts.draws, stream.named("chains"))?;
    let worst = |chains: &[Chain]| {
        let of = |d: usize| diagnostics::r_hat(&chains.iter().map(|c| c.coordinate(d)).collect::<Vec<_>>());
        (0..clustered.prior.len()).map(of).fold(1.0, |m: f64, r| if r.is_nan() { f64::INFINITY } else { m.max(r) })
    };
    let check = chains::check(&target.clone().cheap(), &draws_of(&base), stream.named("check"), &proceed)?;
    if worst(&base) > 1.01 || check.overlooked.is_some() {
        return Ok(None);
    }
    let gradients = |chains: &[Chain]| chains.iter().map(|c| c.gradients as usize).sum::<usize>();
    let first = base.iter().map(|c| c.draws.len()).sum();
    let draw = |n: usize, stream: Stream| {
        let longer = if n > first { sample(n.div_ceil(base.len()), stream)? } else { Vec::new() };
        let chains = if longer.is_empty() { &base } else { &longer };
        let (mut x, mut log_v, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        let (mut workspace, mut l) = (super::Workspace::default(), vec![0.0; log_alpha.len()]);
        let n_unknowns = likelihoods.n_unknowns();
        for chain in chains {
            let n = chain.draws.len();
            lengths.extend((0..STRETCHES).map(|k| (k + 1) * n / STRETCHES - k * n / STRETCHES));
            for point in natural_draws(clustered, &chain.draws) {
                likelihoods.set_unknowns(&point[..n_unknowns], &mut workspace);
                likelihoods.log_likelihoods(&point[n_unknowns..], &workspace, &mut l);
                log_v.push(-kernels::log_mean_exp_weights(log_alpha, &mut l));
                x.push(point);
            }
        }
        Ok((Points { x, log_v, runs: vec![lengths] }, gradients(&longer)))
    };
    let evaluations = gradients(&base);
    judge(&Proposal { draw: &draw, evaluations, on_all: evaluations, first }).map(Some)
}

/// Chain and place of at most `n` draws, but one of each chain at least: chain after chain, as many of each, evenly spaced.
fn kept(chains: &[&[Vec<f64>]], n: usize) -> Vec<(usize, usize)> {
    let of_each = |length: usize| (n / chains.len()).clamp(1, length);
    let places = |length: usize| (0..of_each(length)).map(move |k| k * length / of_each(length));
    chains.iter().enumerate().flat_map(|(c, draws)| places(draws.len()).map(move |i| (c, i))).collect()
}

fn natural_draws(prepared: &Prepared, draws: &[Vec<f64>]) -> Vec<Vec<f64>> {
    draws.iter().map(|z| prepared.natural(z)).collect()
}

/// What fits of single T-draws have in common.
struct Fitter<'a> {
    prepared: &'a Prepared,
    spec: &'a InferSpec,
    method: Method,
    stream: Stream,
    monitor: &'a dyn Monitor,
}

impl Fitter<'_> {
    /// `f(target, settings, proceed)` of one T-draw.
    fn with_target<R>(
        &self,
        s: usize,
        warmup: usize,
        f: impl FnOnce(&Target<'_>, &nuts::Settings, Stream, Proceed<'_>) -> R,
    ) -> R {
        let propagation = self.method.propagation(self.spec.point);
        let own = self.prepared.likelihoods.select(&[s]);
        let target = Target::new(&own, &self.prepared.prior, &*propagation, &[0.0]);
        let settings = nuts::Settings {
            warmup,
            // The paper's length of an E-Post chain: the fits together have many draws.
            draws: self.spec.nuts.draws.min(250),
            ..nuts::Settings::default()
        };
        f(&target, &settings, self.stream.named("fits").at(s as u64), &|| self.monitor.proceed())
    }

    /// Chains from the prior.
    fn blind(&self, s: usize, metric: Option<&Metric>) -> Result<Fit> {
        let n_chains = self.spec.nuts.chains;
        let warmup = self.spec.nuts.warmup;
        let warmup = if metric.is_some() { warmup / BLIND_SHARE } else { warmup };
        let chains = self.with_target(s, warmup.max(TRANSFERRED_WARMUP), |target, settings, stream, proceed| {
            chains::sample(target, settings, n_chains, metric, stream, proceed)
        })?;
        Ok(Fit::new(s, chains))
    }

    /// Chains from where those of a neighbour ended, with its metric.
    fn beside(&self, s: usize, neighbour: &Fit) -> Result<Fit> {
        let ends: Vec<Vec<f64>> = neighbour.chains.iter().filter_map(|draws| draws.last().cloned()).collect();
        let all: Vec<Vec<f64>> = neighbour.chains.iter().flatten().cloned().collect();
        let metric = Metric::from_draws(&all);
        let chains = self.with_target(s, TRANSFERRED_WARMUP, |target, settings, stream, proceed| {
            chains::sample_from(target, settings, &ends, &metric, stream, proceed)
        })?;
        Ok(Fit::new(s, chains))
    }

    /// Blind fits of some of these T-draws, as they are made by one who makes all: the first of all adapts in full, the others take
    /// its metric.
    fn some_blind(
        &self,
        all: &[usize],
        some: &[usize],
        keep: &(dyn Fn(&Fit) -> Result<()> + Sync),
    ) -> Result<Vec<Fit>> {
        if some.is_empty() {
            return Ok(Vec::new());
        }
        let first = self.blind(all[0], None)?;
        let metric = Metric::from_draws(&first.chains[0]);
        let finished = AtomicUsize::new(0);
        some.par_iter()
            .map(|&s| {
                let fit = self.blind(s, Some(&metric))?;
                keep(&fit)?;
                self.progress(&finished, some.len());
                Ok(fit)
            })
            .collect()
    }

    /// Blind fits.
    fn all_blind(&self, draws: &[usize]) -> Result<Vec<Fit>> {
        self.some_blind(draws, draws, &|_| Ok(()))
    }

    fn progress(&self, finished: &AtomicUsize, total: usize) {
        self.monitor.progress(self.method.name(), finished.fetch_add(1, Ordering::Relaxed) + 1, total);
    }
}

/// T-draws that are fitted first, spread over the T-posterior.
const PILOTS: usize = 24;
/// Draws of each fit by which it is judged what else must be fitted, and of all fits together; and of those for the answer.
const JUDGED: usize = 200;
const MOST_JUDGED: usize = 1 << 14;
const MOST_POOLED: usize = 1 << 15;
/// Effective points that a T-draw needs of the fits of others.
const COVERED: f64 = 100.0;

/// E-Post: the mean of the posteriors of all T-draws, from fits of all or of as many as it takes.
fn fits(
    prepared: &Prepared,
    spec: &InferSpec,
    method: Method,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<IPosterior> {
    let fitter = Fitter { prepared, spec, method, stream, monitor };
    let numbered = fitted_draws(prepared);
    match spec.nuts.fits {
        Fits::Needed if numbered.len() > 2 * PILOTS => needed_fits(&fitter),
        _ => all_fits(&fitter, &numbered),
    }
}

/// T-draws that have a posterior in E-Post.
pub(super) fn fitted_draws(prepared: &Prepared) -> Vec<usize> {
    (0..prepared.log_alpha().len()).filter(|&s| prepared.log_alpha()[s].exp() > 0.0).collect()
}

/// Makes the fits of some T-draws, as [`infer`] makes them where it makes all; each is given to `sink`.
pub(super) fn make_fits(
    prepared: &Prepared,
    spec: &InferSpec,
    stream: Stream,
    some: &[usize],
    sink: &dyn FitSink,
    monitor: &dyn Monitor,
) -> Result<()> {
    let fitter = Fitter { prepared, spec, method: Method::EPost, stream, monitor };
    fitter.some_blind(&fitted_draws(prepared), some, &|fit| sink.keep(fit)).map(drop)
}

/// One fit per T-draw; those that are there already are not made.
fn all_fits(fitter: &Fitter<'_>, numbered: &[usize]) -> Result<IPosterior> {
    let Fitter { prepared, spec, stream, .. } = fitter;
    let is_missing = |s: &usize| !prepared.fits.iter().any(|fit| fit.t_draw == *s);
    let missing: Vec<usize> = numbered.iter().copied().filter(is_missing).collect();
    let mut all = fitter.some_blind(numbered, &missing, &|_| Ok(()))?;
    all.extend(prepared.fits.iter().filter(|fit| numbered.contains(&fit.t_draw)).cloned());
    all.sort_by_key(|fit| fit.t_draw);
    let weight = |fit: &Fit| prepared.log_alpha()[fit.t_draw].exp();
    let natural = |fit: &Fit| fit.chains.iter().map(|draws| natural_draws(prepared, draws)).collect();
    let replicated = Replicated { units: all.iter().map(|fit| Unit::equal(weight(fit), natural(fit))).collect() };
    let unknowns: Vec<QuantitySummary> =
        prepared.quantities().iter().map(|(name, f)| replicated.summary(name, &**f)).collect();
    let (warnings, info) = judged(fitter, &all)?;
    let effective = unknowns.iter().filter_map(|u| u.ess_bulk).fold(f64::INFINITY, f64::min);
    let trust = format!("nuts, {} fits of {} chains; {effective:.0} effective draws", all.len(), spec.nuts.chains);
    let (draws, units) = replicated.thin(spec.draws, stream.named("thin"));
    let t_draws = units.iter().map(|&u| all[u].t_draw).collect();
    Ok(mixed(fitter, unknowns, trust, info, warnings, draws, t_draws))
}

/// Fits of as many T-draws as make the posteriors of all known by importance weights: the pooled draws of the fits are draws of
/// `sum_k n_k p_k / N`, in which relative evidences follow from the draws themselves [Shirts 2008].
fn needed_fits(fitter: &Fitter<'_>) -> Result<IPosterior> {
    let Fitter { prepared, spec, stream, .. } = fitter;
    let n_draws = prepared.likelihoods.n_draws();
    let places = prepared.draw_features();
    let mut all = fitter.all_blind(&prepared.spread_draws(&places, PILOTS, stream.named("pilots")))?;
    let (mut wave, mut tables) = (PILOTS, 0);
    let k_hat = loop {
        let points = pool(prepared, &all, JUDGED.min(MOST_JUDGED / all.len()));
        let covered = reweight::coverage(&prepared.likelihoods, &points);
        tables += points.x.len();
        let limit = reweight::largest_k_hat(points.x.len());
        let is_fitted = |s: usize| all.iter().any(|fit| fit.t_draw == s);
        let is_covered = |s: usize| covered[s].0 < limit && covered[s].1 >= COVERED;
        let others = (0..n_draws).filter(|&s| prepared.log_alpha()[s].is_finite() && !is_fitted(s));
        let (known, mut wanting): (Vec<usize>, Vec<usize>) = others.partition(|&s| is_covered(s));
        if wanting.is_empty() {
            break known.iter().map(|&s| covered[s].0).fold(f64::NEG_INFINITY, f64::max);
        }
        // Those that are covered worst first, twice as many every time: what they bring may cover others.
        wanting.sort_by(|&a, &b| covered[a].1.total_cmp(&covered[b].1));
        wanting.truncate(wave);
        wave *= 2;
        if 2 * (all.len() + wanting.len()) > n_draws {
            // Posteriors that have so little in common are fitted one by one.
            return all_fits(
                fitter,
                &(0..n_draws).filter(|&s| prepared.log_alpha()[s].is_finite()).collect::<Vec<_>>(),
            );
        }
        let finished = AtomicUsize::new(0);
        let distance =
            |a: usize, b: usize| -> f64 { places.row(a).iter().zip(places.row(b)).map(|(a, b)| (a - b).powi(2)).sum() };
        let more: Vec<Fit> = wanting
            .par_iter()
            .map(|&s| {
                let near = all.iter().min_by(|a, b| distance(a.t_draw, s).total_cmp(&distance(b.t_draw, s)));
                let fit = near.map_or_else(|| fitter.blind(s, None), |near| fitter.beside(s, near));
                fitter.progress(&finished, wanting.len());
                fit
            })
            .collect::<Result<_>>()?;
        all.extend(more);
    };
    let points = pool(prepared, &all, MOST_POOLED / all.len());
    let table = Table::new(&prepared.likelihoods, &points, true);
    let (log_evidence, _) = table.evidences();
    let corrected = reweight::correct(prepared, &table, &log_evidence, true);
    let (warnings, mut info) = judged(fitter, &all)?;
    info.likelihood_evaluations += (tables + table.evaluations + 4 * table.pass()) * n_draws;
    let effective = corrected.unknowns.iter().filter_map(|u| u.ess_bulk).fold(f64::INFINITY, f64::min);
    let reliability = if k_hat.is_finite() { format!(" (k-hat {k_hat:.2} at most)") } else { String::new() };
    let trust = format!(
        "nuts, {} fits of {} chains for {n_draws} T-draws{reliability}; {effective:.0} effective draws",
        all.len(),
        spec.nuts.chains
    );
    let draws = corrected.draws(&points, spec.draws, stream.named("thin"));
    let t_draws = prepared.assign(&draws, &corrected.offsets, stream.named("t-draws"));
    Ok(mixed(fitter, corrected.unknowns, trust, info, warnings, draws, t_draws))
}

/// At most `n` draws of each fit as points of the mixture of all fits.
fn pool(prepared: &Prepared, all: &[Fit], n: usize) -> Points {
    let (mut x, mut lengths, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for fit in all {
        let chosen = kept(&fit.draws(), n.min(fit.chains.iter().map(Vec::len).sum()));
        counts.push(chosen.len());
        let of_each = chosen.len() / fit.chains.len();
        lengths.push(vec![of_each; fit.chains.len()]);
        x.extend(chosen.into_iter().map(|(c, i)| prepared.natural(&fit.chains[c][i])));
    }
    let fitted: Vec<usize> = all.iter().map(|fit| fit.t_draw).collect();
    let log_v = reweight::pooled(&prepared.likelihoods.select(&fitted), &x, &counts);
    Points { x, log_v, runs: lengths }
}

/// What fits say about themselves: warnings, and their diagnostics.
fn judged(fitter: &Fitter<'_>, all: &[Fit]) -> Result<(Vec<String>, Diagnostics)> {
    let Fitter { prepared, method, stream, .. } = fitter;
    let worst_of_fit: Vec<f64> = all
        .par_iter()
        .map(|fit| {
            let natural: Vec<Vec<Vec<f64>>> = fit.chains.iter().map(|draws| natural_draws(prepared, draws)).collect();
            let of =
                |d: usize| natural.iter().map(|draws| draws.iter().map(|x| x[d]).collect()).collect::<Vec<Vec<f64>>>();
            (0..prepared.prior.len())
                .map(|d| diagnostics::r_hat(&of(d)))
                .fold(1.0, |m: f64, r| if r.is_nan() { f64::INFINITY } else { m.max(r) })
        })
        .collect();
    let bad = worst_of_fit.iter().filter(|r| **r > 1.05).count();
    // A sample of fits, evenly spaced over the T-draws, stands for all.
    let step = all.len().div_ceil(CHECKED_FITS);
    let mut overlooked: Vec<chains::Overlooked> = Vec::new();
    for (number, fit) in all.iter().enumerate().step_by(step) {
        let check = fitter.with_target(fit.t_draw, TRANSFERRED_WARMUP, |target, _, _, proceed| {
            chains::check(&target.clone().cheap(), &fit.draws(), stream.named("check").at(number as u64), proceed)
        })?;
        overlooked.extend(check.overlooked);
    }
    let checked = all.len().div_ceil(step);
    let mut warnings = Vec::new();
    if let Some(first) = overlooked.first() {
        warnings.push(format!(
            "{} ({} of {checked} fits that were checked)",
            overlooked_sentence(prepared, method.name(), first),
            overlooked.len()
        ));
    }
    // At R-hat > 1.05 by chance alone: short chains of a good fit rarely reach it.
    if bad * 20 > all.len() {
        warnings.push(format!(
            "{}: in {bad} of {} fits the chains disagree (R-hat > 1.05), so modes are weighted by where chains started; use \
             engine = \"grid\" or \"smc\"",
            method.name(),
            all.len()
        ));
    }
    let gradients = all.iter().map(|fit| fit.gradients as usize).sum();
    let info = Diagnostics {
        divergences: Some(all.iter().map(|fit| fit.divergences).sum()),
        e_bfmi: all.iter().filter_map(|fit| fit.e_bfmi).reduce(f64::min),
        max_r_hat: Some(worst_of_fit.iter().fold(1.0, |m: f64, r| m.max(*r))),
        bad_fits: Some([bad, all.len()]),
        evaluations: gradients,
        likelihood_evaluations: gradients,
        ..Diagnostics::default()
    };
    Ok((warnings, info))
}

fn mixed(
    fitter: &Fitter<'_>,
    unknowns: Vec<QuantitySummary>,
    trust: String,
    diagnostics: Diagnostics,
    warnings: Vec<String>,
    draws: Vec<Vec<f64>>,
    t_draws: Vec<usize>,
) -> IPosterior {
    let trust = match warnings.is_empty() {
        true => trust,
        false => "DO NOT USE: NUTS fits disagree or overlooked modes".into(),
    };
    IPosterior {
        method: fitter.method.name().into(),
        version: None,
        engine: "nuts".into(),
        unknowns,
        trust,
        diagnostics,
        warnings,
        draws,
        t_draws: Some(t_draws),
        chains: 1,
        transitions: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_kept_chain_after_chain() {
        let draws = vec![vec![0.0]; 5];
        let chains = [&draws[..], &draws[..]];
        let places = |n: usize| kept(&chains, n).into_iter().map(|(_, i)| i).collect::<Vec<_>>();
        assert_eq!(places(100), [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
        assert_eq!(places(5), [0, 2, 0, 2]);
        assert_eq!(kept(&chains, 1), [(0, 0), (1, 0)]);
    }
}
