//! The exact T-step of a surrogate that is linear in its coefficients, with normal priors and (log-)normal error:
//! `c | sigma_A` is normal, and sigma_A is one-dimensional quadrature.

use super::{LeaveOneOut, PROBABILITIES, ParameterSummary, Predictions};
use crate::error::{Error, Result};
use crate::kernels::{self, mixture::Mixture};
use crate::matrix::{Matrix, cholesky, in_triangle, solve_lower, solve_lower_transposed};
use crate::mcmc::quadrature::{self, Axis, Components, NODES};
use crate::monitor::Proceed;
use crate::prior::Marginal;
use crate::stream::Stream;
use crate::surrogate::SigmaA;
use faer::{Mat, Side};
use rand::RngExt;
use rand_distr::StandardNormal;
use rayon::prelude::*;

/// `z_i ~ N(features_i c, sigma_A^2 + sigma_S,i^2)`, `c_p ~ N(mean_p, sd_p^2)`.
#[derive(Clone)]
pub(super) struct LinearModel {
    pub(super) features: Matrix,
    pub(super) z: Vec<f64>,
    pub(super) sigma_s: Vec<f64>,
    /// Rows of each run.
    pub(super) runs: Vec<Vec<usize>>,
    pub(super) prior: Vec<(f64, f64)>,
    pub(super) sigma_a: SigmaA,
}

/// `c | sigma_A, D_T` at one sigma_A.
pub(super) struct Conditional<'a> {
    pub(super) mean: Vec<f64>,
    root: Root<'a>,
    /// `log p(z | sigma_A)`.
    pub(super) log_marginal: f64,
}

/// A root of the covariance of `c | sigma_A`.
enum Root<'a> {
    /// Lower triangle of the Cholesky factor L of the precision: the root is `L^-T`.
    OfPrecision(Vec<f64>),
    /// The axes and the sd along each of them.
    Axes(&'a Axes, Vec<f64>),
}

impl Conditional<'_> {
    /// The coefficients that lie `u` standard deviations from the mean along each column of the root.
    pub(super) fn at(&self, mut u: Vec<f64>) -> Vec<f64> {
        match &self.root {
            Root::OfPrecision(factor) => solve_lower_transposed(factor, &mut u),
            Root::Axes(axes, sds) => {
                u.iter_mut().zip(sds).for_each(|(u, sd)| *u *= sd);
                u = axes.coefficients(&u);
            }
        }
        u.iter_mut().zip(&self.mean).for_each(|(c, mean)| *c += mean);
        u
    }

    fn sd(&self, j: usize) -> f64 {
        match &self.root {
            Root::OfPrecision(factor) => {
                let mut unit = vec![0.0; self.mean.len()];
                unit[j] = 1.0;
                solve_lower(factor, &mut unit);
                dot(&unit, &unit).sqrt()
            }
            Root::Axes(axes, sds) => {
                let parts = axes.directions.row(j).iter().zip(sds);
                parts.map(|(direction, sd)| (direction * sd).powi(2)).sum::<f64>().sqrt()
            }
        }
    }

    /// The root's columns in the features of row `i`: their products are covariances of predictions.
    pub(super) fn seen_by(&self, model: &LinearModel, i: usize) -> Vec<f64> {
        match &self.root {
            Root::OfPrecision(factor) => {
                let mut half = model.features.row(i).to_vec();
                solve_lower(factor, &mut half);
                half
            }
            Root::Axes(axes, sds) => axes.rows.row(i).iter().zip(sds).map(|(row, sd)| row * sd).collect(),
        }
    }
}

/// The principal axes of the features in units of the prior's sds, `features diag(sd) = U diag(s) V'`: where all rows have the
/// same sd they are independent for every sigma_A, so that one decomposition serves all.
struct Axes {
    /// `diag(sd) V`, P x P.
    directions: Matrix,
    /// `U diag(s)`: rows along the axes, those first that any row sees.
    rows: Matrix,
    /// Singular values, and `U' (z - features m)`, where m is the prior's mean.
    seen: Vec<(f64, f64)>,
    /// Sum of squares of what lies along none of the axes.
    rest: f64,
    sigma_s: f64,
}

