//! I-posteriors in closed form: where the surrogate is affine in the unknowns and all else is normal, the posterior of every
//! T-draw is normal with a known evidence, and E-Lik and E-Post are mixtures of these.

use super::likelihoods::{Likelihoods, OutputTerm};
use super::locate::{Located, Place};
use super::propagation::Method;
use super::summary::{QuantitySummary, from_density, from_draws};
use super::{Derived, Diagnostics, Engine, IPosterior, InferSpec, Prepared, favoured};
use crate::draws::pick_weighted;
use crate::error::{Error, Result};
use crate::kernels;
use crate::kernels::mixture::Mixture;
use crate::likelihood::NoiseSpec;
use crate::matrix::{Matrix, cholesky, in_triangle, solve_lower, solve_lower_transposed};
use crate::monitor::Monitor;
use crate::prior::Prior;
use crate::special::log_sum_exp;
use crate::stream::Stream;
use crate::surrogate::{Scratch, Surrogate};
use crate::train::PROBABILITIES;
use rand::RngExt;
use rand_distr::StandardNormal;
use rayon::prelude::*;
use std::sync::Arc;

/// Whether the I-step is linear-Gaussian, as far as the study tells: each output by its name, surrogate, whether that models the
/// logarithm, and its noise; and whether sigma_A is propagated. Where it is not, the reason.
///
/// # Errors
/// The first reason.
pub fn linear_gaussian<'a>(
    unknowns: &Prior,
    outputs: impl IntoIterator<Item = (&'a str, Arc<dyn Surrogate>, bool, &'a NoiseSpec)>,
    sigma_a: bool,
) -> std::result::Result<(), String> {
    if let Some((name, _)) = unknowns.iter().find(|(_, prior)| prior.is_normal().is_none()) {
        return Err(format!("the prior of `{name}` is not a normal without bounds (truncate = false lifts the range)"));
    }
    for (name, surrogate, log, noise) in outputs {
        if !surrogate.is_affine_in(unknowns.len()) {
            return Err(format!("the surrogate of `{name}` is not affine in the unknowns"));
        }
        if sigma_a && surrogate.error_field().is_some() {
            return Err(format!("sigma_a of `{name}` depends on the unknowns"));
        }
        if !noise.family.reduces(log) {
            return Err(format!("the noise of `{name}` is not normal on the scale of its surrogate"));
        }
        if noise.scale.prior().is_some() {
            return Err(format!("the sd of `{name}` is unknown"));
        }
    }
    Ok(())
}

/// The slope of a derived quantity by every parameter, where it is affine in them.
pub(super) fn slope(derived: &Derived, n_parameters: usize) -> Option<Vec<f64>> {
    let variables = derived.expression.variables();
    let by = |name: &String| {
        let slope = derived.expression.derivative(name).ok().filter(|slope| slope.variables_used().is_empty())?;
        Some(slope.eval_scalar(&vec![0.0; variables.len()])).filter(|slope| slope.is_finite())
    };
    variables.iter().take(n_parameters).map(by).collect()
}

/// A linear-Gaussian I-step in unknowns `u` whose prior is standard normal.
pub(super) struct LinearGaussian {
    /// Mean and sd of each unknown.
    prior: Vec<(f64, f64)>,
    n_rows: usize,
    /// For each T-draw and group of measurements: precision `k`, residual `r` at the prior mean, slope `g` by each unknown;
    /// the log-likelihood is `constant - sum k (r - g'u)^2 / 2`.
    rows: Vec<f64>,
    constants: Vec<f64>,
    /// The posterior of every T-draw.
    posteriors: Vec<Normal>,
}

/// `u ~ N(mean, (L L')^-1)`, and the evidence.
struct Normal {
    mean: Vec<f64>,
    /// Lower triangle of L.
    factor: Vec<f64>,
    log_evidence: f64,
}

impl LinearGaussian {
    /// `likelihoods` must be of a problem that [`linear_gaussian`] accepts.
    ///
    /// # Errors
    /// Measurements or T-draws that stand in the way of a closed form.
    pub(super) fn new(likelihoods: &Likelihoods, unknowns: &Prior) -> std::result::Result<Self, String> {
        let prior: Vec<(f64, f64)> = unknowns.marginals().iter().filter_map(|prior| prior.is_normal()).collect();
        if likelihoods.terms().any(|term| !term.data.rows.is_empty()) {
            return Err("some measurements are censored, or zeros, which have no logarithm".into());
        }
        let n_draws = likelihoods.n_draws();
        let n_rows = likelihoods.terms().map(|term| term.data.groups.len()).sum();
        let width = prior.len() + 2;
        let mut out = Self {
            n_rows,
            rows: vec![0.0; n_draws * n_rows * width],
            constants: vec![0.0; n_draws],
            prior,
            posteriors: Vec::new(),
        };
        let mut first = 0;
        for term in likelihoods.terms() {
            out.add(term, first);
            first += term.data.groups.len();
        }
        out.posteriors = (0..n_draws)
            .map(|s| out.posterior(std::iter::once((s, 1.0))))
            .collect::<Option<_>>()
            .ok_or("under some T-draw the surrogate has no finite value, or a measurement has no error")?;
        Ok(out)
    }

