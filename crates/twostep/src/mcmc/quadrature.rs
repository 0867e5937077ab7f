//! Adaptive tensor quadrature of many densities at once over one to three parameters, looking everywhere by construction.
//!
//! The domain is mapped to the unit cube and cut into cells, each with a tensor Gauss-Legendre rule. A cell is halved while
//! some component is rough in it, or while a parabola through its log density promises a peak between its nodes; every
//! component counts, however small its share of a mixture, so that the posterior of each T-draw is resolved.

use crate::error::{Error, Result};
use crate::kernels;
use crate::monitor::Proceed;
use crate::special::gauss_legendre;
use crate::stream::Stream;
use rand::{Rng, RngExt};
use rayon::prelude::*;

/// Nodes per axis of a cell.
pub const NODES: usize = 5;

/// More axes than this make a tensor rule dearer than sampling.
pub const MAX_AXES: usize = 3;

/// The range of one parameter and how the unit interval is stretched over it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Axis {
    /// `x = lower + t (upper - lower)`.
    Interval {
        /// Lower end.
        lower: f64,
        /// Upper end.
        upper: f64,
    },
    /// `x = lower + scale t / (1 - t)`.
    Above {
        /// Lower end.
        lower: f64,
        /// Value above the lower end that is reached in the middle.
        scale: f64,
    },
    /// `x = upper - scale (1 - t) / t`.
    Below {
        /// Upper end.
        upper: f64,
        /// Value below the upper end that is reached in the middle.
        scale: f64,
    },
    /// `log x = lower + t (upper - lower)`.
    Log {
        /// Logarithm of the lower end.
        lower: f64,
        /// Logarithm of the upper end.
        upper: f64,
    },
    /// `x = centre + scale u / (1 - u^2)` with `u = 2t - 1`.
    Line {
        /// Centre.
        centre: f64,
        /// Scale.
        scale: f64,
    },
}

impl Axis {
    /// The axis of a parameter with this support, of which `centre` and `scale` are typical values.
    pub fn new((lower, upper): (f64, f64), centre: f64, scale: f64) -> Self {
        match (lower.is_finite(), upper.is_finite()) {
            (true, true) => Self::Interval { lower, upper },
            (true, false) => Self::Above { lower, scale: (centre - lower).max(scale) },
            (false, true) => Self::Below { upper, scale: (upper - centre).max(scale) },
            (false, false) => Self::Line { centre, scale },
        }
    }

    /// `x` and `log dx/dt` at `t` in (0, 1).
    pub fn at(&self, t: f64) -> (f64, f64) {
        match *self {
            Self::Interval { lower, upper } => (lower + t * (upper - lower), (upper - lower).ln()),
            Self::Log { lower, upper } => {
                let log = lower + t * (upper - lower);
                (log.exp(), log + (upper - lower).ln())
            }
            Self::Above { lower, scale } => (lower + scale * t / (1.0 - t), scale.ln() - 2.0 * (1.0 - t).ln()),
            Self::Below { upper, scale } => (upper - scale * (1.0 - t) / t, scale.ln() - 2.0 * t.ln()),
            Self::Line { centre, scale } => {
                let u = 2.0 * t - 1.0;
                let gap = 4.0 * t * (1.0 - t);
                (centre + scale * u / gap, (2.0 * scale * (1.0 + u * u)).ln() - 2.0 * gap.ln())
            }
        }
    }
}

/// Several log densities over the same parameters.
pub trait Components: Sync {
    /// Buffers of one thread.
    type Work: Send;

    /// One axis per parameter.
    fn axes(&self) -> &[Axis];

    /// Number K of components.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Share of each component in the mixtures that matter: how much its error counts.
    fn importance(&self, log_evidence: &[f64]) -> Vec<f64>;

    /// Fresh buffers.
    fn work(&self) -> Self::Work;

    /// `out[node * K + k] = log p_k` up to the component's own constant (its evidence), at every point of the tensor product
    /// of `nodes`; the last axis runs fastest.
    fn evaluate(&self, nodes: &[[f64; NODES]], work: &mut Self::Work, out: &mut [f64]);
}

/// When to stop refining.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bound on the summed roughness of all cells (size of the two highest Legendre modes), weighted by how much a cell moves
    /// second moments. The rule integrates four more degrees, so errors are far smaller: 1e-4 sd at the default 0.1.
    pub tolerance: f64,
    /// Bound on cells times components, which bounds the memory (8 bytes each).
    pub max_values: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { tolerance: 0.1, max_values: 1 << 27 }
    }
}

/// Share of all that matters below which a cell is nothing.
const NOTHING: f64 = 1e-14;
/// Share of a component that may stay hidden between the nodes of a cell.
const HIDDEN_SHARE: f64 = 1e-4;
/// How much higher than the sum of parabolas along the axes a peak between nodes may rise.
const ENTANGLED: f64 = 1.5;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    lower: [f64; MAX_AXES],
    width: [f64; MAX_AXES],
}

impl Cell {
    fn halves(&self, axis: usize) -> [Cell; 2] {
        let mut first = *self;
        first.width[axis] *= 0.5;
        let mut second = first;
        second.lower[axis] += first.width[axis];
        [first, second]
    }
}

struct Leaf {
    cell: Cell,
    log_integral: Vec<f64>,
    values: Kept,
    /// Roughness along each axis, relative to the cell's mass.
    rough: [f64; MAX_AXES],
    /// Log share of some component that may hide between the nodes, and the axis to look along.
    hidden: (f64, usize),
}

/// Log densities at the nodes of a cell.
enum Kept {
    Values(Vec<f64>),
    /// There was no room for them.
    Forgotten,
    /// They are no part of any mixture that matters.
    Nothing,
}

/// What a cell shows of each component, before anything is known of the evidences.
struct Shape {
    /// Log density at the largest node.
    max: Vec<f64>,
    /// Integral over the cell relative to that node and to the cell's volume.
    sums: Vec<f64>,
    /// Size of the two highest Legendre modes along each axis, relative to the largest node.
    rough: Vec<Vec<f64>>,
    /// Log density that a peak between the nodes might reach, where it would not be resolved, and the axis to look along.
    peaks: Vec<(f64, usize)>,
    log_volume: f64,
}

