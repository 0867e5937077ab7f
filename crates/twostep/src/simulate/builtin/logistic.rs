//! Input `omega` and four shape inputs to a logistic curve: case study 2.

use crate::error::Result;
use crate::simulate::{Simulator, check_arguments};

/// `y = alpha / (1 + exp(-beta (omega - gamma))) + delta`; alpha = 2, beta = 10, gamma = 0, delta = -1 unless given.
///
/// The curve saturates at `delta` and `alpha + delta`, however steep it is.
#[derive(Clone, Copy, Debug)]
pub struct Logistic;

impl Simulator for Logistic {
    fn inputs(&self) -> &[&'static str] {
        &["alpha", "beta", "gamma", "delta", "omega"]
    }

    fn outputs(&self) -> &[&'static str] {
        &["y"]
    }

    fn defaults(&self) -> &[(&'static str, f64)] {
        &[("alpha", 2.0), ("beta", 10.0), ("gamma", 0.0), ("delta", -1.0)]
    }

    fn run(&self, x: &[f64], out: &mut [f64]) -> Result<()> {
        check_arguments(self, x, out)?;
        let [alpha, beta, gamma, delta, omega] = [x[0], x[1], x[2], x[3], x[4]];
        out[0] = alpha / (1.0 + (-beta * (omega - gamma)).exp()) + delta;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn y(x: [f64; 5]) -> f64 {
        let mut out = [f64::NAN];
        Logistic.run(&x, &mut out).unwrap();
        out[0]
    }

    #[test]
    fn default_shape_is_a_hyperbolic_tangent() {
        // 2 / (1 + exp(-10 omega)) - 1 = tanh(5 omega). Terms of at most 2, each rounded, exp and tanh to an ulp, and
        // the argument's rounding 5 eps amplified by at most max |z sech^2(z)| < 1: eight eps.
        for omega in [-1.0, -0.3, -0.05, 0.0, 0.1, 0.77] {
            assert!((y([2.0, 10.0, 0.0, -1.0, omega]) - (5.0 * omega).tanh()).abs() <= 8.0 * f64::EPSILON);
        }
    }

    #[test]
    fn every_shape_input_has_its_place() {
        // exp(-beta (omega - gamma)) = exp(0) = 1 at the midpoint; dyadic fractions elsewhere.
        assert_eq!(y([3.0, 7.0, 0.25, 0.5, 0.25]), 2.0);
        // ln 3 below the midpoint in units of 1/beta: a quarter of the rise.
        let quarter = y([4.0, 2.0, 0.5, 10.0, 0.5 - 3.0_f64.ln() / 2.0]);
        assert!((quarter - 11.0).abs() <= 8.0 * 11.0 * f64::EPSILON);
    }

    #[test]
    fn saturates_without_overflow() {
        assert_eq!([y([2.0, 1e6, 0.0, -1.0, -1.0]), y([2.0, 1e6, 0.0, -1.0, 1.0])], [-1.0, 1.0]);
    }
}
