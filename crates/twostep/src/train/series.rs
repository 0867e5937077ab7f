//! The T-step of series: principal components of the runs, and a T-posterior of each component's scores.

use super::{
    Block, Fit, ImportanceReport, LeaveOneOut, OutputTask, ParameterSummary, Predicted, Rows, TReport, TrainSpec,
    TrainingSet,
};
use crate::draws::Draws;
use crate::error::{Error, Result};
use crate::matrix::Matrix;
use crate::monitor::Monitor;
use crate::special::normal_cdf;
use crate::stream::Stream;
use crate::surrogate::{Components, InputScale, Scratch, Series, Surrogate};
use faer::Mat;
use std::sync::Arc;

/// Share of the variance that components may leave out.
const LEFT_OUT: f64 = 1e-3;

/// Most components: what is left out of smooth series by a dozen is below any noise.
const MOST_COMPONENTS: usize = 12;

/// Directions among what is left out that are told apart.
const MOST_LEFT_OUT: usize = 8;

/// Places of the common grid of series that share none.
const MOST_PLACES: usize = 200;

/// Rounds in which missing values and components are found from each other, at most, and the change in sds at which they end.
const ROUNDS: usize = 500;
const SETTLED: f64 = 1e-8;

/// The runs of a series at common coordinates.
struct Aligned {
    at: Vec<f64>,
    /// A row for each run, NaN where it has no value.
    values: Matrix,
    /// Known simulation noise of each value.
    noise: Matrix,
}

impl Aligned {
    /// Coordinates that half of the runs have or more; where runs have few in common, as with steps of their own, evenly spaced ones
    /// between which values are interpolated.
    fn new(rows: &Rows) -> Self {
        let (n, last) = (rows.runs.len(), rows.x.cols() - 1);
        let mut all: Vec<f64> = (0..rows.z.len()).map(|row| rows.x[(row, last)]).collect();
        all.sort_by(f64::total_cmp);
        let mut common: Vec<(f64, usize)> = Vec::new();
        for t in all {
            match common.last_mut().filter(|(at, _)| *at == t) {
                Some((_, count)) => *count += 1,
                None => common.push((t, 1)),
            }
        }
        common.retain(|(_, count)| 2 * count >= n);
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let of_runs = |f: &dyn Fn(&[usize]) -> f64| median(rows.runs.iter().map(|run| f(run)).collect());
        let usual = of_runs(&|run| run.len() as f64) as usize;
        let interpolated = 2 * common.len() < usual;
        let at: Vec<f64> = if interpolated {
            let places = usual.clamp(2, MOST_PLACES);
            let coordinate = |row: &usize| rows.x[(*row, last)];
            let first = of_runs(&|run| run.iter().map(coordinate).fold(f64::INFINITY, f64::min));
            let end = of_runs(&|run| run.iter().map(coordinate).fold(f64::NEG_INFINITY, f64::max));
            (0..places).map(|i| first + (end - first) * i as f64 / (places - 1) as f64).collect()
        } else {
            common.iter().map(|(t, _)| *t).collect()
        };
        let (mut values, mut noise) = (Matrix::from_fn(n, at.len(), |_, _| f64::NAN), Matrix::zeros(n, at.len()));
        for (i, run) in rows.runs.iter().enumerate() {
            let mut own: Vec<usize> = run.clone();
            own.sort_by(|a, b| rows.x[(*a, last)].total_cmp(&rows.x[(*b, last)]));
            for (j, t) in at.iter().enumerate() {
                let after = own.partition_point(|&row| rows.x[(row, last)] < *t);
                let Some(&next) = own.get(after) else { continue };
                if rows.x[(next, last)] == *t {
                    (values[(i, j)], noise[(i, j)]) = (rows.z[next], rows.sigma_s[next]);
                } else if let (true, Some(&before)) = (interpolated, after.checked_sub(1).and_then(|b| own.get(b))) {
                    let (a, b) = (rows.x[(before, last)], rows.x[(next, last)]);
                    let share = (t - a) / (b - a);
                    values[(i, j)] = (1.0 - share) * rows.z[before] + share * rows.z[next];
                    noise[(i, j)] = rows.sigma_s[before].max(rows.sigma_s[next]);
                }
            }
        }
        Self { at, values, noise }
    }

