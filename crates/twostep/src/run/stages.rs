//! The three stages of one setting, from the study's words to the library's calls.

use super::runs::{self, Bench, Changed, Runner};
use crate::draws::Draws;
use crate::error::{Error, Result};
use crate::infer::propagation::Method;
use crate::infer::{self, Derived, Fit, IPosterior, InferSpec, Measured, Prepared, Problem, QuantitySummary};
use crate::likelihood::Generator;
use crate::matrix::Matrix;
use crate::monitor::{Monitor, Silent};
use crate::simulate::{self, Over, Reading, Simulator, SimulatorKind, design};
use crate::store::{FailedRun, RunLedger, RunSource, read_draws};
use crate::stream::Stream;
use crate::study::{Condition, Inferred, MeasurementSource, Output, Study, read_measurements};
use crate::surrogate::SigmaA;
use crate::table::Table;
use crate::train::{self, KnownSigmaS, OutputTask, TPosterior, TrainingSet, cluster};
use rand::RngExt;
use rand_distr::StandardNormal;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The root of the study's random numbers.
pub(super) fn root(study: &Study) -> Stream {
    Stream::root(study.seed)
}

/// Design points in natural units: one row per run, a column per input of a run. A random design draws from `stream`.
pub(super) fn points(study: &Study, stream: Stream) -> Result<Matrix> {
    let n_inputs = study.n_run_inputs();
    if let Some(path) = &study.design.points {
        return Table::read(path)?.matrix(&study.input_names()[..n_inputs]);
    }
    let unit = design::unit_points(study.design.method, study.design.runs, n_inputs, stream.named("design"))?;
    Ok(from_unit(study, &unit))
}

/// Points of the unit cube in natural units.
pub(super) fn from_unit(study: &Study, unit: &[Vec<f64>]) -> Matrix {
    let scales = study.input_scales();
    Matrix::from_fn(unit.len(), study.n_run_inputs(), |i, d| scales[d].at_fraction(unit[i][d]))
}

/// Number of runs that the design asks for; where it asks for none, those of the table.
///
/// # Errors
/// A file that cannot be read.
pub fn planned_runs(study: &Study) -> Result<usize> {
    match &study.design.points {
        Some(path) => Ok(Table::read(path)?.n_rows()),
        None if study.design.runs == 0 => Ok(runs::known(study, None)?.outcomes.len()),
        None => Ok(study.design.runs),
    }
}

/// What a run gave, or why it gave nothing.
pub(super) type Outcome = std::result::Result<Vec<Reading>, String>;

/// A study's simulator: inputs by name, constants and defaults filled in.
pub(super) struct Call<'a> {
    study: &'a Study,
    source: CallSource<'a>,
}

enum CallSource<'a> {
    Builtin(Box<dyn Simulator>),
    /// What is missing is made, for this purpose.
    Runner(Box<Runner<'a>>, RunSource),
    /// What is missing is refused.
    Known(Vec<(Vec<f64>, Outcome)>),
}

impl<'a> Call<'a> {
    /// Makes every run that it is asked for, those outside this process at a `bench`; `simulators` are the fingerprints of those of all settings.
    pub(super) fn open(
        study: &'a Study,
        bench: impl FnOnce() -> Result<Bench<'a>>,
        simulators: Vec<String>,
        purpose: RunSource,
    ) -> Result<Self> {
        let source = match &study.simulator.kind {
            SimulatorKind::Builtin(name) => CallSource::Builtin(simulate::builtin(name)?),
            SimulatorKind::Elsewhere => {
                let found = "the study has finished runs only, and no simulator that could be run";
                return Err(Error::invalid(
                    "simulator",
                    found,
                    "use calibrate.truth = \"held-out-runs\", or add a command",
                ));
            }
            _ => {
                let runner = Runner::open(study, bench()?, simulators)?;
                runner.settle(Changed::Ask)?;
                CallSource::Runner(Box::new(runner), purpose)
            }
        };
        Ok(Self { study, source })
    }

    /// Knows the runs of the ledger, and makes those of a built-in simulator.
    pub(super) fn known(study: &'a Study, ledger: Option<&RunLedger<'_>>) -> Result<Self> {
        let source = match study.simulator.builtin() {
            Some(name) => CallSource::Builtin(simulate::builtin(name)?),
            None => CallSource::Known(runs::all_known(study, ledger)?),
        };
        Ok(Self { study, source })
    }

