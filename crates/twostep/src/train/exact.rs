//! The exact T-step of a surrogate that is linear in its coefficients, with normal priors and (log-)normal error:
//! `c | sigma_A` is normal, and sigma_A is one-dimensional quadrature.

use super::{LeaveOneOut, PROBABILITIES, ParameterSummary};
use crate::error::{Error, Result};
use crate::kernels::mixture::Mixture;
use crate::matrix::{Matrix, cholesky, in_triangle, solve_lower, solve_lower_transposed};
use crate::mcmc::quadrature::{self, Axis, Components, NODES};
use crate::monitor::Proceed;
use crate::prior::Marginal;
use crate::special::normal_cdf;
use crate::stream::Stream;
use crate::surrogate::SigmaA;
use faer::{Mat, Side};
use rand::RngExt;
use rand_distr::StandardNormal;
use rayon::prelude::*;

/// `z_i ~ N(features_i c, sigma_A^2 + sigma_S,i^2)`, `c_p ~ N(mean_p, sd_p^2)`.
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
struct Conditional {
    mean: Vec<f64>,
    /// Lower triangle of the Cholesky factor of the precision.
    factor: Vec<f64>,
    /// `log p(z | sigma_A)`.
    log_marginal: f64,
}

/// The exact T-posterior: a mixture of normals over the quadrature nodes of sigma_A.
pub(super) struct Exact {
    model: LinearModel,
    /// sigma_A and its weight.
    nodes: Vec<(f64, f64)>,
    grid: Option<quadrature::Grid>,
}

impl LinearModel {
    fn condition(&self, sigma_a: f64) -> Option<Conditional> {
        let (n, p) = (self.features.rows(), self.features.cols());
        let variance: Vec<f64> = self.sigma_s.iter().map(|s| s * s + sigma_a * sigma_a).collect();
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
        Some(Conditional { mean, factor, log_marginal })
    }

    /// Mean and sd of each of these rows by the coefficients that the other rows give, and `log p(rows | others)` up to a
    /// constant.
    ///
    /// With residuals r and leverages H in units of the rows' sds, the rows lie `(I - H)^-1 r` from their prediction, whose
    /// covariance is `(I - H)^-1`.
    fn without(&self, rows: &[usize], conditional: &Conditional, sigma_a: f64) -> (Vec<(f64, f64)>, f64) {
        let sd: Vec<f64> = rows.iter().map(|&i| self.sigma_s[i].hypot(sigma_a)).collect();
        let half = |(&i, sd): (&usize, &f64)| {
            let mut half: Vec<f64> = self.features.row(i).iter().map(|f| f / sd).collect();
            solve_lower(&conditional.factor, &mut half);
            half
        };
        let halves: Vec<Vec<f64>> = rows.iter().zip(&sd).map(half).collect();
        // Bounded away from zero because the prior is proper.
        let free = |(a, b): (usize, usize)| {
            let leverage = dot(&halves[a], &halves[b]);
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

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The posterior of `log sigma_A`, for the quadrature.
struct LogSigma<'a> {
    model: &'a LinearModel,
    prior: &'a Marginal,
    axes: [Axis; 1],
}

impl Components for LogSigma<'_> {
    type Work = ();

    fn axes(&self) -> &[Axis] {
        &self.axes
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
            let marginal = self.model.condition(u.exp()).map_or(f64::NEG_INFINITY, |c| c.log_marginal);
            *out = marginal + self.prior.log_density(u.exp()) + u;
        }
    }
}

impl Exact {
    pub(super) fn new(model: LinearModel, proceed: Proceed<'_>) -> Result<Self> {
        let (nodes, grid) = match &model.sigma_a {
            SigmaA::Fixed(sigma_a) => (vec![(*sigma_a, 1.0)], None),
            SigmaA::Prior(prior) => {
                let (lower, upper) = prior.support();
                // From six decades below the outputs' own size (the precision matrix loses as many digits squared) to where
                // neither prior nor data leave mass.
                let size = model.z.iter().fold(f64::MIN_POSITIVE, |m, z| m.max(z.abs()));
                let low = lower.max(1e-6 * size);
                let high = upper.min((10.0 * size).max(prior.quantile(1.0 - 1e-12))).max(low * 2.0);
                let components =
                    LogSigma { model: &model, prior, axes: [Axis::Interval { lower: low.ln(), upper: high.ln() }] };
                // With as many coefficients as runs the marginal likelihood is rounding noise at the smallest sigma_A, which no
                // refinement resolves and which holds no mass.
                let settings = quadrature::Settings { max_values: 2000, ..quadrature::Settings::default() };
                let refined = quadrature::refine(&components, &settings, proceed)?;
                let grid = refined.mixture(&[0.0]);
                let mut nodes = Vec::new();
                grid.for_each_node(|u, weight| nodes.push((u[0].exp(), weight)));
                // Nodes that cannot move a digit of the result.
                nodes.retain(|n| n.1 > 1e-15);
                (nodes, Some(grid))
            }
        };
        if model.condition(nodes[0].0).is_none() {
            return Err(Error::failed(
                "T-step",
                "the coefficients' precision matrix is not positive definite",
                "lower the degree or give the coefficients a narrower prior",
            ));
        }
        Ok(Self { model, nodes, grid })
    }

