//! Surrogates of the program that calls this library: functions of inputs and draws, in any way they were made.

use super::{InputScale, Scratch, Surrogate};
use crate::error::Result;
use crate::matrix::Matrix;
use crate::prior::Marginal;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Step of a central difference as a share of the input's range: truncation errors are of the order of its square, and values of
/// single precision still have three digits of their difference.
const STEP: f64 = 1e-3;

/// A surrogate that the calling program evaluates, and may train.
///
/// It may be called from several threads at once. It has no way to refuse: what it cannot compute is NaN, and it asks the work to stop
/// by the monitor's `proceed`.
pub trait SurrogateFunction: Send + Sync {
    /// What it is called in text.
    fn name(&self) -> String;

    /// Changes whenever what it gives may have changed.
    fn fingerprint(&self) -> String;

    /// Whether [`BoundSurrogate::pull`] is its own; otherwise it is never called.
    fn has_gradient(&self) -> bool;

    /// Whether [`SurrogateFunction::train`] follows the training set.
    fn is_trained(&self) -> bool;

    /// The T-step: draws given the training rows `x` and their values `z` on the scale that the surrogate models. About `n_draws` are
    /// wanted; one that is not trained has the draws that it has.
    ///
    /// # Errors
    /// Why there are none.
    fn train(&self, x: &Matrix, z: &[f64], n_draws: usize, seed: u64) -> Result<FunctionDraws>;

    /// The surrogate with the draws `c` of these parameters, P x S.
    fn bind(&self, parameters: &[String], c: &Matrix) -> Arc<dyn BoundSurrogate>;
}

/// A surrogate together with S draws.
pub trait BoundSurrogate: Send + Sync {
    /// `eta[i, s] = M~(x_i, c_s)`. Overwrites `eta`, which has N x S values.
    fn predict(&self, x: &Matrix, eta: &mut Matrix);

    /// `x_bar[i, d] += sum_s eta_bar[i, s] dM~(x_i, c_s) / dx_id`.
    fn pull(&self, x: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix);
}

/// Draws of a surrogate's parameters.
pub struct FunctionDraws {
    /// Names of the P parameters.
    pub names: Vec<String>,
    /// P x S values.
    pub values: Matrix,
    /// Log-weight of each draw, up to a constant.
    pub log_weights: Vec<f64>,
    /// Approximation error of each draw, where the surrogate has one.
    pub sigma_a: Option<Vec<f64>>,
}

/// A surrogate that studies share; equal where its fingerprint is.
#[derive(Clone)]
pub struct SharedSurrogate(Arc<dyn SurrogateFunction>);

impl SharedSurrogate {
    /// Shares a surrogate.
    pub fn new(surrogate: impl SurrogateFunction + 'static) -> Self {
        Self(Arc::new(surrogate))
    }
}

impl Deref for SharedSurrogate {
    type Target = dyn SurrogateFunction;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for SharedSurrogate {
    // Fingerprints of studies are made of this text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedSurrogate").field(&self.name()).field(&self.fingerprint()).finish()
    }
}

impl PartialEq for SharedSurrogate {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name() && self.fingerprint() == other.fingerprint()
    }
}

/// A function as a [`Surrogate`] of these parameters: without priors, so that it is trained by itself.
pub struct Function {
    function: SharedSurrogate,
    parameters: Vec<String>,
    scales: Vec<InputScale>,
    bound: Option<Arc<dyn BoundSurrogate>>,
}

impl Function {
    /// A function of inputs with these scales.
    pub fn new(function: SharedSurrogate, parameters: &[String], scales: &[InputScale]) -> Self {
        Self { function, parameters: parameters.to_vec(), scales: scales.to_vec(), bound: None }
    }

    fn bound(&self, c: &Matrix) -> Arc<dyn BoundSurrogate> {
        self.bound.clone().unwrap_or_else(|| self.function.bind(&self.parameters, c))
    }

    /// Central differences within the range, all in one call.
    fn differences(&self, bound: &dyn BoundSurrogate, x: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix) {
        let (n, dim) = (x.rows(), x.cols());
        let moved = |i: usize, d: usize, up: bool| {
            let InputScale { lower, upper, log } = self.scales[d];
            let x = x[(i, d)];
            let step = if log { x * (STEP * (upper / lower).ln()).exp_m1() } else { STEP * (upper - lower) };
            // Outside of its range a surrogate need not have a value.
            if up { (x + step).min(upper.max(x)) } else { (x - step).max(lower.min(x)) }
        };
        let place = |row: usize| (row / (2 * dim), row / 2 % dim, row % 2 == 1);
        let shifted = Matrix::from_fn(2 * n * dim, dim, |row, e| {
            let (i, d, up) = place(row);
            if e == d { moved(i, d, up) } else { x[(i, e)] }
        });
        let mut eta = Matrix::zeros(shifted.rows(), eta_bar.cols());
        bound.predict(&shifted, &mut eta);
        for i in 0..n {
            for d in 0..dim {
                let (down, up) = (2 * (i * dim + d), 2 * (i * dim + d) + 1);
                let rise = eta.row(up).iter().zip(eta.row(down)).zip(eta_bar.row(i)).map(|((u, l), b)| b * (u - l));
                x_bar[(i, d)] += rise.sum::<f64>() / (shifted[(up, d)] - shifted[(down, d)]);
            }
        }
    }
}

impl Surrogate for Function {
    fn names(&self) -> &[String] {
        &self.parameters
    }

    fn priors(&self) -> &[Marginal] {
        &[]
    }

    fn predict(&self, x: &Matrix, c: &Matrix, eta: &mut Matrix, _: &mut Scratch) {
        eta.reshape(x.rows(), c.cols());
        self.bound(c).predict(x, eta);
    }