    /// The study's outputs at inputs in the order of `Study::input_names`, without the coordinate.
    pub(super) fn run(&self, inputs: &[f64], monitor: &dyn Monitor) -> Result<Outcome> {
        match &self.source {
            CallSource::Builtin(simulator) => {
                Ok(self.builtin_readings(&**simulator, inputs).map_err(|problem| problem.to_string()))
            }
            CallSource::Runner(runner, purpose) => runner.at(inputs, *purpose, monitor),
            CallSource::Known(runs) => match runs.iter().find(|(x, _)| x == inputs) {
                Some((_, outcome)) => Ok(outcome.clone()),
                None => Err(Error::failed(
                    "simulate",
                    "the run that synthetic measurements are of has not been made",
                    "`twostep simulate STUDY` makes it",
                )),
            },
        }
    }

    /// Of each series the values that the study asks for.
    fn builtin_readings(&self, simulator: &dyn Simulator, inputs: &[f64]) -> Result<Vec<Reading>> {
        let of_output = |(o, output): (usize, &Output)| match &output.over {
            None => Ok(Reading { at: Vec::new(), values: vec![self.values(simulator, inputs, None)?[o]] }),
            Some(over) => {
                let at = over.at.clone().unwrap_or_default();
                let value = |&t: &f64| Ok(self.values(simulator, inputs, Some(t))?[o]);
                let values = at.iter().map(value).collect::<Result<_>>()?;
                Ok(Reading { at, values })
            }
        };
        self.study.outputs.iter().enumerate().map(of_output).collect()
    }

    /// Values of the study's outputs at one coordinate.
    fn values(&self, simulator: &dyn Simulator, inputs: &[f64], coordinate: Option<f64>) -> Result<Vec<f64>> {
        let names = self.study.input_names();
        let inputs: Vec<f64> = inputs.iter().copied().chain(coordinate).collect();
        let value = |name: &&'static str| {
            let own = names.iter().position(|n| n == name).and_then(|d| inputs.get(d).copied());
            let constant = self.study.constants.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
            let default = simulator.defaults().iter().find(|(n, _)| n == name).map(|(_, v)| *v);
            own.or(constant).or(default).ok_or_else(|| {
                let found = format!("input `{name}` has no value");
                Error::invalid("simulator", found, "add it to [constants] or [conditions]")
            })
        };
        let x = simulator.inputs().iter().map(value).collect::<Result<Vec<_>>>()?;
        let mut all = vec![0.0; simulator.outputs().len()];
        simulator.run(&x, &mut all)?;
        let own = self.study.outputs.iter().map(|output| {
            let at = simulator.outputs().iter().position(|n| *n == output.name);
            at.map_or(f64::NAN, |k| all[k])
        });
        Ok(own.collect())
    }

    /// Each output at each row of its known inputs, in the experiment of the row, given all unknowns of the I-step. Outputs of one run are simulated together; a series is interpolated
    /// linearly between its coordinates, but for a built-in simulator, which has a value at each.
    pub(super) fn measure(
        &self,
        unknowns: &[f64],
        known: &[(&Matrix, &[usize])],
        monitor: &dyn Monitor,
    ) -> Result<Vec<Vec<f64>>> {
        let n_conditions = self.study.n_run_inputs() - self.study.unknowns.len();
        let of_experiment = |e: usize| self.study.places(e).into_iter().map(|place| unknowns[place]).collect();
        let by_experiment: Vec<Vec<f64>> = (0..self.study.experiments.len().max(1)).map(of_experiment).collect();
        // Inputs of a built-in simulator with the coordinate, and every output there; of others what the run gave.
        let mut points: Vec<(Vec<f64>, Vec<f64>)> = Vec::new();
        let mut runs: Vec<(Vec<f64>, Vec<Reading>)> = Vec::new();
        let mut output_at = |o: usize, unknowns: &[f64], known: &[f64]| -> Result<f64> {
            let (conditions, coordinate) = known.split_at(n_conditions);
            let inputs = [unknowns, conditions].concat();
            if let CallSource::Builtin(simulator) = &self.source {
                let x = [unknowns, known].concat();
                if !points.iter().any(|(at, _)| *at == x) {
                    points.push((x.clone(), self.values(&**simulator, &inputs, coordinate.first().copied())?));
                }
                return Ok(points.iter().find(|(at, _)| *at == x).map_or(f64::NAN, |(_, y)| y[o]));
            }
            if !runs.iter().any(|(at, _)| *at == inputs) {
                let failed = |reason| Error::failed("simulate", reason, "`twostep runs STUDY` lists the runs");
                runs.push((inputs.clone(), self.run(&inputs, monitor)?.map_err(failed)?));
            }
            let reading = runs.iter().find(|(at, _)| *at == inputs).and_then(|(_, readings)| readings.get(o));
            reading.and_then(|reading| reading.value(coordinate.first().copied())).ok_or_else(|| {
                let found = format!("the series of `{}` has no value there", self.study.outputs[o].name);
                Error::failed("simulate", found, "measure within the coordinates of the series")
            })
        };
        let of_output = |(o, (known, experiment)): (usize, &(&Matrix, &[usize]))| {
            let own = |row: usize| &by_experiment[experiment.get(row).copied().unwrap_or(0)];
            (0..known.rows()).map(|row| output_at(o, own(row), known.row(row))).collect::<Result<Vec<f64>>>()
        };
        known.iter().enumerate().map(of_output).collect()
    }
}

