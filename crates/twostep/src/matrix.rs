//! Row-major matrices whose contiguous axis is the draws, and the few products the kernels need.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use std::collections::HashMap;

/// A dense matrix, row after row. Where draws are involved they are the columns, so a row is contiguous over draws.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    data: Vec<f64>,
}

impl Matrix {
    /// All zeros.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![0.0; rows * cols] }
    }

    /// From values given row after row.
    ///
    /// # Panics
    /// If `data.len() != rows * cols`.
    pub fn from_rows(rows: usize, cols: usize, data: Vec<f64>) -> Self {
        assert_eq!(data.len(), rows * cols, "a {rows} x {cols} matrix needs {} values", rows * cols);
        Self { rows, cols, data }
    }

    /// `f(row, column)` everywhere.
    pub fn from_fn(rows: usize, cols: usize, mut f: impl FnMut(usize, usize) -> f64) -> Self {
        let mut out = Self::zeros(rows, cols);
        for i in 0..rows {
            for (j, value) in out.row_mut(i).iter_mut().enumerate() {
                *value = f(i, j);
            }
        }
        out
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// Row `i`, to be changed.
    pub fn row_mut(&mut self, i: usize) -> &mut [f64] {
        &mut self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// Column `j`, copied.
    pub fn col(&self, j: usize) -> Vec<f64> {
        (0..self.rows).map(|i| self[(i, j)]).collect()
    }

    /// All values, row after row.
    pub fn data(&self) -> &[f64] {
        &self.data
    }

    /// All values, to be changed.
    pub fn data_mut(&mut self) -> &mut [f64] {
        &mut self.data
    }

    /// The columns named by `index`, in that order.
    pub fn select_cols(&self, index: &[usize]) -> Self {
        Self::from_fn(self.rows, index.len(), |i, j| self[(i, index[j])])
    }

    /// The rows named by `index`, in that order.
    pub fn select_rows(&self, index: &[usize]) -> Self {
        Self::from_fn(index.len(), self.cols, |i, j| self[(index[i], j)])
    }

    /// For every row the first whose first `n` entries are the same.
    pub(crate) fn first_alike(&self, n: usize) -> Vec<usize> {
        let mut seen: HashMap<Vec<u64>, usize> = HashMap::new();
        (0..self.rows).map(|i| *seen.entry(bits(&self.row(i)[..n])).or_insert(i)).collect()
    }

    /// The transpose.
    pub fn transposed(&self) -> Self {
        Self::from_fn(self.cols, self.rows, |i, j| self[(j, i)])
    }

    /// Takes another shape, keeping the allocation where it is large enough; the contents are unspecified.
    pub fn reshape(&mut self, rows: usize, cols: usize) {
        self.data.resize(rows * cols, 0.0);
        (self.rows, self.cols) = (rows, cols);
    }

    pub(crate) fn view(&self) -> MatRef<'_, f64> {
        MatRef::from_row_major_slice(&self.data, self.rows, self.cols)
    }

    fn view_mut(&mut self) -> MatMut<'_, f64> {
        MatMut::from_row_major_slice_mut(&mut self.data, self.rows, self.cols)
    }

    /// `self = a b`, with as many rows of b as a has columns.
    pub fn set_product(&mut self, a: &Matrix, b: &Matrix) {
        self.reshape(a.rows, b.cols);
        matmul(self.view_mut(), Accum::Replace, a.view(), b.view().subrows(0, a.cols), 1.0, Par::Seq);
    }

    /// `self = a b` with the rows of b from `first` on, as many as a has columns.
    pub(crate) fn set_product_from(&mut self, a: &Matrix, b: &Matrix, first: usize) {
        self.reshape(a.rows, b.cols);
        matmul(self.view_mut(), Accum::Replace, a.view(), b.view().subrows(first, a.cols), 1.0, Par::Seq);
    }

    /// `self += a b'` with the rows of b from `first` on, as many as self has columns.
    pub(crate) fn add_product_transposed_from(&mut self, a: &Matrix, b: &Matrix, first: usize) {
        let n = self.cols;
        matmul(self.view_mut(), Accum::Add, a.view(), b.view().subrows(first, n).transpose(), 1.0, Par::Seq);
    }

    /// `self = a b'`.
    pub fn set_product_transposed(&mut self, a: &Matrix, b: &Matrix) {
        self.reshape(a.rows, b.rows);
        matmul(self.view_mut(), Accum::Replace, a.view(), b.view().transpose(), 1.0, Par::Seq);
    }

    /// `self += a' b` in its first rows, as many as a has columns.
    pub fn add_transposed_product(&mut self, a: &Matrix, b: &Matrix) {
        let out = self.view_mut().subrows_mut(0, a.cols);
        matmul(out, Accum::Add, a.view().transpose(), b.view(), 1.0, Par::Seq);
    }
}

