//! I-posteriors to tables: moments, quantiles, highest-density intervals and how far each number can be trusted.

use crate::draws::Sorted;
use crate::mcmc::quadrature::{Described, Grid};
use crate::stream::Stream;
use crate::train::PROBABILITIES;
use rand::RngExt;
use rayon::prelude::*;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::to_raw_value;

/// One unknown, sd or derived quantity of an I-posterior. Its numbers are NaN, and null in files, where it has no finite value
/// on part of the posterior.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantitySummary {
    /// Its name.
    pub name: String,
    /// Mean.
    #[serde(deserialize_with = "nan_from_null")]
    pub mean: f64,
    /// Standard deviation.
    #[serde(deserialize_with = "nan_from_null")]
    pub sd: f64,
    /// 5 % quantile.
    #[serde(deserialize_with = "nan_from_null")]
    pub q05: f64,
    /// 25 % quantile.
    #[serde(deserialize_with = "nan_from_null")]
    pub q25: f64,
    /// Median.
    #[serde(deserialize_with = "nan_from_null")]
    pub q50: f64,
    /// 75 % quantile.
    #[serde(deserialize_with = "nan_from_null")]
    pub q75: f64,
    /// 95 % quantile.
    #[serde(deserialize_with = "nan_from_null")]
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
    /// Its density, of unit area: x and density at points between which it is straight for the eye. As the exact engine and the grid
    /// know it, smoothed where there are draws or nodes only; empty where it is not defined.
    #[serde(default, serialize_with = "on_one_line")]
    pub curve: Vec<[f64; 2]>,
}

/// Compact, whatever the format around it.
fn on_one_line<S: Serializer>(curve: &[[f64; 2]], serializer: S) -> Result<S::Ok, S::Error> {
    to_raw_value(curve).map_err(serde::ser::Error::custom)?.serialize(serializer)
}

/// JSON has no NaN and writes null in its place.
fn nan_from_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
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
            curve: Vec::new(),
        }
    }
}

/// Points of a density curve from which highest-density intervals are read.
const CURVE: usize = 2000;

/// Most points of it that are kept to be shown.
const SKETCH: usize = 200;

/// Part of the highest density that the eye does not see: half a pixel of a figure of a thousand.
const INVISIBLE: f64 = 5e-4;

/// A parameter of a grid, described with quantiles at [`PROBABILITIES`].
pub(super) fn from_grid(described: &Described, name: &str) -> QuantitySummary {
    let Described { marginal, mean, sd, quantiles, error } = described;
    let quantiles = std::array::from_fn(|i| quantiles[i]);
    let mut out = from_curve(name, (*mean, *sd), quantiles, &marginal.density(CURVE));
    out.quadrature_error = Some(*error);
    out
}

/// A quantity whose moments, quantiles and density between two ends are known.
pub(super) fn from_density(
    name: &str,
    moments: (f64, f64),
    quantiles: [f64; 5],
    [low, high]: [f64; 2],
    density: &dyn Fn(f64) -> f64,
) -> QuantitySummary {
    let step = (high - low) / CURVE as f64;
    let points = (0..CURVE).map(|i| low + (i as f64 + 0.5) * step);
    from_curve(name, moments, quantiles, &points.map(|x| (x, density(x))).collect::<Vec<_>>())
}

fn from_curve(name: &str, (mean, sd): (f64, f64), quantiles: [f64; 5], curve: &[(f64, f64)]) -> QuantitySummary {
    let mass: Vec<f64> =
        curve.iter().enumerate().map(|(i, (_, d))| d * (edge(curve, i + 1) - edge(curve, i))).collect();
    let mut out = QuantitySummary::new(name, mean, sd, quantiles, highest_density(curve, &mass, 0.9));
    out.curve = sketch(curve);
    out
}