/// Runs the simulator at the points `x`; a built-in one with simulation noise from `stream`.
pub(super) fn outcomes(call: &Call<'_>, x: &Matrix, stream: Stream, monitor: &dyn Monitor) -> Result<Vec<Outcome>> {
    let study = call.study;
    if let CallSource::Runner(runner, purpose) = &call.source {
        // As many at once as the study says, whatever the number of cores.
        let points: Vec<Vec<f64>> = (0..x.rows()).map(|i| x.row(i).to_vec()).collect();
        return runner.all(&points, *purpose, monitor);
    }
    let finished = AtomicUsize::new(0);
    (0..x.rows())
        .into_par_iter()
        .map(|i| {
            if !monitor.proceed() {
                return Err(Error::Interrupted);
            }
            let mut rng = stream.named("simulation noise").at(i as u64).rng();
            let outcome = call.run(x.row(i), monitor)?.map(|mut readings| {
                for (reading, output) in readings.iter_mut().zip(&study.outputs) {
                    for y in &mut reading.values {
                        // Noise on the surrogate's scale: it multiplies an output that is modelled by its logarithm.
                        let e = study.simulator.sigma_s * rng.sample::<f64, _>(StandardNormal);
                        *y = if output.log { *y * e.exp() } else { *y + e };
                    }
                }
                readings
            });
            monitor.progress("simulate", finished.fetch_add(1, Ordering::Relaxed) + 1, x.rows());
            Ok(outcome.and_then(all_finite))
        })
        .collect()
}

fn all_finite(readings: Vec<Reading>) -> Outcome {
    match readings.iter().flat_map(|reading| &reading.values).all(|y| y.is_finite()) {
        true => Ok(readings),
        false => {
            let values: Vec<&f64> = readings.iter().flat_map(|reading| &reading.values).collect();
            Err(format!("an output is not finite ({values:?})"))
        }
    }
}

