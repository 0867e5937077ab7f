//! I-posteriors by adaptive quadrature: E-Post from one grid over the posteriors of all T-draws, the others from one density.

use super::components::Moments;
use super::integrated::{Integrated, Pooling, Work};
use super::locate::{Located, Place};
use super::propagation::Method;
use super::summary::{QuantitySummary, derived_from_grid, from_draws, from_grid};
use super::{Clustering, Diagnostics, Engine, GridSpec, IPosterior, InferSpec, Prepared, favoured};
use crate::error::Result;
use crate::kernels::panels::POINTS;
use crate::matrix::Matrix;
use crate::mcmc::quadrature::{self, Described, Grid, Refined, Settings};
use crate::monitor::{Monitor, Proceed};
use crate::special::log_sum_exp;
use crate::stream::Stream;
use crate::train::PROBABILITIES;
use rayon::prelude::*;

/// Stated error that it aims at where clusters say where to look, and the least that is stated there: so loose a grid knows its
/// error less well than a fine one.
const CLUSTERED_AIM: f64 = 0.05;
const CLUSTERED_LEAST: f64 = 0.02;
/// The strictest tolerance that is tried for the aimed error.
const STRICTEST: f64 = 1e-4;

pub(super) fn infer(
    prepared: &Prepared,
    spec: &InferSpec,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<Vec<IPosterior>> {
    monitor.progress("infer", 0, spec.methods.len());
    let mut out: Vec<IPosterior> = Vec::new();
    for &method in &spec.methods {
        out.push(infer_by(prepared, None, spec, method, stream, monitor)?);
        monitor.progress("infer", out.len(), spec.methods.len());
    }
    Ok(out)
}

/// Where `truth` lies in the posterior by every method; nothing else is computed of them.
pub(super) fn locate(
    prepared: &Prepared,
    spec: &InferSpec,
    truth: &[Option<f64>],
    monitor: &dyn Monitor,
) -> Result<Vec<Located>> {
    spec.methods.iter().map(|&method| locate_by(prepared, spec, method, truth, monitor)).collect()
}

/// Log evidence of every T-draw.
pub(super) fn log_evidences(prepared: &Prepared, spec: &InferSpec, monitor: &dyn Monitor) -> Result<Vec<f64>> {
    solve(prepared, None, spec, Method::EPost, monitor, |solved| solved.resolved.refined.log_evidence.clone())
}

/// Log evidence of every T-draw, and mean and sd of each unknown (rows) given each of them (columns): by the nodes of E-Post, where
/// every T-draw has its weight.
pub(super) fn components(
    prepared: &Prepared,
    spec: &InferSpec,
    monitor: &dyn Monitor,
) -> Result<(Vec<f64>, Matrix, Matrix)> {
    solve(prepared, None, spec, Method::EPost, monitor, |solved| {
        let (grid, offset) = (&solved.resolved.grid, &solved.offset);
        let mut nodes: Vec<(Vec<f64>, f64)> = Vec::new();
        // Nodes that cannot move a digit.
        grid.for_each_node(|x, weight| nodes.extend((weight > 1e-16).then(|| (x.to_vec(), weight))));
        let centre: Vec<f64> = (0..grid.dim()).map(|d| grid.moments(d).0).collect();
        let of_block = |block: &[(Vec<f64>, f64)]| {
            let (mut work, mut shares) = (Work::default(), Vec::new());
            let mut moments = Moments::new(grid.dim(), solved.log_alpha.len());
            for (x, weight) in block {
                solved.components.responsibilities(x, offset, &mut work, &mut shares);
                moments.add(x, &centre, *weight, &shares);
            }
            moments
        };
        // In blocks of a fixed size, so that the sum does not depend on the number of threads.
        let blocks: Vec<Moments> = nodes.par_chunks(64).map(of_block).collect();
        let moments = blocks.into_iter().reduce(Moments::merge);
        let moments = moments.unwrap_or_else(|| Moments::new(grid.dim(), solved.log_alpha.len()));
        let (means, sds) = moments.finish(&centre);
        (solved.resolved.refined.log_evidence.clone(), means, sds)
    })
}

/// E-Lik and E-Post of all T-draws on cells that `some` of the T-draws ask for, refined further where all do: what looks everywhere
/// looks with the few.
pub(super) fn infer_on_cells_of(
    prepared: &Prepared,
    some: &Prepared,
    spec: &InferSpec,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<Vec<IPosterior>> {
    let n_clusters = some.likelihoods.n_draws();
    let by_method = |&method: &Method| {
        let mut answer = infer_by(prepared, Some(some), spec, method, stream, monitor)?;
        let stated = |error: f64| error.max(CLUSTERED_LEAST);
        for unknown in &mut answer.unknowns {
            unknown.quadrature_error = unknown.quadrature_error.map(stated);
        }
        let error = stated(answer.diagnostics.quadrature_error.unwrap_or(0.0));
        answer.diagnostics.quadrature_error = Some(error);
        answer.diagnostics.log_evidence_error = answer.diagnostics.log_evidence_error.map(stated);
        answer.diagnostics.clusters = Some(Clustering { clusters: n_clusters, k_hat: None, error });
        answer.trust = format!(
            "grid, {n_clusters} clusters corrected to all {} T-draws; error < {:.2} sd",
            prepared.draws.n_draws(),
            (1e2 * error).ceil() / 1e2
        );
        answer.trust += &answer.diagnostics.evidence_agreement.map_or_else(String::new, favoured);
        Ok(answer)
    };
    spec.methods.iter().map(by_method).collect()
}

fn infer_by(
    prepared: &Prepared,
    some: Option<&Prepared>,
    spec: &InferSpec,
    method: Method,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<IPosterior> {
    solve(prepared, some, spec, method, monitor, |solved| {
        let Solved { components, resolved: resolved @ Resolved { grid, .. }, offset, .. } = solved;
        let (sigmas, shares) = components.marginals(grid, offset);
        let stream = stream.named(method.name()).named("draws");
        let numbers: Vec<usize> = (0..spec.draws).collect();
        let joint: Vec<(Vec<f64>, usize)> = numbers
            .par_chunks(POINTS)
            .map_init(Work::default, |work, numbers| {
                let mut rngs: Vec<_> = numbers.iter().map(|&i| stream.at(i as u64).rng()).collect();
                let mut omega = Matrix::zeros(numbers.len(), grid.dim());
                rngs.iter_mut().enumerate().for_each(|(p, rng)| grid.draw(rng, omega.row_mut(p)));
                components.draw(&omega, offset, work, &mut rngs)
            })
            .flatten_iter()
            .collect();
        let (draws, t_draws): (Vec<_>, Vec<_>) = joint.into_iter().unzip();
        let t_draws = (method.is_mixture() && !solved.is_marginal).then_some(t_draws);
        posterior(
            prepared,
            (method, spec.grid.accuracy),
            resolved,
            &sigmas,
            solved.diagnostics(prepared, &shares),
            draws,
            t_draws,
        )
    })
}

fn locate_by(
    prepared: &Prepared,
    spec: &InferSpec,
    method: Method,
    truth: &[Option<f64>],
    monitor: &dyn Monitor,
) -> Result<Located> {
    solve(prepared, None, spec, method, monitor, |solved| {
        let Solved { components, resolved: Resolved { grid, error, .. }, offset, .. } = solved;
        let dim = grid.dim();
        let (sigmas, shares) = match truth[dim..].iter().any(Option::is_some) || method == Method::ELik {
            true => components.marginals(grid, offset),
            false => (Vec::new(), Vec::new()),
        };
        let place = |(d, truth): (usize, &Option<f64>)| {
            truth.map(|truth| {
                let (grid, d) = if d < dim { (grid, d) } else { (&sigmas[d - dim], 0) };
                let marginal = grid.marginal(d);
                let [q05, q95] = [0.05, 0.95].map(|p| marginal.quantile(p));
                let below = marginal.cdf(truth);
                Place { pit: below, below, rank: None, q05, q95 }
            })
        };
        let places = truth.iter().enumerate().map(place).collect();
        let mut diagnostics = solved.diagnostics(prepared, &shares);
        diagnostics.quadrature_error = Some(*error);
        Located { method, engine: Engine::Grid, places, diagnostics }
    })
}

/// A method with its grid.
struct Solved<'a> {
    method: Method,
    is_marginal: bool,
    components: &'a Integrated<'a>,
    resolved: Resolved<'a>,
    log_alpha: &'a [f64],
    /// Log weight minus log evidence of each T-draw, or of the one density.
    offset: Vec<f64>,
}

impl Solved<'_> {
    /// `shares` are those of the T-draws in the posterior.
    fn diagnostics(&self, prepared: &Prepared, shares: &[f64]) -> Diagnostics {
        let Resolved { refined, grid, on_fewer, .. } = &self.resolved;
        let likelihood_evaluations = refined.evaluations * self.components.n_draws() + on_fewer;
        let mut diagnostics =
            Diagnostics { evaluations: refined.evaluations, likelihood_evaluations, ..Diagnostics::default() };
        if !self.method.is_weighted() {
            diagnostics.log_evidence = Some(match refined.log_evidence.as_slice() {
                [one] => *one,
                each => log_sum_exp(&self.log_alpha.iter().zip(each).map(|(a, z)| a + z).collect::<Vec<_>>()),
            });
            diagnostics.log_evidence_error = Some(grid.integral_error() + self.components.sd_error());
        }
        if self.method == Method::ELik {
            let log_shares: Vec<f64> = shares.iter().map(|share| share.ln()).collect();
            prepared.note_shares(&log_shares, self.log_alpha, &mut diagnostics);
        }
        diagnostics
    }
}

/// Refines a method's grid, and lets `answer` read from it; from the cells of `some` T-draws, where given.
fn solve<T>(
    prepared: &Prepared,
    some: Option<&Prepared>,
    spec: &InferSpec,
    method: Method,
    monitor: &dyn Monitor,
    answer: impl FnOnce(&Solved<'_>) -> T,
) -> Result<T> {
    let propagation = method.propagation(spec.point);
    let (likelihoods, log_alpha) = prepared.reduced(method, &*propagation);
    let pooling = match method {
        Method::ELik => Pooling::Averaged,
        method if method.is_mixture() => Pooling::Each,
        _ => Pooling::Pooled(&*propagation),
    };
    let components = Integrated::new(&likelihoods, &prepared.prior, &log_alpha, pooling);
    let mix = |log_evidence: &[f64]| match pooling {
        Pooling::Each => propagation.mix(&log_alpha, log_evidence).expect("mixtures have weights"),
        Pooling::Averaged | Pooling::Pooled(_) => vec![0.0],
    };
    let fewer = some.map(|some| Integrated::new(&some.likelihoods, &some.prior, some.log_alpha(), pooling));
    let resolved = resolve(&components, fewer.as_ref(), spec.grid, &mix, &|| monitor.proceed())?;
    let offset = match pooling {
        Pooling::Averaged => log_alpha.clone(),
        Pooling::Each | Pooling::Pooled(_) => resolved.refined.offsets(&resolved.weights),
    };
    let is_marginal = prepared.is_marginal(method);
    Ok(answer(&Solved { method, is_marginal, components: &components, resolved, log_alpha: &log_alpha, offset }))
}

/// The refined cells, with the weights and density of the mixture.
struct Resolved<'a> {
    refined: Refined<'a, Integrated<'a>>,
    /// Log-likelihoods that a grid on fewer T-draws took before.
    on_fewer: usize,
    /// Whether the first tolerance was met within the allowed memory.
    complete: bool,
    weights: Vec<f64>,
    grid: Grid,
    /// Its parameters.
    described: Vec<Described>,
    /// Stated error of the grid in sds.
    error: f64,
}

/// Refines with stricter and stricter tolerances until the stated error is small: where few of many components carry a mixture,
/// errors do not average out.
fn resolve<'a>(
    components: &'a Integrated<'a>,
    fewer: Option<&Integrated<'_>>,
    spec: GridSpec,
    mix: &dyn Fn(&[f64]) -> Vec<f64>,
    proceed: Proceed<'_>,
) -> Result<Resolved<'a>> {
    let mut settings = Settings::default();
    if components.has_many_cells() {
        // Errors of a mixture of many T-draws over several unknowns average out, and its many cells know them well. Over one unknown
        // so loose a tolerance states an error of a fifth of the true one.
        settings.tolerance = 1.0;
    }
    // The error falls about with the square of the tolerance.
    let looser = (spec.accuracy / GridSpec::default().accuracy).sqrt();
    settings.tolerance *= looser.max(1.0);
    let (aim, mut refined, on_fewer) = match fewer {
        None => (spec.accuracy, quadrature::refine(components, &settings, proceed)?, 0),
        Some(fewer) => {
            let cells = quadrature::refine(fewer, &settings, proceed)?;
            let on_fewer = cells.evaluations * fewer.n_draws();
            (CLUSTERED_AIM, cells.for_others(components, &settings, proceed)?, on_fewer)
        }
    };
    let complete = refined.converged;
    loop {
        let weights = mix(&refined.log_evidence);
        let grid = refined.mixture(&weights);
        let described: Vec<Described> = (0..grid.dim()).map(|d| grid.describe(d, &PROBABILITIES)).collect();
        let error = described.iter().map(|own| own.error).fold(0.0, f64::max);
        if error <= aim || !refined.converged || settings.tolerance <= STRICTEST {
            return Ok(Resolved { refined, on_fewer, complete, weights, grid, described, error });
        }
        // No finer than is needed.
        let (factor, before) = ((aim / error).sqrt().clamp(0.3, 0.8), refined.evaluations);
        while refined.evaluations == before && refined.converged && settings.tolerance > STRICTEST {
            settings.tolerance *= factor;
            refined = refined.further(&settings, proceed)?;
        }
    }
}

