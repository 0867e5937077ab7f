//! The log-likelihood of an output whose surrogate is a Gaussian process, its function integrated out exactly: measurements at nearby
//! inputs share its error, and replicates all of it.
//!
//! Given hyper-parameters and unknowns, the means of the groups of measurements are normal around the process' mean, with its covariance
//! and, on the diagonal, the noise of each mean. What takes the place of a T-draw is a draw of the hyper-parameters.

use super::likelihoods::OutputTerm;
use super::series::OnAxes;
use crate::likelihood::{ClassForm, ErrorSharing, Reduced};
use crate::matrix::Matrix;
use crate::surrogate::{NodeScratch, Nodes, factorise};
use faer::linalg::solvers::{DenseSolveCore, Solve};
use faer::{Mat, Side};
use std::sync::Arc;

/// Groups above which axes are looked for that are fewer.
const MANY_GROUPS: usize = 16;

/// Share of the process' variance that may lie beside them: a hundredth of its sd, in parts of the function that change fastest.
const BESIDE_AXES: f64 = 1e-4;

/// An output's process at some of its nodes, or those of the scores of a series.
#[derive(Clone)]
pub(super) struct Marginal {
    processes: Vec<Arc<Nodes>>,
    series: Option<OfSeries>,
    /// Axes of the groups' means beside which the function does not differ, where these are fewer than the groups.
    axes: Option<Arc<FewAxes>>,
    /// The nodes that stand for draws.
    chosen: Vec<usize>,
}

/// A series on its axes, and whether errors of the scores and of what the components leave out are propagated.
#[derive(Clone)]
struct OfSeries {
    axes: Arc<OnAxes>,
    has_errors: bool,
}

/// Groups' means on fewer axes.
struct FewAxes {
    /// Orthonormal, in columns.
    axes: Arc<Matrix>,
    /// The means less the shift of eta, along the axes.
    values: Vec<f64>,
    /// Number and squares of what lies beside.
    beside: (f64, f64),
}

impl FewAxes {
    fn new(axes: Matrix, data: &Reduced, shift: f64) -> Self {
        let residual: Vec<f64> = data.groups.iter().map(|group| group.mean - shift).collect();
        let along = |j: usize| residual.iter().enumerate().map(|(g, r)| axes[(g, j)] * r).sum::<f64>();
        let values: Vec<f64> = (0..axes.cols()).map(along).collect();
        let on_axes = |g: usize| axes.row(g).iter().zip(&values).map(|(axis, z)| axis * z).sum::<f64>();
        let squares = residual.iter().enumerate().map(|(g, r)| (r - on_axes(g)).powi(2)).sum();
        let beside = ((axes.rows() - axes.cols()) as f64, squares);
        Self { axes: Arc::new(axes), values, beside }
    }
}

/// What is known of the groups' means at the unknowns set last, by draw.
#[derive(Clone, Default)]
pub(super) struct MarginalWorkspace {
    x: Matrix,
    scratch: Vec<NodeScratch>,
    at: Vec<GroupMeans>,
}

/// The groups' means less their expectation, and the covariance of the latter.
#[derive(Clone)]
struct GroupMeans {
    residual: Vec<f64>,
    covariance: Mat<f64>,
    /// Where all groups have the same noise: the covariance's eigenvalues, and the residual along its axes.
    along_axes: Option<Vec<(f64, f64)>>,
}

impl Marginal {
    /// A process.
    pub(super) fn new(nodes: Arc<Nodes>, n_unknowns: usize, data: &Reduced, shift: f64) -> Self {
        let points: Vec<usize> = data.groups.iter().map(|group| group.point).collect();
        let many = points.len() > MANY_GROUPS && data.classes.len() == 1;
        let axes = || nodes.axes(n_unknowns, &data.points.select_rows(&points), BESIDE_AXES);
        let axes = if many { axes().filter(|axes| axes.cols() < axes.rows()) } else { None };
        let axes = axes.map(|axes| Arc::new(FewAxes::new(axes, data, shift)));
        Self { chosen: (0..nodes.len()).collect(), processes: vec![nodes], series: None, axes }
    }

