//! Checks that every surrogate must pass, ours and a user's own: derivatives, batching, linearity.

use super::{Scratch, Surrogate};
use crate::error::{Error, Result};
use crate::matrix::Matrix;
use crate::stream::Stream;
use rand::RngExt;

/// Runs every check at five points within `bounds` (one pair per input) and three draws from the prior.
///
/// - `predict` of a batch equals `predict` of each draw alone;
/// - `pull_to_inputs` and `pull_to_coefficients` agree with central differences;
/// - `linear`, where offered, reproduces `predict`;
/// - inputs that `is_affine_in` names leave no second difference.
///
/// # Errors
/// Names the first check that failed, with the numbers.
pub fn check(surrogate: &dyn Surrogate, bounds: &[(f64, f64)]) -> Result<()> {
    let mut rng = Stream::root(1).named("conformance").named("draws").rng();
    let priors = surrogate.priors();
    let c = Matrix::from_fn(priors.len(), 3, |p, _| priors[p].sample(&mut rng));
    if surrogate.names().len() != priors.len() {
        return fail("names", format!("{} names but {} priors", surrogate.names().len(), priors.len()));
    }
    check_draws(surrogate, bounds, &c)
}

/// As [`check`], with three draws of one's own: a surrogate without priors is not asked for `pull_to_coefficients`.
///
/// # Errors
/// As for [`check`].
pub fn check_draws(surrogate: &dyn Surrogate, bounds: &[(f64, f64)], c: &Matrix) -> Result<()> {
    let mut rng = Stream::root(1).named("conformance").rng();
    // Away from the bounds, so that differences stay inside.
    let x = Matrix::from_fn(5, bounds.len(), |_, d| {
        let (lower, upper) = bounds[d];
        lower + (0.1 + 0.8 * rng.random::<f64>()) * (upper - lower)
    });
    let n_coefficients = surrogate.priors().len();
    let eta_bar = Matrix::from_fn(5, 3, |_, _| 2.0 * rng.random::<f64>() - 1.0);
    let eta = predict(surrogate, &x, c);
    batching(surrogate, &x, c, &eta)?;
    linearity(surrogate, &x, c, &eta)?;
    affinity(surrogate, bounds, &x, c)?;

    let mut x_bar = Matrix::zeros(5, bounds.len());
    surrogate.pull_to_inputs(&x, c, &eta_bar, &mut x_bar, &mut Scratch::default());
    for d in 0..bounds.len() {
        // One direction per input: all points are moved at once, each with its own weight.
        let exact: f64 = (0..5).map(|i| x_bar[(i, d)]).sum();
        let scale = bounds[d].1 - bounds[d].0;
        difference(exact, scale, &format!("pull_to_inputs, input {d}"), |h| {
            let moved = Matrix::from_fn(5, bounds.len(), |i, e| x[(i, e)] + if e == d { h } else { 0.0 });
            weighted(&predict(surrogate, &moved, c), &eta_bar)
        })?;
    }
    let mut c_bar = Matrix::zeros(n_coefficients, 3);
    surrogate.pull_to_coefficients(&x, c, &eta_bar, &mut c_bar, &mut Scratch::default());
    for p in 0..n_coefficients {
        let exact: f64 = c_bar.row(p).iter().sum();
        let scale = c.row(p).iter().fold(1e-3, |m: f64, v| m.max(v.abs()));
        difference(exact, scale, &format!("pull_to_coefficients, {}", surrogate.names()[p]), |h| {
            let moved = Matrix::from_fn(n_coefficients, 3, |q, s| c[(q, s)] + if q == p { h } else { 0.0 });
            weighted(&predict(surrogate, &x, &moved), &eta_bar)
        })?;
    }
    Ok(())
}

fn fail(check: &str, found: String) -> Result<()> {
    Err(Error::invalid(format!("surrogate conformance, {check}"), found, "correct the surrogate's code"))
}

fn predict(surrogate: &dyn Surrogate, x: &Matrix, c: &Matrix) -> Matrix {
    let mut eta = Matrix::default();
    surrogate.predict(x, c, &mut eta, &mut Scratch::default());
    eta
}

/// Sum of `eta * eta_bar`, and of its absolute terms for the rounding bound.
fn weighted(eta: &Matrix, eta_bar: &Matrix) -> (f64, f64) {
    let terms = || eta.data().iter().zip(eta_bar.data()).map(|(e, b)| e * b);
    (terms().sum(), terms().map(f64::abs).sum())
}