/// Most log densities that are kept so that cells need not be evaluated again: 128 MiB.
const MAX_KEPT: usize = 1 << 24;

/// The Gauss-Legendre rule of a cell and its Legendre modes.
struct Rule {
    nodes: [f64; NODES],
    weights: [f64; NODES],
    /// `modes[m][j]`: coefficient of `P_m` is `sum_j modes[m][j] f_j`.
    modes: [[f64; NODES]; NODES],
    /// Weights of the embedded rule on every other node, exact to degree 3: its gap to the full rule measures the error.
    embedded: [f64; NODES],
}

impl Rule {
    fn new() -> &'static Self {
        static RULE: std::sync::OnceLock<Rule> = std::sync::OnceLock::new();
        RULE.get_or_init(Self::compute)
    }

    fn compute() -> Self {
        let (x, w) = gauss_legendre(NODES);
        let (mut nodes, mut weights, mut modes) = ([0.0; NODES], [0.0; NODES], [[0.0; NODES]; NODES]);
        for j in 0..NODES {
            nodes[j] = x[j];
            weights[j] = 0.5 * w[j];
            let (mut p0, mut p1) = (1.0, x[j]);
            for (m, row) in modes.iter_mut().enumerate() {
                row[j] = (2 * m + 1) as f64 * weights[j] * p0;
                let k = (m + 1) as f64;
                (p0, p1) = (p1, ((2.0 * k + 1.0) * x[j] * p1 - k * p0) / (k + 1.0));
            }
        }
        // Nodes -a, 0, a integrate degree 3 with weight 1/(3 a^2) (of the mean) for the outer two together.
        let outer = 1.0 / (6.0 * nodes[NODES - 1] * nodes[NODES - 1]);
        let mut embedded = [0.0; NODES];
        (embedded[0], embedded[NODES / 2], embedded[NODES - 1]) = (outer, 1.0 - 2.0 * outer, outer);
        Self { nodes, weights, modes, embedded }
    }

    fn modal(&self, values: &[f64; NODES]) -> [f64; NODES] {
        std::array::from_fn(|m| (0..NODES).map(|j| self.modes[m][j] * values[j]).sum())
    }
}

/// `int_{-1}^{x} sum_m a_m P_m`, as a share of the interval's length 2.
fn partial_integral(modal: &[f64; NODES], x: f64) -> f64 {
    // int P_m = (P_{m+1} - P_{m-1}) / (2m + 1), and int P_0 = x + 1.
    let (mut below, mut here) = (1.0, x);
    let mut sum = modal[0] * (x + 1.0);
    for m in 1..NODES {
        let above = next_legendre(m, x, below, here);
        sum += modal[m] * (above - below) * (1.0 / (2 * m + 1) as f64);
        (below, here) = (here, above);
    }
    0.5 * sum
}

fn polynomial(modal: &[f64; NODES], x: f64) -> f64 {
    let (mut below, mut here) = (1.0, x);
    let mut sum = modal[0];
    for m in 1..NODES {
        sum += modal[m] * here;
        (below, here) = (here, next_legendre(m, x, below, here));
    }
    sum
}

/// `P_{m+1}(x)` from the two before it, without a division at run time.
#[inline(always)]
fn next_legendre(m: usize, x: f64, below: f64, here: f64) -> f64 {
    let product = x * here;
    product + m as f64 / (m + 1) as f64 * (product - below)
}

/// The cells after refinement, with the evidence of every component.
pub struct Refined<'a, C: Components> {
    components: &'a C,
    leaves: Vec<Leaf>,
    /// `log int p_k`.
    pub log_evidence: Vec<f64>,
    /// Whether the tolerance was met within the allowed memory.
    pub converged: bool,
    /// Points at which all components were evaluated.
    pub evaluations: usize,
}

struct Evaluator<'a, C: Components> {
    components: &'a C,
    rule: &'static Rule,
    n_nodes: usize,
}

struct Buffers<W> {
    work: W,
    values: Vec<f64>,
    max: Vec<f64>,
    best: Vec<usize>,
}

impl<'a, C: Components> Evaluator<'a, C> {
    fn new(components: &'a C) -> Self {
        Self { components, rule: Rule::new(), n_nodes: NODES.pow(components.axes().len() as u32) }
    }

    /// Cells that are worth a task of their own: some ten microseconds of work.
    fn grain(&self) -> usize {
        const VALUES: usize = 1 << 12;
        VALUES.div_ceil(self.n_nodes * self.components.len().max(1))
    }

    fn buffers(&self) -> Buffers<C::Work> {
        let k = self.components.len();
        Buffers {
            work: self.components.work(),
            values: vec![0.0; self.n_nodes * k],
            max: vec![0.0; k],
            best: vec![0; k],
        }
    }

    /// Fills `buffers.values` with the log densities in the unit cube (log Jacobian added); returns the log volume.
    fn fill(&self, cell: &Cell, buffers: &mut Buffers<C::Work>) -> f64 {
        let axes = self.components.axes();
        let mut nodes = [[0.0; NODES]; MAX_AXES];
        let mut log_jacobian = [[0.0; NODES]; MAX_AXES];
        let mut log_volume = 0.0;
        for (d, axis) in axes.iter().enumerate() {
            for j in 0..NODES {
                let t = cell.lower[d] + cell.width[d] * 0.5 * (self.rule.nodes[j] + 1.0);
                (nodes[d][j], log_jacobian[d][j]) = axis.at(t);
            }
            log_volume += cell.width[d].ln();
        }
        self.components.evaluate(&nodes[..axes.len()], &mut buffers.work, &mut buffers.values);
        let k = self.components.len();
        for node in 0..self.n_nodes {
            let shift: f64 = (0..axes.len()).map(|d| log_jacobian[d][digit(node, d, axes.len())]).sum();
            if shift != 0.0 {
                buffers.values[node * k..(node + 1) * k].iter_mut().for_each(|l| *l += shift);
            }
        }
        log_volume
    }

