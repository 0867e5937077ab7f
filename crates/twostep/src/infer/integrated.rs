//! The likelihood of every T-draw with the unknown measurement sds integrated out, so that the grid runs over the unknowns
//! alone: given the unknowns and a T-draw, each output's sd is one-dimensional quadrature.

use super::likelihoods::{Likelihoods, NodeTables, Workspace};
use super::propagation::Propagation;
use crate::draws::pick_weighted;
use crate::kernels::panels::POINTS;
use crate::kernels::{self, BinaryScale, LogScale, NodeTerms, PANEL};
use crate::likelihood::Class;
use crate::matrix::Matrix;
use crate::mcmc::quadrature::{Axis, Components, Grid, NODES, draw_in_panels};
use crate::prior::{Marginal, Prior};
use crate::simulate::design;
use crate::special::{gauss_legendre, log_sum_exp};
use crate::stream::Stream;
use rand::Rng;
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

/// Log units below its top at which a density is nothing.
const NOTHING: f64 = 20.0;
/// Widest panel in log sigma: five nodes integrate `sigma` itself over it to ten digits.
const WIDEST: f64 = 2.0;
/// Sds of log sigma in a panel of [`NODES`] nodes, which integrate a normal density to 1e-8 and interpolate it.
const NARROW: f64 = 1.6;
/// Sds of log sigma in a panel of [`PANEL`] nodes, which integrate a normal density to [`WIDE_ERROR`].
const WIDE: f64 = 4.5;
/// Error of a logarithm of an integral over wide panels.
const WIDE_ERROR: f64 = 1e-5;
/// Error of a logarithm of an integral that is interpolated.
const CURVE_ERROR: f64 = 1e-4;
/// Mass of a mixture that may be left out of the marginal of an sd: it moves no printed digit.
const NEGLIGIBLE: f64 = 1e-5;
/// Sds tried when the range of one is looked for.
const SCAN: usize = 120;

/// Logarithm of scanned sd number `k` of a range.
fn scanned((low, high): (f64, f64), k: usize) -> f64 {
    low + (high - low) * (k as f64 + 0.5) / SCAN as f64
}

/// Composite Gauss-Legendre rule for one output's unknown sd, in its logarithm.
#[derive(Clone, Debug)]
struct SigmaRule {
    /// Edges of the panels in log sigma.
    edges: Vec<f64>,
    /// Nodes, and log of (weight x prior density x sigma).
    sigma: Vec<f64>,
    log_weight: Vec<f64>,
    /// The likelihood of every draw at these nodes, where draws are not pooled and it reduces.
    by_draw: Option<ByDraw>,
    /// The integral as a function of the residual sum of squares, where the output depends on the surrogate through one
    /// such sum alone.
    curve: Option<Curve>,
    /// Else what integrates `by_draw` with fewer nodes, in panels of [`PANEL`]; they are too wide for a marginal.
    panels: Option<ByDraw>,
    /// Where there is no `by_draw`: `a` and `b` of every class at every node and draw (K x S), if sigma_A makes them depend
    /// on the draw.
    tables: Vec<(Matrix, Matrix)>,
    /// Where log-likelihoods take long at every sd: the fewer sds that they are interpolated from.
    stretches: Vec<Stretch>,
    /// For a pool that is linear in the log-likelihoods: `sum_s alpha_s a_k,s` and `alpha_s b_k,s` at every node.
    linear: Option<(Vec<f64>, Matrix)>,
}

/// Nodes of a rule side by side, and the fewer sds that log-likelihoods at these are interpolated from.
#[derive(Clone, Debug)]
struct Stretch {
    nodes: Range<usize>,
    sigma: Vec<f64>,
    /// From the sds to the nodes; none where the sds are the nodes.
    weights: Option<Matrix>,
}

impl Stretch {
    /// All nodes of panels with these edges, where a function is smooth in log sigma, see [`Likelihoods::is_smooth_in_sd`].
    fn all(edges: &[f64], sigma: &[f64]) -> Vec<Self> {
        // As wide as singularities pi/2 away from the real axis allow with a dozen and some sds.
        const LONGEST: f64 = 2.0;
        let (mut out, mut end) = (Vec::new(), edges.len() - 1);
        // From the largest sds, where panels are narrowest.
        while end > 0 {
            let first = (0..end).find(|&e| edges[end] - edges[e] <= LONGEST).unwrap_or(end - 1);
            let nodes = first * NODES..end * NODES;
            out.push(Self::new((edges[first], edges[end]), nodes, sigma));
            end = first;
        }
        out.reverse();
        out
    }

    fn new((from, to): (f64, f64), nodes: Range<usize>, sigma: &[f64]) -> Self {
        // Relative to the largest log-likelihood in the stretch: a hundredth where that is a million.
        const ERROR: f64 = 1e-8;
        let half = 0.5 * (to - from);
        // The function is analytic within an ellipse around the stretch with half-axes `half (rho + 1 / rho) / 2` and `half (rho - 1 / rho) / 2`,
        // as long as the latter is less than pi/2, and closer than by a fifth it grows. The error is about rho^-Z.
        let rise = 0.8 * std::f64::consts::FRAC_PI_2 / half;
        let rho = rise + (rise * rise + 1.0).sqrt();
        let n = (-ERROR.ln() / rho.ln()).ceil() as usize + 1;
        if 3 * n > 2 * nodes.len() {
            return Self { sigma: sigma[nodes.clone()].to_vec(), nodes, weights: None };
        }
        let angle = |z: usize| std::f64::consts::PI * (z as f64 + 0.5) / n as f64;
        // Barycentric weights of Chebyshev's nodes of the first kind.
        let of_node = |z: usize| if z.is_multiple_of(2) { angle(z).sin() } else { -angle(z).sin() };
        let mut weights = Matrix::zeros(nodes.len(), n);
        for (k, sigma) in sigma[nodes.clone()].iter().enumerate() {
            let x = (sigma.ln() - from) / half - 1.0;
            let row = weights.row_mut(k);
            match (0..n).find(|&z| x == angle(z).cos()) {
                Some(hit) => row[hit] = 1.0,
                None => {
                    row.iter_mut().enumerate().for_each(|(z, w)| *w = of_node(z) / (x - angle(z).cos()));
                    let total: f64 = row.iter().sum();
                    row.iter_mut().for_each(|w| *w /= total);
                }
            }
        }
        let sigma = (0..n).map(|z| (from + half * (angle(z).cos() + 1.0)).exp()).collect();
        Self { nodes, sigma, weights: Some(weights) }
    }
}

/// The likelihood of every draw at the nodes of a rule.
#[derive(Clone, Debug)]
struct ByDraw {
    /// Log-weights of the nodes and what depends on nothing.
    base: Vec<f64>,
    tables: NodeTables,
}

impl ByDraw {
    fn new(log_weight: &[f64], tables: NodeTables) -> Self {
        Self { base: log_weight.iter().map(|w| w + tables.constant).collect(), tables }
    }