    /// Components by a singular value decomposition. Missing values are found with them: what is expected of a run's scores by the
    /// values that it has gives those that it lacks, and so on until nothing changes.
    fn components(&self) -> Option<Components> {
        let (n, m) = (self.values.rows(), self.at.len());
        let mean_of = |values: &Matrix| -> Vec<f64> {
            let mean = |j: usize| {
                let known = (0..n).map(|i| values[(i, j)]).filter(|v| !v.is_nan());
                let (sum, count) = known.fold((0.0, 0.0), |(sum, count), v| (sum + v, count + 1.0));
                sum / count
            };
            (0..m).map(mean).collect()
        };
        let gaps: Vec<(usize, usize)> =
            (0..n).flat_map(|i| (0..m).map(move |j| (i, j))).filter(|at| self.values[*at].is_nan()).collect();
        let (mut filled, start) = (self.values.clone(), mean_of(&self.values));
        gaps.iter().for_each(|&(i, j)| filled[(i, j)] = start[j]);
        for _ in 0..ROUNDS {
            let found = decompose(&self.at, &filled, &mean_of(&filled))?;
            let (mut change, mut size) = (0.0_f64, 0.0_f64);
            for i in 0..n {
                let missing: Vec<usize> = gaps.iter().filter(|gap| gap.0 == i).map(|gap| gap.1).collect();
                if missing.is_empty() {
                    continue;
                }
                let (scores, _) = expected_scores(&found, self.values.row(i))?;
                for j in missing {
                    let (mean, components) = found.known(j);
                    let value = mean + components.iter().zip(&scores).map(|(v, z)| v * z).sum::<f64>();
                    change = change.max((value - filled[(i, j)]).abs());
                    size = size.max(components.iter().map(|v| v * v).sum::<f64>().sqrt());
                    filled[(i, j)] = value;
                }
            }
            if change <= SETTLED * size {
                return Some(found);
            }
        }
        decompose(&self.at, &filled, &mean_of(&filled))
    }

    /// Every run's score of every component, and the sd that missing values and known noise leave to it; none of a run whose values say
    /// nothing of it.
    fn scores(&self, components: &Components) -> Vec<Vec<Option<(f64, f64)>>> {
        let (n, m, k_all) = (self.values.rows(), self.at.len(), components.len());
        let squares: Vec<f64> =
            (0..k_all).map(|k| (0..m).map(|j| components.known(j).1[k].powi(2)).sum::<f64>()).collect();
        let of_run = |i: usize| -> Vec<Option<(f64, f64)>> {
            let row = self.values.row(i);
            let n_known = row.iter().filter(|v| !v.is_nan()).count();
            let expected = if n_known < m { expected_scores(components, row) } else { None };
            let of_component = |k: usize| {
                // The projection of noise; as if the missing values had that of the known ones.
                let noise: f64 = (0..m)
                    .filter(|&j| !row[j].is_nan())
                    .map(|j| (components.known(j).1[k] * self.noise[(i, j)]).powi(2))
                    .sum::<f64>()
                    / squares[k].powi(2)
                    * m as f64
                    / n_known as f64;
                let noise = if squares[k] > 0.0 { noise } else { 0.0 };
                if n_known == m {
                    let sum: f64 = (0..m).map(|j| (row[j] - components.known(j).0) * components.known(j).1[k]).sum();
                    return Some((if squares[k] > 0.0 { sum / squares[k] } else { 0.0 }, noise.sqrt()));
                }
                // What the known values say, freed of the scores' own distribution, which has the variance one.
                let (scores, variances) = expected.as_ref()?;
                let precision = variances[k].recip() - 1.0;
                let whole = components.left_out() / squares[k];
                let informed = precision > 1e-6;
                informed.then(|| {
                    (scores[k] / variances[k] / precision, ((precision.recip() - whole).max(0.0) + noise).sqrt())
                })
            };
            (0..k_all).map(of_component).collect()
        };
        let by_run: Vec<_> = (0..n).map(of_run).collect();
        (0..k_all).map(|k| by_run.iter().map(|scores| scores[k]).collect()).collect()
    }
}

