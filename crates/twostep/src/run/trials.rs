//! The trials of a study's calibration: training sets, truths and measurements of their own, through the study's own steps.

use super::runs::Bench;
use super::stages::{self, Call};
use crate::calibrate::{Evidence, Procedure, Ranked, Trial, Truth};
use crate::draws::Draws;
use crate::error::{Error, Result};
use crate::infer::propagation::Method;
use crate::infer::{self, InferSpec, Located, Measured};
use crate::likelihood::{ErrorSharing, Generator, Link, NoiseSpec, Scale, Side, correlate};
use crate::matrix::Matrix;
use crate::monitor::Monitor;
use crate::simulate::design;
use crate::store::{RunSource, TPosteriors, TrialPosterior};
use crate::stream::Stream;
use crate::study::{Inferred, InferredOf, MeasurementSource, Output, Study, Unknown, read_measurements};
use crate::surrogate::{InputScale, Scratch, SigmaA};
use crate::table::{Table, counted};
use crate::train::{self, OutputTask, TPosterior, TReport, TrainedOutput, TrainingSet, standardisation};
use rand::RngExt;
use rand_distr::StandardNormal;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where and how one output is measured.
#[derive(Clone, PartialEq)]
pub(super) struct Layout {
    /// Conditions of each measurement.
    pub(super) known: Matrix,
    /// Its experiment; empty where there is one.
    experiment: Vec<usize>,
    /// Standard deviations, or numbers of trials, where they are a column.
    scales: Option<Vec<f64>>,
    /// Correlation of their noise, where it has one.
    correlation: Option<Arc<Matrix>>,
    /// Bounds of measurements that were censored; empty where none was.
    bounds: Vec<Option<(Side, f64)>>,
    /// Noise to measure with, where it is not the inferring one.
    other: Option<Generator>,
}

impl fmt::Debug for Layout {
    /// What trials are told apart by: fields that most studies have no use for are named only where they are used, so that trials of earlier
    /// versions are found again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { known, experiment, scales, correlation, bounds, other } = self;
        let mut out = f.debug_struct("Layout");
        out.field("known", known).field("scales", scales).field("bounds", bounds).field("other", other);
        if !experiment.is_empty() {
            out.field("experiment", experiment);
        }
        if let Some(correlation) = correlation {
            out.field("correlation", correlation);
        }
        out.finish()
    }
}

impl Layout {
    /// Every output's measurements, as the study has them.
    ///
    /// # Errors
    /// A study without measurements, or a file that cannot be used.
    pub(super) fn of(study: &Study) -> Result<Vec<Self>> {
        let of = |generators: &[(String, Generator)], name: &str| {
            generators.iter().find(|(n, _)| n == name).map(|(_, generator)| *generator)
        };
        let synthetic = match &study.measurements {
            MeasurementSource::Synthetic { noise, .. } => &noise[..],
            _ => &[],
        };
        // Where the surrogate makes the data, they follow the model that infers in everything.
        let other = |output: &Output| {
            let generator = of(&study.calibrate.noise, &output.name).or_else(|| of(synthetic, &output.name));
            let is_null = study.calibrate.truth == Truth::SurrogatePrior;
            generator.filter(|generator| !is_null && !is_inferring(generator, &output.noise))
        };
        match &study.measurements {
            MeasurementSource::Synthetic { at, replicates, .. } => {
                let layout = |output| {
                    let (known, experiment) = stages::synthetic_conditions(study, output, at, *replicates);
                    Self {
                        known,
                        experiment,
                        scales: None,
                        correlation: None,
                        bounds: Vec::new(),
                        other: other(output),
                    }
                };
                Ok(study.outputs.iter().map(layout).collect())
            }
            MeasurementSource::File(_) => {
                let measured = read_measurements(study)?.into_iter().zip(&study.outputs);
                let layout = |(m, output): (Measured, &Output)| {
                    let bounds = m.sides.iter().zip(&m.y).map(|(side, y)| side.map(|side| (side, *y))).collect();
                    Self {
                        known: m.known,
                        experiment: m.experiment,
                        scales: m.scale,
                        correlation: m.correlation,
                        bounds,
                        other: other(output),
                    }
                };
                Ok(measured.map(layout).collect())
            }
            MeasurementSource::None => Err(Error::invalid(
                "calibrate",
                "the study does not say what will be measured",
                "add [measurements] with file, or [measurements.synthetic] with at and replicates",
            )),
        }
    }

    fn experiment_of(&self, i: usize) -> usize {
        self.experiment.get(i).copied().unwrap_or(0)
    }

    /// The distinct conditions, and which of them each measurement has.
    fn points(&self) -> (Vec<usize>, Vec<usize>) {
        let mut rows: Vec<usize> = Vec::new();
        let alike = |a: usize, b: usize| {
            self.known.row(a) == self.known.row(b) && self.experiment_of(a) == self.experiment_of(b)
        };
        let point = |i: usize| match rows.iter().position(|&row| alike(row, i)) {
            Some(point) => point,
            None => {
                rows.push(i);
                rows.len() - 1
            }
        };
        let of_row = (0..self.known.rows()).map(point).collect();
        (rows, of_row)
    }

    /// Whether some point is measured more than once.
    pub(super) fn is_replicated(&self) -> bool {
        self.replicates() > 1
    }

