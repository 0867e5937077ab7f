//! The I-step: T-posterior and measurements to I-posteriors, by each propagation method and on an engine that looks
//! everywhere.

mod budget;
mod clusters;
mod components;
mod conditioned;
mod density;
mod engine_exact;
mod engine_grid;
mod engine_nuts;
mod engine_smc;
mod evidence;
mod fit;
mod integrated;
mod likelihoods;
mod locate;
mod marginal;
pub mod propagation;
mod reweight;
mod series;
mod spec;
mod summary;
mod t_draw_error;
mod target;

pub use budget::{Budget, VarianceShare, VarianceShares, budget};
pub use components::Components;
pub use density::Density;
pub use engine_exact::linear_gaussian;
pub use evidence::Evidence;
pub use fit::{Fit, FitSink};
pub use likelihoods::{Likelihoods, OutputTerm, Workspace};
pub use locate::{Located, Place, locate, rank};
pub use spec::{Clusters, Engine, Fits, GridSpec, InferSpec, NutsSpec, SmcSpec};
pub use summary::QuantitySummary;
pub use t_draw_error::T_DRAW_ERROR;
pub use target::Target;

use crate::draws::{Draws, pick_weighted};
use crate::error::{Error, Result};
use crate::expression::Expression;
use crate::likelihood::{Correlated, ErrorSharing, Link, NoiseSpec, Reduced, Side, Values};
use crate::matrix::Matrix;
use crate::mcmc::nuts::Transition;
use crate::mcmc::quadrature::MAX_AXES;
use crate::monitor::Monitor;
use crate::prior::{Marginal, Prior};
use crate::special::log_sum_exp;
use crate::stream::Stream;
use crate::surrogate::{Added, Nodes, Placed, Sums, Surrogate, shared_nodes};
use crate::train::{TrainedOutput, output_draws};
use engine_exact::LinearGaussian;
use marginal::Marginal as MarginalFunction;
use propagation::{Method, Propagation, Targets};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use series::OnAxes;
use std::sync::{Arc, OnceLock};

/// Measurements of one output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// The output.
    pub output: String,
    /// Measured values.
    pub y: Vec<f64>,
    /// Known inputs of each measurement: conditions in file order.
    pub known: Matrix,
    /// Standard deviations, or numbers of trials, where they are a column.
    pub scale: Option<Vec<f64>>,
    /// Of censored values the side of `y` on which they lie; empty where none is.
    pub sides: Vec<Option<Side>>,
    /// The experiment that each belongs to; empty where there is one.
    pub experiment: Vec<usize>,
    /// Correlation of the noise, where it has a covariance; `scale` is then a column.
    pub correlation: Option<Arc<Matrix>>,
}

impl Measured {
    /// The side of its value on which a censored measurement lies.
    pub fn side(&self, i: usize) -> Option<Side> {
        self.sides.get(i).copied().flatten()
    }

    /// The experiment of a measurement.
    pub fn experiment_of(&self, i: usize) -> usize {
        self.experiment.get(i).copied().unwrap_or(0)
    }

    /// Those of one experiment.
    fn of_experiment(&self, experiment: usize) -> Self {
        let rows: Vec<usize> = (0..self.y.len()).filter(|&i| self.experiment_of(i) == experiment).collect();
        Self {
            output: self.output.clone(),
            y: rows.iter().map(|&i| self.y[i]).collect(),
            known: self.known.select_rows(&rows),
            scale: self.scale.as_ref().map(|scale| rows.iter().map(|&i| scale[i]).collect()),
            sides: if self.sides.is_empty() { Vec::new() } else { rows.iter().map(|&i| self.sides[i]).collect() },
            experiment: vec![experiment; rows.len()],
            correlation: self.correlation.as_ref().map(|all| Arc::new(all.select_rows(&rows).select_cols(&rows))),
        }
    }

    /// As likelihoods take it.
    fn values(&self) -> Values<'_> {
        Values { y: &self.y, scales: self.scale.as_deref(), sides: &self.sides, known: &self.known }
    }
}

/// A derived quantity.
#[derive(Clone)]
pub struct Derived {
    /// Its name.
    pub name: String,
    /// Formula in the names of the unknowns and sds.
    pub expression: Expression,
}

/// The unknowns of an I-step, and how the surrogates see them.
#[derive(Clone, Debug, PartialEq)]
pub struct Unknowns {
    /// All of them.
    pub prior: Prior,
    /// For each experiment the places of the surrogates' unknowns. Empty where these are all, whatever the experiment.
    pub places: Vec<Vec<usize>>,
    /// For each output the place of the unknown that is added to it, where there is one; empty where there is none at all.
    pub offsets: Vec<Option<usize>>,
}

impl From<Prior> for Unknowns {
    /// Those of the surrogates, and no others.
    fn from(prior: Prior) -> Self {
        Self { prior, places: Vec::new(), offsets: Vec::new() }
    }
}

