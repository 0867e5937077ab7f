//! Verifies an answer: the real simulator at draws of the I-posterior against what the surrogate predicts there.

use super::predict::{Finished, finished};
use super::runs::{self, Bench, Runner};
use super::stages::{self, Call, Outcome};
use super::{Project, Workplace};
use crate::error::{Error, Result};
use crate::matrix::Matrix;
use crate::monitor::Monitor;
use crate::simulate::{Reading, SimulatorKind};
use crate::special::{gamma_tails, normal_cdf};
use crate::store::{RUNS, RunLedger, RunSource};
use crate::stream::Stream;
use crate::study::Study;
use crate::surrogate::Scratch;
use crate::table::{Table, counted};
use crate::train::TPosterior;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The surrogate is called wrong, or too careful, where its distances from the simulator have less than this probability.
const UNLIKELY: f64 = 0.01;

/// One value of the simulator against the surrogate's prediction, in natural units.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifiedValue {
    /// Number of the run, from one.
    pub run: usize,
    /// Unknowns and conditions by name.
    pub inputs: Vec<(String, f64)>,
    /// The output.
    pub output: String,
    /// The coordinate, of a series.
    pub coordinate: Option<f64>,
    /// What the simulator gave.
    pub simulated: f64,
    /// Median of the surrogate's prediction.
    pub q50: f64,
    /// Its 5 % quantile.
    pub q05: f64,
    /// Its 95 % quantile.
    pub q95: f64,
    /// Probability that the surrogate gives to values below the simulator's.
    pub pit: f64,
    /// Distance from the prediction's mean in its sds, on the surrogate's scale.
    pub z: f64,
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// `agrees`, `too sure` or `too careful`.
    pub verdict: String,
    /// What that means, with the numbers behind it and what to do.
    pub advice: String,
    /// Runs that were compared, and runs that failed.
    pub runs: [usize; 2],
    /// Share of values inside their 90 % interval.
    pub inside_90: f64,
    /// Root of the mean squared z.
    pub rms_z: f64,
    /// Probability of distances as large as these if the surrogate were right.
    pub p_value: f64,
    /// Every value.
    pub values: Vec<VerifiedValue>,
    /// Reasons of the runs that failed.
    pub failures: Vec<String>,
}

impl Project {
    /// Inputs of `n` runs at draws of the answer of setting `index`, at conditions that were measured.
    fn verification_points(&self, index: usize, n: usize) -> Result<(TPosterior, Vec<Vec<f64>>)> {
        let study = &self.settings[index].study;
        let Finished { posterior, answer, .. } = finished(self, index, "verify", study.infer.answer)?;
        let measured = self.measured(index)?;
        let n_conditions = study.n_run_inputs() - study.unknowns.len();
        let mut conditions: Vec<(usize, Vec<f64>)> = Vec::new();
        for measured in &measured {
            for row in 0..measured.known.rows() {
                let own = (measured.experiment_of(row), measured.known.row(row)[..n_conditions].to_vec());
                if !conditions.contains(&own) {
                    conditions.push(own);
                }
            }
        }
        let places: Vec<Vec<usize>> = (0..study.experiments.len().max(1)).map(|e| study.places(e)).collect();
        let earlier = self.verified_runs(study)?;
        let stream = Stream::root(study.seed).named("verify");
        // Draws in an order of their own; those of earlier verifications are passed over.
        let mut draws: Vec<usize> = (0..answer.draws.len()).collect();
        draws.shuffle(&mut stream.named("draws").rng());
        conditions.shuffle(&mut stream.named("conditions").rng());
        let n_conditions = conditions.len().max(1);
        let point = |(i, &draw): (usize, &usize)| {
            let (experiment, own) = conditions.get(i % n_conditions).map_or((0, &[][..]), |(e, own)| (*e, own));
            let unknowns: Vec<f64> = places[experiment].iter().map(|&place| answer.draws[draw][place]).collect();
            [&unknowns[..], own].concat()
        };
        let mut points: Vec<Vec<f64>> = Vec::new();
        // A draw that comes twice would be one run counted twice.
        for x in draws.iter().enumerate().skip(earlier).map(point) {
            if points.len() == n {
                break;
            }
            if !points.contains(&x) {
                points.push(x);
            }
        }
        Ok((posterior, points))
    }