    fn pull_to_inputs(&self, x: &Matrix, c: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix, _: &mut Scratch) {
        let bound = self.bound(c);
        if self.has_gradient() {
            bound.pull(x, eta_bar, x_bar);
        } else {
            self.differences(&*bound, x, eta_bar, x_bar);
        }
    }

    fn pull_to_coefficients(&self, _: &Matrix, _: &Matrix, _: &Matrix, _: &mut Matrix, _: &mut Scratch) {}

    fn has_gradient(&self) -> bool {
        self.function.has_gradient()
    }

    fn for_draws(&self, c: &Matrix) -> Option<Arc<dyn Surrogate>> {
        let bound = Some(self.function.bind(&self.parameters, c));
        let (function, parameters, scales) = (self.function.clone(), self.parameters.clone(), self.scales.clone());
        Some(Arc::new(Self { function, parameters, scales, bound }))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::{Normalisation, PolynomialChaos, conformance};
    use super::*;

    /// A polynomial that is called as a function.
    #[derive(Clone)]
    pub(crate) struct Wrapped {
        pub(crate) polynomial: Arc<PolynomialChaos>,
        pub(crate) gradient: bool,
        pub(crate) draws: Option<(Matrix, Vec<f64>)>,
    }

    impl Wrapped {
        pub(crate) fn new(degree: usize, scales: &[InputScale], gradient: bool) -> Self {
            let prior = "normal(0, 1)".parse().unwrap();
            let polynomial = PolynomialChaos::new(degree, Normalisation::Orthonormal, prior, scales.to_vec());
            Self { polynomial: Arc::new(polynomial), gradient, draws: None }
        }
    }

    struct WithDraws(Wrapped, Matrix);

    impl SurrogateFunction for Wrapped {
        fn name(&self) -> String {
            "polynomial".into()
        }

        fn fingerprint(&self) -> String {
            format!("{} {:?}", self.polynomial.names().len(), self.draws)
        }

        fn has_gradient(&self) -> bool {
            self.gradient
        }

        fn is_trained(&self) -> bool {
            false
        }

        fn train(&self, _: &Matrix, _: &[f64], _: usize, _: u64) -> Result<FunctionDraws> {
            let (values, sigma_a) = self.draws.clone().unwrap();
            let log_weights = vec![0.0; values.cols()];
            Ok(FunctionDraws { names: self.polynomial.names().to_vec(), values, log_weights, sigma_a: Some(sigma_a) })
        }

        fn bind(&self, parameters: &[String], c: &Matrix) -> Arc<dyn BoundSurrogate> {
            assert_eq!(parameters, self.polynomial.names());
            Arc::new(WithDraws(self.clone(), c.clone()))
        }
    }

    impl BoundSurrogate for WithDraws {
        fn predict(&self, x: &Matrix, eta: &mut Matrix) {
            self.0.polynomial.predict(x, &self.1, eta, &mut Scratch::default());
        }

        fn pull(&self, x: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix) {
            assert!(self.0.gradient);
            self.0.polynomial.pull_to_inputs(x, &self.1, eta_bar, x_bar, &mut Scratch::default());
        }
    }

    const SCALES: [InputScale; 2] =
        [InputScale { lower: -1.0, upper: 3.0, log: false }, InputScale { lower: 0.5, upper: 2.0, log: false }];

    fn function(wrapped: &Wrapped) -> Function {
        Function::new(SharedSurrogate::new(wrapped.clone()), wrapped.polynomial.names(), &SCALES)
    }

    fn coefficients(rows: usize) -> Matrix {
        Matrix::from_fn(rows, 3, |p, s| ((3 * p + s) as f64 * 0.618).fract() - 0.5)
    }

    #[test]
    fn a_function_conforms() {
        let wrapped = Wrapped::new(3, &SCALES, true);
        let c = coefficients(wrapped.polynomial.names().len());
        let bounds = SCALES.map(|scale| (scale.lower, scale.upper));
        conformance::check_draws(&function(&wrapped), &bounds, &c).unwrap();
        let bound = function(&wrapped).for_draws(&c).unwrap();
        assert_eq!(bound.names(), wrapped.polynomial.names());
    }

    #[test]
    fn without_a_gradient_differences_stand_in_even_at_the_ends_of_a_range() {
        let (with, without) = (Wrapped::new(3, &SCALES, true), Wrapped::new(3, &SCALES, false));
        let c = coefficients(with.polynomial.names().len());
        let x = Matrix::from_rows(3, 2, vec![-1.0, 0.5, 0.7, 1.1, 3.0, 2.0]);
        let eta_bar = Matrix::from_fn(3, 3, |i, s| (i as f64 - s as f64) / 3.0 + 0.1);
        let pulled = |wrapped: &Wrapped| {
            let mut x_bar = Matrix::zeros(3, 2);
            function(wrapped).pull_to_inputs(&x, &c, &eta_bar, &mut x_bar, &mut Scratch::default());
            x_bar
        };
        let (exact, differences) = (pulled(&with), pulled(&without));
        // One-sided at the ends: half a step of STEP times the range (2 in scaled units) times second derivatives, which for
        // degree 3 stay below 200 times the sum of coefficients of at most 1/2 by 10 terms, weights of at most 1 by 3 draws.
        let bound = STEP * 200.0 * 5.0 * 3.0;
        for (exact, difference) in exact.data().iter().zip(differences.data()) {
            assert!((exact - difference).abs() <= bound, "{exact} {difference}");
        }
        // In the middle truncation is of second order.
        assert!((exact[(1, 0)] - differences[(1, 0)]).abs() <= STEP * bound);
    }
}
