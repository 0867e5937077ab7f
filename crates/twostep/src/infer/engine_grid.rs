//! I-posteriors by adaptive quadrature: E-Post and E-Lik from one grid over the posteriors of all T-draws.

use super::components::Moments;
use super::integrated::{Integrated, Work};
use super::locate::{Located, Place};
use super::propagation::Method;
use super::summary::{QuantitySummary, derived_from_grid, from_draws, from_grid};
use super::{Diagnostics, Engine, IPosterior, InferSpec, Prepared, agreement, favoured};
use crate::error::Result;
use crate::matrix::Matrix;
use crate::mcmc::quadrature::{self, Grid, Refined, Settings};
use crate::monitor::{Monitor, Proceed};
use crate::special::log_sum_exp;
use crate::stream::Stream;
use crate::train::PROBABILITIES;
use rayon::prelude::*;

/// Stated error that the grid aims at, in sds.
const AIM: f64 = 1e-3;
/// Tolerances that are tried for it, one after the other.
const TOLERANCES: [f64; 4] = [0.1, 1e-2, 1e-3, 1e-4];

pub(super) fn infer(
    prepared: &Prepared,
    spec: &InferSpec,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<Vec<IPosterior>> {
    monitor.progress("infer", 0, spec.methods.len());
    let mut out: Vec<IPosterior> = Vec::new();
    for group in groups(&spec.methods) {
        for posterior in infer_group(prepared, spec, &group, stream, monitor)? {
            out.push(posterior);
            monitor.progress("infer", out.len(), spec.methods.len());
        }
    }
    out.sort_by_key(|p| spec.methods.iter().position(|m| m.name() == p.method));
    Ok(out)
}

/// Where `truth` lies in the posterior by every method; nothing else is computed of them.
pub(super) fn locate(
    prepared: &Prepared,
    spec: &InferSpec,
    truth: &[Option<f64>],
    monitor: &dyn Monitor,
) -> Result<Vec<Located>> {
    let mut out = Vec::new();
    for group in groups(&spec.methods) {
        out.extend(locate_group(prepared, spec, &group, truth, monitor)?);
    }
    out.sort_by_key(|located| spec.methods.iter().position(|m| *m == located.method));
    Ok(out)
}

/// Log evidence of every T-draw.
pub(super) fn log_evidences(prepared: &Prepared, spec: &InferSpec, monitor: &dyn Monitor) -> Result<Vec<f64>> {
    solve(prepared, spec, &[Method::EPost], monitor, |solved| solved.resolved.refined.log_evidence.clone())
}

/// Log evidence of every T-draw, and mean and sd of each unknown (rows) given each of them (columns): by the nodes of E-Post, where
/// every T-draw has its weight.
pub(super) fn components(
    prepared: &Prepared,
    spec: &InferSpec,
    monitor: &dyn Monitor,
) -> Result<(Vec<f64>, Matrix, Matrix)> {
    solve(prepared, spec, &[Method::EPost], monitor, |solved| {
        let m = solved.judged.iter().position(|method| *method == Method::EPost).unwrap_or(0);
        let (grid, offsets) = (&solved.resolved.grids[m], solved.resolved.offsets());
        let mut nodes: Vec<(Vec<f64>, f64)> = Vec::new();
        // Nodes that cannot move a digit.
        grid.for_each_node(|x, weight| nodes.extend((weight > 1e-16).then(|| (x.to_vec(), weight))));
        let centre: Vec<f64> = (0..grid.dim()).map(|d| grid.moments(d).0).collect();
        let of_block = |block: &[(Vec<f64>, f64)]| {
            let (mut work, mut shares) = (Work::default(), Vec::new());
            let mut moments = Moments::new(grid.dim(), solved.log_alpha.len());
            for (x, weight) in block {
                solved.components.responsibilities(x, &offsets[m], &mut work, &mut shares);
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

/// Methods that share one grid: E-Post and E-Lik mix the same posteriors, one per T-draw; the others have a density of their
/// own, or a mixture that must not change theirs.
fn groups(methods: &[Method]) -> impl Iterator<Item = Vec<Method>> {
    let (mixtures, own): (Vec<Method>, Vec<Method>) =
        methods.iter().partition(|m| [Method::ELik, Method::EPost].contains(m));
    std::iter::once(mixtures).chain(own.into_iter().map(|m| vec![m])).filter(|g| !g.is_empty())
}

fn infer_group(
    prepared: &Prepared,
    spec: &InferSpec,
    group: &[Method],
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<Vec<IPosterior>> {
    solve(prepared, spec, group, monitor, |solved| {
        let grids = &solved.resolved.grids;
        let offsets: Vec<Vec<f64>> = solved.resolved.offsets();
        let sigma_grids = solved.components.sigma_grids(grids, &offsets);
        let answers = solved.answers(group).map(|(m, method)| {
            let stream = stream.named(method.name()).named("draws");
            let joint: Vec<(Vec<f64>, usize)> = (0..spec.draws)
                .into_par_iter()
                .map_init(Work::default, |work, i| {
                    let mut rng = stream.at(i as u64).rng();
                    let mut x = grids[m].draw(&mut rng);
                    let (s, sigmas) = solved.components.draw(&x, &offsets[m], work, &mut rng);
                    x.extend(sigmas);
                    (x, s)
                })
                .collect();
            let (draws, t_draws): (Vec<_>, Vec<_>) = joint.into_iter().unzip();
            let sigmas: Vec<&Grid> = sigma_grids.iter().map(|of_sigma| &of_sigma[m]).collect();
            let t_draws = method.is_mixture().then_some(t_draws);
            let diagnostics = solved.diagnostics(m, method);
            posterior(prepared, method, &grids[m], &sigmas, diagnostics, solved.resolved.complete, draws, t_draws)
        });
        answers.collect()
    })
}

fn locate_group(
    prepared: &Prepared,
    spec: &InferSpec,
    group: &[Method],
    truth: &[Option<f64>],
    monitor: &dyn Monitor,
) -> Result<Vec<Located>> {
    solve(prepared, spec, group, monitor, |solved| {
        let grids = &solved.resolved.grids;
        let dim = grids[0].dim();
        let of_sigmas = truth[dim..].iter().any(Option::is_some);
        let sigma_grids =
            if of_sigmas { solved.components.sigma_grids(grids, &solved.resolved.offsets()) } else { Vec::new() };
        let answers = solved.answers(group).map(|(m, method)| {
            let place = |(d, truth): (usize, &Option<f64>)| {
                truth.map(|truth| {
                    let (grid, d) = if d < dim { (&grids[m], d) } else { (&sigma_grids[d - dim][m], 0) };
                    let marginal = grid.marginal(d);
                    let [q05, q95] = [0.05, 0.95].map(|p| marginal.quantile(p));
                    let below = marginal.cdf(truth);
                    Place { pit: below, below, rank: None, q05, q95 }
                })
            };
            let places = truth.iter().enumerate().map(place).collect();
            let mut diagnostics = solved.diagnostics(m, method);
            diagnostics.quadrature_error = Some(solved.resolved.error);
            Located { method, engine: Engine::Grid, places, diagnostics }
        });
        answers.collect()
    })
}

/// A group of methods with their grid.
struct Solved<'a> {
    components: &'a Integrated<'a>,
    resolved: Resolved<'a>,
    log_alpha: Vec<f64>,
    /// The methods that the grid was refined for.
    judged: Vec<Method>,
}

impl Solved<'_> {
    /// Those of the methods that were asked for, with their number.
    fn answers(&self, group: &[Method]) -> impl Iterator<Item = (usize, Method)> {
        self.judged.iter().copied().enumerate().filter(|(_, method)| group.contains(method))
    }

    fn diagnostics(&self, m: usize, method: Method) -> Diagnostics {
        let Resolved { refined, weights, .. } = &self.resolved;
        let mut diagnostics = Diagnostics { evaluations: refined.evaluations, ..Diagnostics::default() };
        if !method.is_weighted() {
            let joint: Vec<f64> = self.log_alpha.iter().zip(&refined.log_evidence).map(|(a, z)| a + z).collect();
            diagnostics.log_evidence = Some(log_sum_exp(&joint));
        }
        if method == Method::ELik {
            let share = agreement(&weights[m], &self.log_alpha);
            diagnostics.evidence_agreement = Some(share);
            diagnostics.effective_t_draws = Some(share * self.log_alpha.len() as f64);
        }
        diagnostics
    }
}

/// Refines one grid for methods that share it, and lets `answer` read from it.
fn solve<T>(
    prepared: &Prepared,
    spec: &InferSpec,
    group: &[Method],
    monitor: &dyn Monitor,
    answer: impl FnOnce(&Solved<'_>) -> T,
) -> Result<T> {
    let mixed = group[0].is_mixture();
    // Both mixtures are resolved whichever is asked for, so that neither depends on the other's company.
    let is_own = matches!(group[0], Method::Own(_));
    let judged = if mixed && !is_own { vec![Method::ELik, Method::EPost] } else { group.to_vec() };
    let propagations: Vec<_> = judged.iter().map(|m| m.propagation(spec.point)).collect();
    let (likelihoods, log_alpha) = prepared.reduced(judged[0], &*propagations[0]);
    let pooled = (!mixed).then_some(&*propagations[0]);
    let components = Integrated::new(&likelihoods, &prepared.prior, &log_alpha, pooled);
    let alpha = if mixed { log_alpha.clone() } else { vec![0.0] };
    let mix = |log_evidence: &[f64]| -> Vec<Vec<f64>> {
        let weights = propagations.iter().map(|p| p.mix(&alpha, log_evidence));
        weights.map(|w| if mixed { w.expect("mixtures have weights") } else { vec![0.0] }).collect()
    };
    let resolved = resolve(&components, &mix, &|| monitor.proceed())?;
    Ok(answer(&Solved { components: &components, resolved, log_alpha: alpha, judged }))
}

/// The refined cells, with the weights and density of every mixture.
struct Resolved<'a> {
    refined: Refined<'a, Integrated<'a>>,
    /// Whether the first tolerance was met within the allowed memory.
    complete: bool,
    weights: Vec<Vec<f64>>,
    grids: Vec<Grid>,
    /// Largest stated error of the grids in sds.
    error: f64,
}

impl Resolved<'_> {
    /// Log weight minus log evidence of each component, for every mixture.
    fn offsets(&self) -> Vec<Vec<f64>> {
        self.weights.iter().map(|w| self.refined.offsets(w)).collect()
    }
}

/// Refines with stricter and stricter tolerances until the stated error of every mixture is small: where few of many
/// components carry a mixture, errors do not average out.
fn resolve<'a>(
    components: &'a Integrated<'a>,
    mix: &dyn Fn(&[f64]) -> Vec<Vec<f64>>,
    proceed: Proceed<'_>,
) -> Result<Resolved<'a>> {
    let settings = TOLERANCES.map(|tolerance| Settings { tolerance, ..Settings::default() });
    let [first, stricter @ ..] = &settings;
    let mut refined = quadrature::refine(components, first, proceed)?;
    let complete = refined.converged;
    let mut stricter = stricter.iter();
    loop {
        let weights = mix(&refined.log_evidence);
        let grids = refined.mixtures(&weights);
        let error = grids.iter().flat_map(|g| (0..g.dim()).map(|d| g.error(d, &PROBABILITIES))).fold(0.0, f64::max);
        match stricter.next() {
            Some(settings) if error > AIM && refined.converged => refined = refined.further(settings, proceed)?,
            _ => return Ok(Resolved { refined, complete, weights, grids, error }),
        }
    }
}

fn posterior(
    prepared: &Prepared,
    method: Method,
    grid: &Grid,
    sigmas: &[&Grid],
    mut diagnostics: Diagnostics,
    complete: bool,
    draws: Vec<Vec<f64>>,
    t_draws: Option<Vec<usize>>,
) -> IPosterior {
    let dim = grid.dim();
    let mut unknowns: Vec<QuantitySummary> = (0..dim).map(|d| from_grid(grid, d, &prepared.prior.names()[d])).collect();
    for (j, sigma) in sigmas.iter().enumerate() {
        unknowns.push(from_grid(sigma, 0, &prepared.prior.names()[dim + j]));
    }
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
    if error > 0.01 || !complete {
        let why = if complete { "leaves" } else { "reached its memory limit with" };
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
