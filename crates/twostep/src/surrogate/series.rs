//! Series by principal components: `M~(x, t) = mean(t) + sum_k v_k(t) f_k(x)`, each score `f_k` a polynomial of its own.

use super::{Basis, Scratch, Separated, Surrogate};
use crate::kernels;
use crate::matrix::Matrix;
use crate::prior::Marginal;
use std::sync::Arc;

/// Natural cubic splines through values at common places, continued by straight lines.
#[derive(Clone, Debug)]
struct Splines {
    at: Vec<f64>,
    /// A row for each place, a column for each spline.
    values: Matrix,
    /// Second derivatives there.
    curvatures: Matrix,
}

impl Splines {
    /// `at` ascends.
    fn new(at: Vec<f64>, values: Matrix) -> Self {
        let (m, n) = (values.rows(), values.cols());
        let mut curvatures = Matrix::zeros(m, n);
        // Continuity of the first derivative at inner places: a tridiagonal system, diagonally dominant.
        let width = |i: usize| at[i + 1] - at[i];
        let mut upper = vec![0.0; m];
        for i in 1..m.saturating_sub(1) {
            let pivot = 2.0 * (width(i - 1) + width(i)) - width(i - 1) * upper[i - 1];
            upper[i] = width(i) / pivot;
            for f in 0..n {
                let slope = |j: usize| (values[(j + 1, f)] - values[(j, f)]) / width(j);
                let right = 6.0 * (slope(i) - slope(i - 1));
                curvatures[(i, f)] = (right - width(i - 1) * curvatures[(i - 1, f)]) / pivot;
            }
        }
        for i in (1..m.saturating_sub(1)).rev() {
            for f in 0..n {
                curvatures[(i, f)] -= upper[i] * curvatures[(i + 1, f)];
            }
        }
        Self { at, values, curvatures }
    }

    /// Values of all splines at `t`, and their derivatives.
    fn eval(&self, t: f64, value: &mut [f64], slope: &mut [f64]) {
        let m = self.at.len();
        if m == 1 {
            value.copy_from_slice(self.values.row(0));
            slope.fill(0.0);
            return;
        }
        let inside = t.clamp(self.at[0], self.at[m - 1]);
        let i = self.at.partition_point(|at| *at <= inside).clamp(1, m - 1) - 1;
        let h = self.at[i + 1] - self.at[i];
        let (b, beyond) = ((inside - self.at[i]) / h, t - inside);
        let a = 1.0 - b;
        for f in 0..value.len() {
            let ends = [self.values[(i, f)], self.values[(i + 1, f)]];
            let bends = [self.curvatures[(i, f)], self.curvatures[(i + 1, f)]];
            let bent = (a * a * a - a) * bends[0] + (b * b * b - b) * bends[1];
            let turned = (1.0 - 3.0 * a * a) * bends[0] + (3.0 * b * b - 1.0) * bends[1];
            slope[f] = (ends[1] - ends[0]) / h + h / 6.0 * turned;
            value[f] = a * ends[0] + b * ends[1] + h * h / 6.0 * bent + slope[f] * beyond;
        }
    }
}

/// Mean, principal components and left-out directions of a set of series, as functions of their coordinate.
#[derive(Clone, Debug)]
pub struct Components {
    /// Mean, components, then directions that are left out.
    curves: Splines,
    n_components: usize,
    /// Share of the variance of the series that the components have.
    share: f64,
    /// Mean variance of an entry that they leave out.
    left_out: f64,
}

impl Components {
    /// From values at ascending coordinates: the mean, components with scores of variance one (a column each), and roots of the
    /// covariance of what these leave out (a column each).
    pub(crate) fn new(at: Vec<f64>, mean: &[f64], components: &Matrix, left_out: &Matrix, share: f64) -> Self {
        let (m, n_components) = (mean.len(), components.cols());
        let values = Matrix::from_fn(m, 1 + n_components + left_out.cols(), |i, f| match f {
            0 => mean[i],
            f if f <= n_components => components[(i, f - 1)],
            f => left_out[(i, f - 1 - n_components)],
        });
        let mean_square = left_out.data().iter().map(|v| v * v).sum::<f64>() / m as f64;
        Self { curves: Splines::new(at, values), n_components, share, left_out: mean_square }
    }