    /// Whether it is measured with other noise than the one that infers.
    pub(super) fn has_other_noise(&self) -> bool {
        self.other.is_some()
    }

    /// Mean of the scales, where they are a column.
    fn mean_scale(&self) -> Option<f64> {
        self.scales.as_ref().map(|own| own.iter().sum::<f64>() / own.len() as f64)
    }

    /// Measurements at the point that has most of them.
    fn replicates(&self) -> usize {
        let (rows, of_row) = self.points();
        (0..rows.len()).map(|point| of_row.iter().filter(|&&p| p == point).count()).max().unwrap_or(0)
    }
}

/// Whether generated measurements follow the inferring noise: then its sd comes from the prior where it has one.
///
/// Measurements that were generated without noise are to be measured with the inferring one.
fn is_inferring(generator: &Generator, noise: &NoiseSpec) -> bool {
    match (noise.family.scale_of(generator), &noise.scale) {
        // The inverse of an inverse is a rounding away.
        (Some(scale), Scale::Fixed(own)) => (scale - own).abs() <= 4.0 * f64::EPSILON * own.abs(),
        (Some(_), _) => true,
        (None, _) => *generator == Generator::None,
    }
}

/// Simulator runs that a study's trials need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// To be made.
    pub simulated: usize,
    /// That exist, and are held out one after the other.
    pub held_out: usize,
}

/// Where training sets and measurements come from.
enum Source<'a> {
    Simulator {
        call: Call<'a>,
        /// Whether the design must be moved, since nothing else would make one T-trial differ from another.
        moved: bool,
    },
    /// Shift and factor of every output.
    SurrogatePrior(Vec<(f64, f64)>),
    HeldOut {
        set: TrainingSet,
        /// Runs that each T-trial holds out.
        folds: Vec<Vec<usize>>,
    },
}

/// A study that is tried.
pub(super) struct Trier<'a> {
    study: &'a Study,
    layout: Vec<Layout>,
    source: Source<'a>,
    /// The design, where a file or the runs of a table give it: T-trials are many, and it is the same for all.
    points: Option<Matrix>,
    /// T-posteriors of earlier calls.
    kept: TPosteriors,
    /// Number of T-steps done.
    trained: AtomicUsize,
}

/// The surrogate of a T-trial.
pub(super) struct Trained {
    posterior: TPosterior,
    clusters: Option<Draws>,
    /// Coefficients and sigma_A that the data of both steps come from.
    star: Vec<(Matrix, f64)>,
    /// Posterior mean of sigma_A and epistemic sd of each output, on the scale of eta.
    errors: Vec<(f64, f64)>,
}