    /// One output, whose groups are rows from number `first` on.
    fn add(&mut self, term: &OutputTerm, first: usize) {
        let (n_draws, dim, data) = (self.constants.len(), self.prior.len(), &term.data);
        let width = dim + 2;
        let mut precisions = Matrix::zeros(data.classes.len(), n_draws);
        for s in 0..n_draws {
            self.constants[s] += data.constant;
            for (c, class) in data.classes.iter().enumerate() {
                let sigma_a = term.sigma_a.as_ref().map_or(0.0, |sigma_a| sigma_a[s]);
                let terms = class.terms(class.sd.unwrap_or(f64::NAN), sigma_a, term.error);
                self.constants[s] += terms.a;
                precisions[(c, s)] = -2.0 * terms.b;
            }
        }
        let mut x = Matrix::from_fn(data.points.rows(), dim + data.points.cols(), |i, d| {
            if d < dim { self.prior[d].0 } else { data.points[(i, d - dim)] }
        });
        let (mut centre, mut moved, mut scratch) = (Matrix::default(), Matrix::default(), Scratch::default());
        term.surrogate.predict(&x, &term.coefficients, &mut centre, &mut scratch);
        let (shift, factor) = term.affine;
        for (i, group) in data.groups.iter().enumerate() {
            for s in 0..n_draws {
                let row = (s * self.n_rows + first + i) * width;
                self.rows[row] = group.weight * precisions[(group.class, s)];
                self.rows[row + 1] = group.mean - (shift + factor * centre[(group.point, s)]);
            }
        }
        for (d, (mean, sd)) in self.prior.iter().enumerate() {
            (0..x.rows()).for_each(|i| x[(i, d)] = mean + sd);
            term.surrogate.predict(&x, &term.coefficients, &mut moved, &mut scratch);
            (0..x.rows()).for_each(|i| x[(i, d)] = *mean);
            for (i, group) in data.groups.iter().enumerate() {
                for s in 0..n_draws {
                    let slope = factor * (moved[(group.point, s)] - centre[(group.point, s)]);
                    self.rows[(s * self.n_rows + first + i) * width + 2 + d] = slope;
                }
            }
        }
    }

    /// The posterior under the log-likelihood `sum weight l_s` of these draws; none where it is not proper.
    fn posterior(&self, draws: impl Iterator<Item = (usize, f64)> + Clone) -> Option<Normal> {
        let (dim, length) = (self.prior.len(), self.n_rows * (self.prior.len() + 2));
        let rows = |s: usize| self.rows[s * length..(s + 1) * length].chunks_exact(dim + 2);
        let mut factor = vec![0.0; in_triangle(dim, 0)];
        (0..dim).for_each(|d| factor[in_triangle(d, d)] = 1.0);
        let (mut mean, mut constant) = (vec![0.0; dim], 0.0);
        for (s, weight) in draws.clone() {
            constant += weight * self.constants[s];
            for row in rows(s) {
                let (precision, residual, slopes) = (weight * row[0], row[1], &row[2..]);
                for i in 0..dim {
                    mean[i] += precision * residual * slopes[i];
                    for j in 0..=i {
                        factor[in_triangle(i, j)] += precision * slopes[i] * slopes[j];
                    }
                }
            }
        }
        if !cholesky(&mut factor, dim) {
            return None;
        }
        solve_lower(&factor, &mut mean);
        solve_lower_transposed(&factor, &mut mean);
        // Residuals rather than differences of large sums of squares: the noise may be tiny.
        let mut misfit: f64 = mean.iter().map(|u| u * u).sum();
        for (s, weight) in draws {
            for row in rows(s) {
                let explained: f64 = row[2..].iter().zip(&mean).map(|(g, u)| g * u).sum();
                misfit += weight * row[0] * (row[1] - explained).powi(2);
            }
        }
        let log_det: f64 = (0..dim).map(|d| 2.0 * factor[in_triangle(d, d)].ln()).sum();
        let log_evidence = constant - 0.5 * (misfit + log_det);
        log_evidence.is_finite().then_some(Normal { mean, factor, log_evidence })
    }