    /// The processes of a series' scores.
    pub(super) fn of_series(processes: Vec<Arc<Nodes>>, axes: Arc<OnAxes>, has_errors: bool) -> Self {
        let chosen = (0..processes[0].len()).collect();
        Self { chosen, processes, series: Some(OfSeries { axes, has_errors }), axes: None }
    }

    /// `eta = shift + factor M~` and the measurements, as this form of the likelihood sees them.
    pub(super) fn measured(&self, term: &OutputTerm) -> ((f64, f64), Arc<Reduced>) {
        match &self.series {
            Some(series) => ((0.0, series.axes.factor), Arc::new(series.axes.data.clone())),
            None => (term.affine, term.data.clone()),
        }
    }

    /// Some of the draws.
    pub(super) fn select(&self, draws: &[usize]) -> Self {
        Self { chosen: draws.iter().map(|&s| self.chosen[s]).collect(), ..self.clone() }
    }

    /// Multiplications for one set of unknowns and one draw, eigenvectors included.
    pub(super) fn cost(&self, term: &OutputTerm) -> f64 {
        let groups = term.data.groups.len();
        let values = self.axes.as_ref().map_or(groups, |few| few.values.len());
        let points = self.series.as_ref().map_or(values, |series| series.axes.conditions.rows());
        let predicted: f64 = self.processes.iter().map(|nodes| nodes.cost(points) / nodes.len() as f64).sum();
        predicted + 12.0 * (values as f64).powi(3)
    }

    pub(super) fn set_unknowns(&self, term: &OutputTerm, omega: &[f64], ws: &mut MarginalWorkspace) {
        let groups = &term.data.groups;
        match &self.series {
            Some(OfSeries { axes, .. }) => set_points(omega, &axes.conditions, 0..axes.conditions.rows(), &mut ws.x),
            None => set_points(omega, &term.data.points, groups.iter().map(|group| group.point), &mut ws.x),
        }
        ws.scratch.resize_with(self.processes.len(), NodeScratch::default);
        for (nodes, scratch) in self.processes.iter().zip(&mut ws.scratch) {
            scratch.axes = self.axes.as_ref().map(|few| few.axes.clone());
            nodes.set(&ws.x, scratch);
        }
        let (shift, factor) = term.affine;
        ws.at.clear();
        for &node in &self.chosen {
            let (mean, covariance) = self.predict(node, factor, ws);
            let residual: Vec<f64> = match &self.axes {
                Some(few) => few.values.iter().zip(mean).map(|(value, mean)| value - factor * mean).collect(),
                None => groups.iter().zip(mean).map(|(group, mean)| group.mean - shift - factor * mean).collect(),
            };
            let along_axes = (term.data.classes.len() == 1).then(|| along_axes(&covariance, &residual)).flatten();
            ws.at.push(GroupMeans { residual, covariance, along_axes });
        }
    }

    /// Mean of `M~` at every group, or along the axes, and the covariance of `factor M~`, errors that are propagated with it.
    fn predict(&self, node: usize, factor: f64, ws: &mut MarginalWorkspace) -> (Vec<f64>, Mat<f64>) {
        let mut predicted =
            self.processes.iter().zip(&mut ws.scratch).map(|(nodes, scratch)| nodes.predict(node, scratch));
        let Some(OfSeries { axes, has_errors }) = &self.series else {
            let (mean, mut covariance) = predicted.next().expect("a process");
            covariance *= faer::Scale(factor * factor);
            return (mean, covariance);
        };
        let n = axes.experiment.len();
        let (mut mean, mut covariance) = (vec![0.0; n], Mat::zeros(n, n));
        for (k, (mean_of_score, of_score)) in predicted.enumerate() {
            let nugget = if *has_errors { self.processes[k].nugget(node).powi(2) } else { 0.0 };
            for i in 0..n {
                let (a, loading) = (axes.experiment[i], axes.loadings[(i, k)]);
                mean[i] += loading * mean_of_score[a];
                for j in 0..n {
                    let b = axes.experiment[j];
                    let own = of_score[(a, b)] + if a == b { nugget } else { 0.0 };
                    covariance[(i, j)] += factor * factor * loading * axes.loadings[(j, k)] * own;
                }
            }
        }
        if *has_errors {
            covariance += &axes.left_out;
        }
        (mean, covariance)
    }

