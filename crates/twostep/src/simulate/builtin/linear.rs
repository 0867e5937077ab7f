//! Intercept `a`, slope `b` and input `omega` to a straight line: case study 1.

use crate::error::Result;
use crate::simulate::{Simulator, check_arguments};

/// `y = a + b omega`; a = 0.5 and b = 2 unless given.
#[derive(Clone, Copy, Debug)]
pub struct Linear;

impl Simulator for Linear {
    fn inputs(&self) -> &[&'static str] {
        &["a", "b", "omega"]
    }

    fn outputs(&self) -> &[&'static str] {
        &["y"]
    }

    fn defaults(&self) -> &[(&'static str, f64)] {
        &[("a", 0.5), ("b", 2.0)]
    }

    fn run(&self, x: &[f64], out: &mut [f64]) -> Result<()> {
        check_arguments(self, x, out)?;
        out[0] = x[0] + x[1] * x[2];
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_line() {
        let mut out = [f64::NAN];
        // Every term is a dyadic fraction: no rounding.
        for (x, y) in [([0.5, 2.0, -0.25], 0.0), ([0.5, 2.0, 0.0], 0.5), ([-1.0, 3.0, 1.5], 3.5)] {
            Linear.run(&x, &mut out).unwrap();
            assert_eq!(out, [y]);
        }
    }
}