    /// Calls `f` with the terms at the unknowns set last.
    fn with<R>(
        &self,
        likelihoods: &Likelihoods,
        output: usize,
        workspace: &Workspace,
        f: impl FnOnce(&NodeTerms<'_>) -> R,
    ) -> R {
        let classes = self.tables.classes.iter().enumerate();
        let classes: Vec<_> = classes.map(|(c, (a, b))| (a, b, likelihoods.residuals(output, c, workspace))).collect();
        f(&NodeTerms {
            base: &self.base,
            classes: &classes,
            inverse_sd: &self.tables.inverse_sd,
            bounds: &likelihoods.bounds(output, workspace),
        })
    }
}

/// `F_s(R) = log sum_k exp(a_k,s + b_k,s R + log_weight_k)` by cubic interpolation in R, in cells that grow with `R + offset`.
#[derive(Clone, Debug)]
struct Curve {
    offset: f64,
    scale: BinaryScale,
    /// The cubic of every cell: one row of cells per draw, or a single row where all draws share it.
    cubics: Vec<[f64; 4]>,
    /// Number of rows.
    rows: usize,
}

impl Curve {
    /// The curve of one class, whose measurements number `n`.
    fn new(class: &Class, n: usize, by_draw: &ByDraw) -> Self {
        // As multiples of the largest variance: residuals beyond leave the largest sd alone.
        const FAR: f64 = 1e4;
        let (a, b) = &by_draw.tables.classes[0];
        let (least, most) = b
            .data()
            .iter()
            .fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), b| (least.min(-0.5 / b), most.max(-0.5 / b)));
        // Below the smallest variance that any draw allows the integral is flat in R.
        let offset = least + class.scatter / (class.n * class.groups);
        // The error of the cubic is h^4/384 times a fourth derivative, that of -(n/2) log(R + offset): 3 n / (R + offset)^4.
        let width = (384.0 * CURVE_ERROR / (3.0 * n as f64)).powf(0.25);
        let scale = BinaryScale::new(offset, FAR * most, width);
        let rows: Vec<Vec<[f64; 4]>> = (0..a.rows())
            .into_par_iter()
            .map(|s| {
                let a: Vec<f64> = a.row(s).iter().zip(&by_draw.base).map(|(a, base)| a + base).collect();
                let node = |i: usize| {
                    let (value, slope) = kernels::log_sum_exp_affine(&a, b.row(s), scale.edge(i));
                    (scale.edge(i), value, slope)
                };
                let nodes: Vec<(f64, f64, f64)> = (0..=scale.len).map(node).collect();
                let cubic = |ends: &[(f64, f64, f64)]| {
                    let ((x0, f0, d0), (x1, f1, d1)) = (ends[0], ends[1]);
                    // Derivatives by the place within the cell.
                    let (rise, d0, d1) = (f1 - f0, d0 * (x1 - x0), d1 * (x1 - x0));
                    [f0, d0, 3.0 * rise - 2.0 * d0 - d1, d0 + d1 - 2.0 * rise]
                };
                nodes.windows(2).map(cubic).collect()
            })
            .collect();
        Self { offset, scale, cubics: rows.concat(), rows: a.rows() }
    }

    /// `out[s] = F_s(residuals[s])`.
    fn fill(&self, residuals: &[f64], out: &mut [f64]) {
        let stride = if self.rows == 1 { 0 } else { self.scale.len };
        let largest = self.scale.interpolate(residuals, &self.cubics, stride, out);
        let end = self.end();
        if largest >= end {
            for (s, (out, r)) in out.iter_mut().zip(residuals).enumerate().filter(|(_, (_, r))| **r >= end) {
                *out = self.beyond(self.cubics[s * stride + self.scale.len - 1], *r);
            }
        }
    }

    /// R at which the last cell ends.
    fn end(&self) -> f64 {
        self.scale.edge(self.scale.len)
    }

    /// `F_s(R)` beyond the last cell, where the largest sd alone counts: linear in R.
    fn beyond(&self, last: [f64; 4], r: f64) -> f64 {
        let (value, slope) = (last.iter().sum::<f64>(), last[1] + 2.0 * last[2] + 3.0 * last[3]);
        value + slope * (r - self.end()) / (self.end() - self.scale.edge(self.scale.len - 1))
    }
}

/// Weights gathered by `log(R + offset)`, for each draw or for all together, so that integrals of functions of R keep four
/// moments: each weight is shared by four bins as Lagrange's cubic would.
#[derive(Clone, Debug)]
struct Histogram {
    offset: f64,
    step: f64,
    n_bins: usize,
    /// One row of bins for each draw, or a single one.
    rows: Vec<Vec<f64>>,
}

impl Histogram {
    /// Over the reach of the curve of an output with so many measurements.
    fn new(curve: &Curve, n_measurements: usize) -> Self {
        // Given R, log sigma has an sd of about sqrt(1 / 2n), so that the density of an sd is as wide as sqrt(2 / n) in log R.
        let step = (0.4 * (2.0 / n_measurements as f64).sqrt()).min(0.1);
        let reach = (curve.end() / curve.offset).ln_1p();
        let n_bins = (reach / step).ceil() as usize + 4;
        Self { offset: curve.offset, step, n_bins, rows: vec![Vec::new(); curve.rows] }
    }

    /// Adds the weights of all draws at their R.
    fn add(&mut self, weight: f64, shares: &[f64], residuals: &[f64], places: &mut Vec<f64>) {
        let last = (self.n_bins - 4) as f64;
        places.resize(residuals.len(), 0.0);
        let scale = LogScale { offset: self.offset, start: self.offset.ln(), steps: self.step.recip() };
        scale.places(residuals, places);
        for (s, (share, place)) in shares.iter().zip(places.iter()).enumerate() {
            let mass = weight * share;
            // Far below anything that could be seen in a quantile.
            if mass <= 1e-14 {
                continue;
            }
            let at = place.clamp(0.0, last);
            let (i, t) = (at as usize, at.fract());
            let row = if self.rows.len() == 1 { 0 } else { s };
            let bins = &mut self.rows[row];
            if bins.is_empty() {
                bins.resize(self.n_bins, 0.0);
            }
            // Bin `i` stands for `log(R + offset) = start + (i - 1) step`.
            bins[i] -= mass * t * (t - 1.0) * (t - 2.0) / 6.0;
            bins[i + 1] += mass * (t + 1.0) * (t - 1.0) * (t - 2.0) / 2.0;
            bins[i + 2] -= mass * (t + 1.0) * t * (t - 2.0) / 2.0;
            bins[i + 3] += mass * (t + 1.0) * t * (t - 1.0) / 6.0;
        }
    }

    fn merge(&mut self, other: &Self) {
        for (own, other) in self.rows.iter_mut().zip(&other.rows) {
            if own.is_empty() {
                own.clone_from(other);
            } else {
                own.iter_mut().zip(other).for_each(|(own, other)| *own += other);
            }
        }
    }

    /// The mass of each node of sigma, where `log p(sigma_k | R) = a + b R + constant` of the only class.
    fn spread(&self, by_draw: &ByDraw) -> Vec<f64> {
        let n_nodes = by_draw.base.len();
        let (a, b) = &by_draw.tables.classes[0];
        let of_rows: Vec<Vec<f64>> = self
            .rows
            .par_iter()
            .enumerate()
            .filter(|(_, bins)| !bins.is_empty())
            .map(|(s, bins)| {
                let a: Vec<f64> = a.row(s).iter().zip(&by_draw.base).map(|(a, base)| a + base).collect();
                let (mut mass, mut shares) = (vec![0.0; n_nodes], vec![0.0; n_nodes]);
                for (i, weight) in bins.iter().enumerate().filter(|(_, weight)| **weight != 0.0) {
                    let r = self.offset * ((i as f64 - 1.0) * self.step).exp_m1();
                    shares.fill(0.0);
                    kernels::add_affine(0.0, r, b.row(s), &mut shares);
                    kernels::log_mean_exp_weights(&a, &mut shares);
                    mass.iter_mut().zip(&shares).for_each(|(mass, share)| *mass += weight * share);
                }
                mass
            })
            .collect();
        let mut total = vec![0.0; n_nodes];
        for mass in of_rows {
            total.iter_mut().zip(mass).for_each(|(total, mass)| *total += mass);
        }
        // The cubic's weights may be negative where there is next to nothing.
        total.iter_mut().for_each(|mass| *mass = mass.max(0.0));
        total
    }
}