    /// Number of runs that verified the answer before.
    fn verified_runs(&self, study: &Study) -> Result<usize> {
        let ledger = self.ledger()?;
        let runs = ledger.map(|ledger| ledger.runs(Some(&runs::fingerprint(study)))).transpose()?.unwrap_or_default();
        Ok(runs.iter().filter(|run| run.source == RunSource::Verify).count())
    }

    /// A table of `n` runs to verify the answer of setting `index` with, to be made elsewhere.
    ///
    /// # Errors
    /// A study whose stages are not finished.
    pub fn verification_runs(&self, index: usize, n: usize) -> Result<Table> {
        runs::pending_table(&self.settings[index].study, &self.verification_points(index, n)?.1)
    }

    /// Runs the simulator at `n` draws of the answer of setting `index`, or takes the runs in `results`, and compares them with
    /// the surrogate's prediction. The runs join the ledger, and train the surrogate from then on.
    ///
    /// # Errors
    /// A study whose stages are not finished, a simulator that cannot be run, a table that cannot be read, an interruption.
    pub fn verify(
        &self,
        index: usize,
        n: usize,
        results: Option<&Path>,
        monitor: &dyn Monitor,
    ) -> Result<Verification> {
        let study = &self.settings[index].study;
        let (posterior, points) = self.verification_points(index, n)?;
        let mut workplace = None;
        let (points, outcomes) = match results {
            Some(file) => {
                let found = runs::read_table(study, file)?;
                if found.runs.is_empty() {
                    let repair = "fill the outputs' columns of the table that --export wrote";
                    return Err(Error::invalid(file.display().to_string(), "holds no finished run", repair));
                }
                let proposed = self.verification_points(index, usize::MAX)?.1;
                let is_known = |x: &[f64]| proposed.iter().any(|point| runs::is_same(study, point, x));
                if let Some(other) = found.runs.iter().find(|run| !is_known(&run.inputs)) {
                    return Err(Error::invalid(
                        format!("{}, line {}", file.display(), other.line),
                        "these are no inputs that --export wrote, and so none where the answer lies",
                        "remove the row; `twostep import` brings in runs made anywhere",
                    ));
                }
                found.runs.into_iter().map(|run| (run.inputs, Ok(run.readings))).unzip()
            }
            None if study.simulator.kind == SimulatorKind::Elsewhere => {
                let found = "the study has no simulator that could be run";
                let repair = "write the runs with --export, make them, and give them back with --results";
                return Err(Error::invalid("simulator", found, repair));
            }
            None => {
                let outcomes = self.verifying_runs(index, &points, &mut workplace, monitor)?;
                (points, outcomes)
            }
        };
        let verification = compare(study, &posterior, &points, &outcomes)?;
        self.claim(&mut workplace)?;
        self.setting_folder(index).write_verification(&verification, &verification.table()?)?;
        // Not before: they make the surrogate stale that they are compared with.
        match results {
            Some(file) => {
                drop(workplace);
                self.import_runs(index, file)?;
            }
            None => RunLedger::open(&self.root.join(RUNS))?.note_verified(&runs::fingerprint(study))?,
        }
        Ok(verification)
    }

