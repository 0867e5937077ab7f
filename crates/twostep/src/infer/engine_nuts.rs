//! I-posteriors by NUTS, the paper's sampler: chains from the prior, E-Post as independent fits with a transferred metric,
//! and a check for modes that no chain visited.

use super::engine_smc::evidence_agreement;
use super::propagation::Method;
use super::summary::{QuantitySummary, Replicated, Unit};
use super::target::Target;
use super::{Diagnostics, IPosterior, InferSpec, Prepared, favoured, per_draw};
use crate::error::{Error, Result};
use crate::mcmc::nuts::{self, Chain, Metric};
use crate::mcmc::{chains, diagnostics};
use crate::monitor::{Monitor, counting};
use crate::stream::Stream;
use crate::train::PROBABILITIES;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Warm-up of a fit whose metric comes from its neighbour: only the step size is adapted.
const TRANSFERRED_WARMUP: usize = 50;
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
    let overlooked = chains::check(&target.clone().cheap(), &chains, stream.named("check"), &proceed)?.overlooked;
    let replicated =
        Replicated { units: vec![Unit::equal(1.0, chains.iter().map(|c| natural_draws(prepared, c)).collect())] };
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
    let kept = kept(&chains, spec.draws);
    let draws: Vec<Vec<f64>> = kept.iter().map(|&(chain, i)| prepared.natural(&chain.draws[i])).collect();
    let transitions = kept.iter().map(|&(chain, i)| chain.transitions[i]).collect();
    let mut t_draws = None;
    let mut trust = format!("nuts, {} chains, R-hat {worst:.2}; {effective:.0} effective draws", chains.len());
    if method == Method::ELik && log_alpha.len() > 1 {
        let share = evidence_agreement(prepared, &draws, &log_alpha);
        info.evidence_agreement = Some(share);
        info.effective_t_draws = Some(share * log_alpha.len() as f64);
        trust += &favoured(share);
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

/// At most `n` draws, but one of each chain at least: chain after chain, as many of each, evenly spaced.
fn kept(chains: &[Chain], n: usize) -> Vec<(&Chain, usize)> {
    let of_each = |length: usize| (n / chains.len()).clamp(1, length);
    let places = |length: usize| (0..of_each(length)).map(move |k| k * length / of_each(length));
    chains.iter().flat_map(|chain| places(chain.draws.len()).map(move |i| (chain, i))).collect()
}

fn natural_draws(prepared: &Prepared, chain: &Chain) -> Vec<Vec<f64>> {
    chain.draws.iter().map(|z| prepared.natural(z)).collect()
}

/// One fit per T-draw: the first adapts in full, the others take its metric and adapt their step size.
fn fits(
    prepared: &Prepared,
    spec: &InferSpec,
    method: Method,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<IPosterior> {
    let proceed = || monitor.proceed();
    let propagation = method.propagation(spec.point);
    let alpha = prepared.log_alpha();
    let numbered: Vec<(f64, usize)> = alpha.iter().map(|a| a.exp()).zip(0..).filter(|f| f.0 > 0.0).collect();
    let single = [0.0];
    let chain_settings = |warmup: usize| nuts::Settings {
        warmup,
        // The paper's length of an E-Post chain: the fits together have many draws.
        draws: spec.nuts.draws.min(250),
        ..nuts::Settings::default()
    };
    let run = |s: usize, metric: Option<&Metric>| -> Result<Vec<Chain>> {
        let own = prepared.likelihoods.select(&[s]);
        let target = Target::new(&own, &prepared.prior, &*propagation, &single);
        let warmup = if metric.is_some() { TRANSFERRED_WARMUP } else { spec.nuts.warmup };
        let stream = stream.named("fits").at(s as u64);
        chains::sample(&target, &chain_settings(warmup), spec.nuts.chains, metric, stream, &proceed)
    };
    let pilot = run(numbered[0].1, None)?;
    let metric = Metric::from_draws(&pilot[0].draws);
    let finished = AtomicUsize::new(0);
    let all: Vec<Vec<Chain>> = numbered
        .par_iter()
        .map(|&(_, s)| {
            let chains = run(s, Some(&metric))?;
            monitor.progress(method.name(), finished.fetch_add(1, Ordering::Relaxed) + 1, numbered.len());
            Ok(chains)
        })
        .collect::<Result<_>>()?;
    let replicated = Replicated {
        units: numbered
            .iter()
            .zip(&all)
            .map(|((weight, _), chains)| {
                Unit::equal(*weight, chains.iter().map(|c| natural_draws(prepared, c)).collect())
            })
            .collect(),
    };
    let unknowns: Vec<QuantitySummary> =
        prepared.quantities().iter().map(|(name, f)| replicated.summary(name, &**f)).collect();
    let worst_of_fit: Vec<f64> = (0..all.len())
        .into_par_iter()
        .map(|u| {
            (0..prepared.prior.len())
                .map(|d| diagnostics::r_hat(&replicated.chains(u, &|x| x[d])))
                .fold(1.0, |m: f64, r| if r.is_nan() { f64::INFINITY } else { m.max(r) })
        })
        .collect();
    let bad = worst_of_fit.iter().filter(|r| **r > 1.05).count();
    // A sample of fits, evenly spaced over the T-draws, stands for all.
    let step = all.len().div_ceil(CHECKED_FITS);
    let mut overlooked: Vec<chains::Overlooked> = Vec::new();
    for fit in (0..all.len()).step_by(step) {
        let own = prepared.likelihoods.select(&[numbered[fit].1]);
        let target = Target::new(&own, &prepared.prior, &*propagation, &single).cheap();
        let check = chains::check(&target, &all[fit], stream.named("check").at(fit as u64), &proceed)?;
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
    let chains = || all.iter().flatten();
    let worst = worst_of_fit.iter().fold(1.0, |m: f64, r| m.max(*r));
    let info = Diagnostics {
        divergences: Some(chains().map(Chain::divergences).sum()),
        e_bfmi: Some(chains().map(|c| diagnostics::e_bfmi(&c.energy())).fold(f64::INFINITY, f64::min)),
        max_r_hat: Some(worst),
        bad_fits: Some([bad, all.len()]),
        evaluations: chains().map(|c| c.gradients as usize).sum(),
        ..Diagnostics::default()
    };
    let effective = unknowns.iter().filter_map(|u| u.ess_bulk).fold(f64::INFINITY, f64::min);
    let trust = if warnings.is_empty() {
        format!("nuts, {} fits of {} chains; {effective:.0} effective draws", all.len(), spec.nuts.chains)
    } else {
        "DO NOT USE: NUTS fits disagree or overlooked modes".into()
    };
    let (draws, units) = replicated.thin(spec.draws, stream.named("thin"));
    let t_draws = Some(units.iter().map(|&u| numbered[u].1).collect());
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
        chains: 1,
        transitions: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(length: usize) -> Chain {
        Chain {
            draws: (0..length).map(|i| vec![i as f64]).collect(),
            transitions: Vec::new(),
            max_depth_hits: 0,
            gradients: 0,
            step_size: 1.0,
            scale: Metric::identity(1),
        }
    }

    #[test]
    fn draws_are_kept_chain_after_chain() {
        let chains = [chain(5), chain(5)];
        let places = |n: usize| kept(&chains, n).into_iter().map(|(_, i)| i).collect::<Vec<_>>();
        assert_eq!(places(100), [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
        assert_eq!(places(5), [0, 2, 0, 2]);
        assert_eq!(places(1), [0, 0]);
        assert!(std::ptr::eq(kept(&chains, 2)[1].0, &raw const chains[1]));
    }
}