fn batching(surrogate: &dyn Surrogate, x: &Matrix, c: &Matrix, eta: &Matrix) -> Result<()> {
    for s in 0..c.cols() {
        let alone = predict(surrogate, x, &c.select_cols(&[s]));
        let size = c.col(s).iter().map(|v| v.abs()).sum::<f64>().max(1.0);
        for i in 0..x.rows() {
            let gap = (alone[(i, 0)] - eta[(i, s)]).abs();
            // The two may sum P terms in another order.
            let bound = 4.0 * c.rows() as f64 * f64::EPSILON * size * eta[(i, s)].abs().max(1.0);
            // NaN must fail.
            if gap.is_nan() || gap > bound {
                return fail("batching", format!("draw {s} alone differs from the batch by {gap:e} (bound {bound:e})"));
            }
        }
    }
    Ok(())
}

fn linearity(surrogate: &dyn Surrogate, x: &Matrix, c: &Matrix, eta: &Matrix) -> Result<()> {
    let Some((offset, features)) = surrogate.linear(x) else { return Ok(()) };
    for i in 0..x.rows() {
        for s in 0..c.cols() {
            let terms = || (0..c.rows()).map(|p| features[(i, p)] * c[(p, s)]);
            let gap = (offset[i] + terms().sum::<f64>() - eta[(i, s)]).abs();
            let size = offset[i].abs() + terms().map(f64::abs).sum::<f64>();
            let bound = 4.0 * (c.rows() + 1) as f64 * f64::EPSILON * size;
            // NaN must fail.
            if gap.is_nan() || gap > bound {
                return fail(
                    "linear",
                    format!("offset + features c differs from predict by {gap:e} (bound {bound:e})"),
                );
            }
        }
    }
    Ok(())
}

/// From `x` halfway to the upper bounds and on to them, in the inputs that the surrogate says it is affine in.
fn affinity(surrogate: &dyn Surrogate, bounds: &[(f64, f64)], x: &Matrix, c: &Matrix) -> Result<()> {
    for n_inputs in (1..=bounds.len()).filter(|&n| surrogate.is_affine_in(n)) {
        let [start, middle, end] = [0.0, 0.5, 1.0].map(|share| {
            let moved = |i: usize, d: usize| x[(i, d)] + share * (bounds[d].1 - x[(i, d)]);
            let at = |i: usize, d: usize| if d < n_inputs { moved(i, d) } else { x[(i, d)] };
            predict(surrogate, &Matrix::from_fn(x.rows(), x.cols(), at), c)
        });
        for i in 0..x.rows() {
            for s in 0..c.cols() {
                let parts = [start[(i, s)], -2.0 * middle[(i, s)], end[(i, s)]];
                // Values sum P terms that may cancel, each rounded a few times.
                let size = c.col(s).iter().map(|v| v.abs()).sum::<f64>().max(1.0);
                let largest = parts.iter().fold(size, |m, part| m.max(part.abs()));
                let (gap, bound) = (parts.iter().sum::<f64>().abs(), 64.0 * c.rows() as f64 * f64::EPSILON * largest);
                // NaN must fail.
                if gap.is_nan() || gap > bound {
                    let found = format!("a second difference of {gap:e} in {n_inputs} inputs (bound {bound:e})");
                    return fail("is_affine_in", found);
                }
            }
        }
    }
    Ok(())
}

/// Compares `exact` with a central difference of `value` (which also returns the size of its terms).
fn difference(exact: f64, scale: f64, check: &str, value: impl Fn(f64) -> (f64, f64)) -> Result<()> {
    // Truncation h^2 and rounding eps/h balance at h = eps^(1/3).
    let h = f64::EPSILON.cbrt() * scale;
    let central = |h: f64| (value(h).0 - value(-h).0) / (2.0 * h);
    let (near, far) = (central(h), central(2.0 * h));
    // The truncation error of `near` is a third of the gap to `far`; the rest is rounding of the terms, whose own
    // evaluation costs a few operations each (factor 16).
    let bound = (near - far).abs() + 16.0 * f64::EPSILON * value(0.0).1 / h;
    let gap = (exact - near).abs();
    if gap <= bound {
        Ok(())
    } else {
        fail(check, format!("{exact:e} against the difference {near:e} (bound {bound:e})"))
    }
}