/// Mean and variances of a run's scores, whose distribution is standard normal, given those of its values that are no gaps.
fn expected_scores(components: &Components, row: &[f64]) -> Option<(Vec<f64>, Vec<f64>)> {
    let k = components.len();
    let known: Vec<usize> = (0..row.len()).filter(|&j| !row[j].is_nan()).collect();
    let scale = known.iter().map(|&j| components.known(j).1.iter().map(|v| v * v).sum::<f64>()).sum::<f64>();
    // Where the components leave nothing out, as good as nothing.
    let variance = components.left_out().max(1e-12 * scale).max(f64::MIN_POSITIVE);
    let precision = Mat::from_fn(k, k, |a, b| {
        let sum: f64 = known.iter().map(|&j| components.known(j).1[a] * components.known(j).1[b]).sum();
        sum / variance + f64::from(u8::from(a == b))
    });
    let factor = precision.llt(faer::Side::Lower).ok()?;
    let right = Mat::from_fn(k, 1, |a, _| {
        known.iter().map(|&j| components.known(j).1[a] * (row[j] - components.known(j).0)).sum::<f64>() / variance
    });
    use faer::linalg::solvers::Solve;
    let (scores, inverse) = (factor.solve(&right), factor.solve(Mat::<f64>::identity(k, k)));
    Some(((0..k).map(|a| scores[(a, 0)]).collect(), (0..k).map(|a| inverse[(a, a)]).collect()))
}

/// Components of complete runs.
fn decompose(at: &[f64], values: &Matrix, mean: &[f64]) -> Option<Components> {
    let (n, m) = (values.rows(), at.len());
    let svd = Mat::from_fn(n, m, |i, j| values[(i, j)] - mean[j]).thin_svd().ok()?;
    let (singular, vectors) = (svd.S().column_vector(), svd.V());
    let variances: Vec<f64> = (0..singular.nrows()).map(|k| singular[k].powi(2)).collect();
    let total: f64 = variances.iter().sum();
    let most = MOST_COMPONENTS.min(n / 3).max(1).min(variances.len());
    let left_after = |k: usize| variances[k..].iter().sum::<f64>();
    let k_all = (1..most).find(|&k| left_after(k) <= LEFT_OUT * total).unwrap_or(most);
    let components = Matrix::from_fn(m, k_all, |j, k| singular[k] / (n as f64).sqrt() * vectors[(j, k)]);
    // Directions that the mean and the components have taken have no spread of their own.
    let degrees = (n as f64 - 1.0 - k_all as f64).max(1.0);
    let n_left = (variances.len() - k_all).min(MOST_LEFT_OUT);
    let left_out = Matrix::from_fn(m, n_left, |j, k| singular[k_all + k] / degrees.sqrt() * vectors[(j, k_all + k)]);
    let share = if total > 0.0 { 1.0 - left_after(k_all) / total } else { 1.0 };
    Some(Components::new(at.to_vec(), mean, &components, &left_out, share))
}

/// Training rows of every component's scores: one for each run that says something of it.
pub(super) struct Scores {
    of_components: Vec<(Rows, Vec<Option<usize>>)>,
}

impl Scores {
    fn new(aligned: &Aligned, components: &Components, rows: &Rows) -> Self {
        let first: Vec<usize> = rows.runs.iter().map(|run| run[0]).collect();
        let inputs: Vec<usize> = (0..rows.x.cols() - 1).collect();
        let x = rows.x.select_rows(&first).select_cols(&inputs);
        let of_component = |scores: Vec<Option<(f64, f64)>>| {
            let runs: Vec<usize> = (0..scores.len()).filter(|&i| scores[i].is_some()).collect();
            let known: Vec<(f64, f64)> = scores.iter().copied().flatten().collect();
            let (z, sigma_s): (Vec<f64>, Vec<f64>) = known.into_iter().unzip();
            let own = Rows::new(&x.select_rows(&runs), &z, &sigma_s, &runs);
            let mut row_of = vec![None; scores.len()];
            runs.iter().zip(&own.row_of).for_each(|(&run, &row)| row_of[run] = Some(row));
            (own, row_of)
        };
        Self { of_components: aligned.scores(components).into_iter().map(of_component).collect() }
    }
}