    /// A cell with its shape, not judged yet; `keep` keeps its log densities.
    fn measure(&self, cell: Cell, keep: bool, buffers: &mut Buffers<C::Work>) -> (Leaf, Shape) {
        let log_volume = self.fill(&cell, buffers);
        let (k, dim) = (self.components.len(), self.components.axes().len());
        let Buffers { values, max, best, .. } = buffers;
        kernels::dispatch(
            #[inline(always)]
            || {
                max.fill(f64::NEG_INFINITY);
                for (node, row) in values.chunks_exact(k).enumerate() {
                    for ((max, best), &l) in max.iter_mut().zip(best.iter_mut()).zip(row) {
                        *best = if l > *max { node } else { *best };
                        *max = if l > *max { l } else { *max };
                    }
                }
            },
        );
        let peaks = self.peaks(values, max, best);
        let kept = if keep { Kept::Values(values.clone()) } else { Kept::Forgotten };
        // From here on values are densities relative to the component's largest node.
        let mut sums = vec![0.0; k];
        kernels::dispatch(
            #[inline(always)]
            || {
                for (node, row) in values.chunks_exact_mut(k).enumerate() {
                    let mut weight = 1.0;
                    for d in 0..dim {
                        weight *= self.rule.weights[digit(node, d, dim)];
                    }
                    for ((value, max), sum) in row.iter_mut().zip(max.iter()).zip(sums.iter_mut()) {
                        *value = kernels::exp(*value - if max.is_finite() { *max } else { 0.0 });
                        *sum += weight * *value;
                    }
                }
            },
        );
        let log_integral: Vec<f64> = sums.iter().zip(max.iter()).map(|(s, m)| m + s.ln() + log_volume).collect();
        let rough = (0..dim).map(|d| self.roughness(d, values)).collect();
        let leaf = Leaf { cell, log_integral, values: kept, rough: [0.0; MAX_AXES], hidden: (f64::NEG_INFINITY, 0) };
        (leaf, Shape { max: max.clone(), sums, rough, peaks, log_volume })
    }

    /// Judges a leaf by the share that its components have in what matters.
    fn judge(&self, leaf: &mut Leaf, shape: &Shape, log_evidence: &[f64], importance: &[f64]) {
        let Shape { max, sums, rough, peaks, log_volume } = shape;
        for (c, (peak, axis)) in peaks.iter().enumerate() {
            let log_share = peak + log_volume - log_evidence[c];
            if importance[c] >= 1e-9 && log_share > leaf.hidden.0 {
                leaf.hidden = (log_share, *axis);
            }
        }
        // Weight of a component's density (relative to its largest node) in the error that counts.
        let share = |c: usize| {
            let log_share = max[c] + log_volume - log_evidence[c];
            if log_evidence[c].is_finite() && log_share > -40.0 {
                importance[c] * log_share.min(40.0).exp()
            } else {
                0.0
            }
        };
        let shares: Vec<f64> = (0..max.len()).map(share).collect();
        let total = |of: &[f64]| shares.iter().zip(of).map(|(w, s)| w * s).sum::<f64>();
        let mass = total(sums);
        if mass > 0.0 {
            leaf.rough.iter_mut().zip(rough).for_each(|(rough, of_axis)| *rough = total(of_axis) / mass);
        }
    }

    /// `sum_lines w |highest two Legendre modes along axis d|` of every component.
    fn roughness(&self, d: usize, values: &[f64]) -> Vec<f64> {
        let (k, dim) = (self.components.len(), self.components.axes().len());
        let stride = NODES.pow((dim - 1 - d) as u32);
        let [.., third, fourth] = &self.rule.modes;
        let (mut line, mut sums) = (vec![0.0; k], vec![0.0; k]);
        for start in (0..self.n_nodes).filter(|&node| digit(node, d, dim) == 0) {
            let weight: f64 = (0..dim).filter(|&e| e != d).map(|e| self.rule.weights[digit(start, e, dim)]).product();
            for modes in [third, fourth] {
                kernels::dispatch(
                    #[inline(always)]
                    || {
                        line.fill(0.0);
                        for (j, mode) in modes.iter().enumerate() {
                            let row = &values[(start + j * stride) * k..(start + j * stride + 1) * k];
                            for (line, value) in line.iter_mut().zip(row) {
                                *line = mode.mul_add(*value, *line);
                            }
                        }
                        for (sum, line) in sums.iter_mut().zip(&line) {
                            *sum += weight * line.abs();
                        }
                    },
                );
            }
        }
        sums
    }

    /// For each component the log density that a peak between the nodes could reach, by a parabola through the best node along
    /// each axis, and the steepest axis; minus infinity where it is resolved.
    fn peaks(&self, values: &[f64], max: &[f64], best: &[usize]) -> Vec<(f64, usize)> {
        let (k, dim) = (max.len(), self.components.axes().len());
        let mut out = vec![(f64::NEG_INFINITY, 0); k];
        for (c, peak) in out.iter_mut().enumerate() {
            if !max[c].is_finite() {
                continue;
            }
            let (mut gain, mut steepest) = (0.0, (0.0, 0));
            for d in 0..dim {
                let stride = NODES.pow((dim - 1 - d) as u32);
                let j = digit(best[c], d, dim);
                let at = |step: isize| values[(best[c] as isize + step * stride as isize) as usize * k + c];
                let along = if j == 0 || j == NODES - 1 {
                    // The peak may lie between the outermost node and the edge: follow the slope that far.
                    let inward = max[c] - at(if j == 0 { 1 } else { -1 });
                    let x = &self.rule.nodes;
                    inward * (1.0 - x[NODES - 1]) / (x[NODES - 1] - x[NODES - 2])
                } else {
                    // The vertex of a parabola with its top within half a node of the best one rises at most an eighth of
                    // the second difference.
                    (2.0 * max[c] - at(1) - at(-1)) / 8.0
                };
                let along = if along.is_finite() { along } else { 0.0 };
                gain += along;
                if along > steepest.0 {
                    steepest = (along, d);
                }
            }
            // A gain below one log unit is resolved: roughness judges it. The parabola sees one axis at a time; where
            // the best value of another axis moves with it (a small sd fits only at the peak), the rise is larger.
            if gain > 1.0 {
                *peak = (max[c] + ENTANGLED * gain, steepest.1);
            }
        }
        out
    }
}