impl Unknowns {
    /// The surrogate of an output as it stands among them.
    pub(crate) fn placed(
        &self,
        output: usize,
        experiment: usize,
        of: Arc<dyn Surrogate>,
        added: Vec<f64>,
    ) -> Arc<dyn Surrogate> {
        let offset = self.offsets.get(output).copied().flatten();
        if self.places.is_empty() && self.offsets.iter().all(Option::is_none) {
            return of;
        }
        let n_offsets = self.offsets.iter().flatten().count();
        let all = || (0..self.prior.len() - n_offsets).collect();
        let own = self.places.get(experiment).cloned().unwrap_or_else(all);
        let added = offset.map(|place| {
            let prior = &self.prior.marginals()[place];
            Added { place, range: (prior.quantile(0.001), prior.quantile(0.999)), amounts: added }
        });
        Arc::new(Placed::new(of, own, self.prior.len(), added))
    }
}

/// Everything the I-step needs.
pub struct Problem<'a> {
    /// Trained surrogates.
    pub outputs: &'a [TrainedOutput],
    /// T-draws (all, or clustered).
    pub draws: &'a Draws,
    /// Unknowns with their priors.
    pub unknowns: Unknowns,
    /// Noise of each output.
    pub noise: Vec<NoiseSpec>,
    /// Measurements of each output (empty where it was not measured).
    pub measured: &'a [Measured],
    /// Derived quantities.
    pub derived: Vec<Derived>,
}

/// One method's I-posterior.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IPosterior {
    /// The method.
    pub method: String,
    /// What the method was, for one of the calling program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The engine that computed it.
    pub engine: String,
    /// Unknowns, unknown sds, then derived quantities.
    pub unknowns: Vec<QuantitySummary>,
    /// One line on how far to trust it.
    pub trust: String,
    /// What the engine knows about itself.
    pub diagnostics: Diagnostics,
    /// Sentences of advice.
    pub warnings: Vec<String>,
    /// Equally weighted draws of the unknowns and sds (rows), kept in a file of their own: independent ones from the exact engine
    /// and the grid, a stratified selection of particles from SMC and of the fits of E-Post by NUTS, and whole or evenly thinned
    /// chains of other methods by NUTS.
    #[serde(skip)]
    pub draws: Vec<Vec<f64>>,
    /// The T-draw that belongs to each I-draw, where the method has one.
    #[serde(skip)]
    pub t_draws: Option<Vec<usize>>,
    /// Number of chains of equal length that the draws consist of, one after the other.
    #[serde(default = "one")]
    pub chains: usize,
    /// How each draw was made, where it is one of a chain; its log density is that on the real line.
    #[serde(skip)]
    pub transitions: Option<Vec<Transition>>,
}

fn one() -> usize {
    1
}

/// What an engine knows about its own result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Diagnostics {
    /// Log evidence of the I-step, where the method has one: of methods that pool likelihoods in another way than E-Lik, what normalises
    /// their density.
    pub log_evidence: Option<f64>,
    /// One sd of what the engine's integral is off by: the gap to a rule of fewer nodes (grid), the standard error between runs
    /// (SMC), 0 where it is exact but for rounding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_evidence_error: Option<f64>,
    /// One sd of the mean of the evidences of all T-draws that comes from their finite number, as if they were independent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_evidence_t_draw_error: Option<f64>,
    /// `1 / sum_s w_s^2 / alpha_s`: 1 where the data agree with all T-draws alike, near 1/S where E-Lik rests on one.
    pub evidence_agreement: Option<f64>,
    /// The same as a number of T-draws.
    pub effective_t_draws: Option<f64>,
    /// Largest quadrature error in sds.
    pub quadrature_error: Option<f64>,
    /// Cells of the grid.
    pub cells: Option<usize>,
    /// Divergent transitions.
    pub divergences: Option<usize>,
    /// Smallest energy Bayesian fraction of missing information over the chains.
    pub e_bfmi: Option<f64>,
    /// Largest R-hat: between the chains or runs of one density; of E-Post by NUTS over its fits, never pooled.
    pub max_r_hat: Option<f64>,
    /// E-Post fits that are not to be trusted by themselves (NUTS: R-hat above 1.05; SMC: fewer than 10 effective particles),
    /// and their number.
    pub bad_fits: Option<[usize; 2]>,
    /// Evaluations of the log density with its gradient (samplers), or points (grid).
    pub evaluations: usize,
    /// Log-likelihoods of single T-draws that this took: points times T-draws, clusters and their correction included.
    #[serde(default)]
    pub likelihood_evaluations: usize,
    /// Error from the number of T-draws, in sds: half of what means and 5 % and 95 % quantiles by two halves of them differ, in the root
    /// mean square over halvings, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub t_draw_error: Option<f64>,
    /// What is known of clusters whose answer was corrected to all T-draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clusters: Option<Clustering>,
    /// Whether functions of Gaussian processes were integrated out exactly, instead of averaged over T-draws.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub marginal: bool,
    /// Why `clusters = "auto"` took all T-draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_t_draws: Option<String>,
}

/// Clusters of T-draws as a proposal that importance weights correct to all T-draws.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clustering {
    /// How many were enough.
    pub clusters: usize,
    /// Shape of the tail of the weights: reliable below 0.7; none where all weights agree.
    pub k_hat: Option<f64>,
    /// Four standard errors of the worst mean, sd or quantile, in sds.
    pub error: f64,
}

/// Names of the unknown scales of the noise: `sigma_i` with one output, `sigma_i[output]` with several.
pub fn sigma_names(outputs: &[String], noise: &[NoiseSpec]) -> Vec<Option<String>> {
    outputs
        .iter()
        .zip(noise)
        .map(|(output, noise)| {
            let name = noise.scale_name()?;
            Some(if outputs.len() > 1 { format!("{name}[{output}]") } else { name.to_owned() })
        })
        .collect()
}

