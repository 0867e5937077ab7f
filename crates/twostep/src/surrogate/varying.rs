//! An approximation error whose size depends on the inputs, `log sigma_A(x) = log sigma_a + sum_q a_q phi_q(x)`, of any surrogate.

use super::{Basis, InputScale, Normalisation, Scratch, Separated, Surrogate};
use crate::kernels;
use crate::matrix::Matrix;
use crate::prior::Marginal;
use std::ops::Range;
use std::sync::Arc;

/// The part of sigma_A that depends on the inputs: a linear combination of orthonormal Legendre polynomials without their constant, so that
/// `sigma_a` of a draw is the geometric mean of sigma_A over the inputs.
#[derive(Clone, Debug)]
pub struct ErrorField {
    basis: Basis,
    /// The row of the draws' coefficients that is the first of its own.
    first: usize,
}

impl ErrorField {
    fn new(scales: Vec<InputScale>, degree: usize, first: usize) -> Self {
        Self { basis: Basis::new(scales, degree, Normalisation::Orthonormal), first }
    }

    /// Names of its coefficients, `a[0,1]` by their degrees.
    fn names(&self) -> Vec<String> {
        self.basis.names()[1..].iter().map(|name| format!("a{}", name.trim_start_matches('c'))).collect()
    }

    /// The rows of its coefficients among those of the surrogate.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.first..self.first + self.basis.len() - 1
    }

    /// `phi_q(x_i)`, N x Q.
    pub(crate) fn features(&self, x: &Matrix) -> Matrix {
        let mut all = Matrix::default();
        self.basis.features(x, &mut all, &mut Vec::new());
        Matrix::from_fn(x.rows(), self.basis.len() - 1, |i, q| all[(i, q + 1)])
    }

    /// `out[i, s] = sigma_a[s] exp(sum_q a_qs phi_q(x_i))`, reshaped to N x S, for the draws `c` of the surrogate.
    pub fn sds(&self, x: &Matrix, c: &Matrix, sigma_a: &[f64], out: &mut Matrix, scratch: &mut Scratch) {
        let Scratch { matrices: [phi, logs], values, .. } = scratch;
        self.basis.features(x, phi, values);
        out.reshape(x.rows(), c.cols());
        logs.reshape(1, c.cols());
        for i in 0..x.rows() {
            let logs = logs.row_mut(0);
            logs.fill(0.0);
            for (q, row) in self.rows().enumerate() {
                let phi = phi[(i, q + 1)];
                logs.iter_mut().zip(c.row(row)).for_each(|(log, a)| *log += phi * a);
            }
            let out = out.row_mut(i);
            kernels::exp_each(logs, out);
            out.iter_mut().zip(sigma_a).for_each(|(out, sigma_a)| *out *= sigma_a);
        }
    }

    /// `x_bar[i, d] += sum_s log_bar[i, s] dlog sigma_A(x_i, c_s) / dx_id`.
    pub(crate) fn pull_to_inputs(
        &self,
        x: &Matrix,
        c: &Matrix,
        log_bar: &Matrix,
        x_bar: &mut Matrix,
        scratch: &mut Scratch,
    ) {
        let [weights, _] = &mut scratch.matrices;
        weights.reshape(1, self.basis.len());
        weights[(0, 0)] = 0.0;
        for i in 0..x.rows() {
            for (q, row) in self.rows().enumerate() {
                weights[(0, q + 1)] = kernels::dot(log_bar.row(i), c.row(row));
            }
            self.basis.pull_row(x.row(i), weights.row(0), x_bar.row_mut(i), &mut scratch.values);
        }
    }
}

/// A surrogate with such an error: the coefficients of sigma_A are its own after those of the surrogate, and change no prediction.
pub struct VaryingError {
    inner: Arc<dyn Surrogate>,
    field: ErrorField,
    names: Vec<String>,
    priors: Vec<Marginal>,
}

impl VaryingError {
    /// Of total degree `degree`, every coefficient of sigma_A with the same prior.
    pub fn new(inner: Arc<dyn Surrogate>, degree: usize, prior: &Marginal, scales: &[InputScale]) -> Self {
        let field = ErrorField::new(scales.to_vec(), degree, inner.names().len());
        let names: Vec<String> = inner.names().iter().cloned().chain(field.names()).collect();
        let own = std::iter::repeat_n(prior.clone(), field.rows().len());
        let priors = inner.priors().iter().cloned().chain(own).collect();
        Self { inner, field, names, priors }
    }
}

impl Surrogate for VaryingError {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn priors(&self) -> &[Marginal] {
        &self.priors
    }

    fn predict(&self, x: &Matrix, c: &Matrix, eta: &mut Matrix, scratch: &mut Scratch) {
        self.inner.predict(x, c, eta, scratch);
    }

    fn pull_to_inputs(&self, x: &Matrix, c: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix, scratch: &mut Scratch) {
        self.inner.pull_to_inputs(x, c, eta_bar, x_bar, scratch);
    }

