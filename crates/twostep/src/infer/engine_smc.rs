//! I-posteriors by tempered sequential Monte Carlo: every method as one pooled density in many independent runs, E-Post after
//! a pilot that makes all of its components count alike.

use super::clusters::Proposal;
use super::evidence::shares;
use super::propagation::Method;
use super::reweight::Points;
use super::summary::{Replicated, Unit};
use super::target::Target;
use super::{
    Diagnostics, IPosterior, InferSpec, Likelihoods, Prepared, Propagation, favoured, per_draw, responsibilities,
};
use crate::error::{Error, Result};
use crate::kernels;
use crate::mcmc::{diagnostics, smc};
use crate::monitor::Monitor;
use crate::special::log_sum_exp;
use crate::stream::Stream;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Particles of the pilot that E-Post makes for each T-draw. Its evidences only balance the components, so a factor of two
/// does not matter.
const PILOT: usize = 64;
/// Effective particles below which a component's own posterior is not known.
const FEW: f64 = 10.0;

/// What all runs of a method share.
struct Sampler<'a> {
    prepared: &'a Prepared,
    propagation: &'a dyn Propagation,
    monitor: &'a dyn Monitor,
}

impl Sampler<'_> {
    /// One run on the density that is pooled over these likelihoods.
    fn run(
        &self,
        likelihoods: &Likelihoods,
        log_alpha: &[f64],
        particles: usize,
        stream: Stream,
    ) -> Result<smc::Population> {
        let settings = smc::Settings { particles, ..smc::Settings::default() };
        let mut target = Target::new(likelihoods, &self.prepared.prior, self.propagation, log_alpha).cheap();
        smc::sample(&mut target, &settings, stream, &|| self.monitor.proceed())
    }

    /// The evidence of every T-draw by a small run, and the gradients that took; minus infinity where the likelihood is zero
    /// wherever the run looked: a draw that the measurements exclude has no posterior.
    fn pilot(&self, what: &str, likelihoods: &Likelihoods, stream: Stream) -> Result<(Vec<f64>, usize)> {
        let (n, finished) = (likelihoods.n_draws(), AtomicUsize::new(0));
        let pilots: Vec<(f64, usize)> = (0..n)
            .into_par_iter()
            .map(|s| {
                let pilot = self.run(&likelihoods.select(&[s]), &[0.0], PILOT, stream.at(s as u64));
                self.monitor.progress(what, finished.fetch_add(1, Ordering::Relaxed) + 1, n);
                match pilot {
                    Ok(population) => Ok((population.log_evidence, population.gradients)),
                    Err(Error::Failed { .. }) => Ok((f64::NEG_INFINITY, 0)),
                    Err(error) => Err(error),
                }
            })
            .collect::<Result<_>>()?;
        Ok((pilots.iter().map(|p| p.0).collect(), pilots.iter().map(|p| p.1).sum()))
    }
}