impl<'a> Trier<'a> {
    /// `set` holds the study's own runs; only held-out runs, and a surrogate that is standardised by them, need it. At `bench` a simulator outside
    /// this process makes the runs of trials. `kept` holds T-posteriors of its T-trials, and those that are worth it are added.
    ///
    /// # Errors
    /// A study that cannot be tried.
    pub(super) fn new(
        study: &'a Study,
        set: Option<&TrainingSet>,
        bench: impl FnOnce() -> Result<Bench<'a>>,
        simulators: Vec<String>,
        kept: TPosteriors,
    ) -> Result<Self> {
        if study.train.import.is_some() {
            return Err(Error::invalid(
                "calibrate",
                "the T-posterior is imported, so that it cannot be trained again",
                "leave out train.import",
            ));
        }
        stages::refuse_untrained(study, "calibrate")?;
        let layout = Layout::of(study)?;
        let missing = || Error::invalid("calibrate", "the study has no runs", "run `twostep simulate` first");
        let source = match study.calibrate.truth {
            Truth::Simulator => {
                let call = Call::open(study, bench, simulators, RunSource::Calibrate)?;
                Source::Simulator { call, moved: how_moved(study).is_some() }
            }
            Truth::SurrogatePrior => {
                let affine = |task: &OutputTask<'_>| match set {
                    Some(set) => standardisation(set, task),
                    None if task.spec.standardise => Err(missing()),
                    None => Ok((0.0, 1.0)),
                };
                Source::SurrogatePrior(stages::tasks(study).iter().map(affine).collect::<Result<_>>()?)
            }
            Truth::HeldOutRuns => {
                let set = set.ok_or_else(missing)?.clone();
                let folds = folds(study, &set)?;
                Source::HeldOut { set, folds }
            }
        };
        let points = match set {
            _ if study.design.points.is_some() => Some(stages::points(study, stages::root(study))?),
            Some(set) if is_table_alone(study) => {
                let row = |run: usize| &set.inputs.row(set.rows_of(run).start)[..study.n_run_inputs()];
                Some(Matrix::from_fn(set.n_runs(), study.n_run_inputs(), |run, d| row(run)[d]))
            }
            _ => None,
        };
        Ok(Self { study, layout, source, points, kept, trained: AtomicUsize::new(0) })
    }

    /// Number of T-steps that were done, rather than found.
    pub(super) fn trained(&self) -> usize {
        self.trained.load(Ordering::Relaxed)
    }

    /// The design of a T-trial.
    fn points(&self, stream: Stream) -> Result<Matrix> {
        self.points.clone().map_or_else(|| stages::points(self.study, stream), Ok)
    }

    /// Number of T-trials: with held-out runs as many as there are groups of them.
    pub(super) fn t_trials(&self) -> usize {
        match &self.source {
            Source::HeldOut { folds, .. } => folds.len(),
            _ => self.study.calibrate.t_trials,
        }
    }

    fn stream(&self, t_trial: usize) -> Stream {
        stages::root(self.study).named("calibrate").at(t_trial as u64)
    }

    fn training_set(&self, t_trial: usize, monitor: &dyn Monitor) -> Result<(TrainingSet, Vec<(Matrix, f64)>)> {
        let (study, stream) = (self.study, self.stream(t_trial));
        match &self.source {
            Source::Simulator { call, moved } => {
                let x = if *moved { moved_points(study, stream)? } else { self.points(stream)? };
                let outcomes = stages::outcomes(call, &x, stream, monitor)?;
                let (set, failed) = stages::training_set(study, &x, &outcomes)?;
                let points: Vec<usize> = (0..x.rows()).filter(|i| failed.iter().all(|f| f.run != i + 1)).collect();
                Ok((stages::with_known_noise(study, set, &points)?, Vec::new()))
            }
            Source::SurrogatePrior(affine) => self.surrogate_set(affine, stream),
            Source::HeldOut { set, folds } => {
                let kept: Vec<usize> = (0..set.n_runs()).filter(|i| !folds[t_trial].contains(i)).collect();
                Ok((set.select(&kept), Vec::new()))
            }
        }
    }

    /// theta* from its prior, and a training set from the surrogate with it: `z = shift + factor (M~(x, c*) + e)` plus the
    /// simulation noise that the T-likelihood knows of; runs at one point share their approximation error e.
    fn surrogate_set(&self, affine: &[(f64, f64)], stream: Stream) -> Result<(TrainingSet, Vec<(Matrix, f64)>)> {
        let study = self.study;
        let x = self.points(stream)?;
        // Values without meaning, for the rows that they make.
        let outcome = Ok(stages::empty_readings(study)?);
        let (set, _) = stages::training_set(study, &x, &vec![outcome; x.rows()])?;
        let mut set = stages::with_known_noise(study, set, &(0..x.rows()).collect::<Vec<_>>())?;
        let mut star = Vec::new();
        for (o, output) in study.outputs.iter().enumerate() {
            let mut rng = stream.named("theta").at(o as u64).rng();
            let n_inputs = study.n_inputs(output);
            let surrogate =
                output.surrogate.build(&study.input_names()[..n_inputs], &study.input_scales()[..n_inputs])?;
            let x = set.inputs_of(&output.name, n_inputs);
            let y = &mut set.outputs[o].1;
            let rows: Vec<usize> = (0..y.len()).filter(|&row| !y[row].is_nan()).collect();
            let c = train::prior_draw(&*surrogate, &mut rng).ok_or_else(|| no_prior(output))?;
            let sigma_a = match &output.surrogate.sigma_a {
                SigmaA::Fixed(sigma_a) => *sigma_a,
                SigmaA::Prior(prior) => prior.sample(&mut rng),
            };
            let c = Matrix::from_rows(c.len(), 1, c);
            let mut eta = Matrix::default();
            surrogate.predict(&x, &c, &mut eta, &mut Scratch::default());
            let sds = train::error_sds(&*surrogate, &x, &c, &[sigma_a]);
            let errors: Vec<f64> = rows.iter().map(|_| rng.sample(StandardNormal)).collect();
            let error_of = x.first_alike(x.cols());
            let (shift, factor) = affine[o];
            for (i, &row) in rows.iter().enumerate() {
                let noise = set.sigma_s.as_ref().map_or(0.0, |s| s[row]) * rng.sample::<f64, _>(StandardNormal);
                let z = shift + factor * (eta[(i, 0)] + sds[(i, 0)] * errors[error_of[i]]) + noise;
                y[row] = if output.log { z.exp() } else { z };
            }
            star.push((c, sigma_a));
        }
        Ok((set, star))
    }

    /// What an earlier call trained in this T-trial.
    fn restored(&self, t_trial: usize) -> Option<Trained> {
        let found = self.kept.read(t_trial)?;
        let (study, names, scales) = (self.study, self.study.input_names(), self.study.input_scales());
        let parts = stages::tasks(study).into_iter().zip(found.affine).zip(found.reports);
        let output = |((task, affine), report): ((OutputTask<'_>, _), TReport)| {
            let n_inputs = task.n_inputs;
            let (names, scales, parameters) = (&names[..n_inputs], &scales[..n_inputs], report.coefficient_names());
            let spec = train::chosen_spec(task.spec, n_inputs, &report);
            let surrogate = Arc::from(spec.build_with(names, scales, &parameters).ok()?);
            Some(TrainedOutput { name: task.name.to_owned(), surrogate, affine, log: task.log, n_inputs, report })
        };
        let outputs: Vec<TrainedOutput> = parts.map(output).collect::<Option<_>>()?;
        let parameters = train::joint_names(outputs.iter().map(|o| (o.name.as_str(), &*o.surrogate)));
        let complete = outputs.len() == study.outputs.len() && parameters.len() == found.values.rows();
        let posterior = complete.then(|| TPosterior { outputs, draws: Draws::new(parameters, found.values) })?;
        let clusters = stages::clustered(study, &posterior, self.stream(t_trial));
        let star = found.star.into_iter().map(|(c, sigma_a)| (Matrix::from_rows(c.len(), 1, c), sigma_a)).collect();
        Some(Trained { posterior, clusters, star, errors: found.errors })
    }

    /// The truth of an I-trial, with the outputs that it has without measurement noise.
    fn case(
        &self,
        trained: &Trained,
        t_trial: usize,
        i_trial: usize,
        stream: Stream,
        monitor: &dyn Monitor,
    ) -> Result<Case> {
        let unknowns = || Ok(self.study.prior()?.sample(&mut stream.named("unknowns").rng()));
        let drawn = |unknowns: Vec<f64>, values: Vec<Vec<f64>>| Case {
            unknowns: unknowns.into_iter().map(Some).collect(),
            layout: self.layout.clone(),
            values,
            weight: 1.0,
        };
        match &self.source {
            Source::Simulator { call, .. } => {
                let unknowns = unknowns()?;
                let known: Vec<(&Matrix, &[usize])> =
                    self.layout.iter().map(|layout| (&layout.known, &layout.experiment[..])).collect();
                let values = call.measure(&unknowns, &known, monitor)?;
                Ok(drawn(unknowns, values))
            }
            Source::SurrogatePrior(affine) => {
                let unknowns = unknowns()?;
                let values = self.by_surrogate(trained, affine, &unknowns, stream.named("approximation error"));
                Ok(drawn(unknowns, values))
            }
            // More I-trials go round again, and leave the first ones as they are.
            Source::HeldOut { set, folds } => {
                Ok(self.held_out(set, folds[t_trial][i_trial % folds[t_trial].len()], &unknowns()?))
            }
        }
    }

    /// A held-out run is the truth at its own conditions, in the first experiment; offsets are from the prior.
    fn held_out(&self, set: &TrainingSet, run: usize, of_prior: &[f64]) -> Case {
        let n_unknowns = self.study.unknowns.len();
        let of_run = &set.inputs.row(set.rows_of(run).start)[..n_unknowns];
        let unknown = |(place, inferred): (usize, Inferred)| match inferred.of {
            InferredOf::Input(d, experiment) => Some(of_run[d]).filter(|_| experiment.is_none_or(|e| e == 0)),
            InferredOf::Offset(_) => Some(of_prior[place]),
        };
        let unknowns = self.study.inferred().into_iter().enumerate().map(unknown).collect();
        let (mut layouts, mut values) = (Vec::new(), Vec::new());
        for ((layout, output), (_, y)) in self.layout.iter().zip(&self.study.outputs).zip(&set.outputs) {
            let own: Vec<usize> = set.rows_of(run).filter(|&row| !y[row].is_nan()).collect();
            let coordinate = |row: usize| set.inputs[(row, set.inputs.cols() - 1)];
            // Where the study measures a series, as near as the run has a value.
            let rows: Vec<usize> = match output.over {
                None => own.first().map_or(Vec::new(), |&row| vec![row; layout.replicates()]),
                Some(_) => {
                    let wanted = (0..layout.known.rows()).map(|i| layout.known[(i, layout.known.cols() - 1)]);
                    let nearest = |t: f64| {
                        let distance = |row: &usize| (coordinate(*row) - t).abs();
                        own.iter().copied().min_by(|a, b| distance(a).total_cmp(&distance(b)))
                    };
                    wanted.filter_map(nearest).collect()
                }
            };
            let n_known = layout.known.cols();
            let known = Matrix::from_fn(rows.len(), n_known, |i, d| set.inputs[(rows[i], n_unknowns + d)]);
            // The measurements of a series are those of the study, one by one.
            let is_series = output.over.is_some() && rows.len() == layout.known.rows();
            let (scales, correlation, bounds) = match is_series {
                true => (layout.scales.clone(), layout.correlation.clone(), layout.bounds.clone()),
                false => (layout.mean_scale().map(|scale| vec![scale; rows.len()]), None, Vec::new()),
            };
            layouts.push(Layout { known, experiment: Vec::new(), scales, correlation, bounds, other: layout.other });
            values.push(rows.iter().map(|&row| y[row]).collect());
        }
        Case { unknowns, layout: layouts, values, weight: weight(self.study, of_run) }
    }

    /// The surrogate's outputs with theta* at every measurement, with its approximation error where that is propagated.
    fn by_surrogate(
        &self,
        trained: &Trained,
        affine: &[(f64, f64)],
        unknowns: &[f64],
        stream: Stream,
    ) -> Vec<Vec<f64>> {
        let infer = &self.study.infer;
        let of_output = |(o, layout): (usize, &Layout)| {
            let (output, (c, sigma_a), (shift, factor)) = (&self.study.outputs[o], &trained.star[o], affine[o]);
            let n = self.study.unknowns.len();
            let places: Vec<Vec<usize>> =
                (0..self.study.experiments.len().max(1)).map(|e| self.study.places(e)).collect();
            let x = Matrix::from_fn(layout.known.rows(), n + layout.known.cols(), |i, d| match d < n {
                true => unknowns[places[layout.experiment_of(i)][d]],
                false => layout.known[(i, d - n)],
            });
            let mut eta = Matrix::default();
            let surrogate = &*trained.posterior.outputs[o].surrogate;
            surrogate.predict(&x, c, &mut eta, &mut Scratch::default());
            let sds = train::error_sds(surrogate, &x, c, &[*sigma_a]);
            let mut rng = stream.at(o as u64).rng();
            let (_, of_row) = layout.points();
            let errors: Vec<f64> = of_row.iter().map(|_| rng.sample(StandardNormal)).collect();
            let value = |i: usize| {
                let shared = infer.error == ErrorSharing::Shared;
                let propagated = if infer.sigma_a { sds[(i, 0)] } else { 0.0 };
                let e = propagated * errors[if shared { of_row[i] } else { i }];
                let z = shift + factor * (eta[(i, 0)] + e);
                if output.log { z.exp() } else { z }
            };
            (0..x.rows()).map(value).collect()
        };
        self.layout.iter().enumerate().map(of_output).collect()
    }

    /// Measurements of the case with noise, and the sd that each output's noise had where that is the inferring one's.
    fn measure(&self, case: &Case, stream: Stream) -> (Vec<Measured>, Vec<Option<f64>>) {
        let (mut measured, mut sigmas) = (Vec::new(), Vec::new());
        for ((o, output), (layout, values)) in
            self.study.outputs.iter().enumerate().zip(case.layout.iter().zip(&case.values))
        {
            let mut rng = stream.named("noise").at(o as u64).rng();
            let NoiseSpec { family, scale } = &output.noise;
            let unknown = scale.prior().map(|prior| prior.sample(&mut rng));
            let of_row = |i: usize| scale.of(unknown, layout.scales.as_ref().map(|own| own[i])).unwrap_or(f64::NAN);
            let offset = self.study.offset_place(o).and_then(|place| case.unknowns[place]).unwrap_or(0.0);
            let normal = layout.correlation.as_deref().filter(|_| layout.other.is_none()).map(|correlation| {
                let independent: Vec<f64> = values.iter().map(|_| rng.sample(StandardNormal)).collect();
                correlate(correlation, &independent)
            });
            let y = values.iter().enumerate().map(|(i, &m)| {
                let m = if output.log { m * offset.exp() } else { m + offset };
                let generator = layout.other.unwrap_or_else(|| family.generator(of_row(i)));
                let y = normal.as_ref().and_then(|normal| generator.displaced(m, normal[i]));
                let y = y.unwrap_or_else(|| generator.sample(m, &mut rng));
                // What was censored at a bound will be again, unless it lies on the other side.
                match layout.bounds.get(i).copied().flatten() {
                    Some((Side::Below, bound)) if y < bound => (bound, Some(Side::Below)),
                    Some((Side::Above, bound)) if y > bound => (bound, Some(Side::Above)),
                    _ => (y, None),
                }
            });
            let (y, sides) = y.unzip();
            measured.push(Measured {
                output: output.name.clone(),
                y,
                known: layout.known.clone(),
                scale: layout.scales.clone(),
                sides,
                experiment: layout.experiment.clone(),
                correlation: layout.correlation.clone(),
            });
            sigmas.push(unknown.filter(|_| layout.other.is_none()));
        }
        (measured, sigmas)
    }

    /// What is known of the surrogate against the noise of these measurements.
    fn evidence(&self, trained: &Trained, case: &Case, sigmas: &[Option<f64>]) -> Evidence {
        let reports = trained.posterior.outputs.iter().map(|output| &output.report);
        let r_hats = reports.clone().flat_map(|report| report.parameters.iter().filter_map(|p| p.r_hat));
        let t_r_hat = r_hats.reduce(f64::max).filter(|r| r.is_finite());
        let t_warned = reports.clone().any(|report| report.troubled);
        let noise = |o: usize| {
            let (output, layout) = (&self.study.outputs[o], &case.layout[o]);
            let same_scale = output.noise.family.link(output.log) == Link::Identity
                && output.noise.family.generator(1.0).sd().is_some();
            let other = layout.other.and_then(|other| other.sd());
            let own = output.noise.scale.of(sigmas[o], layout.mean_scale());
            let sd = other.or(own).filter(|_| same_scale)?;
            Some(sd / (layout.replicates() as f64).sqrt())
        };
        let measured = (0..case.layout.len()).filter(|&o| case.layout[o].known.rows() > 0);
        let worst = measured.max_by(|&a, &b| {
            let ratio = |o: usize| trained.errors[o].0 / noise(o).unwrap_or(f64::INFINITY);
            ratio(a).total_cmp(&ratio(b))
        });
        let finite = |x: f64| Some(x).filter(|x| x.is_finite());
        Evidence {
            t_r_hat,
            t_warned,
            sigma_a: worst.and_then(|o| finite(trained.errors[o].0)),
            epistemic_sd: worst.and_then(|o| finite(trained.errors[o].1)),
            noise_sd: worst.and_then(noise).and_then(finite),
            ..Evidence::default()
        }
    }
}