    /// The unknowns in their own units.
    fn natural(&self, u: &[f64]) -> Vec<f64> {
        self.prior.iter().zip(u).map(|((mean, sd), u)| mean + sd * u).collect()
    }
}

/// One method's I-posterior: a mixture of normals.
struct Solved<'a> {
    model: &'a LinearGaussian,
    normals: Vec<&'a Normal>,
    weights: Vec<f64>,
    diagnostics: Diagnostics,
}

impl Solved<'_> {
    /// The distribution of a quantity that is affine in the unknowns, with this slope.
    fn marginal(&self, quantity: &dyn Fn(&[f64]) -> f64, slope: &[f64]) -> Mixture {
        let scaled: Vec<f64> = slope.iter().zip(&self.model.prior).map(|(slope, (_, sd))| slope * sd).collect();
        let mut half = Vec::new();
        // Together those left out hold less than a rounding of the sum.
        let nothing = f64::EPSILON / self.weights.len() as f64;
        let mut out = Mixture::default();
        for (normal, &weight) in self.normals.iter().zip(&self.weights).filter(|(_, weight)| **weight > nothing) {
            half.clone_from(&scaled);
            solve_lower(&normal.factor, &mut half);
            out.weights.push(weight);
            out.means.push(quantity(&self.model.natural(&normal.mean)));
            out.inverse_sds.push(half.iter().map(|x| x * x).sum::<f64>().sqrt().recip());
        }
        out
    }

    fn unknown(&self, d: usize) -> Mixture {
        let mut slope = vec![0.0; self.model.prior.len()];
        slope[d] = 1.0;
        self.marginal(&|x| x[d], &slope)
    }

    /// A draw with its component.
    fn draw(&self, stream: Stream) -> (Vec<f64>, usize) {
        let mut rng = stream.rng();
        let s = pick_weighted(&self.weights, &mut rng);
        let normal = self.normals[s];
        let mut u: Vec<f64> = normal.mean.iter().map(|_| rng.sample(StandardNormal)).collect();
        solve_lower_transposed(&normal.factor, &mut u);
        u.iter_mut().zip(&normal.mean).for_each(|(u, mean)| *u += mean);
        (self.model.natural(&u), s)
    }
}

fn summary(mixture: &Mixture, name: &str) -> QuantitySummary {
    let moments = mixture.moments();
    let quantiles = PROBABILITIES.map(|p| mixture.quantile(p, moments));
    // Beyond, the tails hold nothing that a highest-density set would.
    let ends = [5e-4, 1.0 - 5e-4].map(|p| mixture.quantile(p, moments));
    from_density(name, moments, quantiles, ends, &|x| mixture.at(x).1)
}

