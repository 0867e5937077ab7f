//! The I-log-likelihood `l_s(omega, sigma_I)` of every T-draw s at once, with its pull-back to the unknowns.

use super::conditioned::{Conditioned, Features};
use super::marginal::{Marginal, MarginalWorkspace};
use crate::kernels;
use crate::kernels::latent::{Cells, Integrals};
use crate::kernels::panels::{self, Classes, Form, Lanes, POINTS, Panels, PointForms, TILED_POINTS};
use crate::likelihood::{
    Batch, Class, ClassForm, ErrorSharing, Group, Likelihood, Link, Members, Reduced, Row, RowKind, Side,
};
use crate::matrix::Matrix;
use crate::mcmc::quadrature::MAX_AXES;
use crate::surrogate::{ErrorField, Scratch, Surrogate};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One output's part of the likelihood: its surrogate at all T-draws and its measurements.
#[derive(Clone)]
pub struct OutputTerm {
    /// The surrogate; its first inputs are the unknowns, the others the columns of `data.points`.
    pub surrogate: Arc<dyn Surrogate>,
    /// `eta = shift + factor M~`.
    pub affine: (f64, f64),
    /// From eta to the noise family's location.
    pub link: Link,
    /// The noise family.
    pub family: Arc<dyn Likelihood>,
    /// The measurements.
    pub data: Arc<Reduced>,
    /// How the approximation error enters.
    pub error: ErrorSharing,
    /// Number of the sigma_I that is this output's sd, where it is unknown.
    pub sigma: Option<usize>,
    /// P x S coefficients.
    pub coefficients: Matrix,
    /// Approximation error of each draw on the scale of eta, where it is propagated.
    pub sigma_a: Option<Vec<f64>>,
    /// How it depends on the inputs, where it does and is propagated.
    pub field: Option<ErrorField>,
}

impl OutputTerm {
    /// Whether errors of the surrogate are propagated, and do not add to the noise of measurements that do not reduce.
    fn has_latent_errors(&self) -> bool {
        let has_errors = self.sigma_a.is_some() || self.data.rows.iter().any(|row| row.extra > 0.0);
        has_errors && (!self.family.adds_errors() || self.link != Link::Identity)
    }
}

/// What an output needs besides its description: points to evaluate and the conditioned form.
#[derive(Clone)]
struct Prepared {
    term: OutputTerm,
    /// The surrogate with its draws, where the general path evaluates it that way.
    bound: Option<Arc<dyn Surrogate>>,
    conditioned: Option<Conditioned>,
    /// The surrogate's function integrated out, in place of its T-draws.
    marginal: Option<Marginal>,
    /// Indices of `data.points` that the general path evaluates.
    points: Vec<usize>,
    /// Position within `points` of each group.
    group_at: Vec<usize>,
    /// Measurements that do not reduce, and whose errors, if any, add to their noise.
    blocks: Vec<RowBlock>,
    /// Measurements whose errors are integrated out.
    latent: Vec<LatentGroup>,
}

/// Rows that share one error.
#[derive(Clone)]
struct LatentGroup {
    rows: Vec<Row>,
    /// Position of their point within the points evaluated.
    at: usize,
}

/// Rows of one kind with the same sd.
#[derive(Clone)]
struct RowBlock {
    kind: RowKind,
    sd: Option<f64>,
    times: f64,
    z: Vec<f64>,
    /// Position of each row's point within the points evaluated.
    at: Vec<usize>,
}

impl RowBlock {
    /// The scale of its rows, given the output's unknown one.
    fn scale(&self, sigma: f64) -> f64 {
        self.sd.unwrap_or(sigma) * self.times
    }
}

/// `l_s(omega, sigma_I)` for all T-draws, summed over outputs.
#[derive(Clone)]
pub struct Likelihoods {
    n_unknowns: usize,
    n_sigmas: usize,
    outputs: Vec<Prepared>,
    n_draws: usize,
    /// Output and number within it of every class.
    classes: Vec<(usize, usize)>,
}

/// One output's log-likelihood at some values of its sd: a row of these nodes per draw, or one row where all draws share it.
#[derive(Clone, Debug)]
pub(super) struct NodeTables {
    /// What depends on nothing.
    pub(super) constant: f64,
    /// `a` and `b` of every class.
    pub(super) classes: Vec<(Matrix, Matrix)>,
    /// One over the sd of a measurement, approximation error included.
    pub(super) inverse_sd: Matrix,
}

/// Buffers of one thread. Nothing is allocated after the first evaluation.
#[derive(Clone, Default)]
pub struct Workspace {
    outputs: Vec<OutputWorkspace>,
    pool: PoolWorkspace,
}

impl Workspace {
    /// How often pooled log-likelihoods have read the coefficients of all draws.
    pub(super) fn readings(&self) -> usize {
        self.pool.scratch.readings
    }
}

/// Buffers of pooled log-likelihoods: features by output, all else by class.
#[derive(Clone, Default)]
struct PoolWorkspace {
    forms: Vec<Form>,
    by_sd: Vec<[f64; 2]>,
    features: Vec<Matrix>,
    scratch: panels::PoolScratch,
    /// The same for several points.
    point_forms: Vec<PointForms>,
    points_by_sd: Vec<[[f64; 2]; POINTS]>,
    point_features: Vec<Vec<Lanes>>,
    pulled: panels::ManyPulled,
    by_own: Vec<Lanes>,
}

#[derive(Clone, Default)]
struct OutputWorkspace {
    x: Matrix,
    x_bar: Matrix,
    eta: Matrix,
    /// Locations on the family's scale, where it is not the surrogate's.
    mu: Matrix,
    eta_bar: Matrix,
    /// Approximation errors, where they depend on the inputs, and derivatives by their logarithms: points x draws.
    errors: Matrix,
    errors_bar: Matrix,
    /// For each class those of all draws, unless one of several points is set.
    residuals: Matrix,
    bar: Vec<f64>,
    scratch: Scratch,
    features: Features,
    /// Of several points the residuals: for each class a row for each point.
    point_residuals: Matrix,
    /// Which of how many points is set.
    point: Option<(usize, usize)>,
    lanes: Vec<Lanes>,
    lane_table: Vec<Lanes>,
    marginal: MarginalWorkspace,
    latent: Buffers,
    many: Many,
}

/// Inputs, values and their derivatives at several points of the unknowns, block after block.
#[derive(Clone, Default)]
struct Many {
    x: Matrix,
    x_bar: Matrix,
    eta: Matrix,
    eta_bar: Matrix,
}

/// Groups whose errors are integrated out, the cells where that is done, and what it gave.
#[derive(Clone, Default)]
struct LatentWorkspace {
    groups: Vec<Members>,
    group: Vec<usize>,
    eta: Vec<f64>,
    sds: Vec<f64>,
    integrals: Integrals,
    /// Where the cells of each group begin, and how they stand for its draws.
    stands: Vec<(usize, Stands)>,
}

/// Buffers that change while the workspace is only read: a lock for which nobody ever waits, since each thread has a workspace.
#[derive(Default)]
struct Buffers(Mutex<LatentWorkspace>);