impl Trained {
    fn to_keep(&self) -> TrialPosterior {
        let outputs = &self.posterior.outputs;
        TrialPosterior {
            reports: outputs.iter().map(|output| output.report.clone()).collect(),
            affine: outputs.iter().map(|output| output.affine).collect(),
            star: self.star.iter().map(|(c, sigma_a)| (c.data().to_vec(), *sigma_a)).collect(),
            errors: self.errors.clone(),
            values: self.posterior.draws.values().clone(),
        }
    }
}

/// Whether a T-posterior is dearer to train again than to write and read: sampled ones are, and exact ones with so many
/// coefficients that their matrices take about a second. Other exact ones take milliseconds and nodes less, as a file would.
fn is_worth_keeping(posterior: &TPosterior) -> bool {
    // Multiplications a second, in round numbers.
    const DEAR: f64 = 1e9;
    // Weights are not kept.
    let weighted = posterior.draws.log_weights().iter().any(|w| *w != posterior.draws.log_weights()[0]);
    !weighted
        && posterior.outputs.iter().any(|output| match output.report.method.as_str() {
            // A process and components need the rows, which are not kept.
            _ if output.surrogate.series().is_some() => false,
            "nodes" | "gp" => false,
            // A matrix of the coefficients is made and factored for every draw of sigma_A.
            "exact" => {
                let (p, n) = (output.surrogate.names().len() as f64, output.report.n_rows as f64);
                posterior.draws.n_draws() as f64 * p * p * (n + p / 3.0) > DEAR
            }
            _ => true,
        })
}

