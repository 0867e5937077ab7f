//! Maps a formula of inputs and of parameters with priors to a surrogate with gradients from symbolic derivatives.

use super::{Scratch, Surrogate};
use crate::error::{Error, Result};
use crate::expression::{Argument, Expression};
use crate::matrix::Matrix;
use crate::prior::Marginal;

/// A surrogate written as a formula, e.g. `alpha / (1 + exp(-beta*(omega - gamma))) + delta`; its parameters are the
/// coefficients. See [`Expression`] for what a formula may hold.
#[derive(Debug)]
pub struct Formula {
    names: Vec<String>,
    priors: Vec<Marginal>,
    n_inputs: usize,
    value: Expression,
    /// Partial derivatives by the inputs that occur, with their indices.
    by_inputs: Vec<(usize, Expression)>,
    /// Partial derivatives by the parameters, in their order.
    by_coefficients: Vec<Expression>,
    /// Whether no derivative by a parameter depends on a parameter.
    is_linear: bool,
}

impl Formula {
    /// The surrogate `text` of `inputs`, in the order of the columns of x, and of `parameters` with their priors, in
    /// the order of the rows of c. Inputs need not occur.
    ///
    /// # Errors
    /// A name in the formula that is neither input nor parameter, a parameter that the formula does not depend on, a
    /// name used twice, a formula that cannot be read.
    pub fn new(text: &str, inputs: &[String], parameters: Vec<(String, Marginal)>) -> Result<Self> {
        let (names, priors): (Vec<String>, Vec<Marginal>) = parameters.into_iter().unzip();
        let variables: Vec<&str> = inputs.iter().chain(&names).map(String::as_str).collect();
        let n_inputs = inputs.len();
        for (k, name) in names.iter().enumerate() {
            if variables[..n_inputs + k].contains(&name.as_str()) {
                let other = if inputs.contains(name) { "an input" } else { "another parameter" };
                let found = format!("has the name of {other}");
                return Err(Error::invalid(format!("surrogate parameter `{name}`"), found, "rename one of them"));
            }
        }
        let value = Expression::parse(text, &variables)?;
        let used = value.variables_used();
        if let Some(name) = (n_inputs..variables.len()).find(|k| !used.contains(k)).map(|k| variables[k]) {
            let found = format!("the formula `{text}` does not depend on it");
            return Err(Error::invalid(format!("surrogate parameter `{name}`"), found, "use it there or remove it"));
        }
        let by_inputs = used.iter().filter(|k| **k < n_inputs);
        let by_inputs = by_inputs.map(|k| Ok((*k, value.derivative(variables[*k])?))).collect::<Result<_>>()?;
        let by_coefficients: Vec<Expression> =
            names.iter().map(|name| value.derivative(name)).collect::<Result<_>>()?;
        let is_linear = by_coefficients.iter().all(|d| d.variables_used().iter().all(|k| *k < n_inputs));
        Ok(Self { names, priors, n_inputs, value, by_inputs, by_coefficients, is_linear })
    }

    /// `out[s]` = `expression` at point `i` of `x` and draw `s` of `c`.
    fn eval(&self, expression: &Expression, x: &Matrix, i: usize, c: &Matrix, out: &mut [f64], values: &mut Vec<f64>) {
        let argument = |k: usize| match k.checked_sub(self.n_inputs) {
            None => Argument::Scalar(x[(i, k)]),
            Some(p) => Argument::Slice(c.row(p)),
        };
        expression.eval(argument, out, values);
    }

    /// The same for one draw at all points, whose inputs are the rows of `columns`.
    fn eval_points(
        &self,
        expression: &Expression,
        columns: &Matrix,
        c: &Matrix,
        out: &mut [f64],
        values: &mut Vec<f64>,
    ) {
        let argument = |k: usize| match k.checked_sub(self.n_inputs) {
            None => Argument::Slice(columns.row(k)),
            Some(p) => Argument::Scalar(c[(p, 0)]),
        };
        expression.eval(argument, out, values);
    }
}