/// The surrogate of an output by principal components of its runs.
pub(super) fn build(task: &OutputTask<'_>, set: &TrainingSet, scales: &[InputScale], rows: &Rows) -> Result<Series> {
    let aligned = Aligned::new(rows);
    let components = aligned.components().ok_or_else(|| no_components(task.name))?;
    let spec = task.spec.components().expect("a series by components");
    let score = OutputTask { spec: &spec, affine: None, n_inputs: task.n_inputs - 1, ..*task };
    let scores = Scores::new(&aligned, &components, rows);
    let built = scores.of_components.iter().map(|(own, _)| score.build(set, scales, &[], own));
    Series::new(components, built.collect::<Result<_>>()?).ok_or_else(|| {
        let found = format!("the surrogate of `{}` is no polynomial", task.name);
        Error::invalid("outputs", found, "use kind = \"pce\" or \"gp\" for a series, or series = \"coordinate\"")
    })
}

fn no_components(output: &str) -> Error {
    let found = "the runs have no singular value decomposition".to_owned();
    Error::failed(format!("T-step of `{output}`"), found, "check the runs, or write series = \"coordinate\"")
}

/// Trains every component's scores.
pub(super) fn train(
    task: &OutputTask<'_>,
    surrogate: &Arc<dyn Surrogate>,
    rows: &Rows,
    spec: &TrainSpec,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<Block> {
    let series = surrogate.series().expect("the surrogate of a series");
    let components = series.components().ok_or_else(|| no_components(task.name))?;
    let scores = Scores::new(&Aligned::new(rows), components, rows);
    let mut blocks = Vec::new();
    for (k, (own, _)) in scores.of_components.iter().enumerate() {
        let name = format!("{}, component {}", task.name, k + 1);
        let fit = Fit { surrogate: &series.scores()[k], rows: own, sigma_a: &task.spec.sigma_a, name: &name };
        blocks.push(fit.train(spec, 1, stream.named(&format!("pc{}", k + 1)), monitor)?);
    }
    let n_draws = blocks[0].sigma_a.len();
    let mut coefficients = Vec::new();
    for block in &blocks {
        coefficients.extend_from_slice(block.coefficients.data());
        coefficients.extend_from_slice(&block.sigma_a);
    }
    let coefficients = Matrix::from_rows(series.names().len(), n_draws, coefficients);
    let sigma_a: Vec<f64> = (0..n_draws)
        .map(|s| {
            let variances = series.error_variances(&coefficients, s);
            let regression: f64 = components.mean_squares().iter().zip(variances).map(|(square, v)| square * v).sum();
            (regression + components.left_out()).sqrt()
        })
        .collect();
    let report = report(task, series, rows, &scores, &blocks, (&coefficients, &sigma_a));
    Ok(Block { coefficients, sigma_a, log_weights: blocks[0].log_weights.clone(), report })
}

/// What the components' reports say of the series.
fn report(
    task: &OutputTask<'_>,
    series: &Series,
    rows: &Rows,
    scores: &Scores,
    blocks: &[Block],
    (coefficients, sigma_a): (&Matrix, &[f64]),
) -> TReport {
    let components = series.components().expect("a series by components");
    let mut parameters: Vec<ParameterSummary> =
        blocks.iter().flat_map(|block| block.report.parameters.clone()).collect();
    parameters.iter_mut().zip(series.names()).for_each(|(parameter, name)| parameter.name.clone_from(name));
    let all = Draws::new(vec!["sigma_a".to_owned()], Matrix::from_rows(1, sigma_a.len(), sigma_a.to_vec()));
    parameters.extend(super::summary(&all));
    let (n, last) = (rows.z.len(), rows.x.cols() - 1);
    let mut eta = Matrix::default();
    series.predict(&rows.x, coefficients, &mut eta, &mut Scratch::default());
    let errors = series.error_sds(&rows.x, coefficients).expect("a series by components");
    let weights = vec![1.0 / sigma_a.len() as f64; sigma_a.len()];
    let mut left_out = vec![(f64::NAN, f64::NAN, f64::NAN); n];
    let mut inside = 0;
    for (run, own) in rows.runs.iter().enumerate() {
        for &i in own {
            let curves = components.at(rows.x[(i, last)]);
            let sd = errors.row(i).iter().map(|sd| sd.hypot(rows.sigma_s[i])).collect();
            let predicted = Predicted { z: rows.z[i], eta: eta.row(i), sd };
            inside += usize::from((0.05..=0.95).contains(&predicted.below(&weights)));
            // Scores without the run, whose part in the components themselves is not taken out.
            let of_component = |(k, block): (usize, &Block)| {
                let row = scores.of_components[k].1[run]?;
                block.report.leave_one_out.predictions[row]
            };
            let Some(predicted) = blocks.iter().enumerate().map(of_component).collect::<Option<Vec<_>>>() else {
                continue;
            };
            let parts = || curves.components().iter().zip(&predicted);
            let mean = curves.mean() + parts().map(|(v, (mean, _))| v * mean).sum::<f64>();
            let none = vec![0.0; components.len()];
            let variance = parts().map(|(v, (_, sd))| (v * sd).powi(2)).sum::<f64>() + curves.error_variance(&none);
            let sd = variance.sqrt().hypot(rows.sigma_s[i]);
            left_out[i] = (mean, sd, normal_cdf((rows.z[i] - mean) / sd));
        }
    }
    let mut leave_one_out = LeaveOneOut::new(&rows.z, &left_out, None);
    leave_one_out.unreliable = blocks.iter().map(|block| block.report.leave_one_out.unreliable).max().unwrap_or(0);
    TReport {
        output: task.name.to_string(),
        method: blocks[0].report.method.clone(),
        n_rows: n,
        n_runs: rows.runs.len(),
        parameters,
        predictive_coverage_90: inside as f64 / n as f64,
        leave_one_out,
        divergences: blocks.iter().map(|block| block.report.divergences).sum(),
        troubled: blocks.iter().any(|block| block.report.troubled),
        warnings: blocks.iter().flat_map(|block| block.report.warnings.clone()).collect(),
        choice: None,
        terms: None,
        series: None,
        importance: worst(blocks.iter().filter_map(|block| block.report.importance)),
    }
}

/// The least that the components' importance weights say.
fn worst(of_components: impl Iterator<Item = ImportanceReport>) -> Option<ImportanceReport> {
    of_components.reduce(|a, b| ImportanceReport {
        k_hat: a.k_hat.max(b.k_hat),
        effective: a.effective.min(b.effective),
        normals: a.normals.max(b.normals),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const RUNS: usize = 24;

    /// Runs whose series have two components: `a sin(t/2) + 0.3 b cos(t)` on a line, at the coordinates that `has` leaves.
    fn rows(at: &[f64], has: impl Fn(usize, usize) -> bool) -> (Rows, Matrix) {
        let scores = Matrix::from_fn(RUNS, 2, |i, k| (1.7 * i as f64 + 2.0 * k as f64 * i as f64).sin());
        let (mut x, mut z, mut runs) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..RUNS {
            for (_, t) in at.iter().enumerate().filter(|(j, _)| has(i, *j)) {
                x.extend([scores[(i, 0)], *t]);
                z.push(0.2 * t + scores[(i, 0)] * (0.5 * t).sin() + 0.3 * scores[(i, 1)] * t.cos());
                runs.push(i);
            }
        }
        let n = z.len();
        (Rows::of(true, &Matrix::from_rows(n, 2, x), &z, &vec![0.0; n], &runs), scores)
    }

    fn at() -> Vec<f64> {
        (0..15).map(|j| 0.5 * f64::from(j)).collect()
    }

    /// Series of two components are found again; with gaps too, whose values the others tell.
    #[test]
    fn gaps_are_filled_by_what_the_other_runs_say() {
        let all = rows(&at(), |_, _| true).0;
        let is_gap = |i: usize, j: usize| (i % 4 == 1 && (5..9).contains(&j)) || (i == 2 && j > 8);
        let gaps = |i: usize, j: usize| !is_gap(i, j);
        let (some, _) = rows(&at(), gaps);
        let complete = Aligned::new(&all);
        let gappy = Aligned::new(&some);
        let expected = complete.components().unwrap();
        let found = gappy.components().unwrap();
        assert_eq!((expected.len(), found.len()), (2, 2));
        assert!(1.0 - expected.share() < 1e-12, "{}", expected.share());
        let (scores, known) = (gappy.scores(&found), complete.scores(&expected));
        for i in 0..RUNS {
            let (mut own, mut right) = (Vec::new(), Vec::new());
            for j in 0..at().len() {
                let value = |components: &Components, scores: &[Vec<Option<(f64, f64)>>]| {
                    let (mean, v) = components.known(j);
                    mean + (0..2).map(|k| v[k] * scores[k][i].unwrap().0).sum::<f64>()
                };
                own.push(value(&found, &scores));
                right.push(value(&expected, &known));
            }
            // Rounds end once nothing changes by 1e-8 sds; they converge by a factor of a half or better, and the sd is below two.
            let gap = own.iter().zip(&right).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(gap < 1e-6, "run {i}: {gap}");
            let is_whole = (0..at().len()).all(|j| gaps(i, j));
            assert!(!is_whole || scores.iter().all(|of| of[i].unwrap().1 == 0.0), "a whole run's scores are known");
        }
    }

    /// Runs that share no coordinate are interpolated; what a straight line between values 0.1 apart misses is below
    /// `0.1^2 / 8` times the second derivative, 0.55 at most.
    #[test]
    fn runs_with_steps_of_their_own_share_a_grid() {
        let (mut x, mut z, mut runs) = (Vec::new(), Vec::new(), Vec::new());
        let score = |i: usize| (1.7 * i as f64).sin();
        for i in 0..RUNS {
            for j in 0..71 {
                let t = 0.1 * f64::from(j) + 0.001 * i as f64;
                x.extend([score(i), t]);
                z.push(score(i) * (0.5 * t).sin());
                runs.push(i);
            }
        }
        let n = z.len();
        let rows = Rows::of(true, &Matrix::from_rows(n, 2, x), &z, &vec![0.0; n], &runs);
        let aligned = Aligned::new(&rows);
        let components = aligned.components().unwrap();
        assert_eq!((components.len(), aligned.at.len()), (1, 71));
        for i in 0..RUNS {
            for (j, t) in aligned.at.iter().enumerate().filter(|(j, _)| !aligned.values[(i, *j)].is_nan()) {
                let gap = (aligned.values[(i, j)] - score(i) * (0.5 * t).sin()).abs();
                assert!(gap <= 0.01 / 8.0 * 0.55, "{gap}");
            }
        }
    }

    #[test]
    fn series_that_do_not_vary_have_one_component_of_nothing() {
        let (x, z): (Vec<f64>, Vec<f64>) =
            ((0..24).flat_map(|i| [f64::from(i / 3), f64::from(i % 3)]).collect(), vec![2.0; 24]);
        let runs: Vec<usize> = (0..24).map(|i| i / 3).collect();
        let rows = Rows::of(true, &Matrix::from_rows(24, 2, x), &z, &[0.0; 24], &runs);
        let aligned = Aligned::new(&rows);
        let components = aligned.components().unwrap();
        assert_eq!((components.len(), components.share()), (1, 1.0));
        assert!(aligned.scores(&components)[0].iter().all(|score| *score == Some((0.0, 0.0))));
    }
}