/// A truth, none of unknowns of experiments that are not measured, and what the outputs would be without measurement noise, one value for
/// each measurement.
struct Case {
    unknowns: Vec<Option<f64>>,
    layout: Vec<Layout>,
    values: Vec<Vec<f64>>,
    weight: f64,
}

impl Procedure for Trier<'_> {
    type Trained = Trained;

    fn i_trials(&self, t_trial: usize) -> usize {
        let i_trials = self.study.calibrate.i_trials;
        match &self.source {
            Source::HeldOut { folds, .. } => folds[t_trial].len() * i_trials,
            _ => i_trials,
        }
    }

    fn train(&self, t_trial: usize, monitor: &dyn Monitor) -> Result<Trained> {
        if let Some(trained) = self.restored(t_trial) {
            return Ok(trained);
        }
        let (study, stream) = (self.study, self.stream(t_trial));
        let (set, star) = self.training_set(t_trial, monitor)?;
        let mut tasks = stages::tasks(study);
        if let Source::SurrogatePrior(affine) = &self.source {
            tasks.iter_mut().zip(affine).for_each(|(task, affine)| task.affine = Some(*affine));
        }
        let scales = study.input_scales();
        let posterior = train::train(&set, &tasks, &scales, &study.train, None, stream.named("train"), monitor)?;
        let errors = (0..posterior.outputs.len()).map(|o| surrogate_errors(&posterior, o, &set)).collect();
        let clusters = stages::clustered(study, &posterior, stream);
        let trained = Trained { posterior, clusters, star, errors };
        self.trained.fetch_add(1, Ordering::Relaxed);
        if is_worth_keeping(&trained.posterior) {
            // Without it the T-step is done again, which is no reason to fail now; a full disk is told of by the journal.
            let _ = self.kept.keep(t_trial, trained.to_keep());
        }
        Ok(trained)
    }

    fn infer(
        &self,
        trained: &Trained,
        t_trial: usize,
        i_trial: usize,
        methods: &[Method],
        monitor: &dyn Monitor,
    ) -> Result<Vec<Trial>> {
        let study = self.study;
        let stream = self.stream(t_trial).named("I-trials").at(i_trial as u64);
        let case = self.case(trained, t_trial, i_trial, stream, monitor)?;
        let (measured, sigmas) = self.measure(&case, stream);
        let draws = trained.clusters.as_ref().unwrap_or(&trained.posterior.draws);
        let prepared = stages::prepare(study, &trained.posterior, draws, &measured, Vec::new())?;
        let of_outputs = (0..study.outputs.len()).filter(|&o| !measured[o].y.is_empty());
        let unknown_sds = of_outputs.filter(|&o| study.outputs[o].noise.scale.prior().is_some());
        let truth: Vec<Option<f64>> = case.unknowns.iter().copied().chain(unknown_sds.map(|o| sigmas[o])).collect();
        let spec = InferSpec { methods: methods.to_vec(), ..study.infer.clone() };
        let located = infer::locate(&prepared, &spec, &truth, stream.named("infer"), monitor)?;
        let evidence = self.evidence(trained, &case, &sigmas);
        let names = prepared.prior().names();
        located.into_iter().map(|l| trial([t_trial, i_trial], l, names, &truth, &evidence, case.weight)).collect()
    }
}