/// The training rows of the runs at `x`, one run a row there, and the runs that failed.
///
/// A run is a row; with series, a row for each coordinate within its range, and one for the outputs that are none.
pub(super) fn training_set(study: &Study, x: &Matrix, outcomes: &[Outcome]) -> Result<(TrainingSet, Vec<FailedRun>)> {
    let of_failed = |(i, outcome): (usize, &Outcome)| {
        let reason = outcome.as_ref().err()?.clone();
        Some(FailedRun { run: i + 1, inputs: x.row(i).to_vec(), reason })
    };
    let failed: Vec<FailedRun> = outcomes.iter().enumerate().filter_map(of_failed).collect();
    if failed.len() == outcomes.len() {
        let reason = failed.first().map_or("there were none", |f| f.reason.as_str());
        return Err(Error::failed(
            "simulate",
            format!("every run failed; the first: {reason}"),
            "`twostep runs STUDY` lists them with their reasons; correct the simulator, the ranges or the constants",
        ));
    }
    let coordinate = study.conditions.last().filter(|condition| condition.coordinate);
    let (mut inputs, mut runs, mut values) = (Vec::new(), Vec::new(), vec![Vec::new(); study.outputs.len()]);
    let done = outcomes.iter().enumerate().filter_map(|(i, outcome)| Some((i, outcome.as_ref().ok()?)));
    for (run, (i, readings)) in done.enumerate() {
        // A row of the outputs that are no series, then one for each coordinate of any.
        let mut places = Vec::new();
        if study.outputs.iter().any(|output| output.over.is_none()) {
            places.push(None);
        }
        if let Some(Condition { range: (lower, upper), .. }) = coordinate {
            let mut at: Vec<f64> = readings.iter().flat_map(|reading| reading.at.iter().copied()).collect();
            at.retain(|t| (*lower..=*upper).contains(t));
            at.sort_by(f64::total_cmp);
            at.dedup();
            places.extend(at.into_iter().map(Some));
        }
        for place in places {
            let value = |reading: &Reading| match place {
                None if reading.at.is_empty() => reading.values.first().copied(),
                None => None,
                Some(t) => reading.at.iter().position(|own| *own == t).map(|k| reading.values[k]),
            };
            let found: Vec<f64> = readings.iter().map(|reading| value(reading).unwrap_or(f64::NAN)).collect();
            if found.iter().all(|y| y.is_nan()) {
                continue;
            }
            inputs.extend(x.row(i).iter().copied().chain(coordinate.map(|_| place.unwrap_or(f64::NAN))));
            runs.push(run);
            values.iter_mut().zip(found).for_each(|(column, y)| column.push(y));
        }
    }
    let outputs = study.outputs.iter().zip(values).map(|(output, values)| (output.name.clone(), values)).collect();
    let inputs = Matrix::from_rows(runs.len(), study.input_names().len(), inputs);
    Ok((TrainingSet { input_names: study.input_names(), inputs, outputs, sigma_s: None, runs }, failed))
}

/// A run's readings without meaning, with the coordinates that the study asks for.
///
/// # Errors
/// A series whose coordinates only the simulator knows.
pub(super) fn empty_readings(study: &Study) -> Result<Vec<Reading>> {
    let of_output = |output: &Output| match &output.over {
        None => Ok(Reading { at: Vec::new(), values: vec![0.0] }),
        Some(Over { at: Some(at), .. }) => Ok(Reading { at: at.clone(), values: vec![0.0; at.len()] }),
        Some(Over { at: None, .. }) => Err(Error::invalid(
            format!("outputs.{}.at", output.name),
            "is missing: without the simulator nobody knows the coordinates of its series",
            "write at = \"linspace(1, 14, 14)\", or a list of values",
        )),
    };
    study.outputs.iter().map(of_output).collect()
}

/// The training set with the simulation noise that the T-likelihood is told of; its runs are those of these points.
pub(super) fn with_known_noise(study: &Study, mut set: TrainingSet, points: &[usize]) -> Result<TrainingSet> {
    let inputs: Vec<&[f64]> =
        (0..set.n_runs()).map(|run| &set.inputs.row(set.rows_of(run).start)[..study.n_run_inputs()]).collect();
    let of_runs = known_sigma_s(study, points, &inputs)?;
    set.sigma_s = of_runs.map(|of_runs| set.runs.iter().map(|&run| of_runs[run]).collect());
    Ok(set)
}