impl Axes {
    /// None where rows differ in their sd, or the decomposition fails.
    fn new(model: &LinearModel) -> Option<Self> {
        let (n, p) = (model.features.rows(), model.features.cols());
        let sigma_s = *model.sigma_s.first()?;
        if model.sigma_s.iter().any(|sd| *sd != sigma_s) {
            return None;
        }
        let whitened = Mat::from_fn(n, p, |i, j| model.features[(i, j)] * model.prior[j].1);
        // All P axes are wanted, but no more than P columns of U.
        let svd = if n < p { whitened.svd() } else { whitened.thin_svd() }.ok()?;
        let (u, s, v) = (svd.U(), svd.S().column_vector(), svd.V());
        let prior_mean: Vec<f64> = model.prior.iter().map(|(mean, _)| *mean).collect();
        let mut rest: Vec<f64> = (0..n).map(|i| model.z[i] - dot(model.features.row(i), &prior_mean)).collect();
        let seen: Vec<(f64, f64)> = (0..n.min(p))
            .map(|k| {
                // One after the other, so that what is left has no part along any.
                let along: f64 = (0..n).map(|i| u[(i, k)] * rest[i]).sum();
                rest.iter_mut().enumerate().for_each(|(i, rest)| *rest -= u[(i, k)] * along);
                (s[k], along)
            })
            .collect();
        Some(Self {
            directions: Matrix::from_fn(p, p, |j, k| model.prior[j].1 * v[(j, k)]),
            rows: Matrix::from_fn(n, seen.len(), |i, k| u[(i, k)] * seen[k].0),
            rest: dot(&rest, &rest),
            seen,
            sigma_s,
        })
    }

    /// `sum_k along[k] directions_k`.
    fn coefficients(&self, along: &[f64]) -> Vec<f64> {
        (0..self.directions.rows()).map(|j| kernels::dot(&self.directions.row(j)[..along.len()], along)).collect()
    }

    fn variance(&self, sigma_a: f64) -> f64 {
        self.sigma_s * self.sigma_s + sigma_a * sigma_a
    }

    fn log_marginal(&self, sigma_a: f64) -> f64 {
        let v = self.variance(sigma_a);
        if !v.is_normal() {
            // No sd at all, or one whose square is none: where outputs are constant their size says nothing of it.
            return f64::NEG_INFINITY;
        }
        let n = self.rows.rows();
        // A logarithm of a product is cheaper than a sum of logarithms, as long as nothing overflows.
        const LARGE: f64 = 1e100;
        let (mut axes, mut product) = (0.0, 1.0);
        for (s, along) in &self.seen {
            let factor = 1.0 + s * s / v;
            product *= factor.min(LARGE);
            axes += along * along / (s * s + v) + if factor > LARGE { (factor / LARGE).ln() } else { 0.0 };
            if product > LARGE {
                (axes, product) = (axes + product.ln(), 1.0);
            }
        }
        -0.5 * (n as f64 * (2.0 * std::f64::consts::PI * v).ln() + axes + product.ln() + self.rest / v)
    }

    fn condition(&self, model: &LinearModel, sigma_a: f64) -> Conditional<'_> {
        let v = self.variance(sigma_a);
        let along: Vec<f64> = self.seen.iter().map(|(s, along)| s * along / (s * s + v)).collect();
        let mut mean = self.coefficients(&along);
        mean.iter_mut().zip(&model.prior).for_each(|(c, (prior, _))| *c += prior);
        // What no row sees is as wide as the prior.
        let mut sds = vec![1.0; mean.len()];
        sds.iter_mut().zip(&self.seen).for_each(|(sd, (s, _))| *sd = (v / (s * s + v)).sqrt());
        Conditional { mean, root: Root::Axes(self, sds), log_marginal: self.log_marginal(sigma_a) }
    }
}

/// The exact T-posterior: a mixture of normals over the quadrature nodes of sigma_A.
pub(super) struct Exact {
    model: LinearModel,
    /// For an unknown sigma_A, where all rows have the same sd.
    axes: Option<Axes>,
    /// sigma_A and its weight.
    nodes: Vec<(f64, f64)>,
    grid: Option<quadrature::Grid>,
}