impl Buffers {
    fn get(&self) -> MutexGuard<'_, LatentWorkspace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for Buffers {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// How cells stand for draws.
#[derive(Clone, Copy)]
enum Stands {
    /// One for each.
    Each,
    /// At etas from the first on, so far apart: draws lie between.
    Between { first: f64, step: f64 },
}

impl LatentWorkspace {
    /// Adds the logarithms of the integrals of a group for all draws, whose etas these are.
    fn add_logs(&self, (begin, stands): (usize, Stands), eta: &[f64], out: &mut [f64]) {
        let log = &self.integrals.log[begin..];
        let Stands::Between { first, step } = stands else {
            out.iter_mut().zip(log).for_each(|(out, log)| *out += log);
            return;
        };
        let slopes = &self.integrals.by_eta[begin..];
        kernels::dispatch(
            #[inline(always)]
            || {
                for (out, eta) in out.iter_mut().zip(eta) {
                    let (k, t) = place(eta - first, step);
                    *out += hermite(t, [log[k], log[k + 1]], [slopes[k] * step, slopes[k + 1] * step]).0;
                }
            },
        );
    }

    /// Adds their derivatives by eta times the draws' weights, and gives the sum of those by the unknown scale.
    fn pull(&self, (begin, stands): (usize, Stands), eta: &[f64], weights: &[f64], eta_bar: &mut [f64]) -> f64 {
        let Integrals { log, by_eta, by_scale, .. } = &self.integrals;
        let (log, by_eta, by_scale) = (&log[begin..], &by_eta[begin..], &by_scale[begin..]);
        let draws = eta.iter().zip(weights).zip(eta_bar).enumerate();
        let mut sum = 0.0;
        kernels::dispatch(
            #[inline(always)]
            || match stands {
                Stands::Each => {
                    for (s, ((_, weight), bar)) in draws.filter(|(_, ((_, weight), _))| **weight >= f64::EPSILON) {
                        *bar += weight * by_eta[s];
                        sum += weight * by_scale[s];
                    }
                }
                Stands::Between { first, step } => {
                    for (_, ((eta, weight), bar)) in draws.filter(|(_, ((_, weight), _))| **weight >= f64::EPSILON) {
                        let (k, t) = place(eta - first, step);
                        let slopes = [by_eta[k] * step, by_eta[k + 1] * step];
                        *bar += weight * hermite(t, [log[k], log[k + 1]], slopes).1 / step;
                        sum += weight * t.mul_add(by_scale[k + 1] - by_scale[k], by_scale[k]);
                    }
                }
            },
        );
        sum
    }

    /// Adds the derivatives by the logarithms of the errors of a group times the draws' weights, where each draw has a cell.
    fn pull_errors(&self, begin: usize, weights: &[f64], errors_bar: &mut [f64]) {
        let draws = errors_bar.iter_mut().zip(weights).zip(&self.integrals.by_log_sd[begin..]);
        draws.filter(|((_, weight), _)| **weight >= f64::EPSILON).for_each(|((bar, weight), by)| *bar += weight * by);
    }
}

/// The last of places so far apart that lies below, and how far beyond it, in steps.
#[inline(always)]
fn place(distance: f64, step: f64) -> (usize, f64) {
    let u = distance / step;
    let k = u as usize;
    (k, u - k as f64)
}

/// The cubic with these values and slopes at 0 and 1, and its slope, at `t`.
#[inline(always)]
fn hermite(t: f64, y: [f64; 2], slope: [f64; 2]) -> (f64, f64) {
    let rise = y[1] - y[0];
    let (a, b) = (slope[0] - rise, rise - slope[1]);
    // y0 + t (rise + (1 - t) (a (1 - t) + b t)).
    let inner = (1.0 - t) * a + t * b;
    let value = (t * (1.0 - t)).mul_add(inner, t.mul_add(rise, y[0]));
    (value, rise + (1.0 - 2.0 * t) * inner + t * (1.0 - t) * (b - a))
}

impl OutputWorkspace {
    /// Residual sums of squares of a class under every draw.
    fn residuals_of(&self, class: usize) -> &[f64] {
        match self.point {
            Some((point, of)) => self.point_residuals.row(class * of + point),
            None => self.residuals.row(class),
        }
    }
}

impl Likelihoods {
    /// Prepares the outputs; `conditioning` may be switched off to compare with the general path.
    pub fn new(n_unknowns: usize, n_sigmas: usize, outputs: Vec<OutputTerm>, conditioning: bool) -> Self {
        let n_draws = outputs.first().map_or(1, |o| o.coefficients.cols());
        let outputs = outputs
            .into_iter()
            .map(|term| {
                // Where sigma_A depends on the unknowns, residuals of different points have different weights everywhere.
                let conditioned = if conditioning && term.field.is_none() {
                    Conditioned::new(&*term.surrogate, &term.coefficients, term.affine, n_unknowns, &term.data)
                } else {
                    None
                };
                Prepared::new(term, conditioned)
            })
            .collect();
        Self::of_outputs(n_unknowns, n_sigmas, outputs, n_draws)
    }

    fn of_outputs(n_unknowns: usize, n_sigmas: usize, outputs: Vec<Prepared>, n_draws: usize) -> Self {
        let of_output = |(o, output): (usize, &Prepared)| (0..output.term.data.classes.len()).map(move |c| (o, c));
        let classes = outputs.iter().enumerate().flat_map(of_output).collect();
        Self { n_unknowns, n_sigmas, outputs, n_draws, classes }
    }

    /// Number S of T-draws.
    pub fn n_draws(&self) -> usize {
        self.n_draws
    }

    /// Number of unknowns.
    pub fn n_unknowns(&self) -> usize {
        self.n_unknowns
    }

    /// Number of unknown measurement sds.
    pub fn n_sigmas(&self) -> usize {
        self.n_sigmas
    }

    /// Whether any output uses the conditioned form.
    pub fn is_conditioned(&self) -> bool {
        self.outputs.iter().any(|o| o.conditioned.is_some())
    }

    /// Whether [`Likelihoods::pull`] takes derivatives of every surrogate, and differences of none.
    pub fn has_gradient(&self) -> bool {
        self.outputs.iter().all(|o| o.points.is_empty() || o.term.surrogate.has_gradient())
    }

    /// Multiplications that a log-likelihood takes for one draw, about.
    pub(super) fn cost(&self) -> f64 {
        let of_output = |o: &Prepared| match (&o.marginal, &o.conditioned) {
            (Some(marginal), _) => marginal.cost(&o.term),
            (None, Some(conditioned)) => conditioned.cost() as f64,
            (None, None) => (o.term.data.points.rows() * o.term.surrogate.names().len()) as f64,
        };
        self.outputs.iter().map(of_output).sum()
    }

    /// The likelihoods of some of the draws.
    pub fn select(&self, draws: &[usize]) -> Self {
        let outputs = self
            .outputs
            .iter()
            .map(|o| {
                let term = OutputTerm {
                    coefficients: o.term.coefficients.select_cols(draws),
                    sigma_a: o.term.sigma_a.as_ref().map(|a| draws.iter().map(|&s| a[s]).collect()),
                    ..o.term.clone()
                };
                match &o.marginal {
                    Some(marginal) => Prepared::marginal(term, marginal.select(draws)),
                    None => Prepared::new(term, o.conditioned.as_ref().map(|c| c.select(draws))),
                }
            })
            .collect();
        Self::of_outputs(self.n_unknowns, self.n_sigmas, outputs, draws.len())
    }

    /// The likelihoods of other draws (one matrix of coefficients and one sigma_A vector per output).
    pub fn with_draws(&self, draws: Vec<(Matrix, Option<Vec<f64>>)>) -> Self {
        let conditioning = self.is_conditioned();
        let outputs = self
            .outputs
            .iter()
            .zip(draws)
            .map(|(o, (coefficients, sigma_a))| OutputTerm { coefficients, sigma_a, ..o.term.clone() })
            .collect();
        Self::new(self.n_unknowns, self.n_sigmas, outputs, conditioning)
    }