    /// Adds `l_h` of every draw at the output's sd.
    pub(super) fn add_log_likelihoods(&self, term: &OutputTerm, sigma: f64, ws: &MarginalWorkspace, out: &mut [f64]) {
        for (h, (out, at)) in out.iter_mut().zip(&ws.at).enumerate() {
            *out += term.data.constant;
            let noise = Noise::new(term, sigma, h);
            *out += noise.constant;
            *out -= 0.5
                * match &at.along_axes {
                    Some(axes) => {
                        let v = |value: f64| value.max(0.0) + noise.of_class[0].0;
                        // Logarithms of products of a few, which are numbers for any variance between 1e-75 and 1e75.
                        let log_det: f64 =
                            axes.chunks(4).map(|some| some.iter().map(|a| v(a.0)).product::<f64>().ln()).sum();
                        log_det + axes.iter().map(|(value, along)| along * along / v(*value)).sum::<f64>()
                    }
                    None => self.distance(at, term, &noise).map_or(f64::INFINITY, |(distance, ..)| distance),
                };
            if let Some(few) = &self.axes {
                let (v, _) = noise.of_class[0];
                *out -= 0.5 * (few.beside.0 * v.ln() + few.beside.1 / v);
            }
        }
    }

    /// Adds the derivatives of `sum_h weights[h] l_h` by the unknowns and by the output's sd.
    pub(super) fn pull(
        &self,
        term: &OutputTerm,
        sigma: f64,
        weights: &[f64],
        ws: &mut MarginalWorkspace,
        by_omega: &mut [f64],
    ) -> f64 {
        let (mut by_sd, factor) = (0.0, term.affine.1);
        let mut x_bar = Matrix::zeros(ws.x.rows(), ws.x.cols());
        for (h, (&node, &weight)) in self.chosen.iter().zip(weights).enumerate() {
            if weight == 0.0 {
                continue;
            }
            let noise = Noise::new(term, sigma, h);
            let Some((_, alpha, precision)) = self.distance(&ws.at[h], term, &noise) else { continue };
            by_sd += weight * noise.constant_by_sd;
            for (g, alpha) in alpha.iter().enumerate() {
                let (_, by_own) = noise.of_class[self.class_of(term, g)];
                by_sd += weight * 0.5 * (alpha * alpha - precision[(g, g)]) * by_own;
            }
            if let Some(few) = &self.axes {
                let (v, by_own) = noise.of_class[0];
                by_sd += weight * 0.5 * (few.beside.1 / v - few.beside.0) / v * by_own;
            }
            let mean_bar: Vec<f64> = alpha.iter().map(|a| weight * factor * a).collect();
            let n = alpha.len();
            let scale = 0.5 * weight * factor * factor;
            let covariance_bar = Mat::from_fn(n, n, |g, k| scale * (alpha[g] * alpha[k] - precision[(g, k)]));
            self.pull_to_points(node, (&mean_bar, &covariance_bar), &mut x_bar, ws);
        }
        for g in 0..x_bar.rows() {
            by_omega.iter_mut().zip(x_bar.row(g)).for_each(|(by, bar)| *by += bar);
        }
        by_sd
    }

