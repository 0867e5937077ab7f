//! The T-step: training sets to T-posteriors, exact where they can be and by NUTS otherwise, with leave-one-run-out checks.

mod approximate;
pub mod cluster;
mod density;
mod exact;
mod gp;
mod horseshoe;
mod sensitivity;
mod series;
mod spec;
mod varying;

pub use sensitivity::{Order, Sensitivity};
pub use spec::{KnownSigmaS, NutsSpec, TrainMethod, TrainSpec};

use crate::draws::{Draws, Sorted};
use crate::error::{Error, Result};
use crate::kernels::normal_mixture;
use crate::matrix::{Matrix, bits};
use crate::mcmc::nuts::draws_of;
use crate::mcmc::{Bayes, chains, diagnostics, psis};
use crate::monitor::{Monitor, Quiet, counting};
use crate::special::{HALF_LN_TAU, normal_cdf};
use crate::stream::Stream;
use crate::surrogate::{
    Candidate, FunctionDraws, GaussianProcess, InputScale, Scratch, Series, SigmaA, Surrogate, SurrogateSpec,
};
use density::TDensity;
use exact::{Exact, LinearModel};
use gp::GpFit;
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// Probabilities of the quantiles that every summary gives.
pub const PROBABILITIES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// What the draws of chains are called in progress, those of the warm-up among them.
pub const T_DRAWS: &str = "T-draws";

/// Most predictions of training rows by draws: two gibibytes.
const MOST_PREDICTIONS: usize = 1 << 28;

/// Share of a Gaussian process' sd that its T-draws may leave out without a word.
const MOST_CARRIER_LOSS: f64 = 0.1;

/// Share of the outputs' sd that they may leave out in any case.
const LEAST_CARRIER_LOSS: f64 = 1e-3;

/// R-hat up to which chains agree.
const CHAINS_AGREE: f64 = 1.01;

/// Simulator runs: D_T. A run is one row or, where it gives a series, a row per coordinate.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingSet {
    /// Names of the inputs: unknowns, conditions, and the coordinate of series.
    pub input_names: Vec<String>,
    /// N x D inputs in natural units. The coordinate is NaN in a row of outputs that have none.
    pub inputs: Matrix,
    /// Values of each output, N each, in natural units; NaN where an output has none.
    pub outputs: Vec<(String, Vec<f64>)>,
    /// Known simulation noise of each row on the surrogate's scale, where there is any.
    pub sigma_s: Option<Vec<f64>>,
    /// The run of each row, from zero; rows of a run stand together and runs in order.
    pub runs: Vec<usize>,
}

impl TrainingSet {
    /// Runs of one row each, without known simulation noise.
    pub fn new(input_names: Vec<String>, inputs: Matrix, outputs: Vec<(String, Vec<f64>)>) -> Self {
        let runs = (0..inputs.rows()).collect();
        Self { input_names, inputs, outputs, sigma_s: None, runs }
    }

    /// Number of runs.
    pub fn n_runs(&self) -> usize {
        self.runs.last().map_or(0, |last| last + 1)
    }

    /// Rows of a run.
    pub fn rows_of(&self, run: usize) -> std::ops::Range<usize> {
        self.runs.partition_point(|r| *r < run)..self.runs.partition_point(|r| *r <= run)
    }

    /// The first `n_inputs` inputs of every row that has a value of the output.
    pub fn inputs_of(&self, output: &str, n_inputs: usize) -> Matrix {
        let y = self.outputs.iter().find(|(name, _)| name == output).map_or(&[][..], |(_, y)| y);
        let rows: Vec<usize> = (0..y.len()).filter(|&row| !y[row].is_nan()).collect();
        Matrix::from_fn(rows.len(), n_inputs, |i, d| self.inputs[(rows[i], d)])
    }

    /// The runs with these numbers, which become 0, 1, ...
    pub fn select(&self, runs: &[usize]) -> Self {
        let rows: Vec<usize> = runs.iter().flat_map(|&run| self.rows_of(run)).collect();
        let values = |y: &[f64]| rows.iter().map(|&row| y[row]).collect::<Vec<_>>();
        let renumbered = runs.iter().enumerate().flat_map(|(new, &run)| self.rows_of(run).map(move |_| new));
        Self {
            input_names: self.input_names.clone(),
            inputs: self.inputs.select_rows(&rows),
            outputs: self.outputs.iter().map(|(name, y)| (name.clone(), values(y))).collect(),
            sigma_s: self.sigma_s.as_deref().map(values),
            runs: renumbered.collect(),
        }
    }
}

/// One parameter of a T-posterior.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterSummary {
    /// Its name.
    pub name: String,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub sd: f64,
    /// Quantiles at [`PROBABILITIES`].
    pub quantiles: [f64; 5],
    /// Rank-normalised split R-hat, for chains.
    pub r_hat: Option<f64>,
    /// Bulk effective sample size, for chains.
    pub ess_bulk: Option<f64>,
    /// Monte Carlo standard error of the mean, for chains.
    pub mcse_mean: Option<f64>,
}

impl ParameterSummary {
    fn constant(name: &str, value: f64) -> Self {
        Self {
            name: name.into(),
            mean: value,
            sd: 0.0,
            quantiles: [value; 5],
            r_hat: None,
            ess_bulk: None,
            mcse_mean: None,
        }
    }
}

/// How well runs are predicted by the surrogate trained without them, on the surrogate's scale.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaveOneOut {
    /// `1 - sum (z - prediction)^2 / sum (z - mean)^2`; 1 is perfect, 0 no better than the mean. Needs two different outputs.
    pub q2: Option<f64>,
    /// Share of runs inside their 90 % predictive interval; NaN where the draws have no error to predict with.
    #[serde(default = "nan", skip_serializing_if = "is_nan")]
    pub coverage_90: f64,
    /// Predictive mean and sd of each run; none where the draws have no error to predict with (sigma_a = 0).
    pub predictions: Vec<Option<(f64, f64)>>,
    /// Runs whose leave-one-out prediction cannot be had from the draws (Pareto k-hat above 0.7).
    pub unreliable: usize,
    /// Log density of each row by its prediction: of the mixture where that is known, else of the normal distribution with its mean and
    /// sd. Not kept on disk.
    #[serde(skip)]
    pub log_scores: Vec<f64>,
}

/// Surrogates that were compared by how they predict runs that were left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChoiceReport {
    /// Place of the one that was taken: that of the highest score.
    pub chosen: usize,
    /// All of them, the simplest first.
    pub candidates: Vec<CandidateReport>,
}

/// A surrogate that was compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateReport {
    /// What it is.
    pub name: String,
    /// Mean log predictive density of a run that was left out, on the surrogate's scale; NaN where it could not be trained.
    #[serde(default = "nan", skip_serializing_if = "is_nan")]
    pub log_score: f64,
    /// By how much that is less than the highest, with the standard error of this difference over the runs.
    pub behind: Option<(f64, f64)>,
    /// See [`LeaveOneOut::coverage_90`].
    #[serde(default = "nan", skip_serializing_if = "is_nan")]
    pub coverage_90: f64,
    /// See [`LeaveOneOut::q2`].
    pub q2: Option<f64>,
    /// Why it could not be trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Terms of a polynomial of which few matter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TermsReport {
    /// How many there were to choose from, the constant among them.
    pub candidates: usize,
    /// How many the draws have; the others' variance is in sigma_A.
    pub kept: usize,
    /// Those whose sign is known with a probability of 97.5 % or more, with their shares of the mean square of all but the constant,
    /// largest first.
    pub matter: Vec<(String, f64)>,
}

/// What the importance weights of a normal approximation say of the draws that were resampled by them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImportanceReport {
    /// Shape of the tail of the weights: 0 where they are bounded, and above 0.7 not to be trusted; infinite where nothing can be fitted to
    /// the tail, since next to all weight is on a few draws.
    #[serde(default = "infinite", skip_serializing_if = "is_infinite")]
    pub k_hat: f64,
    /// How many draws without repetition the draws are worth.
    pub effective: f64,
    /// Number of normals: one for each mode, or each path to one.
    pub normals: usize,
}

/// For each row its mean and sd without the run it is of, by one node of what is integrated numerically, and the log-weight that the node has
/// without that run.
type Predictions = Vec<(f64, f64, f64)>;

fn nan() -> f64 {
    f64::NAN
}