    /// Number K of components.
    pub fn len(&self) -> usize {
        self.n_components
    }

    /// Never: there is always one.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Share of the variance of the series that the components have.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Coordinates that the components are known at.
    pub fn coordinates(&self) -> &[f64] {
        &self.curves.at
    }

    /// At one of the coordinates: the mean, and the components.
    pub(crate) fn known(&self, place: usize) -> (f64, &[f64]) {
        let row = self.curves.values.row(place);
        (row[0], &row[1..=self.n_components])
    }

    /// Mean over the coordinates of the variance that the components leave out.
    pub(crate) fn left_out(&self) -> f64 {
        self.left_out
    }

    /// Mean square of each component over the coordinates.
    pub(crate) fn mean_squares(&self) -> Vec<f64> {
        let m = self.curves.at.len();
        let mean = |k: usize| (0..m).map(|i| self.known(i).1[k].powi(2)).sum::<f64>() / m as f64;
        (0..self.n_components).map(mean).collect()
    }

    /// All curves at a coordinate.
    pub(crate) fn at(&self, t: f64) -> Curves<'_> {
        let mut values = vec![0.0; self.curves.values.cols()];
        let mut slopes = values.clone();
        self.curves.eval(t, &mut values, &mut slopes);
        Curves { values, slopes, of: self }
    }
}

/// Mean, components and left-out directions at one coordinate.
pub(crate) struct Curves<'a> {
    values: Vec<f64>,
    slopes: Vec<f64>,
    of: &'a Components,
}

impl Curves<'_> {
    /// The mean.
    pub(crate) fn mean(&self) -> f64 {
        self.values[0]
    }

    /// The components.
    pub(crate) fn components(&self) -> &[f64] {
        &self.values[1..=self.of.n_components]
    }

    /// The components, then what they leave out.
    pub(crate) fn all(&self) -> &[f64] {
        &self.values[1..]
    }

    /// What independent standard normal numbers are multiplied by and summed to an error of the series here.
    pub(crate) fn error_roots(&self, variances: &[f64]) -> Vec<f64> {
        let own = self.components().iter().zip(variances).map(|(v, variance)| v * variance.sqrt());
        own.chain(self.values[1 + self.of.n_components..].iter().copied()).collect()
    }

    /// Variance of the error here.
    pub(crate) fn error_variance(&self, variances: &[f64]) -> f64 {
        let left_out = &self.values[1 + self.of.n_components..];
        let own = self.components().iter().zip(variances).map(|(v, variance)| v * v * variance);
        own.chain(left_out.iter().map(|root| root * root)).sum()
    }
}

/// What the last input of a [`Series`] is.
#[derive(Clone, Debug)]
enum Along {
    /// The coordinate.
    Coordinate(Arc<Components>),
    /// The number of a sum of values at several coordinates, by their offset and weights of the scores (a row each).
    Sums(Vec<f64>, Matrix),
}

/// Principal components of a series, each with a polynomial surrogate of its scores.
///
/// The coefficients of a component are those of its polynomial, what else its T-step has drawn, and its own sigma_a.
#[derive(Clone)]
pub struct Series {
    basis: Basis,
    names: Vec<String>,
    n_components: usize,
    scores: Vec<Arc<dyn Surrogate>>,
    along: Along,
}

/// The series that rows of inputs are of: that of each row by its number, the first row of each, and its inputs.
struct Scores {
    first: Vec<usize>,
    distinct: Vec<usize>,
    inner: Matrix,
}

