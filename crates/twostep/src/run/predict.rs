//! Outputs at new conditions under the I-posterior, with surrogate error and measurement noise: why people calibrate.

use super::stages::parameter_names;
use super::{Findings, Project, Stale};
use crate::draws::{Sorted, pick_weighted};
use crate::error::{Error, Result};
use crate::infer::propagation::Method;
use crate::infer::{IPosterior, Measured};
use crate::likelihood::{ErrorSharing, log_likelihood};
use crate::matrix::Matrix;
use crate::stream::Stream;
use crate::study::{Output, Stage, Study, experiments};
use crate::surrogate::Scratch;
use crate::table::Table;
use crate::train::{PROBABILITIES, TPosterior, TrainedOutput, output_draws};
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use rand_distr::StandardNormal;
use rayon::prelude::*;

/// Predicts every output of setting `index` at the conditions in `at`, one row per point and output.
///
/// Each I-draw takes the T-draw it belongs to (E-Lik, E-Post), the point estimate (Point), or one by its weight (E-Log-Lik,
/// clusters). The surrogate's approximation error is added where the I-step propagates it, one for all rows at the same
/// conditions where replicates share it. Columns: conditions, output, mean, sd and quantiles of the output so predicted, then
/// the 90 % interval of a new measurement of it, which has the measurement noise besides. A study without conditions has one
/// row per output, and needs no `at`; one with experiments needs a column `experiment` in it.
///
/// # Errors
/// A stale or missing I-step, no `at` or a column missing in it, or conditions outside the range where the surrogate was
/// trained.
pub fn predict(project: &Project, index: usize, at: Option<&Table>, method: Option<Method>) -> Result<Table> {
    let study = &project.settings()[index].study;
    let (known, experiment) = points(study, at)?;
    let method = method.unwrap_or(study.infer.answer);
    let Finished { parameters, posterior, answer } = finished(project, index, "predict", method)?;
    let at = At { known: &known, experiment: &experiment, scales: None };
    prediction_table(study, &posterior, &parameters, &answer, &at)
}

impl Findings {
    /// As [`predict`], from these findings.
    ///
    /// # Errors
    /// No answer by the method; no `at` or a column missing in it, or conditions outside the range where the surrogate was trained.
    pub fn predict(&self, at: Option<&Table>, method: &str) -> Result<Table> {
        let (known, experiment) = points(&self.study, at)?;
        let at = At { known: &known, experiment: &experiment, scales: None };
        let answer = self.answers.iter().find(|answer| answer.method == method);
        let (Some(posterior), Some(answer)) = (&self.posterior, answer) else {
            let known: Vec<&str> = self.answers.iter().map(|answer| answer.method.as_str()).collect();
            let found = format!("there is no answer by {method}");
            return Err(Error::invalid("method", found, format!("use one of {}", known.join(", "))));
        };
        prediction_table(&self.study, posterior, &self.parameters, answer, &at)
    }
}

/// Outputs at these conditions: see [`predict`].
fn prediction_table(
    study: &Study,
    posterior: &TPosterior,
    parameters: &[String],
    answer: &IPosterior,
    at: &At<'_>,
) -> Result<Table> {
    let known = at.known;
    let names: Vec<&str> = study.conditions.iter().map(|c| c.name.as_str()).collect();
    let (mut rows, mut outputs_column): (Vec<Vec<f64>>, Vec<String>) = (Vec::new(), Vec::new());
    let mut conditions: Vec<Vec<f64>> = vec![Vec::new(); names.len()];
    for (o, output) in study.outputs.iter().enumerate() {
        let drawn = predicted(study, posterior, parameters, answer, o, at);
        for i in 0..known.rows() {
            let equal = vec![1.0; drawn.len()];
            let simulated: Vec<f64> = drawn.iter().map(|d| d.simulated[i]).collect();
            let measured: Vec<f64> = drawn.iter().map(|d| d.measured[i]).collect();
            let mean = simulated.iter().sum::<f64>() / simulated.len() as f64;
            let variance = simulated.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / simulated.len() as f64;
            let (sorted, sorted_measured) = (Sorted::new(&simulated, &equal), Sorted::new(&measured, &equal));
            let mut row = vec![mean, variance.sqrt()];
            row.extend(PROBABILITIES.map(|p| sorted.quantile(p)));
            row.extend([0.05, 0.95].map(|p| sorted_measured.quantile(p)));
            rows.push(row);
            outputs_column.push(output.name.clone());
            for (d, column) in conditions.iter_mut().enumerate() {
                column.push(known[(i, d)]);
            }
        }
    }
    let mut table = Table::new();
    for (name, column) in names.iter().zip(conditions) {
        table = table.with_numbers(*name, column)?;
    }
    if study.has_experiments() {
        let names = (0..study.outputs.len()).flat_map(|_| at.experiment).map(|&e| study.experiments[e].clone());
        table = table.with_texts("experiment", names.collect())?;
    }
    table = table.with_texts("output", outputs_column)?;
    let columns = ["mean", "sd", "q05", "q25", "q50", "q75", "q95", "measured_q05", "measured_q95"];
    for (j, name) in columns.iter().enumerate() {
        let texts = rows.iter().map(|r| if r[j].is_nan() { String::new() } else { format!("{}", r[j]) });
        table = table.with_texts(*name, texts.collect())?;
    }
    Ok(table)
}