/// The curve, divided by its area, at the points that it takes: the one that lies farthest off the lines between those that
/// are kept comes next, until none can be seen to be missing.
fn sketch(curve: &[(f64, f64)]) -> Vec<[f64; 2]> {
    let area: f64 = curve.windows(2).map(|w| 0.5 * (w[0].1 + w[1].1) * (w[1].0 - w[0].0)).sum();
    if !(area > 0.0 && area.is_finite()) {
        return Vec::new();
    }
    let highest = curve.iter().fold(0.0, |m: f64, (_, density)| m.max(*density));
    // The point between two that is farthest off their line, and how far it is.
    let farthest = |from: usize, to: usize| {
        let ((x0, d0), (x1, d1)) = (curve[from], curve[to]);
        let off = |i: usize| (curve[i].1 - d0 - (d1 - d0) * (curve[i].0 - x0) / (x1 - x0)).abs();
        (from + 1..to).map(|i| (off(i), i)).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(off, i)| (off, from, i, to))
    };
    let mut places = vec![0, curve.len() - 1];
    let mut gaps: Vec<(f64, usize, usize, usize)> = farthest(0, curve.len() - 1).into_iter().collect();
    while places.len() < SKETCH
        && let Some(widest) = (0..gaps.len()).max_by(|&a, &b| gaps[a].0.total_cmp(&gaps[b].0))
        && gaps[widest].0 > INVISIBLE * highest
    {
        let (_, from, place, to) = gaps.swap_remove(widest);
        places.push(place);
        gaps.extend(farthest(from, place).into_iter().chain(farthest(place, to)));
    }
    places.sort_unstable();
    places.into_iter().map(|i| [curve[i].0, curve[i].1 / area].map(six_digits)).collect()
}

