//! Measurements of a series with the covariance of its surrogate's errors over the coordinate, brought to few axes.
//!
//! Means of groups at the coordinates `t_g` of one experiment are `y = mean + V f(x) + e + noise`, with the scores `f`, the errors
//! `e = V a + R b` of the scores and of what the components leave out, and `noise_g ~ N(0, s^2 / n_g)`. With `W = diag(sqrt n_g)` (over `s`,
//! where it is known) all but noise lies in the span of `W (V, R)`, on whose orthonormal axes U the values are `z = U' W (y - mean)`; what
//! lies beside it is scatter, which informs s alone. Turned to the eigenvectors of the errors' covariance on these axes, the values are
//! independent: classes, each with a variance of its own.

use crate::likelihood::{Class, Group, Reduced, Row};
use crate::matrix::{Matrix, cholesky, in_triangle, solve_lower};
use crate::surrogate::{Components, Series, Surrogate};
use faer::{Mat, Side};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Axes of the errors that keep their own variance; those after them share classes.
const OWN_CLASSES: usize = 8;

/// Later variances share a class within this factor.
const ALIKE: f64 = 0.1;

/// Variances below this share of the largest are one class.
const LEAST: f64 = 1e-6;

/// Axes of singular values below this share of the largest are none.
const NO_AXIS: f64 = 1e-10;

/// A series on its axes, experiment after experiment.
pub(super) struct OnAxes {
    /// Values as a single class, without the errors, and the rest of the measurements; the last column of its points is a number that
    /// [`OnAxes::surrogate`] knows.
    pub(super) data: Reduced,
    /// Known inputs of each experiment.
    pub(super) conditions: Matrix,
    /// The experiment of each value.
    pub(super) experiment: Vec<usize>,
    /// Each value's weights of the scores.
    pub(super) loadings: Matrix,
    /// Covariance of what the components leave out, on the scale of eta.
    pub(super) left_out: Mat<f64>,
    /// What one is on each axis: how much of an offset each value has.
    ones: Vec<f64>,
    /// Places of measurements that do not reduce.
    rows: Vec<ByItself>,
    series: Series,
    /// `eta = factor M~`.
    pub(super) factor: f64,
}

impl OnAxes {
    /// `eta = shift + factor M~`. With an offset the axes span what is the same everywhere, too. `covariance` is that of the groups' noise,
    /// where it has one within each experiment. None where there are no axes to be had.
    pub(super) fn new(
        data: &Reduced,
        series: &Series,
        (shift, factor): (f64, f64),
        has_offset: bool,
        covariance: Option<&Mat<f64>>,
    ) -> Option<Self> {
        let components = series.components()?;
        let last = data.points.cols() - 1;
        let blocks = experiments(data);
        let mut out = Reduced { n: data.n, zeros: data.zeros, constant: data.constant, ..Reduced::default() };
        out.classes = scatter(data, &mut out.constant);
        let (mut experiment, mut loadings, mut roots, mut ones) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (block, groups) in blocks.iter().enumerate() {
            let whitening = Whitening::new(data, groups, covariance)?;
            out.constant -= whitening.log_root();
            let (values, curves, rest) = axes(data, groups, components, (shift, factor), has_offset, &whitening)?;
            for (value, mut curves) in values.iter().zip(curves) {
                ones.extend(curves.pop());
                experiment.push(block);
                out.groups.push(Group { class: 0, mean: *value, scatter: 0.0, weight: 1.0, point: out.groups.len() });
                loadings.extend_from_slice(&curves[..components.len()]);
                roots.push(curves[components.len()..].to_vec());
            }
            let class = &mut out.classes[0];
            class.groups += values.len() as f64;
            out.constant -= 0.5 * rest.0 * (2.0 * std::f64::consts::PI).ln();
            match class.sd {
                Some(_) => out.constant -= 0.5 * rest.1,
                None => {
                    class.within += rest.0;
                    class.scatter += rest.1;
                }
            }
        }
        let n = experiment.len();
        let left_out = Mat::from_fn(n, n, |i, j| match experiment[i] == experiment[j] {
            true => factor * factor * roots[i].iter().zip(&roots[j]).map(|(a, b)| a * b).sum::<f64>(),
            false => 0.0,
        });
        let conditions = Matrix::from_fn(blocks.len(), last, |b, d| data.points[(data.groups[blocks[b][0]].point, d)]);
        let mut points: Vec<f64> =
            (0..n).flat_map(|i| conditions.row(experiment[i]).iter().copied().chain([i as f64])).collect();
        let (mut rows, mut places) = (Vec::new(), HashMap::new());
        for row in &data.rows {
            let point = *places.entry(row.point).or_insert_with(|| {
                let point = n + rows.len();
                points.extend(data.points.row(row.point)[..last].iter().copied().chain([point as f64]));
                let curves = components.at(data.points[(row.point, last)]);
                rows.push(ByItself {
                    mean: curves.mean() + shift / factor,
                    components: curves.components().to_vec(),
                    left_out: curves.error_variance(&vec![0.0; components.len()]),
                });
                point
            });
            out.rows.push(Row { point, ..row.clone() });
        }
        out.points = Matrix::from_rows(n + rows.len(), last + 1, points);
        let loadings = Matrix::from_rows(n, components.len(), loadings);
        Some(Self { data: out, conditions, experiment, loadings, left_out, ones, rows, series: series.clone(), factor })
    }

