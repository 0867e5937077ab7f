//! I-posteriors to tables: moments, quantiles, highest-density intervals and how far each number can be trusted.

use crate::draws::Sorted;
use crate::mcmc::quadrature::Grid;
use crate::train::PROBABILITIES;
use serde::{Deserialize, Serialize};

/// One unknown, sd or derived quantity of an I-posterior.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantitySummary {
    /// Its name.
    pub name: String,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub sd: f64,
    /// 5 % quantile.
    pub q05: f64,
    /// 25 % quantile.
    pub q25: f64,
    /// Median.
    pub q50: f64,
    /// 75 % quantile.
    pub q75: f64,
    /// 95 % quantile.
    pub q95: f64,
    /// Shortest set that holds 90 %: several intervals where the posterior has several modes.
    pub hdi90: Vec<[f64; 2]>,
    /// Monte Carlo standard error of the mean; null for the grid.
    pub mcse_mean: Option<f64>,
    /// Of the sd.
    pub mcse_sd: Option<f64>,
    /// Of the five quantiles.
    pub mcse_quantiles: Option<[f64; 5]>,
    /// Effective number of draws in the bulk.
    pub ess_bulk: Option<f64>,
    /// And in the tails.
    pub ess_tail: Option<f64>,
    /// Rank-normalised split R-hat (between runs, for SMC).
    pub r_hat: Option<f64>,
    /// Largest error of mean, sd and quantiles in sds; null for samplers.
    pub quadrature_error: Option<f64>,
}

impl QuantitySummary {
    /// The five quantiles at [`PROBABILITIES`].
    pub fn quantiles(&self) -> [f64; 5] {
        [self.q05, self.q25, self.q50, self.q75, self.q95]
    }

    fn new(name: &str, mean: f64, sd: f64, quantiles: [f64; 5], hdi90: Vec<[f64; 2]>) -> Self {
        let [q05, q25, q50, q75, q95] = quantiles;
        Self {
            name: name.into(),
            mean,
            sd,
            q05,
            q25,
            q50,
            q75,
            q95,
            hdi90,
            mcse_mean: None,
            mcse_sd: None,
            mcse_quantiles: None,
            ess_bulk: None,
            ess_tail: None,
            r_hat: None,
            quadrature_error: None,
        }
    }
}

/// Points of a density curve from which highest-density intervals are read.
const CURVE: usize = 2000;

/// Parameter `d` of a grid.
pub(super) fn from_grid(grid: &Grid, d: usize, name: &str) -> QuantitySummary {
    let (mean, sd) = grid.moments(d);
    let marginal = grid.marginal(d);
    let quantiles = PROBABILITIES.map(|p| marginal.quantile(p));
    let coarse = grid.coarse_marginal(d);
    let (coarse_mean, coarse_sd) = coarse.moments();
    let gaps = PROBABILITIES.iter().zip(&quantiles).map(|(&p, q)| (coarse.quantile(p) - q).abs());
    let error = gaps.fold((coarse_mean - mean).abs().max((coarse_sd - sd).abs()), f64::max) / sd;
    let curve = marginal.density(CURVE);
    let mut out = QuantitySummary::new(name, mean, sd, quantiles, highest_density(&curve, 0.9));
    out.quadrature_error = Some(error);
    out
}

/// A quantity derived from the grid's parameters, with the quadrature's own weights.
pub(super) fn derived_from_grid(grid: &Grid, name: &str, f: &dyn Fn(&[f64]) -> f64, error: f64) -> QuantitySummary {
    let (mut values, mut weights) = (Vec::new(), Vec::new());
    grid.for_each_node(|x, w| {
        // Nodes that cannot move a digit.
        if w > 1e-14 {
            values.push(f(x));
            weights.push(w);
        }
    });
    let mut out = weighted(name, &values, &weights);
    out.quadrature_error = Some(error);
    out
}