/// The `d`-th coordinate of a node, the last axis running fastest.
fn digit(node: usize, d: usize, dim: usize) -> usize {
    (node / NODES.pow((dim - 1 - d) as u32)) % NODES
}

/// Refines until every component is resolved; `proceed` is asked before every cell (false stops with [`Error::Interrupted`]).
///
/// # Errors
/// No component has any mass, or there are more than [`MAX_AXES`] axes, or it was interrupted.
pub fn refine<'a, C: Components>(
    components: &'a C,
    settings: &Settings,
    proceed: Proceed<'_>,
) -> Result<Refined<'a, C>> {
    let dim = components.axes().len();
    if dim == 0 || dim > MAX_AXES {
        return Err(Error::invalid(
            "infer.engine",
            format!("the grid takes 1 to {MAX_AXES} unknowns, this study has {dim}"),
            "use engine = \"smc\"",
        ));
    }
    // Enough cells that a peak leaves its slope on some node, more where there are many; the later rounds do the rest.
    let per_axis = if components.len() > 1 { [128, 16, 8] } else { [128, 8, 8] }[dim - 1];
    let cells: Vec<Cell> = (0..per_axis_pow(per_axis, dim))
        .map(|index| {
            let mut cell = Cell { lower: [0.0; MAX_AXES], width: [1.0; MAX_AXES] };
            for d in 0..dim {
                cell.width[d] = 1.0 / per_axis as f64;
                cell.lower[d] = ((index / per_axis_pow(per_axis, d)) % per_axis) as f64 * cell.width[d];
            }
            cell
        })
        .collect();
    refine_cells(components, (Vec::new(), cells), None, settings, proceed)
}

fn refine_cells<'a, C: Components>(
    components: &'a C,
    (mut leaves, mut pending): (Vec<Leaf>, Vec<Cell>),
    known: Option<Vec<f64>>,
    settings: &Settings,
    proceed: Proceed<'_>,
) -> Result<Refined<'a, C>> {
    let (evaluator, k, dim) = (Evaluator::new(components), components.len(), components.axes().len());
    // A component's evidence is not known before the first round: its cells are then judged again in the second.
    let unknown = known.is_none();
    let mut log_evidence = known.unwrap_or_else(|| vec![f64::NEG_INFINITY; k]);
    let mut importance = if unknown { vec![1.0 / k as f64; k] } else { components.importance(&log_evidence) };
    let mut evaluations = 0;
    let mut converged = false;
    for round in 0..64 {
        let first = unknown && round == 0;
        evaluations += pending.len() * evaluator.n_nodes;
        let kept = leaves.iter().filter(|leaf| matches!(leaf.values, Kept::Values(_))).count();
        let keep = (kept + pending.len()) * evaluator.n_nodes * k <= MAX_KEPT;
        let measured: Vec<(Leaf, Option<Shape>)> = pending
            .par_iter()
            .with_min_len(evaluator.grain())
            .map_init(
                || evaluator.buffers(),
                |buffers, cell| {
                    proceed().then(|| {
                        let (mut leaf, shape) = evaluator.measure(*cell, keep, buffers);
                        if !first {
                            evaluator.judge(&mut leaf, &shape, &log_evidence, &importance);
                        }
                        (leaf, first.then_some(shape))
                    })
                },
            )
            .collect::<Option<_>>()
            .ok_or(Error::Interrupted)?;
        let (new, shapes): (Vec<Leaf>, Vec<Option<Shape>>) = measured.into_iter().unzip();
        leaves.extend(new);
        log_evidence = evidences(&leaves, k);
        importance = components.importance(&log_evidence);
        leaves.par_iter_mut().zip(&shapes).with_min_len(evaluator.grain()).for_each(|(leaf, shape)| {
            if let Some(shape) = shape {
                evaluator.judge(leaf, shape, &log_evidence, &importance);
            }
        });
        let offsets: Vec<f64> = importance
            .iter()
            .zip(&log_evidence)
            .map(|(weight, z)| if z.is_finite() { weight.ln() - z } else { f64::NEG_INFINITY })
            .collect();
        let share = |leaf: &Leaf| kernels::sum_exp(&leaf.log_integral, &offsets);
        let shares: Vec<f64> = leaves.par_iter().with_min_len(evaluator.grain()).map(share).collect();
        // Their memory serves the next cells.
        for (leaf, _) in leaves.iter_mut().zip(&shares).filter(|(_, share)| **share < NOTHING) {
            leaf.values = Kept::Nothing;
        }
        let far = distances(components.axes(), &leaves, &shares);
        let errors: Vec<(f64, usize)> = leaves
            .iter()
            .zip(shares.iter().zip(far))
            .map(|(leaf, (share, far))| {
                let worst = (0..dim)
                    .fold((0.0, 0), |worst, d| if leaf.rough[d] > worst.0 { (leaf.rough[d], d) } else { worst });
                (share * far * worst.0, worst.1)
            })
            .collect();
        let total: f64 = errors.iter().map(|e| e.0).sum();
        let full = leaves.len() * k > settings.max_values;
        let log_hidden = HIDDEN_SHARE.ln();
        let seek = |leaf: &Leaf| leaf.hidden.0 > log_hidden;
        if full || (total <= settings.tolerance && !leaves.iter().any(seek)) {
            converged = total <= settings.tolerance && !leaves.iter().any(seek);
            break;
        }
        let threshold =
            if total <= settings.tolerance { f64::INFINITY } else { settings.tolerance / (2.0 * leaves.len() as f64) };
        let mut kept = Vec::with_capacity(leaves.len());
        pending.clear();
        for (leaf, (error, axis)) in leaves.into_iter().zip(errors) {
            if seek(&leaf) {
                pending.extend(leaf.cell.halves(leaf.hidden.1));
            } else if error > threshold {
                pending.extend(leaf.cell.halves(axis));
            } else {
                kept.push(leaf);
            }
        }
        leaves = kept;
    }
    if log_evidence.iter().all(|z| *z == f64::NEG_INFINITY) {
        return Err(Error::failed(
            "I-step",
            "the likelihood is zero everywhere in the prior's range",
            "check the measurements' units and the noise",
        ));
    }
    Ok(Refined { components, leaves, log_evidence, converged, evaluations })
}