impl LinearModel {
    /// Variances of all rows at one sigma_A.
    fn variances(&self, sigma_a: f64) -> Vec<f64> {
        self.sigma_s.iter().map(|s| s * s + sigma_a * sigma_a).collect()
    }

    /// The coefficients given the variance of every row.
    pub(super) fn condition(&self, variance: &[f64]) -> Option<Conditional<'static>> {
        let (n, p) = (self.features.rows(), self.features.cols());
        let weighted = Mat::from_fn(n, p, |i, j| self.features[(i, j)] / variance[i].sqrt());
        let mut precision = weighted.transpose() * &weighted;
        for (j, (_, sd)) in self.prior.iter().enumerate() {
            precision[(j, j)] += 1.0 / (sd * sd);
        }
        let llt = precision.llt(Side::Lower).ok()?;
        let factor: Vec<f64> = (0..p).flat_map(|i| (0..=i).map(move |j| (i, j))).map(|at| llt.L()[at]).collect();
        let mut mean: Vec<f64> = (0..p)
            .map(|j| {
                let data: f64 = (0..n).map(|i| self.features[(i, j)] * self.z[i] / variance[i]).sum();
                data + self.prior[j].0 / self.prior[j].1.powi(2)
            })
            .collect();
        solve_lower(&factor, &mut mean);
        solve_lower_transposed(&factor, &mut mean);
        // Residuals rather than differences of large sums of squares: sigma_A may be tiny.
        let misfit: f64 = (0..n).map(|i| (self.z[i] - dot(self.features.row(i), &mean)).powi(2) / variance[i]).sum();
        let shrink: f64 = self.prior.iter().zip(&mean).map(|((m, s), c)| ((c - m) / s).powi(2)).sum();
        let log_det: f64 = (0..p).map(|j| 2.0 * factor[in_triangle(j, j)].ln()).sum::<f64>()
            + self.prior.iter().map(|(_, s)| 2.0 * s.ln()).sum::<f64>();
        let log_two_pi = (2.0 * std::f64::consts::PI).ln();
        let log_marginal =
            -0.5 * (variance.iter().map(|v| v.ln() + log_two_pi).sum::<f64>() + log_det + misfit + shrink);
        Some(Conditional { mean, root: Root::OfPrecision(factor), log_marginal })
    }

    /// Mean and sd of each of these rows by the coefficients that the other rows give, and `log p(rows | others)` up to a
    /// constant.
    ///
    /// With residuals r and leverages H in units of the rows' sds, the rows lie `(I - H)^-1 r` from their prediction, whose
    /// covariance is `(I - H)^-1`.
    fn without(&self, rows: &[usize], conditional: &Conditional<'_>, variance: &[f64]) -> (Vec<(f64, f64)>, f64) {
        let sd: Vec<f64> = rows.iter().map(|&i| variance[i].sqrt()).collect();
        let halves: Vec<Vec<f64>> = rows.iter().map(|&i| conditional.seen_by(self, i)).collect();
        // Bounded away from zero because the prior is proper.
        let free = |(a, b): (usize, usize)| {
            let leverage = dot(&halves[a], &halves[b]) / (sd[a] * sd[b]);
            if a == b { (1.0 - leverage).max(f64::EPSILON) } else { -leverage }
        };
        let mut factor: Vec<f64> = (0..rows.len()).flat_map(|a| (0..=a).map(move |b| (a, b))).map(free).collect();
        if !cholesky(&mut factor, rows.len()) {
            return (vec![(f64::NAN, f64::NAN); rows.len()], f64::NEG_INFINITY);
        }
        let residual = |(&i, sd): (&usize, &f64)| (self.z[i] - dot(self.features.row(i), &conditional.mean)) / sd;
        let mut error: Vec<f64> = rows.iter().zip(&sd).map(residual).collect();
        solve_lower(&factor, &mut error);
        let distance = dot(&error, &error);
        solve_lower_transposed(&factor, &mut error);
        let variance = |a: usize| {
            let mut unit = vec![0.0; rows.len()];
            unit[a] = 1.0;
            solve_lower(&factor, &mut unit);
            dot(&unit, &unit)
        };
        let predicted = (0..rows.len()).map(|a| (self.z[rows[a]] - error[a] * sd[a], sd[a] * variance(a).sqrt()));
        let log_det: f64 = (0..rows.len()).map(|a| factor[in_triangle(a, a)].ln()).sum();
        let log_sd: f64 = sd.iter().map(|sd| sd.ln()).sum();
        (predicted.collect(), log_det - log_sd - 0.5 * distance)
    }
}

