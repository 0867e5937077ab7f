//! Which inputs an output depends on: Sobol' indices of its polynomial over the T-draws, with intervals that hold those of the simulator.

use super::TPosterior;
use crate::draws::Sorted;
use crate::matrix::Matrix;
use crate::simulate::design::{Method, unit_points};
use crate::stream::Stream;
use crate::surrogate::{Scratch, Sobol, Surrogate};

/// Which share of the variance an index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// What the input does by itself.
    First,
    /// That, and what it does together with others.
    Total,
}

/// Sobol' indices of one output.
///
/// Those of the simulator are not known for two reasons beside the T-draws:
///
/// - What the polynomial leaves open, sigma_A^2, belongs to some input, but which one is not known.
/// - An index is a sum of squares. Of hundreds of terms that may as well be noise no draw of such a sum is near zero, though the exact index may be.
///
/// So an interval is between two ends for each draw. With the variance `V_d` by input d and `W_d` by all else, and `V*`, `W*` of the terms alone whose sign is certain
/// with a probability of 97.5 %, the lower one is `V*_d / (V*_d + W_d + sigma_A^2)`, the upper one `(V_d + sigma_A^2) / (V_d + sigma_A^2 + W*_d)`.
pub struct Sensitivity {
    all: Sobol,
    certain: Sobol,
    /// sigma_A^2 of each draw, averaged over the inputs, in units of the coefficients.
    open: Vec<f64>,
    weights: Vec<f64>,
}

/// Probability of its sign from which on a term matters.
const CERTAIN: f64 = 0.975;

/// Whether draws of a coefficient, each with its weight, tell its sign.
pub(super) fn has_certain_sign(draws: impl Iterator<Item = (f64, f64)>) -> bool {
    let positive: f64 = draws.filter(|(value, _)| *value > 0.0).map(|(_, weight)| weight).sum();
    positive.max(1.0 - positive) > CERTAIN
}

impl Sensitivity {
    /// Number of inputs that have indices.
    pub fn n_inputs(&self) -> usize {
        self.all.first.rows()
    }

    /// Mean of an input's index over the T-draws, of the polynomial by itself. NaN where nothing varies.
    pub fn mean(&self, order: Order, d: usize) -> f64 {
        self.of_polynomial(order, d).zip(&self.weights).map(|(value, weight)| value * weight).sum()
    }

    /// Quantiles of an input's index: those below one half are of the lower ends, those above of the upper ends, and the median is the polynomial's.
    pub fn quantiles<const N: usize>(&self, order: Order, d: usize, probabilities: [f64; N]) -> [f64; N] {
        let parts = of(&self.certain, order, d).iter().zip(of(&self.all, order, d));
        let wholes = self.certain.variance.iter().zip(&self.all.variance);
        let ends = parts.zip(wholes).zip(&self.open).map(|(((certain, all), (certain_whole, whole)), open)| {
            let (lower, upper) = (certain / (certain + whole - all + open), all + open);
            (lower, upper / (upper + certain_whole - certain))
        });
        let (lower, upper): (Vec<f64>, Vec<f64>) = ends.unzip();
        let sorted = |values: Vec<f64>| Sorted::new(&values, &self.weights);
        let lower = sorted(lower);
        let middle = sorted(self.of_polynomial(order, d).collect());
        let upper = sorted(upper);
        probabilities.map(|p| match p {
            p if p < 0.5 => lower.quantile(p),
            p if p > 0.5 => upper.quantile(p),
            _ => middle.quantile(p),
        })
    }

    fn of_polynomial(&self, order: Order, d: usize) -> impl Iterator<Item = f64> {
        of(&self.all, order, d).iter().zip(&self.all.variance).map(|(part, all)| part / all)
    }
}

fn of(parts: &Sobol, order: Order, d: usize) -> &[f64] {
    match order {
        Order::First => parts.first.row(d),
        Order::Total => parts.total.row(d),
    }
}

