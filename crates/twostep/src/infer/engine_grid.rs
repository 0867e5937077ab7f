//! I-posteriors by adaptive quadrature: E-Post and E-Lik from one grid over the posteriors of all T-draws.

use super::propagation::Method;
use super::summary::{QuantitySummary, derived_from_grid, from_grid};
use super::target::PosteriorComponents;
use super::{Diagnostics, IPosterior, InferSpec, Prepared, agreement};
use crate::error::Result;
use crate::mcmc::quadrature::{self, Grid, Settings};
use crate::monitor::Monitor;
use crate::special::log_sum_exp;
use crate::stream::Stream;

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
        let components = PosteriorComponents::per_draw(&prepared.likelihoods, &prepared.prior, alpha);
        let refined = quadrature::refine(&components, &settings, &proceed)?;
        let weights: Vec<Vec<f64>> = mixtures
            .iter()
            .map(|m| {
                m.propagation(spec.point).mix(alpha, &refined.log_evidence).expect("E-Lik and E-Post are mixtures")
            })
            .collect();
        let grids = refined.mixtures(&weights);
        for ((&method, grid), log_weights) in mixtures.iter().zip(&grids).zip(&weights) {
            let stream = stream.named(method.name());
            let draws = grid.draws(spec.draws, stream.named("draws"));
            let offsets: Vec<f64> = log_weights
                .iter()
                .zip(&refined.log_evidence)
                .map(|(w, z)| if z.is_finite() { w - z } else { f64::NEG_INFINITY })
                .collect();
            let t_draws = prepared.assign(&draws, &offsets, stream.named("t-draws"));
            let mut diagnostics = Diagnostics { evaluations: refined.evaluations, ..Diagnostics::default() };
            if method == Method::ELik {
                let share = agreement(log_weights, alpha);
                let joint: Vec<f64> = alpha.iter().zip(&refined.log_evidence).map(|(a, z)| a + z).collect();
                diagnostics.log_evidence = Some(log_sum_exp(&joint));
                diagnostics.evidence_agreement = Some(share);
                diagnostics.effective_t_draws = Some(share * alpha.len() as f64);
            }
            let posterior = posterior(prepared, method, grid, diagnostics, refined.converged, draws, Some(t_draws));
            out.push((method, posterior));
            monitor.progress("infer", out.len(), spec.methods.len());
        }
    }
    for &method in spec.methods.iter().filter(|m| !mixtures.contains(m)) {
        let propagation = method.propagation(spec.point);
        let (likelihoods, log_alpha) = prepared.reduced(method, &*propagation);
        let components = PosteriorComponents::pooled(&likelihoods, &prepared.prior, &log_alpha, &*propagation);
        let refined = quadrature::refine(&components, &settings, &proceed)?;
        let grid = refined.mixtures(&[vec![0.0]]).pop().expect("one mixture was asked for");
        let draws = grid.draws(spec.draws, stream.named(method.name()).named("draws"));
        let diagnostics = Diagnostics {
            log_evidence: Some(refined.log_evidence[0]),
            evaluations: refined.evaluations,
            ..Diagnostics::default()
        };
        out.push((method, posterior(prepared, method, &grid, diagnostics, refined.converged, draws, None)));
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
    mut diagnostics: Diagnostics,
    converged: bool,
    draws: Vec<Vec<f64>>,
    t_draws: Option<Vec<usize>>,
) -> IPosterior {
    let dim = grid.dim();
    let mut unknowns: Vec<QuantitySummary> =
        (0..dim).map(|d| from_grid(grid, d, &prepared.prior.names()[d])).collect();
    let error = unknowns.iter().filter_map(|u| u.quadrature_error).fold(0.0, f64::max);
    for (name, f) in prepared.quantities().iter().skip(dim) {
        unknowns.push(derived_from_grid(grid, name, &**f, error));
    }
    diagnostics.quadrature_error = Some(error);
    diagnostics.cells = Some(grid.n_cells());
    // One digit, rounded up: the statement must hold.
    let bound = 10f64.powf(error.max(1e-6).log10().ceil());
    let mut trust = format!("grid, error < {bound} sd");
    match (method, diagnostics.evidence_agreement) {
        (Method::ELik, Some(share)) => trust += &format!("; data favour {:.0} % of the T-draws", 100.0 * share),
        (Method::Point, _) => trust += "; ignores the surrogate's uncertainty",
        (Method::ELogLik, _) => trust += "; grows surer as the surrogate grows worse",
        _ => {}
    }
    let mut warnings = Vec::new();
    if error > 0.01 || !converged {
        warnings.push(format!(
            "{}: the grid reached its memory limit with an error of {error:.1e} sd; use clusters, fewer T-draws, or engine = \"smc\"",
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