/// What one output was measured in one experiment.
struct Part {
    /// Its place among the outputs.
    output: usize,
    term: OutputTerm,
    axes: Option<Arc<OnAxes>>,
    /// The surrogate among the unknowns, before a series is brought to axes.
    surrogate: Arc<dyn Surrogate>,
}

impl Part {
    fn new(
        problem: &Problem<'_>,
        o: usize,
        experiment: usize,
        data: &Measured,
        sigma: Option<usize>,
        spec: &InferSpec,
    ) -> Result<Self> {
        let (output, noise) = (&problem.outputs[o], &problem.noise[o]);
        let family = noise.family.likelihood();
        let link = noise.family.link(output.log);
        let place = || format!("measurements of `{}`", output.name);
        let (coefficients, sigma_a) = output_draws(problem.outputs, problem.draws.values(), o);
        let series = output.surrogate.series();
        // The errors of a series are those of its scores, which replicates share.
        let error = if series.is_some() { ErrorSharing::Shared } else { spec.error };
        let refused = |(row, why): (usize, String)| {
            let found = format!("value {} ({}) {why}", row + 1, data.y[row]);
            Error::invalid(place(), found, "correct it or change the noise family")
        };
        let correlated = data
            .correlation
            .as_deref()
            .map(|correlation| Correlated::new(&*family, &data.values(), correlation, error).map_err(refused));
        let correlated = correlated.transpose()?;
        let is_unknown = noise.scale.prior().is_some();
        let without_eigenvectors = || {
            let found = "the covariance of the measurements, or of the surrogate's errors, has no eigenvectors";
            Error::failed(place(), found, "check both for values that are not numbers")
        };
        // Sums that are independent, whose weights are those of the measured points; series are brought to axes instead.
        let (mut reduced, sums, covariance) = match &correlated {
            None => {
                let reduced = Reduced::new(&*family, &noise.scale, &data.values(), error, link == Link::Identity)
                    .map_err(refused)?;
                (reduced, None, None)
            }
            Some(correlated) if series.is_some() && spec.series_errors => {
                let (reduced, covariance) = correlated.together(is_unknown);
                (reduced, None, Some(covariance))
            }
            Some(correlated) => {
                let (reduced, weights) = correlated.decorrelated(is_unknown).ok_or_else(without_eigenvectors)?;
                (reduced, Some((correlated.points.clone(), weights)), None)
            }
        };
        if !spec.sigma_a && series.is_none() && output.surrogate.gaussian_process().is_none() {
            reduced = reduced.merged();
        }
        let replicated = reduced.rows.len() > reduced.points.rows();
        if spec.sigma_a && replicated && spec.error == ErrorSharing::Shared && family.name() == "student-t" {
            return Err(Error::invalid(
                "infer.error",
                format!("student-t noise cannot carry a sigma_a that the replicates of `{}` share", output.name),
                "set error = \"independent\", or use normal noise",
            ));
        }
        // An offset is on the scale of eta.
        let placed = |of, (_, factor): (f64, f64), amounts: Vec<f64>| {
            let amounts = amounts.into_iter().map(|amount| amount / factor).collect();
            problem.unknowns.placed(o, experiment, of, amounts)
        };
        let surrogate = placed(output.surrogate.clone(), output.affine, vec![1.0]);
        let has_offset = problem.unknowns.offsets.get(o).is_some_and(Option::is_some);
        let axes = series
            .and_then(|series| OnAxes::new(&reduced, series, output.affine, has_offset, covariance))
            .map(Arc::new);
        if covariance.is_some() && axes.is_none() {
            return Err(without_eigenvectors());
        }
        let mut term_of = (surrogate.clone(), output.affine);
        if let Some((points, weights)) = sums {
            let (n, (shift, factor)) = (problem.unknowns.prior.len(), output.affine);
            let of_sums = Sums::new(surrogate.clone(), n, points, weights, shift / factor);
            term_of = (Arc::new(of_sums), (0.0, factor));
        }
        if let (Some(series), Some(axes), true) = (series, &axes, spec.series_errors) {
            let variances = series.mean_error_variances(&coefficients, &problem.draws.weights());
            let (data, of_axes, offsets) = axes.decorrelated(&variances).ok_or_else(without_eigenvectors)?;
            let affine = (0.0, axes.factor);
            (reduced, term_of) = (data, (placed(of_axes, affine, offsets), affine));
        }
        let (of, affine) = term_of;
        let term = OutputTerm {
            surrogate: of,
            affine,
            link,
            family: Arc::from(family),
            data: Arc::new(reduced),
            error,
            sigma,
            coefficients,
            sigma_a: (spec.sigma_a && series.is_none()).then_some(sigma_a),
            field: output.surrogate.error_field().filter(|_| spec.sigma_a).cloned(),
        };
        Ok(Self { output: o, term, axes, surrogate })
    }
}