fn six_digits(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
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

/// A quantity of independent draws.
pub(super) fn from_draws(name: &str, draws: &[Vec<f64>], f: &(dyn Fn(&[f64]) -> f64 + Sync)) -> QuantitySummary {
    // Replicates of one draw each: their spread is that of independent draws.
    Replicated { units: vec![Unit::equal(1.0, draws.iter().map(|x| vec![x.clone()]).collect())] }.summary(name, f)
}

/// Summary of weighted values, without an error estimate.
pub(super) fn weighted(name: &str, values: &[f64], weights: &[f64]) -> QuantitySummary {
    let total: f64 = weights.iter().sum();
    let mean = values.iter().zip(weights).map(|(v, w)| v * w).sum::<f64>() / total;
    let variance = values.iter().zip(weights).map(|(v, w)| (v - mean).powi(2) * w).sum::<f64>() / total;
    let sorted = Sorted::new(values, weights);
    let quantiles = PROBABILITIES.map(|p| sorted.quantile(p));
    let curve = smoothed(values, weights, &sorted);
    let hdi90 = highest_density_of_values(&curve, &sorted, 0.9);
    let mut out = QuantitySummary::new(name, mean, variance.sqrt(), quantiles, hdi90);
    out.curve = sketch(&curve);
    out
}

/// A kernel density curve of weighted values between their 0.05 % and 99.95 % quantiles.
///
/// The bandwidth is Silverman's for the narrowest tenth of the mass, so that a narrow mode far from others is not smeared. What
/// the kernel puts beyond the smallest and the largest value is reflected there: a posterior that is cut off does not fall at its
/// bounds, and one that is not has next to nothing to reflect.
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
    let ends = [sorted.values().first(), sorted.values().last()].map(|end| end.copied().unwrap_or(low));
    let reflected = |x: f64| ends.into_iter().map(move |end| 2.0 * end - x);
    let near = |x: &f64| *x > low - 5.0 * bandwidth && *x < high + 5.0 * bandwidth;
    let all = values
        .iter()
        .zip(weights)
        .flat_map(|(x, w)| std::iter::once(*x).chain(reflected(*x).filter(near)).map(move |x| (x, w)));
    for (x, w) in all {
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

/// Middles of a curve's points, with its ends mirrored: the edges of the cells around them.
fn edge(curve: &[(f64, f64)], i: usize) -> f64 {
    let n = curve.len();
    match i {
        0 => 1.5 * curve[0].0 - 0.5 * curve[1].0,
        i if i == n => 1.5 * curve[n - 1].0 - 0.5 * curve[n - 2].0,
        i => 0.5 * (curve[i - 1].0 + curve[i].0),
    }
}

/// The intervals where the curve is highest and that hold `share` of the mass, which is given for the cell of every point.
fn highest_density(curve: &[(f64, f64)], mass: &[f64], share: f64) -> Vec<[f64; 2]> {
    // A gap that holds less and is narrower, as a share of the whole, is noise of the curve, not a valley between modes.
    const GAP_MASS: f64 = 2e-3;
    const GAP_WIDTH: f64 = 0.01;
    let total: f64 = mass.iter().sum();
    let mut order: Vec<usize> = (0..curve.len()).collect();
    order.sort_by(|&a, &b| curve[b].1.total_cmp(&curve[a].1));
    let mut inside = vec![false; curve.len()];
    let mut sum = 0.0;
    for i in order {
        if sum >= share * total {
            break;
        }
        sum += mass[i];
        inside[i] = true;
    }
    let width = edge(curve, curve.len()) - edge(curve, 0);
    let mut out: Vec<[f64; 2]> = Vec::new();
    let mut gap = 0.0;
    for i in 0..curve.len() {
        if !inside[i] {
            gap += mass[i];
            continue;
        }
        match out.last_mut() {
            Some(last) if gap < GAP_MASS * total && edge(curve, i) - last[1] < GAP_WIDTH * width => {
                last[1] = edge(curve, i + 1);
            }
            _ => out.push([edge(curve, i), edge(curve, i + 1)]),
        }
        gap = 0.0;
    }
    out
}

/// The set of weighted values with the highest density: where it is one interval, the shortest that holds its share; else by
/// the order of their smoothed curve, but with the mass of the values themselves.
fn highest_density_of_values(curve: &[(f64, f64)], sorted: &Sorted, share: f64) -> Vec<[f64; 2]> {
    const PLACES: usize = 500;
    if curve.len() > 2 {
        let cells = (0..curve.len()).map(|i| sorted.cdf(edge(curve, i + 1)) - sorted.cdf(edge(curve, i)));
        let intervals = highest_density(curve, &cells.collect::<Vec<_>>(), share);
        if intervals.len() > 1 {
            return intervals;
        }
    }
    let interval = |k: usize| {
        let below = (1.0 - share) * k as f64 / PLACES as f64;
        [sorted.quantile(below), sorted.quantile(below + share)]
    };
    (0..=PLACES).map(interval).min_by(|a, b| (a[1] - a[0]).total_cmp(&(b[1] - b[0]))).into_iter().collect()
}

/// One density that was sampled: several independent replicates (chains or runs), each with equally weighted draws.
pub(super) struct Unit {
    /// Weight of the density in the mixture.
    pub(super) weight: f64,
    /// Share of each replicate (shares sum to one) and its draws x parameters. Runs of SMC count by their evidence: a run that
    /// found more of the posterior knows more of it.
    pub(super) replicates: Vec<(f64, Vec<Vec<f64>>)>,
}

impl Unit {
    /// Replicates of equal share.
    pub(super) fn equal(weight: f64, replicates: Vec<Vec<Vec<f64>>>) -> Self {
        let share = 1.0 / replicates.len() as f64;
        Self { weight, replicates: replicates.into_iter().map(|draws| (share, draws)).collect() }
    }
}

/// Draws of one density, or of many that are mixed.
pub(super) struct Replicated {
    pub(super) units: Vec<Unit>,
}

impl Replicated {
    /// Variance of the estimate of `sum_u a_u mean(g)` by the spread between replicates (which sees a mode that only some of
    /// them found) and as if draws were independent, and how far weighting the replicates by their evidence moves it.
    fn spread(&self, g: &(dyn Fn(&[f64]) -> f64 + Sync)) -> [f64; 3] {
        let parts: Vec<[f64; 3]> = self
            .units
            .par_iter()
            .map(|unit| {
                let runs = unit.replicates.len() as f64;
                let mean_of = |draws: &Vec<Vec<f64>>| draws.iter().map(|x| g(x)).sum::<f64>() / draws.len() as f64;
                let means: Vec<f64> = unit.replicates.iter().map(|(_, draws)| mean_of(draws)).collect();
                let own: f64 = unit.replicates.iter().zip(&means).map(|((share, _), m)| share * m).sum();
                let (mut between, mut independent) = (0.0, 0.0);
                for ((share, draws), m) in unit.replicates.iter().zip(&means) {
                    between += (share * (m - own)).powi(2);
                    let spread = draws.iter().map(|x| (g(x) - own).powi(2)).sum::<f64>() / draws.len() as f64;
                    independent += share * share * spread / draws.len() as f64;
                }
                let correction = if runs > 1.0 { runs / (runs - 1.0) } else { 1.0 };
                let moved = means.iter().sum::<f64>() / runs - own;
                let squared = unit.weight * unit.weight;
                [squared * between * correction, squared * independent, unit.weight * moved]
            })
            .collect();
        [0, 1, 2].map(|k| parts.iter().map(|p| p[k]).sum())
    }

    /// Summary of a quantity of the parameters.
    ///
    /// Standard errors are those of independent draws, inflated by the largest ratio of the two variances over mean, sd and
    /// quantiles (one ratio from few replicates is noisy, and a mode that is found by chance shows in some statistic first), and
    /// widened by what evidence weights move: a bias of the order of one over the number of particles, alike in all fits, does
    /// not show in the spread.
    pub(super) fn summary(&self, name: &str, f: &(dyn Fn(&[f64]) -> f64 + Sync)) -> QuantitySummary {
        let (mut values, mut weights) = (Vec::new(), Vec::new());
        for unit in &self.units {
            for (share, draws) in &unit.replicates {
                values.extend(draws.iter().map(|x| f(x)));
                weights.extend(std::iter::repeat_n(unit.weight * share / draws.len() as f64, draws.len()));
            }
        }
        let mut out = weighted(name, &values, &weights);
        let (mean, sd) = (out.mean, out.sd);
        let mut spreads = vec![self.spread(f), self.spread(&|x| (f(x) - mean).powi(2))];
        spreads.extend(out.quantiles().map(|q| self.spread(&|x| f64::from(u8::from(f(x) <= q)))));
        let inflation = spreads.iter().filter(|s| s[1] > 0.0).map(|s| s[0] / s[1]).fold(1.0, |m: f64, r| m.max(r));
        let errors: Vec<f64> = spreads.iter().map(|s| (s[1] * inflation).sqrt().hypot(s[2])).collect();
        let sorted = Sorted::new(&values, &weights);
        // Where the probability may be, back on the scale of the quantity. Near a gap between modes one standard error may move
        // the quantile little and the next one across the gap, so what counts is the most that one to four move it, by each.
        let back = |k: usize| {
            let (p, error) = (PROBABILITIES[k], errors[k + 2]);
            let moved = |by: f64| (sorted.quantile(p + by * error) - sorted.quantile(p)).abs() / by.abs();
            [1.0, 2.0, 4.0].into_iter().flat_map(|by| [moved(by), moved(-by)]).fold(0.0, f64::max)
        };
        out.mcse_mean = Some(errors[0]);
        out.mcse_sd = Some(errors[1] / (2.0 * sd));
        out.mcse_quantiles = Some([0, 1, 2, 3, 4].map(back));
        let tail = |k: usize| PROBABILITIES[k] * (1.0 - PROBABILITIES[k]) / errors[k + 2].powi(2);
        out.ess_bulk = Some((sd / errors[0]).powi(2));
        out.ess_tail = Some(tail(0).min(tail(4)));
        out
    }

    /// Values of a quantity by replicate, for R-hat within one unit.
    pub(super) fn chains(&self, unit: usize, f: &dyn Fn(&[f64]) -> f64) -> Vec<Vec<f64>> {
        self.units[unit].replicates.iter().map(|(_, draws)| draws.iter().map(|x| f(x)).collect()).collect()
    }

    /// `n` equally weighted draws by stratified resampling, with the unit of each: one from each of `n` parts of equal weight,
    /// in the order of units, replicates and draws.
    pub(super) fn thin(&self, n: usize, stream: Stream) -> (Vec<Vec<f64>>, Vec<usize>) {
        let mut rng = stream.rng();
        let mut parts =
            self.units.iter().enumerate().flat_map(|(u, unit)| {
                unit.replicates.iter().map(move |(share, draws)| (unit.weight * share, u, draws))
            });
        let total: f64 = parts.clone().map(|part| part.0).sum();
        let (mut weight, mut unit, mut draws) = parts.next().expect("a density has draws");
        let mut before = 0.0;
        let mut out = (Vec::with_capacity(n), Vec::with_capacity(n));
        for k in 0..n {
            let target = total * (k as f64 + rng.random::<f64>()) / n as f64;
            while before + weight < target
                && let Some(next) = parts.next()
            {
                before += weight;
                (weight, unit, draws) = next;
            }
            let place = (target - before) / weight * draws.len() as f64;
            out.0.push(draws[(place as usize).min(draws.len() - 1)].clone());
            out.1.push(unit);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::special::{normal_cdf, normal_density, normal_quantile};

    /// Quantiles of a normal as equally weighted values.
    fn normal(n: usize, mean: f64, sd: f64) -> impl Iterator<Item = f64> {
        (0..n).map(move |i| mean + sd * normal_quantile((i as f64 + 0.5) / n as f64))
    }

    #[test]
    fn one_mode_has_the_shortest_interval() {
        let values: Vec<f64> = normal(4000, 2.0, 0.1).collect();
        let out = weighted("x", &values, &vec![1.0; 4000]);
        let [[low, high]] = out.hdi90[..] else { panic!("{:?}", out.hdi90) };
        // By symmetry the interval is the central one, and one of the places tried. The quantiles of 4000 values, which lie a
        // 4000th of probability apart, are off by at most that over the density.
        let (half, density) =
            (0.1 * normal_quantile(0.95), (-0.5 * normal_quantile(0.95).powi(2)).exp() / (0.1 * 2.506_628));
        assert!((high - low - 2.0 * half).abs() <= 2.0 / (4000.0 * density), "{low} {high}");
        assert!(high - low <= out.q95 - out.q05);
    }

    #[test]
    fn two_modes_have_two_intervals_with_their_share() {
        let values: Vec<f64> = normal(3000, -1.0, 0.1).chain(normal(1000, 3.0, 0.4)).collect();
        let out = weighted("x", &values, &vec![1.0; 4000]);
        let [first, second] = out.hdi90[..] else { panic!("{:?}", out.hdi90) };
        let share =
            |[low, high]: [f64; 2], mean: f64, sd: f64| normal_cdf((high - mean) / sd) - normal_cdf((low - mean) / sd);
        let held = 0.75 * share(first, -1.0, 0.1) + 0.25 * share(second, 3.0, 0.4);
        // One cell of the curve more or less: 2000 of them over 5.4, at a density of at most 3.
        assert!((held - 0.9).abs() < 2.0 * 3.0 * 5.4 / CURVE as f64, "{held}");
    }

    #[test]
    fn equal_weights_are_had_by_stratified_resampling() {
        // Draws are numbered; two units of weights 3 and 1, the first with replicates of unequal share and length.
        let numbered = |range: std::ops::Range<usize>| range.map(|i| vec![i as f64]).collect::<Vec<_>>();
        let units = vec![
            Unit { weight: 3.0, replicates: vec![(1.0 / 3.0, numbered(0..10)), (2.0 / 3.0, numbered(10..50))] },
            Unit { weight: 1.0, replicates: vec![(1.0, numbered(50..60))] },
        ];
        let replicated = Replicated { units };
        let n = 1000;
        let (draws, of_unit) = replicated.thin(n, Stream::root(1));
        assert!(draws.is_sorted_by_key(|x| x[0] as usize));
        for (i, expected) in
            (0..60).map(|i| (i, [0.25 / 10.0, 0.5 / 40.0, 0.25 / 10.0][usize::from(i >= 10) + usize::from(i >= 50)]))
        {
            let count = draws.iter().filter(|x| x[0] == f64::from(i)).count() as f64;
            // A draw covers whole strata and parts of two more at most.
            assert!((count - n as f64 * expected).abs() < 2.0, "{i}: {count}");
        }
        assert!(draws.iter().zip(of_unit).all(|(x, unit)| unit == usize::from(x[0] >= 50.0)));
    }

    #[test]
    fn a_sketch_follows_narrow_peaks_and_has_unit_area() {
        let density = |x: f64| 0.9 * normal_density(x) + 0.1 * normal_density((x - 3.0) / 0.01) / 0.01;
        let curve: Vec<(f64, f64)> = (0..CURVE).map(|i| -5.0 + 0.005 * i as f64).map(|x| (x, density(x))).collect();
        let shown = sketch(&curve);
        assert!(shown.len() <= SKETCH && shown.is_sorted_by(|a, b| a[0] < b[0]), "{}", shown.len());
        let area: f64 = shown.windows(2).map(|w| 0.5 * (w[0][1] + w[1][1]) * (w[1][0] - w[0][0])).sum();
        let highest = density(3.0);
        // Each line is off by less than what is invisible, over ten units; six digits of both are a rounding besides.
        assert!((area - 1.0).abs() < 10.0 * INVISIBLE * highest, "{area}");
        assert!(shown.iter().any(|[x, d]| *x == 3.0 && (d / highest - 1.0).abs() < 1e-3), "the peak is a point of it");
        let text = serde_json::to_string_pretty(&QuantitySummary {
            curve: shown,
            ..QuantitySummary::new("x", 0.0, 1.0, [0.0; 5], Vec::new())
        });
        let text = text.unwrap();
        assert!(text.lines().count() < 30, "{text}");
        assert_eq!(
            serde_json::from_str::<QuantitySummary>(&text).unwrap().curve.len(),
            text.matches("],[").count() + 1
        );
    }

    #[test]
    fn what_has_no_density_has_no_curve() {
        assert!(weighted("x", &[2.0; 10], &[0.1; 10]).curve.is_empty());
        assert!(weighted("x", &[f64::NAN, 1.0, 2.0], &[1.0; 3]).curve.iter().flatten().all(|x| x.is_finite()));
    }
}
