//! I-posteriors by tempered sequential Monte Carlo: pooled densities in many independent runs, E-Post in two per T-draw.

use super::propagation::Method;
use super::summary::{Replicated, Unit};
use super::target::Target;
use super::{Diagnostics, IPosterior, InferSpec, Prepared, agreement, favoured, per_draw};
use crate::error::{Error, Result};
use crate::mcmc::{diagnostics, smc};
use crate::monitor::Monitor;
use crate::special::log_sum_exp;
use crate::stream::Stream;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs per T-draw of E-Post: enough that one of them finds a narrow mode, and its evidence makes it count.
const RUNS_PER_FIT: usize = 4;

pub(super) fn infer(
    prepared: &Prepared,
    spec: &InferSpec,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<Vec<IPosterior>> {
    spec.methods
        .iter()
        .enumerate()
        .map(|(done, &method)| {
            let out = one(prepared, spec, method, stream.named(method.name()), monitor)?;
            monitor.progress("infer", done + 1, spec.methods.len());
            Ok(out)
        })
        .collect()
}

fn one(
    prepared: &Prepared,
    spec: &InferSpec,
    method: Method,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<IPosterior> {
    let propagation = method.propagation(spec.point);
    let (likelihoods, log_alpha) = prepared.reduced(method, &*propagation);
    let settings = smc::Settings { particles: spec.smc.particles, ..smc::Settings::default() };
    let single = [0.0];
    let fits: Vec<(f64, usize)> = if per_draw(&*propagation) {
        log_alpha.iter().map(|a| a.exp()).zip(0..).filter(|f| f.0 > 0.0).collect()
    } else {
        vec![(1.0, 0)]
    };
    let runs = if per_draw(&*propagation) { RUNS_PER_FIT } else { spec.smc.runs };
    let finished = AtomicUsize::new(0);
    let populations: Vec<smc::Population> = (0..fits.len() * runs)
        .into_par_iter()
        .map(|job| {
            if !monitor.proceed() {
                return Err(Error::Interrupted);
            }
            let (fit, run) = (job / runs, job % runs);
            let stream = stream.at(fits[fit].1 as u64).at(run as u64);
            let population = if per_draw(&*propagation) {
                let own = likelihoods.select(&[fits[fit].1]);
                smc::sample(&mut Target::new(&own, &prepared.prior, &*propagation, &single), &settings, stream)?
            } else {
                smc::sample(
                    &mut Target::new(&likelihoods, &prepared.prior, &*propagation, &log_alpha),
                    &settings,
                    stream,
                )?
            };
            let done = finished.fetch_add(1, Ordering::Relaxed) + 1;
            monitor.progress(method.name(), done, fits.len() * runs);
            Ok(population)
        })
        .collect::<Result<_>>()?;
    let natural =
        |z: &[f64]| -> Vec<f64> { prepared.prior.marginals().iter().zip(z).map(|(m, &z)| m.from_real(z).x).collect() };
    let replicated = Replicated {
        units: fits
            .iter()
            .enumerate()
            .map(|(fit, (weight, _))| {
                let own = &populations[fit * runs..(fit + 1) * runs];
                let total = log_sum_exp(&own.iter().map(|p| p.log_evidence).collect::<Vec<_>>());
                let replicates =
                    own.iter().map(|p| ((p.log_evidence - total).exp(), p.draws.iter().map(|z| natural(z)).collect()));
                Unit { weight: *weight, replicates: replicates.collect() }
            })
            .collect(),
    };
    let mut unknowns: Vec<_> = prepared.quantities().iter().map(|(name, f)| replicated.summary(name, &**f)).collect();
    let mut info = Diagnostics { evaluations: populations.iter().map(|p| p.gradients).sum(), ..Diagnostics::default() };
    let mut warnings = Vec::new();
    let (draws, units) = replicated.thin(spec.draws, stream.named("thin"));
    let mut t_draws = None;
    let trust;
    if per_draw(&*propagation) {
        t_draws = Some(units.iter().map(|&u| fits[u].1).collect());
        let effective = unknowns.iter().filter_map(|u| u.ess_bulk).fold(f64::INFINITY, f64::min);
        trust = format!("smc, {} fits of {runs} runs; {effective:.0} effective draws", fits.len());
    } else {
        let evidences: Vec<f64> = populations.iter().map(|p| p.log_evidence).collect();
        info.log_evidence = Some(log_sum_exp(&evidences) - (runs as f64).ln());
        for ((_, f), unknown) in prepared.quantities().iter().zip(&mut unknowns) {
            unknown.r_hat = Some(diagnostics::r_hat(&replicated.chains(0, &**f)));
        }
        let worst = unknowns.iter().filter_map(|u| u.r_hat).fold(1.0, f64::max);
        info.max_r_hat = Some(worst);
        let effective = unknowns.iter().filter_map(|u| u.ess_bulk).fold(f64::INFINITY, f64::min);
        let mut line = format!("smc, {runs} runs, R-hat {worst:.2}; {effective:.0} effective draws");
        if method == Method::ELik && log_alpha.len() > 1 {
            let share = evidence_agreement(prepared, &draws, &log_alpha);
            info.evidence_agreement = Some(share);
            info.effective_t_draws = Some(share * log_alpha.len() as f64);
            line += &favoured(share);
            t_draws = Some(prepared.assign(&draws, &log_alpha, stream.named("t-draws")));
        }
        // Independent runs that disagree have not seen the same modes with the same weight.
        if worst > 1.05 {
            warnings.push(format!(
                "{}: the SMC runs disagree (R-hat {worst:.2}): the posterior has parts that some runs missed; raise \
                 infer.smc.particles",
                method.name()
            ));
        }
        trust = line;
    }
    Ok(IPosterior {
        method: method.name().into(),
        engine: "smc".into(),
        unknowns,
        trust,
        diagnostics: info,
        warnings,
        draws,
        t_draws,
    })
}

/// The agreement measure from the E-Lik posterior mean of the responsibilities, which needs no evidences.
pub(super) fn evidence_agreement(prepared: &Prepared, draws: &[Vec<f64>], log_alpha: &[f64]) -> f64 {
    let n = prepared.likelihoods.n_unknowns();
    let n_draws = log_alpha.len();
    // Blocks of fixed size keep the order of the sum, whatever the number of threads.
    let blocks: Vec<Vec<f64>> = draws
        .par_chunks(64)
        .map(|block| {
            let mut workspace = super::Workspace::default();
            let (mut l, mut sum) = (vec![0.0; n_draws], vec![0.0; n_draws]);
            for x in block {
                prepared.likelihoods.set_unknowns(&x[..n], &mut workspace);
                prepared.likelihoods.log_likelihoods(&x[n..], &workspace, &mut l);
                crate::kernels::log_mean_exp_weights(log_alpha, &mut l);
                sum.iter_mut().zip(&l).for_each(|(s, w)| *s += w / draws.len() as f64);
            }
            sum
        })
        .collect();
    let mut weights = vec![0.0; n_draws];
    for block in blocks {
        weights.iter_mut().zip(block).for_each(|(w, b)| *w += b);
    }
    agreement(&weights.iter().map(|w| w.ln()).collect::<Vec<_>>(), log_alpha)
}