/// The I-step made ready: joint prior, likelihoods, and the Point and averaged forms on demand.
pub struct Prepared {
    prior: Prior,
    likelihoods: Likelihoods,
    draws: Draws,
    outputs: Vec<TrainedOutput>,
    derived: Vec<Derived>,
    sigma_a: bool,
    /// Whether errors of series are propagated, and the series that were measured on their axes.
    series_errors: bool,
    axes: Vec<Option<Arc<OnAxes>>>,
    zeros: usize,
    /// Whether surrogates stand among other unknowns than their own, or are summed.
    is_placed: bool,
    /// Places of the offsets.
    offsets: Vec<usize>,
    /// Whether the problem is linear-Gaussian, or why not.
    is_linear: std::result::Result<(), String>,
    exact: OnceLock<std::result::Result<LinearGaussian, String>>,
    /// Likelihoods of the draws of hyper-parameters that the T-draws share, and the weights of these, where the surrogates are Gaussian
    /// processes.
    marginal: OnceLock<Option<(Likelihoods, Vec<f64>)>>,
    /// Fits of E-Post that were made before.
    fits: Vec<Fit>,
}

impl Prepared {
    /// Validates and reduces the measurements.
    ///
    /// # Errors
    /// A measurement that the noise family cannot produce, or a combination that has no likelihood.
    pub fn new(problem: Problem<'_>, spec: &InferSpec, conditioning: bool) -> Result<Self> {
        let names: Vec<String> = problem.outputs.iter().map(|o| o.name.clone()).collect();
        let measured: Vec<usize> = (0..names.len()).filter(|&o| !problem.measured[o].y.is_empty()).collect();
        let unknowns = &problem.unknowns;
        let sigma_names = sigma_names(&names, &problem.noise);
        let mut all_names = unknowns.prior.names().to_vec();
        let mut marginals: Vec<Marginal> = unknowns.prior.marginals().to_vec();
        let (mut parts, mut zeros) = (Vec::new(), 0);
        for &o in &measured {
            let sigma = match (problem.noise[o].scale.prior(), &sigma_names[o]) {
                (Some(prior), Some(name)) => {
                    all_names.push(name.clone());
                    marginals.push(prior.clone());
                    Some(all_names.len() - 1 - unknowns.prior.len())
                }
                _ => None,
            };
            // Experiments whose unknowns are the same are one.
            for experiment in 0..unknowns.places.len().max(1) {
                let part = match unknowns.places.is_empty() {
                    true => Part::new(&problem, o, experiment, &problem.measured[o], sigma, spec)?,
                    false => {
                        let own = problem.measured[o].of_experiment(experiment);
                        if own.y.is_empty() {
                            continue;
                        }
                        Part::new(&problem, o, experiment, &own, sigma, spec)?
                    }
                };
                zeros += part.term.data.zeros;
                parts.push(part);
            }
        }
        let n_unknowns = unknowns.prior.len();
        let n_sigmas = all_names.len() - n_unknowns;
        if parts.is_empty() {
            return Err(Error::invalid("measurements", "no output was measured", "give at least one measurement"));
        }
        let of_part = |part: &Part| {
            let (output, noise) = (&problem.outputs[part.output], &problem.noise[part.output]);
            (output.name.as_str(), part.surrogate.clone(), output.log, noise)
        };
        let is_linear = linear_gaussian(&unknowns.prior, parts.iter().map(of_part), spec.sigma_a);
        let outputs = parts.iter().map(|part| problem.outputs[part.output].clone()).collect();
        let (terms, axes) = parts.into_iter().map(|part| (part.term, part.axes)).unzip();
        Ok(Self {
            is_linear,
            exact: OnceLock::new(),
            marginal: OnceLock::new(),
            fits: Vec::new(),
            prior: Prior::new(all_names, marginals)?,
            likelihoods: Likelihoods::new(n_unknowns, n_sigmas, terms, conditioning),
            draws: problem.draws.clone(),
            outputs,
            is_placed: !unknowns.places.is_empty()
                || unknowns.offsets.iter().any(Option::is_some)
                || problem.measured.iter().any(|measured| measured.correlation.is_some()),
            offsets: unknowns.offsets.iter().flatten().copied().collect(),
            derived: problem.derived,
            sigma_a: spec.sigma_a,
            series_errors: spec.series_errors,
            axes,
            zeros,
        })
    }

    /// With fits of E-Post by [`make_fits`], which are then not made again.
    #[must_use]
    pub fn with_fits(self, fits: Vec<Fit>) -> Self {
        Self { fits, ..self }
    }

    /// Unknowns and unknown sds with their priors.
    pub fn prior(&self) -> &Prior {
        &self.prior
    }

    /// Likelihoods of all T-draws.
    pub fn likelihoods(&self) -> &Likelihoods {
        &self.likelihoods
    }

    /// Log-weights of the T-draws.
    pub fn log_alpha(&self) -> &[f64] {
        self.draws.log_weights()
    }

    /// Likelihoods and log-weights after the method's own reduction of the T-draws.
    fn reduced(&self, method: Method, propagation: &dyn Propagation) -> (Likelihoods, Vec<f64>) {
        let alpha = self.draws.log_weights();
        match method {
            Method::Point => {
                let point = propagation.reduce(&self.draws);
                let parts = self
                    .outputs
                    .iter()
                    .map(|output| {
                        let (coefficients, sigma_a) = named_output_draws(output, &point);
                        let has_own = self.sigma_a && output.surrogate.series().is_none();
                        (coefficients, has_own.then_some(sigma_a))
                    })
                    .collect();
                (self.likelihoods.with_draws(parts), vec![0.0])
            }
            Method::ELogLik => match self.likelihoods.averaged(&self.draws.weights()) {
                Some(averaged) => (averaged, vec![0.0]),
                None => (self.likelihoods.clone(), alpha.to_vec()),
            },
            Method::ELik => self.marginal().cloned().unwrap_or_else(|| (self.likelihoods.clone(), alpha.to_vec())),
            Method::EPost | Method::Own(_) => (self.likelihoods.clone(), alpha.to_vec()),
        }
    }

