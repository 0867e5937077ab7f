//! Slope `c` and input `omega` to a line through the origin: the slope-only variant of case study 1.

use crate::error::Result;
use crate::simulate::{Simulator, check_arguments};

/// `y = c omega`; c = -2 unless given.
#[derive(Clone, Copy, Debug)]
pub struct Slope;

impl Simulator for Slope {
    fn inputs(&self) -> &[&'static str] {
        &["c", "omega"]
    }

    fn outputs(&self) -> &[&'static str] {
        &["y"]
    }

    fn defaults(&self) -> &[(&'static str, f64)] {
        &[("c", -2.0)]
    }

    fn run(&self, x: &[f64], out: &mut [f64]) -> Result<()> {
        check_arguments(self, x, out)?;
        out[0] = x[0] * x[1];
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_line_through_the_origin() {
        let mut out = [f64::NAN];
        for (x, y) in [([-2.0, -0.5], 1.0), ([-2.0, 0.0], 0.0), ([3.0, 0.25], 0.75)] {
            Slope.run(&x, &mut out).unwrap();
            assert_eq!(out, [y]);
        }
    }
}
