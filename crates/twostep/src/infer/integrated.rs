//! The likelihood of every T-draw with the unknown measurement sds integrated out, so that the grid runs over the unknowns
//! alone: given the unknowns and a T-draw, each output's sd is one-dimensional quadrature.

use super::likelihoods::{Likelihoods, Workspace};
use super::propagation::Propagation;
use crate::draws::pick_weighted;
use crate::kernels;
use crate::matrix::Matrix;
use crate::mcmc::quadrature::{Axis, Components, Grid, NODES};
use crate::prior::{Marginal, Prior};
use crate::simulate::design;
use crate::special::{gauss_legendre, log_sum_exp};
use crate::stream::Stream;
use rand::Rng;
use rayon::prelude::*;
use std::borrow::Cow;

/// Log units below its top at which a density is nothing.
const NOTHING: f64 = 20.0;
/// Widest panel in log sigma: five nodes integrate `sigma` itself over it to ten digits.
const WIDEST: f64 = 2.0;
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
    /// `a` and `b` of every class at every node and draw (K x S), where sigma_A makes them depend on the draw.
    tables: Vec<(Matrix, Matrix)>,
    /// The integral as a function of the residual sum of squares, where the output depends on the surrogate through one
    /// such sum alone.
    curve: Option<Curve>,
    /// For a pool that is linear in the log-likelihoods: `sum_s alpha_s a_k,s` and `alpha_s b_k,s` at every node.
    linear: Option<(Vec<f64>, Matrix)>,
}

/// `F_s(R) = log sum_k exp(a_k,s + b_k,s R + log_weight_k)` by cubic interpolation in `log(R + offset)`.
#[derive(Clone, Debug)]
struct Curve {
    offset: f64,
    start: f64,
    step: f64,
    /// Value and derivative at every node: one row of pairs per draw, or a single row where all draws share it.
    rows: Matrix,
}

impl Curve {
    /// Decades of R above the offset that are tabulated, as a natural logarithm.
    const REACH: f64 = 27.6;

    /// `coefficients(s, k)` gives a and b of draw s at node k.
    fn new(
        offset: f64,
        n_measurements: usize,
        n_rows: usize,
        n_nodes: usize,
        coefficients: impl Fn(usize, usize) -> (f64, f64) + Sync,
    ) -> Self {
        let start = offset.ln();
        // The error of the cubic is h^4/384 times a fourth derivative of the order of the number of measurements: 1e-5 at
        // h = 0.1 for fifty.
        let step = 0.1 * (50.0 / n_measurements as f64).powf(0.25).min(1.0);
        let length = (Self::REACH / step).ceil() as usize;
        let rows: Vec<Vec<f64>> = (0..n_rows)
            .into_par_iter()
            .map(|s| {
                let terms: Vec<(f64, f64)> = (0..n_nodes).map(|k| coefficients(s, k)).collect();
                let mut row = Vec::with_capacity(2 * length);
                for i in 0..length {
                    let shifted = (start + step * i as f64).exp();
                    let r = shifted - offset;
                    let top = terms.iter().fold(f64::NEG_INFINITY, |m, (a, b)| m.max(a + b * r));
                    let (mut sum, mut slope) = (0.0, 0.0);
                    for (a, b) in &terms {
                        let e = (a + b * r - top).exp();
                        sum += e;
                        slope += e * b;
                    }
                    // Derivative by the logarithm.
                    row.extend([top + sum.ln(), slope / sum * shifted]);
                }
                row
            })
            .collect();
        Self { offset, start, step, rows: Matrix::from_rows(n_rows, 2 * length, rows.concat()) }
    }