/// The I-posterior by one method, for `answer` to read from.
fn solve<T>(prepared: &Prepared, spec: &InferSpec, method: Method, answer: impl Fn(&Solved<'_>) -> T) -> Result<T> {
    let refused = |why: &str| Error::invalid("infer.engine", format!("no exact I-step: {why}"), "use \"auto\"");
    let model = prepared.exact().map_err(refused)?;
    let log_alpha = prepared.log_alpha();
    let single = |model: &LinearGaussian, normal: &Normal| {
        let diagnostics = Diagnostics {
            log_evidence: Some(normal.log_evidence),
            log_evidence_error: Some(0.0),
            evaluations: 1,
            ..Diagnostics::default()
        };
        answer(&Solved { model, normals: vec![normal], weights: vec![1.0], diagnostics })
    };
    match method {
        Method::Point => {
            let (likelihoods, _) = prepared.reduced(method, &*method.propagation(spec.point));
            let point = LinearGaussian::new(&likelihoods, &prepared.prior).map_err(|why| refused(&why))?;
            Ok(single(&point, &point.posteriors[0]))
        }
        Method::ELogLik => {
            let weighted = log_alpha.iter().map(|a| a.exp()).enumerate();
            let average = model.posterior(weighted).ok_or_else(|| refused("the averaged posterior is not proper"))?;
            Ok(single(model, &average))
        }
        Method::Own(_) if method.is_own_pool() => {
            Err(refused(&format!("{} pools likelihoods in a way of its own", method.name())))
        }
        Method::ELik | Method::EPost | Method::Own(_) => {
            let evidence: Vec<f64> = model.posteriors.iter().map(|normal| normal.log_evidence).collect();
            let log_weights = method.propagation(spec.point).mix(log_alpha, &evidence);
            let log_weights = log_weights.expect("mixtures have weights");
            let mut diagnostics = Diagnostics { evaluations: evidence.len(), ..Diagnostics::default() };
            if method == Method::ELik {
                let joint: Vec<f64> = log_alpha.iter().zip(&evidence).map(|(a, z)| a + z).collect();
                diagnostics.log_evidence = Some(log_sum_exp(&joint));
                diagnostics.log_evidence_error = Some(0.0);
                prepared.note_shares(&log_weights, log_alpha, &mut diagnostics);
            }
            let mut weights = vec![0.0; log_weights.len()];
            kernels::exp_each(&log_weights, &mut weights);
            Ok(answer(&Solved { model, normals: model.posteriors.iter().collect(), weights, diagnostics }))
        }
    }
}

pub(super) fn infer(
    prepared: &Prepared,
    spec: &InferSpec,
    method: Method,
    stream: Stream,
    monitor: &dyn Monitor,
) -> Result<IPosterior> {
    if !monitor.proceed() {
        return Err(Error::Interrupted);
    }
    solve(prepared, spec, method, |solved| {
        let stream = stream.named("draws");
        let drawn = (0..spec.draws).into_par_iter().map(|i| solved.draw(stream.at(i as u64)));
        let (draws, t_draws): (Vec<_>, Vec<_>) = drawn.collect::<Vec<_>>().into_iter().unzip();
        let names = prepared.prior.names();
        let mut unknowns: Vec<QuantitySummary> =
            names.iter().enumerate().map(|(d, name)| summary(&solved.unknown(d), name)).collect();
        for (derived, (name, f)) in prepared.derived.iter().zip(prepared.quantities().iter().skip(names.len())) {
            unknowns.push(match slope(derived, names.len()) {
                Some(slope) if slope.iter().any(|slope| *slope != 0.0) => summary(&solved.marginal(&**f, &slope), name),
                _ => from_draws(name, &draws, &**f),
            });
        }
        let diagnostics = solved.diagnostics.clone();
        IPosterior {
            method: method.name().into(),
            version: None,
            engine: Engine::Exact.name().into(),
            unknowns,
            trust: diagnostics.evidence_agreement.map_or("exact".into(), |share| format!("exact{}", favoured(share))),
            diagnostics,
            warnings: Vec::new(),
            draws,
            t_draws: method.is_mixture().then_some(t_draws),
            chains: 1,
            transitions: None,
        }
    })
}

/// Log evidence of every T-draw, and mean and sd of each unknown (rows) given each of them (columns).
pub(super) fn components(prepared: &Prepared) -> Result<(Vec<f64>, Matrix, Matrix)> {
    let refused = |why: &str| Error::invalid("infer.engine", format!("no exact I-step: {why}"), "use \"auto\"");
    let model = prepared.exact().map_err(refused)?;
    let (dim, n) = (model.prior.len(), model.posteriors.len());
    let (mut means, mut sds) = (Matrix::zeros(dim, n), Matrix::zeros(dim, n));
    for (s, normal) in model.posteriors.iter().enumerate() {
        let mean = model.natural(&normal.mean);
        for d in 0..dim {
            let mut half = vec![0.0; dim];
            half[d] = model.prior[d].1;
            solve_lower(&normal.factor, &mut half);
            means[(d, s)] = mean[d];
            sds[(d, s)] = half.iter().map(|x| x * x).sum::<f64>().sqrt();
        }
    }
    Ok((model.posteriors.iter().map(|normal| normal.log_evidence).collect(), means, sds))
}

/// Where `truth` lies in the posterior by every method; nothing else is computed of them.
pub(super) fn locate(
    prepared: &Prepared,
    spec: &InferSpec,
    truth: &[Option<f64>],
    monitor: &dyn Monitor,
) -> Result<Vec<Located>> {
    let by_method = |&method: &Method| {
        if !monitor.proceed() {
            return Err(Error::Interrupted);
        }
        solve(prepared, spec, method, |solved| {
            let place = |(d, truth): (usize, &Option<f64>)| {
                truth.map(|truth| {
                    let mixture = solved.unknown(d);
                    let moments = mixture.moments();
                    let [q05, q95] = [0.05, 0.95].map(|p| mixture.quantile(p, moments));
                    let below = mixture.at(truth).0;
                    Place { pit: below, below, rank: None, q05, q95 }
                })
            };
            let places = truth.iter().enumerate().map(place).collect();
            Located { method, engine: Engine::Exact, places, diagnostics: solved.diagnostics.clone() }
        })
    };
    spec.methods.iter().map(by_method).collect()
}