/// Summary of weighted values, without an error estimate.
pub(super) fn weighted(name: &str, values: &[f64], weights: &[f64]) -> QuantitySummary {
    let total: f64 = weights.iter().sum();
    let mean = values.iter().zip(weights).map(|(v, w)| v * w).sum::<f64>() / total;
    let variance = values.iter().zip(weights).map(|(v, w)| (v - mean).powi(2) * w).sum::<f64>() / total;
    let sorted = Sorted::new(values, weights);
    let quantiles = PROBABILITIES.map(|p| sorted.quantile(p));
    let curve = smoothed(values, weights, &sorted);
    QuantitySummary::new(name, mean, variance.sqrt(), quantiles, highest_density(&curve, 0.9))
}

/// A kernel density curve of weighted values between their 0.05 % and 99.95 % quantiles.
///
/// The bandwidth is Silverman's for the narrowest tenth of the mass, so that a narrow mode far from others is not smeared.
fn smoothed(values: &[f64], weights: &[f64], sorted: &Sorted) -> Vec<(f64, f64)> {
    let quantile = |p: f64| sorted.quantile(p);
    let (low, high) = (quantile(5e-4), quantile(1.0 - 5e-4));
    let total: f64 = weights.iter().sum();
    let effective = total * total / weights.iter().map(|w| w * w).sum::<f64>();
    let tenths = (0..10).map(|k| quantile(0.1 * f64::from(k + 1)) - quantile(0.1 * f64::from(k)));
    // A tenth of a normal's mass is at least 0.2513 sd wide (around the mode).
    let spread = tenths.filter(|w| *w > 0.0).fold(f64::INFINITY, f64::min) / 0.2513;
    let bandwidth = 0.9 * spread * effective.powf(-0.2);
    if !(bandwidth > 0.0 && bandwidth.is_finite() && high > low) {
        return vec![(low, 1.0), (high, 1.0)];
    }
    let step = (high - low) / CURVE as f64;
    let mut curve = vec![0.0; CURVE];
    for (x, w) in values.iter().zip(weights) {
        let centre = (x - low) / step;
        let reach = 5.0 * bandwidth / step;
        let first = (centre - reach).max(0.0) as usize;
        let last = ((centre + reach).max(0.0) as usize).min(CURVE - 1);
        for (i, density) in curve.iter_mut().enumerate().take(last + 1).skip(first) {
            let z = (low + (i as f64 + 0.5) * step - x) / bandwidth;
            *density += w * (-0.5 * z * z).exp();
        }
    }
    curve.iter().enumerate().map(|(i, d)| (low + (i as f64 + 0.5) * step, *d)).collect()
}

/// The intervals where the curve is highest and that hold `share` of it.
fn highest_density(curve: &[(f64, f64)], share: f64) -> Vec<[f64; 2]> {
    let n = curve.len();
    if n < 3 {
        return vec![[curve[0].0, curve[n - 1].0]];
    }
    let edge = |i: usize| -> f64 {
        if i == 0 {
            curve[0].0 - 0.5 * (curve[1].0 - curve[0].0)
        } else if i == n {
            curve[n - 1].0 + 0.5 * (curve[n - 1].0 - curve[n - 2].0)
        } else {
            0.5 * (curve[i - 1].0 + curve[i].0)
        }
    };
    let mass: Vec<f64> = (0..n).map(|i| curve[i].1 * (edge(i + 1) - edge(i))).collect();
    let total: f64 = mass.iter().sum();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| curve[b].1.total_cmp(&curve[a].1));
    let mut inside = vec![false; n];
    let mut sum = 0.0;
    for i in order {
        if sum >= share * total {
            break;
        }
        sum += mass[i];
        inside[i] = true;
    }
    let mut out: Vec<[f64; 2]> = Vec::new();
    for i in 0..n {
        if inside[i] {
            match out.last_mut() {
                // Gaps narrower than a hundredth of the curve are noise of the curve, not modes.
                Some(last) if edge(i) - last[1] < 0.01 * (curve[n - 1].0 - curve[0].0) => last[1] = edge(i + 1),
                _ => out.push([edge(i), edge(i + 1)]),
            }
        }
    }
    out
}