fn posterior(
    prepared: &Prepared,
    (method, accuracy): (Method, f64),
    resolved: &Resolved<'_>,
    sigmas: &[Grid],
    mut diagnostics: Diagnostics,
    draws: Vec<Vec<f64>>,
    t_draws: Option<Vec<usize>>,
) -> IPosterior {
    let (Resolved { grid, described, complete, .. }, dim) = (resolved, resolved.grid.dim());
    let of_sigmas: Vec<Described> = sigmas.iter().map(|sigma| sigma.describe(0, &PROBABILITIES)).collect();
    let all = described.iter().chain(&of_sigmas).zip(prepared.prior.names());
    let mut unknowns: Vec<QuantitySummary> = all.map(|(own, name)| from_grid(own, name)).collect();
    let error = unknowns.iter().filter_map(|u| u.quadrature_error).fold(0.0, f64::max);
    for (derived, (name, f)) in prepared.derived.iter().zip(prepared.quantities().iter().skip(prepared.prior.len())) {
        // The grid holds the unknowns alone: what depends on an sd comes from the joint draws, with their error.
        let of_unknowns = derived.expression.variables_used().iter().all(|&v| v < dim);
        unknowns.push(if of_unknowns {
            derived_from_grid(grid, name, &**f, error)
        } else {
            from_draws(name, &draws, &**f)
        });
    }
    diagnostics.quadrature_error = Some(error);
    diagnostics.cells = Some(grid.n_cells());
    // One digit, rounded up: the statement must hold.
    let bound = 10f64.powf(error.max(1e-6).log10().ceil());
    let mut trust = format!("grid, error < {bound} sd");
    if let Some(share) = diagnostics.evidence_agreement {
        trust += &favoured(share);
    }
    let mut warnings = Vec::new();
    if error > accuracy.max(0.01) || !*complete {
        let why = if *complete { "leaves" } else { "reached its memory limit with" };
        warnings.push(format!(
            "{}: the grid {why} an error of {error:.1e} sd; use clusters, fewer T-draws, or engine = \"smc\"",
            method.name()
        ));
    }
    IPosterior {
        method: method.name().into(),
        version: None,
        engine: "grid".into(),
        unknowns,
        trust,
        diagnostics,
        warnings,
        draws,
        t_draws,
        chains: 1,
        transitions: None,
    }
}