impl LinearModel {
    /// For each row its mean and sd without the run it is of, and the log-weight that a node with these coefficients and this one of its
    /// own has without that run.
    pub(super) fn leave_one_out(
        &self,
        conditional: &Conditional<'_>,
        variance: &[f64],
        log_weight: f64,
    ) -> Predictions {
        let mut rows = vec![(f64::NAN, f64::NAN, f64::NEG_INFINITY); self.z.len()];
        for run in &self.runs {
            let (predicted, log_density) = self.without(run, conditional, variance);
            for (&i, (mean, sd)) in run.iter().zip(predicted) {
                rows[i] = (mean, sd, log_weight - log_density);
            }
        }
        rows
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The posterior of `log sigma_A`, for the quadrature.
struct LogSigma<'a> {
    model: &'a LinearModel,
    axes: Option<&'a Axes>,
    prior: &'a Marginal,
    range: [Axis; 1],
}

impl LogSigma<'_> {
    fn log_marginal(&self, sigma_a: f64) -> f64 {
        match self.axes {
            Some(axes) => axes.log_marginal(sigma_a),
            None => {
                let conditional = self.model.condition(&self.model.variances(sigma_a));
                conditional.map_or(f64::NEG_INFINITY, |c| c.log_marginal)
            }
        }
    }
}

impl Components for LogSigma<'_> {
    type Work = ();

    fn axes(&self) -> &[Axis] {
        &self.range
    }

    fn len(&self) -> usize {
        1
    }

    fn importance(&self, _: &[f64]) -> Vec<f64> {
        vec![1.0]
    }

    fn work(&self) {}

    fn evaluate(&self, nodes: &[[f64; NODES]], (): &mut (), out: &mut [f64]) {
        for (out, &u) in out.iter_mut().zip(&nodes[0]) {
            *out = self.log_marginal(u.exp()) + self.prior.log_density(u.exp()) + u;
        }
    }
}

impl Exact {
    pub(super) fn new(model: LinearModel, proceed: Proceed<'_>) -> Result<Self> {
        let (axes, nodes, grid) = match &model.sigma_a {
            SigmaA::Fixed(sigma_a) => (None, vec![(*sigma_a, 1.0)], None),
            SigmaA::Prior(prior) => {
                let axes = Axes::new(&model);
                let (lower, upper) = prior.support();
                // From six decades below the outputs' own size (the precision matrix loses as many digits squared) to where
                // neither prior nor data leave mass.
                let size = model.z.iter().fold(f64::MIN_POSITIVE, |m, z| m.max(z.abs()));
                let low = lower.max(1e-6 * size);
                let high = upper.min((10.0 * size).max(prior.quantile(1.0 - 1e-12))).max(low * 2.0);
                let range = [Axis::Interval { lower: low.ln(), upper: high.ln() }];
                let components = LogSigma { model: &model, axes: axes.as_ref(), prior, range };
                // With as many coefficients as runs the marginal likelihood is rounding noise at the smallest sigma_A, which no
                // refinement resolves and which holds no mass.
                let settings = quadrature::Settings { max_values: 2000, ..quadrature::Settings::default() };
                let refined = quadrature::refine(&components, &settings, proceed)?;
                let grid = refined.mixture(&[0.0]);
                let mut nodes = Vec::new();
                grid.for_each_node(|u, weight| nodes.push((u[0].exp(), weight)));
                // Nodes that cannot move a digit of the result.
                nodes.retain(|n| n.1 > 1e-15);
                (axes, nodes, Some(grid))
            }
        };
        let exact = Self { model, axes, nodes, grid };
        if exact.condition(exact.nodes[0].0).is_none() {
            return Err(Error::failed(
                "T-step",
                "the coefficients' precision matrix is not positive definite",
                "lower the degree or give the coefficients a narrower prior",
            ));
        }
        Ok(exact)
    }