fn is_nan(value: &f64) -> bool {
    value.is_nan()
}

fn infinite() -> f64 {
    f64::INFINITY
}

fn is_infinite(value: &f64) -> bool {
    value.is_infinite()
}

impl LeaveOneOut {
    /// Nothing can be said of so many rows.
    fn unknown(n_rows: usize) -> Self {
        Self {
            q2: None,
            coverage_90: f64::NAN,
            predictions: vec![None; n_rows],
            unreliable: 0,
            log_scores: vec![f64::NEG_INFINITY; n_rows],
        }
    }

    /// The mixture of the predictions by several nodes.
    fn of_nodes(z: &[f64], per_node: &[impl AsRef<[(f64, f64, f64)]>]) -> Self {
        Self::of_mixtures(z, per_node, |row| per_node.iter().map(|node| node.as_ref()[row].2).collect(), None)
    }

    /// The same of nodes that are draws, each given all runs: the log-weights that they have without a run are importance ratios, smoothed for each.
    fn of_draws(z: &[f64], runs: &[Vec<usize>], per_draw: &[impl AsRef<[(f64, f64, f64)]>]) -> Self {
        let mut run_of = vec![0; z.len()];
        runs.iter().enumerate().for_each(|(run, rows)| rows.iter().for_each(|&row| run_of[row] = run));
        let smoothed = |rows: &Vec<usize>| {
            psis::smooth(&per_draw.iter().map(|draw| draw.as_ref()[rows[0]].2).collect::<Vec<f64>>())
        };
        let by_run: Vec<psis::Smoothed> = runs.iter().map(smoothed).collect();
        let k_hats: Vec<f64> = by_run.iter().map(|run| run.k_hat).collect();
        Self::of_mixtures(z, per_draw, |row| by_run[run_of[row]].log_weights.clone(), Some(&k_hats))
    }

    /// The mixture of the predictions of every row, with log-weights of the nodes up to a constant.
    fn of_mixtures(
        z: &[f64],
        per_node: &[impl AsRef<[(f64, f64, f64)]>],
        log_weights: impl Fn(usize) -> Vec<f64>,
        k_hats: Option<&[f64]>,
    ) -> Self {
        let mut log_scores = Vec::with_capacity(z.len());
        let rows = (0..z.len())
            .map(|i| {
                let of_row = || per_node.iter().map(|node| node.as_ref()[i]);
                let log_weights = log_weights(i);
                let max = log_weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = log_weights.iter().map(|log_weight| (log_weight - max).exp()).collect();
                let total: f64 = weights.iter().sum();
                let expect = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
                    of_row().zip(&weights).map(|(node, w)| w / total * f(node.0, node.1)).sum()
                };
                let mean = expect(&|m, _| m);
                let variance = expect(&|m, s| s * s + (m - mean).powi(2));
                log_scores.push(expect(&|m, s| log_normal_density(z[i], m, s).exp()).ln());
                (mean, variance.sqrt(), expect(&|m, s| normal_cdf((z[i] - m) / s)))
            })
            .collect::<Vec<_>>();
        Self { log_scores, ..Self::new(z, &rows, k_hats) }
    }

    /// `rows` holds predictive mean, sd and probability below the value for each run.
    fn new(z: &[f64], rows: &[(f64, f64, f64)], k_hats: Option<&[f64]>) -> Self {
        let mean = z.iter().sum::<f64>() / z.len() as f64;
        let total: f64 = z.iter().map(|v| (v - mean).powi(2)).sum();
        let error: f64 = z.iter().zip(rows).map(|(v, row)| (v - row.0).powi(2)).sum();
        // The mean of equal values is rounded, so that their scatter need not be zero.
        let varies = z.iter().any(|v| *v != z[0]);
        Self {
            q2: Some(1.0 - error / total).filter(|q2| varies && q2.is_finite()),
            coverage_90: rows.iter().filter(|r| (0.05..=0.95).contains(&r.2)).count() as f64 / rows.len() as f64,
            predictions: rows.iter().map(|r| (r.0.is_finite() && r.1.is_finite()).then_some((r.0, r.1))).collect(),
            unreliable: k_hats.map_or(0, |k| k.iter().filter(|k| k.is_nan() || **k > 0.7).count()),
            log_scores: z.iter().zip(rows).map(|(z, row)| log_normal_density(*z, row.0, row.1)).collect(),
        }
    }

    /// The mean of the rows' log scores in each run.
    fn scores_of_runs(&self, runs: &[Vec<usize>]) -> Vec<f64> {
        runs.iter().map(|run| run.iter().map(|&row| self.log_scores[row]).sum::<f64>() / run.len() as f64).collect()
    }
}

/// `log N(z | mean, sd^2)`.
fn log_normal_density(z: f64, mean: f64, sd: f64) -> f64 {
    -0.5 * ((z - mean) / sd).powi(2) - sd.ln() - HALF_LN_TAU
}

/// What is known about one output's T-posterior besides its draws.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TReport {
    /// The output.
    pub output: String,
    /// How the T-posterior was had: `exact`, `nodes`, `nuts`, `smc`, both of these after `exact-given-` where they sampled the parameters of
    /// sigma_A alone, `laplace`, `pathfinder`, `gp`, `horseshoe`, `imported`, `function`.
    pub method: String,
    /// Number of training rows.
    pub n_rows: usize,
    /// Number of runs that they are of.
    pub n_runs: usize,
    /// Every coefficient, then sigma_a.
    pub parameters: Vec<ParameterSummary>,
    /// Share of runs inside the 90 % posterior predictive interval at their own inputs.
    pub predictive_coverage_90: f64,
    /// Leave-one-run-out errors.
    pub leave_one_out: LeaveOneOut,
    /// Divergent transitions of NUTS.
    pub divergences: usize,
    /// Whether the draws are of chains that diverged, disagree or overlooked a part, or of importance weights that are not to be trusted.
    #[serde(default)]
    pub troubled: bool,
    /// Sentences of advice.
    pub warnings: Vec<String>,
    /// What it was chosen from, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<ChoiceReport>,
    /// The terms that matter, where coefficients were shrunk together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<TermsReport>,
    /// The components of a series, where it was trained by these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<SeriesReport>,
    /// The importance weights, where the draws are of a normal approximation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importance: Option<ImportanceReport>,
}

/// Principal components of a series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeriesReport {
    /// How many there are.
    pub components: usize,
    /// Share of the variance of the runs that they have.
    pub share: f64,
}

/// One output's trained surrogate.
#[derive(Clone)]
pub struct TrainedOutput {
    /// The output.
    pub name: String,
    /// The surrogate.
    pub surrogate: Arc<dyn Surrogate>,
    /// `eta = shift + factor M~`, from standardisation.
    pub affine: (f64, f64),
    /// Whether eta is the logarithm of the output.
    pub log: bool,
    /// How many of the inputs the surrogate has; see [`OutputTask::n_inputs`].
    pub n_inputs: usize,
    /// Diagnostics.
    pub report: TReport,
}

/// Rows that an output was trained with: those of runs that have it, duplicates merged where that is exact.
pub struct TrainingRows {
    /// Their inputs.
    pub inputs: Matrix,
    /// Their values on the scale of eta.
    pub eta: Vec<f64>,
    /// The run of each, from zero.
    pub runs: Vec<usize>,
}

impl TrainedOutput {
    /// Standard deviation of the approximation error at inputs in rows, under draws in columns, on the scale of eta; `sigma_a` as
    /// [`output_draws`] has it.
    pub fn error_sds(&self, x: &Matrix, coefficients: &Matrix, sigma_a: &[f64]) -> Matrix {
        match self.surrogate.series().and_then(|series| series.error_sds(x, coefficients)) {
            Some(mut sds) => {
                sds.data_mut().iter_mut().for_each(|sd| *sd *= self.affine.1);
                sds
            }
            None => error_sds(&*self.surrogate, x, coefficients, sigma_a),
        }
    }

    /// The rows that it was trained with, in the order of its leave-one-run-out predictions.
    ///
    /// # Errors
    /// A training set that it cannot have been trained with.
    pub fn training_rows(&self, set: &TrainingSet) -> Result<TrainingRows> {
        let (of_rows, eta) = model_scale(set, &self.name, self.log)?;
        let runs: Vec<usize> = of_rows.iter().map(|&row| set.runs[row]).collect();
        let sigma_s: Vec<f64> = of_rows.iter().map(|&row| set.sigma_s.as_ref().map_or(0.0, |s| s[row])).collect();
        let x = set.inputs_of(&self.name, self.n_inputs);
        let rows = Rows::of(self.surrogate.series().is_some(), &x, &eta, &sigma_s, &runs);
        Ok(TrainingRows { inputs: rows.x, eta: rows.z, runs: rows.of.iter().map(|&row| runs[row]).collect() })
    }
}