    /// The likelihoods of nodes of Gaussian processes that stand for these T-draws, whose functions are integrated out. None where an
    /// output has measurements that do not reduce, or where that would take too long.
    pub(super) fn marginal(&self, functions: Vec<Marginal>, draws: &[usize]) -> Option<Self> {
        // Multiplications at one set of unknowns: some milliseconds for a grid, which asks for thousands, and less for samplers.
        const MOST: [f64; 2] = [1e7, 1e6];
        let outputs = self.outputs.iter().zip(functions).map(|(o, function)| {
            let fits = o.term.data.rows.is_empty() && o.term.link == Link::Identity;
            let (affine, data) = function.measured(&o.term);
            let term = OutputTerm {
                affine,
                data,
                coefficients: o.term.coefficients.select_cols(draws),
                sigma_a: o.term.sigma_a.as_ref().map(|a| draws.iter().map(|&s| a[s]).collect()),
                ..o.term.clone()
            };
            fits.then(|| Prepared::marginal(term, function))
        });
        let outputs = outputs.collect::<Option<Vec<_>>>()?;
        let out = Self::of_outputs(self.n_unknowns, self.n_sigmas, outputs, draws.len());
        (draws.len() as f64 * out.cost() <= MOST[usize::from(self.n_unknowns > MAX_AXES)]).then_some(out)
    }