/// A located truth as an outcome.
fn trial(
    [t_trial, i_trial]: [usize; 2],
    located: Located,
    names: &[String],
    truth: &[Option<f64>],
    of_surrogate: &Evidence,
    weight: f64,
) -> Result<Trial> {
    let method = located.method.name();
    let mut ranked = Vec::new();
    for ((name, truth), place) in names.iter().zip(truth).zip(&located.places) {
        let (Some(truth), Some(place)) = (*truth, place) else { continue };
        if ![place.pit, place.q05, place.q95].iter().all(|x| x.is_finite()) {
            let problem = format!("the posterior of {name} by {method} has no finite quantiles");
            return Err(Error::failed("I-step", problem, "look at the ranges and priors"));
        }
        ranked.push(Ranked {
            unknown: name.clone(),
            truth,
            pit: place.pit,
            below: place.below,
            rank: place.rank.map(|(rank, _)| rank),
            draws: place.rank.map(|(_, draws)| draws),
            q05: place.q05,
            q95: place.q95,
        });
    }
    let diagnostics = located.diagnostics;
    let finite = |x: Option<f64>| x.filter(|x| x.is_finite());
    let evidence = Evidence {
        engine: located.engine.name().into(),
        r_hat: finite(diagnostics.max_r_hat),
        divergences: diagnostics.divergences,
        quadrature_error: finite(diagnostics.quadrature_error),
        agreement: finite(diagnostics.evidence_agreement),
        ..of_surrogate.clone()
    };
    let version = located.method.version();
    Ok(Trial { t_trial, i_trial, method: method.into(), version, weight, ranked, evidence, failed: None })
}