    /// Adds to `x_bar` the derivatives by the points, given those by the groups' means and covariances.
    fn pull_to_points(
        &self,
        node: usize,
        (mean_bar, covariance_bar): (&[f64], &Mat<f64>),
        x_bar: &mut Matrix,
        ws: &mut MarginalWorkspace,
    ) {
        let MarginalWorkspace { x, scratch, .. } = ws;
        let Some(OfSeries { axes, .. }) = &self.series else {
            let (process, scratch) = (&self.processes[0], &mut scratch[0]);
            match &self.axes {
                Some(few) => {
                    let axes = Mat::from_fn(few.axes.rows(), few.axes.cols(), |g, j| few.axes[(g, j)]);
                    let mean = |g: usize| few.axes.row(g).iter().zip(mean_bar).map(|(axis, bar)| axis * bar).sum();
                    let mean: Vec<f64> = (0..axes.nrows()).map(mean).collect();
                    let covariance = &axes * covariance_bar * axes.transpose();
                    process.pull(node, x, (&mean, &covariance), x_bar, scratch);
                }
                None => process.pull(node, x, (mean_bar, covariance_bar), x_bar, scratch),
            }
            return;
        };
        for (k, (nodes, scratch)) in self.processes.iter().zip(scratch).enumerate() {
            let (mut mean, mut covariance) = (vec![0.0; x.rows()], Mat::zeros(x.rows(), x.rows()));
            for (i, &a) in axes.experiment.iter().enumerate() {
                let loading = axes.loadings[(i, k)];
                mean[a] += loading * mean_bar[i];
                for (j, &b) in axes.experiment.iter().enumerate() {
                    covariance[(a, b)] += loading * axes.loadings[(j, k)] * covariance_bar[(i, j)];
                }
            }
            nodes.pull(node, x, (&mean, &covariance), x_bar, scratch);
        }
    }
}

/// The unknowns, followed by some rows of known inputs.
fn set_points(omega: &[f64], known: &Matrix, rows: impl ExactSizeIterator<Item = usize>, x: &mut Matrix) {
    x.reshape(rows.len(), omega.len() + known.cols());
    for (i, row) in rows.enumerate() {
        let (unknown, rest) = x.row_mut(i).split_at_mut(omega.len());
        unknown.copy_from_slice(omega);
        rest.copy_from_slice(known.row(row));
    }
}

/// The covariance's eigenvalues, and the residual along its axes.
fn along_axes(covariance: &Mat<f64>, residual: &[f64]) -> Option<Vec<(f64, f64)>> {
    if residual.len() == 1 {
        return Some(vec![(covariance[(0, 0)], residual[0])]);
    }
    let eigen = covariance.self_adjoint_eigen(Side::Lower).ok()?;
    let (vectors, values) = (eigen.U(), eigen.S().column_vector());
    let along = |k: usize| residual.iter().enumerate().map(|(g, r)| vectors[(g, k)] * r).sum();
    Some((0..residual.len()).map(|k| (values[k], along(k))).collect())
}

impl Marginal {
    /// The class of a value: of a group, or along an axis of the only class.
    fn class_of(&self, term: &OutputTerm, value: usize) -> usize {
        if self.axes.is_some() { 0 } else { term.data.groups[value].class }
    }

    /// `ln |V| + r' V^-1 r` of the residual r with noise added to its covariance, with `V^-1 r` and `V^-1`.
    fn distance(&self, at: &GroupMeans, term: &OutputTerm, noise: &Noise) -> Option<(f64, Vec<f64>, Mat<f64>)> {
        let n = at.residual.len();
        let mut covariance = at.covariance.clone();
        for g in 0..n {
            covariance[(g, g)] += noise.of_class[self.class_of(term, g)].0;
        }
        let (factor, _) = factorise(&mut covariance)?;
        let alpha = factor.solve(&Mat::from_fn(n, 1, |g, _| at.residual[g]));
        let alpha: Vec<f64> = (0..n).map(|g| alpha[(g, 0)]).collect();
        let log_det: f64 = (0..n).map(|g| 2.0 * factor.L()[(g, g)].ln()).sum();
        let distance: f64 = alpha.iter().zip(&at.residual).map(|(a, r)| a * r).sum();
        Some((log_det + distance, alpha, factor.inverse()))
    }
}

/// The noise of the groups' means at one sd, the nugget included where it is propagated.
struct Noise {
    /// For each class the variance of a mean, and its derivative by the sd.
    of_class: Vec<(f64, f64)>,
    /// What does not depend on the means, and its derivative.
    constant: f64,
    constant_by_sd: f64,
}

