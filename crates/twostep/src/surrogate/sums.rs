//! Sums of a surrogate's values at several points, for measurements that are told apart only together.

use super::{Scratch, Separated, Surrogate};
use crate::kernels;
use crate::matrix::Matrix;
use crate::prior::Marginal;
use std::sync::Arc;

/// `sum_i weights[j, i] (shift + M~(unknowns, point_i, c))`, whose last input is the number j.
#[derive(Clone)]
pub struct Sums {
    of: Arc<dyn Surrogate>,
    n_unknowns: usize,
    points: Matrix,
    weights: Matrix,
    /// That of the weights times shift.
    offsets: Vec<f64>,
}

impl Sums {
    /// Of values at known inputs in rows, after `n_unknowns` inputs; a row of weights for each sum.
    pub fn new(of: Arc<dyn Surrogate>, n_unknowns: usize, points: Matrix, weights: Matrix, shift: f64) -> Self {
        let offsets = (0..weights.rows()).map(|j| shift * weights.row(j).iter().sum::<f64>()).collect();
        Self { of, n_unknowns, points, weights, offsets }
    }

    /// All points with the unknowns of the first of each group of rows, group after group.
    fn inner(&self, x: &Matrix, groups: &[Vec<usize>], out: &mut Matrix) {
        let n = self.points.rows();
        out.reshape(groups.len() * n, self.n_unknowns + self.points.cols());
        for (g, rows) in groups.iter().enumerate() {
            for i in 0..n {
                let (own, known) = out.row_mut(g * n + i).split_at_mut(self.n_unknowns);
                own.copy_from_slice(&x.row(rows[0])[..self.n_unknowns]);
                known.copy_from_slice(self.points.row(i));
            }
        }
    }

    /// The sums that rows stand for.
    fn numbers(&self, x: &Matrix) -> Vec<usize> {
        (0..x.rows()).map(|i| x[(i, self.n_unknowns)] as usize).collect()
    }

    /// The rows with the same unknowns, in groups.
    fn alike(&self, x: &Matrix) -> Vec<Vec<usize>> {
        let first = x.first_alike(self.n_unknowns);
        let firsts = (0..x.rows()).filter(|&i| first[i] == i);
        firsts.map(|own| (own..x.rows()).filter(|&i| first[i] == own).collect()).collect()
    }
}

impl Surrogate for Sums {
    fn names(&self) -> &[String] {
        self.of.names()
    }

    fn priors(&self) -> &[Marginal] {
        self.of.priors()
    }

    fn predict(&self, x: &Matrix, c: &Matrix, eta: &mut Matrix, scratch: &mut Scratch) {
        let (numbers, groups) = (self.numbers(x), self.alike(x));
        let ([inner, values], within) = scratch.within();
        self.inner(x, &groups, inner);
        self.of.predict(inner, c, values, within);
        eta.reshape(x.rows(), c.cols());
        for (g, rows) in groups.iter().enumerate() {
            for &i in rows {
                let (j, first) = (numbers[i], g * self.points.rows());
                eta.row_mut(i).fill(self.offsets[j]);
                for (p, weight) in self.weights.row(j).iter().enumerate() {
                    kernels::add_affine(0.0, *weight, values.row(first + p), eta.row_mut(i));
                }
            }
        }
    }

    fn pull_to_inputs(&self, x: &Matrix, c: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix, scratch: &mut Scratch) {
        let (numbers, groups, n) = (self.numbers(x), self.alike(x), self.points.rows());
        let ([inner, values_bar], within) = scratch.within();
        self.inner(x, &groups, inner);
        values_bar.reshape(inner.rows(), c.cols());
        values_bar.data_mut().fill(0.0);
        for (g, rows) in groups.iter().enumerate() {
            for &i in rows {
                for (p, weight) in self.weights.row(numbers[i]).iter().enumerate() {
                    kernels::add_affine(0.0, *weight, eta_bar.row(i), values_bar.row_mut(g * n + p));
                }
            }
        }
        let mut inner_bar = Matrix::zeros(inner.rows(), inner.cols());
        self.of.pull_to_inputs(inner, c, values_bar, &mut inner_bar, within);
        for (g, rows) in groups.iter().enumerate() {
            for p in 0..n {
                let out = x_bar.row_mut(rows[0])[..self.n_unknowns].iter_mut();
                out.zip(inner_bar.row(g * n + p)).for_each(|(out, bar)| *out += bar);
            }
        }
    }

    // Never asked: what is trained is the surrogate within.
    fn pull_to_coefficients(&self, _: &Matrix, _: &Matrix, _: &Matrix, _: &mut Matrix, _: &mut Scratch) {}

    fn has_gradient(&self) -> bool {
        self.of.has_gradient()
    }

    fn reads_draws_once(&self) -> bool {
        self.of.reads_draws_once()
    }

    fn for_draws(&self, c: &Matrix) -> Option<Arc<dyn Surrogate>> {
        Some(Arc::new(Self { of: self.of.for_draws(c)?, ..self.clone() }))
    }

    fn is_affine_in(&self, n_inputs: usize) -> bool {
        n_inputs <= self.n_unknowns && self.of.is_affine_in(self.n_unknowns)
    }

    fn separated(&self, n_unknowns: usize, points: &Matrix) -> Option<Separated<'_>> {
        let own: Vec<usize> = (0..points.rows()).map(|i| points[(i, 0)] as usize).collect();
        let offsets: Vec<f64> = own.iter().map(|&j| self.offsets[j]).collect();
        Some(self.of.separated(n_unknowns, &self.points)?.summed(&self.weights.select_rows(&own), &offsets))
    }
}