/// A truth that was to be drawn from the prior of a surrogate that has none.
fn no_prior(output: &Output) -> Error {
    let (found, repair) = output.no_prior();
    Error::invalid("calibrate.truth", found, repair)
}

/// Posterior mean of sigma_A of an output, averaged over the inputs, and root mean square over these of the sd of eta over the T-draws.
fn surrogate_errors(posterior: &TPosterior, o: usize, set: &TrainingSet) -> (f64, f64) {
    let (coefficients, sigma_a) = posterior.output_draws(o);
    let (weights, output) = (posterior.draws.weights(), &posterior.outputs[o]);
    let inputs = &set.inputs_of(&output.name, output.n_inputs);
    let mut eta = Matrix::default();
    output.surrogate.predict(inputs, &coefficients, &mut eta, &mut Scratch::default());
    let average = |values: &mut dyn Iterator<Item = f64>| values.zip(&weights).map(|(v, w)| v * w).sum::<f64>();
    let variance = |i: usize| {
        let mean = average(&mut eta.row(i).iter().copied());
        average(&mut eta.row(i).iter().map(|e| (e - mean).powi(2)))
    };
    let mean_variance = (0..inputs.rows()).map(variance).sum::<f64>() / inputs.rows() as f64;
    let errors = output.error_sds(inputs, &coefficients, &sigma_a);
    let mean_error = (0..inputs.rows()).map(|i| average(&mut errors.row(i).iter().copied())).sum::<f64>();
    (mean_error / inputs.rows() as f64, output.affine.1 * mean_variance.sqrt())
}

/// How the design's points are moved where neither it nor simulation noise would make one T-trial differ from another.
fn how_moved(study: &Study) -> Option<&'static str> {
    let method = study.design.points.is_none().then_some(study.design.method);
    design::how_varied(method).filter(|_| study.simulator.sigma_s == 0.0)
}

/// The design with its points moved.
fn moved_points(study: &Study, stream: Stream) -> Result<Matrix> {
    let (dim, stream) = (study.n_run_inputs(), stream.named("design"));
    let unit = match &study.design.points {
        None => design::varied_points(study.design.method, study.design.runs, dim, stream)?,
        Some(path) => {
            let (points, scales) = (Table::read(path)?.matrix(&study.input_names()[..dim])?, study.input_scales());
            let fraction = |row: &[f64]| row.iter().zip(&scales).map(|(x, scale)| scale.fraction(*x)).collect();
            let mut unit: Vec<Vec<f64>> = (0..points.rows()).map(|i| fraction(points.row(i))).collect();
            design::jitter(&mut unit, stream);
            unit
        }
    };
    Ok(stages::from_unit(study, &unit))
}

/// Prior over design density at these unknowns: designs are even over the range on the scale of each input.
fn weight(study: &Study, unknowns: &[f64]) -> f64 {
    let scales = study.input_scales();
    let ratio = |((unknown, scale), x): ((&Unknown, &InputScale), &f64)| {
        // Half the slope of the scaled input is the design's density.
        unknown.prior.log_density(*x).exp() / (0.5 * scale.scaled(*x).1)
    };
    study.unknowns.iter().zip(&scales).zip(unknowns).map(ratio).product()
}

/// Whether a run's unknowns lie inside the support of their priors. On a bound of its prior a truth is outside every central
/// interval, however good the surrogate.
fn can_be_held_out(study: &Study, inputs: &[f64]) -> bool {
    let inside = |(unknown, x): (&Unknown, &f64)| {
        let (lower, upper) = unknown.prior.support();
        lower < *x && *x < upper && unknown.prior.log_density(*x) > f64::NEG_INFINITY
    };
    study.unknowns.iter().zip(inputs).all(inside)
}

/// Which runs each T-trial holds out: as many groups as there may be T-trials, each spread over the design. Runs at the same
/// inputs go together: one of them in the training set would tell of the others.
fn folds(study: &Study, set: &TrainingSet) -> Result<Vec<Vec<usize>>> {
    let mut points: Vec<Vec<usize>> = Vec::new();
    let inputs = |run: usize| &set.inputs.row(set.rows_of(run).start)[..study.n_run_inputs()];
    for run in (0..set.n_runs()).filter(|&run| can_be_held_out(study, inputs(run))) {
        match points.iter_mut().find(|point| inputs(point[0]) == inputs(run)) {
            Some(point) => point.push(run),
            None => points.push(vec![run]),
        }
    }
    let trained_on = |point: &Vec<usize>| set.n_runs() - point.len();
    if points.is_empty() || points.iter().all(|point| trained_on(point) == 0) {
        let found = format!("{} of {} runs can be held out", points.concat().len(), set.n_runs());
        return Err(Error::invalid(
            "calibrate.truth",
            found,
            "simulate more runs inside the range, where the prior has mass",
        ));
    }
    // At least two groups: something must be left to train on.
    let n = study.calibrate.t_trials.max(2).min(points.len());
    Ok((0..n).map(|fold| points.iter().skip(fold).step_by(n).flatten().copied().collect()).collect())
}