impl Noise {
    fn new(term: &OutputTerm, sigma: f64, draw: usize) -> Self {
        let nugget = term.sigma_a.as_ref().map_or(0.0, |sigma_a| sigma_a[draw]);
        let mut out = Self { of_class: Vec::new(), constant: 0.0, constant_by_sd: 0.0 };
        for class in &term.data.classes {
            let own = class.sd.unwrap_or(sigma);
            // An error of every measurement is as good as noise; one that replicates share is not averaged with it.
            let (sd, by_own, shared) = match term.error {
                ErrorSharing::Independent => (own.hypot(nugget), own / own.hypot(nugget), 0.0),
                ErrorSharing::Shared => (own, 1.0, nugget * nugget),
            };
            let ClassForm { form, base_by_sd, constant, constant_by_sd } = class.form(sd, ErrorSharing::Shared);
            out.of_class.push((form.base + shared, base_by_sd * by_own));
            out.constant += constant;
            if class.sd.is_none() {
                out.constant_by_sd += constant_by_sd * by_own;
            } else {
                out.of_class.last_mut().expect("just pushed").1 = 0.0;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::infer::{Likelihoods, Workspace};
    use crate::likelihood::{Family, Link, Scale, Values};
    use crate::prior;
    use crate::surrogate::{GaussianProcess, GpSpec, InputScale, Kernel, Normalisation, shared_nodes};

    const SHIFT: f64 = 0.3;
    const FACTOR: f64 = 1.7;
    /// Length of the unknown, of the condition, sd and nugget of two nodes.
    const HYPER: [[f64; 4]; 2] = [[0.7, 0.9, 0.8, 0.1], [0.4, 1.3, 0.5, 0.2]];

    fn process(kernel: Kernel) -> GaussianProcess {
        let scales = vec![InputScale { lower: -1.0, upper: 1.0, log: false }; 2];
        let spec = GpSpec {
            kernel,
            length: None,
            length_of: Vec::new(),
            sd: "half-normal(1)".parse().unwrap(),
            carrier: Some(3),
        };
        let names = ["a".to_owned(), "t".to_owned()];
        let process = GaussianProcess::new(1, Normalisation::None, (0.2, 1.5), &spec, &names, &scales);
        let x = Matrix::from_fn(6, 2, |i, d| ((3 * i + 5 * d) as f64).sin());
        let z: Vec<f64> = (0..6).map(|i| (2.0 * x[(i, 0)]).sin() + x[(i, 1)]).collect();
        process.with_rows(&x, &z, &[0.02; 6])
    }

    /// Two T-draws of each node; measurements at three conditions, so many at each.
    fn likelihoods(error: ErrorSharing, nugget: bool, replicates: [usize; 3]) -> (Likelihoods, Arc<Nodes>) {
        let process = process(Kernel::Matern52);
        let terms = process.carrier().len();
        let c = Matrix::from_fn(terms + 3, 4, |p, s| if p < terms { 0.0 } else { HYPER[s % 2][p - terms] });
        let nuggets: Vec<f64> = (0..4).map(|s| HYPER[s % 2][3]).collect();
        assert_eq!(shared_nodes(&[(&process, &c, &nuggets)]).unwrap(), [0, 1, 0, 1]);
        let nodes = Arc::new(Nodes::new(&process, &c, &nuggets, &[0, 1]).unwrap());
        let at: Vec<f64> = [-0.8, 0.1, 0.4].iter().zip(replicates).flat_map(|(t, n)| vec![*t; n]).collect();
        let y: Vec<f64> = (0..at.len()).map(|i| 0.5 + at[i] + 0.2 * (7.0 * i as f64).sin()).collect();
        let family = Family::Normal.likelihood();
        let sd = Scale::Prior("half-normal(1)".parse::<prior::Marginal>().unwrap());
        let known = Matrix::from_rows(at.len(), 1, at);
        let data = Reduced::new(&*family, &sd, &Values::plain(&y, &known), error, true).unwrap();
        let term = OutputTerm {
            surrogate: Arc::new(process),
            affine: (SHIFT, FACTOR),
            link: Link::Identity,
            family: Arc::from(family),
            data: Arc::new(data),
            error,
            sigma: Some(0),
            coefficients: c,
            sigma_a: nugget.then(|| nuggets.iter().map(|s| s * FACTOR).collect()),
            field: None,
        };
        let marginal = vec![Marginal::new(nodes.clone(), 1, &term.data, SHIFT)];
        (Likelihoods::new(1, 1, vec![term], true).marginal(marginal, &[0, 1]).unwrap(), nodes)
    }

    /// All settings that take another way through the code.
    fn settings() -> impl Iterator<Item = (ErrorSharing, bool, [usize; 3])> {
        let errors = [(ErrorSharing::Shared, false), (ErrorSharing::Shared, true), (ErrorSharing::Independent, true)];
        errors.into_iter().flat_map(|(error, nugget)| [[1, 1, 1], [2, 2, 2], [3, 1, 2]].map(|n| (error, nugget, n)))
    }

    /// Every measurement with every other, as one normal distribution.
    #[test]
    fn all_measurements_are_jointly_normal() {
        let (omega, sigma) = (0.25, 0.15);
        for (error, nugget, replicates) in settings() {
            let (likelihoods, nodes) = likelihoods(error, nugget, replicates);
            let (mut workspace, mut l) = (Workspace::default(), vec![0.0; 2]);
            likelihoods.set_unknowns(&[omega], &mut workspace);
            likelihoods.log_likelihoods(&[sigma], &workspace, &mut l);
            let place: Vec<usize> = replicates.iter().enumerate().flat_map(|(g, n)| vec![g; *n]).collect();
            let t = [-0.8, 0.1, 0.4];
            let n = place.len();
            let y = |i: usize| 0.5 + t[place[i]] + 0.2 * (7.0 * i as f64).sin();
            let mut scratch = NodeScratch::default();
            nodes.set(&Matrix::from_fn(3, 2, |g, d| if d == 0 { omega } else { t[g] }), &mut scratch);
            for (h, l) in l.iter().enumerate() {
                let (mean, covariance) = nodes.predict(h, &mut scratch);
                let nugget = if nugget { FACTOR * HYPER[h][3] } else { 0.0 };
                let v = Mat::from_fn(n, n, |i, j| {
                    let (a, b) = (place[i], place[j]);
                    let function = FACTOR * FACTOR * covariance[(a, b)];
                    let shared = if a == b && error == ErrorSharing::Shared { nugget * nugget } else { 0.0 };
                    let own = match (i == j, error) {
                        (false, _) => 0.0,
                        (true, ErrorSharing::Shared) => sigma * sigma,
                        (true, ErrorSharing::Independent) => sigma * sigma + nugget * nugget,
                    };
                    function + shared + own
                });
                let r = Mat::from_fn(n, 1, |i, _| y(i) - SHIFT - FACTOR * mean[place[i]]);
                let distance = (r.transpose() * v.partial_piv_lu().solve(&r))[(0, 0)];
                let exact = -0.5 * (v.determinant().ln() + distance + n as f64 * (2.0 * std::f64::consts::PI).ln());
                // Matrices of a dozen entries whose condition is below n (4 + FACTOR^2) / sigma^2.
                let condition = n as f64 * 7.0 / (sigma * sigma);
                let bound = 64.0 * f64::EPSILON * condition * exact.abs().max(distance);
                assert!((l - exact).abs() <= bound, "{error:?} {nugget} {replicates:?} {h}: {l} {exact}");
            }
        }
    }

    #[test]
    fn gradients_are_differences() {
        let (x, weights) = ([0.25, 0.15], [0.7, -0.4]);
        for (error, nugget, replicates) in settings() {
            let (likelihoods, _) = likelihoods(error, nugget, replicates);
            let value = |x: [f64; 2]| {
                let (mut workspace, mut l) = (Workspace::default(), vec![0.0; 2]);
                likelihoods.set_unknowns(&x[..1], &mut workspace);
                likelihoods.log_likelihoods(&x[1..], &workspace, &mut l);
                l.iter().zip(weights).map(|(l, w)| w * l).sum::<f64>()
            };
            let mut workspace = Workspace::default();
            let (mut by_omega, mut by_sigma) = ([0.0], [0.0]);
            likelihoods.set_unknowns(&x[..1], &mut workspace);
            likelihoods.pull(&x[1..], &weights, &mut workspace, &mut by_omega, &mut by_sigma);
            for (d, exact) in [by_omega[0], by_sigma[0]].into_iter().enumerate() {
                let moved = |h: f64| value([x[0] + if d == 0 { h } else { 0.0 }, x[1] + if d == 1 { h } else { 0.0 }]);
                let h = 0.1 * f64::EPSILON.cbrt();
                let difference = |h: f64| (moved(h) - moved(-h)) / (2.0 * h);
                // Truncation, and rounding of values in matrices of condition 1e4.
                let bound =
                    (difference(h) - difference(2.0 * h)).abs() + 1e4 * f64::EPSILON * value(x).abs().max(1.0) / h;
                let gap = (exact - difference(h)).abs();
                assert!(gap <= bound, "{error:?} {nugget} {replicates:?} {d}: {exact} {} ({bound:e})", difference(h));
            }
        }
    }

    /// Forty measured conditions, on all axes and on those that matter.
    #[test]
    fn axes_that_are_left_out_do_not_matter() {
        let process = process(Kernel::SquaredExponential);
        let terms = process.carrier().len();
        let c = Matrix::from_fn(terms + 3, 4, |p, s| if p < terms { 0.0 } else { HYPER[s % 2][p - terms] });
        let nuggets: Vec<f64> = (0..4).map(|s| HYPER[s % 2][3]).collect();
        let nodes = Arc::new(Nodes::new(&process, &c, &nuggets, &[0, 1]).unwrap());
        let n = 40;
        let at: Vec<f64> = (0..n).map(|i| 2.0 * i as f64 / (n - 1) as f64 - 1.0).collect();
        let y: Vec<f64> = (0..n).map(|i| 0.5 + at[i] + 0.2 * (7.0 * i as f64).sin()).collect();
        let family = Family::Normal.likelihood();
        let sd = Scale::Prior("half-normal(1)".parse::<prior::Marginal>().unwrap());
        let known = Matrix::from_rows(n, 1, at);
        let data = Reduced::new(&*family, &sd, &Values::plain(&y, &known), ErrorSharing::Shared, true).unwrap();
        let term = OutputTerm {
            surrogate: Arc::new(process),
            affine: (SHIFT, FACTOR),
            link: Link::Identity,
            family: Arc::from(family),
            data: Arc::new(data),
            error: ErrorSharing::Shared,
            sigma: Some(0),
            coefficients: c,
            sigma_a: None,
            field: None,
        };
        // A share that is small enough to be told from rounding, and not to matter.
        let beside = 1e-12;
        let axes = nodes.axes(1, &known, beside).unwrap();
        assert!(axes.cols() < n, "{}", axes.cols());
        let own = Marginal::new(nodes, 1, &term.data, SHIFT);
        assert!(own.axes.as_ref().unwrap().values.len() < axes.cols());
        let few = Marginal { axes: Some(Arc::new(FewAxes::new(axes, &term.data, SHIFT))), ..own.clone() };
        let all = Marginal { axes: None, ..own };
        let sigma: f64 = 0.15;
        let values = [few, all].map(|marginal| {
            let mut workspace = MarginalWorkspace::default();
            let mut l = vec![0.0; 2];
            // Twice, since kernels of the known inputs are kept from the first time.
            for omega in [0.7, 0.25] {
                marginal.set_unknowns(&term, &[omega], &mut workspace);
            }
            marginal.add_log_likelihoods(&term, sigma, &workspace, &mut l);
            let mut by_omega = [0.0];
            let by_sd = marginal.pull(&term, sigma, &[0.7, -0.4], &mut workspace, &mut by_omega);
            [l[0], l[1], by_omega[0], by_sd]
        });
        // Beside the axes lies at most this share of the variance of all forty values, that of trend and process; a covariance with what
        // lies on them is its root at most, times the values in sds, which are below three.
        let left: f64 = beside * n as f64 * FACTOR * FACTOR * (2.0 * 1.5_f64.powi(2) + 0.64);
        let bound = 9.0 * (left.sqrt() / sigma + left / (sigma * sigma));
        for (i, (few, all)) in values[0].iter().zip(&values[1]).enumerate() {
            // Derivatives are those of values that change within a third of the range, or within an sd.
            let scale = [1.0, 1.0, 3.0, 2.0 / sigma][i];
            assert!((few - all).abs() <= scale * bound, "{i}: {few} {all} {bound}");
        }
    }
}