/// sigma_A at inputs in rows, under draws in columns, on the scale of the `sigma_a` of these.
pub fn error_sds(surrogate: &dyn Surrogate, x: &Matrix, coefficients: &Matrix, sigma_a: &[f64]) -> Matrix {
    match surrogate.error_field() {
        Some(field) => {
            let mut sds = Matrix::default();
            field.sds(x, coefficients, sigma_a, &mut sds, &mut Scratch::default());
            sds
        }
        None => Matrix::from_fn(x.rows(), sigma_a.len(), |_, s| sigma_a[s]),
    }
}

/// The T-posterior of all outputs: joint draws, each output's coefficients followed by its sigma_a.
#[derive(Clone)]
pub struct TPosterior {
    /// Trained surrogates in the order of the outputs.
    pub outputs: Vec<TrainedOutput>,
    /// Joint draws.
    pub draws: Draws,
}

impl TPosterior {
    /// Coefficients (P x S) and sigma_a (S) of output `o`, the latter on the scale of eta.
    pub fn output_draws(&self, o: usize) -> (Matrix, Vec<f64>) {
        output_draws(&self.outputs, self.draws.values(), o)
    }
}

/// Coefficients and sigma_a of output `o` from joint draws.
pub fn output_draws(outputs: &[TrainedOutput], values: &Matrix, o: usize) -> (Matrix, Vec<f64>) {
    let start: usize = outputs[..o].iter().map(|out| out.surrogate.names().len() + 1).sum();
    let p = outputs[o].surrogate.names().len();
    let coefficients = values.select_rows(&(start..start + p).collect::<Vec<_>>());
    let factor = outputs[o].affine.1;
    (coefficients, values.row(start + p).iter().map(|s| s * factor).collect())
}

/// Names of the joint draws: the surrogate's own with one output, `output.name` with several.
pub fn joint_names<'a>(outputs: impl ExactSizeIterator<Item = (&'a str, &'a dyn Surrogate)>) -> Vec<String> {
    let several = outputs.len() > 1;
    outputs
        .flat_map(|(output, surrogate)| {
            let own = surrogate.names().iter().map(String::as_str).chain(["sigma_a"]);
            own.map(|name| if several { format!("{output}.{name}") } else { name.to_string() }).collect::<Vec<_>>()
        })
        .collect()
}

/// One output to train.
pub struct OutputTask<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its surrogate.
    pub spec: &'a SurrogateSpec,
    /// Whether the surrogate models the logarithm.
    pub log: bool,
    /// Shift and factor instead of those that standardisation would take from the training set.
    pub affine: Option<(f64, f64)>,
    /// How many of the inputs the surrogate has: all, or all but the coordinate of other outputs' series, which is last.
    pub n_inputs: usize,
}

/// Training rows on the surrogate's scale, duplicates merged where that is exact.
struct Rows {
    x: Matrix,
    z: Vec<f64>,
    sigma_s: Vec<f64>,
    /// Rows of each run that has any.
    runs: Vec<Vec<usize>>,
    /// The row before merging that each is, or is the first of.
    of: Vec<usize>,
    /// The row that each became.
    row_of: Vec<usize>,
}