impl TPosterior {
    /// Sobol' indices of an output, if its surrogate is a polynomial.
    pub fn sensitivity(&self, output: usize) -> Option<Sensitivity> {
        let trained = &self.outputs[output];
        let (surrogate, weights) = (&*trained.surrogate, self.draws.weights());
        let (coefficients, sigma_a) = self.output_draws(output);
        let all = Sobol::of(surrogate, &coefficients)?;
        let mut certain = coefficients.clone();
        for p in 0..certain.rows() {
            if !has_certain_sign(coefficients.row(p).iter().copied().zip(weights.iter().copied())) {
                certain.row_mut(p).fill(0.0);
            }
        }
        let certain = Sobol::of(surrogate, &certain)?;
        let sigma_a: Vec<f64> = sigma_a.iter().map(|sigma_a| sigma_a / trained.affine.1).collect();
        let open = mean_error_variances(surrogate, &coefficients, &sigma_a)?;
        Some(Sensitivity { all, certain, open, weights })
    }
}

/// The variance of the approximation error of a polynomial under each draw, on average over the inputs (and, of a series, over its coordinate).
fn mean_error_variances(surrogate: &dyn Surrogate, coefficients: &Matrix, sigma_a: &[f64]) -> Option<Vec<f64>> {
    // Where its logarithm is a polynomial of low degree in each input, points of a Sobol' sequence know the mean better than it is needed.
    const POINTS: usize = 1024;
    if let Some((series, components)) = surrogate.series().and_then(|series| Some((series, series.components()?))) {
        let squares = components.mean_squares();
        let of_scores =
            |s| series.error_variances(coefficients, s).iter().zip(&squares).map(|(v, square)| v * square).sum::<f64>();
        return Some((0..coefficients.cols()).map(|s| of_scores(s) + components.left_out()).collect());
    }
    let Some(field) = surrogate.error_field() else { return Some(sigma_a.iter().map(|s| s * s).collect()) };
    let scales = surrogate.basis()?.scales();
    let points = unit_points(Method::Sobol, POINTS, scales.len(), Stream::root(0)).ok()?;
    let x = Matrix::from_fn(points.len(), scales.len(), |i, d| scales[d].at_fraction(points[i][d]));
    let mut sds = Matrix::default();
    field.sds(&x, coefficients, sigma_a, &mut sds, &mut Scratch::default());
    let mean = |s| (0..x.rows()).map(|i| sds[(i, s)] * sds[(i, s)]).sum::<f64>() / x.rows() as f64;
    Some((0..sigma_a.len()).map(mean).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::surrogate::{InputScale, Normalisation, PolynomialChaos, VaryingError};
    use std::sync::Arc;

    #[test]
    fn a_varying_error_has_its_mean_square() {
        let scales = vec![InputScale { lower: -2.0, upper: 3.0, log: false }];
        let prior = "normal(0, 1)".parse().unwrap();
        let polynomial = PolynomialChaos::new(1, Normalisation::Orthonormal, prior, scales.clone());
        let surrogate = VaryingError::new(Arc::new(polynomial), 1, &"normal(0, 0.5)".parse().unwrap(), &scales);
        let (sigma_a, a) = ([0.1, 0.7], [0.4, -0.3]);
        let coefficients = Matrix::from_fn(3, 2, |p, s| if p == 2 { a[s] } else { 1.0 });
        let found = mean_error_variances(&surrogate, &coefficients, &sigma_a).unwrap();
        for s in 0..2 {
            // log sigma_A = log sigma_a + a sqrt(3) u, and the mean of exp(k u) over [-1, 1] is sinh(k) / k.
            let k = 2.0 * 3.0_f64.sqrt() * a[s];
            let square = sigma_a[s] * sigma_a[s];
            // The first 1024 points have a star discrepancy of 1/1024, which times the variation bounds the error.
            let bound = square * 2.0 * k.abs().sinh() / 1024.0;
            assert!((found[s] - square * k.sinh() / k).abs() <= bound, "{} {}", found[s], square * k.sinh() / k);
        }
    }
}