/// Draws in units (one per density that was sampled) of replicates (chains or runs), each with equally weighted draws.
pub(super) struct Replicated {
    /// Weight of the unit, and its replicates: draws x parameters.
    pub(super) units: Vec<(f64, Vec<Vec<Vec<f64>>>)>,
}

impl Replicated {
    /// `sum_u a_u mean(g)` and its standard error from the spread between replicates, which sees a mode that only some
    /// replicates found; never below that of independent draws.
    fn expect(&self, g: &dyn Fn(&[f64]) -> f64) -> (f64, f64) {
        let (mut mean, mut between, mut independent) = (0.0, 0.0, 0.0);
        for (weight, replicates) in &self.units {
            let runs = replicates.len() as f64;
            let values: Vec<Vec<f64>> = replicates.iter().map(|r| r.iter().map(|x| g(x)).collect()).collect();
            let means: Vec<f64> = values.iter().map(|v| v.iter().sum::<f64>() / v.len() as f64).collect();
            let own = means.iter().sum::<f64>() / runs;
            let n: usize = values.iter().map(Vec::len).sum();
            let spread: f64 = values.iter().flatten().map(|v| (v - own).powi(2)).sum::<f64>() / n as f64;
            mean += weight * own;
            independent += weight * weight * spread / n as f64;
            if replicates.len() > 1 {
                between +=
                    weight * weight * means.iter().map(|m| (m - own).powi(2)).sum::<f64>() / (runs * (runs - 1.0));
            }
        }
        (mean, between.max(independent).sqrt())
    }

    /// Summary of a quantity of the parameters.
    pub(super) fn summary(&self, name: &str, f: &dyn Fn(&[f64]) -> f64) -> QuantitySummary {
        let (mut values, mut weights) = (Vec::new(), Vec::new());
        for (weight, replicates) in &self.units {
            let n: usize = replicates.iter().map(Vec::len).sum();
            for x in replicates.iter().flatten() {
                values.push(f(x));
                weights.push(weight / n as f64);
            }
        }
        let mut out = weighted(name, &values, &weights);
        let (mean, sd) = (out.mean, out.sd);
        let mcse_mean = self.expect(f).1;
        out.mcse_mean = Some(mcse_mean);
        out.mcse_sd = Some(self.expect(&|x| (f(x) - mean).powi(2)).1 / (2.0 * sd));
        let sorted = Sorted::new(&values, &weights);
        let mut tails = [f64::INFINITY; 2];
        let mut errors = [0.0; 5];
        for (k, (&p, q)) in PROBABILITIES.iter().zip(out.quantiles()).enumerate() {
            let error = self.expect(&|x| f64::from(u8::from(f(x) <= q))).1;
            // Density at the quantile from 5 % of the mass around it.
            let (low, high) = ((p - 0.025).max(0.0), (p + 0.025).min(1.0));
            errors[k] = error * (sorted.quantile(high) - sorted.quantile(low)) / (high - low);
            if k == 0 || k == 4 {
                tails[k / 4] = p * (1.0 - p) / (error * error);
            }
        }
        out.mcse_quantiles = Some(errors);
        out.ess_bulk = Some((sd / mcse_mean).powi(2));
        out.ess_tail = Some(tails[0].min(tails[1]));
        out
    }

    /// Values of a quantity by replicate, for R-hat within one unit.
    pub(super) fn chains(&self, unit: usize, f: &dyn Fn(&[f64]) -> f64) -> Vec<Vec<f64>> {
        self.units[unit].1.iter().map(|r| r.iter().map(|x| f(x)).collect()).collect()
    }
}