    fn at(&self, s: usize, r: f64) -> f64 {
        let row = self.rows.row(if self.rows.rows() == 1 { 0 } else { s });
        let x = ((r + self.offset).ln() - self.start) / self.step;
        let last = row.len() / 2 - 1;
        if x >= last as f64 {
            // Beyond the last node the largest sd alone counts: linear in R.
            let end = (self.start + self.step * last as f64).exp();
            return row[2 * last] + row[2 * last + 1] * (r + self.offset - end) / end;
        }
        let i = x.max(0.0) as usize;
        let t = x - i as f64;
        let [f0, d0, f1, d1] = [row[2 * i], row[2 * i + 1] * self.step, row[2 * i + 2], row[2 * i + 3] * self.step];
        let rise = f1 - f0;
        f0 + t * (d0 + t * (3.0 * rise - 2.0 * d0 - d1 + t * (d0 + d1 - 2.0 * rise)))
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
    fn new(offset: f64, n_measurements: usize, n_rows: usize) -> Self {
        // Given R, log sigma has an sd of about sqrt(1 / 2n), so that the density of an sd is as wide as sqrt(2 / n) in log R.
        let step = (0.4 * (2.0 / n_measurements as f64).sqrt()).min(0.1);
        let n_bins = (Curve::REACH / step).ceil() as usize + 3;
        Self { offset, step, n_bins, rows: vec![Vec::new(); n_rows] }
    }

    /// Adds the weights of all draws at their R.
    fn add(&mut self, weight: f64, shares: &[f64], residuals: &[f64], places: &mut Vec<f64>) {
        let (start, inverse, last) = (self.offset.ln(), self.step.recip(), (self.n_bins - 4) as f64);
        places.clear();
        places.extend(residuals.iter().map(|r| r + self.offset));
        kernels::ln_each(places);
        for (s, (share, place)) in shares.iter().zip(places.iter()).enumerate() {
            let mass = weight * share;
            // Far below anything that could be seen in a quantile.
            if mass <= 1e-14 {
                continue;
            }
            let at = ((place - start) * inverse).clamp(0.0, last);
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

    /// The mass of each node of sigma, where `terms(s, k)` gives a and b of `log p(sigma_k | R) = a + b R + constant`.
    fn spread(&self, n_nodes: usize, terms: impl Fn(usize, usize) -> (f64, f64) + Sync) -> Vec<f64> {
        let of_rows: Vec<Vec<f64>> = self
            .rows
            .par_iter()
            .enumerate()
            .filter(|(_, bins)| !bins.is_empty())
            .map(|(s, bins)| {
                let (a, b): (Vec<f64>, Vec<f64>) = (0..n_nodes).map(|k| terms(s, k)).unzip();
                let (mut mass, mut shares) = (vec![0.0; n_nodes], vec![0.0; n_nodes]);
                for (i, weight) in bins.iter().enumerate().filter(|(_, weight)| **weight != 0.0) {
                    let r = self.offset * ((i as f64 - 1.0) * self.step).exp_m1();
                    shares.fill(0.0);
                    kernels::add_affine(0.0, r, &b, &mut shares);
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

impl SigmaRule {
    fn new(edges: Vec<f64>, prior: &Marginal) -> Self {
        let (x, w) = gauss_legendre(NODES);
        let (mut sigma, mut log_weight) = (Vec::new(), Vec::new());
        for panel in edges.windows(2) {
            let step = panel[1] - panel[0];
            for j in 0..NODES {
                let u = panel[0] + step * 0.5 * (x[j] + 1.0);
                sigma.push(u.exp());
                log_weight.push((0.5 * step * w[j]).ln() + prior.log_density(u.exp()) + u);
            }
        }
        Self { edges, sigma, log_weight, tables: Vec::new(), curve: None, linear: None }
    }
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

/// Posteriors `p_s(omega)` of all T-draws, or one pooled density, with the sds integrated out.
pub(super) struct Integrated<'a> {
    likelihoods: &'a Likelihoods,
    prior: &'a Prior,
    log_alpha: &'a [f64],
    /// `Some` pools all draws to one component.
    pooled: Option<&'a dyn Propagation>,
    axes: Vec<Axis>,
    /// One per unknown sd, in the order of the prior.
    rules: Vec<SigmaRule>,
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
    /// For each unknown sd: K x S values `l_s(sigma_k) + log_weight_k`, or K pooled ones.
    tables: Vec<Vec<f64>>,
    /// For each unknown sd: what its table integrates to.
    integrals: Vec<Vec<f64>>,
    row: Vec<f64>,
    /// Log-likelihood of each component, sds integrated out.
    total: Vec<f64>,
}

impl<'a> Integrated<'a> {
    pub(super) fn new(
        likelihoods: &'a Likelihoods,
        prior: &'a Prior,
        log_alpha: &'a [f64],
        pooled: Option<&'a dyn Propagation>,
    ) -> Self {
        let n = likelihoods.n_unknowns();
        let axes = prior.marginals()[..n]
            .iter()
            .map(|m| Axis::new(m.support(), m.median(), 0.5 * (m.quantile(0.84) - m.quantile(0.16))))
            .collect();
        let mut out = Self { likelihoods, prior, log_alpha, pooled, axes, rules: Vec::new() };
        if likelihoods.n_sigmas() > 0 {
            let best = out.best();
            out.rules = (0..likelihoods.n_sigmas()).map(|j| out.rule(j, &best)).collect();
        }
        out
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
            1.6 / curvature[index(u).min(last)..=last].iter().fold(0.0, |m: f64, c| m.max(*c)).sqrt()
        };
        let mut rule = SigmaRule::new(panel_edges((from, to), width, pile_up), prior);
        rule.tables = self.likelihoods.class_tables(output, &rule.sigma);
        // A pooled density of many draws is pooled before it is integrated.
        if self.pooled.is_none() || self.likelihoods.n_draws() == 1 {
            rule.curve = self.curve(output, &rule);
        } else {
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
        let alpha = self.pooled?.linear_weights(self.log_alpha)?;
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

    fn curve(&self, output: usize, rule: &SigmaRule) -> Option<Curve> {
        let (class, constant, error) = self.likelihoods.only_class(output)?;
        // Below the smallest variance that any draw allows the integral is flat in R.
        let steepest = match rule.tables.first() {
            Some((_, b)) => b.data().iter().fold(0.0, |m: f64, b| m.max(-b)),
            None => -class.terms(rule.sigma[0], 0.0, error).b,
        };
        let offset = 0.5 / steepest + class.scatter / (class.n * class.groups);
        let rows = if rule.tables.is_empty() { 1 } else { self.likelihoods.n_draws() };
        let n = self.likelihoods.n_measurements(output);
        Some(Curve::new(offset, n, rows, rule.sigma.len(), |s, k| match rule.tables.first() {
            Some((a, b)) => (a[(k, s)] + rule.log_weight[k] + constant, b[(k, s)]),
            None => {
                let terms = class.terms(rule.sigma[k], 0.0, error);
                (terms.a + rule.log_weight[k] + constant, terms.b)
            }
        }))
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

    /// Each component (of very many, a sample) at its best unknowns: the best of Halton points, then of finer and finer steps
    /// along the axes around it. Where there are several outputs also at the best unknowns of each alone: the outputs may
    /// contradict each other, and then every compromise has its own sds.
    fn best(&self) -> Vec<Best<'_>> {
        const SAMPLE: usize = 2048;
        let (likelihoods, n_draws) = (self.likelihoods, self.likelihoods.n_draws());
        let mut objectives: Vec<Option<usize>> = vec![None];
        if likelihoods.n_outputs() > 1 {
            objectives.extend((0..likelihoods.n_outputs()).map(Some));
        }
        let sigma: Vec<f64> = self.prior.marginals()[self.axes.len()..].iter().map(Marginal::median).collect();
        if let Some(propagation) = self.pooled.filter(|_| n_draws > 1) {
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
        let sample: Vec<usize> = (0..n_draws).step_by(n_draws.div_ceil(SAMPLE)).collect();
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

    /// Fills `work.total` with the log-likelihoods at `omega`, sds integrated out.
    fn integrate(&self, omega: &[f64], work: &mut Work) {
        self.start(omega, work);
        for j in 0..self.rules.len() {
            let output = self.likelihoods.output_of_sigma(j);
            match &self.rules[j].curve {
                Some(curve) => {
                    let residuals = self.likelihoods.residuals(output, &work.workspace);
                    for (s, (total, &r)) in work.total.iter_mut().zip(residuals).enumerate() {
                        *total += curve.at(s, r);
                    }
                }
                None => self.add_table(j, work),
            }
        }
        work.total.iter_mut().filter(|l| l.is_nan()).for_each(|l| *l = f64::NEG_INFINITY);
    }

    /// The same by the nodes of every sd, which are left in `work.tables` with what they integrate to.
    fn tabulate(&self, omega: &[f64], work: &mut Work) {
        self.start(omega, work);
        for j in 0..self.rules.len() {
            self.add_table(j, work);
        }
        work.total.iter_mut().filter(|l| l.is_nan()).for_each(|l| *l = f64::NEG_INFINITY);
    }

    /// Sets the unknowns, and `work.total` to the part of the outputs whose sds are known.
    fn start(&self, omega: &[f64], work: &mut Work) {
        let Work { workspace, tables, integrals, row, total } = work;
        self.likelihoods.set_unknowns(omega, workspace);
        row.resize(self.likelihoods.n_draws(), 0.0);
        row.fill(0.0);
        self.likelihoods.known_log_likelihoods(workspace, row);
        total.clear();
        match self.pooled {
            None => total.extend_from_slice(row),
            // Every sd's own factor is pooled by itself: E-Log-Lik is linear in the log-likelihoods, and Point has one draw.
            Some(propagation) => total.push(propagation.pool(self.log_alpha, row)),
        }
        tables.resize_with(self.rules.len(), Vec::new);
        integrals.resize_with(self.rules.len(), Vec::new);
    }

    fn add_table(&self, j: usize, work: &mut Work) {
        let Work { workspace, tables, integrals, row, total } = work;
        let (rule, table, integral) = (&self.rules[j], &mut tables[j], &mut integrals[j]);
        let output = self.likelihoods.output_of_sigma(j);
        table.clear();
        if let Some((a, b)) = &rule.linear {
            table.resize(a.len(), 0.0);
            kernels::dot_rows(b.data(), self.likelihoods.residuals(output, workspace), table);
            table.iter_mut().zip(a).zip(&rule.log_weight).for_each(|((t, a), w)| *t += a + w);
        }
        let nodes = if rule.linear.is_some() { 0 } else { rule.sigma.len() };
        for (k, (&sigma, &weight)) in rule.sigma[..nodes].iter().zip(&rule.log_weight).enumerate() {
            self.likelihoods.tabulated_log_likelihoods(output, k, sigma, &rule.tables, workspace, row);
            match self.pooled {
                None => table.extend(row.iter().map(|l| l + weight)),
                Some(propagation) => table.push(propagation.pool(self.log_alpha, row) + weight),
            }
        }
        integral.clear();
        integral.resize(total.len(), 0.0);
        kernels::add_log_sum_exp_columns(table, integral);
        total.iter_mut().zip(integral).for_each(|(t, i)| *t += *i);
    }

    /// Marginals of the sds under the mixtures that the grids hold, whose log-offsets (log weight minus log evidence of each
    /// component) are given: for each sd one grid per mixture.
    pub(super) fn sigma_grids(&self, grids: &[Grid], offsets: &[Vec<f64>]) -> Vec<Vec<Grid>> {
        if self.rules.is_empty() {
            return Vec::new();
        }
        // Many components over several unknowns have many small cells; a single narrow peak has few, which need the full rule.
        let embedded = self.len() > 1 && self.axes.len() > 1;
        let weights = Grid::shared_nodes(grids, NEGLIGIBLE, embedded);
        if self.rules.iter().all(|rule| rule.curve.is_some()) {
            return self.sigma_grids_by_residuals(&weights, offsets);
        }
        let sizes: Vec<usize> = self.rules.iter().map(|rule| rule.sigma.len()).collect();
        let blocks: Vec<Vec<Vec<f64>>> = weights
            .par_chunks(32)
            .map(|block| {
                let mut work = Work::default();
                // One histogram per sd and mixture.
                let mut mass: Vec<Vec<f64>> =
                    sizes.iter().flat_map(|n| (0..grids.len()).map(move |_| vec![0.0; *n])).collect();
                for (x, w) in block {
                    self.add_sigma_mass(x, w, offsets, &mut work, &mut mass);
                }
                mass
            })
            .collect();
        let mut total = blocks[0].clone();
        for block in &blocks[1..] {
            for (total, mass) in total.iter_mut().zip(block) {
                total.iter_mut().zip(mass).for_each(|(t, m)| *t += m);
            }
        }
        (0..self.rules.len())
            .map(|j| (0..grids.len()).map(|m| self.sigma_grid(j, &total[j * grids.len() + m])).collect())
            .collect()
    }

    /// The same where every sd depends on the rest through one residual sum R: the mixtures' weights are gathered by R first,
    /// and spread over the sds once.
    fn sigma_grids_by_residuals(&self, nodes: &[(Vec<f64>, Vec<f64>)], offsets: &[Vec<f64>]) -> Vec<Vec<Grid>> {
        // A fixed number, so that the order of the sums does not depend on the number of threads.
        const BLOCKS: usize = 8;
        let n_mixtures = offsets.len();
        let new = || -> Vec<Histogram> {
            let of_rule = |j| (0..n_mixtures).map(move |_| self.histogram(j));
            (0..self.rules.len()).flat_map(of_rule).collect()
        };
        let blocks: Vec<Vec<Histogram>> = nodes
            .par_chunks(nodes.len().div_ceil(BLOCKS).max(1))
            .map(|block| {
                let (mut work, mut places, mut histograms) = (Work::default(), Vec::new(), new());
                for (x, weights) in block {
                    self.integrate(x, &mut work);
                    let Work { workspace, total, row, .. } = &mut work;
                    for (m, (weight, offset)) in weights.iter().zip(offsets).enumerate() {
                        row.clear();
                        row.extend_from_slice(total);
                        kernels::log_mean_exp_weights(offset, row);
                        for j in 0..self.rules.len() {
                            let residuals = self.likelihoods.residuals(self.likelihoods.output_of_sigma(j), workspace);
                            histograms[j * n_mixtures + m].add(*weight, row, residuals, &mut places);
                        }
                    }
                }
                histograms
            })
            .collect();
        let mut blocks = blocks.into_iter();
        let mut total = blocks.next().unwrap_or_else(new);
        for block in blocks {
            total.iter_mut().zip(&block).for_each(|(total, block)| total.merge(block));
        }
        let grid = |j: usize, m: usize| {
            let (rule, output) = (&self.rules[j], self.likelihoods.output_of_sigma(j));
            let mass = total[j * n_mixtures + m].spread(rule.sigma.len(), |s, k| {
                let (a, b) = self.terms(output, rule, s, k);
                (a + rule.log_weight[k], b)
            });
            self.sigma_grid(j, &mass)
        };
        (0..self.rules.len()).map(|j| (0..n_mixtures).map(|m| grid(j, m)).collect()).collect()
    }

    fn histogram(&self, j: usize) -> Histogram {
        let n = self.likelihoods.n_measurements(self.likelihoods.output_of_sigma(j));
        let curve = self.rules[j].curve.as_ref();
        let (offset, rows) = curve.map_or((1.0, 1), |curve| (curve.offset, curve.rows.rows()));
        Histogram::new(offset, n, rows)
    }

    /// `a` and `b` of the log-likelihood `a + b R` of draw `s` at node `k` of an output that has one residual sum.
    fn terms(&self, output: usize, rule: &SigmaRule, s: usize, k: usize) -> (f64, f64) {
        match (rule.tables.first(), self.likelihoods.only_class(output)) {
            (Some((a, b)), _) => (a[(k, s)], b[(k, s)]),
            (None, Some((class, _, error))) => {
                let terms = class.terms(rule.sigma[k], 0.0, error);
                (terms.a, terms.b)
            }
            (None, None) => (f64::NEG_INFINITY, 0.0),
        }
    }

    /// Spreads the weight that each mixture has at the unknowns `x` over the nodes of every sd.
    fn add_sigma_mass(&self, x: &[f64], weights: &[f64], offsets: &[Vec<f64>], work: &mut Work, mass: &mut [Vec<f64>]) {
        self.tabulate(x, work);
        let Work { tables, integrals, total, row, .. } = work;
        let n = total.len();
        for (table, integral) in tables.iter_mut().zip(integrals.iter()) {
            kernels::exp_minus_columns(table, integral);
        }
        for (m, (weight, offset)) in weights.iter().zip(offsets).enumerate() {
            row.clear();
            row.extend_from_slice(total);
            kernels::log_mean_exp_weights(offset, row);
            for (j, table) in tables.iter().enumerate() {
                for (mass, shares) in mass[j * offsets.len() + m].iter_mut().zip(table.chunks_exact(n)) {
                    *mass += weight * kernels::dot(shares, row);
                }
            }
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

    /// A draw of the component (the T-draw, or 0 of a pooled density) and of every sd given the unknowns.
    pub(super) fn draw(&self, x: &[f64], offset: &[f64], work: &mut Work, rng: &mut impl Rng) -> (usize, Vec<f64>) {
        self.tabulate(x, work);
        let Work { tables, total, .. } = work;
        let n = total.len();
        kernels::log_mean_exp_weights(offset, total);
        let s = pick_weighted(total, rng);
        let sigmas = tables
            .iter()
            .enumerate()
            .map(|(j, table)| {
                let log: Vec<f64> = table.iter().skip(s).step_by(n).copied().collect();
                let top = log.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
                let mass: Vec<f64> = log.iter().map(|v| (v - top).exp()).collect();
                self.sigma_grid(j, &mass).draw(rng)[0]
            })
            .collect();
        (s, sigmas)
    }
}

impl Components for Integrated<'_> {
    type Work = Work;

    fn axes(&self) -> &[Axis] {
        &self.axes
    }

    fn len(&self) -> usize {
        if self.pooled.is_some() { 1 } else { self.likelihoods.n_draws() }
    }

    /// The larger of a draw's share in E-Post (alpha) and in E-Lik (alpha Z).
    fn importance(&self, log_evidence: &[f64]) -> Vec<f64> {
        if self.pooled.is_some() {
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
        let (k, dim) = (self.len(), nodes.len());
        let mut omega = vec![0.0; dim];
        for (node, row) in out.chunks_exact_mut(k).enumerate() {
            let mut log_prior = 0.0;
            for d in 0..dim {
                omega[d] = nodes[d][(node / NODES.pow((dim - 1 - d) as u32)) % NODES];
                log_prior += self.prior.marginals()[d].log_density(omega[d]);
            }
            self.integrate(&omega, work);
            row.iter_mut().zip(&work.total).for_each(|(out, l)| *out = l + log_prior);
        }
    }
}