/// The simulation noise that the T-likelihood is told of, for the runs at these points of the design, with these inputs.
fn known_sigma_s(study: &Study, points: &[usize], inputs: &[&[f64]]) -> Result<Option<Vec<f64>>> {
    let number = |s: f64| (s > 0.0).then(|| vec![s; points.len()]);
    match (study.train.sigma_s, &study.design.points) {
        (KnownSigmaS::Simulator, _) => Ok(number(study.simulator.sigma_s)),
        (KnownSigmaS::Fixed(s), _) => Ok(number(s)),
        (KnownSigmaS::Column, None) => Err(Error::invalid(
            "train.sigma_s",
            "\"column\" needs a design from a file with a column `sigma_s`",
            "give design.points, or a number",
        )),
        (KnownSigmaS::Column, Some(path)) => {
            let table = Table::read(path)?;
            let (x, all) = (table.matrix(&study.input_names()[..study.n_run_inputs()])?, table.numbers("sigma_s")?);
            let of_run = |(&point, inputs): (&usize, &&[f64])| {
                // Runs are numbered like the points of the file, until some of them come from elsewhere.
                let own = Some(point).filter(|&row| row < x.rows() && x.row(row) == *inputs);
                let row = own.or_else(|| (0..x.rows()).find(|&row| x.row(row) == *inputs));
                row.map(|row| all[row]).ok_or_else(|| {
                    let found = format!("has no row with the inputs of run {} ({inputs:?})", point + 1);
                    Error::invalid(path.display().to_string(), found, "add one with its sigma_s")
                })
            };
            points.iter().zip(inputs).map(of_run).collect::<Result<_>>().map(Some)
        }
    }
}

pub(super) fn tasks(study: &Study) -> Vec<OutputTask<'_>> {
    let with_inputs = study.outputs.iter().map(|output| (output, study.n_inputs(output)));
    with_inputs
        .map(|(o, n_inputs)| OutputTask { name: &o.name, spec: &o.surrogate, log: o.log, affine: None, n_inputs })
        .collect()
}

/// Warnings about coefficient priors that cannot produce the simulator's outputs.
pub(super) fn unreachable_outputs(study: &Study, set: &TrainingSet) -> Result<Vec<String>> {
    // A run further from the prior's mean prediction than this many sds is next to impossible under the prior.
    const REACH: f64 = 5.0;
    let mut warnings = Vec::new();
    // Scores of components have variance one.
    let are_own = |o: &&Output| !o.surrogate.standardise && !o.surrogate.has_components() && !o.surrogate.is_open();
    for output in study.outputs.iter().filter(are_own) {
        let n_inputs = study.n_inputs(output);
        let surrogate = output.surrogate.build(&set.input_names[..n_inputs], &study.input_scales()[..n_inputs])?;
        if surrogate.priors().is_empty() {
            continue;
        }
        let inputs = set.inputs_of(&output.name, n_inputs);
        let Some((offset, features)) = surrogate.linear(&inputs) else { continue };
        let sigma_a = match &output.surrogate.sigma_a {
            SigmaA::Fixed(s) => *s,
            SigmaA::Prior(prior) => prior.quantile(0.99),
        };
        let y = &set.outputs.iter().find(|(name, _)| *name == output.name).expect("every output was simulated").1;
        let y: Vec<f64> = y.iter().copied().filter(|y| !y.is_nan()).collect();
        let far = (0..y.len()).filter(|&i| {
            let z = if output.log { y[i].ln() } else { y[i] };
            let terms = || features.row(i).iter().zip(surrogate.priors());
            let mean: f64 = offset[i] + terms().map(|(f, p)| f * p.mean()).sum::<f64>();
            let variance: f64 = terms().map(|(f, p)| (f * p.sd()).powi(2)).sum();
            (z - mean).abs() > REACH * variance.sqrt().hypot(sigma_a)
        });
        let far = far.count();
        if far > 0 {
            warnings.push(format!(
                "output `{}`: {far} of {} runs lie more than {REACH} prior sds from anything the surrogate's prior expects; set \
                 standardise = true, or widen surrogate.coefficients",
                output.name,
                y.len()
            ));
        }
    }
    Ok(warnings)
}

/// Refuses draws that a function of the calling program has brought once and for all, where `what` trains again and again.
pub(super) fn refuse_untrained(study: &Study, what: &str) -> Result<()> {
    let fixed = |output: &&Output| output.surrogate.function().is_some_and(|function| !function.is_trained());
    match study.outputs.iter().find(fixed) {
        None => Ok(()),
        Some(output) => {
            let found = format!(
                "the draws of the surrogate of `{}` are given, so that it cannot be trained again",
                output.name
            );
            Err(Error::invalid(what, found, "give it a function `train` in place of draws"))
        }
    }
}

pub(super) fn train(study: &Study, set: &TrainingSet, stream: Stream, monitor: &dyn Monitor) -> Result<TPosterior> {
    let imported = study.train.import.as_deref().map(read_draws).transpose()?;
    train::train(set, &tasks(study), &study.input_scales(), &study.train, imported, stream.named("train"), monitor)
}

