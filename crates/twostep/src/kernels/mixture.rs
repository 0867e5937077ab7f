//! Mixtures of normals in closed form: moments, probabilities and quantiles.

use super::{dot, normal_mixture};
use crate::special::{normal_density, normal_quantile};

/// `sum_s w_s N(m_s, sd_s^2)` of one quantity.
#[derive(Default)]
pub(crate) struct Mixture {
    /// Weights that sum to one.
    pub(crate) weights: Vec<f64>,
    pub(crate) means: Vec<f64>,
    pub(crate) inverse_sds: Vec<f64>,
}

impl Mixture {
    /// Probability below `x`, and density there.
    pub(crate) fn at(&self, x: f64) -> (f64, f64) {
        normal_mixture(x, &self.weights, &self.means, &self.inverse_sds)
    }

    /// Mean and sd.
    pub(crate) fn moments(&self) -> (f64, f64) {
        let mean = dot(&self.weights, &self.means);
        let parts = self.weights.iter().zip(&self.means).zip(&self.inverse_sds);
        let variance: f64 = parts.map(|((w, m), inverse)| w * (inverse.powi(-2) + (m - mean).powi(2))).sum();
        (mean, variance.sqrt())
    }

    /// The quantile by Newton's method on `Phi^-1(F(x))`, which is a line for a single normal, within a bracket.
    pub(crate) fn quantile(&self, p: f64, (mean, sd): (f64, f64)) -> f64 {
        // A step of Newton's leaves an error of its square: none that doubles show. Where the density is tiny, the bracket closes.
        const CONVERGED: f64 = 1e-9;
        let z = normal_quantile(p);
        let components = self.means.iter().zip(&self.inverse_sds).map(|(m, inverse)| m + z / inverse);
        // The quantile of a mixture lies between those of its components.
        let (mut low, mut high) =
            components.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (x.min(low), x.max(high)));
        let mut x = (mean + z * sd).clamp(low, high);
        // Halving alone closes a bracket of doubles in some sixty steps.
        for _ in 0..200 {
            let (below, density) = self.at(x);
            if below < p {
                low = x
            } else {
                high = x
            }
            let here = normal_quantile(below.clamp(0.0, 1.0));
            let newton = x + (z - here) * normal_density(here) / density;
            if (newton - x).abs() <= CONVERGED * sd {
                return newton;
            }
            x = if newton > low && newton < high { newton } else { 0.5 * (low + high) };
            if x == low || x == high {
                break;
            }
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::special::normal_cdf;

    #[test]
    fn quantiles_of_a_mixture_are_found_whatever_its_shape() {
        let mixture = |parts: &[[f64; 3]]| Mixture {
            weights: parts.iter().map(|p| p[0]).collect(),
            means: parts.iter().map(|p| p[1]).collect(),
            inverse_sds: parts.iter().map(|p| 1.0 / p[2]).collect(),
        };
        let shapes = [
            mixture(&[[1.0, 3.0, 0.2]]),
            // Two modes with next to nothing between them, the first with a probability that is asked for.
            mixture(&[[0.05, -4.0, 0.1], [0.95, 6.0, 0.3]]),
            mixture(&[[0.5, 0.0, 1e-3], [0.5, 0.0, 10.0]]),
            mixture(&[[1e-9, -1e3, 1.0], [1.0 - 1e-9, 0.0, 1.0]]),
        ];
        for shape in &shapes {
            let moments = shape.moments();
            for p in [1e-6, 0.05, 0.25, 0.5, 0.95, 1.0 - 1e-6] {
                let x = shape.quantile(p, moments);
                let parts = shape.weights.iter().zip(&shape.means).zip(&shape.inverse_sds);
                let below: f64 = parts.map(|((w, m), inverse)| w * normal_cdf((x - m) * inverse)).sum();
                // Rounding of x, of its place in sds and of a probability.
                let size = 1.0 + shape.at(x).1 * x.abs();
                assert!((below - p).abs() <= 64.0 * f64::EPSILON * size, "{p}: {below} at {x}");
            }
        }
    }
}