/// Gauss-Legendre nodes in every panel of log sigma, and log of (weight x prior density x sigma).
fn nodes_in(edges: &[f64], per_panel: usize, prior: &Marginal) -> (Vec<f64>, Vec<f64>) {
    let (x, w) = gauss_legendre(per_panel);
    let (mut sigma, mut log_weight) = (Vec::new(), Vec::new());
    for panel in edges.windows(2) {
        let step = panel[1] - panel[0];
        for (x, w) in x.iter().zip(&w) {
            let u = panel[0] + step * 0.5 * (x + 1.0);
            sigma.push(u.exp());
            log_weight.push((0.5 * step * w).ln() + prior.log_density(u.exp()) + u);
        }
    }
    (sigma, log_weight)
}

/// Indices of at most `n` values, evenly by rank, the least and the largest among them.
fn spread(values: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let n = n.min(values.len());
    (0..n).map(|i| order[i * (values.len() - 1) / (n - 1).max(1)]).collect()
}

/// Panels between two ends, each at most as wide as `width(u, u')` allows, the first and last halved again and again where
/// the density may pile up against that end with the given slope (per unit of log sigma).
fn panel_edges((from, to): (f64, f64), width: impl Fn(f64, f64) -> f64, pile_up: [Option<f64>; 2]) -> Vec<f64> {
    let mut edges = vec![from];
    let mut here = from;
    while to - here > 1e-9 * (to - from) {
        let mut next = (here + WIDEST).min(to);
        while next - here > width(here, next) {
            next = here + 0.8 * (next - here);
        }
        edges.push(next);
        here = next;
    }
    let halvings = |slope: f64, step: f64| (slope * step / 2.0).log2().ceil().clamp(0.0, 30.0) as i32;
    let n = edges.len();
    let (first, last) = (edges[1] - edges[0], edges[n - 1] - edges[n - 2]);
    if let Some(slope) = pile_up[0] {
        edges.extend((1..=halvings(slope, first)).map(|h| from + first * 0.5_f64.powi(h)));
    }
    if let Some(slope) = pile_up[1] {
        edges.extend((1..=halvings(slope, last)).map(|h| to - last * 0.5_f64.powi(h)));
    }
    edges.sort_by(f64::total_cmp);
    edges.dedup();
    edges
}

/// How T-draws become components.
#[derive(Clone, Copy)]
pub(super) enum Pooling<'a> {
    /// Each draw is one.
    Each,
    /// Their likelihoods, of which the sds are integrated out, are averaged to one: E-Lik.
    Averaged,
    /// They are pooled to one at every sd.
    Pooled(&'a dyn Propagation),
}

/// Posteriors `p_s(omega)` of all T-draws, or one pooled density, with the sds integrated out.
pub(super) struct Integrated<'a> {
    likelihoods: &'a Likelihoods,
    prior: &'a Prior,
    log_alpha: &'a [f64],
    pooling: Pooling<'a>,
    /// Weights of the draws, where the pool is linear in their log-likelihoods.
    alpha: Option<Vec<f64>>,
    axes: Vec<Axis>,
    /// One per unknown sd, in the order of the prior.
    rules: Vec<SigmaRule>,
    /// Log density of each component below which it has no mass to speak of, where that saves anything.
    floors: Vec<f64>,
}

/// A component at unknowns where it fits best.
struct Best<'a> {
    /// One draw by itself, or all that are pooled.
    likelihoods: Cow<'a, Likelihoods>,
    pooled: Option<(&'a dyn Propagation, &'a [f64])>,
    workspace: Workspace,
}

impl Best<'_> {
    /// Sets the unknowns; `log p(y | omega, sigma)` of all outputs or of one alone.
    fn set(&mut self, omega: &[f64], which: Option<usize>, sigma: &[f64], l: &mut [f64]) -> f64 {
        self.likelihoods.set_unknowns(omega, &mut self.workspace);
        log_likelihoods(&self.likelihoods, which, sigma, &self.workspace, l);
        self.pool(l)
    }

    fn pool(&self, l: &mut [f64]) -> f64 {
        self.pooled.map_or(l[0], |(propagation, log_alpha)| propagation.pool(log_alpha, l))
    }

    /// `log p(y | sigma) + log p(sigma) + log sigma` of an output: the log density of log sigma there.
    fn log_density(&self, output: usize, log_sigma: f64, prior: &Marginal, l: &mut [f64]) -> f64 {
        let sigma = log_sigma.exp();
        self.likelihoods.output_log_likelihoods(output, sigma, &self.workspace, l);
        self.pool(l) + prior.log_density(sigma) + log_sigma
    }

    fn buffer(&self) -> Vec<f64> {
        vec![0.0; self.likelihoods.n_draws()]
    }
}

/// `out[s] = l_s` of all outputs, or of one alone.
fn log_likelihoods(from: &Likelihoods, which: Option<usize>, sigma: &[f64], workspace: &Workspace, out: &mut [f64]) {
    match which {
        None => from.log_likelihoods(sigma, workspace, out),
        Some(output) => from.output_log_likelihoods(output, from.sigma_of(output, sigma), workspace, out),
    }
}

/// Buffers of one thread.
#[derive(Default)]
pub(super) struct Work {
    workspace: Workspace,
    /// For each unknown sd: K x S values `l_s(sigma_k) + log_weight_k`, or K pooled ones, where its rule needs them.
    tables: Vec<Vec<f64>>,
    /// For each unknown sd: the integral of every component over it.
    integrals: Vec<Vec<f64>>,
    /// Values at the nodes of one draw.
    nodes: Vec<f64>,
    /// Shares of the nodes of an sd.
    mass: Vec<f64>,
    /// Log-likelihoods at the sds that others are interpolated from, those of a stretch, and all.
    few: Matrix,
    interpolated: Matrix,
    many: Matrix,
    row: Vec<f64>,
    /// Log-likelihood of each component, sds integrated out.
    total: Vec<f64>,
}

impl<'a> Integrated<'a> {
    pub(super) fn new(
        likelihoods: &'a Likelihoods,
        prior: &'a Prior,
        log_alpha: &'a [f64],
        pooling: Pooling<'a>,
    ) -> Self {
        let n = likelihoods.n_unknowns();
        let axes = prior.marginals()[..n]
            .iter()
            .map(|m| Axis::new(m.support(), m.median(), 0.5 * (m.quantile(0.84) - m.quantile(0.16))))
            .collect();
        let alpha = match pooling {
            Pooling::Pooled(propagation) => propagation.linear_weights(log_alpha),
            Pooling::Each | Pooling::Averaged => None,
        };
        let mut out =
            Self { likelihoods, prior, log_alpha, pooling, alpha, axes, rules: Vec::new(), floors: Vec::new() };
        if likelihoods.n_sigmas() > 0 {
            let best = out.best();
            out.rules = (0..likelihoods.n_sigmas()).map(|j| out.rule(j, &best)).collect();
            out.floors = out.floors();
        }
        out
    }