impl Series {
    /// The surrogates of the scores are polynomials in the same basis.
    pub(crate) fn new(components: Components, scores: Vec<Arc<dyn Surrogate>>) -> Option<Self> {
        let score = scores.first()?;
        let basis = score.basis()?.clone();
        let of_component = |k: usize| {
            let own = score.names().iter().map(String::as_str).chain(["sigma_a"]);
            own.map(move |name| format!("pc{}.{name}", k + 1)).collect::<Vec<_>>()
        };
        let n_components = components.len();
        let names = (0..n_components).flat_map(of_component).collect();
        Some(Self { basis, names, n_components, scores, along: Along::Coordinate(Arc::new(components)) })
    }

    /// The surrogates of the scores.
    pub(crate) fn scores(&self) -> &[Arc<dyn Surrogate>] {
        &self.scores
    }

    /// The coefficients of a score, and its sigma_a.
    pub(crate) fn score_draws(&self, k: usize, c: &Matrix) -> (Matrix, Vec<f64>) {
        let (first, end) = (k * self.rows(), (k + 1) * self.rows() - 1);
        (c.select_rows(&(first..end).collect::<Vec<_>>()), c.row(end).to_vec())
    }

    /// The components; none of sums of a series.
    pub fn components(&self) -> Option<&Components> {
        match &self.along {
            Along::Coordinate(components) => Some(components),
            Along::Sums(..) => None,
        }
    }

    /// The same scores, but sums over the coordinate in place of the series: `offset_j + sum_k weights[j, k] f_k(x)`.
    pub(crate) fn sums(&self, offset: Vec<f64>, weights: Matrix) -> Self {
        Self { along: Along::Sums(offset, weights), ..self.clone() }
    }

    /// Coefficients of each component.
    fn rows(&self) -> usize {
        self.names.len() / self.n_components
    }

    /// The polynomials of a score, and coefficients whose squares are those of all scores in the mean square over the coordinate: their
    /// Sobol' indices are those of the whole series.
    pub(crate) fn pooled(&self, c: &Matrix) -> Option<(&Basis, Matrix)> {
        let weights = self.components()?.mean_squares();
        let square = |k: usize, p: usize, s: usize| weights[k] * c[(k * self.rows() + p, s)].powi(2);
        let pooled = Matrix::from_fn(self.basis.len(), c.cols(), |p, s| {
            (0..self.n_components).map(|k| square(k, p, s)).sum::<f64>().sqrt()
        });
        Some((&self.basis, pooled))
    }

    /// Root mean square over coordinate and inputs of what coefficient `row` is multiplied by; of one that is no polynomial's that of its
    /// component.
    pub(crate) fn size_of(&self, row: usize) -> f64 {
        let (k, p) = (row / self.rows(), row % self.rows());
        let component = self.components().map_or(1.0, |components| components.mean_squares()[k].sqrt());
        component * if p < self.basis.len() { self.basis.size(p) } else { 1.0 }
    }

    /// Sd of the error at inputs in rows, under draws in columns; none of sums of a series.
    pub(crate) fn error_sds(&self, x: &Matrix, c: &Matrix) -> Option<Matrix> {
        let components = self.components()?;
        let variances: Vec<Vec<f64>> = (0..c.cols()).map(|s| self.error_variances(c, s)).collect();
        let curves: Vec<Curves<'_>> = (0..x.rows()).map(|i| components.at(x[(i, x.cols() - 1)])).collect();
        Some(Matrix::from_fn(x.rows(), c.cols(), |i, s| curves[i].error_variance(&variances[s]).sqrt()))
    }

    /// sigma_a^2 of every component under one draw.
    pub(crate) fn error_variances(&self, c: &Matrix, draw: usize) -> Vec<f64> {
        (1..=self.n_components).map(|k| c[(k * self.rows() - 1, draw)].powi(2)).collect()
    }

    /// The same, averaged over draws with these weights, which sum to one.
    pub(crate) fn mean_error_variances(&self, c: &Matrix, weights: &[f64]) -> Vec<f64> {
        let mean = |k: usize| c.row(k * self.rows() - 1).iter().zip(weights).map(|(s, w)| w * s * s).sum();
        (1..=self.n_components).map(mean).collect()
    }