    /// Covariance of the errors between the values, on the scale of eta, where those of the scores have these variances.
    pub(super) fn errors(&self, variances: &[f64]) -> Mat<f64> {
        let n = self.experiment.len();
        Mat::from_fn(n, n, |i, j| {
            if self.experiment[i] != self.experiment[j] {
                return 0.0;
            }
            let parts = self.loadings.row(i).iter().zip(self.loadings.row(j)).zip(variances);
            let of_scores: f64 = parts.map(|((a, b), variance)| a * b * variance).sum();
            self.left_out[(i, j)] + self.factor * self.factor * of_scores
        })
    }

    /// Values of which all errors are independent, in classes with their variances, the surrogate of these, and how much of an offset each
    /// has. None where the errors' covariance has no eigenvectors.
    pub(super) fn decorrelated(&self, variances: &[f64]) -> Option<(Reduced, Arc<dyn Surrogate>, Vec<f64>)> {
        let errors = self.errors(variances);
        let mut axes: Vec<Axis> = Vec::new();
        for block in 0..self.conditions.rows() {
            let own: Vec<usize> = (0..self.experiment.len()).filter(|&i| self.experiment[i] == block).collect();
            let eigen = Mat::from_fn(own.len(), own.len(), |i, j| errors[(own[i], own[j])])
                .self_adjoint_eigen(Side::Lower)
                .ok()?;
            let (vectors, values) = (eigen.U(), eigen.S().column_vector());
            axes.extend((0..own.len()).map(|j| Axis {
                block,
                variance: values[j].max(0.0),
                weights: own.iter().enumerate().map(|(i, &value)| (value, vectors[(i, j)])).collect(),
            }));
        }
        axes.sort_by(|a, b| b.variance.total_cmp(&a.variance));
        let (members, class_of) = classes(&axes);
        let mut data = self.data.clone();
        // Noise that does not reduce leaves no class.
        if let Some(first) = self.data.classes.first() {
            let of_members = |members: &Vec<f64>| Class {
                groups: members.len() as f64,
                scatter: 0.0,
                within: 0.0,
                extra: members.iter().sum::<f64>() / members.len() as f64,
                ..first.clone()
            };
            data.classes = members.iter().map(of_members).collect();
            (data.classes[0].scatter, data.classes[0].within) = (first.scatter, first.within);
        }
        let sum = |axis: &Axis, of: &dyn Fn(usize) -> f64| axis.weights.iter().map(|(i, w)| w * of(*i)).sum::<f64>();
        let mean = |axis: &Axis| sum(axis, &|i| self.data.groups[i].mean);
        let values = axes.iter().zip(class_of).enumerate();
        data.groups = values
            .map(|(point, (axis, class))| Group { class, mean: mean(axis), scatter: 0.0, weight: 1.0, point })
            .collect();
        for (i, axis) in axes.iter().enumerate() {
            data.points.row_mut(i)[..self.conditions.cols()].copy_from_slice(self.conditions.row(axis.block));
        }
        for row in &mut data.rows {
            let ByItself { components, left_out, .. } = &self.rows[row.point - self.experiment.len()];
            let of_scores: f64 = components.iter().zip(variances).map(|(v, variance)| v * v * variance).sum();
            row.extra = self.factor * self.factor * (left_out + of_scores);
        }
        let n_rows = data.rows.len().max(1) as f64;
        data.rows_extra = data.rows.iter().map(|row| row.extra).sum::<f64>() / n_rows;
        let loading = |i: usize, k: usize| sum(&axes[i], &|value| self.loadings[(value, k)]);
        let loadings = Matrix::from_fn(axes.len(), self.loadings.cols(), loading);
        let ones = axes.iter().map(|axis| sum(axis, &|value| self.ones[value]));
        let ones = ones.chain(self.rows.iter().map(|_| 1.0)).collect();
        Some((data, self.surrogate(&loadings), ones))
    }

    /// The surrogate of values with these weights of the scores.
    fn surrogate(&self, loadings: &Matrix) -> Arc<dyn Surrogate> {
        let offset = vec![0.0; loadings.rows()].into_iter().chain(self.rows.iter().map(|row| row.mean)).collect();
        let of_rows = self.rows.iter().flat_map(|row| &row.components);
        let weights: Vec<f64> = loadings.data().iter().chain(of_rows).copied().collect();
        let weights = Matrix::from_rows(loadings.rows() + self.rows.len(), loadings.cols(), weights);
        Arc::new(self.series.sums(offset, weights))
    }
}

/// The series at a place by itself, on the scale of `M~`.
struct ByItself {
    mean: f64,
    /// Weights of the scores.
    components: Vec<f64>,
    /// Variance of what the components leave out.
    left_out: f64,
}

/// A sum of an experiment's values, and the variance of its error.
struct Axis {
    block: usize,
    variance: f64,
    /// Values and their weights.
    weights: Vec<(usize, f64)>,
}

