//! Uphill on a log density: paths of L-BFGS, and modes with the curvature there by Newton's method.

use super::LogDensity;
use crate::error::{Error, Result};
use crate::matrix::{cholesky, in_triangle, solve_lower, solve_lower_transposed};
use crate::monitor::Proceed;

/// Most steps of a path.
const STEPS: usize = 1000;
/// Most points tried for one step: a length is halved or doubled between two of them.
const TRIES: usize = 40;
/// Last steps that the next direction is made of.
pub const HISTORY: usize = 10;
/// A path ends where a step promises less than half of this of the log density.
const FLAT: f64 = 1e-8;
/// Least share of the promised gain that a step must bring, and most of the slope that it may leave: Wolfe's conditions.
const GAIN: f64 = 1e-4;
const SLOPE: f64 = 0.9;
/// Most steps of Newton's method.
const NEWTON: usize = 20;
/// Largest square of the distance to a mode, in sds of its curvature, at which it counts as found.
const AT_MODE: f64 = 1e-6;

/// A point with what a density says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Visited {
    /// Its coordinates.
    pub z: Vec<f64>,
    /// Log density.
    pub value: f64,
    /// Gradient of that.
    pub gradient: Vec<f64>,
}

impl Visited {
    fn new(density: &mut impl LogDensity, z: Vec<f64>) -> Self {
        let mut gradient = vec![0.0; z.len()];
        let value = density.log_density(&z, &mut gradient);
        Self { z, value, gradient }
    }

    fn is_finite(&self) -> bool {
        self.value.is_finite() && self.gradient.iter().all(|g| g.is_finite())
    }

    fn along(&self, direction: &[f64], length: f64) -> Vec<f64> {
        self.z.iter().zip(direction).map(|(z, d)| z + length * d).collect()
    }
}

/// A step `s` of a path with the change `y` of the gradient of minus the log density, where `s'y` is positive.
#[derive(Clone, Debug)]
pub struct Change {
    /// Of the point.
    pub s: Vec<f64>,
    /// Of the gradient.
    pub y: Vec<f64>,
}