    fn pull_to_coefficients(
        &self,
        x: &Matrix,
        c: &Matrix,
        eta_bar: &Matrix,
        c_bar: &mut Matrix,
        scratch: &mut Scratch,
    ) {
        self.inner.pull_to_coefficients(x, c, eta_bar, c_bar, scratch);
    }

    fn has_gradient(&self) -> bool {
        self.inner.has_gradient()
    }

    fn for_draws(&self, c: &Matrix) -> Option<Arc<dyn Surrogate>> {
        self.inner.for_draws(c)
    }

    fn linear(&self, x: &Matrix) -> Option<(Vec<f64>, Matrix)> {
        let (offset, features) = self.inner.linear(x)?;
        let padded =
            Matrix::from_fn(
                x.rows(),
                self.names.len(),
                |i, p| {
                    if p < features.cols() { features[(i, p)] } else { 0.0 }
                },
            );
        Some((offset, padded))
    }

    fn is_affine_in(&self, n_inputs: usize) -> bool {
        self.inner.is_affine_in(n_inputs)
    }

    fn basis(&self) -> Option<&Basis> {
        self.inner.basis()
    }

    fn separated(&self, n_unknowns: usize, points: &Matrix) -> Option<Separated<'_>> {
        self.inner.separated(n_unknowns, points)
    }

    fn error_field(&self) -> Option<&ErrorField> {
        Some(&self.field)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::{Formula, PolynomialChaos, conformance};
    use super::*;

    fn scales() -> Vec<InputScale> {
        vec![InputScale { lower: 1.0, upper: 3.0, log: false }, InputScale { lower: 0.1, upper: 10.0, log: true }]
    }

    fn surrogates() -> [VaryingError; 2] {
        let prior: Marginal = "normal(0, 1)".parse().unwrap();
        let polynomial = PolynomialChaos::new(3, Normalisation::Orthonormal, prior.clone(), scales());
        let inputs = ["x", "t"].map(String::from);
        let parameters = vec![("a".to_owned(), prior.clone()), ("b".to_owned(), prior)];
        let formula = Formula::new("a * exp(b * x) / t", &inputs, parameters).unwrap();
        let own: Marginal = "normal(0, 0.5)".parse().unwrap();
        let inner: [Arc<dyn Surrogate>; 2] = [Arc::new(polynomial), Arc::new(formula)];
        inner.map(|inner| VaryingError::new(inner, 2, &own, &scales()))
    }

    #[test]
    fn conforms() {
        for surrogate in surrogates() {
            conformance::check(&surrogate, &[(1.0, 3.0), (0.1, 10.0)]).unwrap();
            let n = surrogate.names().len();
            assert_eq!(
                surrogate.names()[n - 5..],
                ["[0,1]", "[1,0]", "[0,2]", "[1,1]", "[2,0]"].map(|d| format!("a{d}"))
            );
        }
    }

    /// The pull-back against differences, whose truncation is a third of their change when the step doubles.
    #[test]
    fn the_pull_back_is_the_derivative() {
        let [surrogate, _] = surrogates();
        let field = surrogate.error_field().unwrap();
        let x = Matrix::from_rows(2, 2, vec![1.7, 0.4, 2.6, 3.0]);
        let n = surrogate.names().len();
        let c = Matrix::from_fn(n, 3, |p, s| 0.3 * ((3 * p + s) as f64).sin());
        let (sigma_a, log_bar) = ([0.1, 0.2, 0.4], Matrix::from_fn(2, 3, |i, s| 0.5 + i as f64 - 0.4 * s as f64));
        let mut scratch = Scratch::default();
        let mut x_bar = Matrix::zeros(2, 2);
        field.pull_to_inputs(&x, &c, &log_bar, &mut x_bar, &mut scratch);
        let mut value = |x: &Matrix| {
            let mut sds = Matrix::default();
            field.sds(x, &c, &sigma_a, &mut sds, &mut scratch);
            sds.data().iter().zip(log_bar.data()).map(|(sd, bar)| bar * sd.ln()).sum::<f64>()
        };
        for i in 0..2 {
            for d in 0..2 {
                let mut central = |h: f64| {
                    let mut at = |h: f64| {
                        let mut moved = x.clone();
                        moved[(i, d)] += h;
                        value(&moved)
                    };
                    (at(h) - at(-h)) / (2.0 * h)
                };
                let h = f64::EPSILON.cbrt();
                let (near, far) = (central(h), central(2.0 * h));
                // Twelve logarithms of at most 3 with some roundings each.
                let bound = (near - far).abs() + 16.0 * 12.0 * 3.0 * f64::EPSILON / h;
                assert!((x_bar[(i, d)] - near).abs() <= bound, "{} {near} {bound}", x_bar[(i, d)]);
            }
        }
    }
}