pub(super) fn infer(
    prepared: &Prepared,
    spec: &InferSpec,
    method: Method,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<IPosterior> {
    let propagation = method.propagation(spec.point);
    let (likelihoods, log_alpha) = prepared.reduced(method, &*propagation);
    let (runs, particles) = (spec.smc.runs, spec.smc.particles(likelihoods.n_draws()));
    let mixed = per_draw(&*propagation);
    let sampler = Sampler { prepared, propagation: &*propagation, monitor };
    // `sum_s alpha_s p(y | omega, theta_s) / Z_s` is E-Post where Z_s are the evidences; any other positive numbers make a
    // density whose particles can be weighted to E-Post, well if they are near.
    let (mut offsets, mut evaluations) = (log_alpha.clone(), 0);
    if mixed {
        let what = format!("{}, pilot", method.name());
        let (log_evidence, gradients) = sampler.pilot(&what, &likelihoods, stream.named("pilot"))?;
        for (offset, z) in offsets.iter_mut().zip(&log_evidence) {
            *offset = if z.is_finite() { *offset - z } else { f64::NEG_INFINITY };
        }
        evaluations += gradients;
    }
    let piloted = evaluations;
    let finished = AtomicUsize::new(0);
    let populations: Vec<smc::Population> = (0..runs)
        .into_par_iter()
        .map(|run| {
            let population = sampler.run(&likelihoods, &offsets, particles, stream.at(run as u64));
            monitor.progress(method.name(), finished.fetch_add(1, Ordering::Relaxed) + 1, runs);
            population
        })
        .collect::<Result<_>>()?;
    evaluations += populations.iter().map(|p| p.gradients).sum::<usize>();
    let of_runs: Vec<f64> = populations.iter().map(|p| p.log_evidence).collect();
    let total = log_sum_exp(&of_runs);
    let mut replicates: Vec<(f64, Vec<Vec<f64>>)> = populations
        .iter()
        .map(|p| ((p.log_evidence - total).exp(), p.draws.iter().map(|z| prepared.natural(z)).collect()))
        .collect();
    let likelihood_evaluations = piloted + (evaluations - piloted) * likelihoods.n_draws();
    let mut info = Diagnostics { evaluations, likelihood_evaluations, ..Diagnostics::default() };
    let mut warnings = Vec::new();
    // What makes a T-draw count by its alpha among the particles.
    let mut corrected = offsets.clone();
    if mixed {
        let responsibilities = Responsibilities::new(prepared, &offsets, &replicates);
        // A T-draw's share among the particles is `exp(offset_s) Z_s` over the evidence of the pooled density.
        let pooled = total - (runs as f64).ln();
        let evidence =
            |(offset, mean): (&f64, &f64)| if *mean > 0.0 { mean.ln() - offset + pooled } else { f64::NEG_INFINITY };
        let log_evidence: Vec<f64> = offsets.iter().zip(&responsibilities.mean).map(evidence).collect();
        let log_alpha = propagation.mix(&log_alpha, &log_evidence).unwrap_or_else(|| log_alpha.clone());
        for (offset, (alpha, mean)) in corrected.iter_mut().zip(log_alpha.iter().zip(&responsibilities.mean)) {
            // No particle knows this draw.
            *offset = if *mean > 0.0 { *offset + alpha - mean.ln() } else { f64::NEG_INFINITY };
        }
        let few = responsibilities.effective.iter().filter(|e| **e < FEW).count();
        info.bad_fits = Some([few, log_alpha.len()]);
        if 20 * few > log_alpha.len() {
            warnings.push(format!(
                "{}: {few} of {} fits rest on fewer than {FEW} effective particles; raise infer.smc.particles or use \
                 clusters",
                method.name(),
                log_alpha.len()
            ));
        }
        replicates = responsibilities.reweight(&log_alpha, replicates, stream.named("resample"));
    } else {
        info.log_evidence = Some(total - (runs as f64).ln());
        info.log_evidence_error = smc::log_evidence_error(&of_runs);
    }
    let replicated = Replicated { units: vec![Unit { weight: 1.0, replicates }] };
    let mut unknowns: Vec<_> = prepared.quantities().iter().map(|(name, f)| replicated.summary(name, &**f)).collect();
    let (draws, _) = replicated.thin(spec.draws, stream.named("thin"));
    for ((_, f), unknown) in prepared.quantities().iter().zip(&mut unknowns) {
        unknown.r_hat = Some(diagnostics::r_hat(&replicated.chains(0, &**f)));
    }
    let worst = unknowns.iter().filter_map(|u| u.r_hat).fold(1.0, f64::max);
    info.max_r_hat = Some(worst);
    let effective = unknowns.iter().filter_map(|u| u.ess_bulk).fold(f64::INFINITY, f64::min);
    let mut trust = format!("smc, {runs} runs, R-hat {worst:.2}; {effective:.0} effective draws");
    let has_t_draws = method == Method::ELik && !prepared.is_marginal(method);
    if method == Method::ELik && log_alpha.len() > 1 {
        let log_shares: Vec<f64> = shares(&likelihoods, &draws, &log_alpha).iter().map(|w| w.ln()).collect();
        prepared.note_shares(&log_shares, &log_alpha, &mut info);
        trust += &info.evidence_agreement.map_or_else(String::new, favoured);
    }
    let t_draws = (mixed || has_t_draws).then(|| prepared.assign(&draws, &corrected, stream.named("t-draws")));
    // Independent runs that disagree have not seen the same modes with the same weight.
    if worst > 1.05 {
        warnings.push(format!(
            "{}: the SMC runs disagree (R-hat {worst:.2}): the posterior has parts that some runs missed; raise \
             infer.smc.particles",
            method.name()
        ));
    }
    Ok(IPosterior {
        method: method.name().into(),
        version: None,
        engine: "smc".into(),
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

/// The density under clusters as a proposal for all of `n_all` T-draws: runs on the pooled density, which count by their evidence.
pub(super) fn propose<T>(
    clustered: &Prepared,
    spec: &InferSpec,
    method: Method,
    n_all: usize,
    stream: Stream,
    monitor: &dyn Monitor,
    judge: &mut dyn FnMut(&Proposal<'_>) -> Result<T>,
) -> Result<T> {
    let propagation = Method::ELik.propagation(spec.point);
    let sampler = Sampler { prepared: clustered, propagation: &*propagation, monitor };
    let likelihoods = &clustered.likelihoods;
    let (mut offsets, mut evaluations) = (clustered.log_alpha().to_vec(), 0);
    if method == Method::EPost {
        let (log_evidence, gradients) = sampler.pilot("clusters", likelihoods, stream.named("pilot"))?;
        for (offset, z) in offsets.iter_mut().zip(&log_evidence) {
            *offset = if z.is_finite() { *offset - z } else { f64::NEG_INFINITY };
        }
        // Each of these is of one cluster, not of all.
        evaluations += gradients.div_ceil(offsets.len());
    }
    // As many as all T-draws would get: more runs come where more points are wanted.
    let particles = spec.smc.particles(n_all);
    let populations = |runs: std::ops::Range<usize>| -> Result<Vec<smc::Population>> {
        runs.into_par_iter().map(|run| sampler.run(likelihoods, &offsets, particles, stream.at(run as u64))).collect()
    };
    let base = populations(0..spec.smc.runs)?;
    let gradients: usize = base.iter().map(|p| p.gradients).sum();
    let draw = |n: usize, _| {
        let more = populations(base.len()..n.div_ceil(particles).max(base.len()))?;
        let made = more.iter().map(|p| p.gradients).sum();
        let (mut x, mut log_v, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        let (mut workspace, mut l) = (super::Workspace::default(), vec![0.0; offsets.len()]);
        let n_unknowns = likelihoods.n_unknowns();
        for population in base.iter().chain(&more) {
            lengths.push(population.draws.len());
            for z in &population.draws {
                let point = clustered.natural(z);
                likelihoods.set_unknowns(&point[..n_unknowns], &mut workspace);
                likelihoods.log_likelihoods(&point[n_unknowns..], &workspace, &mut l);
                log_v.push(population.log_evidence - kernels::log_mean_exp_weights(&offsets, &mut l));
                x.push(point);
            }
        }
        Ok((Points { x, log_v, runs: vec![lengths] }, made))
    };
    let first = base.len() * particles;
    judge(&Proposal { draw: &draw, evaluations: evaluations + gradients, on_all: gradients, first })
}

/// How much each T-draw accounts for the particles of a pooled density, `r_s(x) ∝ exp(offset_s + l_s(x))`.
struct Responsibilities<'a> {
    prepared: &'a Prepared,
    offsets: &'a [f64],
    /// `R_s`: mean of `r_s` over the particles.
    mean: Vec<f64>,
    /// Effective number of particles of each T-draw's own posterior, whose weights are `r_s(x)`.
    effective: Vec<f64>,
}

impl<'a> Responsibilities<'a> {
    fn new(prepared: &'a Prepared, offsets: &'a [f64], replicates: &[(f64, Vec<Vec<f64>>)]) -> Self {
        let n = offsets.len();
        let mut out = Self { prepared, offsets, mean: vec![0.0; n], effective: vec![0.0; n] };
        // Runs in parallel, each summed in order: the sums do not depend on the number of threads.
        let sums: Vec<(Vec<f64>, Vec<f64>)> = replicates
            .par_iter()
            .map(|(share, draws)| {
                let (mut sum, mut squares) = (vec![0.0; n], vec![0.0; n]);
                let weight = share / draws.len() as f64;
                out.for_each(draws, |_, r| {
                    for ((sum, square), r) in sum.iter_mut().zip(&mut squares).zip(r) {
                        *sum += weight * r;
                        *square += (weight * r).powi(2);
                    }
                });
                (sum, squares)
            })
            .collect();
        for (sum, squares) in sums {
            out.mean.iter_mut().zip(sum).for_each(|(m, s)| *m += s);
            out.effective.iter_mut().zip(squares).for_each(|(e, s)| *e += s);
        }
        for (effective, mean) in out.effective.iter_mut().zip(&out.mean) {
            *effective = if *effective > 0.0 { mean * mean / *effective } else { 0.0 };
        }
        out
    }

    /// Calls `f(k, r)` with the responsibilities at every draw.
    fn for_each(&self, draws: &[Vec<f64>], mut f: impl FnMut(usize, &[f64])) {
        let (mut workspace, mut r) = (super::Workspace::default(), Vec::new());
        for (k, x) in draws.iter().enumerate() {
            responsibilities(&self.prepared.likelihoods, x, self.offsets, &mut workspace, &mut r);
            f(k, &r);
        }
    }

    /// The runs weighted to `sum_s alpha_s p_s`: a particle counts `sum_s alpha_s r_s / R_s`. Each run is resampled to equal
    /// weights and its share is what its particles count together.
    ///
    /// Errors taken from the spread between runs are upper bounds: how many particles a T-draw got varies from run to run,
    /// and that variation is weighted away here.
    fn reweight(
        &self,
        log_alpha: &[f64],
        replicates: Vec<(f64, Vec<Vec<f64>>)>,
        stream: Stream,
    ) -> Vec<(f64, Vec<Vec<f64>>)> {
        let ratios: Vec<f64> =
            log_alpha.iter().zip(&self.mean).map(|(a, m)| if *m > 0.0 { a.exp() / m } else { 0.0 }).collect();
        let mut out: Vec<(f64, Vec<Vec<f64>>)> = replicates
            .into_par_iter()
            .enumerate()
            .map(|(run, (share, draws))| {
                let mut weights = vec![0.0; draws.len()];
                self.for_each(&draws, |k, r| weights[k] = kernels::dot(r, &ratios));
                let total: f64 = weights.iter().sum();
                weights.iter_mut().for_each(|w| *w /= total);
                let mut rng = stream.at(run as u64).rng();
                let picked = smc::systematic(&weights, draws.len(), &mut rng).map(|k| draws[k].clone()).collect();
                (share * total / draws.len() as f64, picked)
            })
            .collect();
        let total: f64 = out.iter().map(|(share, _)| share).sum();
        out.iter_mut().for_each(|(share, _)| *share /= total);
        out
    }
}