    fn condition(&self, sigma_a: f64) -> Option<Conditional<'_>> {
        match &self.axes {
            Some(axes) => Some(axes.condition(&self.model, sigma_a)),
            None => self.model.condition(&self.model.variances(sigma_a)),
        }
    }

    /// `n` independent draws: coefficients in rows (P x n), and sigma_A.
    pub(super) fn draws(&self, n: usize, stream: Stream) -> (Matrix, Vec<f64>) {
        let sigma_a: Vec<f64> = match &self.grid {
            None => vec![self.nodes[0].0; n],
            Some(grid) => grid.draws(n, stream.named("sigma_a")).into_iter().map(|u| u[0].exp()).collect(),
        };
        let p = self.model.prior.len();
        let fixed = if self.grid.is_none() { self.condition(sigma_a[0]) } else { None };
        let columns: Vec<Vec<f64>> = (0..n)
            .into_par_iter()
            .map(|s| {
                let own;
                let conditional = match &fixed {
                    Some(conditional) => conditional,
                    None => {
                        own = self.condition(sigma_a[s]).expect("positive definite at the first node");
                        &own
                    }
                };
                let mut rng = stream.named("coefficients").at(s as u64).rng();
                conditional.at((0..p).map(|_| rng.sample(StandardNormal)).collect())
            })
            .collect();
        (Matrix::from_fn(p, n, |j, s| columns[s][j]), sigma_a)
    }

    /// Equally spaced, weighted nodes of the T-posterior, about `n` in all, when sigma_A is known and P is 1 to 3.
    ///
    /// # Errors
    /// More dimensions than a tensor rule can cover.
    pub(super) fn quadrature_nodes(&self, n: usize) -> Result<(Matrix, Vec<f64>, Vec<f64>)> {
        let p = self.model.prior.len();
        if p > 3 || self.grid.is_some() {
            return Err(Error::invalid(
                "train.method",
                format!("nodes need 1 to 3 coefficients and a known sigma_a, this surrogate has {p} coefficients"),
                "use method = \"exact\" for random draws",
            ));
        }
        let conditional = self.condition(self.nodes[0].0).expect("checked on construction");
        // At 8 sd the normal density is 1e-14 of its top; odd, so that the mean is a node.
        const REACH: f64 = 8.0;
        let per_axis = ((n as f64).powf(1.0 / p as f64).round() as usize).max(3) | 1;
        let total = per_axis.pow(p as u32);
        let step = 2.0 * REACH / (per_axis - 1) as f64;
        let mut values = Matrix::zeros(p, total);
        let mut log_weights = vec![0.0; total];
        for s in 0..total {
            let mut z: Vec<f64> =
                (0..p).map(|d| -REACH + step * ((s / per_axis.pow(d as u32)) % per_axis) as f64).collect();
            log_weights[s] = -0.5 * z.iter().map(|v| v * v).sum::<f64>();
            rotate(&mut z);
            for (j, c) in conditional.at(z).into_iter().enumerate() {
                values[(j, s)] = c;
            }
        }
        Ok((values, vec![self.nodes[0].0; total], log_weights))
    }

    /// Exact moments and quantiles of every coefficient and of sigma_A, in the order of the draws.
    pub(super) fn summary(&self, names: &[String]) -> Vec<ParameterSummary> {
        let p = self.model.prior.len();
        let conditionals: Vec<(f64, Vec<(f64, f64)>)> = self
            .nodes
            .par_iter()
            .filter(|node| node.1 > 1e-12)
            .filter_map(|&(sigma_a, weight)| {
                let conditional = self.condition(sigma_a)?;
                Some((weight, (0..p).map(|j| (conditional.mean[j], conditional.sd(j))).collect()))
            })
            .collect();
        let total: f64 = conditionals.iter().map(|(weight, _)| weight).sum();
        let mut out: Vec<ParameterSummary> = (0..p)
            .into_par_iter()
            .map(|j| {
                let mixture = Mixture {
                    weights: conditionals.iter().map(|(weight, _)| weight / total).collect(),
                    means: conditionals.iter().map(|(_, marginals)| marginals[j].0).collect(),
                    inverse_sds: conditionals.iter().map(|(_, marginals)| marginals[j].1.recip()).collect(),
                };
                mixture_summary(&names[j], &mixture)
            })
            .collect();
        out.push(match &self.grid {
            None => ParameterSummary::constant("sigma_a", self.nodes[0].0),
            Some(grid) => {
                let mean: f64 = self.nodes.iter().map(|(s, w)| s * w).sum();
                let variance: f64 = self.nodes.iter().map(|(s, w)| (s - mean).powi(2) * w).sum();
                let marginal = grid.marginal(0);
                ParameterSummary {
                    name: "sigma_a".into(),
                    mean,
                    sd: variance.sqrt(),
                    quantiles: PROBABILITIES.map(|q| marginal.quantile(q).exp()),
                    r_hat: None,
                    ess_bulk: None,
                    mcse_mean: None,
                }
            }
        });
        out
    }

    /// Exact leave-one-run-out predictions of every row.
    pub(super) fn leave_one_out(&self) -> LeaveOneOut {
        let per_node: Vec<Predictions> = self
            .nodes
            .par_iter()
            .filter(|node| node.1 > 1e-12)
            .filter_map(|&(sigma_a, weight)| {
                let conditional = self.condition(sigma_a)?;
                Some(self.model.leave_one_out(&conditional, &self.model.variances(sigma_a), weight.ln()))
            })
            .collect();
        LeaveOneOut::of_nodes(&self.model.z, &per_node)
    }
}