    /// Offset and weights of the scores at a value of the last input, and their derivatives.
    fn along(&self, t: f64) -> [(f64, Vec<f64>); 2] {
        match &self.along {
            Along::Coordinate(components) => {
                let curves = components.at(t);
                let own = |all: &[f64]| (all[0], all[1..=self.n_components].to_vec());
                [own(&curves.values), own(&curves.slopes)]
            }
            Along::Sums(offset, weights) => {
                let j = t as usize;
                [(offset[j], weights.row(j).to_vec()), (0.0, vec![0.0; self.n_components])]
            }
        }
    }

    /// The inputs without the last.
    fn inner(&self, x: &Matrix, out: &mut Matrix) {
        out.reshape(x.rows(), x.cols() - 1);
        for i in 0..x.rows() {
            out.row_mut(i).copy_from_slice(&x.row(i)[..x.cols() - 1]);
        }
    }

    /// For every row the first with the same inputs but the last, which shares its scores.
    fn first_rows(&self, x: &Matrix) -> Vec<usize> {
        x.first_alike(x.cols() - 1)
    }

    /// The series that rows are of.
    fn scores_at(&self, x: &Matrix) -> Scores {
        let mut first = self.first_rows(x);
        let distinct: Vec<usize> = (0..x.rows()).filter(|&i| first[i] == i).collect();
        first.iter_mut().for_each(|own| *own = distinct.partition_point(|row| *row < *own));
        let mut inner = Matrix::default();
        self.inner(&x.select_rows(&distinct), &mut inner);
        Scores { first, distinct, inner }
    }

    /// Offsets, and features of all coefficients.
    fn features(&self, x: &Matrix, scratch: &mut Vec<f64>) -> (Vec<f64>, Matrix) {
        let (mut inner, mut psi) = (Matrix::default(), Matrix::default());
        self.inner(x, &mut inner);
        self.basis.features(&inner, &mut psi, scratch);
        let mut offset = Vec::with_capacity(x.rows());
        let mut features = Matrix::zeros(x.rows(), self.names.len());
        for i in 0..x.rows() {
            let [(own, weights), _] = self.along(x[(i, x.cols() - 1)]);
            offset.push(own);
            for (block, weight) in features.row_mut(i).chunks_exact_mut(self.rows()).zip(weights) {
                block.iter_mut().zip(psi.row(i)).for_each(|(out, psi)| *out = weight * psi);
            }
        }
        (offset, features)
    }
}

impl Surrogate for Series {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn priors(&self) -> &[Marginal] {
        &[]
    }

    fn predict(&self, x: &Matrix, c: &Matrix, eta: &mut Matrix, scratch: &mut Scratch) {
        let Scores { first, distinct, inner } = self.scores_at(x);
        let [psi, scores] = &mut scratch.matrices;
        self.basis.features(&inner, psi, &mut scratch.values);
        eta.reshape(x.rows(), c.cols());
        let along: Vec<_> = (0..x.rows()).map(|i| self.along(x[(i, x.cols() - 1)])).map(|[values, _]| values).collect();
        (0..x.rows()).for_each(|i| eta.row_mut(i).fill(along[i].0));
        for k in 0..self.n_components {
            // One series is a few sums; the coefficients of many are read once for all.
            if distinct.len() == 1 {
                scores.reshape(1, c.cols());
                scores.data_mut().fill(0.0);
                for (p, psi) in psi.row(0).iter().enumerate() {
                    kernels::add_affine(0.0, *psi, c.row(k * self.rows() + p), scores.row_mut(0));
                }
            } else {
                scores.set_product_from(psi, c, k * self.rows());
            }
            for i in 0..x.rows() {
                kernels::add_affine(0.0, along[i].1[k], scores.row(first[i]), eta.row_mut(i));
            }
        }
    }

