//! A surrogate at known points as a sum of products: functions of the known inputs times functions of the unknowns.

use super::Basis;
use crate::kernels;
use crate::matrix::Matrix;

/// `M~(unknowns, point_i, c) = offset_i + sum_b known[i, b] w_b(unknowns, c)`, where `w_b` sums the coefficients of polynomials in the
/// unknowns that share the function `b` of the known inputs. One unknown may be added besides, and then is the last of the `w_b`.
pub struct Separated<'a> {
    basis: &'a Basis,
    /// Places of the basis' unknowns among all.
    places: Vec<usize>,
    /// Place of an added unknown, and where it lies.
    added: Option<(usize, (f64, f64))>,
    offset: Vec<f64>,
    known: Matrix,
    /// Of each coefficient that counts: its row, its polynomial, and its `b`.
    entries: Vec<(usize, usize, usize)>,
    /// Multiplications for all points under one draw, without this form.
    direct: usize,
}

impl<'a> Separated<'a> {
    /// A polynomial with a coefficient for every basis function, at points of its inputs after the first `n_unknowns`.
    pub fn new(basis: &'a Basis, n_unknowns: usize, points: &Matrix) -> Self {
        let mut distinct: Vec<(&[usize], usize)> = Vec::new();
        let shared = basis.degrees().iter().enumerate().map(|(p, degrees)| {
            let degrees = &degrees[n_unknowns..];
            let b = distinct.iter().position(|(known, _)| *known == degrees).unwrap_or_else(|| {
                distinct.push((degrees, p));
                distinct.len() - 1
            });
            (p, p, b)
        });
        let entries = shared.collect();
        let products = basis.products(n_unknowns..basis.scales().len(), points);
        let first: Vec<usize> = distinct.iter().map(|(_, p)| *p).collect();
        let direct = points.rows() * basis.len();
        let (offset, known) = (vec![0.0; points.rows()], products.select_cols(&first));
        Self { basis, places: (0..n_unknowns).collect(), added: None, offset, known, entries, direct }
    }

    /// `offset_i + sum_k weights[i, k] M~_k`, where the coefficients of the `M~_k` follow each other in blocks of `rows`, and so many of
    /// the points are `distinct` to them.
    pub(crate) fn weighted(self, offset: Vec<f64>, weights: &Matrix, rows: usize, distinct: usize) -> Self {
        let width = self.known.cols();
        let known = Matrix::from_fn(self.known.rows(), weights.cols() * width, |i, kb| {
            weights[(i, kb / width)] * self.known[(i, kb % width)]
        });
        let of_block = |k: usize| self.entries.iter().map(move |&(row, p, b)| (k * rows + row, p, k * width + b));
        let entries: Vec<_> = (0..weights.cols()).flat_map(of_block).collect();
        let direct = distinct * entries.len() + known.rows() * weights.cols();
        Self { offset, known, entries, direct, ..self }
    }

    /// The same where the basis' unknowns stand in these places among all.
    pub(crate) fn placed(self, places: Vec<usize>) -> Self {
        Self { places, ..self }
    }

    /// The same with the unknown in a place added, times an amount for each point; most of it lies in `range`.
    pub(crate) fn adding(self, place: usize, range: (f64, f64), amounts: Vec<f64>) -> Self {
        let width = self.known.cols();
        let known = Matrix::from_fn(self.known.rows(), width + 1, |i, b| match b < width {
            true => self.known[(i, b)],
            false => amounts[i],
        });
        Self { known, added: Some((place, range)), ..self }
    }

    /// `offset_j + sum_i weights[j, i] M~_i` over its points.
    pub(crate) fn summed(self, weights: &Matrix, offset: &[f64]) -> Self {
        let offset =
            offset.iter().enumerate().map(|(j, own)| own + kernels::dot(weights.row(j), &self.offset)).collect();
        let mut known = Matrix::default();
        known.set_product(weights, &self.known);
        Self { offset, known, ..self }
    }

    /// Places of the basis' unknowns among all.
    pub(crate) fn places(&self) -> &[usize] {
        &self.places
    }

    /// Place of an added unknown, and where it lies.
    pub(crate) fn added(&self) -> Option<(usize, (f64, f64))> {
        self.added
    }

    /// The polynomials, of which those of the unknowns are a part.
    pub(crate) fn basis(&self) -> &Basis {
        self.basis
    }

    /// Number of functions of the known inputs.
    pub(crate) fn width(&self) -> usize {
        self.known.cols()
    }

    /// Multiplications for all points under one draw, without this form.
    pub(crate) fn direct_cost(&self) -> usize {
        self.direct
    }

    /// `offset_i` of a point, and its functions of the known inputs.
    pub(crate) fn at(&self, point: usize) -> (f64, &[f64]) {
        (self.offset[point], self.known.row(point))
    }

    /// `w_b` of every draw, given the unknowns' part of every basis function, and the added unknown.
    pub(crate) fn weights(&self, of_unknowns: &[f64], added: f64, coefficients: &Matrix) -> Matrix {
        let mut out = Matrix::zeros(self.width(), coefficients.cols());
        for &(row, p, b) in &self.entries {
            kernels::add_affine(0.0, of_unknowns[p], coefficients.row(row), out.row_mut(b));
        }
        if self.added.is_some() {
            out.row_mut(self.width() - 1).fill(added);
        }
        out
    }
}