/// Whether the design is that of runs in a table.
fn is_table_alone(study: &Study) -> bool {
    study.design.points.is_none() && study.design.runs == 0
}

/// Whether trials need the study's own runs: to hold them out, for the shift and factor of standardised outputs, or for the points of
/// a table.
pub(super) fn needs_own_runs(study: &Study) -> bool {
    match study.calibrate.truth {
        Truth::Simulator => false,
        Truth::SurrogatePrior => {
            is_table_alone(study) || study.outputs.iter().any(|output| output.surrogate.standardise)
        }
        Truth::HeldOutRuns => true,
    }
}

/// What a study's trials take.
pub(super) struct Forecast {
    pub(super) layout: Vec<Layout>,
    /// Number of I-trials of each T-trial.
    pub(super) i_trials: Vec<usize>,
    /// Simulator runs of each T-trial, and of each of its I-trials.
    pub(super) runs_of_t_trial: usize,
    pub(super) runs_of_i_trial: usize,
    pub(super) held_out: usize,
    /// Runs of the study's own design.
    pub(super) own_runs: usize,
    /// Runs that a surrogate is trained with.
    pub(super) trained_runs: usize,
    /// What to know before.
    pub(super) notes: Vec<String>,
}

/// What a study's trials will take; without the study's own runs `set`, as far as that can be known before they are made.
///
/// # Errors
/// A study that does not say what is measured, or whose runs cannot be held out.
pub(super) fn forecast(study: &Study, set: Option<&TrainingSet>) -> Result<Forecast> {
    let layout = Layout::of(study)?;
    let spec = &study.calibrate;
    let without = study.outputs.iter().find(|output| output.has_no_prior());
    if let (Truth::SurrogatePrior, Some(output)) = (spec.truth, without) {
        return Err(no_prior(output));
    }
    let own_runs = stages::planned_runs(study)?;
    // One run has all values of a series.
    let n_conditions = study.n_run_inputs() - study.unknowns.len();
    let mut points: Vec<&[f64]> =
        layout.iter().flat_map(|l| l.points().0.into_iter().map(|row| &l.known.row(row)[..n_conditions])).collect();
    points.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    points.dedup();
    let n_points = points.len();
    let mut notes = Vec::new();
    if let Some(how) = how_moved(study).filter(|_| spec.truth == Truth::Simulator) {
        notes.push(format!(
            "without simulation noise every T-trial of this design would be the same, so in each of them its {how}"
        ));
    }
    let by_simulator = spec.truth == Truth::Simulator;
    let held_out = spec.truth == Truth::HeldOutRuns;
    if held_out && study.design.points.is_some() {
        notes.push("held-out runs are weighted as if the design's points were even over the ranges".into());
    }
    let replicates = layout.iter().map(Layout::replicates).max().unwrap_or(0);
    if held_out && n_points > 1 {
        let total: usize = layout.iter().map(|l| l.known.rows()).max().unwrap_or(0);
        notes.push(format!(
            "a held-out run has one value of each condition, so each trial measures {} at one point where the study has {total} at \
             {n_points}: its intervals are wider than the study's",
            counted(replicates, "value")
        ));
    }
    // The first guess holds every run out by itself.
    let (groups, mut runs) = (spec.t_trials.max(2).min(own_runs), own_runs);
    let mut held: Vec<usize> = (0..groups).map(|group| (group..own_runs).step_by(groups).count()).collect();
    if let Some(set) = set.filter(|_| held_out) {
        held = folds(study, set)?.iter().map(Vec::len).collect();
        runs = held.iter().sum();
        if runs < set.n_runs() {
            notes.push(format!(
                "{} of {} on a bound of the prior or outside it, where no interval could hold the truth, {} only trained on",
                set.n_runs() - runs,
                counted(set.n_runs(), "run"),
                if set.n_runs() - runs == 1 { "is" } else { "are" }
            ));
        }
    }
    // The largest group leaves the fewest.
    let left_out = if held_out { held.iter().copied().max().unwrap_or(0) } else { 0 };
    if left_out > 1 {
        notes.push(format!(
            "each group leaves out up to {left_out} of {}, so that surrogates are trained on fewer than the study's; more \
             T-trials leave out less",
            counted(own_runs, "run")
        ));
    }
    Ok(Forecast {
        i_trials: match held_out {
            true => held.iter().map(|runs| runs * spec.i_trials).collect(),
            false => vec![spec.i_trials; spec.t_trials],
        },
        runs_of_t_trial: if by_simulator { own_runs } else { 0 },
        runs_of_i_trial: if by_simulator { n_points } else { 0 },
        held_out: if held_out { runs } else { 0 },
        own_runs,
        trained_runs: own_runs - left_out.min(own_runs),
        layout,
        notes,
    })
}