    /// The one likelihood whose logarithm is `sum_s weight_s l_s`, where that is a single quadratic form: every output
    /// conditioned, without sigma_A and without rows that do not reduce. This makes E-Log-Lik as cheap as Point.
    pub fn averaged(&self, weights: &[f64]) -> Option<Self> {
        let outputs = self
            .outputs
            .iter()
            .map(|o| {
                let conditioned = o.conditioned.as_ref()?;
                if o.term.sigma_a.is_some() || !o.term.data.rows.is_empty() {
                    return None;
                }
                let term = OutputTerm { coefficients: o.term.coefficients.select_cols(&[0]), ..o.term.clone() };
                Some(Prepared::new(term, Some(conditioned.averaged(weights))))
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Self::of_outputs(self.n_unknowns, self.n_sigmas, outputs, 1))
    }

    /// Whether every measurement belongs to a class of a conditioned output: then [`Self::pool`] needs one pass over the draws.
    pub(super) fn is_quadratic(&self) -> bool {
        self.outputs.iter().all(|o| o.conditioned.is_some() && o.term.data.rows.is_empty())
    }

    /// `log sum_s exp(log_alpha[s] + l_s)` where [`Self::is_quadratic`], and adds its derivatives by the unknowns and the sds.
    pub(super) fn pool(
        &self,
        omega: &[f64],
        sigma: &[f64],
        log_alpha: &[f64],
        workspace: &mut Workspace,
        by_omega: &mut [f64],
        by_sigma: &mut [f64],
    ) -> f64 {
        workspace.outputs.resize_with(self.outputs.len(), OutputWorkspace::default);
        let Workspace { outputs, pool } = workspace;
        pool.forms.clear();
        pool.by_sd.clear();
        pool.features.resize_with(self.outputs.len(), Matrix::default);
        let mut constant = 0.0;
        for ((output, ws), features) in self.outputs.iter().zip(outputs).zip(&mut pool.features) {
            output.conditioned().values_and_slopes(omega, &mut ws.features, features);
            constant += output.term.data.constant;
        }
        for &(o, c) in &self.classes {
            let ClassForm { form, base_by_sd, constant: own, constant_by_sd } = self.outputs[o].form(c, sigma);
            pool.forms.push(form);
            pool.by_sd.push([base_by_sd, constant_by_sd]);
            constant += own;
        }
        let PoolWorkspace { forms, by_sd, features, scratch, .. } = pool;
        let value = panels::pool_log_mean_exp(self, features, forms, log_alpha, scratch) + constant;
        if value == f64::NEG_INFINITY {
            return value;
        }
        for ((&(o, c), [base_by_sd, constant_by_sd]), pulled) in self.classes.iter().zip(&*by_sd).zip(&scratch.pulled) {
            let output = &self.outputs[o];
            output.conditioned().add_own(&pulled.by_own, by_omega);
            if let (None, Some(j)) = (output.term.data.classes[c].sd, output.term.sigma) {
                by_sigma[j] += pulled.by_variance.mul_add(*base_by_sd, *constant_by_sd);
            }
        }
        value
    }

    /// [`Self::pool`] at up to [`POINTS`] points of unknowns and sds together: the draws are read once for all. Overwrites
    /// `values` and the rows of `gradients`.
    pub(super) fn pool_points(
        &self,
        points: &Matrix,
        log_alpha: &[f64],
        workspace: &mut Workspace,
        values: &mut [f64],
        gradients: &mut Matrix,
    ) {
        let n = points.rows();
        workspace.outputs.resize_with(self.outputs.len(), OutputWorkspace::default);
        let Workspace { outputs, pool } = workspace;
        let mut constants = [0.0; POINTS];
        pool.point_features.resize_with(self.outputs.len(), Vec::new);
        for ((output, ws), features) in self.outputs.iter().zip(outputs.iter_mut()).zip(&mut pool.point_features) {
            output.conditioned().set_points::<true>(points, 0..n, features, &mut ws.lane_table);
            constants[..n].iter_mut().for_each(|constant| *constant += output.term.data.constant);
        }
        pool.point_forms.clear();
        pool.points_by_sd.clear();
        for &(o, c) in &self.classes {
            let output = &self.outputs[o];
            // Lanes without a point of their own repeat the first.
            let lane = |p: usize| if p < n { p } else { 0 };
            let forms: [ClassForm; POINTS] =
                std::array::from_fn(|p| output.form(c, &points.row(lane(p))[self.n_unknowns..]));
            (0..n).for_each(|p| constants[p] += forms[p].constant);
            let Form { alpha, beta, gamma, .. } = forms[0].form;
            pool.point_forms.push(PointForms { base: forms.map(|form| form.form.base), alpha, beta, gamma });
            pool.points_by_sd.push(forms.map(|form| [form.base_by_sd, form.constant_by_sd]));
        }
        let PoolWorkspace { point_forms, points_by_sd, point_features, scratch, pulled, by_own, .. } = pool;
        let pooled = panels::pool_many(self, point_features, point_forms, log_alpha, scratch, pulled);
        for p in 0..n {
            values[p] = pooled[p] + constants[p];
        }
        gradients.data_mut().fill(0.0);
        for (i, &(o, c)) in self.classes.iter().enumerate() {
            let output = &self.outputs[o];
            output.conditioned().pull_points(&pulled.by_feature[i], &outputs[o].lane_table, n, by_own, gradients);
            if let (None, Some(j)) = (output.term.data.classes[c].sd, output.term.sigma) {
                for p in (0..n).filter(|&p| values[p] > f64::NEG_INFINITY) {
                    let [base_by_sd, constant_by_sd] = points_by_sd[i][p];
                    gradients[(p, self.n_unknowns + j)] += pulled.by_variance[i][p].mul_add(base_by_sd, constant_by_sd);
                }
            }
        }
    }

    /// Sets the unknowns: surrogate outputs and residual sums of squares of every draw.
    pub fn set_unknowns(&self, omega: &[f64], workspace: &mut Workspace) {
        workspace.outputs.resize_with(self.outputs.len(), OutputWorkspace::default);
        for (output, ws) in self.outputs.iter().zip(&mut workspace.outputs) {
            output.set_unknowns(omega, self.n_draws, ws);
        }
    }

    /// Makes ready for [`Self::set_point`] at these unknowns, a row each: the draws of conditioned outputs are read once for
    /// several of them.
    pub(super) fn set_points(&self, omega: &Matrix, workspace: &mut Workspace) {
        workspace.outputs.resize_with(self.outputs.len(), OutputWorkspace::default);
        for (output, ws) in self.outputs.iter().zip(&mut workspace.outputs) {
            output.set_points(omega, self.n_draws, ws);
        }
    }

    /// [`Self::set_unknowns`] of one of the points made ready last.
    pub(super) fn set_point(&self, omega: &Matrix, point: usize, workspace: &mut Workspace) {
        for (output, ws) in self.outputs.iter().zip(&mut workspace.outputs) {
            if !output.points.is_empty() || output.conditioned.is_none() {
                output.set_unknowns(omega.row(point), self.n_draws, ws);
                continue;
            }
            ws.point = Some((point, omega.rows()));
        }
    }

    /// Whether some surrogate costs less at several points together.
    pub(super) fn gains_together(&self) -> bool {
        self.outputs.iter().any(Prepared::gains_together)
    }

    /// Log-likelihoods pooled by `pool`, which leaves weights of the draws behind, at several points of unknowns and sds; with their
    /// gradients, where asked for.
    pub(super) fn pool_together(
        &self,
        points: &Matrix,
        mut pool: impl FnMut(&mut [f64]) -> f64,
        l: &mut [f64],
        workspace: &mut Workspace,
        values: &mut [f64],
        mut gradients: Option<&mut Matrix>,
    ) {
        workspace.outputs.resize_with(self.outputs.len(), OutputWorkspace::default);
        for (output, ws) in self.outputs.iter().zip(&mut workspace.outputs).filter(|(o, _)| o.gains_together()) {
            output.predict_points(points, self.n_unknowns, ws);
        }
        for (p, value) in values.iter_mut().enumerate().take(points.rows()) {
            let (omega, sigma) = points.row(p).split_at(self.n_unknowns);
            for (output, ws) in self.outputs.iter().zip(&mut workspace.outputs) {
                match output.gains_together() {
                    true => output.set_predicted(p, omega, self.n_draws, ws),
                    false => output.set_unknowns(omega, self.n_draws, ws),
                }
            }
            self.log_likelihoods(sigma, workspace, l);
            *value = pool(l);
            let Some(gradients) = gradients.as_deref_mut() else { continue };
            gradients.row_mut(p).fill(0.0);
            let (by_omega, by_sigma) = gradients.row_mut(p).split_at_mut(self.n_unknowns);
            for (output, ws) in self.outputs.iter().zip(&mut workspace.outputs) {
                output.pull_to_eta(sigma, l, ws, by_omega, by_sigma);
                match output.gains_together() {
                    true => output.keep_eta_bar(p, ws),
                    false => output.pull_eta(ws, by_omega),
                }
            }
        }
        let Some(gradients) = gradients else { return };
        for (output, ws) in self.outputs.iter().zip(&mut workspace.outputs).filter(|(o, _)| o.gains_together()) {
            output.pull_points(self.n_unknowns, ws, gradients);
        }
    }

    /// `out[s] = l_s` at the unknowns set last and the measurement sds `sigma`.
    pub fn log_likelihoods(&self, sigma: &[f64], workspace: &Workspace, out: &mut [f64]) {
        out.fill(0.0);
        for (output, ws) in self.outputs.iter().zip(&workspace.outputs) {
            output.add_log_likelihoods(output.sigma(sigma), None, ws, out);
        }
        exclude(out);
    }

    /// Whether measurements that do not reduce (student-t, zeros) make a grid dearer than sampling: they cost a density each
    /// for every T-draw, node of the unknowns and node of the sd.
    pub(super) fn grid_is_dear(&self) -> bool {
        // Typical numbers of nodes of one, two and three unknowns, and of an sd; minutes' worth of densities.
        const UNKNOWNS: [f64; 3] = [5e3, 5e4, 5e5];
        const SIGMA: f64 = 60.0;
        const AFFORDABLE: f64 = 2e10;
        // Bounds are asked for at half of the nodes, and five times as fast.
        const BOUND: f64 = 6.0;
        // An integral over an error takes ten densities, at the fewer nodes that a smooth function is interpolated from; where all draws
        // have the same error, cubics take the place of most of them.
        const INTEGRAL: f64 = 150.0;
        let of_output = |output: &Prepared| {
            let cost = |kind: RowKind| if kind == RowKind::Side(Side::Below) { BOUND } else { SIGMA };
            let rows: f64 = output.blocks.iter().map(|block| cost(block.kind) * block.z.len() as f64).sum();
            let has_own_errors = output.term.sigma_a.is_some() || output.term.field.is_some();
            rows + if has_own_errors { INTEGRAL } else { SIGMA } * output.latent.len() as f64
        };
        let rows: f64 = self.outputs.iter().map(of_output).sum();
        // A group whose error has a size of its own costs a logarithm, as a bound does.
        let varying = self.terms().filter(|term| term.field.is_some());
        let groups: f64 = varying.map(|term| BOUND * term.data.groups.len() as f64).sum();
        let nodes = UNKNOWNS[self.n_unknowns.clamp(1, 3) - 1];
        (rows + groups) * self.n_draws as f64 * nodes > AFFORDABLE
    }

    /// Whether the log-likelihood of an output takes long at every sd, and is smooth in its logarithm: a sum of `log(c + s^2)` and
    /// `1 / (c + s^2)` with `c >= 0`, whose singularities lie pi/2 away from the real axis.
    pub(super) fn is_smooth_in_sd(&self, output: usize) -> bool {
        let is_dear = |o: usize| !self.outputs[o].has_classes() || !self.outputs[o].term.data.rows.is_empty();
        let is_smooth = |o: usize| self.outputs[o].term.data.rows.iter().all(|row| row.kind == RowKind::Value);
        let mut all = self.with_sigma_of(output);
        (self.shares_sigma(output) || is_dear(output)) && all.all(is_smooth)
    }

    /// The outputs, or experiments of one output, with the same unknown sd.
    fn with_sigma_of(&self, output: usize) -> impl Iterator<Item = usize> {
        let sigma = self.outputs[output].term.sigma;
        (0..self.outputs.len())
            .filter(move |&o| o == output || (sigma.is_some() && self.outputs[o].term.sigma == sigma))
    }

    /// Whether another experiment has the same unknown sd.
    fn shares_sigma(&self, output: usize) -> bool {
        self.with_sigma_of(output).nth(1).is_some()
    }

    /// The output whose sd is sigma number `j`, or the first of its experiments.
    pub(super) fn output_of_sigma(&self, j: usize) -> usize {
        self.outputs.iter().position(|o| o.term.sigma == Some(j)).expect("every sigma belongs to an output")
    }

    /// The outputs that were measured.
    pub(super) fn terms(&self) -> impl Iterator<Item = &OutputTerm> {
        self.outputs.iter().map(|output| &output.term)
    }

    /// Whether errors of the surrogate are propagated.
    pub(super) fn has_errors(&self) -> bool {
        let of_term = |term: &OutputTerm| {
            let extra = term.data.classes.iter().map(|class| class.extra).chain([term.data.rows_extra]);
            term.sigma_a.is_some() || extra.into_iter().any(|extra| extra > 0.0)
        };
        self.terms().any(of_term)
    }

    /// Number of outputs that were measured.
    pub(super) fn n_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// An output's sd among all; NaN where it is known.
    pub(super) fn sigma_of(&self, output: usize, sigma: &[f64]) -> f64 {
        self.outputs[output].sigma(sigma)
    }

    /// Number of measurements of an output.
    pub(super) fn n_measurements(&self, output: usize) -> usize {
        self.outputs[output].term.data.n
    }

    /// The one class through which an output depends on its unknown sd and on the surrogate, with the constant beside it;
    /// `None` where there are several, or rows that do not reduce.
    pub(super) fn only_class(&self, output: usize) -> Option<(&Class, f64, ErrorSharing)> {
        let term = &self.outputs[output].term;
        match term.data.classes.as_slice() {
            [class]
                if term.data.rows.is_empty()
                    && class.sd.is_none()
                    && self.outputs[output].has_classes()
                    && !self.shares_sigma(output) =>
            {
                Some((class, term.data.constant, term.error))
            }
            _ => None,
        }
    }

    /// Residual sums of squares of a class of an output, by draw.
    pub(super) fn residuals<'w>(&self, output: usize, class: usize, workspace: &'w Workspace) -> &'w [f64] {
        workspace.outputs[output].residuals_of(class)
    }

