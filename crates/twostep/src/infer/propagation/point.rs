//! Point: the T-posterior reduced to its mean, median or mode; the baseline that ignores epistemic uncertainty.

use super::{Propagation, Targets};
use crate::draws::Draws;
use crate::kernels::log_mean_exp_weights;
use crate::matrix::Matrix;

/// What stands for the T-posterior.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PointEstimate {
    /// Mean of every parameter.
    #[default]
    Mean,
    /// Median of every parameter.
    Median,
    /// Mode of every parameter's marginal: the half-sample mode [Robertson 1974].
    Mode,
}

pub(super) struct Point(pub(super) PointEstimate);

impl Propagation for Point {
    fn reduce(&self, draws: &Draws) -> Draws {
        let value = |p: usize| match self.0 {
            PointEstimate::Mean => draws.mean(p),
            PointEstimate::Median => draws.quantile(p, 0.5),
            PointEstimate::Mode => half_sample_mode(draws.values().row(p), &draws.weights()),
        };
        let values = Matrix::from_fn(draws.names().len(), 1, |p, _| value(p));
        Draws::new(draws.names().to_vec(), values)
    }

    fn targets(&self) -> Targets {
        Targets::Pooled
    }

    fn pool(&self, log_alpha: &[f64], l: &mut [f64]) -> f64 {
        log_mean_exp_weights(log_alpha, l)
    }

    fn is_log_mean_exp(&self) -> bool {
        true
    }

    fn mix(&self, _: &[f64], _: &[f64]) -> Option<Vec<f64>> {
        None
    }
}

/// Repeatedly keeps the narrowest interval that holds half of the weight.
fn half_sample_mode(values: &[f64], weights: &[f64]) -> f64 {
    let mut sorted: Vec<(f64, f64)> = values.iter().copied().zip(weights.iter().copied()).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut window = &sorted[..];
    while window.len() > 2 {
        let half = 0.5 * window.iter().map(|v| v.1).sum::<f64>();
        let (mut best, mut width) = (0..window.len(), f64::INFINITY);
        let (mut end, mut mass) = (0, 0.0);
        for start in 0..window.len() {
            while end < window.len() && mass < half {
                mass += window[end].1;
                end += 1;
            }
            if mass < half {
                break;
            }
            let here = window[end - 1].0 - window[start].0;
            if here < width {
                (best, width) = (start..end, here);
            }
            mass -= window[start].1;
        }
        if best.len() == window.len() {
            break;
        }
        window = &window[best];
    }
    let mass: f64 = window.iter().map(|v| v.1).sum();
    window.iter().map(|v| v.0 * v.1).sum::<f64>() / mass
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_is_where_the_values_crowd() {
        let values: Vec<f64> = (0..100).map(|i| f64::from(i).powi(2)).collect();
        // Squares crowd at zero.
        assert!(half_sample_mode(&values, &[0.01; 100]) < 5.0);
    }
}
