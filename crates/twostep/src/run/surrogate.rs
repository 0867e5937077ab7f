//! The trained surrogate at inputs of the user's choice, at the runs that it did not see, and how it depends on its inputs.

use super::Findings;
use super::verify::quantile;
use crate::draws::Sorted;
use crate::error::{Error, Result};
use crate::matrix::Matrix;
use crate::special::{normal_cdf, normal_quantile};
use crate::surrogate::Scratch;
use crate::table::Table;
use crate::train::{Order, TPosterior};
use rayon::prelude::*;

/// What is predicted of one value, on the output's own scale.
struct Prediction {
    /// Mean, sd, 5 % quantile, median and 95 % quantile over the T-draws.
    surrogate: [f64; 5],
    /// Mean, sd, 5 % and 95 % quantile of a run, which has the approximation error besides.
    run: [f64; 4],
}

/// Mean and sd of weighted values.
fn moments(values: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, f64) {
    let mean: f64 = values.clone().map(|(value, weight)| weight * value).sum();
    let variance: f64 = values.map(|(value, weight)| weight * (value - mean).powi(2)).sum();
    (mean, variance.sqrt())
}

/// Of values `eta` with approximation errors, by T-draws of these weights; `log` where eta is the logarithm of the output.
fn prediction(eta: &[f64], sigma_a: &[f64], weights: &[f64], log: bool) -> Prediction {
    let natural = |z: f64| if log { z.exp() } else { z };
    let (mean, sd) = moments(eta.iter().map(|e| natural(*e)).zip(weights.iter().copied()));
    let sorted = Sorted::new(eta, weights);
    let [q05, q50, q95] = [0.05, 0.5, 0.95].map(|p| natural(sorted.quantile(p)));
    let parts = || eta.iter().zip(sigma_a).zip(weights).map(|((e, s), w)| (*e, *s, *w));
    // The mean of a log-normal variable, and the variance of a mixture of them.
    let (run_mean, run_sd) = match log {
        false => {
            let variance: f64 = parts().map(|(e, s, w)| w * (s * s + (e - mean).powi(2))).sum();
            (mean, variance.sqrt())
        }
        true => {
            let (run_mean, between) = moments(parts().map(|(e, s, w)| ((e + 0.5 * s * s).exp(), w)));
            let within: f64 = parts().map(|(e, s, w)| w * (2.0 * e + s * s).exp() * (s * s).exp_m1()).sum();
            (run_mean, (between * between + within).sqrt())
        }
    };
    let (centre, spread) = moments(eta.iter().copied().zip(weights.iter().copied()));
    let errors: f64 = parts().map(|(_, s, w)| w * s * s).sum();
    let below = |z: f64| {
        // A surrogate without error is where it is.
        let part = |(e, s, w): (f64, f64, f64)| w * if s > 0.0 { normal_cdf((z - e) / s) } else { f64::from(e <= z) };
        parts().map(part).sum::<f64>()
    };
    let whole = (spread * spread + errors).sqrt();
    let ends = match sigma_a.iter().all(|s| *s == 0.0) {
        true => [q05, q95],
        false => [0.05, 0.95].map(|p| natural(quantile(&below, centre, whole, p))),
    };
    Prediction { surrogate: [mean, sd, q05, q50, q95], run: [run_mean, run_sd, ends[0], ends[1]] }
}

impl Findings {
    fn trained(&self) -> Result<&TPosterior> {
        self.posterior.as_ref().ok_or_else(|| {
            let why = self.stale.as_ref().map_or("it was never made", |(_, why)| why);
            Error::failed("train", format!("there is no surrogate: {why}"), "train it first")
        })
    }