/// `log int p_k` of every component.
fn evidences(leaves: &[Leaf], k: usize) -> Vec<f64> {
    // So many at a time that a thread's table stays small.
    const WIDTH: usize = 64;
    let blocks: Vec<Vec<f64>> = (0..k.div_ceil(WIDTH))
        .into_par_iter()
        .map(|block| {
            let columns = block * WIDTH..((block + 1) * WIDTH).min(k);
            let table: Vec<f64> =
                leaves.iter().flat_map(|leaf| leaf.log_integral[columns.clone()].iter().copied()).collect();
            let mut out = vec![0.0; columns.len()];
            kernels::add_log_sum_exp_columns(&table, &mut out);
            out
        })
        .collect();
    blocks.concat()
}

/// How much a cell's mass moves the second moments: `max(1, z^2)` with `z` its distance from the mean in sds, over the axes.
fn distances(axes: &[Axis], leaves: &[Leaf], shares: &[f64]) -> Vec<f64> {
    let centre = |leaf: &Leaf, d: usize| axes[d].at(leaf.cell.lower[d] + 0.5 * leaf.cell.width[d]).0;
    let total: f64 = shares.iter().sum();
    let mut out = vec![1.0; leaves.len()];
    for d in 0..axes.len() {
        let mean = leaves.iter().zip(shares).map(|(l, s)| s * centre(l, d)).sum::<f64>() / total;
        let variance = leaves.iter().zip(shares).map(|(l, s)| s * (centre(l, d) - mean).powi(2)).sum::<f64>() / total;
        if variance > 0.0 {
            for (out, leaf) in out.iter_mut().zip(leaves) {
                *out = f64::max(*out, (centre(leaf, d) - mean).powi(2) / variance);
            }
        }
    }
    out
}

fn per_axis_pow(base: usize, exponent: usize) -> usize {
    base.pow(exponent as u32)
}

impl<C: Components> Refined<'_, C> {
    /// Refines these cells on, by other settings; what is known of them is not evaluated again.
    ///
    /// # Errors
    /// It was interrupted.
    pub fn further(self, settings: &Settings, proceed: Proceed<'_>) -> Result<Self> {
        let before = self.evaluations;
        let known = Some(self.log_evidence);
        let mut out = refine_cells(self.components, (self.leaves, Vec::new()), known, settings, proceed)?;
        out.evaluations += before;
        Ok(out)
    }

    /// Refines other components on the same axes, beginning with these cells.
    ///
    /// # Errors
    /// As [`refine`].
    pub fn for_others<'b, D: Components>(
        &self,
        others: &'b D,
        settings: &Settings,
        proceed: Proceed<'_>,
    ) -> Result<Refined<'b, D>> {
        let cells = self.leaves.iter().map(|leaf| leaf.cell).collect();
        refine_cells(others, (Vec::new(), cells), None, settings, proceed)
    }

    /// `log_weights[k] - log Z_k`, minus infinity where a component has no mass.
    pub fn offsets(&self, log_weights: &[f64]) -> Vec<f64> {
        let pairs = log_weights.iter().zip(&self.log_evidence);
        pairs.map(|(w, z)| if z.is_finite() { w - z } else { f64::NEG_INFINITY }).collect()
    }

    /// The mixture `sum_k exp(log_weights[k]) p_k / Z_k`.
    pub fn mixture(&self, log_weights: &[f64]) -> Grid {
        let evaluator = Evaluator::new(self.components);
        let (k, offset) = (self.components.len(), self.offsets(log_weights));
        let values: Vec<Vec<f64>> = self
            .leaves
            .par_iter()
            .with_min_len(evaluator.grain())
            .map_init(
                || evaluator.buffers(),
                |buffers, leaf| {
                    let values = match &leaf.values {
                        Kept::Values(values) => values,
                        Kept::Forgotten => {
                            evaluator.fill(&leaf.cell, buffers);
                            &buffers.values
                        }
                        Kept::Nothing => return vec![0.0; evaluator.n_nodes],
                    };
                    values.chunks_exact(k).map(|row| kernels::sum_exp(row, &offset)).collect()
                },
            )
            .collect();
        let cells = self.leaves.iter().map(|leaf| leaf.cell).collect();
        Grid::new(self.components.axes().to_vec(), cells, values.concat())
    }
}

/// A normalised density on cells: moments, marginals, quantiles and draws.
#[derive(Clone, Debug)]
pub struct Grid {
    axes: Vec<Axis>,
    cells: Vec<Cell>,
    /// Density in the unit cube at every node of every cell.
    values: Vec<f64>,
    masses: Vec<f64>,
    /// Mass of each cell and of all before it.
    cumulative: Vec<f64>,
}

/// A piecewise polynomial marginal in the unit interval.
#[derive(Clone, Debug)]
struct Piece {
    lower: f64,
    width: f64,
    /// Legendre modes of mass per unit length, times the piece's width.
    modal: [f64; NODES],
}

/// One parameter's marginal distribution.
#[derive(Clone, Debug)]
pub struct Marginal {
    axis: Axis,
    pieces: Vec<Piece>,
}