    /// E-Lik with the functions of Gaussian processes integrated out, where all surrogates are such.
    fn marginal(&self) -> Option<&(Likelihoods, Vec<f64>)> {
        let make = || {
            if self.is_placed {
                return None;
            }
            // Every process with its draws: of an output, or of a score.
            let parts = self.outputs.iter().map(|output| {
                let (coefficients, sigma_a) = named_output_draws(output, &self.draws);
                let score_draws = |(k, score): (usize, &Arc<dyn Surrogate>)| {
                    let (own, nuggets) = output.surrogate.series()?.score_draws(k, &coefficients);
                    Some((score.gaussian_process()?.clone(), own, nuggets))
                };
                match output.surrogate.series() {
                    Some(series) => series.scores().iter().enumerate().map(score_draws).collect::<Option<Vec<_>>>(),
                    None => {
                        let nuggets: Vec<f64> = sigma_a.iter().map(|s| s / output.affine.1).collect();
                        Some(vec![(output.surrogate.gaussian_process()?.clone(), coefficients, nuggets)])
                    }
                }
            });
            let parts = parts.collect::<Option<Vec<_>>>()?;
            let all: Vec<_> = parts.iter().flatten().map(|(gp, c, nuggets)| (gp, c, &nuggets[..])).collect();
            let of_draw = shared_nodes(&all)?;
            let n_nodes = of_draw.iter().max()? + 1;
            let firsts: Vec<usize> = (0..n_nodes).filter_map(|h| of_draw.iter().position(|node| *node == h)).collect();
            let terms = parts.iter().zip(&self.axes).zip(self.likelihoods.terms());
            let functions = terms.map(|((processes, axes), term)| {
                let nodes = processes.iter().map(|(gp, c, nuggets)| Nodes::new(gp, c, nuggets, &firsts).map(Arc::new));
                let mut nodes = nodes.collect::<Option<Vec<_>>>()?;
                Some(match axes {
                    Some(axes) => MarginalFunction::of_series(nodes, axes.clone(), self.series_errors),
                    None => {
                        let own = nodes.pop().filter(|_| nodes.is_empty())?;
                        MarginalFunction::new(own, self.likelihoods.n_unknowns(), &term.data, term.affine.0)
                    }
                })
            });
            let functions = functions.collect::<Option<Vec<_>>>()?;
            let mut log_alpha = vec![Vec::new(); n_nodes];
            of_draw.iter().zip(self.draws.log_weights()).for_each(|(&h, w)| log_alpha[h].push(*w));
            let likelihoods = self.likelihoods.marginal(functions, &firsts)?;
            Some((likelihoods, log_alpha.iter().map(|own| log_sum_exp(own)).collect()))
        };
        self.marginal.get_or_init(make).as_ref()
    }

    /// Whether the method has no T-draws, but integrates functions out.
    fn is_marginal(&self, method: Method) -> bool {
        method == Method::ELik && self.marginal().is_some()
    }