/// Known inputs of each synthetic measurement of an output, and its experiment, where there are several: each has all of them. An output
/// that is no series is measured once for each of the other conditions, whatever the coordinates.
pub(super) fn synthetic_conditions(
    study: &Study,
    output: &Output,
    at: &[(String, Vec<f64>)],
    replicates: usize,
) -> (Matrix, Vec<usize>) {
    let names: Vec<&str> = study.conditions.iter().map(|condition| condition.name.as_str()).collect();
    let names = &names[..study.n_inputs(output) - study.unknowns.len()];
    let n_points = at.first().map_or(1, |(_, values)| values.len());
    let value = |point: usize, name: &str| at.iter().find(|(n, _)| n == name).map_or(f64::NAN, |(_, v)| v[point]);
    let mut points: Vec<Vec<f64>> =
        (0..n_points).map(|point| names.iter().map(|name| value(point, name)).collect()).collect();
    if study.has_coordinate() && output.over.is_none() {
        points.dedup();
    }
    let n = points.len() * replicates;
    let n_experiments = if study.has_experiments() { study.experiments.len() } else { 1 };
    let known = Matrix::from_fn(n_experiments * n, names.len(), |row, d| points[row % n / replicates][d]);
    let experiment = match study.has_experiments() {
        true => (0..n_experiments).flat_map(|e| vec![e; n]).collect(),
        false => Vec::new(),
    };
    (known, experiment)
}

/// The measurements: from a file, or drawn from the simulator at the truth.
pub(super) fn measured(study: &Study, ledger: Option<&RunLedger<'_>>) -> Result<Vec<Measured>> {
    let MeasurementSource::Synthetic { truth, at, replicates, noise } = &study.measurements else {
        return read_measurements(study);
    };
    let call = Call::known(study, ledger)?;
    let known: Vec<(Matrix, Vec<usize>)> =
        study.outputs.iter().map(|output| synthetic_conditions(study, output, at, *replicates)).collect();
    // Made-up measurements have no offset.
    let of_truth = |u: Inferred| truth.iter().find(|(name, _)| *name == u.name).map_or(0.0, |(_, v)| *v);
    let unknowns: Vec<f64> = study.inferred().into_iter().map(of_truth).collect();
    let at: Vec<(&Matrix, &[usize])> = known.iter().map(|(known, experiment)| (known, &experiment[..])).collect();
    let values = call.measure(&unknowns, &at, &Silent)?;
    let stream = root(study).named("measurements");
    // One stream for each row, which the outputs draw from in turn.
    let n_rows = known.iter().map(|(known, _)| known.rows()).max().unwrap_or(0);
    let mut rngs: Vec<_> = (0..n_rows).map(|row| stream.at(row as u64).rng()).collect();
    let outputs = study.outputs.iter().zip(known).zip(values);
    let measured = outputs.map(|((output, (known, experiment)), values)| {
        let generator = noise.iter().find(|(name, _)| *name == output.name).map(|(_, g)| *g);
        let noisy = |(value, rng)| generator.map_or(value, |g: Generator| g.sample(value, rng));
        let y = values.into_iter().zip(&mut rngs).map(noisy).collect();
        Measured { output: output.name.clone(), y, known, experiment, ..Measured::default() }
    });
    Ok(measured.collect())
}

/// The file of measurements: the study's own, or what a user would have given for those generated.
pub(super) fn measurement_file(study: &Study, measured: &[Measured]) -> Result<Vec<u8>> {
    if let MeasurementSource::File(path) = &study.measurements {
        return std::fs::read(path).map_err(|e| Error::file(path, e, "check the path of the measurements"));
    }
    // Outputs of one layout stand side by side, others below them.
    let text = |value: f64| if value.is_nan() { String::new() } else { format!("{value}") };
    let mut layouts: Vec<(&Matrix, &[usize])> = Vec::new();
    for own in measured.iter().map(|output| (&output.known, &output.experiment[..])) {
        if !layouts.contains(&own) {
            layouts.push(own);
        }
    }
    let mut table = Table::new();
    if study.has_experiments() {
        let names = layouts.iter().flat_map(|(_, experiment)| *experiment).map(|&e| study.experiments[e].clone());
        table = table.with_texts("experiment", names.collect())?;
    }
    for (d, condition) in study.conditions.iter().enumerate() {
        let column = |(known, _): &(&Matrix, &[usize])| match d < known.cols() {
            true => known.col(d),
            false => vec![f64::NAN; known.rows()],
        };
        table = table.with_texts(&condition.name, layouts.iter().flat_map(column).map(text).collect())?;
    }
    for output in measured {
        let column = |(known, experiment): &(&Matrix, &[usize])| match output.known == **known
            && output.experiment == *experiment
        {
            true => output.y.clone(),
            false => vec![f64::NAN; known.rows()],
        };
        table = table.with_texts(&output.output, layouts.iter().flat_map(column).map(text).collect())?;
    }
    table.to_csv()
}