    /// What each component reaches at some point of the unknowns, less log units enough that what lies below is no part of
    /// its mass. Several sds have no such bound for each by itself.
    fn floors(&self) -> Vec<f64> {
        const BELOW: f64 = 40.0;
        if self.rules.len() != 1 || self.rules[0].panels.is_none() {
            return Vec::new();
        }
        let none = || vec![f64::NEG_INFINITY; self.likelihoods.n_draws()];
        let points = self.halton();
        let highest = points.par_iter().map_init(Work::default, |work, t| {
            let omega = self.at(t);
            self.integrate(&omega, f64::INFINITY, work);
            let log_prior = self.log_prior(&omega);
            work.total.iter().map(|l| l + log_prior - BELOW).collect::<Vec<f64>>()
        });
        // Maxima do not depend on the order.
        highest.reduce(none, |a, b| a.iter().zip(&b).map(|(a, b)| f64::max(*a, *b)).collect())
    }

    /// Whether many draws are mixed over several unknowns, each with a peak of its own.
    pub(super) fn has_many_cells(&self) -> bool {
        self.pooled().is_none() && self.likelihoods.n_draws() > 1 && self.axes.len() > 1
    }

    /// Error of the logarithm of a density, from what integrates the sds out.
    pub(super) fn sd_error(&self) -> f64 {
        self.rules.iter().map(|rule| if rule.curve.is_some() { CURVE_ERROR } else { WIDE_ERROR }).sum()
    }