    fn verifying_runs(
        &self,
        index: usize,
        points: &[Vec<f64>],
        workplace: &mut Option<Workplace>,
        monitor: &dyn Monitor,
    ) -> Result<Vec<Outcome>> {
        let study = &self.settings[index].study;
        self.claim(workplace)?;
        let runner = Runner::open(study, Bench::own(&self.root)?, self.simulators())?;
        if study.simulator.builtin().is_none() {
            return runner.all(points, RunSource::Verifying, monitor);
        }
        let call = Call::known(study, None)?;
        let x = Matrix::from_fn(points.len(), study.n_run_inputs(), |i, d| points[i][d]);
        let stream = Stream::root(study.seed).named("verify").at(self.verified_runs(study)? as u64);
        let outcomes = stages::outcomes(&call, &x, stream, monitor)?;
        runner.note(points, RunSource::Verifying, &outcomes)?;
        Ok(outcomes)
    }
}

/// The simulator's values against the surrogate's predictions.
fn compare(study: &Study, posterior: &TPosterior, points: &[Vec<f64>], outcomes: &[Outcome]) -> Result<Verification> {
    let weights = posterior.draws.weights();
    let (mut values, mut failures) = (Vec::new(), Vec::new());
    // The values of a series go together: their mean squared z counts as one.
    let (mut distances, mut n_runs): (Vec<f64>, usize) = (Vec::new(), 0);
    for (run, (x, outcome)) in points.iter().zip(outcomes).enumerate() {
        let readings = match outcome {
            Ok(readings) => readings,
            Err(reason) => {
                failures.push(reason.clone());
                continue;
            }
        };
        n_runs += 1;
        let inputs: Vec<(String, f64)> = study.input_names().into_iter().zip(x.iter().copied()).collect();
        for (o, (output, reading)) in study.outputs.iter().zip(readings).enumerate() {
            let known = usable_values(study, reading, output.over.is_some());
            if known.is_empty() {
                continue;
            }
            let trained = &posterior.outputs[o];
            let (coefficients, sigma_a) = posterior.output_draws(o);
            let at = Matrix::from_fn(known.len(), trained.n_inputs, |i, d| {
                x.get(d).copied().or(known[i].0).unwrap_or(f64::NAN)
            });
            let mut eta = Matrix::default();
            trained.surrogate.predict(&at, &coefficients, &mut eta, &mut Scratch::default());
            let errors = trained.error_sds(&at, &coefficients, &sigma_a);
            let (shift, factor) = trained.affine;
            let mut sum = 0.0;
            for (i, (coordinate, y)) in known.iter().enumerate() {
                let natural = |z: f64| if output.log { z.exp() } else { z };
                let z = if output.log { y.ln() } else { *y };
                let parts = || eta.row(i).iter().map(|e| shift + factor * e).zip(errors.row(i)).zip(&weights);
                let mean: f64 = parts().map(|((m, _), w)| w * m).sum();
                let variance: f64 = parts().map(|((m, s), w)| w * (s * s + (m - mean).powi(2))).sum();
                let below = |z: f64| parts().map(|((m, s), w)| w * normal_cdf((z - m) / s)).sum::<f64>();
                let quantile = |p: f64| quantile(&below, mean, variance.sqrt(), p);
                let distance = (z - mean) / variance.sqrt();
                sum += distance * distance;
                values.push(VerifiedValue {
                    run: run + 1,
                    inputs: inputs.clone(),
                    output: output.name.clone(),
                    coordinate: *coordinate,
                    simulated: *y,
                    q50: natural(quantile(0.5)),
                    q05: natural(quantile(0.05)),
                    q95: natural(quantile(0.95)),
                    pit: below(z),
                    z: distance,
                });
            }
            distances.push(sum / known.len() as f64);
        }
    }
    if values.is_empty() {
        let reason = failures.first().map_or("there was none", String::as_str);
        let found = format!("every run failed; the first: {reason}");
        return Err(Error::failed("verify", found, "`twostep runs STUDY` lists the runs"));
    }
    let n = distances.len() as f64;
    let total: f64 = distances.iter().sum();
    // Twice a gamma variable of shape n / 2 is the sum of n squares of standard normal ones.
    let (lower, upper) = gamma_tails(0.5 * n, 0.5 * total);
    let inside = values.iter().filter(|v| (0.05..=0.95).contains(&v.pit)).count() as f64 / values.len() as f64;
    let rms_z = (total / n).sqrt();
    let runs = counted(n_runs, "run");
    let numbers = format!(
        "{:.0} % of the simulator's values lie in the surrogate's 90 % interval, at a typical distance of {rms_z:.1} of its sds \
         ({runs} at likely inputs)",
        (100.0 * inside).floor()
    );
    let (verdict, advice) = if upper < UNLIKELY {
        let what = "the surrogate is further off than it says where the answer lies: do not trust the answer yet";
        ("too sure", format!("{what}. {numbers}. `twostep run` now trains with these runs too; then verify again"))
    } else if lower < UNLIKELY {
        let what =
            "the surrogate is better than it says where the answer lies, so that intervals are wider than need be";
        ("too careful", format!("{what}. {numbers}. `twostep run` now trains with these runs too"))
    } else {
        let what = "the surrogate is as far off as it says where the answer lies";
        ("agrees", format!("{what}. {numbers}. `twostep run` now trains with these runs too"))
    };
    Ok(Verification {
        verdict: verdict.into(),
        advice,
        runs: [n_runs, failures.len()],
        inside_90: inside,
        rms_z,
        p_value: upper,
        values,
        failures,
    })
}