    /// Approximation errors of an output, by draw, where they are propagated.
    pub(super) fn sigma_a(&self, output: usize) -> Option<&[f64]> {
        self.outputs[output].term.sigma_a.as_deref()
    }

    /// Upper bounds of an output with their locations under every draw.
    pub(super) fn bounds<'w>(&self, output: usize, workspace: &'w Workspace) -> Vec<(f64, &'w [f64])> {
        let mu = self.outputs[output].locations(&workspace.outputs[output]);
        let blocks = self.outputs[output].blocks.iter().filter(|block| block.kind == RowKind::Side(Side::Below));
        blocks.flat_map(|block| block.z.iter().zip(&block.at).map(|(&z, &at)| (z, mu.row(at)))).collect()
    }

    /// What an output's log-likelihood is made of at given values of its unknown sd, where it has nothing but classes and
    /// upper bounds.
    pub(super) fn node_tables(&self, output: usize, sigma: &[f64]) -> Option<NodeTables> {
        let term = &self.outputs[output].term;
        let is_bound = |block: &RowBlock| block.kind == RowKind::Side(Side::Below) && block.times == 1.0;
        let prepared = &self.outputs[output];
        let has_others =
            !prepared.latent.is_empty() || !prepared.blocks.iter().all(is_bound) || self.shares_sigma(output);
        if !prepared.has_classes() || has_others {
            return None;
        }
        let draws = term.sigma_a.as_deref().unwrap_or(&[0.0]);
        let by_draw =
            |f: &dyn Fn(f64, f64) -> f64| Matrix::from_fn(draws.len(), sigma.len(), |s, k| f(sigma[k], draws[s]));
        let classes = term.data.classes.iter().map(|class| {
            let (mut a, mut b) = (Matrix::zeros(draws.len(), sigma.len()), Matrix::zeros(draws.len(), sigma.len()));
            for (s, &sigma_a) in draws.iter().enumerate() {
                for (k, &sigma) in sigma.iter().enumerate() {
                    let terms = class.terms(sigma, sigma_a, term.error);
                    (a[(s, k)], b[(s, k)]) = (terms.a, terms.b);
                }
            }
            (a, b)
        });
        Some(NodeTables {
            constant: term.data.constant,
            classes: classes.collect(),
            inverse_sd: by_draw(&|sigma, sigma_a| sigma.hypot(sigma_a).hypot(term.data.rows_extra.sqrt()).recip()),
        })
    }

    /// `out[s] = l_s` of one output alone, in all experiments that share its sd.
    pub(super) fn output_log_likelihoods(&self, output: usize, sigma: f64, workspace: &Workspace, out: &mut [f64]) {
        self.tabulated_log_likelihoods(output, 0, sigma, &[], workspace, out);
    }

    /// Adds `l_s` of the outputs whose sds are known.
    pub(super) fn known_log_likelihoods(&self, workspace: &Workspace, out: &mut [f64]) {
        for (output, ws) in self.outputs.iter().zip(&workspace.outputs) {
            if output.term.sigma.is_none() {
                output.add_log_likelihoods(f64::NAN, None, ws, out);
                exclude(out);
            }
        }
    }

    /// Coefficients `a` and `b` of every class (K x S each) at the given sds, where they differ between draws.
    pub(super) fn class_tables(&self, output: usize, sigma: &[f64]) -> Vec<(Matrix, Matrix)> {
        let prepared = &self.outputs[output];
        let term = &prepared.term;
        let has_tables = prepared.has_classes() && !self.shares_sigma(output);
        let Some(sigma_a) = term.sigma_a.as_ref().filter(|_| has_tables) else { return Vec::new() };
        let table =
            |f: &dyn Fn(f64, f64) -> f64| Matrix::from_fn(sigma.len(), sigma_a.len(), |k, s| f(sigma[k], sigma_a[s]));
        let classes = term.data.classes.iter();
        classes
            .map(|class| {
                let sd = |sigma: f64| class.sd.unwrap_or(sigma);
                (
                    table(&|sigma, a| class.terms(sd(sigma), a, term.error).a),
                    table(&|sigma, a| class.terms(sd(sigma), a, term.error).b),
                )
            })
            .collect()
    }

    /// `out[s] = l_s` of one output, in all experiments that share its sd, at sd number `k` of the tables made by [`Self::class_tables`] for it.
    pub(super) fn tabulated_log_likelihoods(
        &self,
        output: usize,
        k: usize,
        sigma: f64,
        tables: &[(Matrix, Matrix)],
        workspace: &Workspace,
        out: &mut [f64],
    ) {
        out.fill(0.0);
        let tables = if tables.is_empty() { None } else { Some((k, tables)) };
        for o in self.with_sigma_of(output) {
            self.outputs[o].add_log_likelihoods(sigma, tables, &workspace.outputs[o], out);
        }
        exclude(out);
    }

    /// Adds the derivatives of `sum_s weights[s] l_s` by the unknowns and by the sds.
    pub fn pull(
        &self,
        sigma: &[f64],
        weights: &[f64],
        workspace: &mut Workspace,
        by_omega: &mut [f64],
        by_sigma: &mut [f64],
    ) {
        for (output, ws) in self.outputs.iter().zip(&mut workspace.outputs) {
            output.pull_to_eta(sigma, weights, ws, by_omega, by_sigma);
            output.pull_eta(ws, by_omega);
        }
    }
}

/// Draws exclude the data where their log-likelihood is not a number: where terms of both signs overflow, far outside anything the data
/// allow.
fn exclude(l: &mut [f64]) {
    l.iter_mut().for_each(|l| *l = if l.is_nan() { f64::NEG_INFINITY } else { *l });
}

impl Classes for Likelihoods {
    fn len(&self) -> usize {
        self.classes.len()
    }

    fn polynomials(&self, c: usize) -> &Panels {
        let (output, class) = self.classes[c];
        self.outputs[output].conditioned().class(class)
    }

    fn basis(&self, c: usize) -> usize {
        self.classes[c].0
    }

    fn sigma_a(&self, c: usize) -> Option<&[f64]> {
        self.outputs[self.classes[c].0].term.sigma_a.as_deref()
    }
}

impl Prepared {
    /// The conditioned form, where [`Likelihoods::is_quadratic`] has found one.
    fn conditioned(&self) -> &Conditioned {
        self.conditioned.as_ref().expect("every output is conditioned")
    }

    /// How class `c` depends on residuals and sigma_A at these measurement sds.
    fn form(&self, c: usize, sigma: &[f64]) -> ClassForm {
        let class = &self.term.data.classes[c];
        class.form(class.sd.unwrap_or_else(|| self.sigma(sigma)), self.term.error)
    }