    /// What pools the draws at every sd, where there is more than one.
    fn pooled(&self) -> Option<&'a dyn Propagation> {
        match self.pooling {
            Pooling::Pooled(propagation) => Some(propagation),
            Pooling::Each | Pooling::Averaged => None,
        }
    }

    /// T-draws that are evaluated at each point.
    pub(super) fn n_draws(&self) -> usize {
        self.likelihoods.n_draws()
    }

    /// Log prior density of the unknowns.
    fn log_prior(&self, omega: &[f64]) -> f64 {
        self.prior.marginals().iter().zip(omega).map(|(marginal, &x)| marginal.log_density(x)).sum()
    }

    /// The rule for sigma number `j`: its range is where its density at the best unknowns is not nothing, which holds for
    /// worse unknowns all the more; its panels are as wide as 1.6 sds of `log sigma` at their place.
    fn rule(&self, j: usize, best: &[Best<'_>]) -> SigmaRule {
        let prior = &self.prior.marginals()[self.likelihoods.n_unknowns() + j];
        let (lower, upper) = prior.support();
        let (least, most) = (lower.max(f64::MIN_POSITIVE).ln(), upper.min(f64::MAX.sqrt()).ln());
        let mut low = prior.quantile(1e-9).ln().max(least);
        let mut high = prior.quantile(1.0 - 1e-12).ln().min(most);
        let output = self.likelihoods.output_of_sigma(j);
        // Data that contradict the prior put the sd beyond its quantiles: widened until the ends are nothing.
        let (first, last, slopes) = loop {
            let found = self.scan(output, (low, high), prior, best);
            let width = high - low;
            let (below, above) = (found.0 == 0 && low > least, found.1 == SCAN - 1 && high < most);
            if !below && !above {
                break found;
            }
            low = if below { (low - width).max(least) } else { low };
            high = if above { (high + width).min(most) } else { high };
        };
        let at = |k: usize| scanned((low, high), k);
        // The points are not the very best ones: unknowns that fit better favour smaller sds, by at most the factor two
        // allowed here on top of the log units of `NOTHING`.
        let step = (high - low) / SCAN as f64;
        let from = if first >= SCAN { low } else { (at(first) - step - std::f64::consts::LN_2).max(low) };
        let to = if first >= SCAN { high } else { (at(last) + step).min(high) };
        let pile_up = [(from == low).then_some(slopes[0]), (to == high).then_some(slopes[1])];
        let curvature = self.curvature(output, (from, to), prior, best);
        let width = |u: f64, v: f64| {
            let index = |u: f64| ((u - from) / (to - from) * curvature.len() as f64) as usize;
            let last = index(v).min(curvature.len() - 1);
            curvature[index(u).min(last)..=last].iter().fold(0.0, |m: f64, c| m.max(*c)).sqrt().recip()
        };
        let edges = |sds: f64| panel_edges((from, to), |u, v| sds * width(u, v), pile_up);
        let narrow = edges(NARROW);
        let (sigma, log_weight) = nodes_in(&narrow, NODES, prior);
        let mut rule = SigmaRule {
            edges: narrow,
            sigma,
            log_weight,
            by_draw: None,
            curve: None,
            panels: None,
            tables: Vec::new(),
            stretches: Vec::new(),
            linear: None,
        };
        if self.likelihoods.is_smooth_in_sd(output) {
            rule.stretches = Stretch::all(&rule.edges, &rule.sigma);
        }
        // A pooled density of many draws is pooled before it is integrated.
        if self.pooled().is_none() || self.likelihoods.n_draws() == 1 {
            let by_draw = |sigma: &[f64], log_weight: &[f64]| {
                self.likelihoods.node_tables(output, sigma).map(|tables| ByDraw::new(log_weight, tables))
            };
            rule.by_draw = by_draw(&rule.sigma, &rule.log_weight);
            match (&rule.by_draw, self.likelihoods.only_class(output)) {
                (Some(by_draw), Some((class, ..))) => {
                    rule.curve = Some(Curve::new(class, self.likelihoods.n_measurements(output), by_draw));
                }
                (Some(_), None) => {
                    let (sigma, log_weight) = nodes_in(&edges(WIDE), PANEL, prior);
                    rule.panels = by_draw(&sigma, &log_weight);
                }
                (None, _) if !rule.stretches.is_empty() => {}
                (None, _) => rule.tables = self.likelihoods.class_tables(output, &rule.sigma),
            }
        } else if rule.stretches.is_empty() {
            rule.tables = self.likelihoods.class_tables(output, &rule.sigma);
            rule.linear = self.linear(output, &rule);
        }
        rule
    }

    /// First and last of the scanned sds at which the density is not nothing at some of the best unknowns, and its steepest
    /// slope towards either end (per unit of log sigma).
    fn scan(
        &self,
        output: usize,
        range @ (low, high): (f64, f64),
        prior: &Marginal,
        best: &[Best<'_>],
    ) -> (usize, usize, [f64; 2]) {
        // In the tails of the unknowns the density falls by so much over the whole range of sds, at least.
        let none = (SCAN, 0, [2.0 * NOTHING; 2]);
        let found = best.par_iter().map(|best| {
            let mut l = best.buffer();
            let values: Vec<f64> =
                (0..SCAN).map(|k| best.log_density(output, scanned(range, k), prior, &mut l)).collect();
            let top = values.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
            let first = values.iter().position(|v| *v > top - NOTHING);
            let last = values.iter().rposition(|v| *v > top - NOTHING);
            let slopes = [[0, 1], [SCAN - 1, SCAN - 2]].map(|[outer, inner]| {
                let rise = (values[outer] - values[inner]) * SCAN as f64 / (high - low);
                if rise.is_finite() { rise } else { 0.0 }
            });
            (first.unwrap_or(SCAN), last.unwrap_or(0), slopes)
        });
        // Minima and maxima do not depend on the order.
        found.reduce(|| none, |a, b| (a.0.min(b.0), a.1.max(b.1), [0, 1].map(|e| f64::max(a.2[e], b.2[e]))))
    }

    fn linear(&self, output: usize, rule: &SigmaRule) -> Option<(Vec<f64>, Matrix)> {
        let alpha = self.alpha.as_ref()?;
        let (class, constant, error) = self.likelihoods.only_class(output)?;
        let terms = |k: usize, s: usize| match rule.tables.first() {
            Some((a, b)) => (a[(k, s)], b[(k, s)]),
            None => {
                let terms = class.terms(rule.sigma[k], 0.0, error);
                (terms.a, terms.b)
            }
        };
        let a =
            (0..rule.sigma.len()).map(|k| constant + (0..alpha.len()).map(|s| alpha[s] * terms(k, s).0).sum::<f64>());
        let b = Matrix::from_fn(rule.sigma.len(), alpha.len(), |k, s| alpha[s] * terms(k, s).1);
        Some((a.collect(), b))
    }

    /// Largest curvature of the log density of log sigma at equally spaced places of the range, over the best
    /// unknowns, not falling with sigma: worse unknowns have their peak at larger sds, as sharp as the best.
    fn curvature(&self, output: usize, (from, to): (f64, f64), prior: &Marginal, best: &[Best<'_>]) -> Vec<f64> {
        const PLACES: usize = 400;
        // Within so many log units of its top a density must be resolved.
        const MATTERS: f64 = 8.0;
        let h = (to - from) / PLACES as f64;
        let curvatures = best.par_iter().map(|best| {
            let mut l = best.buffer();
            let values: Vec<f64> =
                (0..PLACES + 2).map(|i| best.log_density(output, from + h * (i as f64 - 0.5), prior, &mut l)).collect();
            let top = values.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
            let at = |i: usize| {
                let second = (values[i] - 2.0 * values[i + 1] + values[i + 2]) / (h * h);
                if values[i + 1] > top - MATTERS && second.is_finite() { second.abs() } else { 0.0 }
            };
            (0..PLACES).map(at).collect::<Vec<f64>>()
        });
        let mut out = curvatures.reduce(
            || vec![0.0; PLACES],
            |mut a, b| {
                a.iter_mut().zip(b).for_each(|(a, b)| *a = f64::max(*a, b));
                a
            },
        );
        let mut largest = 0.0;
        for out in &mut out {
            largest = f64::max(largest, *out);
            *out = largest;
        }
        out
    }

    /// Each component (of many, a sample from one extreme to the other) at its best unknowns: the best of Halton points, then
    /// of finer and finer steps along the axes around it. Where there are several outputs also at the best unknowns of each alone: the outputs may
    /// contradict each other, and then every compromise has its own sds.
    fn best(&self) -> Vec<Best<'_>> {
        const SAMPLE: usize = 128;
        let (likelihoods, n_draws) = (self.likelihoods, self.likelihoods.n_draws());
        let mut objectives: Vec<Option<usize>> = vec![None];
        if likelihoods.n_outputs() > 1 {
            objectives.extend((0..likelihoods.n_outputs()).map(Some));
        }
        let sigma: Vec<f64> = self.prior.marginals()[self.axes.len()..].iter().map(Marginal::median).collect();
        if let Some(propagation) = self.pooled().filter(|_| n_draws > 1) {
            let pooled = Some((propagation, self.log_alpha));
            let start = |which: Option<usize>| {
                let mut best =
                    Best { likelihoods: Cow::Borrowed(likelihoods), pooled, workspace: Workspace::default() };
                let mut l = best.buffer();
                let values = self.halton().into_iter().map(|t| (best.set(&self.at(&t), which, &sigma, &mut l), t));
                let top = values.max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are points");
                self.climb(best, top, which, &sigma)
            };
            return objectives.into_iter().map(start).collect();
        }
        let mut out = Vec::new();
        for which in objectives {
            let mut start = vec![(f64::NEG_INFINITY, vec![0.5; self.axes.len()]); n_draws];
            let (mut workspace, mut l) = (Workspace::default(), vec![0.0; n_draws]);
            for t in self.halton() {
                likelihoods.set_unknowns(&self.at(&t), &mut workspace);
                log_likelihoods(likelihoods, which, &sigma, &workspace, &mut l);
                for (start, &l) in start.iter_mut().zip(&l) {
                    if l > start.0 {
                        *start = (l, t.clone());
                    }
                }
            }
            // What the density of an sd depends on: how well a draw fits, and its sigma_A.
            let mut scores: Vec<Vec<f64>> = vec![start.iter().map(|s| s.0).collect()];
            scores.extend((0..likelihoods.n_outputs()).filter_map(|o| likelihoods.sigma_a(o)).map(<[f64]>::to_vec));
            let mut sample: Vec<usize> = scores.iter().flat_map(|scores| spread(scores, SAMPLE)).collect();
            sample.sort_unstable();
            sample.dedup();
            out.par_extend(sample.par_iter().map(|&s| {
                let own = Cow::Owned(likelihoods.select(&[s]));
                let best = Best { likelihoods: own, pooled: None, workspace: Workspace::default() };
                self.climb(best, start[s].clone(), which, &sigma)
            }));
        }
        out
    }

    /// Points that fill the unit cube.
    fn halton(&self) -> Vec<Vec<f64>> {
        const POINTS: usize = 256;
        let n = self.axes.len();
        design::unit_points(design::Method::Halton, POINTS, n, Stream::root(0)).unwrap_or_else(|_| vec![vec![0.5; n]])
    }

    /// The unknowns at a point of the unit cube.
    fn at(&self, t: &[f64]) -> Vec<f64> {
        t.iter().zip(&self.axes).map(|(&t, axis)| axis.at(t.clamp(1e-6, 1.0 - 1e-6)).0).collect()
    }

    /// From a point of the unit cube and its value uphill along the axes, with steps from a sixteenth down to 1e-4.
    fn climb<'b>(
        &self,
        mut best: Best<'b>,
        (mut top, mut t): (f64, Vec<f64>),
        which: Option<usize>,
        sigma: &[f64],
    ) -> Best<'b> {
        let mut l = best.buffer();
        for level in 4..=13 {
            let centre = t.clone();
            for side in 0..2 * t.len() {
                let mut moved = centre.clone();
                moved[side / 2] += 0.5_f64.powi(level) * if side % 2 == 0 { 1.0 } else { -1.0 };
                let value = best.set(&self.at(&moved), which, sigma, &mut l);
                if value > top {
                    (top, t) = (value, moved);
                }
            }
        }
        best.set(&self.at(&t), which, sigma, &mut l);
        best
    }

    /// Fills `work.total` with the log-likelihoods at `omega`, sds integrated out; what each sd's integral is stays in
    /// `work.integrals`. Where log-likelihood and `log_prior` together show that a component has no mass here, its
    /// log-likelihood is good to one log unit.
    fn integrate(&self, omega: &[f64], log_prior: f64, work: &mut Work) {
        self.likelihoods.set_unknowns(omega, &mut work.workspace);
        self.integrate_here(log_prior, work);
    }

    /// Calls `f` for each of several points of the unknowns (rows) with what [`Self::integrate`] leaves behind.
    fn integrate_each(&self, omega: &Matrix, work: &mut Work, mut f: impl FnMut(usize, f64, &mut Work)) {
        self.likelihoods.set_points(omega, &mut work.workspace);
        for p in 0..omega.rows() {
            self.likelihoods.set_point(omega, p, &mut work.workspace);
            let log_prior = self.log_prior(omega.row(p));
            self.integrate_here(log_prior, work);
            f(p, log_prior, work);
        }
    }

    fn integrate_here(&self, log_prior: f64, work: &mut Work) {
        self.start(work);
        for (j, rule) in self.rules.iter().enumerate() {
            let output = self.likelihoods.output_of_sigma(j);
            let Work { workspace, integrals, nodes, row, total, .. } = &mut *work;
            let integral = &mut integrals[j];
            integral.clear();
            integral.resize(total.len(), 0.0);
            match (&rule.curve, &rule.panels) {
                (Some(curve), _) => curve.fill(self.likelihoods.residuals(output, 0, workspace), integral),
                (None, Some(panels)) => {
                    nodes.resize(panels.base.len(), 0.0);
                    row.clear();
                    row.extend(self.floors.iter().zip(&*total).map(|(floor, l)| floor - l - log_prior));
                    row.resize(total.len(), f64::NEG_INFINITY);
                    panels.with(self.likelihoods, output, workspace, |terms| {
                        kernels::log_integrals(terms, row, nodes, integral);
                    });
                }
                (None, None) => self.integrate_table(j, work),
            }
            let Work { integrals, total, .. } = &mut *work;
            kernels::add_or_exclude(&integrals[j], total);
        }
    }

    /// The pooled log-likelihood of all draws.
    fn pool(&self, propagation: &dyn Propagation, row: &mut [f64]) -> f64 {
        let linear = self.alpha.as_ref().map(|alpha| kernels::dot(alpha, row));
        // Draws that exclude the data need care.
        linear.filter(|sum| sum.is_finite()).unwrap_or_else(|| propagation.pool(self.log_alpha, row))
    }

    /// Sets `work.total` to the part of the outputs whose sds are known.
    fn start(&self, work: &mut Work) {
        let Work { workspace, tables, integrals, row, total, .. } = work;
        total.clear();
        total.resize(self.likelihoods.n_draws(), 0.0);
        self.likelihoods.known_log_likelihoods(workspace, total);
        if let Some(propagation) = self.pooled() {
            // Every sd's own factor is pooled by itself: E-Log-Lik is linear in the log-likelihoods, and Point has one draw.
            let pooled = self.pool(propagation, total);
            total.truncate(1);
            total[0] = pooled;
        }
        row.resize(self.likelihoods.n_draws(), 0.0);
        tables.resize_with(self.rules.len(), Vec::new);
        integrals.resize_with(self.rules.len(), Vec::new);
    }

    /// Values of every component at every node of sigma number `j`, and what they integrate to.
    fn integrate_table(&self, j: usize, work: &mut Work) {
        let Work { workspace, tables, integrals, row, few, interpolated, many, .. } = work;
        let (rule, table, integral) = (&self.rules[j], &mut tables[j], &mut integrals[j]);
        let output = self.likelihoods.output_of_sigma(j);
        table.clear();
        if let Some((a, b)) = &rule.linear {
            table.resize(a.len(), 0.0);
            kernels::dot_rows(b.data(), self.likelihoods.residuals(output, 0, workspace), table);
            table.iter_mut().zip(a).zip(&rule.log_weight).for_each(|((t, a), w)| *t += a + w);
        }
        many.reshape(if rule.stretches.is_empty() { 0 } else { rule.sigma.len() }, row.len());
        for Stretch { nodes, sigma, weights } in &rule.stretches {
            few.reshape(sigma.len(), row.len());
            for (z, &sigma) in sigma.iter().enumerate() {
                self.likelihoods.output_log_likelihoods(output, sigma, workspace, few.row_mut(z));
            }
            let out = &mut many.data_mut()[nodes.start * row.len()..nodes.end * row.len()];
            match weights {
                None => out.copy_from_slice(few.data()),
                Some(weights) => {
                    interpolated.set_product(weights, few);
                    out.copy_from_slice(interpolated.data());
                }
            }
        }
        let nodes = if rule.linear.is_some() { 0 } else { rule.sigma.len() };
        for (k, (&sigma, &weight)) in rule.sigma[..nodes].iter().zip(&rule.log_weight).enumerate() {
            match rule.stretches.is_empty() {
                // A draw that excludes the data does so at every sd.
                false => row.iter_mut().zip(many.row(k)).for_each(|(row, l)| *row = l.max(f64::NEG_INFINITY)),
                true => self.likelihoods.tabulated_log_likelihoods(output, k, sigma, &rule.tables, workspace, row),
            }
            match self.pooled() {
                None => table.extend(row.iter().map(|l| l + weight)),
                Some(propagation) => table.push(self.pool(propagation, row) + weight),
            }
        }
        kernels::add_log_sum_exp_columns(table, integral);
    }

    /// Marginals of the sds under the density that the grid holds, and the mean share of each component in it; the log-offsets
    /// of the components (log weight minus log evidence) are given.
    pub(super) fn marginals(&self, grid: &Grid, offset: &[f64]) -> (Vec<Grid>, Vec<f64>) {
        // Many components over several unknowns have many small cells; a single narrow peak has few, which need the full rule.
        let embedded = self.has_many_cells();
        let nodes = grid.heavy_nodes(NEGLIGIBLE, embedded);
        let curves = self.rules.iter().map(|rule| rule.curve.as_ref().zip(rule.by_draw.as_ref()));
        if let Some(curves) = curves.collect::<Option<Vec<_>>>() {
            return self.marginals_by_residuals(&curves, &nodes, offset);
        }
        let blocks: Vec<(Vec<Vec<f64>>, Vec<f64>)> = nodes
            .par_chunks(32)
            .map(|block| {
                let mut work = Work::default();
                let mut mass: Vec<Vec<f64>> = self.rules.iter().map(|rule| vec![0.0; rule.sigma.len()]).collect();
                let mut shares = vec![0.0; offset.len()];
                for (x, weight) in block {
                    self.add_sigma_mass(x, *weight, offset, &mut work, &mut mass);
                    kernels::add_affine(0.0, *weight, &work.row, &mut shares);
                }
                (mass, shares)
            })
            .collect();
        let (mut total, mut shares) = blocks[0].clone();
        for (mass, more) in &blocks[1..] {
            total.iter_mut().zip(mass).for_each(|(total, mass)| kernels::add_affine(0.0, 1.0, mass, total));
            kernels::add_affine(0.0, 1.0, more, &mut shares);
        }
        (total.iter().enumerate().map(|(j, mass)| self.sigma_grid(j, mass)).collect(), shares)
    }

    /// The same where every sd depends on the rest through one residual sum R, and so has a curve: the weights are gathered by R
    /// first, and spread over the sds once.
    fn marginals_by_residuals(
        &self,
        curves: &[(&Curve, &ByDraw)],
        nodes: &[(Vec<f64>, f64)],
        offset: &[f64],
    ) -> (Vec<Grid>, Vec<f64>) {
        // A fixed number, so that the order of the sums does not depend on the number of threads.
        const BLOCKS: usize = 8;
        let outputs: Vec<usize> = (0..curves.len()).map(|j| self.likelihoods.output_of_sigma(j)).collect();
        let new = || -> (Vec<Histogram>, Vec<f64>) {
            let of_rule = |(j, (curve, _)): (usize, &(&Curve, &ByDraw))| {
                Histogram::new(curve, self.likelihoods.n_measurements(outputs[j]))
            };
            (curves.iter().enumerate().map(of_rule).collect(), vec![0.0; offset.len()])
        };
        let blocks: Vec<(Vec<Histogram>, Vec<f64>)> = nodes
            .par_chunks(nodes.len().div_ceil(BLOCKS).max(1))
            .map(|block| {
                let (mut work, mut places) = (Work::default(), Vec::new());
                let (mut histograms, mut shares) = new();
                for nodes in block.chunks(POINTS) {
                    let omega = Matrix::from_fn(nodes.len(), self.axes.len(), |p, d| nodes[p].0[d]);
                    self.integrate_each(&omega, &mut work, |p, _, work| {
                        let (Work { workspace, total, .. }, weight) = (work, nodes[p].1);
                        kernels::log_mean_exp_weights(offset, total);
                        kernels::add_affine(0.0, weight, total, &mut shares);
                        for (histogram, &output) in histograms.iter_mut().zip(&outputs) {
                            let residuals = self.likelihoods.residuals(output, 0, workspace);
                            histogram.add(weight, total, residuals, &mut places);
                        }
                    });
                }
                (histograms, shares)
            })
            .collect();
        let mut blocks = blocks.into_iter();
        let (mut total, mut shares) = blocks.next().unwrap_or_else(new);
        for (block, more) in blocks {
            total.iter_mut().zip(&block).for_each(|(total, block)| total.merge(block));
            kernels::add_affine(0.0, 1.0, &more, &mut shares);
        }
        let grids = curves.iter().zip(&total).enumerate();
        (grids.map(|(j, ((_, by_draw), histogram))| self.sigma_grid(j, &histogram.spread(by_draw))).collect(), shares)
    }

    /// Spreads the weight that the density has at the unknowns `x` over the nodes of every sd; the shares of the components stay
    /// in `work.row`.
    fn add_sigma_mass(&self, x: &[f64], weight: f64, offset: &[f64], work: &mut Work, mass: &mut [Vec<f64>]) {
        self.integrate(x, f64::INFINITY, work);
        let Work { workspace, tables, integrals, nodes, total, row, .. } = work;
        let n = total.len();
        row.clone_from(total);
        kernels::log_mean_exp_weights(offset, row);
        for (j, (rule, mass)) in self.rules.iter().zip(mass).enumerate() {
            let Some(by_draw) = &rule.by_draw else {
                kernels::exp_minus_columns(&mut tables[j], &integrals[j]);
                for (mass, values) in mass.iter_mut().zip(tables[j].chunks_exact(n)) {
                    *mass += weight * kernels::dot(values, row);
                }
                continue;
            };
            by_draw.with(self.likelihoods, self.likelihoods.output_of_sigma(j), workspace, |terms| {
                for (s, &share) in row.iter().enumerate().filter(|(_, share)| **share >= NEGLIGIBLE / n as f64) {
                    let first = kernels::node_shares(terms, s, integrals[j][s], nodes);
                    kernels::add_affine(0.0, weight * share, nodes, &mut mass[first..first + nodes.len()]);
                }
            });
        }
    }

    fn sigma_grid(&self, j: usize, mass: &[f64]) -> Grid {
        let rule = &self.rules[j];
        let (from, to) = (rule.edges[0], rule.edges[rule.edges.len() - 1]);
        let edges: Vec<f64> = rule.edges.iter().map(|u| (u - from) / (to - from)).collect();
        let (_, w) = gauss_legendre(NODES);
        // Back from masses to a density in the unit interval.
        let density = |k: usize| mass[k] / (0.5 * w[k % NODES] * (edges[k / NODES + 1] - edges[k / NODES]));
        let values = (0..mass.len()).map(density).collect();
        Grid::from_panels(Axis::Log { lower: from, upper: to }, &edges, values)
    }

    /// How much each component accounts for the unknowns, sds integrated out: `shares[s] ∝ exp(offset[s] + l_s(x))`.
    pub(super) fn responsibilities(&self, x: &[f64], offset: &[f64], work: &mut Work, shares: &mut Vec<f64>) {
        self.integrate(x, f64::INFINITY, work);
        shares.clone_from(&work.total);
        kernels::log_mean_exp_weights(offset, shares);
    }

    /// Draws of the component (the T-draw, or 0 of a pooled density) and of every sd given unknowns, each by its own generator.
    pub(super) fn draw(
        &self,
        omega: &Matrix,
        offset: &[f64],
        work: &mut Work,
        rngs: &mut [impl Rng],
    ) -> Vec<(Vec<f64>, usize)> {
        let mut out = Vec::with_capacity(omega.rows());
        self.integrate_each(omega, work, |p, _, work| {
            let mut parameters = Vec::with_capacity(omega.cols() + self.rules.len());
            parameters.extend_from_slice(omega.row(p));
            let s = self.draw_here(offset, work, &mut rngs[p], &mut parameters);
            out.push((parameters, s));
        });
        out
    }

    /// The T-draw; its sds are added to the parameters.
    fn draw_here(&self, offset: &[f64], work: &mut Work, rng: &mut impl Rng, parameters: &mut Vec<f64>) -> usize {
        let Work { workspace, tables, integrals, nodes, mass, total, .. } = work;
        let n = total.len();
        kernels::log_mean_exp_weights(offset, total);
        let s = pick_weighted(total, rng);
        for (j, rule) in self.rules.iter().enumerate() {
            mass.clear();
            mass.resize(rule.sigma.len(), 0.0);
            match &rule.by_draw {
                Some(by_draw) => {
                    by_draw.with(self.likelihoods, self.likelihoods.output_of_sigma(j), workspace, |terms| {
                        let first = kernels::node_shares(terms, s, integrals[j][s], nodes);
                        mass[first..first + nodes.len()].copy_from_slice(nodes);
                    });
                }
                None => {
                    let values = tables[j].iter().skip(s).step_by(n);
                    mass.iter_mut().zip(values).for_each(|(mass, l)| *mass = (l - integrals[j][s]).exp());
                }
            }
            parameters.push(draw_in_panels(&rule.edges, mass, rng).exp());
        }
        s
    }
}

