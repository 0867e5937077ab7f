//! I-posteriors by adaptive quadrature: E-Post and E-Lik from one grid over the posteriors of all T-draws.

use super::integrated::{Integrated, Work};
use super::propagation::Method;
use super::summary::{QuantitySummary, derived_from_grid, from_grid};
use super::{Diagnostics, IPosterior, InferSpec, Prepared, agreement, favoured};
use crate::error::Result;
use crate::mcmc::quadrature::{self, Grid, Settings};
use crate::monitor::Monitor;
use crate::special::log_sum_exp;
use crate::stream::Stream;
use rayon::prelude::*;

pub(super) fn infer(
    prepared: &Prepared,
    spec: &InferSpec,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<Vec<IPosterior>> {
    let proceed = || monitor.proceed();
    let settings = Settings::default();
    let alpha = prepared.log_alpha();
    let mixtures: Vec<Method> =
        spec.methods.iter().copied().filter(|m| matches!(m, Method::ELik | Method::EPost)).collect();
    let mut out: Vec<(Method, IPosterior)> = Vec::new();
    if !mixtures.is_empty() {
        let components = Integrated::new(&prepared.likelihoods, &prepared.prior, alpha, None);
        let refined = quadrature::refine(&components, &settings, &proceed)?;
        let weights: Vec<Vec<f64>> = mixtures
            .iter()
            .map(|m| {
                m.propagation(spec.point).mix(alpha, &refined.log_evidence).expect("E-Lik and E-Post are mixtures")
            })
            .collect();
        let offsets: Vec<Vec<f64>> = weights
            .iter()
            .map(|log_weights| {
                let pairs = log_weights.iter().zip(&refined.log_evidence);
                pairs.map(|(w, z)| if z.is_finite() { w - z } else { f64::NEG_INFINITY }).collect()
            })
            .collect();
        let grids = refined.mixtures(&weights);
        let sigma_grids = components.sigma_grids(&grids, &offsets);
        for (m, (&method, grid)) in mixtures.iter().zip(&grids).enumerate() {
            let log_weights = &weights[m];
            let stream = stream.named(method.name()).named("draws");
            let joint: Vec<(Vec<f64>, usize)> = (0..spec.draws)
                .into_par_iter()
                .map_init(Work::default, |work, i| {
                    let mut rng = stream.at(i as u64).rng();
                    let mut x = grid.draw(&mut rng);
                    let (s, sigmas) = components.draw(&x, &offsets[m], work, &mut rng);
                    x.extend(sigmas);
                    (x, s)
                })
                .collect();
            let (draws, t_draws): (Vec<_>, Vec<_>) = joint.into_iter().unzip();
            let sigmas: Vec<&Grid> = sigma_grids.iter().map(|of_sigma| &of_sigma[m]).collect();
            let mut diagnostics = Diagnostics { evaluations: refined.evaluations, ..Diagnostics::default() };
            if method == Method::ELik {
                let share = agreement(log_weights, alpha);
                let joint: Vec<f64> = alpha.iter().zip(&refined.log_evidence).map(|(a, z)| a + z).collect();
                diagnostics.log_evidence = Some(log_sum_exp(&joint));
                diagnostics.evidence_agreement = Some(share);
                diagnostics.effective_t_draws = Some(share * alpha.len() as f64);
            }
            let posterior =
                posterior(prepared, method, grid, &sigmas, diagnostics, refined.converged, draws, Some(t_draws));
            out.push((method, posterior));
            monitor.progress("infer", out.len(), spec.methods.len());
        }
    }
    for &method in spec.methods.iter().filter(|m| !mixtures.contains(m)) {
        let propagation = method.propagation(spec.point);
        let (likelihoods, log_alpha) = prepared.reduced(method, &*propagation);
        let components = Integrated::new(&likelihoods, &prepared.prior, &log_alpha, Some(&*propagation));
        let refined = quadrature::refine(&components, &settings, &proceed)?;
        let grid = refined.mixtures(&[vec![0.0]]).pop().expect("one mixture was asked for");
        let stream = stream.named(method.name()).named("draws");
        let draws: Vec<Vec<f64>> = (0..spec.draws)
            .into_par_iter()
            .map_init(Work::default, |work, i| {
                let mut rng = stream.at(i as u64).rng();
                let mut x = grid.draw(&mut rng);
                let (_, sigmas) = components.draw(&x, &[0.0], work, &mut rng);
                x.extend(sigmas);
                x
            })
            .collect();
        let sigma_grids = components.sigma_grids(std::slice::from_ref(&grid), &[vec![-refined.log_evidence[0]]]);
        let sigmas: Vec<&Grid> = sigma_grids.iter().map(|of_sigma| &of_sigma[0]).collect();
        let diagnostics = Diagnostics {
            log_evidence: Some(refined.log_evidence[0]),
            evaluations: refined.evaluations,
            ..Diagnostics::default()
        };
        out.push((method, posterior(prepared, method, &grid, &sigmas, diagnostics, refined.converged, draws, None)));
        monitor.progress("infer", out.len(), spec.methods.len());
    }
    let order = |m: Method| spec.methods.iter().position(|&n| n == m);
    out.sort_by_key(|(m, _)| order(*m));
    Ok(out.into_iter().map(|(_, p)| p).collect())
}

fn posterior(
    prepared: &Prepared,
    method: Method,
    grid: &Grid,
    sigmas: &[&Grid],
    mut diagnostics: Diagnostics,
    converged: bool,
    draws: Vec<Vec<f64>>,
    t_draws: Option<Vec<usize>>,
) -> IPosterior {
    let dim = grid.dim();
    let mut unknowns: Vec<QuantitySummary> = (0..dim).map(|d| from_grid(grid, d, &prepared.prior.names()[d])).collect();
    for (j, sigma) in sigmas.iter().enumerate() {
        unknowns.push(from_grid(sigma, 0, &prepared.prior.names()[dim + j]));
    }
    let error = unknowns.iter().filter_map(|u| u.quadrature_error).fold(0.0, f64::max);
    for (name, f) in prepared.quantities().iter().skip(prepared.prior.len()) {
        unknowns.push(derived_from_grid(grid, name, &**f, error));
    }
    diagnostics.quadrature_error = Some(error);
    diagnostics.cells = Some(grid.n_cells());
    // One digit, rounded up: the statement must hold.
    let bound = 10f64.powf(error.max(1e-6).log10().ceil());
    let mut trust = format!("grid, error < {bound} sd");
    match (method, diagnostics.evidence_agreement) {
        (Method::ELik, Some(share)) => trust += &favoured(share),
        (Method::Point, _) => trust += "; ignores the surrogate's uncertainty",
        (Method::ELogLik, _) => trust += "; grows surer as the surrogate grows worse",
        _ => {}
    }
    let mut warnings = Vec::new();
    if error > 0.01 || !converged {
        let why = if converged { "leaves" } else { "reached its memory limit with" };
        warnings.push(format!(
            "{}: the grid {why} an error of {error:.1e} sd; use clusters, fewer T-draws, or engine = \"smc\"",
            method.name()
        ));
    }
    IPosterior {
        method: method.name().into(),
        engine: "grid".into(),
        unknowns,
        trust,
        diagnostics,
        warnings,
        draws,
        t_draws,
    }
}