    fn new(term: OutputTerm, conditioned: Option<Conditioned>) -> Self {
        let used: Vec<bool> = (0..term.data.points.rows())
            .map(|p| conditioned.is_none() || term.data.rows.iter().any(|row| row.point == p))
            .collect();
        let points: Vec<usize> = (0..used.len()).filter(|&p| used[p]).collect();
        let at = |point: usize| points.binary_search(&point).unwrap_or(usize::MAX);
        let group_at = term.data.groups.iter().map(|g| at(g.point)).collect();
        let (mut blocks, mut latent): (Vec<RowBlock>, Vec<LatentGroup>) = Default::default();
        let is_latent = term.has_latent_errors();
        for row in &term.data.rows {
            if is_latent {
                let shares =
                    |group: &&mut LatentGroup| term.error == ErrorSharing::Shared && group.rows[0].point == row.point;
                match latent.iter_mut().find(shares) {
                    Some(group) => group.rows.push(row.clone()),
                    None => latent.push(LatentGroup { rows: vec![row.clone()], at: at(row.point) }),
                }
                continue;
            }
            let Row { kind, sd, times, .. } = *row;
            let alike = |b: &RowBlock| (b.kind, b.sd, b.times) == (kind, sd, times);
            let block = blocks.iter().position(alike).unwrap_or_else(|| {
                blocks.push(RowBlock { kind, sd, times, z: Vec::new(), at: Vec::new() });
                blocks.len() - 1
            });
            blocks[block].z.push(row.z);
            blocks[block].at.push(at(row.point));
        }
        let bound = if points.is_empty() { None } else { term.surrogate.for_draws(&term.coefficients) };
        Self { term, bound, conditioned, marginal: None, points, group_at, blocks, latent }
    }

    fn marginal(term: OutputTerm, marginal: Marginal) -> Self {
        let (points, group_at, blocks, latent) = Default::default();
        Self { term, bound: None, conditioned: None, marginal: Some(marginal), points, group_at, blocks, latent }
    }

    /// Whether groups enter by the residuals of their classes alone.
    fn has_classes(&self) -> bool {
        self.marginal.is_none() && self.term.field.is_none()
    }

    fn surrogate(&self) -> &dyn Surrogate {
        self.bound.as_deref().unwrap_or(&*self.term.surrogate)
    }

    fn set_points(&self, omega: &Matrix, n_draws: usize, ws: &mut OutputWorkspace) {
        let Some(conditioned) = self.conditioned.as_ref().filter(|_| self.points.is_empty()) else { return };
        let (n, n_classes) = (omega.rows(), self.term.data.classes.len());
        let OutputWorkspace { point_residuals, lanes, lane_table, .. } = ws;
        point_residuals.reshape(n_classes * n, n_draws);
        for first in (0..n).step_by(TILED_POINTS) {
            let count = TILED_POINTS.min(n - first);
            conditioned.set_points::<false>(omega, first..first + count, lanes, lane_table);
            for c in 0..n_classes {
                let out = &mut point_residuals.data_mut()[(c * n + first) * n_draws..];
                conditioned.class(c).combine_points(lanes, count, out);
            }
        }
    }

    fn set_unknowns(&self, omega: &[f64], n_draws: usize, ws: &mut OutputWorkspace) {
        let term = &self.term;
        if let Some(marginal) = &self.marginal {
            marginal.set_unknowns(term, omega, &mut ws.marginal);
            return;
        }
        if !self.points.is_empty() {
            let width = omega.len() + term.data.points.cols();
            if ws.x.rows() != self.points.len() {
                ws.x = Matrix::from_fn(self.points.len(), width, |i, d| {
                    if d < omega.len() { 0.0 } else { term.data.points[(self.points[i], d - omega.len())] }
                });
            }
            for i in 0..ws.x.rows() {
                ws.x.row_mut(i)[..omega.len()].copy_from_slice(omega);
            }
            self.surrogate().predict(&ws.x, &term.coefficients, &mut ws.eta, &mut ws.scratch);
        }
        self.finish_unknowns(omega, n_draws, ws);
    }

    /// [`Self::set_unknowns`] from the values of the surrogate on.
    fn finish_unknowns(&self, omega: &[f64], n_draws: usize, ws: &mut OutputWorkspace) {
        let term = &self.term;
        ws.residuals.reshape(term.data.classes.len(), n_draws);
        ws.point = None;
        if !self.points.is_empty() {
            let (shift, factor) = term.affine;
            if term.affine != (0.0, 1.0) {
                ws.eta.data_mut().iter_mut().for_each(|eta| *eta = shift + factor * *eta);
            }
            if term.link != Link::Identity && !self.blocks.is_empty() {
                ws.mu.reshape(ws.eta.rows(), n_draws);
                if term.link == Link::Exp {
                    kernels::exp_each(ws.eta.data(), ws.mu.data_mut());
                } else {
                    let pairs = ws.mu.data_mut().iter_mut().zip(ws.eta.data());
                    pairs.for_each(|(mu, &eta)| *mu = term.link.apply(eta).0);
                }
            }
            if let (Some(field), Some(sigma_a)) = (&term.field, &term.sigma_a) {
                field.sds(&ws.x, &term.coefficients, sigma_a, &mut ws.errors, &mut ws.scratch);
            }
        }
        match &self.conditioned {
            Some(conditioned) => conditioned.residuals(omega, &mut ws.features, &mut ws.residuals),
            None if term.field.is_some() => {}
            None => {
                ws.residuals.data_mut().fill(0.0);
                for (group, &at) in term.data.groups.iter().zip(&self.group_at) {
                    let row = ws.residuals.row_mut(group.class);
                    for (r, eta) in row.iter_mut().zip(ws.eta.row(at)) {
                        *r += group.weight * (group.mean - eta).powi(2);
                    }
                }
            }
        }
    }

    /// Whether its surrogate costs less at several points together, and nothing else is asked of these.
    fn gains_together(&self) -> bool {
        self.term.field.is_none() && !self.points.is_empty() && self.surrogate().reads_draws_once()
    }

    /// Values of the surrogate at several points of the unknowns, which rows begin with.
    fn predict_points(&self, points: &Matrix, n_unknowns: usize, ws: &mut OutputWorkspace) {
        let (n, known) = (self.points.len(), &self.term.data.points);
        let Many { x, eta, .. } = &mut ws.many;
        x.reshape(points.rows() * n, n_unknowns + known.cols());
        for p in 0..points.rows() {
            for (i, &point) in self.points.iter().enumerate() {
                let (unknowns, rest) = x.row_mut(p * n + i).split_at_mut(n_unknowns);
                unknowns.copy_from_slice(&points.row(p)[..n_unknowns]);
                rest.copy_from_slice(known.row(point));
            }
        }
        self.surrogate().predict(x, &self.term.coefficients, eta, &mut ws.scratch);
    }

    /// [`Self::set_unknowns`] of one of the points that were predicted together.
    fn set_predicted(&self, p: usize, omega: &[f64], n_draws: usize, ws: &mut OutputWorkspace) {
        let size = self.points.len() * n_draws;
        ws.eta.reshape(self.points.len(), n_draws);
        ws.eta.data_mut().copy_from_slice(&ws.many.eta.data()[p * size..(p + 1) * size]);
        self.finish_unknowns(omega, n_draws, ws);
    }

    /// Keeps the derivatives of a point until those of all are pulled back together.
    fn keep_eta_bar(&self, p: usize, ws: &mut OutputWorkspace) {
        let size = ws.eta_bar.data().len();
        let Many { eta, eta_bar, .. } = &mut ws.many;
        eta_bar.reshape(eta.rows(), eta.cols());
        eta_bar.data_mut()[p * size..(p + 1) * size].copy_from_slice(ws.eta_bar.data());
    }