/// Turns a lattice point so that no coefficient, nor a simple combination of them, takes only a few values: a likelihood that is
/// sharp in one direction then meets all nodes, not one per lattice line. The golden slope is the hardest to approximate by a
/// ratio of small integers.
fn rotate(z: &mut [f64]) {
    let slope = 0.5 * (5.0_f64.sqrt() - 1.0);
    let cos = 1.0 / slope.hypot(1.0);
    let sin = slope * cos;
    for pair in 1..z.len() {
        (z[pair - 1], z[pair]) = (cos * z[pair - 1] - sin * z[pair], sin * z[pair - 1] + cos * z[pair]);
    }
}

fn mixture_summary(name: &str, mixture: &Mixture) -> ParameterSummary {
    let moments = mixture.moments();
    ParameterSummary {
        name: name.into(),
        mean: moments.0,
        sd: moments.1,
        quantiles: PROBABILITIES.map(|p| mixture.quantile(p, moments)),
        r_hat: None,
        ess_bulk: None,
        mcse_mean: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// With more coefficients than rows and fewer, and two coefficients that no row can tell apart.
    #[test]
    fn axes_for_all_sigma_a_condition_as_a_factor_for_each() {
        for (n, p) in [(4, 7), (9, 5), (6, 6)] {
            let x = |i: usize| 2.0 * i as f64 / n as f64 - 0.9;
            let features = Matrix::from_fn(n, p, |i, j| if j == 1 { 1.0 } else { x(i).powi(j as i32) });
            let mut model = LinearModel {
                z: (0..n).map(|i| (1.3 * i as f64).sin()).collect(),
                sigma_s: vec![0.1; n],
                runs: Vec::new(),
                prior: (0..p).map(|j| (0.1 * j as f64, 1.0 + 0.2 * j as f64)).collect(),
                sigma_a: SigmaA::Fixed(0.0),
                features,
            };
            let axes = Axes::new(&model).unwrap();
            for sigma_a in [0.0, 0.02, 0.5, 30.0] {
                let variances = model.variances(sigma_a);
                let (found, expected) = (axes.condition(&model, sigma_a), model.condition(&variances).unwrap());
                // The precision's condition: largest prior variance times what the data add, over the least of both.
                let norm: f64 = model.features.data().iter().map(|f| f * f).sum();
                let condition = 2.2_f64.powi(2) * (1.0 + norm / axes.variance(sigma_a));
                let bound = 16.0 * (n * p) as f64 * f64::EPSILON * condition;
                let size = expected.log_marginal.abs().max(1.0);
                assert!((found.log_marginal - expected.log_marginal).abs() <= bound * size, "{n} {p} {sigma_a}");
                for j in 0..p {
                    assert!((found.mean[j] - expected.mean[j]).abs() <= bound, "{n} {p} {sigma_a} {j}");
                    assert!((found.sd(j) - expected.sd(j)).abs() <= bound, "{n} {p} {sigma_a} {j}");
                }
                for (a, b) in (0..n).flat_map(|a| (0..=a).map(move |b| (a, b))) {
                    let covariance = |of: &Conditional<'_>| dot(&of.seen_by(&model, a), &of.seen_by(&model, b));
                    assert!((covariance(&found) - covariance(&expected)).abs() <= bound, "{n} {p} {sigma_a} {a} {b}");
                }
                // Columns of the root: their squares sum to the variances.
                let column = |k: usize| found.at((0..p).map(|l| f64::from(u8::from(l == k))).collect());
                for j in 0..p {
                    let variance: f64 = (0..p).map(|k| (column(k)[j] - found.mean[j]).powi(2)).sum();
                    assert!((variance - found.sd(j).powi(2)).abs() <= bound, "{n} {p} {sigma_a} {j}");
                }
            }
            model.sigma_s[1] = 0.2;
            assert!(Axes::new(&model).is_none());
        }
    }

    /// Means and sds of rows by a model that was never told of them.
    #[test]
    fn a_run_is_left_out_with_all_its_rows() {
        let (n, sigma_a) = (7, 0.3);
        let features = Matrix::from_fn(n, 2, |i, j| (0.4 * i as f64 - 1.0).powi(j as i32));
        let z: Vec<f64> = (0..n).map(|i| (1.3 * i as f64).sin()).collect();
        let sigma_s: Vec<f64> = (0..n).map(|i| 0.1 * (i % 3) as f64).collect();
        let model = |rows: &[usize]| LinearModel {
            features: features.select_rows(rows),
            z: rows.iter().map(|&i| z[i]).collect(),
            sigma_s: rows.iter().map(|&i| sigma_s[i]).collect(),
            runs: Vec::new(),
            prior: vec![(0.2, 1.0), (-0.1, 2.0)],
            sigma_a: SigmaA::Fixed(sigma_a),
        };
        let all = model(&(0..n).collect::<Vec<_>>());
        for run in [vec![2], vec![0, 1, 4], vec![3, 5, 6]] {
            let variances = all.variances(sigma_a);
            let (found, log_density) = all.without(&run, &all.condition(&variances).unwrap(), &variances);
            let others: Vec<usize> = (0..n).filter(|i| !run.contains(i)).collect();
            let rest = model(&others);
            let rest = rest.condition(&rest.variances(sigma_a)).unwrap();
            for (&i, (mean, sd)) in run.iter().zip(found) {
                let half = rest.seen_by(&all, i);
                let expected = (dot(&half, &half) + sigma_s[i].powi(2) + sigma_a * sigma_a).sqrt();
                // A few dozen roundings, in matrices whose condition is below ten.
                assert!((mean - dot(features.row(i), &rest.mean)).abs() < 1000.0 * f64::EPSILON, "{run:?}");
                assert!((sd - expected).abs() < 1000.0 * f64::EPSILON, "{run:?}");
            }
            // log p(rows | others) = log p(all) - log p(others), with 2 pi that the other formula leaves out.
            let whole = all.condition(&variances).unwrap().log_marginal;
            let constant = 0.5 * run.len() as f64 * (2.0 * std::f64::consts::PI).ln();
            let expected = whole - rest.log_marginal + constant;
            assert!((log_density - expected).abs() < 1000.0 * f64::EPSILON * whole.abs().max(1.0), "{run:?}");
        }
    }
}
