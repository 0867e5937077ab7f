//! E-Lik and E-Post from a few clusters of T-draws, corrected to all of them: as many clusters as that takes.
//!
//! On a grid clusters say where to look, and all T-draws are evaluated there. For samplers the I-posterior under L clusters is the
//! proposal. A centroid hides how its members differ, which would make the proposal too
//! narrow, so their spread is added to the noise. Importance weights towards all S T-draws ([`super::reweight`]) correct the
//! points; their k-hat and the errors that they state say whether L clusters were enough. Where they were not, there are twice as
//! many, most of them the T-draws that the points covered worst, each as a cluster of its own.

use super::propagation::Method;
use super::reweight::{self, Corrected, Points, Table};
use super::{
    Clustering, Diagnostics, Engine, IPosterior, InferSpec, Likelihoods, Link, Prepared, engine_grid, engine_nuts,
    engine_smc, favoured,
};
use crate::draws::Draws;
use crate::error::Result;
use crate::matrix::Matrix;
use crate::monitor::Monitor;
use crate::simulate::design;
use crate::special::log_sum_exp;
use crate::stream::Stream;
use crate::surrogate::Scratch;
use crate::train::cluster::{self, Representative};

/// Clusters to begin with.
const FIRST: usize = 16;
/// Largest stated error of any reported quantity, in sds.
const AIM: f64 = 0.05;
/// Multiple of it that more points cannot mend, but a better proposal.
const FAR: f64 = 6.0;
/// Most enlargements of a set of points for the same clusters, and the largest factor of one.
const ENLARGEMENTS: usize = 2;
const LARGEST: f64 = 12.0;
/// Share of single T-draws among those that stand for all, after the first round, and their weight in the proposal.
const JOINED: f64 = 0.75;
const WEIGHT: f64 = 0.5;
/// Points that a T-draw's own posterior needs, and the share of T-draws that may have fewer.
const FEW: f64 = 10.0;
const FEW_SHARE: f64 = 0.01;
/// T-draws that a grid looks with before it takes all of them.
const ON_GRID: usize = 64;

/// A proposal: its points on demand, and what is known of its cost.
pub(super) struct Proposal<'a> {
    /// At least so many points, and the unknowns that were evaluated for them.
    pub(super) draw: &'a dyn Fn(usize, Stream) -> Result<(Points, usize)>,
    /// Unknowns evaluated to make it.
    pub(super) evaluations: usize,
    /// Unknowns at which the engine would evaluate all T-draws, at least.
    pub(super) on_all: usize,
    /// Points to begin with.
    pub(super) first: usize,
}

/// What one proposal led to.
enum Outcome {
    Done(Vec<(Method, Corrected)>, Points),
    /// More clusters are needed: why.
    Grow(String),
    /// The rest would take more than all T-draws do.
    Dear(usize),
}

/// The answers by `methods` of E-Lik and E-Post, or why all T-draws must do, and the work that took: log-likelihoods of single
/// T-draws.
pub(super) fn infer(
    prepared: &Prepared,
    spec: &InferSpec,
    methods: &[Method],
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<std::result::Result<Vec<IPosterior>, (String, usize)>> {
    let n_draws = prepared.likelihoods.n_draws();
    let engine = prepared.engine(spec);
    let (mut n_clusters, mut work) = (FIRST, 0);
    let mut joined: Vec<usize> = Vec::new();
    let mut why = format!("{n_draws} T-draws are too few to be clustered");
    let features = features(&prepared.likelihoods, prepared);
    while 4 * n_clusters <= n_draws {
        let stream = stream.named("clusters").at(n_clusters as u64);
        let clustered = prepared.clustered(spec, &features, n_clusters - joined.len(), &joined, stream);
        let n_found = clustered.likelihoods.n_draws();
        let mut covered = Vec::new();
        let mut judge = |proposal: &Proposal<'_>| {
            work += proposal.evaluations * n_found;
            correct(prepared, proposal, methods, n_found, &mut work, &mut covered, stream)
        };
        let outcome = match engine {
            Engine::Smc => engine_smc::propose(&clustered, spec, methods[0], n_draws, stream, monitor, &mut judge)?,
            Engine::Nuts => match engine_nuts::propose(&clustered, spec, stream, monitor, &mut judge)? {
                Some(outcome) => outcome,
                None => return Ok(Err((format!("the chains on {n_found} clusters disagree"), work))),
            },
            // The cells of the first look are most of such a grid.
            _ if prepared.likelihoods.n_unknowns() == 1 => {
                return Ok(Err(("over one unknown clusters save a grid nothing".into(), work)));
            }
            _ => return on_grid(prepared, spec, &scaled(&features), stream, monitor).map(Ok),
        };
        match outcome {
            Outcome::Done(corrected, points) => {
                let finish = |(method, corrected): (Method, Corrected)| {
                    let k_hat = Some(corrected.k_hat).filter(|k| k.is_finite());
                    let clustering = Clustering { clusters: n_found, k_hat, error: corrected.error };
                    finish(prepared, spec, engine, method, &corrected, &points, clustering, work, stream)
                };
                return Ok(Ok(corrected.into_iter().map(finish).collect()));
            }
            Outcome::Grow(reason) => why = format!("{n_found} clusters were not enough ({reason})"),
            Outcome::Dear(points) => {
                let reason = format!("with {n_found} clusters the correction would take {points} points or more");
                return Ok(Err((format!("{reason}, which is dearer"), work)));
            }
        }
        // T-draws that the proposal covers worst join it as themselves.
        let mut order: Vec<usize> = (0..covered.len()).filter(|s| !joined.contains(s)).collect();
        order.sort_by(|&a, &b| covered[b].total_cmp(&covered[a]));
        n_clusters *= 2;
        let n_joined = (JOINED * n_clusters as f64) as usize;
        joined.extend(order.into_iter().take(n_joined.saturating_sub(joined.len())));
    }
    Ok(Err((why, work)))
}