    /// Adds the derivatives by the unknowns at several points.
    fn pull_points(&self, n_unknowns: usize, ws: &mut OutputWorkspace, gradients: &mut Matrix) {
        let Many { x, x_bar, eta_bar, .. } = &mut ws.many;
        x_bar.reshape(x.rows(), x.cols());
        x_bar.data_mut().fill(0.0);
        self.surrogate().pull_to_inputs(x, &self.term.coefficients, eta_bar, x_bar, &mut ws.scratch);
        for row in 0..x_bar.rows() {
            let by_omega = &mut gradients.row_mut(row / self.points.len())[..n_unknowns];
            by_omega.iter_mut().zip(x_bar.row(row)).for_each(|(by, bar)| *by += bar);
        }
    }

    /// Locations on the family's scale: points x draws.
    fn locations<'w>(&self, ws: &'w OutputWorkspace) -> &'w Matrix {
        if self.term.link == Link::Identity { &ws.eta } else { &ws.mu }
    }

    /// Approximation errors of all draws at a point that was evaluated, where they are propagated.
    fn errors<'w>(&'w self, at: usize, ws: &'w OutputWorkspace) -> Option<&'w [f64]> {
        if self.term.field.is_some() { Some(ws.errors.row(at)) } else { self.term.sigma_a.as_deref() }
    }

    /// Groups with their places among the points evaluated.
    fn groups(&self) -> impl Iterator<Item = (&Group, usize)> + Clone {
        self.term.data.groups.iter().zip(self.group_at.iter().copied())
    }

    /// This output's own sd among all.
    fn sigma(&self, sigma: &[f64]) -> f64 {
        self.term.sigma.map_or(f64::NAN, |j| sigma[j])
    }

    /// Adds `l_s` at this output's sd; `tables` holds the classes' coefficients at node k, where they were computed before.
    fn add_log_likelihoods(
        &self,
        sigma: f64,
        tables: Option<(usize, &[(Matrix, Matrix)])>,
        ws: &OutputWorkspace,
        out: &mut [f64],
    ) {
        let term = &self.term;
        if let Some(marginal) = &self.marginal {
            marginal.add_log_likelihoods(term, sigma, &ws.marginal, out);
            return;
        }
        out.iter_mut().for_each(|l| *l += term.data.constant);
        for (c, class) in term.data.classes.iter().enumerate() {
            let sd = class.sd.unwrap_or(sigma);
            match (&term.sigma_a, tables) {
                _ if term.field.is_some() => {
                    let constant = class.form(sd, term.error).constant;
                    out.iter_mut().for_each(|l| *l += constant);
                    let groups = self.groups().filter(|(group, _)| group.class == c);
                    let groups = groups.map(|(g, at)| (g.mean, g.scatter, ws.eta.row(at), ws.errors.row(at)));
                    kernels::add_normals(&class.group_form(sd, term.error), groups, out);
                }
                (None, _) => {
                    let terms = class.terms(sd, 0.0, term.error);
                    kernels::add_affine(terms.a, terms.b, ws.residuals_of(c), out);
                }
                (Some(_), Some((k, tables))) => {
                    kernels::add_products(tables[c].0.row(k), tables[c].1.row(k), ws.residuals_of(c), out);
                }
                (Some(sigma_a), None) => {
                    for ((out, residual), &sigma_a) in out.iter_mut().zip(ws.residuals_of(c)).zip(sigma_a) {
                        let terms = class.terms(sd, sigma_a, term.error);
                        *out += terms.a + terms.b * residual;
                    }
                }
            }
        }
        for block in &self.blocks {
            let measured = block.scale(sigma).hypot(term.data.rows_extra.sqrt());
            // Rows whose errors are not those of the others go one by one.
            let size = if term.field.is_some() { 1 } else { block.z.len() };
            for (z, at) in block.z.chunks(size).zip(block.at.chunks(size)) {
                let batch = Batch { z, at, mu: self.locations(ws), measured, sigma_a: self.errors(at[0], ws) };
                block.kind.add_log_likelihoods(&*term.family, &batch, out);
            }
        }
        if !self.latent.is_empty() {
            let (constant, _) = self.integrate(sigma, ws, false);
            let latent = ws.latent.get();
            for (group, &stands) in self.latent.iter().zip(&latent.stands) {
                latent.add_logs(stands, ws.eta.row(group.at), out);
            }
            out.iter_mut().for_each(|l| *l += constant);
        }
    }

    /// Integrates the errors of all groups out, and gives the constants of their members with the derivative by the output's own scale.
    fn integrate(&self, sigma: f64, ws: &OutputWorkspace, has_derivatives: bool) -> (f64, f64) {
        let term = &self.term;
        let mut latent = ws.latent.get();
        let LatentWorkspace { groups, group: group_of, eta, sds, integrals, stands } = &mut *latent;
        groups.resize_with(self.latent.len(), Vec::new);
        group_of.clear();
        eta.clear();
        sds.clear();
        stands.clear();
        // Slopes are what cubics are made of.
        integrals.has_derivatives = has_derivatives;
        let mut constant = (0.0, 0.0);
        for (g, group) in self.latent.iter().enumerate() {
            let members = &mut groups[g];
            members.clear();
            for row in &group.rows {
                let scale = row.sd.unwrap_or(sigma) * row.times;
                let by_unknown = if row.sd.is_none() { row.times } else { 0.0 };
                members.push((row.kind, row.z, scale, by_unknown));
                if row.kind == RowKind::Value {
                    let (own, by_scale) = term.family.constant(row.z, scale);
                    constant = (constant.0 + own, constant.1 + by_scale * by_unknown);
                }
            }
            let (own, extra) = (ws.eta.row(group.at), group.rows[0].extra.sqrt());
            let begin = eta.len();
            match self.errors(group.at, ws) {
                Some(errors) => {
                    eta.extend_from_slice(own);
                    sds.extend(errors.iter().map(|error| error.hypot(extra)));
                    stands.push((begin, Stands::Each));
                }
                None => {
                    let between = self.between(members, own, extra);
                    match between {
                        Some((first, step, n)) => {
                            eta.extend((0..n).map(|k| first + step * k as f64));
                            stands.push((begin, Stands::Between { first, step }));
                            integrals.has_derivatives = true;
                        }
                        None => {
                            eta.extend_from_slice(own);
                            stands.push((begin, Stands::Each));
                        }
                    }
                    sds.resize(eta.len(), extra);
                }
            }
            group_of.resize(eta.len(), g);
        }
        term.family.integrate(groups, term.link, &Cells { group: group_of, eta, sds }, integrals);
        constant
    }

    /// First, distance and number of places between which the integral of a group is a cubic for all draws, where that is less work than an
    /// integral for each.
    ///
    /// The logarithm of a density that is smoothed by an error of this sd has a fourth derivative of at most about one in units of the width
    /// of both together, so that cubics over a sixth of it are off by `6^-4 / 384 = 2e-6`.
    fn between(&self, members: &Members, eta: &[f64], error: f64) -> Option<(f64, f64, usize)> {
        const STEP: f64 = 1.0 / 6.0;
        const LESS: usize = 4;
        if eta.len() < 16 * LESS {
            return None;
        }
        let (low, high) = kernels::range(eta);
        let term = &self.term;
        let information = |eta: f64| {
            let (mu, slope) = term.link.apply(eta);
            members.iter().map(|member| term.family.information(mu, member.2) * slope * slope).sum::<f64>()
        };
        let most = [low, 0.5 * (low + high), high].into_iter().map(information).fold(0.0, f64::max);
        let step = STEP * error.hypot(most.sqrt().recip());
        let n = (high - low) / step;
        // One place more than steps, and one for the rounding of the last draw. What is not finite has no places.
        (n.is_finite() && step > 0.0 && n < (eta.len() / LESS) as f64).then_some((low, step, n as usize + 3))
    }

    /// Derivative by the sd of the groups of a class whose errors have sizes of their own; adds those by eta and by the errors' logarithms.
    fn pull_groups(&self, class: usize, sd: f64, weights: &[f64], ws: &mut OutputWorkspace) -> f64 {
        let (error, of_class) = (self.term.error, &self.term.data.classes[class]);
        let ClassForm { base_by_sd, constant_by_sd, .. } = of_class.form(sd, error);
        let Form { base, alpha, beta, gamma } = of_class.group_form(sd, error);
        let mut by_sd = constant_by_sd * weights.iter().sum::<f64>();
        for (group, at) in self.groups().filter(|(group, _)| group.class == class) {
            for (s, &weight) in weights.iter().enumerate() {
                if weight == 0.0 {
                    continue;
                }
                let (gap, square) = (group.mean - ws.eta[(at, s)], ws.errors[(at, s)].powi(2));
                let v = base + square;
                let by_v = weight * (alpha - (beta * group.scatter + gamma * gap * gap) / v) / v;
                ws.eta_bar[(at, s)] -= 2.0 * weight * gamma * gap / v;
                ws.errors_bar[(at, s)] += 2.0 * by_v * square;
                by_sd += by_v * base_by_sd;
            }
        }
        by_sd
    }

    /// Adds the derivatives by the sds, and by the unknowns those that do not go through values of the surrogate; of these it leaves the
    /// derivatives by M~ behind.
    fn pull_to_eta(
        &self,
        sigma: &[f64],
        weights: &[f64],
        ws: &mut OutputWorkspace,
        by_omega: &mut [f64],
        by_sigma: &mut [f64],
    ) {
        debug_assert!(ws.point.is_none(), "features are set by `set_unknowns` alone");
        let term = &self.term;
        let sigma = self.sigma(sigma);
        if let Some(marginal) = &self.marginal {
            let by_sd = marginal.pull(term, sigma, weights, &mut ws.marginal, by_omega);
            if let Some(j) = term.sigma {
                by_sigma[j] += by_sd;
            }
            return;
        }
        if !self.points.is_empty() {
            ws.eta_bar.reshape(self.points.len(), weights.len());
            ws.eta_bar.data_mut().fill(0.0);
        }
        if term.field.is_some() {
            ws.errors_bar.reshape(self.points.len(), weights.len());
            ws.errors_bar.data_mut().fill(0.0);
        }
        ws.bar.resize(weights.len(), 0.0);
        for (c, class) in term.data.classes.iter().enumerate() {
            let sd = class.sd.unwrap_or(sigma);
            let mut by_sd = 0.0;
            match &term.sigma_a {
                _ if term.field.is_some() => by_sd = self.pull_groups(c, sd, weights, ws),
                None => {
                    let terms = class.terms(sd, 0.0, term.error);
                    let (mut total, mut residual) = (0.0, 0.0);
                    for ((bar, &w), &r) in ws.bar.iter_mut().zip(weights).zip(ws.residuals.row(c)) {
                        *bar = w * terms.b;
                        total += w;
                        // A draw of weight zero may have an infinite residual.
                        residual += if w == 0.0 { 0.0 } else { w * r };
                    }
                    by_sd += terms.a_by_sd * total + terms.b_by_sd * residual;
                }
                Some(sigma_a) => {
                    for (s, bar) in ws.bar.iter_mut().enumerate() {
                        if weights[s] == 0.0 {
                            *bar = 0.0;
                            continue;
                        }
                        let terms = class.terms(sd, sigma_a[s], term.error);
                        *bar = weights[s] * terms.b;
                        by_sd += weights[s] * (terms.a_by_sd + terms.b_by_sd * ws.residuals[(c, s)]);
                    }
                }
            }
            if let (None, Some(j)) = (class.sd, term.sigma) {
                by_sigma[j] += by_sd;
            }
            match &self.conditioned {
                Some(conditioned) => conditioned.pull(c, &ws.bar, &mut ws.features, by_omega),
                None if term.field.is_some() => {}
                None => {
                    for (group, at) in self.groups().filter(|(group, _)| group.class == c) {
                        let draws = ws.eta_bar.row_mut(at).iter_mut().zip(&ws.bar).zip(ws.eta.row(at));
                        draws.for_each(|((out, bar), eta)| *out -= 2.0 * group.weight * bar * (group.mean - eta));
                    }
                }
            }
        }
        for block in &self.blocks {
            let sd = block.scale(sigma);
            for (&z, &at) in block.z.iter().zip(&block.at) {
                if let (RowKind::Value, None, Some(j)) = (block.kind, block.sd, term.sigma) {
                    by_sigma[j] += term.family.constant(z, sd).1 * block.times * weights.iter().sum::<f64>();
                }
                for s in 0..weights.len() {
                    // Draws without a say in the pooled density: rows cost a density each, so these are most of the work.
                    if weights[s] < f64::EPSILON {
                        continue;
                    }
                    let (mu, by_eta) = term.link.apply(ws.eta[(at, s)]);
                    let error = self.errors(at, ws).map_or(0.0, |errors| errors[s]);
                    let total = sd.hypot(term.data.rows_extra.sqrt()).hypot(error);
                    let scored = block.kind.score(&*term.family, z, mu, total);
                    if term.field.is_some() {
                        ws.errors_bar[(at, s)] += weights[s] * scored.by_scale * error * error / total;
                    }
                    ws.eta_bar[(at, s)] += weights[s] * scored.by_mu * by_eta;
                    if let (None, Some(j)) = (block.sd, term.sigma) {
                        by_sigma[j] += weights[s] * scored.by_scale * block.times * sd / total;
                    }
                }
            }
        }
        if !self.latent.is_empty() {
            let (_, constant_by_sigma) = self.integrate(sigma, ws, true);
            let latent = ws.latent.get();
            for (group, &stands) in self.latent.iter().zip(&latent.stands) {
                let by_scale = latent.pull(stands, ws.eta.row(group.at), weights, ws.eta_bar.row_mut(group.at));
                if term.field.is_some() {
                    latent.pull_errors(stands.0, weights, ws.errors_bar.row_mut(group.at));
                }
                if let Some(j) = term.sigma {
                    by_sigma[j] += by_scale;
                }
            }
            if let Some(j) = term.sigma {
                by_sigma[j] += weights.iter().sum::<f64>() * constant_by_sigma;
            }
        }
        ws.eta_bar.data_mut().iter_mut().for_each(|bar| *bar *= term.affine.1);
    }

    /// Adds the derivatives by the unknowns that go through values of the surrogate.
    fn pull_eta(&self, ws: &mut OutputWorkspace, by_omega: &mut [f64]) {
        let term = &self.term;
        if !self.points.is_empty() {
            ws.x_bar.reshape(self.points.len(), ws.x.cols());
            ws.x_bar.data_mut().fill(0.0);
            self.surrogate().pull_to_inputs(&ws.x, &term.coefficients, &ws.eta_bar, &mut ws.x_bar, &mut ws.scratch);
            if let Some(field) = &term.field {
                field.pull_to_inputs(&ws.x, &term.coefficients, &ws.errors_bar, &mut ws.x_bar, &mut ws.scratch);
            }
            for i in 0..ws.x_bar.rows() {
                for (by, bar) in by_omega.iter_mut().zip(ws.x_bar.row(i)) {
                    *by += bar;
                }
            }
        }
    }
}