impl Components for Integrated<'_> {
    type Work = Work;

    fn axes(&self) -> &[Axis] {
        &self.axes
    }

    fn len(&self) -> usize {
        match self.pooling {
            Pooling::Each => self.likelihoods.n_draws(),
            Pooling::Averaged | Pooling::Pooled(_) => 1,
        }
    }

    /// The larger of a draw's share in E-Post (alpha) and in the weights by evidence (alpha Z) that other mixtures have.
    fn importance(&self, log_evidence: &[f64]) -> Vec<f64> {
        if self.len() == 1 {
            return vec![1.0];
        }
        let raw: Vec<f64> = self.log_alpha.iter().zip(log_evidence).map(|(a, z)| a + z).collect();
        let total = log_sum_exp(&raw);
        self.log_alpha.iter().zip(&raw).map(|(a, w)| a.exp().max((w - total).exp())).collect()
    }

    fn work(&self) -> Work {
        Work::default()
    }

    fn evaluate(&self, nodes: &[[f64; NODES]], work: &mut Work, out: &mut [f64]) {
        // So many that residuals of all draws stay in the cache.
        const TOGETHER: usize = 2 * POINTS;
        let (k, dim) = (self.len(), nodes.len());
        for (first, rows) in (0..).step_by(TOGETHER).zip(out.chunks_mut(TOGETHER * k)) {
            let at = |node: usize, d: usize| nodes[d][(node / NODES.pow((dim - 1 - d) as u32)) % NODES];
            let omega = Matrix::from_fn(rows.len() / k, dim, |p, d| at(first + p, d));
            self.integrate_each(&omega, work, |p, log_prior, work| {
                let row = &mut rows[p * k..(p + 1) * k];
                match self.pooling {
                    Pooling::Averaged => row[0] = kernels::log_mean_exp(self.log_alpha, &work.total) + log_prior,
                    _ => row.iter_mut().zip(&work.total).for_each(|(out, l)| *out = l + log_prior),
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::infer::{Link, OutputTerm};
    use crate::likelihood::{ErrorSharing, Family, Reduced, Scale, Values};
    use crate::surrogate::{InputScale, Normalisation, PolynomialChaos};
    use std::sync::Arc;

    const UNKNOWNS: [f64; 5] = [-0.9, -0.4, 0.0, 0.3, 0.8];

    /// A line in the unknown and the condition, on the logarithm of counts, some of which are zero.
    fn counts(prior: &str, sigma_a: bool, y: &[f64]) -> (Likelihoods, Prior) {
        let scales = vec![InputScale { lower: -1.0, upper: 1.0, log: false }; 2];
        let marginal = |text: &str| text.parse::<Marginal>().unwrap();
        let surrogate = PolynomialChaos::new(1, Normalisation::None, marginal("normal(0, 1)"), scales);
        let family = Family::LogNormal { refuse_zeros: false }.likelihood();
        // Two replicates at the first inputs, one at the others: two classes.
        let known = Matrix::from_fn(y.len(), 1, |i, _| -1.0 + 2.0 * i.max(1) as f64 / y.len() as f64);
        let sd = Scale::Prior(marginal(prior));
        let data = Reduced::new(&*family, &sd, &Values::plain(y, &known), ErrorSharing::Shared, true).unwrap();
        let n_draws = 20;
        let term = OutputTerm {
            surrogate: Arc::new(surrogate),
            affine: (0.0, 1.0),
            link: Link::Identity,
            family: Arc::from(family),
            data: Arc::new(data),
            error: ErrorSharing::Shared,
            sigma: Some(0),
            coefficients: Matrix::from_fn(3, n_draws, |p, s| [1.0, 1.5, 1.0][p] + 0.1 * ((3 * s + p) as f64).sin()),
            sigma_a: sigma_a.then(|| (0..n_draws).map(|s| 0.02 * (s + 1) as f64).collect()),
            field: None,
        };
        let prior = Prior::new(
            vec!["a".into(), "sigma_i".into()],
            vec![marginal("normal(0, 0.5)").truncated(-1.0, 1.0).unwrap(), marginal(prior)],
        );
        (Likelihoods::new(1, 1, vec![term], true), prior.unwrap())
    }

    /// `l_s + log_weight` of every draw at every node, one after the other.
    fn one_by_one(likelihoods: &Likelihoods, (sigma, log_weight): (&[f64], &[f64]), omega: f64) -> Vec<Vec<f64>> {
        let (mut workspace, mut l) = (Workspace::default(), vec![0.0; likelihoods.n_draws()]);
        likelihoods.set_unknowns(&[omega], &mut workspace);
        let mut out = vec![Vec::new(); l.len()];
        for (&sigma, &weight) in sigma.iter().zip(log_weight) {
            likelihoods.output_log_likelihoods(0, sigma, &workspace, &mut l);
            out.iter_mut().zip(&l).for_each(|(out, l)| out.push(l + weight));
        }
        out
    }

    /// Variances and residuals over eight decades, and ranges from one narrow stretch to several.
    #[test]
    fn a_log_likelihood_is_interpolated_from_few_sds() {
        let l = |s: f64| {
            let of = |c: f64, r: f64| -0.5 * (c + s * s).ln() - 0.5 * r * r / (c + s * s);
            [(0.0, 0.3), (1e-4, 1.0), (0.01, 0.1), (1.0, 2.0), (1e4, 50.0)].map(|(c, r)| of(c, r)).iter().sum::<f64>()
        };
        for (from, to) in [(-2.0, -1.5), (-3.0, -1.0), (-9.0, -1.0)] {
            let edges: Vec<f64> = (0..=40).map(|e| from + (to - from) * f64::from(e) / 40.0).collect();
            let (sigma, _) = nodes_in(&edges, NODES, &"uniform(0, 1)".parse().unwrap());
            let stretches = Stretch::all(&edges, &sigma);
            assert_eq!(
                stretches.iter().flat_map(|s| s.nodes.clone()).collect::<Vec<_>>(),
                (0..200).collect::<Vec<_>>()
            );
            assert!(stretches.iter().map(|s| s.sigma.len()).sum::<usize>() <= 134);
            for Stretch { nodes, sigma: few, weights } in stretches {
                let few: Vec<f64> = few.iter().map(|s| l(*s)).collect();
                let largest = few.iter().fold(0.0, |m: f64, l| m.max(l.abs()));
                for (k, s) in sigma[nodes].iter().enumerate() {
                    let found = weights
                        .as_ref()
                        .map_or(few[k.min(few.len() - 1)], |weights| kernels::dot(weights.row(k), &few));
                    // On the ellipse terms are less than twice as large as on its axis; the bound of the error is 4 M rho^-Z / (rho - 1).
                    assert!((found - l(*s)).abs() <= 2.0 * 4.0 * 1e-8 * largest, "{from} {to} {s}: {found} {}", l(*s));
                }
            }
        }
    }

    #[test]
    fn zeros_and_several_classes_integrate_as_by_the_nodes_one_by_one() {
        let (some, none) = ([4.0, 2.0, 0.0, 3.0, 0.0, 7.0, 0.0, 12.0, 20.0], [4.0, 2.0, 1.0, 3.0, 2.0, 7.0]);
        for (y, prior, sigma_a) in [
            (&some[..], "half-normal(0.5)", true),
            (&some, "half-normal(0.5)", false),
            // Data that press against either end of the prior.
            (&some, "uniform(0.01, 0.1)", true),
            (&some, "uniform(2, 5)", false),
            (&none, "half-normal(0.5)", true),
            (&[0.0, 0.0, 0.0], "half-normal(0.5)", true),
        ] {
            let (likelihoods, joint) = counts(prior, sigma_a, y);
            let log_alpha = vec![-(20_f64.ln()); 20];
            let integrated = Integrated::new(&likelihoods, &joint, &log_alpha, Pooling::Each);
            let rule = &integrated.rules[0];
            // Four times the nodes: exact beside the rule.
            let (sigma, log_weight) = nodes_in(&rule.edges, 4 * NODES, &joint.marginals()[1]);
            let exact = UNKNOWNS.map(|omega| {
                let values = one_by_one(&likelihoods, (&sigma, &log_weight), omega);
                values.iter().map(|values| log_sum_exp(values)).collect::<Vec<f64>>()
            });
            // Every node but the largest may be left out where it is nothing.
            let left_out = |n: usize| n as f64 * (-kernels::NOTHING).exp();
            let (mut work, mut shares) = (Work::default(), Vec::new());
            for (omega, exact_here) in UNKNOWNS.iter().zip(&exact) {
                integrated.integrate(&[*omega], integrated.log_prior(&[*omega]), &mut work);
                let values = one_by_one(&likelihoods, (&rule.sigma, &rule.log_weight), *omega);
                for s in 0..likelihoods.n_draws() {
                    let (exact_here, found) = (exact_here[s], work.integrals[0][s]);
                    let best = exact.iter().fold(f64::NEG_INFINITY, |m, exact| m.max(exact[s]));
                    // Unknowns without mass need no more than to be seen as such.
                    if exact_here < best - NOTHING {
                        assert!(found < best - 0.5 * NOTHING, "{y:?} {prior} {omega} {s}: {found} {exact_here} {best}");
                        continue;
                    }
                    let bound = WIDE_ERROR + left_out(rule.panels.as_ref().unwrap().base.len());
                    let gap = (found - exact_here).abs();
                    assert!(gap <= bound, "{y:?} {prior} {omega} {s}: {gap:e}");
                    let integral = log_sum_exp(&values[s]);
                    let by_draw = rule.by_draw.as_ref().unwrap();
                    let first = by_draw.with(&likelihoods, 0, &work.workspace, |terms| {
                        kernels::node_shares(terms, s, integral, &mut shares)
                    });
                    for (k, value) in values[s].iter().enumerate() {
                        let share = shares.get(k.wrapping_sub(first)).copied().unwrap_or(0.0);
                        let gap = (share - (value - integral).exp()).abs();
                        assert!(gap <= left_out(1), "{y:?} {prior} {omega} {s} {k}: {gap:e}");
                    }
                }
            }
        }
    }
}