/// By a grid: its nodes need no random points, and its weights no smoothing. The cells that clusters ask for are those that all T-draws
/// need, but for a few; whatever the clusters are, the answer is that of all T-draws with the error that the grid states.
fn on_grid(
    prepared: &Prepared,
    spec: &InferSpec,
    features: &Matrix,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<Vec<IPosterior>> {
    let n_clusters = ON_GRID.min(prepared.likelihoods.n_draws() / 4);
    let some = prepared.some(&prepared.spread_draws(features, n_clusters, stream.named("k-means")));
    engine_grid::infer_on_cells_of(prepared, &some, spec, stream, monitor)
}

/// Corrects the points of a proposal, more and more of them until the errors are small.
fn correct(
    prepared: &Prepared,
    proposal: &Proposal<'_>,
    methods: &[Method],
    n_clusters: usize,
    work: &mut usize,
    covered: &mut Vec<f64>,
    stream: Stream,
) -> Result<Outcome> {
    let n_draws = prepared.likelihoods.n_draws();
    let affordable = proposal.on_all * n_draws;
    let mut wanted = proposal.first;
    for enlargement in 0..=ENLARGEMENTS {
        if *work + wanted * n_draws > affordable {
            return Ok(Outcome::Dear(wanted));
        }
        let (points, made) = (proposal.draw)(wanted, stream.named("points").at(enlargement as u64))?;
        let with_e_post = methods.contains(&Method::EPost);
        let table = Table::new(&prepared.likelihoods, &points, with_e_post);
        let (log_evidence, effective) = table.evidences();
        // One pass for evidences, one for the weights of each method, two for the influences of E-Post.
        let passes = 1 + methods.len() + 2 * usize::from(with_e_post);
        *work += (made + table.evaluations) * n_clusters + (table.evaluations + (passes - 1) * table.pass()) * n_draws;
        let joint: Vec<f64> = prepared.log_alpha().iter().zip(&log_evidence).map(|(a, z)| a + z).collect();
        let total = log_sum_exp(&joint);
        let share = |s: usize| prepared.log_alpha()[s].exp().max((joint[s] - total).exp());
        // What a T-draw adds to the variance of a mixture: its share squared over its effective points.
        *covered = effective.iter().enumerate().map(|(s, e)| share(s).powi(2) / e.max(1e-3)).collect();
        let few = effective.iter().filter(|e| **e < FEW).count() as f64;
        if with_e_post && few > FEW_SHARE * n_draws as f64 {
            return Ok(Outcome::Grow(format!("{few:.0} T-draws have fewer than {FEW} effective points")));
        }
        let answers: Vec<Corrected> = methods
            .iter()
            .map(|&method| reweight::correct(prepared, &table, &log_evidence, method == Method::EPost))
            .collect();
        let k_hat = answers
            .iter()
            .map(|a| a.k_hat)
            .fold(f64::NEG_INFINITY, |m, k| if k.is_nan() { f64::INFINITY } else { m.max(k) });
        let error = answers.iter().map(|a| a.error).fold(0.0, f64::max);
        if k_hat > reweight::largest_k_hat(points.x.len()) {
            return Ok(Outcome::Grow(format!("k-hat {k_hat:.2}")));
        }
        if error <= AIM {
            return Ok(Outcome::Done(methods.iter().copied().zip(answers).collect(), points));
        }
        if !error.is_finite() {
            return Ok(Outcome::Grow("an error is not known".into()));
        }
        if error > FAR * AIM {
            return Ok(Outcome::Grow(format!("error {error:.2} sd")));
        }
        // A tenth more than the error asks for, since it is itself an estimate.
        let factor = 1.1 * (error / AIM).powi(2);
        wanted = (wanted as f64 * factor.clamp(1.5, LARGEST)).ceil() as usize;
    }
    Ok(Outcome::Grow("the error did not fall as it should".into()))
}

#[expect(clippy::too_many_arguments, reason = "all that an answer consists of")]
fn finish(
    prepared: &Prepared,
    spec: &InferSpec,
    engine: Engine,
    method: Method,
    corrected: &Corrected,
    points: &Points,
    clustering: Clustering,
    work: usize,
    stream: Stream,
) -> IPosterior {
    let stream = stream.named(method.name());
    let n_draws = prepared.likelihoods.n_draws();
    let draws = corrected.draws(points, spec.draws, stream.named("draws"));
    let t_draws = prepared.assign(&draws, &corrected.offsets, stream.named("t-draws"));
    let k_hat = clustering.k_hat.map_or_else(String::new, |k_hat| format!(" (k-hat {k_hat:.2})"));
    let mut trust = format!(
        "{}, {} clusters corrected to all {n_draws} T-draws{k_hat}; error < {:.3} sd",
        engine.name(),
        clustering.clusters,
        (1e3 * corrected.error).ceil() / 1e3
    );
    let mut diagnostics =
        Diagnostics { evaluations: points.x.len(), likelihood_evaluations: work, ..Diagnostics::default() };
    if let Some((log_evidence, error, log_shares)) = &corrected.evidence {
        if engine != Engine::Nuts {
            (diagnostics.log_evidence, diagnostics.log_evidence_error) = (Some(*log_evidence), Some(*error));
        }
        prepared.note_shares(log_shares, prepared.log_alpha(), &mut diagnostics);
        trust += &diagnostics.evidence_agreement.map_or_else(String::new, favoured);
    }
    diagnostics.clusters = Some(clustering);
    IPosterior {
        method: method.name().into(),
        version: None,
        engine: engine.name().into(),
        unknowns: corrected.unknowns.clone(),
        trust,
        diagnostics,
        warnings: Vec::new(),
        draws,
        t_draws: Some(t_draws),
        chains: 1,
        transitions: None,
    }
}

/// Unknowns at which surrogates are compared, and measured inputs of each output.
const PLACES: usize = 8;
const MEASURED: usize = 6;

/// eta of every output (a block of rows of each) at unknowns over the prior and some of the measured inputs, for every T-draw.
fn features(likelihoods: &Likelihoods, prepared: &Prepared) -> Vec<Matrix> {
    let n = likelihoods.n_unknowns();
    let unit =
        design::unit_points(design::Method::Halton, PLACES, n, Stream::root(0)).unwrap_or_else(|_| vec![vec![0.5; n]]);
    let omega: Vec<Vec<f64>> = unit
        .iter()
        .map(|t| t.iter().zip(prepared.prior.marginals()).map(|(t, prior)| prior.quantile(*t)).collect())
        .collect();
    let of_output = |term: &super::OutputTerm| {
        let points = &term.data.points;
        let rows = points.rows().clamp(1, MEASURED);
        let place = |i: usize| i * points.rows() / rows;
        let x = Matrix::from_fn(omega.len() * rows, n + points.cols(), |i, d| {
            if d < n { omega[i / rows][d] } else { points[(place(i % rows), d - n)] }
        });
        let mut eta = Matrix::default();
        term.surrogate.predict(&x, &term.coefficients, &mut eta, &mut Scratch::default());
        eta.data_mut().iter_mut().for_each(|e| *e *= term.affine.1);
        eta
    };
    likelihoods.terms().map(of_output).collect()
}

/// A row per T-draw: every output in units of its spread.
fn scaled(features: &[Matrix]) -> Matrix {
    let columns: Vec<Vec<f64>> = features
        .iter()
        .flat_map(|eta| {
            let finite = || eta.data().iter().filter(|e| e.is_finite());
            let n = finite().count().max(1) as f64;
            let mean = finite().sum::<f64>() / n;
            let spread = (finite().map(|e| (e - mean).powi(2)).sum::<f64>() / n).sqrt();
            let unit = if spread > 0.0 { spread * (eta.rows() as f64).sqrt() } else { 1.0 };
            (0..eta.rows())
                .map(move |i| eta.row(i).iter().map(|e| if e.is_finite() { e / unit } else { 0.0 }).collect())
        })
        .collect();
    let n_draws = features.first().map_or(0, Matrix::cols);
    Matrix::from_fn(n_draws, columns.len(), |s, f| columns[f][s])
}

fn nearest_to_centre(features: &Matrix, weights: &[f64], members: &[usize]) -> usize {
    let mass: f64 = members.iter().map(|&s| weights[s]).sum();
    let mean = |f: usize| members.iter().map(|&s| weights[s] * features[(s, f)]).sum::<f64>() / mass;
    let centre: Vec<f64> = (0..features.cols()).map(mean).collect();
    let distance = |s: usize| centre.iter().zip(features.row(s)).map(|(c, x)| (x - c).powi(2)).sum::<f64>();
    members.iter().copied().min_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
}

impl Prepared {
    /// The same with clusters of the T-draws, whose spread is part of the noise where it has room for that.
    fn clustered(
        &self,
        spec: &InferSpec,
        features: &[Matrix],
        n_clusters: usize,
        joined: &[usize],
        stream: Stream,
    ) -> Self {
        let weights = self.draws.weights();
        let by_draw = scaled(features);
        let mut members = cluster::partition(&by_draw, &weights, n_clusters, 2, stream.named("k-means"));
        let mut log_weights: Vec<f64> = members
            .iter()
            .map(|m| log_sum_exp(&m.iter().map(|&s| self.draws.log_weights()[s]).collect::<Vec<_>>()))
            .collect();
        if !joined.is_empty() {
            log_weights.iter_mut().for_each(|w| *w += (1.0 - WEIGHT).ln());
            members.extend(joined.iter().map(|&s| vec![s]));
            log_weights.resize(members.len(), (WEIGHT / joined.len() as f64).ln());
        }
        let mass = |m: &[usize]| m.iter().map(|&s| weights[s]).sum::<f64>();
        let mean = |m: &[usize], row: &[f64]| m.iter().map(|&s| weights[s] * row[s]).sum::<f64>() / mass(m);
        let nearest = |m: &[usize]| -> usize { nearest_to_centre(&by_draw, &weights, m) };
        // Noise that cannot carry an approximation error needs real draws, whose posteriors are plausible by themselves.
        let roomy =
            self.likelihoods.terms().all(|term| term.link == Link::Identity && term.family.name() != "student-t");
        let by_centroid = roomy && spec.representative == Representative::Centroid;
        let stand_ins: Vec<usize> = if by_centroid { Vec::new() } else { members.iter().map(|m| nearest(m)).collect() };
        let reduce = |values: &Matrix| match by_centroid {
            true => Matrix::from_fn(values.rows(), members.len(), |p, l| mean(&members[l], values.row(p))),
            false => values.select_cols(&stand_ins),
        };
        let parts = self.likelihoods.terms().zip(features).map(|(term, eta)| {
            let spread = |m: &[usize]| {
                let rows = (0..eta.rows()).map(|i| {
                    let row = eta.row(i);
                    let centre = mean(m, row);
                    m.iter().map(|&s| weights[s] * (row[s] - centre).powi(2)).sum::<f64>() / mass(m)
                });
                rows.sum::<f64>() / eta.rows() as f64
            };
            let own = |m: &[usize]| term.sigma_a.as_ref().map_or(0.0, |a| mean(m, a));
            let sigma_a = members.iter().map(|m| (own(m).powi(2) + spread(m)).sqrt()).collect();
            let own_only = || term.sigma_a.as_ref().map(|a| stand_ins.iter().map(|&s| a[s]).collect());
            (reduce(&term.coefficients), if roomy { Some(sigma_a) } else { own_only() })
        });
        let likelihoods = self.likelihoods.with_draws(parts.collect());
        let draws = Draws::weighted(self.draws.names().to_vec(), reduce(self.draws.values()), log_weights);
        self.with(likelihoods, draws)
    }

    /// A row per T-draw, in which T-draws are near each other that agree on what is measured.
    pub(super) fn draw_features(&self) -> Matrix {
        scaled(&features(&self.likelihoods, self))
    }

    /// So many T-draws spread over all, by their features.
    pub(super) fn spread_draws(&self, features: &Matrix, n: usize, stream: Stream) -> Vec<usize> {
        let weights = self.draws.weights();
        let members = cluster::partition(features, &weights, n, 2, stream);
        members.iter().map(|m| nearest_to_centre(features, &weights, m)).collect()
    }

    /// The same with some of the T-draws, by their weights.
    pub(super) fn some(&self, draws: &[usize]) -> Self {
        let log_weights = draws.iter().map(|&s| self.draws.log_weights()[s]).collect();
        self.with(self.likelihoods.select(draws), self.draws.select(draws, log_weights))
    }

    fn with(&self, likelihoods: Likelihoods, draws: Draws) -> Self {
        Self {
            prior: self.prior.clone(),
            likelihoods,
            draws,
            outputs: self.outputs.clone(),
            derived: self.derived.clone(),
            sigma_a: self.sigma_a,
            series_errors: self.series_errors,
            axes: self.axes.clone(),
            zeros: self.zeros,
            is_placed: self.is_placed,
            offsets: self.offsets.clone(),
            is_linear: self.is_linear.clone(),
            exact: std::sync::OnceLock::new(),
            marginal: std::sync::OnceLock::new(),
            fits: Vec::new(),
        }
    }
}