    fn pull_to_inputs(&self, x: &Matrix, c: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix, scratch: &mut Scratch) {
        let Scores { first, distinct, inner } = self.scores_at(x);
        let (last, n_terms) = (x.cols() - 1, self.basis.len());
        let [psi, score_bar] = &mut scratch.matrices;
        self.basis.features(&inner, psi, &mut scratch.values);
        let along: Vec<_> = (0..x.rows()).map(|i| self.along(x[(i, last)])).collect();
        let (mut bar, mut scores) = (Matrix::zeros(distinct.len(), n_terms), Matrix::default());
        for k in 0..self.n_components {
            score_bar.reshape(distinct.len(), c.cols());
            score_bar.data_mut().fill(0.0);
            for (i, [(_, weights), _]) in along.iter().enumerate() {
                kernels::add_affine(0.0, weights[k], eta_bar.row(i), score_bar.row_mut(first[i]));
            }
            if distinct.len() == 1 {
                for (p, bar) in bar.row_mut(0).iter_mut().enumerate() {
                    *bar += kernels::dot(score_bar.row(0), c.row(k * self.rows() + p));
                }
            } else {
                bar.add_product_transposed_from(score_bar, c, k * self.rows());
            }
            // Sums over the coordinate do not change with it.
            if along.iter().any(|[_, (_, slopes)]| slopes[k] != 0.0) {
                scores.set_product_from(psi, c, k * self.rows());
                for (i, [_, (_, slopes)]) in along.iter().enumerate() {
                    x_bar[(i, last)] += slopes[k] * kernels::dot(scores.row(first[i]), eta_bar.row(i));
                }
            }
        }
        for (i, [_, (offset_slope, _)]) in along.iter().enumerate() {
            x_bar[(i, last)] += offset_slope * eta_bar.row(i).iter().sum::<f64>();
        }
        for (j, &own) in distinct.iter().enumerate() {
            self.basis.pull_row(inner.row(j), bar.row(j), &mut x_bar.row_mut(own)[..last], &mut scratch.values);
        }
    }

    fn reads_draws_once(&self) -> bool {
        true
    }

    // Never asked: there are no priors.
    fn pull_to_coefficients(&self, _: &Matrix, _: &Matrix, _: &Matrix, _: &mut Matrix, _: &mut Scratch) {}

    fn linear(&self, x: &Matrix) -> Option<(Vec<f64>, Matrix)> {
        Some(self.features(x, &mut Vec::new()))
    }

    fn is_affine_in(&self, n_inputs: usize) -> bool {
        n_inputs <= self.basis.scales().len() && self.basis.is_affine_in(n_inputs)
    }