/// Coordinate and value of what a run gave, within the range of the coordinate.
fn usable_values(study: &Study, reading: &Reading, is_series: bool) -> Vec<(Option<f64>, f64)> {
    let range = study.conditions.last().filter(|c| is_series && c.coordinate).map(|c| c.range);
    let at = |k: usize| reading.at.get(k).copied();
    let inside = |t: Option<f64>| match (range, t) {
        (Some((lower, upper)), Some(t)) => (lower..=upper).contains(&t),
        (range, _) => range.is_none(),
    };
    let all = reading.values.iter().enumerate().map(|(k, y)| (at(k), *y));
    all.filter(|(t, y)| y.is_finite() && inside(*t)).collect()
}

/// Where a distribution function of this mean and sd reaches `p`, by bisection to rounding.
pub(super) fn quantile(below: &dyn Fn(f64) -> f64, mean: f64, sd: f64, p: f64) -> f64 {
    // By Cantelli's inequality no more than p lies beyond sd / sqrt(p) from the mean.
    let reach = sd / p.min(1.0 - p).sqrt() + f64::MIN_POSITIVE;
    let (mut low, mut high) = (mean - reach, mean + reach);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if below(middle) < p { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

impl Verification {
    /// A row per value.
    ///
    /// # Errors
    /// Inputs with the name of a column.
    pub fn table(&self) -> Result<Table> {
        let values = &self.values;
        let column = |f: &dyn Fn(&VerifiedValue) -> f64| values.iter().map(f).collect::<Vec<f64>>();
        let mut table = Table::new().with_numbers("run", column(&|v| v.run as f64))?;
        for (d, (name, _)) in values.first().map_or(&[][..], |v| &v.inputs).iter().enumerate() {
            table = table.with_numbers(name, column(&|v| v.inputs[d].1))?;
        }
        table = table.with_texts("output", values.iter().map(|v| v.output.clone()).collect())?;
        if values.iter().any(|v| v.coordinate.is_some()) {
            let text = |v: &VerifiedValue| v.coordinate.map_or(String::new(), |t| t.to_string());
            table = table.with_texts("coordinate", values.iter().map(text).collect())?;
        }
        table
            .with_numbers("simulated", column(&|v| v.simulated))?
            .with_numbers("q05", column(&|v| v.q05))?
            .with_numbers("q50", column(&|v| v.q50))?
            .with_numbers("q95", column(&|v| v.q95))?
            .with_numbers("pit", column(&|v| v.pit))?
            .with_numbers("z", column(&|v| v.z))
    }
}
