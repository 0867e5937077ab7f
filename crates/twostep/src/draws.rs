//! Weighted draws: named values, S of each, with normalised log-weights.

use crate::matrix::Matrix;
use crate::special::log_sum_exp;
use rand::{Rng, RngExt};

/// P named parameters in rows, S draws in columns. MCMC output, centroids, a point estimate and quadrature nodes are all of
/// this one type.
#[derive(Clone, Debug, PartialEq)]
pub struct Draws {
    names: Vec<String>,
    values: Matrix,
    log_weights: Vec<f64>,
}

impl Draws {
    /// Equally weighted draws.
    ///
    /// # Panics
    /// If there is not one name per row.
    pub fn new(names: Vec<String>, values: Matrix) -> Self {
        let log_weights = vec![-(values.cols() as f64).ln(); values.cols()];
        Self::weighted(names, values, log_weights)
    }

    /// Draws with weights, which are normalised.
    ///
    /// # Panics
    /// If there is not one name per row and one weight per column.
    pub fn weighted(names: Vec<String>, values: Matrix, mut log_weights: Vec<f64>) -> Self {
        assert_eq!(names.len(), values.rows(), "one name per parameter");
        assert_eq!(log_weights.len(), values.cols(), "one weight per draw");
        let total = log_sum_exp(&log_weights);
        log_weights.iter_mut().for_each(|w| *w -= total);
        Self { names, values, log_weights }
    }

    /// Names of the parameters.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// P x S values.
    pub fn values(&self) -> &Matrix {
        &self.values
    }

    /// S log-weights; their exponentials sum to one.
    pub fn log_weights(&self) -> &[f64] {
        &self.log_weights
    }

    /// S weights.
    pub fn weights(&self) -> Vec<f64> {
        self.log_weights.iter().map(|w| w.exp()).collect()
    }

    /// Number S of draws.
    pub fn n_draws(&self) -> usize {
        self.values.cols()
    }

    /// The draws numbered by `index`, with the weights given.
    pub fn select(&self, index: &[usize], log_weights: Vec<f64>) -> Self {
        Self::weighted(self.names.clone(), self.values.select_cols(index), log_weights)
    }

    /// Weighted mean of parameter `p`.
    pub fn mean(&self, p: usize) -> f64 {
        self.values.row(p).iter().zip(&self.log_weights).map(|(v, w)| w.exp() * v).sum()
    }

    /// Weighted sd of parameter `p`.
    pub fn sd(&self, p: usize) -> f64 {
        let mean = self.mean(p);
        let variance: f64 =
            self.values.row(p).iter().zip(&self.log_weights).map(|(v, w)| w.exp() * (v - mean).powi(2)).sum();
        variance.sqrt()
    }

    /// Weighted quantile of parameter `p`: see [`Sorted`].
    pub fn quantile(&self, p: usize, probability: f64) -> f64 {
        Sorted::new(self.values.row(p), &self.weights()).quantile(probability)
    }
}

/// An index with probability proportional to its weight; the last one where all are zero.
pub fn pick_weighted(weights: &[f64], rng: &mut impl Rng) -> usize {
    let mut target = rng.random::<f64>() * weights.iter().sum::<f64>();
    for (i, weight) in weights.iter().enumerate() {
        target -= weight;
        if target < 0.0 {
            return i;
        }
    }
    weights.len() - 1
}

/// Weighted values in order, for quantiles: the cumulative weight, counted to the middle of each value's own, interpolated
/// linearly. Equal weights put the i-th of n values (from zero) at `(i + 1/2) / n`.
#[derive(Clone, Debug)]
pub struct Sorted {
    values: Vec<f64>,
    middles: Vec<f64>,
}

impl Sorted {
    /// Sorts the values that have weight.
    pub fn new(values: &[f64], weights: &[f64]) -> Self {
        let mut order: Vec<usize> = (0..values.len()).filter(|&i| weights[i] > 0.0).collect();
        order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
        let total: f64 = order.iter().map(|&i| weights[i]).sum();
        let mut sum = 0.0;
        let middles = order
            .iter()
            .map(|&i| {
                let middle = (sum + 0.5 * weights[i]) / total;
                sum += weights[i];
                middle
            })
            .collect();
        Self { values: order.iter().map(|&i| values[i]).collect(), middles }
    }

    /// The quantile; NaN where there are no values.
    pub fn quantile(&self, probability: f64) -> f64 {
        let i = self.middles.partition_point(|&m| m < probability);
        if i == 0 || i == self.values.len() {
            return self.values.get(i.saturating_sub(usize::from(i > 0))).copied().unwrap_or(f64::NAN);
        }
        let share = (probability - self.middles[i - 1]) / (self.middles[i] - self.middles[i - 1]);
        self.values[i - 1] + (self.values[i] - self.values[i - 1]) * share
    }

    /// The share below `x`: the inverse of [`Sorted::quantile`].
    pub fn cdf(&self, x: f64) -> f64 {
        let i = self.values.partition_point(|&v| v < x);
        if i == 0 || i == self.values.len() {
            return if i == 0 { 0.0 } else { 1.0 };
        }
        let share = (x - self.values[i - 1]) / (self.values[i] - self.values[i - 1]);
        self.middles[i - 1] + (self.middles[i] - self.middles[i - 1]) * share
    }

    /// The values in ascending order.
    pub fn values(&self) -> &[f64] {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_equal_weights() {
        let values = [3.0, 1.0, 2.0, 4.0];
        let weights = [0.25; 4];
        let sorted = Sorted::new(&values, &weights);
        assert_eq!([0.0, 0.5, 1.0].map(|p| sorted.quantile(p)), [1.0, 2.5, 4.0]);
        assert!(Sorted::new(&[], &[]).quantile(0.5).is_nan());
    }

    #[test]
    fn splitting_a_draw_changes_nothing() {
        let one = Draws::new(vec!["a".into()], Matrix::from_rows(1, 2, vec![1.0, 3.0]));
        let half = 0.5_f64.ln();
        let split = Draws::weighted(
            vec!["a".into()],
            Matrix::from_rows(1, 3, vec![1.0, 3.0, 3.0]),
            vec![half, 2.0 * half, 2.0 * half],
        );
        assert!((one.mean(0) - split.mean(0)).abs() <= 4.0 * f64::EPSILON);
        assert!((one.sd(0) - split.sd(0)).abs() <= 4.0 * f64::EPSILON);
    }
}