    fn separated(&self, n_unknowns: usize, points: &Matrix) -> Option<Separated<'_>> {
        let mut inner = Matrix::default();
        self.inner(points, &mut inner);
        let along: Vec<(f64, Vec<f64>)> =
            (0..points.rows()).map(|i| self.along(points[(i, points.cols() - 1)])).map(|[values, _]| values).collect();
        let weights = Matrix::from_fn(points.rows(), self.n_components, |i, k| along[i].1[k]);
        let offset = along.iter().map(|(offset, _)| *offset).collect();
        let distinct = self.first_rows(points).iter().enumerate().filter(|(i, first)| i == *first).count();
        Some(Separated::new(&self.basis, n_unknowns, &inner).weighted(offset, &weights, self.rows(), distinct))
    }

    fn series(&self) -> Option<&Series> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{InputScale, Normalisation, PolynomialChaos, conformance};
    use super::*;

    fn series() -> Series {
        let at: Vec<f64> = (0..7).map(|i| f64::from(i * i)).collect();
        let mean: Vec<f64> = at.iter().map(|t| 1.0 + 0.1 * t).collect();
        let components = Matrix::from_fn(7, 2, |i, k| (0.2 * (k + 1) as f64 * at[i]).sin());
        let left_out = Matrix::from_fn(7, 1, |i, _| 0.01 * i as f64);
        let scales =
            vec![InputScale { lower: 1.0, upper: 3.0, log: false }, InputScale { lower: 0.1, upper: 10.0, log: true }];
        let prior: Marginal = "normal(0, 1)".parse().expect("a prior");
        let score = PolynomialChaos::new(2, Normalisation::Orthonormal, prior, scales);
        let scores: Vec<Arc<dyn Surrogate>> = vec![Arc::new(score.clone()), Arc::new(score)];
        Series::new(Components::new(at, &mean, &components, &left_out, 0.99), scores).expect("a polynomial")
    }

    #[test]
    fn conforms() {
        let series = series();
        let c = Matrix::from_fn(series.names().len(), 3, |p, s| (p as f64 + 2.0 * s as f64).cos());
        conformance::check_draws(&series, &[(1.0, 3.0), (0.1, 10.0), (0.0, 36.0)], &c).expect("conforms");
        // Continued by straight lines.
        conformance::check_draws(&series, &[(1.0, 3.0), (0.1, 10.0), (37.0, 40.0)], &c).expect("conforms");
        assert_eq!(series.names()[6..8], ["pc1.sigma_a", "pc2.c[0,0]"]);
    }

    #[test]
    fn separated_form_is_the_same_function() {
        let series = series();
        let c = Matrix::from_fn(series.names().len(), 2, |p, s| (p as f64 + 2.0 * s as f64).cos());
        let points = Matrix::from_fn(4, 2, |i, d| if d == 0 { 0.3 + i as f64 } else { 5.0 * i as f64 });
        let separated = series.separated(1, &points).expect("a polynomial");
        let unknown = Matrix::from_rows(1, 1, vec![1.7]);
        let of_unknowns = series.basis.products(0..1, &unknown);
        let of_unknowns: Vec<f64> =
            (0..series.basis.len()).map(|p| series.basis.factor(p) * of_unknowns[(0, p)]).collect();
        let weights = separated.weights(&of_unknowns, 0.0, &c);
        let x = Matrix::from_fn(4, 3, |i, d| if d == 0 { 1.7 } else { points[(i, d - 1)] });
        let mut eta = Matrix::default();
        series.predict(&x, &c, &mut eta, &mut Scratch::default());
        for i in 0..4 {
            let (offset, known) = separated.at(i);
            for s in 0..2 {
                let terms: Vec<f64> = known.iter().enumerate().map(|(b, known)| known * weights[(b, s)]).collect();
                let size = offset.abs() + terms.iter().map(|t| t.abs()).sum::<f64>();
                let gap = (offset + terms.iter().sum::<f64>() - eta[(i, s)]).abs();
                // A dozen terms of a few products each.
                assert!(gap <= 64.0 * f64::EPSILON * size, "{gap}");
            }
        }
    }

    /// A parabola is not a natural spline, but one whose ends are straight is.
    #[test]
    fn splines_pass_through_their_values_and_are_smooth() {
        let at = vec![0.0, 1.0, 2.5, 4.0];
        let values = Matrix::from_fn(4, 2, |i, f| if f == 0 { 3.0 - 2.0 * at[i] } else { (at[i]).sin() });
        let splines = Splines::new(at.clone(), values.clone());
        let (mut value, mut slope) = ([0.0; 2], [0.0; 2]);
        for (i, t) in at.iter().enumerate() {
            splines.eval(*t, &mut value, &mut slope);
            assert!((value[1] - values[(i, 1)]).abs() <= 8.0 * f64::EPSILON);
        }
        for t in [-1.0, 0.3, 1.7, 5.0] {
            splines.eval(t, &mut value, &mut slope);
            assert!((value[0] - (3.0 - 2.0 * t)).abs() <= 64.0 * f64::EPSILON, "a line stays one");
            assert!((slope[0] + 2.0).abs() <= 64.0 * f64::EPSILON);
        }
        // Second derivatives from both sides of an inner place, by differences: equal up to h times the third derivative, which
        // is at most the largest change of a second derivative (below 2) over the least width.
        let second = |t: f64| {
            let h = 1e-3;
            let mut slopes = [[0.0; 2]; 2];
            for (k, t) in [t - h, t + h].into_iter().enumerate() {
                splines.eval(t, &mut value.clone(), &mut slopes[k]);
            }
            (slopes[1][1] - slopes[0][1]) / (2.0 * h)
        };
        assert!((second(1.0 - 2e-3) - second(1.0 + 2e-3)).abs() <= 4.0 * 2e-3 * 2.0);
    }
}