/// Where and how precisely an output is measured.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// Conditions in rows.
    pub known: &'a Matrix,
    /// The experiment of each row; empty where there is one.
    pub experiment: &'a [usize],
    /// Standard deviations of the measurements, or numbers of trials, where they are a column.
    pub scales: Option<&'a [f64]>,
}

impl<'a> From<&'a Measured> for At<'a> {
    fn from(measured: &'a Measured) -> Self {
        Self { known: &measured.known, experiment: &measured.experiment, scales: measured.scale.as_deref() }
    }
}

/// One output at several conditions by one I-draw.
pub struct Predicted {
    /// The simulator's output, with the surrogate's approximation error where the I-step propagates it.
    pub simulated: Vec<f64>,
    /// A measurement of it, with the output's offset; NaN where the scale of its noise is not known.
    pub measured: Vec<f64>,
}

/// Output `o` at these conditions, by each draw of `answer`: see [`predict`].
pub fn predicted(
    study: &Study,
    posterior: &TPosterior,
    parameters: &[String],
    answer: &IPosterior,
    o: usize,
    at: &At<'_>,
) -> Vec<Predicted> {
    let At { known, experiment, scales } = *at;
    let output = &study.outputs[o];
    let pairs = Pairs::new(study, posterior, parameters, answer, o);
    // The row whose approximation error a row has: its own, or that of the first row at the same conditions.
    let shared = study.infer.error == ErrorSharing::Shared;
    // Experiments have inputs of their own.
    let with_experiment = Matrix::from_fn(known.rows(), known.cols() + 1, |i, d| match d {
        0 => experiment.get(i).map_or(0.0, |&e| e as f64),
        d => known[(i, d - 1)],
    });
    let n_alike = with_experiment.cols();
    let error_of: Vec<usize> = if shared { with_experiment.first_alike(n_alike) } else { (0..known.rows()).collect() };
    // The first row of the same series: all conditions but the coordinate are the same.
    let series_of = with_experiment.first_alike(if known.cols() > 0 { n_alike - 1 } else { n_alike });
    let of_draw = |k: usize| {
        let Pair { eta, error_sd, roots, offset, unknown_scale, mut rng } = pairs.at(k, known, experiment);
        let mut bell = || rng.sample::<f64, _>(StandardNormal);
        let errors: Vec<f64> = match roots {
            None => error_sd.iter().map(|sd| sd * bell()).collect(),
            Some(roots) => {
                let mut normal: Vec<Vec<f64>> = vec![Vec::new(); known.rows()];
                let of_row = |(i, roots): (usize, &Vec<f64>)| {
                    let normal = &mut normal[series_of[i]];
                    normal.resize_with(roots.len(), &mut bell);
                    roots.iter().zip(&*normal).map(|(root, z)| root * z).sum()
                };
                roots.iter().enumerate().map(of_row).collect()
            }
        };
        let natural = |eta: f64| if output.log { eta.exp() } else { eta };
        let with_errors: Vec<f64> = (0..known.rows()).map(|i| eta[i] + errors[error_of[i]]).collect();
        let simulated = with_errors.iter().copied().map(natural).collect();
        let mut measure = |(i, eta): (usize, &f64)| {
            let y = natural(eta + offset);
            let scale = output.noise.scale.of(unknown_scale, scales.map(|own| own[i]));
            scale.map_or(f64::NAN, |scale| output.noise.family.generator(scale).sample(y, &mut rng))
        };
        let measured = with_errors.iter().enumerate().map(&mut measure).collect();
        Predicted { simulated, measured }
    };
    (0..answer.draws.len()).into_par_iter().map(of_draw).collect()
}