/// The inputs in rows, for evaluation at all points at once where there is one draw.
fn columns<'a>(x: &Matrix, transposed: &'a mut Matrix) -> &'a Matrix {
    transposed.reshape(x.cols(), x.rows());
    for d in 0..x.cols() {
        for i in 0..x.rows() {
            transposed[(d, i)] = x[(i, d)];
        }
    }
    transposed
}

/// `eta_bar` times the derivative, or 0 where the derivative is NaN or the draw has no weight.
///
/// Derivatives are finite in saturated tails, see [`Expression::derivative`]. What is NaN nonetheless, such as inf -
/// inf or the derivative of a logarithm of a negative number, has no direction to offer; where it means that the
/// surrogate is undefined, its value says so. And an infinite derivative must not turn a draw of no weight into NaN.
fn contribution(eta_bar: f64, derivative: f64) -> f64 {
    if derivative.is_nan() || eta_bar == 0.0 { 0.0 } else { eta_bar * derivative }
}

/// The first scratch matrix as a row of S values, and the registers.
fn buffers(scratch: &mut Scratch, n_draws: usize) -> (&mut [f64], &mut Vec<f64>) {
    let derivative = &mut scratch.matrices[0];
    derivative.reshape(1, n_draws);
    (derivative.row_mut(0), &mut scratch.values)
}

impl Surrogate for Formula {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn priors(&self) -> &[Marginal] {
        &self.priors
    }

    fn predict(&self, x: &Matrix, c: &Matrix, eta: &mut Matrix, scratch: &mut Scratch) {
        eta.reshape(x.rows(), c.cols());
        if c.cols() == 1 {
            let columns = columns(x, &mut scratch.matrices[1]);
            return self.eval_points(&self.value, columns, c, eta.data_mut(), &mut scratch.values);
        }
        for i in 0..x.rows() {
            self.eval(&self.value, x, i, c, eta.row_mut(i), &mut scratch.values);
        }
    }

    fn pull_to_inputs(&self, x: &Matrix, c: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix, scratch: &mut Scratch) {
        let (derivative, values) = buffers(scratch, c.cols());
        for (d, expression) in &self.by_inputs {
            for i in 0..x.rows() {
                self.eval(expression, x, i, c, derivative, values);
                let terms =
                    eta_bar.row(i).iter().zip(&*derivative).map(|(eta_bar, slope)| contribution(*eta_bar, *slope));
                x_bar[(i, *d)] = terms.fold(x_bar[(i, *d)], |sum, term| sum + term);
            }
        }
    }

    fn pull_to_coefficients(
        &self,
        x: &Matrix,
        c: &Matrix,
        eta_bar: &Matrix,
        c_bar: &mut Matrix,
        scratch: &mut Scratch,
    ) {
        if c.cols() == 1 {
            let Scratch { matrices: [derivative, transposed], values, .. } = scratch;
            let columns = columns(x, transposed);
            derivative.reshape(1, x.rows());
            for (p, expression) in self.by_coefficients.iter().enumerate() {
                self.eval_points(expression, columns, c, derivative.row_mut(0), values);
                for (eta_bar, slope) in eta_bar.data().iter().zip(derivative.row(0)) {
                    c_bar[(p, 0)] += contribution(*eta_bar, *slope);
                }
            }
            return;
        }
        let (derivative, values) = buffers(scratch, c.cols());
        for (p, expression) in self.by_coefficients.iter().enumerate() {
            for i in 0..x.rows() {
                self.eval(expression, x, i, c, derivative, values);
                for ((c_bar, eta_bar), slope) in c_bar.row_mut(p).iter_mut().zip(eta_bar.row(i)).zip(&*derivative) {
                    *c_bar += contribution(*eta_bar, *slope);
                }
            }
        }
    }

    fn linear(&self, x: &Matrix) -> Option<(Vec<f64>, Matrix)> {
        if !self.is_linear {
            return None;
        }
        let zero = Matrix::zeros(self.names.len(), 1);
        let mut registers = Vec::new();
        let mut at = |expression: &Expression, i: usize| {
            let mut out = [0.0];
            self.eval(expression, x, i, &zero, &mut out, &mut registers);
            out[0]
        };
        let offset = (0..x.rows()).map(|i| at(&self.value, i)).collect();
        let features = Matrix::from_fn(x.rows(), self.names.len(), |i, p| at(&self.by_coefficients[p], i));
        Some((offset, features))
    }