impl Grid {
    fn new(axes: Vec<Axis>, cells: Vec<Cell>, mut values: Vec<f64>) -> Self {
        let dim = axes.len();
        let n_nodes = NODES.pow(dim as u32);
        let rule = Rule::new();
        let mut masses: Vec<f64> = cells
            .iter()
            .zip(values.chunks_exact(n_nodes))
            .map(|(cell, values)| {
                let volume: f64 = cell.width[..dim].iter().product();
                volume * weighted(&rule.weights, values, dim)
            })
            .collect();
        let total: f64 = masses.iter().sum();
        masses.iter_mut().for_each(|m| *m /= total);
        values.iter_mut().for_each(|v| *v /= total);
        let mut sum = 0.0;
        let cumulative = masses.iter().map(|mass| (sum += mass, sum).1).collect();
        Self { axes, cells, values, masses, cumulative }
    }

    /// A density of one parameter given at the nodes of the panels between these edges of the unit interval.
    pub fn from_panels(axis: Axis, edges: &[f64], values: Vec<f64>) -> Self {
        let cells = edges
            .windows(2)
            .map(|panel| {
                let mut cell = Cell { lower: [0.0; MAX_AXES], width: [1.0; MAX_AXES] };
                (cell.lower[0], cell.width[0]) = (panel[0], panel[1] - panel[0]);
                cell
            })
            .collect();
        Self::new(vec![axis], cells, values)
    }

    /// Number of parameters.
    pub fn dim(&self) -> usize {
        self.axes.len()
    }

    /// Number of cells.
    pub fn n_cells(&self) -> usize {
        self.cells.len()
    }

    /// Calls `f(x, weight)` at every node; weights sum to one.
    pub fn for_each_node(&self, mut f: impl FnMut(&[f64], f64)) {
        let rule = Rule::new();
        let dim = self.dim();
        let n_nodes = NODES.pow(dim as u32);
        let mut x = vec![0.0; dim];
        for (cell, values) in self.cells.iter().zip(self.values.chunks_exact(n_nodes)) {
            let volume: f64 = cell.width[..dim].iter().product();
            for (node, value) in values.iter().enumerate() {
                let mut weight = volume * value;
                for d in 0..dim {
                    let j = digit(node, d, dim);
                    weight *= rule.weights[j];
                    x[d] = self.axes[d].at(cell.lower[d] + cell.width[d] * 0.5 * (rule.nodes[j] + 1.0)).0;
                }
                f(&x, weight);
            }
        }
    }

    /// Nodes with their weights, by the full rule or the embedded one (three nodes per axis, enough for what varies slowly over a
    /// cell), without those that together hold less than `negligible`.
    pub fn heavy_nodes(&self, negligible: f64, embedded: bool) -> Vec<(Vec<f64>, f64)> {
        let (dim, rule) = (self.dim(), Rule::new());
        let weights = if embedded { &rule.embedded } else { &rule.weights };
        let n_nodes = NODES.pow(dim as u32);
        let mut out: Vec<(Vec<f64>, f64)> = Vec::new();
        for (c, cell) in self.cells.iter().enumerate() {
            let volume: f64 = cell.width[..dim].iter().product();
            for node in 0..n_nodes {
                let weight: f64 = (0..dim).map(|d| weights[digit(node, d, dim)]).product::<f64>() * volume;
                if weight > 0.0 {
                    let t = |d: usize| cell.lower[d] + cell.width[d] * 0.5 * (rule.nodes[digit(node, d, dim)] + 1.0);
                    let x = (0..dim).map(|d| self.axes[d].at(t(d)).0).collect();
                    out.push((x, weight * self.values[c * n_nodes + node]));
                }
            }
        }
        let mut sorted: Vec<f64> = out.iter().map(|(_, w)| *w).collect();
        sorted.sort_by(f64::total_cmp);
        let mut sum = 0.0;
        let threshold = sorted.into_iter().find(|w| {
            sum += w;
            sum > negligible
        });
        out.retain(|(_, w)| *w >= threshold.unwrap_or(0.0));
        out
    }

    /// Error of the integral relative to it: what the cells differ by between the rule and the embedded one, which is exact to six degrees
    /// less, so that it is stated too large rather than too small.
    pub fn integral_error(&self) -> f64 {
        let (dim, rule) = (self.dim(), Rule::new());
        let of_cell = |((cell, values), mass): ((&Cell, &[f64]), &f64)| {
            let volume: f64 = cell.width[..dim].iter().product();
            (volume * weighted(&rule.embedded, values, dim) - mass).abs()
        };
        self.cells.iter().zip(self.values.chunks_exact(NODES.pow(dim as u32))).zip(&self.masses).map(of_cell).sum()
    }

    /// Mean and sd of parameter `d`.
    pub fn moments(&self, d: usize) -> (f64, f64) {
        let (mut mean, mut square) = (0.0, 0.0);
        self.for_each_node(|x, w| mean += w * x[d]);
        self.for_each_node(|x, w| square += w * (x[d] - mean).powi(2));
        (mean, square.sqrt())
    }

    /// Parameter `d`, with quantiles at these probabilities.
    pub fn describe(&self, d: usize, probabilities: &[f64]) -> Described {
        let ((mean, sd), marginal) = (self.moments(d), self.marginal(d));
        let quantiles: Vec<f64> = probabilities.iter().map(|&p| marginal.quantile(p)).collect();
        let coarse = self.marginal_by(d, &Rule::new().embedded, NODES - 1);
        let (coarse_mean, coarse_sd) = coarse.moments();
        let gaps = probabilities.iter().zip(&quantiles).map(|(&p, quantile)| (coarse.quantile(p) - quantile).abs());
        let error = gaps.fold((coarse_mean - mean).abs().max((coarse_sd - sd).abs()), f64::max) / sd;
        Described { marginal, mean, sd, quantiles, error }
    }

    /// The marginal of parameter `d`.
    pub fn marginal(&self, d: usize) -> Marginal {
        self.marginal_by(d, &Rule::new().weights, NODES)
    }