impl Change {
    /// None where the density does not curve downwards between the two points.
    pub fn between(from: &Visited, to: &Visited) -> Option<Self> {
        let s: Vec<f64> = to.z.iter().zip(&from.z).map(|(a, b)| a - b).collect();
        let y: Vec<f64> = from.gradient.iter().zip(&to.gradient).map(|(a, b)| a - b).collect();
        (dot(&s, &y) > f64::EPSILON * dot(&y, &y)).then_some(Self { s, y })
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The points of an uphill path, the start among them, by L-BFGS [Nocedal 1980] with steps that fulfil Wolfe's conditions. It ends
/// where the density is flat, where rounding hides the gain of a step, and after a thousand steps.
///
/// # Errors
/// `proceed`, asked at every step, says no.
pub fn path(density: &mut impl LogDensity, start: Vec<f64>, proceed: Proceed<'_>) -> Result<Vec<Visited>> {
    let mut points = vec![Visited::new(density, start)];
    let mut changes: Vec<Change> = Vec::new();
    for _ in 0..STEPS {
        if !proceed() {
            return Err(Error::Interrupted);
        }
        let here = &points[points.len() - 1];
        let mut direction = uphill(&here.gradient, &changes);
        if dot(&direction, &here.gradient) <= 0.0 {
            // Rounding has spoilt the changes.
            changes.clear();
            direction.clone_from(&here.gradient);
        }
        let slope = dot(&direction, &here.gradient);
        if slope.is_nan() || slope <= FLAT {
            break;
        }
        let Some(next) = step(density, here, &direction, slope, changes.is_empty()) else { break };
        if let Some(change) = Change::between(here, &next) {
            if changes.len() == HISTORY {
                changes.remove(0);
            }
            changes.push(change);
        }
        points.push(next);
    }
    Ok(points)
}

/// The inverse of the second derivatives that the changes tell of, times the gradient.
fn uphill(gradient: &[f64], changes: &[Change]) -> Vec<f64> {
    let mut direction = gradient.to_vec();
    let add = |to: &mut [f64], factor: f64, what: &[f64]| {
        to.iter_mut().zip(what).for_each(|(to, what)| *to += factor * what);
    };
    let mut shares = Vec::with_capacity(changes.len());
    for Change { s, y } in changes.iter().rev() {
        let share = dot(s, &direction) / dot(s, y);
        add(&mut direction, -share, y);
        shares.push(share);
    }
    if let Some(Change { s, y }) = changes.last() {
        let scale = dot(s, y) / dot(y, y);
        direction.iter_mut().for_each(|d| *d *= scale);
    }
    for (Change { s, y }, share) in changes.iter().zip(shares.iter().rev()) {
        let factor = share - dot(y, &direction) / dot(s, y);
        add(&mut direction, factor, s);
    }
    direction
}

/// A point along the direction that fulfils Wolfe's conditions, or at least the first of them.
fn step(
    density: &mut impl LogDensity,
    here: &Visited,
    direction: &[f64],
    slope: f64,
    is_first: bool,
) -> Option<Visited> {
    let (mut low, mut high) = (0.0, f64::INFINITY);
    // Before anything is known of the curvature, one unit.
    let mut length = if is_first { dot(direction, direction).sqrt().recip().min(1.0) } else { 1.0 };
    let mut higher = None;
    for _ in 0..TRIES {
        let next = Visited::new(density, here.along(direction, length));
        if !next.is_finite() || next.value < here.value + GAIN * length * slope {
            high = length;
        } else if dot(&next.gradient, direction) > SLOPE * slope {
            low = length;
            higher = Some(next);
        } else {
            return Some(next);
        }
        length = if high.is_finite() { 0.5 * (low + high) } else { 2.0 * length };
    }
    higher
}

/// A local maximum of a log density.
#[derive(Clone, Debug, PartialEq)]
pub struct Mode {
    /// Where it is.
    pub z: Vec<f64>,
    /// Log density there.
    pub value: f64,
    /// Lower triangle of the Cholesky factor of minus the second derivatives there.
    pub factor: Vec<f64>,
}

/// The mode that a path has come near to, by Newton's method; none where the density has no curvature downwards in every direction, or
/// where the method does not come to rest.
///
/// # Errors
/// `proceed`, asked at every step, says no.
pub fn mode(density: &mut impl LogDensity, near: &Visited, proceed: Proceed<'_>) -> Result<Option<Mode>> {
    let n = near.z.len();
    let mut here = near.clone();
    // Truncation and rounding of a central difference are least for about the cube root of epsilon, in units in which things change; these are
    // the sds, once known.
    let mut steps: Vec<f64> = here.z.iter().map(|z| 1e-4 * z.abs().max(1.0)).collect();
    let mut left = f64::INFINITY;
    for newton in 0..=NEWTON {
        if !proceed() {
            return Err(Error::Interrupted);
        }
        let mut factor = curvature(density, &here.z, &steps);
        let sds: Option<Vec<f64>> =
            (0..n).map(|j| Some(factor[in_triangle(j, j)]).filter(|c| *c > 0.0).map(|c| c.sqrt().recip())).collect();
        let Some(sds) = sds else { return Ok(None) };
        let own: Vec<f64> = sds.iter().map(|sd| f64::EPSILON.cbrt() * sd).collect();
        if newton == 0 {
            factor = curvature(density, &here.z, &own);
        }
        steps = own;
        if !cholesky(&mut factor, n) {
            return Ok(None);
        }
        let mut direction = here.gradient.clone();
        solve_lower(&factor, &mut direction);
        let distance = dot(&direction, &direction);
        let found = |here: Visited, factor| Mode { z: here.z, value: here.value, factor };
        // Rounding ends the steps' shrinking.
        if distance == 0.0 || (distance < AT_MODE && distance > 0.25 * left) || newton == NEWTON {
            return Ok((distance < AT_MODE).then(|| found(here, factor)));
        }
        left = distance;
        solve_lower_transposed(&factor, &mut direction);
        // Steps that gain less than rounding are taken by the gradient alone.
        let may_lose = 64.0 * f64::EPSILON * here.value.abs();
        let next = (0..TRIES).map(|halvings| 0.5_f64.powi(halvings as i32)).find_map(|length| {
            let next = Visited::new(density, here.along(&direction, length));
            (next.is_finite() && next.value >= here.value - may_lose).then_some(next)
        });
        match next {
            Some(next) => here = next,
            None => return Ok((distance < AT_MODE).then(|| found(here, factor))),
        }
    }
    Ok(None)
}

/// Minus the second derivatives by central differences of the gradient: a lower triangle.
fn curvature(density: &mut impl LogDensity, z: &[f64], steps: &[f64]) -> Vec<f64> {
    let n = z.len();
    let mut moved = z.to_vec();
    let columns: Vec<Vec<f64>> = (0..n)
        .map(|j| {
            let mut gradient_at = |to: f64| {
                moved[j] = to;
                let mut gradient = vec![0.0; n];
                density.log_density(&moved, &mut gradient);
                gradient
            };
            // Between the points as they are rounded.
            let (above, below) = (z[j] + steps[j], z[j] - steps[j]);
            let (after, before) = (gradient_at(above), gradient_at(below));
            moved[j] = z[j];
            before.iter().zip(&after).map(|(b, a)| (b - a) / (above - below)).collect()
        })
        .collect();
    (0..n).flat_map(|i| (0..=i).map(move |j| (i, j))).map(|(i, j)| 0.5 * (columns[i][j] + columns[j][i])).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// `-(1 - x)^2 - 100 (y - x^2)^2`, along whose curved ridge first-order methods crawl.
    struct Banana;

    impl LogDensity for Banana {
        fn dim(&self) -> usize {
            2
        }

        fn log_density(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
            let (a, b) = (1.0 - z[0], z[1] - z[0] * z[0]);
            gradient[0] = 2.0 * a + 400.0 * b * z[0];
            gradient[1] = -200.0 * b;
            -a * a - 100.0 * b * b
        }
    }

    #[test]
    fn a_curved_ridge_is_climbed_to_its_mode() {
        let points = path(&mut Banana, vec![-1.2, 1.0], &|| true).unwrap();
        assert!(points.windows(2).all(|pair| pair[1].value > pair[0].value));
        // Some 35 steps are usual for quasi-Newton methods here.
        assert!(points.len() < 100, "{}", points.len());
        let mode = mode(&mut Banana, &points[points.len() - 1], &|| true).unwrap().unwrap();
        // The gradient there is a difference of terms up to 400, rounded; its inverse curvature is at most 2.5.
        let bound = 400.0 * 4.0 * f64::EPSILON * 2.5;
        assert!(mode.z.iter().all(|z| (z - 1.0).abs() <= bound), "{:?}", mode.z);
        // L L' = [[802, -400], [-400, 200]]; differences of gradients round by epsilon times terms of 400 over the step, epsilon^(1/3) sd with an sd of
        // 1/sqrt(802) or more, and their third derivatives are 2400: a sixth of that times the square of the step, of an sd of 1/sqrt(200) at most, is cut off.
        let l = &mode.factor;
        let product = [l[0] * l[0], l[0] * l[1], l[1] * l[1] + l[2] * l[2]];
        let step = f64::EPSILON.cbrt();
        let bound = 2.0 * 400.0 * f64::EPSILON * 802.0_f64.sqrt() / step + 2400.0 * step * step / 200.0;
        for (found, exact) in product.iter().zip([802.0, -400.0, 200.0]) {
            assert!((found - exact).abs() <= bound, "{found} {exact} {bound}");
        }
    }

    /// Up forever: the path ends, and there is no mode.
    #[test]
    fn what_has_no_mode_has_none() {
        struct Slope;
        impl LogDensity for Slope {
            fn dim(&self) -> usize {
                2
            }
            fn log_density(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
                (gradient[0], gradient[1]) = (1.0, -z[1]);
                z[0] - 0.5 * z[1] * z[1]
            }
        }
        let points = path(&mut Slope, vec![0.0, 3.0], &|| true).unwrap();
        assert_eq!(mode(&mut Slope, &points[points.len() - 1], &|| true).unwrap(), None);
        assert!(matches!(path(&mut Slope, vec![0.0, 3.0], &|| false), Err(Error::Interrupted)));
    }
}