    /// `n` independent draws: coefficients in rows (P x n), and sigma_A.
    pub(super) fn draws(&self, n: usize, stream: Stream) -> (Matrix, Vec<f64>) {
        let sigma_a: Vec<f64> = match &self.grid {
            None => vec![self.nodes[0].0; n],
            Some(grid) => grid.draws(n, stream.named("sigma_a")).into_iter().map(|u| u[0].exp()).collect(),
        };
        let p = self.model.prior.len();
        let fixed = if self.grid.is_none() { self.model.condition(sigma_a[0]) } else { None };
        let columns: Vec<Vec<f64>> = (0..n)
            .into_par_iter()
            .map(|s| {
                let own;
                let conditional = match &fixed {
                    Some(conditional) => conditional,
                    None => {
                        own = self.model.condition(sigma_a[s]).expect("positive definite at the first node");
                        &own
                    }
                };
                let mut rng = stream.named("coefficients").at(s as u64).rng();
                let mut c: Vec<f64> = (0..p).map(|_| rng.sample(StandardNormal)).collect();
                solve_lower_transposed(&conditional.factor, &mut c);
                c.iter_mut().zip(&conditional.mean).for_each(|(c, m)| *c += m);
                c
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
        let conditional = self.model.condition(self.nodes[0].0).expect("checked on construction");
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
            solve_lower_transposed(&conditional.factor, &mut z);
            for j in 0..p {
                values[(j, s)] = conditional.mean[j] + z[j];
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
                let conditional = self.model.condition(sigma_a)?;
                let marginals = (0..p)
                    .map(|j| {
                        let mut unit = vec![0.0; p];
                        unit[j] = 1.0;
                        solve_lower(&conditional.factor, &mut unit);
                        (conditional.mean[j], dot(&unit, &unit).sqrt())
                    })
                    .collect();
                Some((weight, marginals))
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
        let n = self.model.z.len();
        // For each node and row: LOO mean, LOO sd, and the weight the node has without the run of that row.
        let per_node: Vec<Vec<(f64, f64, f64)>> = self
            .nodes
            .par_iter()
            .filter(|node| node.1 > 1e-12)
            .filter_map(|&(sigma_a, weight)| {
                let conditional = self.model.condition(sigma_a)?;
                let mut rows = vec![(f64::NAN, f64::NAN, f64::NEG_INFINITY); n];
                for run in &self.model.runs {
                    let (predicted, log_density) = self.model.without(run, &conditional, sigma_a);
                    for (&i, (mean, sd)) in run.iter().zip(predicted) {
                        rows[i] = (mean, sd, weight.ln() - log_density);
                    }
                }
                Some(rows)
            })
            .collect();
        let rows = (0..n)
            .map(|i| {
                let max = per_node.iter().fold(f64::NEG_INFINITY, |m, node| m.max(node[i].2));
                let weights: Vec<f64> = per_node.iter().map(|node| (node[i].2 - max).exp()).collect();
                let total: f64 = weights.iter().sum();
                let expect = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
                    per_node.iter().zip(&weights).map(|(node, w)| w / total * f(node[i].0, node[i].1)).sum()
                };
                let mean = expect(&|m, _| m);
                let variance = expect(&|m, s| s * s + (m - mean).powi(2));
                (mean, variance.sqrt(), expect(&|m, s| normal_cdf((self.model.z[i] - m) / s)))
            })
            .collect::<Vec<_>>();
        LeaveOneOut::new(&self.model.z, &rows, None)
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
    use super::*;

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
            let (found, log_density) = all.without(&run, &all.condition(sigma_a).unwrap(), sigma_a);
            let others: Vec<usize> = (0..n).filter(|i| !run.contains(i)).collect();
            let rest = model(&others).condition(sigma_a).unwrap();
            for (&i, (mean, sd)) in run.iter().zip(found) {
                let mut half = features.row(i).to_vec();
                solve_lower(&rest.factor, &mut half);
                let expected = (dot(&half, &half) + sigma_s[i].powi(2) + sigma_a * sigma_a).sqrt();
                // A few dozen roundings, in matrices whose condition is below ten.
                assert!((mean - dot(features.row(i), &rest.mean)).abs() < 1000.0 * f64::EPSILON, "{run:?}");
                assert!((sd - expected).abs() < 1000.0 * f64::EPSILON, "{run:?}");
            }
            // log p(rows | others) = log p(all) - log p(others), with 2 pi that the other formula leaves out.
            let whole = all.condition(sigma_a).unwrap().log_marginal;
            let constant = 0.5 * run.len() as f64 * (2.0 * std::f64::consts::PI).ln();
            let expected = whole - rest.log_marginal + constant;
            assert!((log_density - expected).abs() < 1000.0 * f64::EPSILON * whole.abs().max(1.0), "{run:?}");
        }
    }
}