    fn is_affine_in(&self, n_inputs: usize) -> bool {
        let slopes = self.by_inputs.iter().filter(|(d, _)| *d < n_inputs);
        slopes.flat_map(|(_, slope)| slope.variables_used()).all(|variable| variable >= n_inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGISTIC: &str = "alpha / (1 + exp(-beta*(omega - gamma))) + delta";
    const N_POINTS: usize = 7;
    const N_DRAWS: usize = 70;

    fn formula(text: &str, inputs: &[&str], parameters: &[&str]) -> Result<Formula> {
        let inputs: Vec<String> = inputs.iter().map(|name| (*name).to_owned()).collect();
        Formula::new(
            text,
            &inputs,
            parameters.iter().map(|name| ((*name).to_owned(), "normal(0, 1)".parse().unwrap())).collect(),
        )
    }

    fn logistic() -> Formula {
        formula(LOGISTIC, &["unused", "omega"], &["alpha", "beta", "gamma", "delta"]).unwrap()
    }

    /// The fractional parts of multiples of the golden ratio: evenly spread numbers in [0, 1).
    fn spread(k: usize) -> f64 {
        (k as f64 * 0.618_033_988_749_894_9).fract()
    }

    /// Points with omega in [-2, 2], draws with alpha, beta, gamma, delta in [0.5, 1.5], cotangents in [-1, 1].
    fn data() -> (Matrix, Matrix, Matrix) {
        let x = Matrix::from_fn(N_POINTS, 2, |i, d| 4.0 * spread(2 * i + d) - 2.0);
        let c = Matrix::from_fn(4, N_DRAWS, |p, s| 0.5 + spread(100 + 4 * s + p));
        let eta_bar = Matrix::from_fn(N_POINTS, N_DRAWS, |i, s| 2.0 * spread(1000 + i * N_DRAWS + s) - 1.0);
        (x, c, eta_bar)
    }

    /// Value and derivatives by omega, alpha, beta, gamma, delta.
    fn closed_form(omega: f64, c: &[f64]) -> [f64; 6] {
        let z = c[1] * (omega - c[2]);
        let p = 1.0 / (1.0 + (-z).exp());
        let slope = c[0] * p * (1.0 / (1.0 + z.exp()));
        [c[0] * p + c[3], slope * c[1], p, slope * (omega - c[2]), -slope * c[1], 1.0]
    }

    #[test]
    fn the_logistic_follows_its_closed_form() {
        let (surrogate, (x, c, eta_bar), mut scratch) = (logistic(), data(), Scratch::default());
        assert_eq!(surrogate.names(), ["alpha", "beta", "gamma", "delta"]);
        assert_eq!(surrogate.priors().len(), 4);
        let mut eta = Matrix::zeros(1, 1);
        let (mut x_bar, mut c_bar) = (Matrix::zeros(N_POINTS, 2), Matrix::zeros(4, N_DRAWS));
        surrogate.predict(&x, &c, &mut eta, &mut scratch);
        surrogate.pull_to_inputs(&x, &c, &eta_bar, &mut x_bar, &mut scratch);
        surrogate.pull_to_coefficients(&x, &c, &eta_bar, &mut c_bar, &mut scratch);
        assert_eq!((eta.rows(), eta.cols()), (N_POINTS, N_DRAWS));
        // |z| < 6 turns the rounding of z into at most 6 ulps of exp(z); with the up to 20 roundings of either side,
        // 64 ulps of terms below 1.5 * max(1, |omega - gamma|) < 6. A sum of n such terms adds n roundings.
        let tolerance = |n: usize| 6.0 * (64 + n) as f64 * n as f64 * f64::EPSILON;
        let (mut x_expected, mut c_expected) = (Matrix::zeros(N_POINTS, 2), Matrix::zeros(4, N_DRAWS));
        for i in 0..N_POINTS {
            for s in 0..N_DRAWS {
                let [value, by_omega, by_c @ ..] = closed_form(x[(i, 1)], &c.col(s));
                assert!((eta[(i, s)] - value).abs() <= tolerance(1));
                x_expected[(i, 1)] += eta_bar[(i, s)] * by_omega;
                for (p, derivative) in by_c.into_iter().enumerate() {
                    c_expected[(p, s)] += eta_bar[(i, s)] * derivative;
                }
            }
        }
        assert!(x_bar.data().iter().zip(x_expected.data()).all(|(a, b)| (a - b).abs() <= tolerance(N_DRAWS)));
        assert!(c_bar.data().iter().zip(c_expected.data()).all(|(a, b)| (a - b).abs() <= tolerance(N_POINTS)));
        assert!(x_bar.col(0).iter().all(|value| *value == 0.0), "the unused input has no gradient");
    }

    #[test]
    fn gradients_agree_with_central_differences() {
        let (_, c, eta_bar) = data();
        let x = Matrix::from_fn(N_POINTS, 2, |i, d| 0.5 + spread(2 * i + d));
        let text = "a*sqrt(v)*sin(u*b) + log(v + c^2)*tanh(u - d)/v^b + abs(u - 7)";
        let surrogate = formula(text, &["u", "v"], &["a", "b", "c", "d"]).unwrap();
        let mut scratch = Scratch::default();
        let (mut x_bar, mut c_bar) = (Matrix::zeros(N_POINTS, 2), Matrix::zeros(4, N_DRAWS));
        surrogate.pull_to_inputs(&x, &c, &eta_bar, &mut x_bar, &mut scratch);
        surrogate.pull_to_coefficients(&x, &c, &eta_bar, &mut c_bar, &mut scratch);
        // Sum of eta_bar * eta, and of the magnitudes of its terms.
        let mut objective = |x: &Matrix, c: &Matrix| {
            let mut eta = Matrix::default();
            surrogate.predict(x, c, &mut eta, &mut scratch);
            let terms = eta.data().iter().zip(eta_bar.data()).map(|(eta, eta_bar)| eta * eta_bar);
            terms.fold((0.0, 0.0), |(sum, size), term: f64| (sum + term, size + term.abs()))
        };
        // Truncation h^2 and rounding eps / h balance at h = eps^(1/3). The step 2h has four times the truncation of h,
        // so their difference bounds it threefold. Rounding: every term by 20 operations, and a sum of n by n more.
        let h = f64::EPSILON.cbrt();
        let (_, size) = objective(&x, &c);
        let rounding = (20 + N_POINTS * N_DRAWS) as f64 * f64::EPSILON * size / h;
        let mut check = |derivative: f64, shift: &dyn Fn(f64) -> (Matrix, Matrix)| {
            let mut difference = |h: f64| {
                let ((x_up, c_up), (x_down, c_down)) = (shift(h), shift(-h));
                (objective(&x_up, &c_up).0 - objective(&x_down, &c_down).0) / (2.0 * h)
            };
            let (near, far) = (difference(h), difference(2.0 * h));
            assert!((derivative - near).abs() <= (far - near).abs() + rounding, "{derivative}, {near}");
            assert!(derivative.abs() > 100.0 * rounding || derivative.abs() < 0.1, "the test decides nothing");
        };
        for i in 0..N_POINTS {
            for d in 0..2 {
                check(x_bar[(i, d)], &|h| {
                    let mut x = x.clone();
                    x[(i, d)] += h;
                    (x, c.clone())
                });
            }
        }
        for s in [0, 17, N_DRAWS - 1] {
            for p in 0..4 {
                check(c_bar[(p, s)], &|h| {
                    let mut c = c.clone();
                    c[(p, s)] += h;
                    (x.clone(), c)
                });
            }
        }
    }

    #[test]
    fn a_batch_equals_its_columns_bit_for_bit() {
        let (surrogate, (x, c, eta_bar), mut scratch) = (logistic(), data(), Scratch::default());
        let mut eta = Matrix::default();
        // Not zero: both pulls add.
        let (mut x_bar, mut c_bar) =
            (Matrix::from_fn(N_POINTS, 2, |_, _| 0.1), Matrix::from_fn(4, N_DRAWS, |_, _| 0.1));
        let mut x_bar_by_columns = x_bar.clone();
        surrogate.predict(&x, &c, &mut eta, &mut scratch);
        surrogate.pull_to_inputs(&x, &c, &eta_bar, &mut x_bar, &mut scratch);
        surrogate.pull_to_coefficients(&x, &c, &eta_bar, &mut c_bar, &mut scratch);
        for s in 0..N_DRAWS {
            let (c, eta_bar) = (c.select_cols(&[s]), eta_bar.select_cols(&[s]));
            let (mut eta_column, mut c_bar_column) = (Matrix::default(), Matrix::from_fn(4, 1, |_, _| 0.1));
            surrogate.predict(&x, &c, &mut eta_column, &mut scratch);
            surrogate.pull_to_inputs(&x, &c, &eta_bar, &mut x_bar_by_columns, &mut scratch);
            surrogate.pull_to_coefficients(&x, &c, &eta_bar, &mut c_bar_column, &mut scratch);
            assert_eq!(eta_column, eta.select_cols(&[s]));
            assert_eq!(c_bar_column, c_bar.select_cols(&[s]));
        }
        assert_eq!(x_bar, x_bar_by_columns);
    }

    #[test]
    fn saturated_tails_have_finite_values_and_no_slope() {
        let (surrogate, mut scratch) = (logistic(), Scratch::default());
        // beta (omega - gamma) = -800, 800: exp(800) overflows, exp(-800) underflows.
        let x = Matrix::from_rows(2, 2, vec![0.0, -800.0, 0.0, 800.0]);
        let c = Matrix::from_rows(4, 1, vec![2.0, 1.0, 0.0, 0.25]);
        let eta_bar = Matrix::from_rows(2, 1, vec![1.0, 0.0]);
        let mut eta = Matrix::default();
        surrogate.predict(&x, &c, &mut eta, &mut scratch);
        assert_eq!(eta.data(), [0.25, 2.25]);
        let (mut x_bar, mut c_bar) = (Matrix::zeros(2, 2), Matrix::zeros(4, 1));
        surrogate.pull_to_inputs(&x, &c, &eta_bar, &mut x_bar, &mut scratch);
        surrogate.pull_to_coefficients(&x, &c, &eta_bar, &mut c_bar, &mut scratch);
        assert_eq!(x_bar.data(), [0.0; 4]);
        assert_eq!(c_bar.data(), [0.0, 0.0, 0.0, 1.0]);
        // An undefined logarithm shows in the value and adds nothing to the gradient.
        let undefined = formula("a*log(omega)", &["unused", "omega"], &["a"]).unwrap();
        let (c, mut c_bar) = (Matrix::from_rows(1, 1, vec![2.0]), Matrix::from_rows(1, 1, vec![0.5]));
        undefined.predict(&x, &c, &mut eta, &mut scratch);
        undefined.pull_to_coefficients(&x, &c, &eta_bar, &mut c_bar, &mut scratch);
        assert!(eta[(0, 0)].is_nan() && c_bar[(0, 0)] == 0.5);
        // The slope of sqrt at 0 is infinite: it counts with weight, and not without.
        let root = formula("a*sqrt(u)", &["u"], &["a"]).unwrap();
        let (x, c) = (Matrix::zeros(2, 1), Matrix::from_rows(1, 1, vec![1.0]));
        let mut x_bar = Matrix::zeros(2, 1);
        root.pull_to_inputs(&x, &c, &eta_bar, &mut x_bar, &mut scratch);
        assert_eq!(x_bar.data(), [f64::INFINITY, 0.0]);
    }

    #[test]
    fn names_must_fit() {
        for (text, inputs, parameters, expected) in [
            ("a*u", ["u"], vec!["a", "b"], "surrogate parameter `b`: the formula `a*u` does not depend on it"),
            ("a*u", ["u"], vec!["a", "u"], "surrogate parameter `u`: has the name of an input"),
            ("a*u", ["u"], vec!["a", "a"], "surrogate parameter `a`: has the name of another parameter"),
            ("alfa*u", ["u"], vec!["alpha"], "unknown name `alfa`; did you mean `alpha`? known variables: u, alpha"),
            ("a*(u", ["u"], vec!["a"], "`(` at column 3 is never closed"),
        ] {
            let message = formula(text, &inputs, &parameters).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