    fn marginal_by(&self, d: usize, weights: &[f64; NODES], modes: usize) -> Marginal {
        let rule = Rule::new();
        let dim = self.dim();
        let n_nodes = NODES.pow(dim as u32);
        let mut pieces: Vec<Piece> = Vec::new();
        for (c, (cell, values)) in self.cells.iter().zip(self.values.chunks_exact(n_nodes)).enumerate() {
            // What cannot move a quantile is left out of every later sum.
            if self.masses[c] < 1e-12 / self.cells.len() as f64 {
                continue;
            }
            let volume: f64 = cell.width[..dim].iter().product();
            let mut along = [0.0; NODES];
            for (node, value) in values.iter().enumerate() {
                let others: f64 = (0..dim).filter(|&e| e != d).map(|e| weights[digit(node, e, dim)]).product();
                along[digit(node, d, dim)] += volume * others * value;
            }
            let mut modal = rule.modal(&along);
            modal[modes..].fill(0.0);
            match pieces.iter_mut().find(|p| p.lower == cell.lower[d] && p.width == cell.width[d]) {
                Some(piece) => piece.modal.iter_mut().zip(modal).for_each(|(a, b)| *a += b),
                None => pieces.push(Piece { lower: cell.lower[d], width: cell.width[d], modal }),
            }
        }
        let total: f64 = pieces.iter().map(|p| p.modal[0]).sum();
        pieces.iter_mut().for_each(|p| p.modal.iter_mut().for_each(|a| *a /= total));
        Marginal { axis: self.axes[d], pieces }
    }

    /// One draw, by inversion within a cell chosen by its mass; overwrites `out`.
    pub fn draw(&self, rng: &mut impl Rng, out: &mut [f64]) {
        let dim = self.dim();
        let n_nodes = NODES.pow(dim as u32);
        // The last sum may be one but for rounding; a cell without mass is never the first beyond the target.
        let target = rng.random::<f64>() * self.cumulative[self.cells.len() - 1];
        let c = self.cumulative.partition_point(|sum| *sum <= target).min(self.cells.len() - 1);
        let mut values = [0.0; NODES.pow(MAX_AXES as u32)];
        values[..n_nodes].copy_from_slice(&self.values[c * n_nodes..(c + 1) * n_nodes]);
        let (cell, rule) = (&self.cells[c], Rule::new());
        for (d, out) in out.iter_mut().enumerate().take(dim) {
            let u = draw_along(rule, &mut values[..NODES.pow((dim - d) as u32)], rng);
            *out = self.axes[d].at(cell.lower[d] + cell.width[d] * 0.5 * (u + 1.0)).0;
        }
    }

    /// `n` independent draws.
    pub fn draws(&self, n: usize, stream: Stream) -> Vec<Vec<f64>> {
        let one = |i: usize| {
            let mut out = vec![0.0; self.dim()];
            self.draw(&mut stream.at(i as u64).rng(), &mut out);
            out
        };
        (0..n).into_par_iter().map(one).collect()
    }
}

/// Draws the first coordinate in [-1, 1] of a tensor of node values, and puts the tensor of the others given it in front.
fn draw_along(rule: &Rule, values: &mut [f64], rng: &mut impl Rng) -> f64 {
    let rest = values.len() / NODES;
    let dim = rest.ilog(NODES) as usize;
    let along: [f64; NODES] = std::array::from_fn(|j| weighted(&rule.weights, &values[j * rest..(j + 1) * rest], dim));
    let modal = rule.modal(&along);
    let u = draw_by_modes(&modal, rng);
    // The interpolant at u is a weighted sum of the values along a line.
    let mut weights = [0.0; NODES];
    for (m, legendre) in legendre_at(u).into_iter().enumerate() {
        weights.iter_mut().zip(&rule.modes[m]).for_each(|(weight, mode)| *weight += legendre * mode);
    }
    for r in 0..rest {
        // The first line is replaced as it is read for the last time.
        values[r] = (0..NODES).map(|j| weights[j] * values[j * rest + r]).sum::<f64>().max(0.0);
    }
    // Where the interpolant vanishes at u in every line (rounding in a far tail), keep the unconditional shape.
    if values[..rest].iter().all(|v| *v == 0.0) {
        values[..rest].fill(1.0);
    }
    u
}

/// `P_0..` at `x`.
fn legendre_at(x: f64) -> [f64; NODES] {
    let mut out = [1.0; NODES];
    out[1] = x;
    for m in 1..NODES - 1 {
        out[m + 1] = next_legendre(m, x, out[m - 1], out[m]);
    }
    out
}

/// A draw in [-1, 1] from the density with these Legendre modes.
fn draw_by_modes(modal: &[f64; NODES], rng: &mut impl Rng) -> f64 {
    let probability = rng.random::<f64>();
    let target = probability * modal[0];
    let cumulative = cumulative(modal);
    // Monotone but for rounding: the interpolant of a resolved density is positive.
    let rise = |u: f64| {
        let (mut value, mut slope) = (0.0, 0.0);
        for c in cumulative.iter().rev() {
            slope = u * slope + value;
            value = u * value + c;
        }
        (value - target, slope)
    };
    // Where a density with the first two modes alone has this probability below it, if that is one.
    let tilt = if modal[0] > 0.0 { (modal[1] / modal[0]).clamp(-0.9, 0.9) } else { 0.0 };
    let below = (1.0 - tilt).powi(2) + 4.0 * tilt * probability;
    let start = (4.0 * probability + tilt - 2.0) / (1.0 + below.sqrt());
    // The error of a step by Newton's method is about the square of the step.
    root((-1.0, 1.0), start, 1e-6, rise)
}

/// [`partial_integral`] as a polynomial in powers of x.
fn cumulative(modal: &[f64; NODES]) -> [f64; NODES + 1] {
    let [a, b, c, d, e] = *modal;
    [a - 0.5 * b + 0.125 * d, a - 0.5 * c + 0.375 * e, 0.5 * b - 0.75 * d, 0.5 * c - 1.25 * e, 0.625 * d, 0.875 * e]
        .map(|power| 0.5 * power)
}