/// `log p(y_i | omega, theta)` of every measurement of output `o`, by each draw of `answer` with the T-draw that [`predicted`]
/// takes for it. The approximation error is integrated out of each measurement by itself, where the I-step propagates it: what
/// replicates share of it is left to their joint density. A zero counts by its probability.
pub fn log_likelihoods(
    study: &Study,
    posterior: &TPosterior,
    parameters: &[String],
    answer: &IPosterior,
    o: usize,
    measured: &Measured,
) -> Vec<Vec<f64>> {
    let output = &study.outputs[o];
    let pairs = Pairs::new(study, posterior, parameters, answer, o);
    let (family, link) = (output.noise.family.likelihood(), output.noise.family.link(output.log));
    let of_draw = |k: usize| {
        let Pair { eta, error_sd, offset, unknown_scale: unknown, .. } =
            pairs.at(k, &measured.known, &measured.experiment);
        let of_value = |(i, y): (usize, &f64)| {
            let scale = output.noise.scale.of(unknown, measured.scale.as_ref().map(|own| own[i])).unwrap_or(f64::NAN);
            log_likelihood(&*family, (*y, measured.side(i)), link, eta[i] + offset, scale, error_sd[i])
        };
        measured.y.iter().enumerate().map(of_value).collect()
    };
    (0..answer.draws.len()).into_par_iter().map(of_draw).collect()
}

/// I-draws with the T-draws that go with them, as one output sees them.
struct Pairs<'a> {
    study: &'a Study,
    answer: &'a IPosterior,
    output: &'a Output,
    trained: &'a TrainedOutput,
    weights: Vec<f64>,
    coefficients: Matrix,
    sigma_a: Vec<f64>,
    /// For each experiment the places of the surrogate's unknowns in an I-draw.
    places: Vec<Vec<usize>>,
    /// Place of the output's offset.
    offset_at: Option<usize>,
    /// Place of the output's unknown scale in an I-draw.
    sigma_at: Option<usize>,
    stream: Stream,
}

/// One of them.
struct Pair {
    /// The surrogate's value at each row.
    eta: Vec<f64>,
    /// Sd of the approximation error at each row, zero where it is not propagated.
    error_sd: Vec<f64>,
    /// What independent standard normal numbers of a series are multiplied by and summed to its error at each row.
    roots: Option<Vec<Vec<f64>>>,
    /// What measurements have besides, on the surrogate's scale.
    offset: f64,
    /// What is unknown of the scale of the noise.
    unknown_scale: Option<f64>,
    /// Random numbers of this pair that are not used yet.
    rng: ChaCha8Rng,
}

impl<'a> Pairs<'a> {
    fn new(
        study: &'a Study,
        posterior: &'a TPosterior,
        parameters: &[String],
        answer: &'a IPosterior,
        o: usize,
    ) -> Self {
        let is_point = answer.method == Method::Point.name();
        let point = is_point.then(|| Method::Point.propagation(study.infer.point).reduce(&posterior.draws));
        let t_draws = point.as_ref().unwrap_or(&posterior.draws);
        let (coefficients, sigma_a) = output_draws(&posterior.outputs, t_draws.values(), o);
        let (output, sigma_name) = (&study.outputs[o], &study.sigma_names()[o]);
        Self {
            study,
            answer,
            output,
            trained: &posterior.outputs[o],
            weights: t_draws.weights(),
            coefficients,
            sigma_a,
            places: (0..study.experiments.len().max(1)).map(|experiment| study.places(experiment)).collect(),
            offset_at: study.offset_place(o),
            sigma_at: parameters.iter().position(|n| sigma_name.as_ref() == Some(n)),
            stream: Stream::root(study.seed).named("predict").named(&output.name),
        }
    }

    /// I-draw `k` at the conditions in the rows of `known`, in the experiment of each.
    fn at(&self, k: usize, known: &Matrix, experiment: &[usize]) -> Pair {
        let (x, n_unknowns) = (&self.answer.draws[k], self.study.unknowns.len());
        let mut rng = self.stream.at(k as u64).rng();
        let s = match &self.answer.t_draws {
            Some(own) if self.answer.method != Method::Point.name() => own[k],
            _ => pick_weighted(&self.weights, &mut rng),
        };
        let inputs = Matrix::from_fn(known.rows(), self.trained.n_inputs, |i, d| {
            let places = &self.places[experiment.get(i).copied().unwrap_or(0)];
            if d < n_unknowns { x[places[d]] } else { known[(i, d - n_unknowns)] }
        });
        let mut eta = Matrix::default();
        let coefficients = self.coefficients.select_cols(&[s]);
        self.trained.surrogate.predict(&inputs, &coefficients, &mut eta, &mut Scratch::default());
        let (shift, factor) = self.trained.affine;
        let series = self.trained.surrogate.series();
        let is_propagated = if series.is_some() { self.study.infer.series_errors } else { self.study.infer.sigma_a };
        let (error_sd, roots) = match is_propagated {
            true => {
                let own = self.trained.error_sds(&inputs, &coefficients, &[self.sigma_a[s]]);
                let roots = series.and_then(|series| {
                    let (components, variances) = (series.components()?, series.error_variances(&coefficients, 0));
                    let of_row = |i: usize| components.at(inputs[(i, inputs.cols() - 1)]).error_roots(&variances);
                    let mut roots: Vec<Vec<f64>> = (0..known.rows()).map(of_row).collect();
                    roots.iter_mut().flatten().for_each(|root| *root *= factor);
                    Some(roots)
                });
                (own.col(0), roots)
            }
            false => (vec![0.0; known.rows()], None),
        };
        // An output that was never measured has the scale that the prior says.
        let from_prior = |rng: &mut ChaCha8Rng| self.output.noise.scale.prior().map(|prior| prior.sample(rng));
        let unknown_scale = self.sigma_at.map(|j| x[j]).or_else(|| from_prior(&mut rng));
        Pair {
            eta: (0..known.rows()).map(|i| shift + factor * eta[(i, 0)]).collect(),
            error_sd,
            roots,
            offset: self.offset_at.map_or(0.0, |place| x[place]),
            unknown_scale,
            rng,
        }
    }
}