/// Names of the I-draws' columns: unknowns, then the unknown sds of measured outputs.
pub(super) fn parameter_names(study: &Study, measured: &[Measured]) -> Vec<String> {
    let measured = measured.iter().map(|m| !m.y.is_empty());
    let sigmas = study.sigma_names().into_iter().zip(measured).filter_map(|(name, measured)| name.filter(|_| measured));
    study.inferred().into_iter().map(|u| u.name).chain(sigmas).collect()
}

/// Counts the methods of all calls of the I-step.
struct Counted<'a> {
    monitor: &'a dyn Monitor,
    before: usize,
    total: usize,
}

impl Monitor for Counted<'_> {
    fn proceed(&self) -> bool {
        self.monitor.proceed()
    }

    fn notice(&self, text: &str) {
        self.monitor.notice(text);
    }

    fn progress(&self, what: &str, done: usize, total: usize) {
        match what {
            "infer" => self.monitor.progress(what, self.before + done, self.total),
            _ => self.monitor.progress(what, done, total),
        }
    }
}

/// Clusters in place of the T-draws, where the study asks for them.
pub(super) fn clustered(study: &Study, posterior: &TPosterior, stream: Stream) -> Option<Draws> {
    let spec = &study.infer;
    spec.clusters.count().filter(|n| *n < posterior.draws.n_draws()).map(|n| {
        let stream = stream.named("clusters");
        cluster::cluster(posterior, &study.input_scales(), n, spec.representative, spec.sigma_a, stream)
    })
}

/// The I-step with these T-draws, made ready.
pub(super) fn prepare(
    study: &Study,
    posterior: &TPosterior,
    draws: &Draws,
    measured: &[Measured],
    derived: Vec<Derived>,
) -> Result<Prepared> {
    let unknowns = study.i_unknowns()?;
    let noise = study.outputs.iter().map(|o| o.noise.clone()).collect();
    let problem = Problem { outputs: &posterior.outputs, draws, unknowns, noise, measured, derived };
    Prepared::new(problem, &study.infer, true)
}

/// The study's own I-step made ready, by clusters where it asks for them, and whether it does.
pub(super) fn made_ready(study: &Study, posterior: &TPosterior, measured: &[Measured]) -> Result<(Prepared, bool)> {
    let clustered = clustered(study, posterior, infer_stream(study));
    let draws = clustered.as_ref().unwrap_or(&posterior.draws);
    Ok((prepare(study, posterior, draws, measured, study.derived_quantities()?)?, clustered.is_some()))
}

/// The random numbers of the I-step.
pub(super) fn infer_stream(study: &Study) -> Stream {
    root(study).named("infer")
}

/// The I-posteriors by `methods`, with what E-Post fitted before; each is given to `keep` when it is finished.
pub(super) fn infer(
    study: &Study,
    posterior: &TPosterior,
    measured: &[Measured],
    methods: &[Method],
    fits: Vec<Fit>,
    monitor: &dyn Monitor,
    keep: &mut dyn FnMut(Vec<IPosterior>) -> Result<()>,
) -> Result<()> {
    let spec = &study.infer;
    let stream = infer_stream(study);
    let derived = study.derived_quantities()?;
    let (prepared, is_clustered) = made_ready(study, posterior, measured)?;
    let prepared = prepared.with_fits(fits);
    // Mixtures over the T-draws come last, since they take longest.
    let mut ordered = methods.to_vec();
    ordered.sort_by_key(|method| method.is_mixture());
    for (before, method) in ordered.into_iter().enumerate() {
        let monitor = Counted { monitor, before, total: methods.len() };
        let spec = InferSpec { methods: vec![method], ..spec.clone() };
        let mut posteriors = infer::infer(&prepared, &spec, stream, &monitor)?;
        for posterior in &mut posteriors {
            withdraw_undefined(posterior, &derived);
            if is_clustered {
                // T-draws of clusters are centroids, which are not kept: predictions take them from all draws again.
                posterior.t_draws = None;
            }
        }
        keep(posteriors)?;
    }
    Ok(())
}