    /// The surrogate at inputs in natural units: one row per row of `points` and output, with the inputs, `output`, and `mean`, `sd`,
    /// `q05`, `q50`, `q95` of the output over the T-draws (epistemic uncertainty alone), then `run_mean`, `run_sd`, `run_q05`,
    /// `run_q95` of a run there, which has the approximation error besides. All are exact for the T-draws: quantiles of a run are
    /// those of the mixture of (log-)normal distributions that the T-draws are.
    ///
    /// # Errors
    /// No T-posterior; a column missing in `points`; unless `extrapolate`, inputs outside the ranges that it was trained on.
    pub fn surrogate_at(&self, points: &Table, extrapolate: bool) -> Result<Table> {
        let posterior = self.trained()?;
        let (names, scales) = (self.study.input_names(), self.study.input_scales());
        let n_used = posterior.outputs.iter().map(|output| output.n_inputs).max().unwrap_or(0);
        let x = points.matrix(&names[..n_used])?;
        for (d, scale) in scales.iter().enumerate().take(n_used).filter(|_| !extrapolate) {
            let slack = 1e-9 * (scale.upper - scale.lower);
            let is_inside = |value: f64| (scale.lower - slack..=scale.upper + slack).contains(&value);
            if let Some(row) = (0..x.rows()).find(|&i| !is_inside(x[(i, d)])) {
                return Err(Error::invalid(
                    format!("points, row {}, `{}`", row + 1, names[d]),
                    format!(
                        "{} lies outside [{}, {}], where the surrogate was trained",
                        x[(row, d)],
                        scale.lower,
                        scale.upper
                    ),
                    "remove the row, or ask to extrapolate",
                ));
            }
        }
        let weights = posterior.draws.weights();
        let mut columns: [Vec<f64>; 9] = Default::default();
        for (o, output) in posterior.outputs.iter().enumerate() {
            let (coefficients, sigma_a) = posterior.output_draws(o);
            let inputs = Matrix::from_fn(x.rows(), output.n_inputs, |i, d| x[(i, d)]);
            let mut eta = Matrix::default();
            output.surrogate.predict(&inputs, &coefficients, &mut eta, &mut Scratch::default());
            let (shift, factor) = output.affine;
            eta.data_mut().iter_mut().for_each(|eta| *eta = shift + factor * *eta);
            let errors = output.error_sds(&inputs, &coefficients, &sigma_a);
            let all: Vec<Prediction> = (0..x.rows())
                .into_par_iter()
                .map(|i| prediction(eta.row(i), errors.row(i), &weights, output.log))
                .collect();
            for prediction in all {
                let values = prediction.surrogate.into_iter().chain(prediction.run);
                columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
            }
        }
        let mut table = Table::new();
        let n_outputs = posterior.outputs.len();
        for (d, name) in names.iter().enumerate().take(n_used) {
            table = table.with_numbers(name, x.col(d).repeat(n_outputs))?;
        }
        let outputs = posterior.outputs.iter().flat_map(|output| vec![output.name.clone(); x.rows()]).collect();
        table = table.with_texts("output", outputs)?;
        const NAMES: [&str; 9] = ["mean", "sd", "q05", "q50", "q95", "run_mean", "run_sd", "run_q05", "run_q95"];
        NAMES.into_iter().zip(columns).try_fold(table, |table, (name, column)| table.with_numbers(name, column))
    }

    /// Every value of a run against the prediction of a surrogate trained without that run: `run` (from one, failed ones counted),
    /// inputs, `output`, its `value`, and `mean`, `sd`, `q05`, `q95` of the prediction, all in natural units; NaN where the T-draws
    /// have no error to predict with. The prediction is taken as normal, or log-normal where the surrogate models the logarithm.
    ///
    /// # Errors
    /// No T-posterior.
    pub fn left_out(&self) -> Result<Table> {
        let posterior = self.trained()?;
        let names = self.study.input_names();
        let reach = normal_quantile(0.95);
        let mut inputs: Vec<Vec<f64>> = vec![Vec::new(); names.len()];
        let (mut outputs, mut columns): (Vec<String>, [Vec<f64>; 6]) = Default::default();
        for output in &posterior.outputs {
            let rows = output.training_rows(&self.training)?;
            let (shift, factor) = output.affine;
            for (i, run) in rows.runs.iter().enumerate() {
                let (mean, sd) = output
                    .report
                    .leave_one_out
                    .predictions
                    .get(i)
                    .copied()
                    .flatten()
                    .map_or((f64::NAN, f64::NAN), |(mean, sd)| (shift + factor * mean, factor.abs() * sd));
                let natural = |z: f64| if output.log { z.exp() } else { z };
                let (own_mean, own_sd) = match output.log {
                    true => {
                        let centre = (mean + 0.5 * sd * sd).exp();
                        (centre, centre * (sd * sd).exp_m1().sqrt())
                    }
                    false => (mean, sd),
                };
                let [low, high] = [mean - reach * sd, mean + reach * sd].map(natural);
                let values = [self.run_number(*run) as f64, natural(rows.eta[i]), own_mean, own_sd, low, high];
                columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
                outputs.push(output.name.clone());
                for (d, column) in inputs.iter_mut().enumerate() {
                    column.push(if d < output.n_inputs { rows.inputs[(i, d)] } else { f64::NAN });
                }
            }
        }
        let [runs, values @ ..] = columns;
        let mut table = Table::new().with_numbers("run", runs)?;
        for (name, column) in names.iter().zip(inputs) {
            table = table.with_numbers(name, column)?;
        }
        table = table.with_texts("output", outputs)?;
        let named = ["value", "mean", "sd", "q05", "q95"].into_iter().zip(values);
        named.into_iter().try_fold(table, |table, (name, column)| table.with_numbers(name, column))
    }

