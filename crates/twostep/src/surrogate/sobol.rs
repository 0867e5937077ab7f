//! Sobol' indices of polynomial chaos in closed form: coefficients to the share that each input has in the output's variance.

use super::{Basis, Surrogate};
use crate::matrix::Matrix;

/// The variance of `M~(x, c)` by inputs, where these are independent and uniform between their bounds, on the logarithm where that is their
/// scale: inputs in rows, draws of the coefficients in columns. Divided by `variance` they are Sobol' indices. [Sudret 2008]
#[derive(Clone, Debug, PartialEq)]
pub struct Sobol {
    /// `Var(E(M~ | x_d))`: what input d does by itself.
    pub first: Matrix,
    /// `E(Var(M~ | all but x_d))`: what goes when input d is known, together with its interactions.
    pub total: Matrix,
    /// `Var(M~)`.
    pub variance: Vec<f64>,
}

impl Sobol {
    /// Of a surrogate that is a polynomial; of a series on average over its coordinate, which is none of the inputs then.
    pub fn of(surrogate: &dyn Surrogate, coefficients: &Matrix) -> Option<Self> {
        match surrogate.series() {
            Some(series) => series.pooled(coefficients).map(|(basis, pooled)| Self::new(basis, &pooled)),
            None => surrogate.basis().map(|basis| Self::new(basis, coefficients)),
        }
    }

    /// For P x S coefficients of a basis.
    pub fn new(basis: &Basis, coefficients: &Matrix) -> Self {
        let (n_inputs, n_draws) = (basis.scales().len(), coefficients.cols());
        let (mut first, mut total) = (Matrix::zeros(n_inputs, n_draws), Matrix::zeros(n_inputs, n_draws));
        let mut variance = vec![0.0; n_draws];
        for (p, degrees) in basis.degrees().iter().enumerate() {
            let active: Vec<usize> = (0..n_inputs).filter(|&d| degrees[d] > 0).collect();
            if active.is_empty() {
                continue;
            }
            // The mean square of P_j under the uniform distribution is 1 / (2j + 1).
            let square = degrees.iter().fold(basis.factor(p).powi(2), |square, &j| square / (2 * j + 1) as f64);
            for (s, c) in coefficients.row(p).iter().enumerate() {
                let part = square * c * c;
                variance[s] += part;
                active.iter().for_each(|&d| total[(d, s)] += part);
                if let [only] = active[..] {
                    first[(only, s)] += part;
                }
            }
        }
        Self { first, total, variance }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{InputScale, Normalisation};
    use super::*;
    use crate::special::gauss_legendre;

    const ALL: [Normalisation; 3] = [Normalisation::Orthonormal, Normalisation::None, Normalisation::Lebesgue];

    #[test]
    fn a_product_has_the_indices_known_for_it() {
        // M~ = (1 + a u)(1 + b v) with u, v uniform on [-1, 1]: variances a^2/3, b^2/3 and their product a^2 b^2 / 9.
        let (a, b) = (0.7, 1.9);
        let scales = vec![
            InputScale { lower: 2.0, upper: 5.0, log: false },
            InputScale { lower: 0.1, upper: 10.0, log: true },
            InputScale { lower: -1.0, upper: 1.0, log: false },
        ];
        for normalisation in ALL {
            let basis = Basis::new(scales.clone(), 2, normalisation);
            let value = |degrees: &[usize]| match degrees {
                [0, 0, 0] => 1.0,
                [1, 0, 0] => a,
                [0, 1, 0] => b,
                [1, 1, 0] => a * b,
                _ => 0.0,
            };
            let coefficients = Matrix::from_fn(basis.len(), 1, |p, _| value(&basis.degrees()[p]) / basis.factor(p));
            let sobol = Sobol::new(&basis, &coefficients);
            let (va, vb, vab) = (a * a / 3.0, b * b / 3.0, a * a * b * b / 9.0);
            let sum = va + vb + vab;
            // Some ten roundings of parts of the sum.
            let bound = 16.0 * f64::EPSILON * sum;
            assert!((sobol.variance[0] - sum).abs() < bound, "{normalisation:?}");
            for (d, [first, total]) in [[va, va + vab], [vb, vb + vab], [0.0, 0.0]].into_iter().enumerate() {
                assert!((sobol.first[(d, 0)] - first).abs() < bound, "{normalisation:?} {d}");
                assert!((sobol.total[(d, 0)] - total).abs() < bound, "{normalisation:?} {d}");
            }
        }
    }

    #[test]
    fn indices_are_those_of_quadrature() {
        let scales =
            vec![InputScale { lower: 1.0, upper: 3.0, log: false }, InputScale { lower: 0.5, upper: 8.0, log: true }];
        for normalisation in ALL {
            let basis = Basis::new(scales.clone(), 4, normalisation);
            let coefficients = Matrix::from_fn(basis.len(), 2, |p, s| ((3 * p + 7 * s) as f64).sin());
            let sobol = Sobol::new(&basis, &coefficients);
            // Squares have degree 8 in each input: exact with 5 nodes.
            let (nodes, weights) = gauss_legendre(5);
            let x = Matrix::from_fn(25, 2, |i, d| {
                scales[d].at_fraction(0.5 * (nodes[if d == 0 { i / 5 } else { i % 5 }] + 1.0))
            });
            let (mut psi, mut eta) = (Matrix::default(), Matrix::default());
            basis.features(&x, &mut psi, &mut Vec::new());
            eta.set_product(&psi, &coefficients);
            for s in 0..2 {
                let value = |i: usize, j: usize| eta[(5 * i + j, s)];
                let average = |f: &dyn Fn(usize) -> f64| (0..5).map(|i| 0.5 * weights[i] * f(i)).sum::<f64>();
                let mean = average(&|i| average(&|j| value(i, j)));
                let variance = average(&|i| average(&|j| (value(i, j) - mean).powi(2)));
                let by = |f: &dyn Fn(usize, usize) -> f64| average(&|i| (average(&|j| f(i, j)) - mean).powi(2));
                let first = [by(&|i, j| value(i, j)), by(&|j, i| value(i, j))];
                for d in 0..2 {
                    let total = variance - first[1 - d];
                    // 25 terms, none above the largest squared value.
                    let most = eta.data().iter().map(|v| v * v).fold(0.0, f64::max);
                    let bound = 64.0 * 25.0 * f64::EPSILON * most;
                    assert!((sobol.first[(d, s)] - first[d]).abs() < bound);
                    assert!((sobol.total[(d, s)] - total).abs() < bound);
                }
            }
        }
    }
}