/// Groups that share their conditions, and so the errors of one series.
fn experiments(data: &Reduced) -> Vec<Vec<usize>> {
    let first = data.points.first_alike(data.points.cols() - 1);
    let mut blocks: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (g, group) in data.groups.iter().enumerate() {
        blocks.entry(first[group.point]).or_default().push(g);
    }
    blocks.into_values().collect()
}

/// One class of values with the noise of a measurement, or of variance one where its sd is known, that has the scatter within all groups.
fn scatter(data: &Reduced, constant: &mut f64) -> Vec<Class> {
    let sd = data.classes.first().and_then(|class| class.sd).map(|_| 1.0);
    let mut out = Class { n: 1.0, groups: 0.0, scatter: 0.0, within: 0.0, sd, times: 1.0, extra: 0.0 };
    for class in &data.classes {
        *constant -= 0.5 * class.groups * (class.n - 1.0) * (2.0 * std::f64::consts::PI).ln();
        match class.sd {
            Some(sd) => *constant -= class.groups * class.n * sd.ln() + 0.5 * class.scatter / (sd * sd),
            None => {
                *constant -= (class.groups + class.within) * class.times.ln();
                out.within += class.within;
                out.scatter += class.scatter / (class.times * class.times);
            }
        }
    }
    if data.classes.is_empty() { Vec::new() } else { vec![out] }
}

/// What gives the noise of an experiment's groups the variance sigma_I^2, or one where the sd is known, and makes it independent.
enum Whitening {
    /// A factor for each.
    Each(Vec<f64>),
    /// The lower triangle of the covariance's root.
    Root(Vec<f64>),
}

impl Whitening {
    /// None where the covariance has no root.
    fn new(data: &Reduced, groups: &[usize], covariance: Option<&Mat<f64>>) -> Option<Self> {
        let Some(covariance) = covariance else {
            let factor = |&g: &usize| {
                let class = &data.classes[data.groups[g].class];
                class.n.sqrt() / (class.sd.unwrap_or(1.0) * class.times)
            };
            return Some(Self::Each(groups.iter().map(factor).collect()));
        };
        let n = groups.len();
        let mut triangle: Vec<f64> =
            (0..n).flat_map(|i| (0..=i).map(move |j| covariance[(groups[i], groups[j])])).collect();
        cholesky(&mut triangle, n).then_some(Self::Root(triangle))
    }

    /// Logarithm of the determinant of the root; factors count as those of their classes.
    fn log_root(&self) -> f64 {
        match self {
            Self::Each(_) => 0.0,
            Self::Root(triangle) => (0..)
                .take_while(|&i| in_triangle(i, i) < triangle.len())
                .map(|i| triangle[in_triangle(i, i)].ln())
                .sum(),
        }
    }

    fn apply(&self, x: &mut [f64]) {
        match self {
            Self::Each(factors) => x.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor),
            Self::Root(triangle) => solve_lower(triangle, x),
        }
    }
}

/// Values of an experiment on its axes, on each axis the components, what they leave out, and one, and number and squares of what lies
/// beside.
type Values = (Vec<f64>, Vec<Vec<f64>>, (f64, f64));

fn axes(
    data: &Reduced,
    groups: &[usize],
    components: &Components,
    (shift, factor): (f64, f64),
    has_offset: bool,
    whitening: &Whitening,
) -> Option<Values> {
    let last = data.points.cols() - 1;
    let n = groups.len();
    let (mut residual, mut curves) = (Vec::new(), Vec::new());
    for &g in groups {
        let group = &data.groups[g];
        let at = components.at(data.points[(group.point, last)]);
        residual.push(group.mean - shift - factor * at.mean());
        curves.push(at.all().iter().chain([&1.0]).copied().collect::<Vec<f64>>());
    }
    let n_curves = curves[0].len();
    whitening.apply(&mut residual);
    for f in 0..n_curves {
        let mut curve: Vec<f64> = curves.iter().map(|at| at[f]).collect();
        whitening.apply(&mut curve);
        curves.iter_mut().zip(curve).for_each(|(at, white)| at[f] = white);
    }
    let width = if has_offset { n_curves } else { n_curves - 1 };
    let svd = Mat::from_fn(n, width, |i, f| curves[i][f]).thin_svd().ok()?;
    let (axes, singular) = (svd.U(), svd.S().column_vector());
    // Series that do not vary keep an axis, for the noise.
    let n_axes = (0..singular.nrows()).filter(|&j| singular[j] > NO_AXIS * singular[0]).count().max(1);
    let along = |j: usize, of: &dyn Fn(usize) -> f64| (0..n).map(|i| axes[(i, j)] * of(i)).sum::<f64>();
    let values: Vec<f64> = (0..n_axes).map(|j| along(j, &|i| residual[i])).collect();
    let on_axes = (0..n_axes).map(|j| (0..n_curves).map(|f| along(j, &|i| curves[i][f])).collect()).collect();
    let beside: f64 =
        (0..n).map(|i| (residual[i] - (0..n_axes).map(|j| axes[(i, j)] * values[j]).sum::<f64>()).powi(2)).sum();
    Some((values, on_axes, ((n - n_axes) as f64, beside)))
}