impl std::ops::Index<(usize, usize)> for Matrix {
    type Output = f64;

    fn index(&self, (i, j): (usize, usize)) -> &f64 {
        debug_assert!(j < self.cols);
        &self.data[i * self.cols + j]
    }
}

impl std::ops::IndexMut<(usize, usize)> for Matrix {
    fn index_mut(&mut self, (i, j): (usize, usize)) -> &mut f64 {
        debug_assert!(j < self.cols);
        &mut self.data[i * self.cols + j]
    }
}

/// Numbers as a key of a map: equal for equal numbers, zero of either sign included.
pub(crate) fn bits(x: &[f64]) -> Vec<u64> {
    x.iter().map(|x| (x + 0.0).to_bits()).collect()
}

/// Place of entry (i, j), `j <= i`, in a lower triangle that is stored row after row.
pub(crate) fn in_triangle(i: usize, j: usize) -> usize {
    i * (i + 1) / 2 + j
}

/// Replaces the lower triangle of a symmetric matrix of `n` rows by that of its Cholesky factor L; false where the matrix is
/// not positive definite.
pub(crate) fn cholesky(triangle: &mut [f64], n: usize) -> bool {
    for i in 0..n {
        for j in 0..=i {
            let sum: f64 = (0..j).map(|k| triangle[in_triangle(i, k)] * triangle[in_triangle(j, k)]).sum();
            let rest = triangle[in_triangle(i, j)] - sum;
            triangle[in_triangle(i, j)] = if i == j { rest.sqrt() } else { rest / triangle[in_triangle(j, j)] };
        }
        // NaN is not positive either.
        if !(triangle[in_triangle(i, i)] > 0.0 && triangle[in_triangle(i, i)].is_finite()) {
            return false;
        }
    }
    true
}

/// `x = L^-1 x`, for the lower triangle of L.
pub(crate) fn solve_lower(triangle: &[f64], x: &mut [f64]) {
    for i in 0..x.len() {
        let sum: f64 = (0..i).map(|j| triangle[in_triangle(i, j)] * x[j]).sum();
        x[i] = (x[i] - sum) / triangle[in_triangle(i, i)];
    }
}

/// `x = L^-T x`.
pub(crate) fn solve_lower_transposed(triangle: &[f64], x: &mut [f64]) {
    for i in (0..x.len()).rev() {
        let sum: f64 = (i + 1..x.len()).map(|j| triangle[in_triangle(j, i)] * x[j]).sum();
        x[i] = (x[i] - sum) / triangle[in_triangle(i, i)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_follow_their_formulas() {
        let a = Matrix::from_fn(3, 2, |i, j| (i * 2 + j) as f64);
        let b = Matrix::from_fn(2, 4, |i, j| (i as f64) - (j as f64));
        let naive = Matrix::from_fn(3, 4, |i, j| (0..2).map(|k| a[(i, k)] * b[(k, j)]).sum());
        let mut out = Matrix::default();
        // Small integers: products and sums are exact.
        out.set_product(&a, &b);
        assert_eq!(out, naive);
        out.set_product_transposed(&a, &b.transposed());
        assert_eq!(out, naive);
        let mut sum = naive.clone();
        sum.add_transposed_product(&a.transposed(), &b);
        assert!(sum.data().iter().zip(naive.data()).all(|(s, n)| *s == 2.0 * n));
    }

    #[test]
    fn a_triangle_factors_and_solves() {
        // L = [[2], [1, 3], [-1, 2, 4]] and L L': small integers, exact.
        let mut triangle = [4.0, 2.0, 10.0, -2.0, 5.0, 21.0];
        assert!(cholesky(&mut triangle, 3));
        assert_eq!(triangle, [2.0, 1.0, 3.0, -1.0, 2.0, 4.0]);
        let mut x = [4.0, 11.0, 20.0];
        solve_lower(&triangle, &mut x);
        assert_eq!(x, [2.0, 3.0, 4.0]);
        let mut x = [2.0, 17.0, 16.0];
        solve_lower_transposed(&triangle, &mut x);
        assert_eq!(x, [1.5, 3.0, 4.0]);
        assert!(!cholesky(&mut [1.0, 2.0, 1.0], 2));
    }
}