    /// The number of a training run among all runs, from one: those that failed have theirs, too.
    pub fn run_number(&self, run: usize) -> usize {
        let mut failed: Vec<usize> = self.failed.iter().map(|f| f.run).collect();
        failed.sort_unstable();
        failed.iter().fold(run + 1, |number, &failed| if failed <= number { number + 1 } else { number })
    }

    /// Sobol' indices of every output whose surrogate is a polynomial in more than one input: `output`, `input`, and mean, 5 % and
    /// 95 % quantile over the T-draws of the first-order (`first`) and the total index (`total`).
    ///
    /// # Errors
    /// No T-posterior.
    pub fn sensitivity(&self) -> Result<Table> {
        let posterior = self.trained()?;
        let names = self.study.input_names();
        let (mut outputs, mut inputs): (Vec<String>, Vec<String>) = Default::default();
        let mut columns: [Vec<f64>; 6] = Default::default();
        for (o, output) in posterior.outputs.iter().enumerate() {
            let Some(indices) = posterior.sensitivity(o) else { continue };
            for (d, name) in names.iter().enumerate().take(indices.n_inputs()) {
                let of = |order: Order| {
                    let [low, high] = indices.quantiles(order, d, [0.05, 0.95]);
                    [indices.mean(order, d), low, high]
                };
                let values = [Order::First, Order::Total].into_iter().flat_map(of);
                columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
                outputs.push(output.name.clone());
                inputs.push(name.clone());
            }
        }
        let table = Table::new().with_texts("output", outputs)?.with_texts("input", inputs)?;
        let named = ["first", "first_q05", "first_q95", "total", "total_q05", "total_q95"].into_iter().zip(columns);
        named.into_iter().try_fold(table, |table, (name, column)| table.with_numbers(name, column))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_draw_is_a_normal_or_log_normal_run() {
        let (eta, sigma) = (0.3, 0.2);
        let reach = normal_quantile(0.95) * sigma;
        let plain = prediction(&[eta], &[sigma], &[1.0], false);
        assert_eq!(plain.surrogate, [eta, 0.0, eta, eta, eta]);
        let expected = [eta, sigma, eta - reach, eta + reach];
        // The bisection ends within rounding of numbers below one; so do a square and its root.
        plain.run.iter().zip(expected).for_each(|(found, expected)| {
            assert!((found - expected).abs() < 16.0 * f64::EPSILON, "{found} {expected}");
        });
        let log = prediction(&[eta], &[sigma], &[1.0], true);
        let mean = (eta + 0.5 * sigma * sigma).exp();
        let expected = [mean, mean * (sigma * sigma).exp_m1().sqrt(), (eta - reach).exp(), (eta + reach).exp()];
        log.run.iter().zip(expected).for_each(|(found, expected)| {
            assert!((found - expected).abs() < 32.0 * f64::EPSILON * expected, "{found} {expected}");
        });
    }

    #[test]
    fn without_an_approximation_error_a_run_is_what_the_surrogate_says() {
        let (eta, weights) = ([1.0, 2.0, 4.0], [0.25, 0.5, 0.25]);
        let found = prediction(&eta, &[0.0; 3], &weights, false);
        assert_eq!(found.run, [found.surrogate[0], found.surrogate[1], found.surrogate[2], found.surrogate[4]]);
        assert_eq!(found.surrogate[0], 0.25 + 1.0 + 1.0);
    }

    #[test]
    fn ends_of_a_run_hold_ninety_percent_of_the_mixture() {
        let eta: Vec<f64> = (0..50).map(|s| f64::from(s).sin()).collect();
        let sigma_a: Vec<f64> = (0..50).map(|s| 0.05 + 0.01 * f64::from(s)).collect();
        let weights = vec![0.02; 50];
        for log in [false, true] {
            let run = prediction(&eta, &sigma_a, &weights, log).run;
            for (end, p) in [(run[2], 0.05), (run[3], 0.95)] {
                let z = if log { f64::ln(end) } else { end };
                let below: f64 = eta.iter().zip(&sigma_a).map(|(e, s)| 0.02 * normal_cdf((z - e) / s)).sum();
                // Fifty terms below one, at a place that is known to rounding, where the density is below 20.
                assert!((below - p).abs() < 64.0 * 20.0 * f64::EPSILON, "{below} {p}");
            }
        }
    }
}