/// Variances of the classes of axes, which descend, and the class of each axis.
fn classes(axes: &[Axis]) -> (Vec<Vec<f64>>, Vec<usize>) {
    let least = LEAST * axes.first().map_or(0.0, |axis| axis.variance);
    // The least variance that the last class takes.
    let mut bound = f64::INFINITY;
    let (mut members, mut of_axis): (Vec<Vec<f64>>, Vec<usize>) = (Vec::new(), Vec::new());
    for Axis { variance, .. } in axes {
        if *variance < bound || members.is_empty() {
            bound = match members.len() {
                _ if *variance <= least => f64::NEG_INFINITY,
                // Equal experiments have equal axes, up to rounding.
                n if n < OWN_CLASSES => (1.0 - 1e-9) * variance,
                _ => ALIKE * variance,
            };
            members.push(Vec::new());
        }
        of_axis.push(members.len() - 1);
        members.last_mut().expect("just pushed").push(*variance);
    }
    (members, of_axis)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::infer::marginal::Marginal;
    use crate::infer::propagation::{Method, PointEstimate};
    use crate::infer::{Likelihoods, OutputTerm, Target, Workspace};
    use crate::likelihood::{Correlated, ErrorSharing, Family, Link, Scale, Values};
    use crate::mcmc::{Bayes, Point};
    use crate::prior::Prior;
    use crate::surrogate::{
        Added, GaussianProcess, GpSpec, InputScale, Kernel, NodeScratch, Nodes, Normalisation, Placed, PolynomialChaos,
        Scratch,
    };

    const AFFINE: (f64, f64) = (0.4, 1.3);
    const VARIANCES: [f64; 2] = [0.02, 0.05];

    /// Of one unknown and one condition.
    fn series() -> Series {
        let at: Vec<f64> = (0..6).map(f64::from).collect();
        let mean: Vec<f64> = at.iter().map(|t| 1.0 + 0.3 * t).collect();
        let components = Matrix::from_fn(6, 2, |i, k| (0.4 * (k + 1) as f64 * at[i] + 0.3).cos());
        let left_out = Matrix::from_fn(6, 2, |i, k| 0.1 * (1.3 * at[i] + k as f64).sin());
        let scale = InputScale { lower: -1.0, upper: 1.0, log: false };
        let prior = "normal(0, 1)".parse().unwrap();
        let score = PolynomialChaos::new(2, Normalisation::Orthonormal, prior, vec![scale; 2]);
        let scores: Vec<Arc<dyn Surrogate>> = vec![Arc::new(score.clone()), Arc::new(score)];
        Series::new(Components::new(at, &mean, &components, &left_out, 0.99), scores).unwrap()
    }

    /// Two experiments, one of fewer coordinates than there are directions, with `replicates` of the values of each.
    fn measured(sd: &Scale, replicates: [usize; 2]) -> (Vec<f64>, Matrix, Option<Vec<f64>>) {
        let at: [(f64, &[f64]); 2] = [(-0.5, &[0.0, 0.7, 2.1, 3.3, 4.0, 4.6, 5.0]), (0.8, &[1.0, 2.5])];
        let mut known = Vec::new();
        for (condition, t) in at {
            for (i, t) in t.iter().enumerate() {
                (0..replicates[i % 2]).for_each(|_| known.extend([condition, *t]));
            }
        }
        let n = known.len() / 2;
        let y = (0..n).map(|i| 1.5 + 0.4 * (3.0 * i as f64).sin()).collect();
        let sds = sd.is_column().then(|| (0..n).map(|i| 0.1 + 0.02 * (i % 3) as f64).collect());
        (y, Matrix::from_rows(n, 2, known), sds)
    }

    #[test]
    fn values_on_axes_have_the_joint_density_of_the_measurements() {
        let (series, family) = (series(), Family::Normal.likelihood());
        let c = Matrix::from_fn(series.names().len(), 2, |p, s| 0.5 * (p as f64 + 3.0 * s as f64).sin());
        let (omega, sigma) = (0.3, 0.2);
        let prior: crate::prior::Marginal = "half-normal(1)".parse().unwrap();
        for sd in [Scale::Prior(prior.clone()), Scale::Fixed(0.15), Scale::Column, Scale::Multiple(prior)] {
            for (replicates, offset) in [([1, 1], None), ([2, 2], None), ([1, 3], None), ([1, 3], Some(0.3))] {
                let (y, known, sds) = measured(&sd, replicates);
                let data = Reduced::new(
                    &*family,
                    &sd,
                    &Values { scales: sds.as_deref(), ..Values::plain(&y, &known) },
                    ErrorSharing::Shared,
                    true,
                )
                .unwrap();
                let axes = OnAxes::new(&data, &series, AFFINE, offset.is_some(), None).unwrap();
                let (data, surrogate, ones) = axes.decorrelated(&VARIANCES).unwrap();
                let amounts = ones.iter().map(|one| one / axes.factor).collect();
                let surrogate: Arc<dyn Surrogate> = match offset {
                    None => surrogate,
                    Some(_) => {
                        let added = Added { place: 1, range: (-1.0, 1.0), amounts };
                        Arc::new(Placed::new(surrogate, vec![0], 2, Some(added)))
                    }
                };
                let unknowns: Vec<f64> = [omega].into_iter().chain(offset).collect();
                let term = OutputTerm {
                    surrogate,
                    affine: (0.0, axes.factor),
                    link: Link::Identity,
                    family: Arc::from(Family::Normal.likelihood()),
                    data: Arc::new(data),
                    error: ErrorSharing::Shared,
                    sigma: sd.prior().is_some().then_some(0),
                    coefficients: c.clone(),
                    sigma_a: None,
                    field: None,
                };
                let n_sigmas = usize::from(term.sigma.is_some());
                let sigmas = [sigma];
                let mut found = Vec::new();
                for conditioning in [false, true] {
                    let likelihoods = Likelihoods::new(unknowns.len(), n_sigmas, vec![term.clone()], conditioning);
                    assert_eq!(likelihoods.is_conditioned(), conditioning);
                    let (mut workspace, mut l) = (Workspace::default(), vec![0.0; 2]);
                    likelihoods.set_unknowns(&unknowns, &mut workspace);
                    likelihoods.log_likelihoods(&sigmas[..n_sigmas], &workspace, &mut l);
                    found.push(l);
                }
                let n = y.len();
                let x = Matrix::from_fn(n, 3, |i, d| if d == 0 { omega } else { known[(i, d - 1)] });
                let mut eta = Matrix::default();
                series.predict(&x, &c, &mut eta, &mut Scratch::default());
                let components = series.components().unwrap();
                let roots: Vec<Vec<f64>> =
                    (0..n).map(|i| components.at(known[(i, 1)]).error_roots(&VARIANCES)).collect();
                let noise = |i: usize| sd.of(Some(sigma), sds.as_ref().map(|own| own[i])).unwrap();
                let v = Mat::from_fn(n, n, |i, j| {
                    let same = known[(i, 0)] == known[(j, 0)];
                    let error: f64 = roots[i].iter().zip(&roots[j]).map(|(a, b)| a * b).sum();
                    AFFINE.1.powi(2) * if same { error } else { 0.0 } + if i == j { noise(i).powi(2) } else { 0.0 }
                });
                use faer::linalg::solvers::Solve;
                for s in 0..2 {
                    let r = Mat::from_fn(n, 1, |i, _| y[i] - offset.unwrap_or(0.0) - AFFINE.0 - AFFINE.1 * eta[(i, s)]);
                    let distance = (r.transpose() * v.partial_piv_lu().solve(&r))[(0, 0)];
                    let exact = -0.5 * (v.determinant().ln() + distance + n as f64 * (2.0 * std::f64::consts::PI).ln());
                    // Errors have the variance 1.3^2 x 0.1 x 7 at most, along all coordinates of an experiment with their replicates,
                    // noise 0.01 at least: the condition of the matrix. Rotations add some roundings of their own.
                    let condition = n as f64 * 1.2 / 0.01;
                    let bound = 64.0 * f64::EPSILON * condition * exact.abs().max(distance);
                    for l in &found {
                        assert!((l[s] - exact).abs() <= bound, "{sd:?} {replicates:?}: {} {exact} {bound:e}", l[s]);
                    }
                }
            }
        }
    }

    /// Replicates whose noise is correlated along each experiment, known but for a factor or altogether, with an offset.
    #[test]
    fn correlated_values_on_axes_have_the_joint_density_of_the_measurements() {
        let (series, family) = (series(), Family::Normal.likelihood());
        let c = Matrix::from_fn(series.names().len(), 1, |p, _| 0.5 * (p as f64).sin());
        let (omega, offset) = (0.3, -0.2);
        let (y, known, sds) = measured(&Scale::Column, [1, 2]);
        let (n, sds) = (y.len(), sds.unwrap());
        let correlation = Matrix::from_fn(n, n, |i, j| {
            let same = known[(i, 0)] == known[(j, 0)];
            if same { 0.6_f64.powi((i as i32 - j as i32).abs()) } else { 0.0 }
        });
        for factor in [None, Some(1.3)] {
            let values = Values { scales: Some(&sds), ..Values::plain(&y, &known) };
            let correlated = Correlated::new(&*family, &values, &correlation, ErrorSharing::Shared).unwrap();
            let (data, covariance) = correlated.together(factor.is_some());
            let axes = OnAxes::new(&data, &series, AFFINE, true, Some(covariance)).unwrap();
            let (data, surrogate, ones) = axes.decorrelated(&VARIANCES).unwrap();
            let amounts = ones.iter().map(|one| one / axes.factor).collect();
            let added = Added { place: 1, range: (-1.0, 1.0), amounts };
            let term = OutputTerm {
                surrogate: Arc::new(Placed::new(surrogate, vec![0], 2, Some(added))),
                affine: (0.0, axes.factor),
                link: Link::Identity,
                family: Arc::from(Family::Normal.likelihood()),
                data: Arc::new(data),
                error: ErrorSharing::Shared,
                sigma: factor.map(|_| 0),
                coefficients: c.clone(),
                sigma_a: None,
                field: None,
            };
            let sigmas: Vec<f64> = factor.into_iter().collect();
            let likelihoods = Likelihoods::new(2, sigmas.len(), vec![term], true);
            let (mut workspace, mut l) = (Workspace::default(), vec![0.0]);
            likelihoods.set_unknowns(&[omega, offset], &mut workspace);
            likelihoods.log_likelihoods(&sigmas, &workspace, &mut l);
            let x = Matrix::from_fn(n, 3, |i, d| if d == 0 { omega } else { known[(i, d - 1)] });
            let mut eta = Matrix::default();
            series.predict(&x, &c, &mut eta, &mut Scratch::default());
            let components = series.components().unwrap();
            let roots: Vec<Vec<f64>> = (0..n).map(|i| components.at(known[(i, 1)]).error_roots(&VARIANCES)).collect();
            let v = Mat::from_fn(n, n, |i, j| {
                let same = known[(i, 0)] == known[(j, 0)];
                let error: f64 = roots[i].iter().zip(&roots[j]).map(|(a, b)| a * b).sum();
                let noise = factor.unwrap_or(1.0).powi(2) * sds[i] * sds[j] * correlation[(i, j)];
                noise + AFFINE.1.powi(2) * if same { error } else { 0.0 }
            });
            use faer::linalg::solvers::Solve;
            let r = Mat::from_fn(n, 1, |i, _| y[i] - offset - AFFINE.0 - AFFINE.1 * eta[(i, 0)]);
            let distance = (r.transpose() * v.partial_piv_lu().solve(&r))[(0, 0)];
            let exact = -0.5 * (v.determinant().ln() + distance + n as f64 * (2.0 * std::f64::consts::PI).ln());
            // As above, with the least eigenvalue of such a correlation, (1 - 0.6) / (1 + 0.6), times that of the noise.
            let condition = n as f64 * 1.2 / (0.01 * 0.25);
            let bound = 64.0 * f64::EPSILON * condition * exact.abs().max(distance);
            assert!((l[0] - exact).abs() <= bound, "{factor:?}: {} {exact} {bound:e}", l[0]);
        }
    }

    #[test]
    fn several_points_together_have_the_densities_that_they_have_one_by_one() {
        let (series, family) = (series(), Family::Normal.likelihood());
        let c = Matrix::from_fn(series.names().len(), 40, |p, s| 0.5 * (p as f64 + 3.0 * s as f64).sin());
        let sd = Scale::Prior("half-normal(1)".parse().unwrap());
        let (y, known, _) = measured(&sd, [1, 2]);
        let data = Reduced::new(&*family, &sd, &Values::plain(&y, &known), ErrorSharing::Shared, true).unwrap();
        let axes = OnAxes::new(&data, &series, AFFINE, true, None).unwrap();
        let (data, surrogate, ones) = axes.decorrelated(&VARIANCES).unwrap();
        let added = Added { place: 0, range: (-1.0, 1.0), amounts: ones };
        let term = OutputTerm {
            surrogate: Arc::new(Placed::new(surrogate, vec![1], 2, Some(added))),
            affine: (0.0, axes.factor),
            link: Link::Identity,
            family: Arc::from(Family::Normal.likelihood()),
            data: Arc::new(data),
            error: ErrorSharing::Shared,
            sigma: Some(0),
            coefficients: c,
            sigma_a: None,
            field: None,
        };
        let likelihoods = Likelihoods::new(2, 1, vec![term], false);
        assert!(likelihoods.gains_together());
        let names = ["offset", "a", "sigma_i"].map(String::from).to_vec();
        let marginals = ["normal(0, 1)", "uniform(-1, 1)", "half-normal(1)"].map(|prior| prior.parse().unwrap());
        let prior = Prior::new(names, marginals.to_vec()).unwrap();
        let log_alpha = vec![-40.0_f64.ln(); 40];
        for method in [Method::ELik, Method::ELogLik] {
            let propagation = method.propagation(PointEstimate::Mean);
            let mut target = Target::new(&likelihoods, &prior, &*propagation, &log_alpha);
            let new = |i: usize| {
                let mut point = Point::new(3);
                point.z.iter_mut().enumerate().for_each(|(d, z)| *z = ((3 * i + d) as f64).sin());
                point
            };
            let mut together: Vec<Point> = (0..21).map(new).collect();
            target.evaluate(&mut together.iter_mut().collect::<Vec<_>>());
            for (i, point) in together.iter().enumerate() {
                let mut alone = new(i);
                target.evaluate(&mut [&mut alone]);
                let size = alone.log_likelihood.abs() + y.len() as f64;
                // Sums of some dozen terms in another order; residuals over sds of a tenth and more, and their derivatives.
                let bound = 1e3 * f64::EPSILON * size;
                assert!((point.log_likelihood - alone.log_likelihood).abs() <= bound, "{i}: {point:?} {alone:?}");
                assert_eq!(point.log_prior, alone.log_prior);
                for (a, b) in point.likelihood_gradient.iter().zip(&alone.likelihood_gradient) {
                    assert!((a - b).abs() <= 100.0 * bound, "{i}: {a} {b}");
                }
            }
        }
    }

    #[test]
    fn noise_that_does_not_reduce_carries_the_mean_variance_of_the_errors() {
        let (series, family) = (series(), Family::StudentT { df: 4.0 }.likelihood());
        let c = Matrix::from_fn(series.names().len(), 1, |p, _| 0.5 * (p as f64).sin());
        let sd = Scale::Prior("half-normal(1)".parse().unwrap());
        let (y, known, _) = measured(&sd, [1, 1]);
        let data = Reduced::new(&*family, &sd, &Values::plain(&y, &known), ErrorSharing::Shared, true).unwrap();
        let axes = OnAxes::new(&data, &series, AFFINE, false, None).unwrap();
        let (data, surrogate, _) = axes.decorrelated(&VARIANCES).unwrap();
        assert!(data.classes.is_empty() && data.groups.is_empty() && data.rows.len() == y.len());
        let term = OutputTerm {
            surrogate,
            affine: (0.0, axes.factor),
            link: Link::Identity,
            family: Arc::from(Family::StudentT { df: 4.0 }.likelihood()),
            data: Arc::new(data),
            error: ErrorSharing::Shared,
            sigma: Some(0),
            coefficients: c.clone(),
            sigma_a: None,
            field: None,
        };
        let (omega, sigma): (f64, f64) = (0.3, 0.2);
        let likelihoods = Likelihoods::new(1, 1, vec![term], true);
        let (mut workspace, mut l) = (Workspace::default(), vec![0.0]);
        likelihoods.set_unknowns(&[omega], &mut workspace);
        likelihoods.log_likelihoods(&[sigma], &workspace, &mut l);
        let n = y.len();
        let x = Matrix::from_fn(n, 3, |i, d| if d == 0 { omega } else { known[(i, d - 1)] });
        let mut eta = Matrix::default();
        series.predict(&x, &c, &mut eta, &mut Scratch::default());
        let components = series.components().unwrap();
        let variance = |i: usize| components.at(known[(i, 1)]).error_variance(&VARIANCES);
        let mean = AFFINE.1.powi(2) * (0..n).map(variance).sum::<f64>() / n as f64;
        let score = |i: usize| family.score(y[i], AFFINE.0 + AFFINE.1 * eta[(i, 0)], sigma.hypot(mean.sqrt())).log_lik;
        let exact: f64 = (0..n).map(score).sum();
        // Nine densities of some dozen operations each, whose distances to the location are some sds.
        assert!((l[0] - exact).abs() <= 1e3 * f64::EPSILON * exact.abs().max(n as f64), "{} {exact}", l[0]);
    }

    /// A series whose scores are processes, of one unknown and one condition, with two nodes of their hyper-parameters.
    fn of_processes() -> (Series, Vec<Arc<Nodes>>, Matrix) {
        let spec = GpSpec {
            kernel: Kernel::Matern52,
            length: None,
            length_of: Vec::new(),
            sd: "half-normal(1)".parse().unwrap(),
            carrier: Some(2),
        };
        let (names, scale) = (["a".to_owned(), "b".to_owned()], InputScale { lower: -1.0, upper: 1.0, log: false });
        let x = Matrix::from_fn(6, 2, |i, d| ((3 * i + 5 * d) as f64).sin());
        let process = |k: usize| {
            let z: Vec<f64> = (0..6).map(|i| (2.0 * x[(i, 0)] + k as f64).sin() + x[(i, 1)]).collect();
            let process = GaussianProcess::new(1, Normalisation::None, (0.1, 1.5), &spec, &names, &[scale; 2]);
            process.with_rows(&x, &z, &[0.02; 6])
        };
        let plain = series();
        let components = plain.components().unwrap().clone();
        let scores: Vec<Arc<dyn Surrogate>> = (0..2).map(|k| Arc::new(process(k)) as Arc<dyn Surrogate>).collect();
        let series = Series::new(components, scores).unwrap();
        // Terms of the carrier, two lengths, sd, sigma_a; of four draws two share a node each.
        let rows = series.names().len() / 2;
        let hyper = [[0.7, 0.9, 0.8, 0.1], [0.4, 1.3, 0.5, 0.2]];
        let c = Matrix::from_fn(2 * rows, 4, |p, s| match (p % rows).checked_sub(rows - 4) {
            Some(h) => hyper[s % 2][h] * if p < rows { 1.0 } else { 1.1 },
            None => 0.0,
        });
        let nodes = (0..2).map(|k| {
            let (own, nuggets) = series.score_draws(k, &c);
            Arc::new(Nodes::new(series.scores()[k].gaussian_process().unwrap(), &own, &nuggets, &[0, 1]).unwrap())
        });
        let nodes = nodes.collect();
        (series, nodes, c)
    }

    #[test]
    fn functions_of_scores_are_integrated_out_exactly() {
        let (series, nodes, c) = of_processes();
        let family = Family::Normal.likelihood();
        let sd = Scale::Prior("half-normal(1)".parse().unwrap());
        let (omega, sigma, weights) = (0.3, 0.2, [0.7, -0.4]);
        for (replicates, has_errors) in [([1, 1], true), ([2, 1], true), ([1, 1], false)] {
            let (y, known, _) = measured(&sd, replicates);
            let data = Reduced::new(&*family, &sd, &Values::plain(&y, &known), ErrorSharing::Shared, true).unwrap();
            let axes = Arc::new(OnAxes::new(&data, &series, AFFINE, false, None).unwrap());
            let term = OutputTerm {
                surrogate: Arc::new(series.clone()),
                affine: AFFINE,
                link: Link::Identity,
                family: Arc::from(Family::Normal.likelihood()),
                data: Arc::new(data),
                error: ErrorSharing::Shared,
                sigma: Some(0),
                coefficients: c.clone(),
                sigma_a: None,
                field: None,
            };
            let function = Marginal::of_series(nodes.clone(), axes, has_errors);
            let likelihoods = Likelihoods::new(1, 1, vec![term], false).marginal(vec![function], &[0, 1]).unwrap();
            let value = |x: [f64; 2]| {
                let (mut workspace, mut l) = (Workspace::default(), vec![0.0; 2]);
                likelihoods.set_unknowns(&x[..1], &mut workspace);
                likelihoods.log_likelihoods(&x[1..], &workspace, &mut l);
                l
            };
            let found = value([omega, sigma]);
            let n = y.len();
            let components = series.components().unwrap();
            let conditions = Matrix::from_rows(2, 2, vec![omega, -0.5, omega, 0.8]);
            let experiment = |i: usize| usize::from(known[(i, 0)] == 0.8);
            let condition = n as f64 * 40.0 / (sigma * sigma);
            for (h, l) in found.iter().enumerate() {
                let scores: Vec<(Vec<f64>, Mat<f64>)> = (nodes.iter())
                    .map(|nodes| {
                        let mut scratch = NodeScratch::default();
                        nodes.set(&conditions, &mut scratch);
                        nodes.predict(h, &mut scratch)
                    })
                    .collect();
                let curves: Vec<_> = (0..n).map(|i| components.at(known[(i, 1)])).collect();
                let variances: Vec<f64> = nodes.iter().map(|nodes| nodes.nugget(h).powi(2)).collect();
                let roots: Vec<Vec<f64>> = curves.iter().map(|curves| curves.error_roots(&variances)).collect();
                let v = Mat::from_fn(n, n, |i, j| {
                    let (a, b) = (experiment(i), experiment(j));
                    let function: f64 = (0..2)
                        .map(|k| curves[i].components()[k] * curves[j].components()[k] * scores[k].1[(a, b)])
                        .sum();
                    let error: f64 = roots[i].iter().zip(&roots[j]).map(|(a, b)| a * b).sum();
                    let error = if a == b && has_errors { error } else { 0.0 };
                    AFFINE.1.powi(2) * (function + error) + if i == j { sigma * sigma } else { 0.0 }
                });
                let r = Mat::from_fn(n, 1, |i, _| {
                    let parts = curves[i].components().iter().zip(&scores);
                    let mean = curves[i].mean() + parts.map(|(v, (mean, _))| v * mean[experiment(i)]).sum::<f64>();
                    y[i] - AFFINE.0 - AFFINE.1 * mean
                });
                use faer::linalg::solvers::Solve;
                let distance = (r.transpose() * v.partial_piv_lu().solve(&r))[(0, 0)];
                let exact = -0.5 * (v.determinant().ln() + distance + n as f64 * (2.0 * std::f64::consts::PI).ln());
                // Functions have variances of some tens at most, noise the least.
                let bound = 64.0 * f64::EPSILON * condition * exact.abs().max(distance);
                assert!((l - exact).abs() <= bound, "{replicates:?} {has_errors}: {l} {exact}");
            }
            let mut workspace = Workspace::default();
            let (mut by_omega, mut by_sigma) = ([0.0], [0.0]);
            likelihoods.set_unknowns(&[omega], &mut workspace);
            likelihoods.pull(&[sigma], &weights, &mut workspace, &mut by_omega, &mut by_sigma);
            let total = |x: [f64; 2]| value(x).iter().zip(weights).map(|(l, w)| w * l).sum::<f64>();
            for (d, exact) in [by_omega[0], by_sigma[0]].into_iter().enumerate() {
                let moved =
                    |h: f64| total([omega + if d == 0 { h } else { 0.0 }, sigma + if d == 1 { h } else { 0.0 }]);
                let h = 0.1 * f64::EPSILON.cbrt();
                let difference = |h: f64| (moved(h) - moved(-h)) / (2.0 * h);
                // Truncation, and rounding of values in matrices of that condition.
                let rounding = condition * f64::EPSILON * total([omega, sigma]).abs().max(1.0) / h;
                let bound = (difference(h) - difference(2.0 * h)).abs() + rounding;
                assert!((exact - difference(h)).abs() <= bound, "{d}: {exact} {} ({bound:e})", difference(h));
            }
        }
    }
}