    /// Derived quantities as functions of the parameters.
    fn quantities(&self) -> Vec<(String, Quantity<'_>)> {
        let own = self
            .prior
            .names()
            .iter()
            .enumerate()
            .map(|(d, name)| (name.clone(), Box::new(move |x: &[f64]| x[d]) as Quantity<'_>));
        let derived = self
            .derived
            .iter()
            .map(|d| (d.name.clone(), Box::new(move |x: &[f64]| d.expression.eval_scalar(x)) as Quantity<'_>));
        own.chain(derived).collect()
    }

    /// The T-draw of each I-draw: a draw from its responsibilities.
    fn assign(&self, draws: &[Vec<f64>], log_offsets: &[f64], stream: Stream) -> Vec<usize> {
        draws
            .par_iter()
            .enumerate()
            .map_init(
                || (Workspace::default(), Vec::new()),
                |(workspace, r), (i, x)| {
                    responsibilities(&self.likelihoods, x, log_offsets, workspace, r);
                    pick_weighted(r, &mut stream.at(i as u64).rng())
                },
            )
            .collect()
    }

    /// The parameters at a point of the real line.
    fn natural(&self, z: &[f64]) -> Vec<f64> {
        self.prior.marginals().iter().zip(z).map(|(prior, &z)| prior.from_real(z).x).collect()
    }

    /// The problem in closed form, or why it has none.
    fn exact(&self) -> std::result::Result<&LinearGaussian, &str> {
        self.is_linear.as_ref().map_err(String::as_str)?;
        let exact = self.exact.get_or_init(|| LinearGaussian::new(&self.likelihoods, &self.prior));
        exact.as_ref().map_err(String::as_str)
    }

    /// The engine: what the study says, or the one that `auto` takes here.
    pub fn engine(&self, spec: &InferSpec) -> Engine {
        let is_exact = || prefers_exact(&self.derived, self.prior.names()) && self.exact().is_ok();
        match choose_engine(spec.engine, self.likelihoods.n_unknowns(), is_exact) {
            Engine::Grid if spec.engine == Engine::Auto && self.likelihoods.grid_is_dear() => Engine::Smc,
            engine => engine,
        }
    }

    /// The methods of `spec` by the engines that compute them: all by one, but for densities of the calling program, which have no
    /// closed form where `auto` takes one.
    fn by_engine(&self, spec: &InferSpec) -> Vec<InferSpec> {
        let engine = self.engine(spec);
        let instead = match self.likelihoods.n_unknowns() <= MAX_AXES && !self.likelihoods.grid_is_dear() {
            true => Engine::Grid,
            false => Engine::Smc,
        };
        let has_none = |method: &Method| spec.engine == Engine::Auto && engine == Engine::Exact && method.is_own_pool();
        let (own, others): (Vec<Method>, Vec<Method>) = spec.methods.iter().partition(|method| has_none(method));
        let parts = [(others, engine), (own, instead)].into_iter().filter(|(methods, _)| !methods.is_empty());
        parts.map(|(methods, engine)| InferSpec { methods, engine, ..spec.clone() }).collect()
    }
}

/// A function of the parameters.
type Quantity<'a> = Box<dyn Fn(&[f64]) -> f64 + Sync + 'a>;

/// An output's coefficients and sigma_a, found by name: the joint draws hold outputs that were not measured, too.
fn named_output_draws(output: &TrainedOutput, draws: &Draws) -> (Matrix, Vec<f64>) {
    let prefix = |name: &str| format!("{}.{name}", output.name);
    let rows: Vec<usize> = output
        .surrogate
        .names()
        .iter()
        .map(String::as_str)
        .chain(["sigma_a"])
        .filter_map(|name| draws.names().iter().position(|n| n == name || *n == prefix(name)))
        .collect();
    let (last, coefficients) = rows.split_last().expect("sigma_a is always there");
    let sigma_a = draws.values().row(*last).iter().map(|s| s * output.affine.1).collect();
    (draws.values().select_rows(coefficients), sigma_a)
}

/// Whether an exact I-step also serves best what is derived from its unknowns: those that are affine in them. Of the others it has
/// draws only, where a grid, for few unknowns, has quadrature.
pub fn prefers_exact(derived: &[Derived], names: &[String]) -> bool {
    names.len() > MAX_AXES || derived.iter().all(|derived| engine_exact::slope(derived, names.len()).is_some())
}

/// The engine that `auto` takes for this many unknowns, where `is_exact` says whether the problem and what is derived from its
/// unknowns have a closed form.
pub fn choose_engine(engine: Engine, n_unknowns: usize, is_exact: impl FnOnce() -> bool) -> Engine {
    match engine {
        Engine::Auto if is_exact() => Engine::Exact,
        Engine::Auto if n_unknowns <= MAX_AXES => Engine::Grid,
        Engine::Auto => Engine::Smc,
        other => other,
    }
}

/// How a sampler infers by one method.
type SampleMethod = fn(&Prepared, &InferSpec, Method, Stream, &dyn Monitor) -> Result<IPosterior>;

/// Runs every method.
///
/// # Errors
/// Those of the engine, or an interruption.
pub fn infer(prepared: &Prepared, spec: &InferSpec, stream: Stream, monitor: &dyn Monitor) -> Result<Vec<IPosterior>> {
    let mut out = Vec::new();
    for part in prepared.by_engine(spec) {
        out.extend(infer_part(prepared, &part, stream, monitor)?);
    }
    out.sort_by_key(|p| spec.methods.iter().position(|method| method.name() == p.method));
    Ok(out)
}

/// T-draws whose posteriors E-Post by NUTS fits, each by itself.
///
/// # Errors
/// An I-step that has no such fits: the reason, and what to do.
pub fn fits_to_make(prepared: &Prepared, spec: &InferSpec) -> Result<Vec<usize>> {
    let refused = |found: String, repair: &str| Err(Error::invalid("infer", found, repair));
    if !spec.methods.contains(&Method::EPost) {
        return refused(
            "the study does not ask for e-post, the only method whose fits are many".into(),
            "run it whole",
        );
    }
    let engine = prepared.engine(spec);
    if engine != Engine::Nuts {
        let found = format!("e-post by the engine {} is one piece of work, of all T-draws together", engine.name());
        return refused(found, "run it whole, or set infer.engine = \"nuts\" and infer.nuts.fits = \"all\"");
    }
    if spec.nuts.fits != Fits::All {
        let found = "e-post fits no more T-draws than it needs, and knows them only one after the other";
        return refused(found.into(), "run it whole, or set infer.nuts.fits = \"all\"");
    }
    Ok(engine_nuts::fitted_draws(prepared))
}

/// Makes the fits of some of [`fits_to_make`], the same whoever makes the others, and gives each to `sink` when it is finished.
///
/// # Errors
/// Those of the sampler or of the sink, or an interruption.
pub fn make_fits(
    prepared: &Prepared,
    spec: &InferSpec,
    stream: Stream,
    some: &[usize],
    sink: &dyn FitSink,
    monitor: &dyn Monitor,
) -> Result<()> {
    engine_nuts::make_fits(prepared, spec, stream.named(Method::EPost.name()), some, sink, monitor)
}

/// Runs every method by one engine.
fn infer_part(prepared: &Prepared, spec: &InferSpec, stream: Stream, monitor: &dyn Monitor) -> Result<Vec<IPosterior>> {
    let one_by_one = |spec: &InferSpec, sample: SampleMethod| -> Result<Vec<IPosterior>> {
        let n = spec.methods.len();
        let numbered = spec.methods.iter().enumerate();
        let sampled = numbered.map(|(done, &method)| {
            monitor.progress("infer", done, n);
            sample(prepared, spec, method, stream.named(method.name()), monitor)
        });
        let out = sampled.collect::<Result<_>>()?;
        monitor.progress("infer", n, n);
        Ok(out)
    };
    let on_all = |spec: &InferSpec| match prepared.engine(spec) {
        Engine::Grid | Engine::Auto => engine_grid::infer(prepared, spec, stream, monitor),
        Engine::Exact => one_by_one(spec, engine_exact::infer),
        Engine::Smc => one_by_one(spec, engine_smc::infer),
        Engine::Nuts => one_by_one(spec, engine_nuts::infer),
    };
    let mut out = Vec::new();
    for part in parts_to_cluster(prepared, spec) {
        match part {
            (part, false) => out.extend(on_all(&part)?),
            (part, true) => match clusters::infer(prepared, &part, &part.methods, stream, monitor)? {
                Ok(answers) => out.extend(answers),
                Err((why, work)) => {
                    for mut answer in on_all(&part)? {
                        answer.trust += &format!("; by all {} T-draws: {why}", prepared.draws.n_draws());
                        answer.diagnostics.likelihood_evaluations += work;
                        answer.diagnostics.all_t_draws = Some(why.clone());
                        out.push(answer);
                    }
                }
            },
        }
    }
    out.sort_by_key(|p| spec.methods.iter().position(|method| method.name() == p.method));
    // A surrogate that failed on the way has asked to stop.
    if !monitor.proceed() {
        return Err(Error::Interrupted);
    }
    for (posterior, method) in out.iter_mut().zip(&spec.methods) {
        if posterior.engine == Engine::Nuts.name() && !prepared.likelihoods.has_gradient() {
            posterior.warnings.push(format!(
                "{}: a surrogate has no gradient, so that NUTS used differences, at the price of two evaluations for each of its \
                 inputs; give it a gradient, or use engine = \"auto\"",
                posterior.method
            ));
        }
        match method {
            Method::Point => {
                posterior.trust += "; ignores the surrogate's uncertainty";
                let is_own = |s: &dyn Surrogate| {
                    !s.priors().is_empty() || s.gaussian_process().is_some() || s.series().is_some()
                };
                let is_foreign = |surrogate: &dyn Surrogate| !is_own(surrogate);
                if prepared.outputs.iter().any(|output| is_foreign(&*output.surrogate)) {
                    posterior.warnings.push(
                        "point: the mean of the parameters of a surrogate that was made elsewhere need not be a plausible surrogate; \
                         read it only where predictions are linear in them"
                            .into(),
                    );
                }
            }
            Method::ELogLik => posterior.trust += "; grows surer as the surrogate grows worse",
            Method::ELik if prepared.is_marginal(*method) => {
                posterior.trust += "; the surrogate's function integrated out exactly";
                posterior.diagnostics.marginal = true;
                let stream = stream.named(method.name()).named("t-draws");
                posterior.t_draws = Some(prepared.assign(&posterior.draws, prepared.log_alpha(), stream));
            }
            Method::ELik | Method::EPost | Method::Own(_) => {}
        }
        posterior.version = method.version();
        posterior.advise_on_t_draws(prepared, *method);
        posterior.advise(prepared);
    }
    Ok(out)
}

/// The methods of `spec` in parts, and whether clusters may serve each: E-Lik and E-Post, together on a grid, one by one by samplers;
/// but E-Post by NUTS, whose fits are few by themselves. Point has one T-draw, E-Log-Lik mostly a closed form.
fn parts_to_cluster(prepared: &Prepared, spec: &InferSpec) -> Vec<(InferSpec, bool)> {
    let engine = prepared.engine(spec);
    let is_served = |method: &Method| match engine {
        _ if spec.clusters != Clusters::Auto || prepared.is_marginal(*method) => false,
        Engine::Exact => false,
        Engine::Nuts => *method == Method::ELik,
        _ => [Method::ELik, Method::EPost].contains(method),
    };
    let (served, others): (Vec<Method>, Vec<Method>) = spec.methods.iter().partition(|method| is_served(method));
    let groups: Vec<Vec<Method>> = match engine {
        Engine::Smc | Engine::Nuts => served.into_iter().map(|method| vec![method]).collect(),
        _ => vec![served],
    };
    let parts = std::iter::once((others, false)).chain(groups.into_iter().map(|group| (group, true)));
    let parts = parts.filter(|(methods, _)| !methods.is_empty());
    parts.map(|(methods, clustered)| (InferSpec { methods, ..spec.clone() }, clustered)).collect()
}

/// How much each T-draw accounts for the parameters `x`: `r_s ∝ exp(log_offsets[s] + l_s(x))`, into `r`.
fn responsibilities(
    likelihoods: &Likelihoods,
    x: &[f64],
    log_offsets: &[f64],
    workspace: &mut Workspace,
    r: &mut Vec<f64>,
) {
    let n = likelihoods.n_unknowns();
    r.resize(likelihoods.n_draws(), 0.0);
    likelihoods.set_unknowns(&x[..n], workspace);
    likelihoods.log_likelihoods(&x[n..], workspace, r);
    crate::kernels::log_mean_exp_weights(log_offsets, r);
}

/// `1 / sum_s w_s^2 / alpha_s` of normalised log-weights.
pub fn agreement(log_weights: &[f64], log_alpha: &[f64]) -> f64 {
    let counted = log_weights.iter().zip(log_alpha).filter(|(_, a)| a.is_finite());
    let terms: Vec<f64> = counted.map(|(w, a)| 2.0 * w - a).collect();
    (-log_sum_exp(&terms)).exp()
}

/// The correlation of two columns; zero where one does not vary.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (a0, b0) = (mean(a), mean(b));
    let sum = |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(x, y)| f(x - a0, y - b0)).sum::<f64>();
    let r = sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt();
    if r.is_finite() { r } else { 0.0 }
}

/// The agreement measure in words.
fn favoured(share: f64) -> String {
    let percent = match 100.0 * share {
        p if p < 1.0 => "less than 1 %".into(),
        p if p < 100.0 && p > 99.5 => "more than 99 %".into(),
        p => format!("{p:.0} %"),
    };
    format!("; data favour {percent} of the T-draws")
}

/// Effective T-draws below which E-Lik warns of resting on few.
pub const FEW_T_DRAWS: f64 = 20.0;

/// Tail of the prior in which a posterior median contradicts it: rarer than once in a thousand studies.
const CONFLICT: f64 = 5e-4;

/// Share of a marginal near a bound above which the posterior presses against it: five times a uniform's share.
const NEAR: f64 = 0.02;

/// Correlation of an offset with an unknown above which the measurements tell only what both do together.
const CONFOUNDED: f64 = 0.8;

impl IPosterior {
    /// Says where an offset and an unknown explain the same.
    fn warn_of_confounding(&mut self, prepared: &Prepared) {
        let n = prepared.likelihoods.n_unknowns();
        let column = |d: usize| self.draws.iter().map(|x| x[d]).collect::<Vec<f64>>();
        let mut warnings = Vec::new();
        for &offset in &prepared.offsets {
            let of_offset = column(offset);
            let others = (0..n).filter(|d| !prepared.offsets.contains(d));
            let correlated: Vec<(usize, f64)> = others
                .map(|d| (d, correlation(&of_offset, &column(d))))
                .filter(|(_, r)| r.abs() > CONFOUNDED)
                .collect();
            for (d, r) in correlated {
                let names = prepared.prior.names();
                warnings.push(format!(
                    "{}: {} and {} are confounded (correlation {r:.2}): the measurements tell what both do together, and the prior of \
                     the offset decides what {} is; measure where they differ, or give the offset a prior that you believe",
                    self.method, names[offset], names[d], names[d]
                ));
            }
        }
        self.warnings.extend(warnings);
    }

    fn advise(&mut self, prepared: &Prepared) {
        for (d, (name, marginal)) in prepared.prior.iter().enumerate().take(prepared.likelihoods.n_unknowns()) {
            let (lower, upper) = marginal.support();
            if !(lower.is_finite() && upper.is_finite()) || self.draws.is_empty() {
                continue;
            }
            let reach = NEAR * (upper - lower);
            let share = |inside: &dyn Fn(f64) -> bool| {
                self.draws.iter().filter(|x| inside(x[d])).count() as f64 / self.draws.len() as f64
            };
            for (bound, share) in [(lower, share(&|x| x < lower + reach)), (upper, share(&|x| x > upper - reach))] {
                if share > 5.0 * NEAR {
                    self.warnings.push(format!(
                        "{}: {:.0} % of the posterior of {name} lies within 2 % of the bound {bound}; the answer is cut off by the \
                         range, widen it and simulate there",
                        self.method,
                        100.0 * share
                    ));
                }
            }
        }
        self.warn_of_confounding(prepared);
        for ((name, marginal), quantity) in prepared.prior.iter().zip(&self.unknowns) {
            let below = marginal.cdf(quantity.q50);
            if below.min(1.0 - below) < CONFLICT {
                let (side, least) = if below > 0.5 { ("above", 1.0 - below) } else { ("below", below) };
                self.warnings.push(format!(
                    "{}: the measurements contradict the prior of {name}: its posterior median, {:.3e}, lies {side} all but {least:.0e} \
                     of the prior; check units, the surrogate and the prior",
                    self.method, quantity.q50
                ));
            }
        }
        if let Some(effective) = self.diagnostics.effective_t_draws.filter(|_| self.diagnostics.rests_on_few()) {
            self.warnings.push(format!(
                "e-lik rests on the equivalent of {effective:.1} of {} T-draws: raise train.draws, and distrust its tails",
                prepared.draws.n_draws()
            ));
        }
        if prepared.zeros > 0 {
            self.warnings.push(format!(
                "{} zeros were taken as values below 1/2, since they have no logarithm (zeros = \"error\" refuses them)",
                prepared.zeros
            ));
        }
    }
}

/// Whether a method is sampled draw by draw.
fn per_draw(propagation: &dyn Propagation) -> bool {
    propagation.targets() == Targets::PerDraw
}