/// Where a function that rises from below zero to above it, given with its slope, is zero: by Newton's method, and by bisection where
/// that would leave the bracket, as in a gap between modes, where there is no slope. The last step is no longer than `precision`.
fn root((mut low, mut high): (f64, f64), start: f64, precision: f64, f: impl Fn(f64) -> (f64, f64)) -> f64 {
    let mut at = start;
    for _ in 0..100 {
        let (value, slope) = f(at);
        if value < 0.0 {
            low = at
        } else {
            high = at
        }
        let newton = at - value / slope;
        let next = if low < newton && newton < high { newton } else { 0.5 * (low + high) };
        let step = (next - at).abs();
        at = next;
        if step <= precision || high - low <= precision {
            break;
        }
    }
    at
}

/// A draw from a density between the first and last of these edges, given by its mass at the nodes of the rule of every panel.
pub fn draw_in_panels(edges: &[f64], masses: &[f64], rng: &mut impl Rng) -> f64 {
    let (rule, panels) = (Rule::new(), masses.as_chunks::<NODES>().0);
    let mut target = rng.random::<f64>() * masses.iter().sum::<f64>();
    let chosen = panels.iter().position(|panel| {
        target -= panel.iter().sum::<f64>();
        target < 0.0
    });
    let chosen = chosen.unwrap_or(panels.len() - 1);
    let density: [f64; NODES] = std::array::from_fn(|j| panels[chosen][j] / rule.weights[j]);
    let u = draw_by_modes(&rule.modal(&density), rng);
    edges[chosen] + (edges[chosen + 1] - edges[chosen]) * 0.5 * (u + 1.0)
}

/// Weighted mean of a tensor of node values.
fn weighted(weights: &[f64; NODES], values: &[f64], dim: usize) -> f64 {
    values.iter().enumerate().map(|(node, v)| v * (0..dim).map(|d| weights[digit(node, d, dim)]).product::<f64>()).sum()
}

/// One parameter of a grid.
#[derive(Clone, Debug)]
pub struct Described {
    /// Its distribution.
    pub marginal: Marginal,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub sd: f64,
    /// Quantiles at the probabilities asked for.
    pub quantiles: Vec<f64>,
    /// Largest error of all these, in sds: the gap to the embedded rule with one polynomial degree less.
    pub error: f64,
}

impl Marginal {
    /// Probability below the parameter value that `t` in [0, 1] stands for.
    fn cdf_at(&self, t: f64) -> f64 {
        self.pieces
            .iter()
            .map(|p| {
                let u = 2.0 * (t - p.lower) / p.width - 1.0;
                if u >= 1.0 {
                    p.modal[0]
                } else if u <= -1.0 {
                    0.0
                } else {
                    partial_integral(&p.modal, u)
                }
            })
            .sum()
    }

    /// Probability below `x`.
    pub fn cdf(&self, x: f64) -> f64 {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if self.axis.at(middle).0 < x { low = middle } else { high = middle }
        }
        self.cdf_at(0.5 * (low + high)).clamp(0.0, 1.0)
    }

    /// The `probability` quantile.
    pub fn quantile(&self, probability: f64) -> f64 {
        self.axis.at(self.quantile_t(probability)).0
    }

    /// Mean and sd from the pieces, by five-point quadrature of `x` in each.
    pub fn moments(&self) -> (f64, f64) {
        let rule = Rule::new();
        let expect = |f: &dyn Fn(f64) -> f64| -> f64 {
            self.pieces
                .iter()
                .map(|p| {
                    (0..NODES)
                        .map(|j| {
                            let t = p.lower + p.width * 0.5 * (rule.nodes[j] + 1.0);
                            rule.weights[j] * polynomial(&p.modal, rule.nodes[j]) * f(self.axis.at(t).0)
                        })
                        .sum::<f64>()
                })
                .sum()
        };
        let mean = expect(&|x| x);
        (mean, expect(&|x| (x - mean).powi(2)).max(0.0).sqrt())
    }

    /// Density per unit of the parameter at `n` equally spaced values between two values.
    pub fn density(&self, n: usize) -> Vec<(f64, f64)> {
        let (low, high) = (self.quantile_t(5e-5), self.quantile_t(1.0 - 5e-5));
        let mut pieces: Vec<&Piece> = self.pieces.iter().collect();
        pieces.sort_by(|a, b| a.lower.total_cmp(&b.lower));
        let (mut coming, mut here) = (pieces.into_iter().peekable(), Vec::new());
        (0..n)
            .map(|i| {
                let t = low + (high - low) * (i as f64 + 0.5) / n as f64;
                while let Some(piece) = coming.next_if(|p| p.lower <= t) {
                    here.push(piece);
                }
                here.retain(|p| t < p.lower + p.width);
                let own = here.iter().map(|p| polynomial(&p.modal, 2.0 * (t - p.lower) / p.width - 1.0) / p.width);
                let density: f64 = own.sum();
                let (x, log_jacobian) = self.axis.at(t);
                (x, (density / log_jacobian.exp()).max(0.0))
            })
            .collect()
    }

    fn quantile_t(&self, probability: f64) -> f64 {
        root((0.0, 1.0), 0.5, 1e-15, |t| (self.cdf_at(t) - probability, self.density_at(t)))
    }

    /// Mass per unit of `t`.
    fn density_at(&self, t: f64) -> f64 {
        let inside = |p: &&Piece| p.lower <= t && t < p.lower + p.width;
        let density = |p: &Piece| polynomial(&p.modal, 2.0 * (t - p.lower) / p.width - 1.0) / p.width;
        self.pieces.iter().filter(inside).map(density).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_integrate_as_legendre_polynomials_do() {
        let modal = [1.0, -0.7, 0.4, 0.3, -0.2];
        for x in [-1.0, -0.6, 0.0, 0.35, 1.0] {
            let by_powers = cumulative(&modal).iter().rev().fold(0.0, |sum, c| x * sum + c);
            // Some twenty roundings of terms whose sizes sum to less than four.
            let bound = 20.0 * 4.0 * f64::EPSILON;
            assert!((by_powers - partial_integral(&modal, x)).abs() <= bound, "{x}");
            let by_modes: f64 = legendre_at(x).iter().zip(&modal).map(|(p, a)| p * a).sum();
            assert!((by_modes - polynomial(&modal, x)).abs() <= bound, "{x}");
        }
    }
}