/// What the stages of a setting left for those who use it.
pub(super) struct Finished {
    /// Names of the unknowns and unknown sds.
    pub(super) parameters: Vec<String>,
    /// The T-posterior.
    pub(super) posterior: TPosterior,
    /// The I-posterior by the method asked for.
    pub(super) answer: IPosterior,
}

/// The results of setting `index` by `method`, for the command `what`.
///
/// # Errors
/// A stale or missing stage, or a method that the study does not have.
pub(super) fn finished(project: &Project, index: usize, what: &str, method: Method) -> Result<Finished> {
    let study = &project.settings()[index].study;
    let parameters = parameter_names(study, &project.measured(index)?);
    let unfinished = |stage: Stage, why: Stale| unfinished(what, stage, why);
    let plan = project.plan(index)?;
    // In the order of the stages: the first that is stale says why, and the others only that it is.
    let (_, set) = project
        .finished(index, &plan, Stage::Simulate, |_| project.training(index))
        .map_err(|why| unfinished(Stage::Simulate, why))?;
    let (_, posterior) = project
        .finished(index, &plan, Stage::Train, |_| project.t_posterior(index, &set))
        .map_err(|why| unfinished(Stage::Train, why))?;
    let (_, posteriors) = project
        .finished(index, &plan, Stage::Infer, |folder| folder.read_i_step(&parameters))
        .map_err(|why| unfinished(Stage::Infer, why))?;
    let known: Vec<String> = posteriors.iter().map(|p| p.method.clone()).collect();
    let answer = posteriors.into_iter().find(|p| p.method == method.name()).ok_or_else(|| {
        if study.infer.methods.contains(&method) {
            return unfinished(Stage::Infer, Stale::Unusable(format!("{} is not computed yet", method.name())));
        }
        Error::invalid(
            "--method",
            format!("the study has no answer by {}", method.name()),
            format!("use one of {}", known.join(", ")),
        )
    })?;
    Ok(Finished { parameters, posterior, answer })
}

/// The refusal of the command `what` to go by a stage that is stale.
pub(super) fn unfinished(what: &str, stage: Stage, why: Stale) -> Error {
    Error::failed(
        what,
        format!("the {} stage is not finished for this study as it is: {}", stage.name(), why.into_reason()),
        "run `twostep run` first, or `twostep infer` with the same --measurements",
    )
}

/// The conditions to predict at, one row per point, and the experiment of each, where there are several.
fn points(study: &Study, at: Option<&Table>) -> Result<(Matrix, Vec<usize>)> {
    let mut names: Vec<&str> = study.conditions.iter().map(|c| c.name.as_str()).collect();
    let Some(at) = at else {
        if names.is_empty() {
            let all = if study.has_experiments() { (0..study.experiments.len()).collect() } else { Vec::new() };
            return Ok((Matrix::zeros(all.len().max(1), 0), all));
        }
        names.extend(study.has_experiments().then_some("experiment"));
        return Err(Error::invalid(
            "--at",
            "is missing, and outputs depend on conditions",
            format!("give a CSV file with a column for each of {}", names.join(", ")),
        ));
    };
    if names.is_empty() && !study.has_experiments() {
        return Ok((Matrix::zeros(1, 0), Vec::new()));
    }
    let experiment = if study.has_experiments() { experiments(study, at)? } else { Vec::new() };
    let known = if names.is_empty() { Matrix::zeros(experiment.len(), 0) } else { at.matrix(&names)? };
    for i in 0..known.rows() {
        for (d, condition) in study.conditions.iter().enumerate() {
            let (lower, upper) = condition.range;
            let slack = 1e-9 * (upper - lower);
            if !(lower - slack..=upper + slack).contains(&known[(i, d)]) {
                return Err(Error::invalid(
                    at.place(i, &condition.name),
                    format!("{} lies outside [{lower}, {upper}], where the surrogate was trained", known[(i, d)]),
                    "extend conditions.range and simulate there, or remove the row",
                ));
            }
        }
    }
    Ok((known, experiment))
}