/// Withdraws the summary of each quantity that is not finite on part of the posterior, and says on how much of it.
fn withdraw_undefined(posterior: &mut IPosterior, derived: &[Derived]) {
    let n_parameters = posterior.unknowns.len() - derived.len();
    for (i, quantity) in posterior.unknowns.iter_mut().enumerate() {
        let formula = i.checked_sub(n_parameters).map(|j| &derived[j].expression);
        let is_finite = |x: &Vec<f64>| formula.map_or_else(|| x[i], |f| f.eval_scalar(x)).is_finite();
        let undefined = posterior.draws.iter().filter(|x| !is_finite(x)).count() as f64;
        let numbers = [quantity.mean, quantity.sd].into_iter().chain(quantity.quantiles());
        let intervals = quantity.hdi90.iter().flatten().copied();
        if quantity.mcse_quantiles.is_some_and(|errors| errors.iter().any(|error| !error.is_finite())) {
            quantity.mcse_quantiles = None;
        }
        if undefined == 0.0 && numbers.chain(intervals).all(f64::is_finite) {
            continue;
        }
        let QuantitySummary { mean, sd, q05, q25, q50, q75, q95, .. } = quantity;
        [mean, sd, q05, q25, q50, q75, q95].into_iter().for_each(|number| *number = f64::NAN);
        quantity.hdi90.clear();
        quantity.curve.clear();
        let QuantitySummary { mcse_mean, mcse_sd, ess_bulk, ess_tail, r_hat, quadrature_error, .. } = quantity;
        [mcse_mean, mcse_sd, ess_bulk, ess_tail, r_hat, quadrature_error].into_iter().for_each(|known| *known = None);
        quantity.mcse_quantiles = None;
        let place = if formula.is_some() { format!("derived.{}", quantity.name) } else { quantity.name.clone() };
        let share = match 100.0 * undefined / posterior.draws.len() as f64 {
            percent if percent >= 0.1 => format!("{percent:.1} %"),
            _ => "less than 0.1 %".into(),
        };
        posterior.warnings.push(format!(
            "{place}: {share} of the posterior by {} has no finite value of it, so it is not summarised; change the formula, or \
             the prior where it has none",
            posterior.method
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::parse;

    const STUDY: &str = r#"
[simulator]
builtin = "logistic"
[unknowns.omega]
range = [-1, 1]
[design]
points = "design.csv"
[surrogate]
kind = "pce"
degree = 0
[train]
sigma_s = "column"
[measurements]
noise = { sd = 0.1 }
"#;

    #[test]
    fn the_noise_of_a_run_is_that_of_its_row() {
        let folder = std::env::temp_dir().join(format!("twostep-stages-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("design.csv"), "omega,sigma_s\n-0.5,0.1\n0,0.2\n0.5,0.3\n").unwrap();
        let study = parse(STUDY, "study.toml", &folder).unwrap_or_else(|e| panic!("{e}")).remove(0).study;
        // The second run failed.
        let of_runs = |points: &[usize], x: &[f64]| {
            known_sigma_s(&study, points, &x.chunks(1).collect::<Vec<_>>()).map_err(|refused| refused.to_string())
        };
        assert_eq!(of_runs(&[0, 2], &[-0.5, 0.5]), Ok(Some(vec![0.1, 0.3])));
        // Runs of a ledger in another order, and one that the file does not know.
        assert_eq!(of_runs(&[0, 1], &[0.5, 0.0]), Ok(Some(vec![0.3, 0.2])));
        let refused = of_runs(&[3], &[0.25]).unwrap_err();
        assert!(refused.contains("has no row with the inputs of run 4 ([0.25])"), "{refused}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