impl Rows {
    /// Runs at the same inputs share one approximation error. With known simulation noise they reduce to their
    /// precision-weighted mean; without, equal repeats carry nothing new and unequal ones are kept (sigma_A absorbs the noise).
    fn new(x: &Matrix, z: &[f64], sigma_s: &[f64], runs: &[usize]) -> Self {
        let (mut kept, mut row_of): (Vec<(usize, f64, f64)>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut at_inputs: HashMap<Vec<u64>, Vec<usize>> = HashMap::new();
        for i in 0..z.len() {
            let twins = at_inputs.entry(bits(x.row(i))).or_default();
            let fits = |k: &&usize| {
                let (_, value, noise) = kept[**k];
                (noise > 0.0 && sigma_s[i] > 0.0) || (value == z[i] && noise == sigma_s[i])
            };
            let twin = twins.iter().copied().find(|k| fits(&k));
            row_of.push(twin.unwrap_or(kept.len()));
            match twin.map(|k| &mut kept[k]) {
                Some((_, value, noise)) if *noise > 0.0 => {
                    let (a, b) = (noise.powi(-2), sigma_s[i].powi(-2));
                    *value = (a * *value + b * z[i]) / (a + b);
                    *noise = (a + b).sqrt().recip();
                }
                Some(_) => {}
                None => {
                    twins.push(kept.len());
                    kept.push((i, z[i], sigma_s[i]));
                }
            }
        }
        Self::by_run(x, &kept, row_of, runs)
    }

    /// As [`Rows::new`]; of a `series` all rows, since runs count as wholes.
    fn of(series: bool, x: &Matrix, z: &[f64], sigma_s: &[f64], runs: &[usize]) -> Self {
        if !series {
            return Self::new(x, z, sigma_s, runs);
        }
        let all: Vec<(usize, f64, f64)> = (0..z.len()).map(|i| (i, z[i], sigma_s[i])).collect();
        Self::by_run(x, &all, (0..z.len()).collect(), runs)
    }

    fn by_run(x: &Matrix, kept: &[(usize, f64, f64)], row_of: Vec<usize>, runs: &[usize]) -> Self {
        let mut by_run: Vec<(usize, Vec<usize>)> = Vec::new();
        for (row, (i, ..)) in kept.iter().enumerate() {
            match by_run.last_mut().filter(|(run, _)| *run == runs[*i]) {
                Some((_, rows)) => rows.push(row),
                None => by_run.push((runs[*i], vec![row])),
            }
        }
        Self {
            x: x.select_rows(&kept.iter().map(|k| k.0).collect::<Vec<_>>()),
            z: kept.iter().map(|k| k.1).collect(),
            sigma_s: kept.iter().map(|k| k.2).collect(),
            runs: by_run.into_iter().map(|(_, rows)| rows).collect(),
            of: kept.iter().map(|k| k.0).collect(),
            row_of,
        }
    }
}

/// Trains every output on the training set.
///
/// `imported` replaces training by draws whose names are those of [`joint_names`]; `monitor` is asked between pieces of work.
///
/// # Errors
/// An output that cannot be used, a method that does not fit the surrogate, or an interruption.
pub fn train(
    set: &TrainingSet,
    tasks: &[OutputTask<'_>],
    scales: &[InputScale],
    spec: &TrainSpec,
    imported: Option<Draws>,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<TPosterior> {
    let mut outputs = Vec::new();
    let mut blocks: Vec<Block> = Vec::new();
    for (o, task) in tasks.iter().enumerate() {
        let affine = standardisation(set, task)?;
        let rows = task.rows(set, affine)?;
        // How many draws a function of the calling program makes, it says itself.
        if task.spec.function().is_none() || imported.is_some() {
            refuse_too_many(rows.z.len(), spec.draws)?;
        }
        let stream = stream.named(task.name);
        // What a function of the calling program has for parameters, its draws say; what terms of a polynomial matter, and which
        // surrogate is best, the runs.
        let (surrogate, made) = match (task.spec.function(), &imported) {
            (Some(function), None) => {
                monitor.progress("train", o, tasks.len());
                if !monitor.proceed() {
                    return Err(Error::Interrupted);
                }
                let seed = stream.named("function").rng().random();
                let made = function.train(&rows.x, &rows.z, spec.draws, seed)?;
                (task.build(set, scales, &made.names, &rows)?, Made::Function(made))
            }
            (_, Some(draws)) => {
                let parameters = match task.spec.finds_parameters() {
                    true => parameters_of(draws.names(), task.name, tasks.len() > 1),
                    false => Vec::new(),
                };
                (task.build(set, scales, &parameters, &rows)?, Made::Imported)
            }
            (None, None) => {
                if !monitor.proceed() {
                    return Err(Error::Interrupted);
                }
                monitor.progress("train", o, tasks.len());
                let Trained { surrogate, block } =
                    task.trained(set, scales, &rows, spec, tasks.len(), stream, monitor)?;
                (surrogate, Made::Trained(Box::new(block)))
            }
        };
        outputs.push((task, surrogate, affine, rows, made));
    }
    let names = joint_names(outputs.iter().map(|(task, surrogate, ..)| (task.name, &**surrogate)));
    let imported = imported.map(|draws| reorder(&with_sigma_a(draws, tasks), &names)).transpose()?;
    let mut kept = Vec::new();
    for (task, surrogate, affine, rows, made) in outputs {
        let fit = Fit { surrogate: &surrogate, rows: &rows, sigma_a: &task.spec.sigma_a, name: task.name };
        let mut block = match (made, &imported) {
            (Made::Trained(block), _) => *block,
            (Made::Function(made), _) => {
                refuse_too_many(rows.z.len(), made.values.cols())?;
                fit.made(made)
            }
            (Made::Imported, Some(draws)) => {
                let sizes = blocks.iter().map(|block: &Block| block.coefficients.rows() + 1);
                fit.imported(draws, sizes.sum())
            }
            (Made::Imported, None) => unreachable!("draws are imported for all outputs or none"),
        };
        let components = surrogate.series().and_then(Series::components);
        block.report.series = components.map(|found| SeriesReport { components: found.len(), share: found.share() });
        block.report.advise();
        blocks.push(block);
        kept.push((task, surrogate, affine));
    }
    let outputs = kept;
    refuse_unequal(tasks, &blocks)?;
    monitor.progress("train", tasks.len(), tasks.len());
    // A surrogate that failed on the way has asked to stop.
    if !monitor.proceed() {
        return Err(Error::Interrupted);
    }
    let n_draws = blocks[0].coefficients.cols();
    let rows: Vec<f64> = blocks.iter().flat_map(|b| b.coefficients.data().iter().chain(&b.sigma_a).copied()).collect();
    let values = Matrix::from_rows(names.len(), n_draws, rows);
    let log_weights = blocks[0].log_weights.clone();
    let draws = Draws::weighted(names, values, log_weights);
    let outputs = outputs
        .into_iter()
        .zip(blocks)
        .map(|((task, surrogate, affine), block)| TrainedOutput {
            name: task.name.to_string(),
            surrogate,
            affine,
            log: task.log,
            n_inputs: task.n_inputs,
            report: block.report,
        })
        .collect();
    Ok(TPosterior { outputs, draws })
}

/// The T-posterior from draws and reports that an earlier run left behind.
///
/// # Errors
/// Draws or reports that do not belong to these outputs.
pub fn restore(
    set: &TrainingSet,
    tasks: &[OutputTask<'_>],
    scales: &[InputScale],
    draws: &Draws,
    reports: Vec<TReport>,
) -> Result<TPosterior> {
    let outputs = tasks
        .iter()
        .zip(reports)
        .map(|(task, report)| {
            let affine = standardisation(set, task)?;
            let chosen = chosen_spec(task.spec, task.n_inputs, &report);
            let task = OutputTask { spec: &chosen, ..*task };
            Ok(TrainedOutput {
                name: task.name.to_string(),
                surrogate: task.build(set, scales, &report.coefficient_names(), &task.rows(set, affine)?)?,
                affine,
                log: task.log,
                n_inputs: task.n_inputs,
                report,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let names = joint_names(outputs.iter().map(|o| (o.name.as_str(), &*o.surrogate)));
    let draws = reorder(draws, &names)?;
    Ok(TPosterior { outputs, draws })
}

/// The surrogate that was trained: of several the one that the report says was taken.
pub fn chosen_spec(spec: &SurrogateSpec, n_inputs: usize, report: &TReport) -> SurrogateSpec {
    let chosen = report.choice.as_ref().and_then(|choice| {
        let candidates = spec.candidates(n_inputs, report.n_runs)?;
        candidates.into_iter().nth(choice.chosen).map(|(_, spec)| spec)
    });
    chosen.unwrap_or_else(|| spec.clone())
}

/// Refuses rows whose predictions by every draw do not fit into memory.
fn refuse_too_many(n_rows: usize, n_draws: usize) -> Result<()> {
    if n_rows.saturating_mul(n_draws) <= MOST_PREDICTIONS {
        return Ok(());
    }
    let found = format!("{n_rows} rows, each to be predicted by {n_draws} T-draws");
    let most = MOST_PREDICTIONS / n_draws.max(1);
    Err(Error::invalid("training set", found, format!("train with at most {most} of the rows, or lower train.draws")))
}

/// Refuses outputs whose draws cannot be those of one joint posterior, side by side.
fn refuse_unequal(tasks: &[OutputTask<'_>], blocks: &[Block]) -> Result<()> {
    let first = &blocks[0];
    for (task, block) in tasks.iter().zip(blocks).skip(1) {
        let (n, expected) = (block.sigma_a.len(), first.sigma_a.len());
        let found = match n == expected {
            true if block.log_weights == first.log_weights => continue,
            true => format!("the draws of `{}` and `{}` have different weights", tasks[0].name, task.name),
            false => format!("{expected} draws of `{}`, and {n} of `{}`", tasks[0].name, task.name),
        };
        let repair = "give as many draws of every output, and weights of all together by train.import";
        return Err(Error::invalid("T-step", found, repair));
    }
    Ok(())
}

/// The parameters of an output's surrogate, by the names of joint draws.
fn parameters_of(names: &[String], output: &str, several: bool) -> Vec<String> {
    let prefix = if several { format!("{output}.") } else { String::new() };
    let own = names.iter().filter_map(|name| name.strip_prefix(&prefix));
    own.filter(|name| *name != "sigma_a").map(String::from).collect()
}

/// Draws that were brought for functions of the calling program, with the sigma_a of the study where they have none.
fn with_sigma_a(draws: Draws, tasks: &[OutputTask<'_>]) -> Draws {
    let (mut names, mut values) = (draws.names().to_vec(), draws.values().data().to_vec());
    for task in tasks.iter().filter(|task| task.spec.function().is_some()) {
        let name = if tasks.len() > 1 { format!("{}.sigma_a", task.name) } else { "sigma_a".to_owned() };
        if let (SigmaA::Fixed(known), false) = (&task.spec.sigma_a, names.contains(&name)) {
            names.push(name);
            values.extend(std::iter::repeat_n(*known, draws.n_draws()));
        }
    }
    let values = Matrix::from_rows(names.len(), draws.n_draws(), values);
    Draws::weighted(names, values, draws.log_weights().to_vec())
}

impl OutputTask<'_> {
    /// Its surrogate and T-posterior; of several that are to be compared, those of the one that predicts left-out runs best.
    fn trained(
        &self,
        set: &TrainingSet,
        scales: &[InputScale],
        rows: &Rows,
        spec: &TrainSpec,
        n_outputs: usize,
        stream: Stream,
        monitor: &dyn Monitor,
    ) -> Result<Trained> {
        if let Some(candidates) = self.spec.candidates(self.n_inputs, rows.runs.len()) {
            return self.best(candidates, set, scales, rows, spec, stream, monitor);
        }
        let sigma_a = &self.spec.sigma_a;
        if self.spec.finds_parameters() {
            let all = self.build(set, scales, &[], rows)?;
            let fit = Fit { surrogate: &all, rows, sigma_a, name: self.name };
            let found = fit.horseshoe(spec, true, stream, monitor)?;
            let names: Vec<String> = found.kept.iter().map(|&j| all.names()[j].clone()).collect();
            let surrogate = self.build(set, scales, &names, rows)?;
            let block = Fit { surrogate: &surrogate, ..fit }.horseshoe_block(found);
            return Ok(Trained { surrogate, block });
        }
        let surrogate = self.build(set, scales, &[], rows)?;
        let block = match self.spec.has_components() {
            true => series::train(self, &surrogate, rows, spec, stream, monitor)?,
            false => {
                Fit { surrogate: &surrogate, rows, sigma_a, name: self.name }.train(spec, n_outputs, stream, monitor)?
            }
        };
        Ok(Trained { surrogate, block })
    }

    /// The candidate with the highest leave-one-run-out log predictive density.
    fn best(
        &self,
        candidates: Vec<Candidate>,
        set: &TrainingSet,
        scales: &[InputScale],
        rows: &Rows,
        spec: &TrainSpec,
        stream: Stream,
        monitor: &dyn Monitor,
    ) -> Result<Trained> {
        let mut best: Option<(usize, f64, Trained)> = None;
        let mut found = Vec::new();
        for (k, (name, own)) in candidates.iter().enumerate() {
            monitor.progress("surrogates compared", k, candidates.len());
            let task = OutputTask { spec: own, ..*self };
            // The same draws as if it had been named.
            let trained = match task.trained(set, scales, rows, spec, 1, stream, &Quiet(monitor)) {
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                trained => trained,
            };
            let report = |scores: Vec<f64>, left_out: Option<&LeaveOneOut>, failure: Option<String>| {
                let n = scores.len() as f64;
                let report = CandidateReport {
                    name: name.clone(),
                    log_score: Some(scores.iter().sum::<f64>() / n)
                        .filter(|score| score.is_finite())
                        .unwrap_or(f64::NAN),
                    behind: None,
                    coverage_90: left_out.map_or(f64::NAN, |left_out| left_out.coverage_90),
                    q2: left_out.and_then(|left_out| left_out.q2),
                    failure,
                };
                (report, scores)
            };
            match trained {
                Ok(trained) => {
                    let left_out = &trained.block.report.leave_one_out;
                    let own = report(left_out.scores_of_runs(&rows.runs), Some(left_out), None);
                    let score = own.0.log_score;
                    found.push(own);
                    if score.is_finite() && best.as_ref().is_none_or(|(_, highest, _)| score > *highest) {
                        best = Some((k, score, trained));
                    }
                }
                Err(error) => found.push(report(Vec::new(), None, Some(error.to_string()))),
            }
        }
        monitor.progress("surrogates compared", candidates.len(), candidates.len());
        let Some((chosen, _, mut trained)) = best else {
            let why = found.iter().find_map(|(report, _)| report.failure.clone()).unwrap_or_default();
            return Err(Error::failed(
                format!("T-step of `{}`", self.name),
                format!("no surrogate can be trained from these runs: {why}"),
                "make more runs, or name a surrogate",
            ));
        };
        let highest = found[chosen].1.clone();
        let behind = |scores: &[f64]| {
            let differences: Vec<f64> = highest.iter().zip(scores).map(|(a, b)| a - b).collect();
            let n = differences.len() as f64;
            let mean = differences.iter().sum::<f64>() / n;
            let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
            (mean, (variance / n).sqrt())
        };
        let reports = found.into_iter().map(|(report, scores)| {
            let is_scored = report.log_score.is_finite();
            CandidateReport { behind: is_scored.then(|| behind(&scores)), ..report }
        });
        trained.block.report.choice = Some(ChoiceReport { chosen, candidates: reports.collect() });
        Ok(trained)
    }

    /// The surrogate; a function of the calling program with these parameters, a Gaussian process with these rows.
    fn build(
        &self,
        set: &TrainingSet,
        scales: &[InputScale],
        parameters: &[String],
        rows: &Rows,
    ) -> Result<Arc<dyn Surrogate>> {
        if self.spec.has_components() {
            return Ok(Arc::new(series::build(self, set, scales, rows)?));
        }
        let (names, scales) = (&set.input_names[..self.n_inputs], &scales[..self.n_inputs]);
        let surrogate = self.spec.build_with(names, scales, parameters)?;
        Ok(match surrogate.gaussian_process() {
            Some(process) => Arc::new(process.clone().with_rows(&rows.x, &rows.z, &rows.sigma_s)),
            None => Arc::from(surrogate),
        })
    }

    /// Its training rows on the surrogate's scale.
    fn rows(&self, set: &TrainingSet, affine: (f64, f64)) -> Result<Rows> {
        let (of_rows, z) = model_scale(set, self.name, self.log)?;
        let z: Vec<f64> = z.iter().map(|z| (z - affine.0) / affine.1).collect();
        let sigma_s: Vec<f64> =
            of_rows.iter().map(|&row| set.sigma_s.as_ref().map_or(0.0, |s| s[row] / affine.1)).collect();
        let runs: Vec<usize> = of_rows.iter().map(|&row| set.runs[row]).collect();
        let x = set.inputs_of(self.name, self.n_inputs);
        Ok(Rows::of(self.spec.has_components(), &x, &z, &sigma_s, &runs))
    }
}

/// The rows that have a value of the output, and their values on the scale the surrogate models.
fn model_scale(set: &TrainingSet, output: &str, log: bool) -> Result<(Vec<usize>, Vec<f64>)> {
    let missing = |found: String| Error::invalid("training set", found, "simulate again");
    let found = set.outputs.iter().find(|(name, _)| name == output);
    let (_, y) = found.ok_or_else(|| missing(format!("no output `{}`", output)))?;
    let rows: Vec<usize> = (0..y.len()).filter(|&row| !y[row].is_nan()).collect();
    if rows.is_empty() {
        return Err(missing(format!("no run has a value of output `{}`", output)));
    }
    let on_scale = |&row: &usize| {
        let z = if log { y[row].ln() } else { y[row] };
        if z.is_finite() {
            return Ok(z);
        }
        let why = if log { "which has no logarithm" } else { "not finite" };
        Err(Error::invalid(
            format!("training run {}", set.runs[row] + 1),
            format!("output `{}` is {}, {why}", output, y[row]),
            "leave the run out, or change the output's scale",
        ))
    };
    let z = rows.iter().map(on_scale).collect::<Result<_>>()?;
    Ok((rows, z))
}

/// `eta = shift + factor M~` of an output: mean and sd of the training set where the surrogate is to be standardised.
///
/// # Errors
/// An output that cannot be used.
pub fn standardisation(set: &TrainingSet, task: &OutputTask<'_>) -> Result<(f64, f64)> {
    if let Some(affine) = task.affine {
        return Ok(affine);
    }
    if !task.spec.standardise {
        return Ok((0.0, 1.0));
    }
    let (_, z) = model_scale(set, task.name, task.log)?;
    let mean = z.iter().sum::<f64>() / z.len() as f64;
    let sd = (z.iter().map(|z| (z - mean).powi(2)).sum::<f64>() / z.len() as f64).sqrt();
    Ok((mean, if sd > 0.0 { sd } else { 1.0 }))
}

/// The draws with exactly these parameters, in this order.
fn reorder(draws: &Draws, names: &[String]) -> Result<Draws> {
    let rows = names
        .iter()
        .map(|name| {
            draws.names().iter().position(|n| n == name).ok_or_else(|| {
                Error::invalid(
                    "train.import",
                    format!("the T-draws have no column `{name}`"),
                    format!("give one column each for {}", names.join(", ")),
                )
            })
        })
        .collect::<Result<Vec<_>>>()?;
    // Draws without weight would only cost time.
    let kept: Vec<usize> = (0..draws.n_draws()).filter(|&s| draws.log_weights()[s] > f64::NEG_INFINITY).collect();
    let log_weights = kept.iter().map(|&s| draws.log_weights()[s]).collect();
    Ok(Draws::weighted(names.to_vec(), draws.values().select_rows(&rows).select_cols(&kept), log_weights))
}

/// Coefficients of a surrogate from their prior; none where they have none.
pub fn prior_draw(surrogate: &dyn Surrogate, rng: &mut ChaCha8Rng) -> Option<Vec<f64>> {
    match surrogate.gaussian_process() {
        Some(process) => gp::prior_draw(process, rng),
        None => {
            (!surrogate.priors().is_empty()).then(|| surrogate.priors().iter().map(|prior| prior.sample(rng)).collect())
        }
    }
}

/// A surrogate with its T-posterior.
struct Trained {
    surrogate: Arc<dyn Surrogate>,
    block: Block,
}

/// Where the draws of an output come from.
enum Made {
    Trained(Box<Block>),
    Function(FunctionDraws),
    Imported,
}

/// One output's part of the joint draws.
struct Block {
    coefficients: Matrix,
    sigma_a: Vec<f64>,
    log_weights: Vec<f64>,
    report: TReport,
}

struct Fit<'a> {
    surrogate: &'a Arc<dyn Surrogate>,
    rows: &'a Rows,
    sigma_a: &'a SigmaA,
    name: &'a str,
}

impl Fit<'_> {
    fn train(&self, spec: &TrainSpec, n_outputs: usize, stream: Stream, monitor: &dyn Monitor) -> Result<Block> {
        let proceed = &|| monitor.proceed();
        if let Some(process) = self.surrogate.gaussian_process() {
            return self.process(process, spec, stream, monitor);
        }
        if self.surrogate.has_horseshoe() {
            return Ok(self.horseshoe_block(self.horseshoe(spec, false, stream, monitor)?));
        }
        let linear = self.linear_model();
        match (spec.method, linear) {
            (TrainMethod::Auto, Some(model)) if self.surrogate.error_field().is_some() => {
                self.varying(model, spec, stream, monitor)
            }
            (TrainMethod::Auto | TrainMethod::Exact, Some(model)) => {
                let exact = Exact::new(model, proceed)?;
                let (coefficients, sigma_a) = exact.draws(spec.draws, stream);
                Ok(self.exact_block("exact", &exact, coefficients, sigma_a, vec![0.0; spec.draws]))
            }
            (TrainMethod::Nodes, Some(model)) => {
                if n_outputs > 1 {
                    return Err(Error::invalid(
                        "train.method",
                        "nodes are for a study of one output",
                        "use method = \"exact\" for random draws",
                    ));
                }
                let exact = Exact::new(model, proceed)?;
                let (coefficients, sigma_a, log_weights) = exact.quadrature_nodes(spec.draws)?;
                Ok(self.exact_block("nodes", &exact, coefficients, sigma_a, log_weights))
            }
            (TrainMethod::Exact | TrainMethod::Nodes, None) => Err(Error::invalid(
                "train.method",
                format!("the T-posterior of `{}` has no exact form", self.name),
                "use method = \"nuts\": exact draws need a surrogate linear in its coefficients with normal priors, and one sigma_a",
            )),
            (TrainMethod::Auto | TrainMethod::Nuts, _) => self.nuts(spec, stream, monitor),
            (TrainMethod::Laplace | TrainMethod::Pathfinder, _) => self.approximated(spec, stream, monitor),
        }
    }

    fn linear_model(&self) -> Option<LinearModel> {
        let (offset, mut features) = self.surrogate.linear(&self.rows.x)?;
        let mut priors = self.surrogate.priors();
        if let Some(field) = self.surrogate.error_field() {
            // Predictions do not depend on the coefficients of sigma_A, which come last.
            priors = &priors[..field.rows().start];
            features = Matrix::from_fn(features.rows(), priors.len(), |i, p| features[(i, p)]);
        }
        let prior = priors.iter().map(|p| p.is_normal()).collect::<Option<Vec<_>>>()?;
        let z = self.rows.z.iter().zip(offset).map(|(z, o)| z - o).collect();
        Some(LinearModel {
            features,
            z,
            sigma_s: self.rows.sigma_s.clone(),
            runs: self.rows.runs.clone(),
            prior,
            sigma_a: self.sigma_a.clone(),
        })
    }

    /// Hyper-parameters and functions of a Gaussian process.
    fn process(
        &self,
        process: &GaussianProcess,
        spec: &TrainSpec,
        stream: Stream,
        monitor: &dyn Monitor,
    ) -> Result<Block> {
        let fit = GpFit::new(process, self.sigma_a, self.name, stream.named("hyper"), &|| monitor.proceed())?;
        let (coefficients, sigma_a) = fit.draws(spec.draws, stream.named("functions"), &|| monitor.proceed())?;
        let log_weights = vec![0.0; spec.draws];
        let known = || (None, fit.leave_one_out(&self.rows.z, &self.rows.runs));
        let mut report = self.report("gp", &coefficients, &sigma_a, &log_weights, Some(&known));
        let output = self.name;
        if let Some(k_hat) = fit.k_hat.filter(|k_hat| *k_hat > gp::RELIABLE) {
            report.warnings.push(format!(
                "T-step of `{output}`: the hyper-parameters' importance weights are unreliable (Pareto k-hat {k_hat:.1}); train with fewer rows, for which they are tempered from their prior"
            ));
        }
        if fit.jitter() > 0.0 {
            report.warnings.push(format!(
                "T-step of `{output}`: the covariance of the runs is close to singular; {:.0e} of its mean was added to the diagonal",
                fit.jitter()
            ));
        }
        // Runs may leave next to nothing open, and polynomials a part of that.
        let matters = |(loss, of_outputs): &(f64, f64)| *loss > MOST_CARRIER_LOSS && *of_outputs > LEAST_CARRIER_LOSS;
        if let Some((loss, _)) = fit.carrier_loss().filter(matters) {
            report.warnings.push(format!(
                "T-step of `{output}`: the polynomials that T-draws are written in leave out {:.0} % of what the process is uncertain of; \
                 raise surrogate.gp.carrier, or use E-Lik, which needs none",
                100.0 * loss
            ));
        }
        Ok(Block { coefficients, sigma_a, log_weights, report })
    }

    fn exact_block(
        &self,
        method: &str,
        exact: &Exact,
        coefficients: Matrix,
        sigma_a: Vec<f64>,
        log_weights: Vec<f64>,
    ) -> Block {
        let known = || (Some(exact.summary(self.surrogate.names())), exact.leave_one_out());
        let report = self.report(method, &coefficients, &sigma_a, &log_weights, Some(&known));
        Block { coefficients, sigma_a, log_weights, report }
    }

    fn imported(&self, draws: &Draws, start: usize) -> Block {
        let p = self.surrogate.names().len();
        let coefficients = draws.values().select_rows(&(start..start + p).collect::<Vec<_>>());
        let sigma_a = draws.values().row(start + p).to_vec();
        let log_weights = draws.log_weights().to_vec();
        let report = self.report("imported", &coefficients, &sigma_a, &log_weights, None);
        Block { coefficients, sigma_a, log_weights, report }
    }

    /// Draws that a function of the calling program made or brought.
    fn made(&self, made: FunctionDraws) -> Block {
        let known = if let SigmaA::Fixed(known) = self.sigma_a { *known } else { 0.0 };
        let sigma_a = made.sigma_a.unwrap_or_else(|| vec![known; made.values.cols()]);
        let report = self.report("function", &made.values, &sigma_a, &made.log_weights, None);
        Block { coefficients: made.values, sigma_a, log_weights: made.log_weights, report }
    }

    fn nuts(&self, spec: &TrainSpec, stream: Stream, monitor: &dyn Monitor) -> Result<Block> {
        let density = TDensity::new(self.surrogate.clone(), self.rows, self.sigma_a);
        let natural = |z: &[f64]| density.natural(z);
        let sampled = self.sampled(&density, &natural, self.surrogate.names(), 1, spec, stream, monitor)?;
        let mut block = self.block(sampled.method, &sampled.columns);
        sampled.add_to(&mut block.report);
        Ok(block)
    }

    /// Equally weighted draws, of the coefficients and sigma_a each.
    fn block(&self, method: &str, columns: &[Vec<f64>]) -> Block {
        let p = self.surrogate.names().len();
        let coefficients = Matrix::from_fn(p, columns.len(), |j, s| columns[s][j]);
        let sigma_a: Vec<f64> = columns.iter().map(|c| c[p]).collect();
        let log_weights = vec![0.0; columns.len()];
        let report = self.report(method, &coefficients, &sigma_a, &log_weights, None);
        Block { coefficients, sigma_a, log_weights, report }
    }

    /// Draws of a posterior by NUTS, each after `steps` transitions, and by tempered runs where these find what the chains overlooked.
    /// `natural` gives its parameters: `names` and sigma_a.
    #[allow(clippy::too_many_arguments, reason = "what to sample, how, and how it is watched")]
    fn sampled<D: Bayes + Clone + Send + Sync>(
        &self,
        density: &D,
        natural: &(dyn Fn(&[f64]) -> Vec<f64> + Sync),
        names: &[String],
        steps: usize,
        spec: &TrainSpec,
        stream: Stream,
        monitor: &dyn Monitor,
    ) -> Result<Sampled> {
        let n_chains = spec.nuts.chains.max(1);
        let settings = spec.nuts.settings(spec.draws.div_ceil(n_chains) * steps);
        let proceed = counting(monitor, T_DRAWS, n_chains * (settings.warmup + settings.draws));
        let chains =
            chains::sample(density, &settings, n_chains, None, stream.named("nuts"), &proceed).map_err(|error| {
                match error {
                    Error::Failed { problem, .. } => Error::failed(
                        format!("T-step of `{}`", self.name),
                        problem,
                        "check the formula and the priors of its parameters: it may have no value there",
                    ),
                    error => error,
                }
            })?;
        let check = chains::check(density, &draws_of(&chains), stream.named("check"), &|| monitor.proceed())?;
        // Chains that missed a part, stay each in another, or could not follow the density, are replaced by the runs that found
        // it with its weight, unless the study insists on NUTS.
        let divergences = chains.iter().map(|c| c.divergences()).sum();
        let disagree = (0..Bayes::dim(density)).any(|d| {
            let values: Vec<Vec<f64>> = chains.iter().map(|c| c.coordinate(d)).collect();
            diagnostics::r_hat(&values) > CHAINS_AGREE
        });
        let in_trouble = disagree || divergences > 0 || check.overlooked.is_some();
        let replaced = spec.method == TrainMethod::Auto && check.agree && in_trouble;
        let (method, runs, columns): (_, Vec<&[Vec<f64>]>, Vec<Vec<f64>>) = if replaced {
            let draws = check.draws(spec.draws, stream.named("draws"));
            let columns = draws.into_iter().map(natural).collect();
            ("smc", check.runs.iter().map(|r| r.draws.as_slice()).collect(), columns)
        } else {
            let draws = chains.iter().flat_map(|c| c.draws.iter().skip(steps - 1).step_by(steps).map(|z| natural(z)));
            ("nuts", chains.iter().map(|c| c.draws.as_slice()).collect(), draws.take(spec.draws).collect())
        };
        let mut warnings = Vec::new();
        if replaced && check.overlooked.is_none() {
            warnings.push(format!(
                "T-step of `{}`: the NUTS chains {}; the draws are those of tempered sequential Monte Carlo, whose runs agree",
                self.name,
                if disagree { "disagree" } else { "diverge" }
            ));
        }
        if let Some(found) = check.overlooked {
            let name = names.get(found.coordinate).map_or("sigma_a", String::as_str);
            let advice = if replaced {
                "the draws are those of tempered sequential Monte Carlo, whose runs found it and agree"
            } else {
                "do not use these draws; train.method = \"auto\" takes others where it can"
            };
            warnings.push(format!(
                "T-step of `{}`: NUTS overlooked part of the T-posterior ({:.0} % of it lies outside what the chains \
                 visited along {name}); {advice}",
                self.name,
                100.0 * found.share_unvisited
            ));
        }
        Ok(Sampled {
            method,
            columns,
            runs: runs.iter().map(|draws| draws.iter().map(|z| natural(z)).collect()).collect(),
            divergences: if replaced { 0 } else { divergences },
            troubled: in_trouble && !replaced,
            warnings,
        })
    }

    /// Posterior predictive from draws; summary and leave-one-out too, unless they are known exactly.
    fn report(
        &self,
        method: &str,
        coefficients: &Matrix,
        sigma_a: &[f64],
        log_weights: &[f64],
        known: Option<&dyn Fn() -> (Option<Vec<ParameterSummary>>, LeaveOneOut)>,
    ) -> TReport {
        let names = self.surrogate.names().iter().cloned().chain(["sigma_a".to_string()]).collect();
        let values: Vec<f64> = coefficients.data().iter().chain(sigma_a).copied().collect();
        let draws = Draws::weighted(
            names,
            Matrix::from_rows(coefficients.rows() + 1, sigma_a.len(), values),
            log_weights.to_vec(),
        );
        let mut eta = Matrix::default();
        self.surrogate.predict(&self.rows.x, coefficients, &mut eta, &mut Scratch::default());
        let errors = error_sds(&**self.surrogate, &self.rows.x, coefficients, sigma_a);
        let predicted = |i: usize| Predicted {
            z: self.rows.z[i],
            eta: eta.row(i),
            sd: errors.row(i).iter().map(|a| a.hypot(self.rows.sigma_s[i])).collect(),
        };
        let (n, weights) = (self.rows.z.len(), draws.weights());
        let inside = (0..n).filter(|&i| (0.05..=0.95).contains(&predicted(i).below(&weights))).count();
        let (parameters, leave_one_out) = match known {
            Some(known) => {
                let (parameters, leave_one_out) = known();
                (parameters.unwrap_or_else(|| summary(&draws)), leave_one_out)
            }
            // The likelihood of a run is zero or infinite under every draw, so that it cannot be divided out.
            None if (0..n).all(|i| predicted(i).sd.iter().all(|sd| *sd == 0.0)) => {
                (summary(&draws), LeaveOneOut::unknown(n))
            }
            None => {
                let (mut rows, mut k_hats) = (vec![(f64::NAN, f64::NAN, f64::NAN); n], Vec::new());
                for run in &self.rows.runs {
                    let of_run: Vec<Predicted<'_>> = run.iter().map(|&i| predicted(i)).collect();
                    let (left_out, k_hat) = without_run(&of_run, draws.log_weights());
                    run.iter().zip(left_out).for_each(|(&i, row)| rows[i] = row);
                    k_hats.push(k_hat);
                }
                (summary(&draws), LeaveOneOut::new(&self.rows.z, &rows, Some(&k_hats)))
            }
        };
        TReport {
            output: self.name.to_string(),
            method: method.to_string(),
            n_rows: n,
            n_runs: self.rows.runs.len(),
            parameters,
            predictive_coverage_90: inside as f64 / n as f64,
            leave_one_out,
            divergences: 0,
            troubled: false,
            warnings: Vec::new(),
            choice: None,
            terms: None,
            series: None,
            importance: None,
        }
    }
}

/// Draws of some parameters, the last of which is sigma_a, and what is known of them.
struct Sampled {
    /// `nuts` or `smc`.
    method: &'static str,
    /// The parameters of each draw.
    columns: Vec<Vec<f64>>,
    /// The same of every chain or tempered run.
    runs: Vec<Vec<Vec<f64>>>,
    divergences: usize,
    troubled: bool,
    warnings: Vec<String>,
}

impl Sampled {
    /// Adds what is known to a report whose last parameters these are.
    fn add_to(self, report: &mut TReport) {
        let first = report.parameters.len() - self.columns[0].len();
        for (j, parameter) in report.parameters[first..].iter_mut().enumerate() {
            let values: Vec<Vec<f64>> = self.runs.iter().map(|run| run.iter().map(|c| c[j]).collect()).collect();
            // A known sigma_A does not vary.
            if parameter.sd > 0.0 {
                parameter.r_hat = Some(diagnostics::r_hat(&values));
                parameter.ess_bulk = Some(diagnostics::ess_bulk(&values));
                parameter.mcse_mean = Some(diagnostics::mcse_mean(&values));
            }
        }
        (report.divergences, report.troubled) = (self.divergences, self.troubled);
        report.warnings.extend(self.warnings);
    }
}

/// Every parameter of some draws.
fn summary(draws: &Draws) -> Vec<ParameterSummary> {
    let weights = draws.weights();
    let of_parameter = |(p, name): (usize, &String)| {
        let sorted = Sorted::new(draws.values().row(p), &weights);
        ParameterSummary {
            mean: draws.mean(p),
            sd: draws.sd(p),
            quantiles: PROBABILITIES.map(|q| sorted.quantile(q)),
            ..ParameterSummary::constant(name, 0.0)
        }
    };
    draws.names().iter().enumerate().map(of_parameter).collect()
}

/// A training row under every draw.
struct Predicted<'a> {
    z: f64,
    eta: &'a [f64],
    sd: Vec<f64>,
}

impl Predicted<'_> {
    /// Predictive probability below the row's value.
    fn below(&self, weights: &[f64]) -> f64 {
        if self.sd.iter().all(|s| *s > 0.0) {
            let inverse: Vec<f64> = self.sd.iter().map(|s| s.recip()).collect();
            return normal_mixture(self.z, weights, self.eta, &inverse).0;
        }
        // Without any error the prediction of a draw is a step.
        let of_draw = |e: f64, s: f64| match s > 0.0 {
            true => normal_cdf((self.z - e) / s),
            false if self.z == e => 0.5,
            false => f64::from(u8::from(self.z > e)),
        };
        weights.iter().zip(self.eta).zip(&self.sd).map(|((w, e), s)| w * of_draw(*e, *s)).sum()
    }
}

/// Predictive mean, sd and probability below the value of each row of a run without the run, and the Pareto k-hat of leaving
/// it out.
fn without_run(rows: &[Predicted<'_>], log_weights: &[f64]) -> (Vec<(f64, f64, f64)>, f64) {
    let misfit = |row: &Predicted<'_>, s: usize| 0.5 * ((row.z - row.eta[s]) / row.sd[s]).powi(2) + row.sd[s].ln();
    let ratio = |s: usize| rows.iter().map(|row| misfit(row, s)).sum::<f64>() + log_weights[s];
    let smoothed = psis::smooth(&(0..log_weights.len()).map(ratio).collect::<Vec<f64>>());
    let weights: Vec<f64> = smoothed.log_weights.iter().map(|w| w.exp()).collect();
    let left_out = |row: &Predicted<'_>| {
        let mean: f64 = weights.iter().zip(row.eta).map(|(w, e)| w * e).sum();
        let parts = weights.iter().zip(row.eta).zip(&row.sd);
        let variance: f64 = parts.map(|((w, e), s)| w * (s * s + (e - mean).powi(2))).sum();
        (mean, variance.sqrt(), row.below(&weights))
    };
    (rows.iter().map(left_out).collect(), smoothed.k_hat)
}

impl TReport {
    /// Names of the coefficients.
    pub fn coefficient_names(&self) -> Vec<String> {
        let own = self.parameters.iter().take(self.parameters.len().saturating_sub(1));
        own.map(|parameter| parameter.name.clone()).collect()
    }

    /// How the T-posterior was had, in words.
    pub fn how(&self) -> String {
        let how = self.method.replace("exact-given-", "exact given sigma_a by ");
        match self.importance {
            Some(own) => format!("{how}, k-hat {:.2}, worth {:.0} draws", own.k_hat, own.effective),
            None => how,
        }
    }

    /// Whether leave-one-run-out predictions are from draws that were made with all runs.
    pub(crate) fn is_left_out_by_draws(&self) -> bool {
        let is_known =
            ["exact", "nodes", "gp"].contains(&self.method.as_str()) || self.method.starts_with("exact-given");
        !is_known
    }

    /// Turns each bad value into a sentence.
    fn advise(&mut self) {
        let output = &self.output;
        // Tempered runs are short and many: they were compared before, by the bound for these.
        let bad = self
            .parameters
            .iter()
            .filter(|p| self.method.ends_with("nuts") && p.r_hat.is_some_and(|r| r > CHAINS_AGREE))
            .max_by(|a, b| a.r_hat.partial_cmp(&b.r_hat).unwrap_or(std::cmp::Ordering::Equal));
        if let Some(worst) = bad {
            self.warnings.push(format!(
                "T-step of `{output}`: R-hat of {} is {:.2}, so the chains have not converged; lengthen train.nuts.warmup, or give the \
                 coefficients normal priors so that exact draws are possible",
                worst.name,
                worst.r_hat.unwrap_or(f64::NAN)
            ));
        }
        if self.divergences > 0 {
            self.warnings.push(format!(
                "T-step of `{output}`: {} divergent transitions; the T-posterior is not explored everywhere, try narrower priors",
                self.divergences
            ));
        }
        if let Some(own) = self.importance.filter(|own| own.k_hat > gp::RELIABLE) {
            self.warnings.push(format!(
                "T-step of `{output}`: the normal approximation ({}) does not fit the T-posterior (Pareto k-hat {:.1}, reliable up to {}): its \
                 importance weights rest on few draws, worth {:.0}; do not use these draws, but train.method = \"auto\", which samples the \
                 T-posterior itself",
                self.method,
                own.k_hat,
                gp::RELIABLE,
                own.effective
            ));
        }
        if let Some(q2) = self.leave_one_out.q2.filter(|q2| *q2 < 0.9) {
            self.warnings.push(format!(
                "T-step of `{output}`: runs left out of training are predicted badly (Q2 = {q2:.2}); change the surrogate, or see by `twostep enough` whether more runs would help"
            ));
        }
        if self.leave_one_out.coverage_90.is_nan() {
            self.warnings.push(format!(
                "T-step of `{output}`: sigma_a is 0, so that the draws do not say how well runs are predicted that the surrogate has \
                 not seen; calibrate with truth = \"held-out-runs\" to know, or give the draws a sigma_a"
            ));
        }
        if self.leave_one_out.unreliable > 0 && self.is_left_out_by_draws() {
            let what = match self.method.as_str() {
                "function" => "calibrate with truth = \"held-out-runs\" to know how well it predicts",
                "horseshoe" => {
                    "these runs have a say in which terms matter; calibrate with truth = \"held-out-runs\" to know how well it predicts"
                }
                _ => "these runs decide the surrogate by themselves",
            };
            self.warnings.push(format!(
                "T-step of `{output}`: the leave-one-out prediction of {} of {} runs is unreliable (Pareto k-hat > 0.7): {what}",
                self.leave_one_out.unreliable, self.n_runs
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_distr::{Distribution, StandardNormal};

    /// JSON has no infinite numbers, and null would be refused.
    #[test]
    fn importance_weights_without_a_tail_are_read_back() {
        for k_hat in [0.3, f64::INFINITY] {
            let own = ImportanceReport { k_hat, effective: 12.5, normals: 2 };
            let text = serde_json::to_string(&own).unwrap();
            assert!(!text.contains("null") && text.contains("k_hat") == k_hat.is_finite(), "{text}");
            assert_eq!(serde_json::from_str::<ImportanceReport>(&text).unwrap(), own);
        }
    }

    /// A constant of normal measurements with variance one and a normal prior of variance 100, by draws from its posterior given all of them: how they predict
    /// one without it is known.
    #[test]
    fn draws_given_all_runs_predict_each_without_it_where_their_weights_allow_it() {
        const DRAWS: usize = 4000;
        let left_out = |z: &[f64]| {
            let variance = 1.0 / (z.len() as f64 + 0.01);
            let mean = variance * z.iter().sum::<f64>();
            let mut rng = Stream::root(8).at(z.len() as u64).rng();
            let constants: Vec<f64> = StandardNormal
                .sample_iter(&mut rng)
                .take(DRAWS)
                .map(|normal: f64| mean + variance.sqrt() * normal)
                .collect();
            let of_draw =
                |c: &f64| -> Predictions { z.iter().map(|z| (*c, 1.0, -log_normal_density(*z, *c, 1.0))).collect() };
            let per_draw: Vec<Predictions> = constants.iter().map(of_draw).collect();
            let runs: Vec<Vec<usize>> = (0..z.len()).map(|i| vec![i]).collect();
            (LeaveOneOut::of_draws(z, &runs, &per_draw), constants)
        };
        let z = [0.3, -1.2, 0.8, 2.6, -0.4, 0.1, -0.9, 1.1];
        let (found, constants) = left_out(&z);
        assert_eq!(found.unreliable, 0);
        for (i, prediction) in found.predictions.iter().enumerate() {
            let variance = 1.0 / (z.len() as f64 - 1.0 + 0.01);
            let exact = variance * (z.iter().sum::<f64>() - z[i]);
            let (mean, sd) = prediction.unwrap();
            // The variance of a mean with weights w is that of `w (c - mean)`, over the number of draws; 4.4 sds in one of eight rows, twice, are a chance
            // of 2e-4.
            let weights: Vec<f64> = constants.iter().map(|c| (0.5 * (z[i] - c).powi(2)).exp()).collect();
            let total: f64 = weights.iter().sum();
            let spread = |power: i32, centre: f64| {
                let terms = weights
                    .iter()
                    .zip(&constants)
                    .map(|(w, c)| (w / total * ((c - mean).powi(power) - centre)).powi(2));
                4.4 * terms.sum::<f64>().sqrt()
            };
            assert!((mean - exact).abs() <= spread(1, 0.0), "row {i}: {mean} {exact}");
            let (own, exact) = (sd * sd, 1.0 + variance);
            assert!((own - exact).abs() <= spread(2, variance), "row {i}: {own} {exact}");
        }
        // Without the only one the posterior is the prior, whose sd is ten times that of the draws: no weights make up for that.
        assert_eq!(left_out(&z[..1]).0.unreliable, 1);
    }

    #[test]
    fn more_rows_than_memory_are_refused() {
        assert!(refuse_too_many(100_000, 1000).is_ok());
        let refused = refuse_too_many(1_000_000, 1000).unwrap_err().to_string();
        assert_eq!(
            refused,
            "training set: 1000000 rows, each to be predicted by 1000 T-draws; train with at most 268435 of the rows, or lower \
             train.draws"
        );
    }
}
