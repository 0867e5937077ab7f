//! The T-step of a Gaussian process: hyper-parameters by importance sampling around the modes of their posterior and from their prior, then
//! functions by pathwise conditioning.

use super::exact::dot;
use super::{LeaveOneOut, Predictions};
use crate::error::{Error, Result};
use crate::matrix::Matrix;
use crate::mcmc::{Bayes, psis, smc};
use crate::monitor::Proceed;
use crate::prior::Marginal;
use crate::simulate::design::{self, Method};
use crate::special::{gauss_legendre, ln_gamma, log_sum_exp};
use crate::stream::Stream;
use crate::surrogate::{Conditioned, GaussianProcess, GpRows, Hyper, SigmaA, factorise, legendre};
use faer::Mat;
use faer::linalg::solvers::{DenseSolveCore, Llt, Solve};
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use rand_distr::StandardNormal;
use rayon::prelude::*;

/// Draws of the hyper-parameters that all T-draws share: each costs a factor of the covariance of all rows.
const NODES: usize = 32;
/// Rows among which modes are looked for; more are used only to climb the last steps.
const ENOUGH_ROWS: usize = 256;
/// Points of the prior at which the search begins, and how many of the best are followed.
const SEARCH: usize = 32;
const FOLLOWED: usize = 3;
/// Steps uphill.
const CLIMB: usize = 40;
/// Modes closer than this along every axis are one.
const SAME: f64 = 0.2;
/// Widest sd of a proposal on the real line: where the data say nothing, the prior's share of the proposals covers the rest.
const WIDEST: f64 = 1.5;
/// Share of the proposals that come from the prior.
const FROM_PRIOR: f64 = 0.25;
/// Degrees of freedom of the proposals around a mode.
const DEGREES: f64 = 5.0;
/// Pareto shape up to which importance weights are reliable.
pub(super) const RELIABLE: f64 = 0.7;
/// What is added to the diagonal of correlations at the nodes of a function that is drawn from the prior.
const JITTER: f64 = 1e-10;
/// Values of tables that are made at a time.
const BLOCK: usize = 1 << 22;

/// A Gaussian process with its hyper-parameters drawn.
pub(super) struct GpFit<'a> {
    gp: &'a GaussianProcess,
    rows: &'a GpRows,
    nodes: Vec<Conditioned>,
    /// Shape of the tail of the importance weights; none of tempered runs.
    pub(super) k_hat: Option<f64>,
}

/// The posterior of the hyper-parameters, the trend integrated out.
struct HyperPosterior<'a> {
    gp: &'a GaussianProcess,
    rows: &'a GpRows,
    /// Priors of the length scales, of the sd and, where it is unknown, of the nugget.
    priors: Vec<Marginal>,
    known_nugget: Option<f64>,
}

impl<'a> HyperPosterior<'a> {
    fn new(gp: &'a GaussianProcess, rows: &'a GpRows, sigma_a: &SigmaA) -> Self {
        let mut priors = gp.hyper_priors().to_vec();
        let known_nugget = match sigma_a {
            SigmaA::Fixed(known) => Some(*known),
            SigmaA::Prior(prior) => {
                priors.push(prior.clone());
                None
            }
        };
        Self { gp, rows, priors, known_nugget }
    }

    fn hyper(&self, z: &[f64]) -> Hyper {
        let mut x: Vec<f64> = self.priors.iter().zip(z).map(|(prior, &z)| prior.from_real(z).x).collect();
        let nugget = self.known_nugget.unwrap_or_else(|| x.pop().expect("an unknown nugget has a prior"));
        let sd = x.pop().expect("the sd has a prior");
        Hyper { lengths: x, sd, nugget }
    }

    fn log_prior(&self, z: &[f64]) -> f64 {
        self.priors.iter().zip(z).map(|(prior, &z)| prior.score_real(z).2).sum()
    }

    fn log_likelihood(&self, z: &[f64]) -> f64 {
        self.gp.condition(self.rows, self.hyper(z)).map_or(f64::NEG_INFINITY, |at| at.log_marginal)
    }

    fn log_density(&self, z: &[f64]) -> f64 {
        self.log_prior(z) + self.log_likelihood(z)
    }

    /// Log prior and log likelihood with their gradients.
    fn scores(&self, z: &[f64], prior_gradient: &mut [f64], likelihood_gradient: &mut [f64]) -> (f64, f64) {
        let mut log_prior = 0.0;
        let mut by_log = Vec::with_capacity(z.len());
        for ((prior, &z), gradient) in self.priors.iter().zip(z).zip(prior_gradient) {
            let (x, dx_dz, density, by_z) = prior.score_real(z);
            by_log.push(dx_dz / x);
            log_prior += density;
            *gradient = by_z;
        }
        likelihood_gradient.fill(0.0);
        let Some(at) = self.gp.condition(self.rows, self.hyper(z)) else { return (log_prior, f64::NEG_INFINITY) };
        let gradient = self.gp.log_gradient(self.rows, &at);
        for ((out, by_log), g) in likelihood_gradient.iter_mut().zip(by_log).zip(gradient) {
            *out = by_log * g;
        }
        (log_prior, at.log_marginal)
    }

    /// Log density and its gradient.
    fn score(&self, z: &[f64]) -> (f64, Vec<f64>) {
        let (mut of_prior, mut of_likelihood) = (vec![0.0; z.len()], vec![0.0; z.len()]);
        let (prior, likelihood) = self.scores(z, &mut of_prior, &mut of_likelihood);
        (prior + likelihood, of_prior.iter().zip(&of_likelihood).map(|(a, b)| a + b).collect())
    }

    /// Uphill from a point by a quasi-Newton method.
    fn climb(&self, start: Vec<f64>, proceed: Proceed<'_>) -> Result<(f64, Vec<f64>)> {
        let n = start.len();
        let identity = || Matrix::from_fn(n, n, |i, j| f64::from(u8::from(i == j)));
        let (mut z, mut inverse) = (start, identity());
        let (mut value, mut gradient) = self.score(&z);
        for _ in 0..CLIMB {
            if !proceed() {
                return Err(Error::Interrupted);
            }
            let along = |inverse: &Matrix| (0..n).map(|i| dot(inverse.row(i), &gradient)).collect::<Vec<f64>>();
            let mut direction = along(&inverse);
            if dot(&direction, &gradient) <= 0.0 {
                inverse = identity();
                direction.clone_from(&gradient);
            }
            // No further than a factor of e at a time.
            let longest = direction.iter().fold(1.0, |m: f64, d| m.max(d.abs()));
            direction.iter_mut().for_each(|d| *d /= longest);
            let slope = dot(&direction, &gradient);
            let step = |length: f64| z.iter().zip(&direction).map(|(z, d)| z + length * d).collect::<Vec<f64>>();
            let lengths = (0..12).map(|halvings| 0.5_f64.powi(halvings));
            let uphill = lengths.map(|length| (length, step(length))).find_map(|(length, next)| {
                let found = self.score(&next);
                (found.0 >= value + 1e-4 * length * slope).then_some((next, found))
            });
            let Some((next, (new_value, new_gradient))) = uphill else { break };
            let s: Vec<f64> = next.iter().zip(&z).map(|(a, b)| a - b).collect();
            let y: Vec<f64> = gradient.iter().zip(&new_gradient).map(|(a, b)| a - b).collect();
            let gain = new_value - value;
            (z, value, gradient) = (next, new_value, new_gradient);
            let curvature = dot(&s, &y);
            if curvature > 1e-12 {
                let hy: Vec<f64> = (0..n).map(|i| dot(inverse.row(i), &y)).collect();
                let scale = (1.0 + dot(&y, &hy) / curvature) / curvature;
                inverse = Matrix::from_fn(n, n, |i, j| {
                    inverse[(i, j)] + scale * s[i] * s[j] - (hy[i] * s[j] + s[i] * hy[j]) / curvature
                });
            }
            // A proposal need not know its mode better.
            if gain < 1e-4 {
                break;
            }
        }
        Ok((value, z))
    }

    /// A proposal around a mode: its axes in sds.
    fn around(&self, mode: Vec<f64>) -> Proposal {
        const STEP: f64 = 1e-3;
        let n = mode.len();
        let moved = |d: usize, step: f64| {
            let mut z = mode.clone();
            z[d] += step;
            self.score(&z).1
        };
        let rows: Vec<(Vec<f64>, Vec<f64>)> = (0..n).map(|d| (moved(d, STEP), moved(d, -STEP))).collect();
        let second = |i: usize, j: usize| (rows[i].0[j] - rows[i].1[j]) / (2.0 * STEP);
        let curvature = Mat::from_fn(n, n, |i, j| -0.5 * (second(i, j) + second(j, i)));
        let identity = || (Matrix::from_fn(n, n, |i, j| f64::from(u8::from(i == j))), vec![WIDEST.recip().powi(2); n]);
        let (axes, values) = match curvature.self_adjoint_eigen(faer::Side::Lower) {
            Ok(eigen) => {
                let (vectors, values) = (eigen.U(), eigen.S().column_vector());
                (Matrix::from_fn(n, n, |i, j| vectors[(i, j)]), (0..n).map(|j| values[j]).collect())
            }
            // Where there is no curvature to be had.
            Err(_) => identity(),
        };
        let sds = values.iter().map(|value| value.max(WIDEST.powi(-2)).sqrt().recip()).collect();
        Proposal { centre: mode, axes, sds }
    }
}

impl Bayes for HyperPosterior<'_> {
    fn dim(&self) -> usize {
        self.priors.len()
    }

    fn parts(&mut self, z: &[f64], prior_gradient: &mut [f64], likelihood_gradient: &mut [f64]) -> (f64, f64) {
        self.scores(z, prior_gradient, likelihood_gradient)
    }

    fn sample_prior(&mut self, rng: &mut ChaCha8Rng, z: &mut [f64]) {
        z.iter_mut().zip(&self.priors).for_each(|(z, prior)| *z = prior.to_real(prior.sample(rng)));
    }
}

/// A multivariate t around a mode.
struct Proposal {
    centre: Vec<f64>,
    /// Axes in columns.
    axes: Matrix,
    sds: Vec<f64>,
}

impl Proposal {
    fn draw(&self, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let chi_square: f64 = (0..DEGREES as usize).map(|_| rng.sample::<f64, _>(StandardNormal).powi(2)).sum();
        let stretch = (DEGREES / chi_square).sqrt();
        let along: Vec<f64> = self.sds.iter().map(|sd| stretch * sd * rng.sample::<f64, _>(StandardNormal)).collect();
        (0..along.len()).map(|i| self.centre[i] + dot(self.axes.row(i), &along)).collect()
    }

    fn log_density(&self, z: &[f64]) -> f64 {
        let n = z.len();
        let away: Vec<f64> = z.iter().zip(&self.centre).map(|(z, c)| z - c).collect();
        let along = |j: usize| (0..n).map(|i| self.axes[(i, j)] * away[i]).sum::<f64>() / self.sds[j];
        let distance: f64 = (0..n).map(|j| along(j).powi(2)).sum();
        let (half, volume) = (0.5 * (DEGREES + n as f64), self.sds.iter().map(|sd| sd.ln()).sum::<f64>());
        ln_gamma(half)
            - ln_gamma(0.5 * DEGREES)
            - 0.5 * n as f64 * (DEGREES * std::f64::consts::PI).ln()
            - volume
            - half * (distance / DEGREES).ln_1p()
    }
}

/// Importance draws by the number of rows: a factor of the covariance each.
fn n_proposals(rows: usize) -> usize {
    if rows <= ENOUGH_ROWS { 512 } else { 128 }
}

impl<'a> GpFit<'a> {
    /// Draws the hyper-parameters.
    ///
    /// # Errors
    /// Rows that no hyper-parameters explain, or an interruption.
    pub(super) fn new(
        gp: &'a GaussianProcess,
        sigma_a: &SigmaA,
        name: &str,
        stream: Stream,
        proceed: Proceed<'_>,
    ) -> Result<Self> {
        let rows = gp.rows().expect("a process is trained with rows");
        let posterior = HyperPosterior::new(gp, rows, sigma_a);
        let nothing = || {
            Error::failed(
                format!("T-step of `{name}`"),
                "the covariance of the runs is not positive definite, whatever the hyper-parameters",
                "give sigma_a a prior or a larger value",
            )
        };
        let few = (rows.len() > ENOUGH_ROWS).then(|| gp.some_rows(ENOUGH_ROWS));
        let searched = few.as_ref().map_or(rows, |few| few.rows().expect("some of the rows"));
        let mut modes = modes(&HyperPosterior::new(gp, searched, sigma_a), stream.named("search"), proceed)?;
        if few.is_some() {
            // So many rows leave no doubt between modes, and each would take seconds to climb.
            modes.truncate(1);
        }
        if modes.is_empty() {
            return Err(nothing());
        }
        let mut proposals = Vec::new();
        for (value, mode) in modes {
            let (value, mode) = if few.is_some() { posterior.climb(mode, proceed)? } else { (value, mode) };
            let proposal = posterior.around(mode);
            let volume: f64 = proposal.sds.iter().map(|sd| sd.ln()).sum();
            proposals.push((value + volume, proposal));
        }
        let (draws, weights, k_hat) = importance(&posterior, &proposals, stream.named("importance"), proceed)?;
        let (draws, weights, k_hat) = if k_hat <= RELIABLE || rows.len() > ENOUGH_ROWS {
            (draws, weights, Some(k_hat))
        } else {
            // Weights that are not to be trusted: tempered from the prior, which costs more and looks everywhere.
            let mut posterior = HyperPosterior::new(gp, rows, sigma_a);
            let runs = smc::sample(&mut posterior, &smc::Settings::default(), stream.named("smc"), proceed)?;
            let weights = vec![1.0; runs.draws.len()];
            (runs.draws, weights, None)
        };
        let chosen = spread_nodes(&draws, &weights);
        let nodes = chosen.into_par_iter().map(|i| proceed().then(|| gp.condition(rows, posterior.hyper(&draws[i]))));
        let nodes: Vec<Option<Conditioned>> = nodes.collect::<Option<_>>().ok_or(Error::Interrupted)?;
        let nodes: Vec<Conditioned> = nodes.into_iter().flatten().collect();
        if nodes.is_empty() {
            return Err(nothing());
        }
        Ok(Self { gp, rows, nodes, k_hat })
    }

    /// The largest share of the mean diagonal that had to be added to a covariance.
    pub(super) fn jitter(&self) -> f64 {
        self.nodes.iter().map(|node| node.jitter).fold(0.0, f64::max)
    }

    /// `n` functions in the carrier with their hyper-parameters in rows, and the nugget of each.
    pub(super) fn draws(&self, n: usize, stream: Stream, proceed: Proceed<'_>) -> Result<(Matrix, Vec<f64>)> {
        let n_nodes = self.nodes.len();
        let columns: Vec<Vec<Vec<f64>>> = (self.nodes.par_iter().enumerate())
            .map(|(h, node)| {
                // One node after the other, so that the first draws are of all of them.
                let numbers: Vec<u64> = (h..n).step_by(n_nodes).map(|s| s as u64).collect();
                proceed()
                    .then(|| if numbers.is_empty() { Some(Vec::new()) } else { self.functions(node, &numbers, stream) })
            })
            .collect::<Option<Option<_>>>()
            .ok_or(Error::Interrupted)?
            .ok_or_else(|| Error::failed("T-step", "a function could not be drawn", "give sigma_a a larger value"))?;
        let column = |s: usize| &columns[s % n_nodes][s / n_nodes];
        let terms = self.gp.carrier().len();
        let coefficients = Matrix::from_fn(terms + self.gp.hyper_priors().len(), n, |p, s| {
            let hyper = &self.nodes[s % n_nodes].hyper;
            match p.checked_sub(terms) {
                None => column(s)[p],
                Some(d) => hyper.lengths.get(d).copied().unwrap_or(hyper.sd),
            }
        });
        Ok((coefficients, (0..n).map(|s| self.nodes[s % n_nodes].hyper.nugget).collect()))
    }

    /// Functions of one node, each from a stream of its number, as coefficients of the carrier.
    ///
    /// A function `g` of the prior is drawn at the nodes of a tensor grid, where the covariance is a product over the inputs, then at the
    /// training rows given these, together with a trend `b` and errors `e`. With `v = C^-1 (z - trend b - g - e)`, `b + Lambda trend' v` and
    /// `g + tau^2 k v` are those of the posterior.
    fn functions(&self, node: &Conditioned, numbers: &[u64], stream: Stream) -> Option<Vec<Vec<f64>>> {
        let (rows, hyper) = (self.rows, &node.hyper);
        let grid = TensorGrid::new(self.gp, hyper, rows)?;
        let (n, n_draws, n_grid) = (rows.len(), numbers.len(), grid.len());
        let prior = self.gp.trend_prior();
        let mut rngs: Vec<_> = numbers.iter().map(|&s| stream.at(s).rng()).collect();
        let mut normal = |count: usize| {
            let mut out = Matrix::zeros(count, n_draws);
            for (s, rng) in rngs.iter_mut().enumerate() {
                (0..count).for_each(|i| out[(i, s)] = rng.sample(StandardNormal));
            }
            out
        };
        let mut g = normal(n_grid);
        g.data_mut().iter_mut().for_each(|g| *g *= hyper.sd);
        let g = along_axes(&grid.factors, g);
        let (own, errors) = (normal(n), normal(n));
        let mut b = normal(prior.len());
        for (p, (_, sd)) in prior.iter().enumerate() {
            b.row_mut(p).iter_mut().for_each(|b| *b *= sd);
        }
        // What the rows are, less what this function of the prior is there.
        let mut rest = Mat::from_fn(n, n_draws, |i, s| {
            let trend: f64 = rows.trend().row(i).iter().enumerate().map(|(p, f)| f * b[(p, s)]).sum();
            let noise = (rows.sigma_s[i].powi(2) + hyper.nugget.powi(2)).sqrt();
            let local: f64 = (0..=i).map(|j| grid.local[(i, j)] * own[(j, s)]).sum();
            rows.z[i] - trend - hyper.sd * local - noise * errors[(i, s)]
        });
        let mut product = Matrix::default();
        for block in grid.blocks() {
            let here =
                Matrix::from_rows(block.len(), n_draws, g.data()[block.start * n_draws..block.end * n_draws].to_vec());
            product.reshape(n, n_draws);
            product.data_mut().fill(0.0);
            product.add_transposed_product(&grid.table(&grid.weights, block), &here);
            for i in 0..n {
                (0..n_draws).for_each(|s| rest[(i, s)] -= product[(i, s)]);
            }
        }
        let v = node.solve(&rest);
        let v = Matrix::from_fn(n, n_draws, |i, s| v[(i, s)]);
        let mut g = g;
        for block in grid.blocks() {
            product.set_product(&grid.table(&grid.correlations, block.clone()), &v);
            let here = &mut g.data_mut()[block.start * n_draws..block.end * n_draws];
            here.iter_mut().zip(product.data()).for_each(|(g, update)| *g += hyper.sd * hyper.sd * update);
        }
        let projected = along_axes(&vec![grid.axes.projection.clone(); grid.axes.dim()], g);
        let column = |s: usize| {
            let of_term = |(j, degrees): (usize, &Vec<usize>)| {
                let trend = prior.get(j).map_or(0.0, |(mean, sd)| {
                    let update: f64 = (0..n).map(|i| rows.trend()[(i, j)] * v[(i, s)]).sum();
                    self.gp.in_carrier(j) * (mean + b[(j, s)] + sd * sd * update)
                });
                projected[(grid.axes.place(degrees), s)] + trend
            };
            self.gp.carrier().degrees().iter().enumerate().map(of_term).collect()
        };
        Some((0..n_draws).map(column).collect())
    }

    /// What the carrier cannot follow of a function of the posterior, in the root mean square over the inputs' range, beside the sd that the
    /// function has there, and beside that of the outputs.
    pub(super) fn carrier_loss(&self) -> Option<(f64, f64)> {
        const POINTS: usize = 64;
        let node = &self.nodes[self.nodes.len() / 2];
        let (grid, rows, hyper) = (TensorGrid::new(self.gp, &node.hyper, self.rows)?, self.rows, &node.hyper);
        let (scales, dim, projection) = (self.gp.carrier().scales(), grid.axes.dim(), &grid.axes.projection);
        let points = design::unit_points(Method::Halton, POINTS, dim, Stream::root(0)).ok()?;
        let back: Vec<Matrix> = vec![projection.transposed(); dim];
        let square: Vec<Matrix> = (grid.factors.iter())
            .map(|factor| {
                let mut out = Matrix::default();
                out.set_product_transposed(factor, factor);
                out
            })
            .collect();
        let (mut lost, mut all) = (0.0, 0.0);
        for t in points {
            let x: Vec<f64> = t.iter().zip(scales).map(|(t, scale)| scale.at_fraction(*t)).collect();
            let mut features = Matrix::default();
            let at = Matrix::from_rows(1, x.len(), x.clone());
            self.gp.carrier().features(&at, &mut features, &mut Vec::new());
            // The carrier's value at x as a sum of the values at the grid's nodes.
            let mut terms = Matrix::zeros(projection.rows().pow(dim as u32), 1);
            for (degrees, feature) in self.gp.carrier().degrees().iter().zip(features.row(0)) {
                terms[(grid.axes.place(degrees), 0)] = *feature;
            }
            let a = along_axes(&back, terms);
            let along = |d: usize| grid.with_nodes(self.gp, hyper, d, scales[d].scaled(x[d]).0);
            let with_x = tensor(&(0..dim).map(along).collect::<Vec<_>>());
            let variance = 1.0 - 2.0 * dot(a.data(), &with_x) + dot(a.data(), along_axes(&square, a.clone()).data());
            let mut with_rows = self.gp.with_every_row(rows, &x, hyper);
            let mut product = Matrix::default();
            for block in grid.blocks() {
                let here = Matrix::from_rows(block.len(), 1, a.data()[block.clone()].to_vec());
                product.reshape(rows.len(), 1);
                product.data_mut().fill(0.0);
                product.add_transposed_product(&grid.table(&grid.correlations, block), &here);
                with_rows.iter_mut().zip(product.data()).for_each(|(with, p)| *with -= hyper.sd * hyper.sd * p);
            }
            let mean = dot(&with_rows, &node.alpha);
            lost += (hyper.sd * hyper.sd * variance - node.explained(&with_rows)).max(0.0) + mean * mean;
            all += self.gp.predict_at(rows, node, &x).1;
        }
        let n = rows.len() as f64;
        let mean = rows.z.iter().sum::<f64>() / n;
        let spread = rows.z.iter().map(|z| (z - mean).powi(2)).sum::<f64>() / n;
        Some(((lost / all).sqrt(), (lost / POINTS as f64 / spread).sqrt()))
    }

    /// Predictions of every row without its run, exact for each draw of the hyper-parameters.
    pub(super) fn leave_one_out(&self, z: &[f64], runs: &[Vec<usize>]) -> LeaveOneOut {
        let per_node: Vec<Predictions> = (self.nodes.par_iter())
            .map(|node| {
                let precision = node.precision();
                let mut out = vec![(f64::NAN, f64::NAN, f64::NEG_INFINITY); z.len()];
                for run in runs {
                    // The values of a run given all others have the precision that is its part of the whole one.
                    let mut own = Mat::from_fn(run.len(), run.len(), |a, b| precision[(run[a], run[b])]);
                    let Some((factor, _)) = factorise(&mut own) else { continue };
                    let alpha = Mat::from_fn(run.len(), 1, |a, _| node.alpha[run[a]]);
                    let (error, covariance) = (factor.solve(&alpha), factor.inverse());
                    let log_det: f64 = (0..run.len()).map(|a| factor.L()[(a, a)].ln()).sum();
                    let distance: f64 = (0..run.len()).map(|a| error[(a, 0)] * alpha[(a, 0)]).sum();
                    for (a, &i) in run.iter().enumerate() {
                        out[i] = (z[i] - error[(a, 0)], covariance[(a, a)].sqrt(), 0.5 * distance - log_det);
                    }
                }
                out
            })
            .collect();
        LeaveOneOut::of_nodes(z, &per_node)
    }
}

/// The best places of the posterior that are no neighbours, best first, with their log densities.
fn modes(posterior: &HyperPosterior<'_>, stream: Stream, proceed: Proceed<'_>) -> Result<Vec<(f64, Vec<f64>)>> {
    let points = design::unit_points(Method::Halton, SEARCH, posterior.priors.len(), stream)?;
    let start = |t: &Vec<f64>| -> Vec<f64> {
        t.iter().zip(&posterior.priors).map(|(t, prior)| prior.to_real(prior.quantile(*t))).collect()
    };
    let mut starts: Vec<(f64, Vec<f64>)> =
        points.par_iter().map(start).map(|z| (posterior.log_density(&z), z)).filter(|s| s.0.is_finite()).collect();
    starts.sort_by(|a, b| b.0.total_cmp(&a.0));
    starts.truncate(FOLLOWED);
    let climbed = starts.into_par_iter().map(|(_, z)| posterior.climb(z, proceed));
    let mut found = climbed.collect::<Result<Vec<_>>>()?;
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut modes: Vec<(f64, Vec<f64>)> = Vec::new();
    for (value, z) in found {
        let is_near = |other: &Vec<f64>| other.iter().zip(&z).all(|(a, b)| (a - b).abs() < SAME);
        if !modes.iter().any(|(_, other)| is_near(other)) {
            modes.push((value, z));
        }
    }
    Ok(modes)
}

/// Draws from the prior and around the modes, as one mixture, with their weights and the shape of their tail.
fn importance(
    posterior: &HyperPosterior<'_>,
    proposals: &[(f64, Proposal)],
    stream: Stream,
    proceed: Proceed<'_>,
) -> Result<(Vec<Vec<f64>>, Vec<f64>, f64)> {
    let n = n_proposals(posterior.rows.len());
    let total = log_sum_exp(&proposals.iter().map(|(mass, _)| *mass).collect::<Vec<_>>());
    // None of the modes is left to chance.
    let share = |mass: f64| 0.5 * (mass - total).exp() + 0.5 / proposals.len() as f64;
    let mut counts = vec![(FROM_PRIOR * n as f64).round() as usize];
    counts.extend(proposals.iter().map(|(mass, _)| ((1.0 - FROM_PRIOR) * n as f64 * share(*mass)).round() as usize));
    let n: usize = counts.iter().sum();
    let which: Vec<usize> = counts.iter().enumerate().flat_map(|(c, count)| std::iter::repeat_n(c, *count)).collect();
    let draws: Vec<Vec<f64>> = (which.iter().enumerate())
        .map(|(i, &c)| {
            let mut rng = stream.at(i as u64).rng();
            match c.checked_sub(1) {
                None => posterior.priors.iter().map(|prior| prior.to_real(prior.sample(&mut rng))).collect(),
                Some(mode) => proposals[mode].1.draw(&mut rng),
            }
        })
        .collect();
    let ratio = |z: &Vec<f64>| {
        let log_prior = posterior.log_prior(z);
        let parts = std::iter::once(log_prior).chain(proposals.iter().map(|(_, proposal)| proposal.log_density(z)));
        let parts: Vec<f64> = parts.zip(&counts).map(|(part, count)| part + (*count as f64 / n as f64).ln()).collect();
        log_prior + posterior.log_likelihood(z) - log_sum_exp(&parts)
    };
    let ratios = draws.par_iter().map(|z| proceed().then(|| ratio(z))).collect::<Option<Vec<f64>>>();
    let smoothed = psis::smooth(&ratios.ok_or(Error::Interrupted)?);
    Ok((draws, smoothed.log_weights.iter().map(|w| w.exp()).collect(), smoothed.k_hat))
}

/// Numbers of [`NODES`] draws, evenly by weight in the order of the first coordinate.
fn spread_nodes(draws: &[Vec<f64>], weights: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..draws.len()).collect();
    order.sort_by(|&a, &b| draws[a][0].total_cmp(&draws[b][0]));
    let total: f64 = weights.iter().sum();
    let ordered: Vec<f64> = order.iter().map(|&i| weights[i] / total).collect();
    smc::evenly(&ordered, NODES, 0.5).map(|k| order[k]).collect()
}

/// Hyper-parameters and a function, both from their prior, as a draw of the surrogate's coefficients.
pub(super) fn prior_draw(gp: &GaussianProcess, rng: &mut ChaCha8Rng) -> Option<Vec<f64>> {
    let mut lengths: Vec<f64> = gp.hyper_priors().iter().map(|prior| prior.sample(rng)).collect();
    let sd = lengths.pop()?;
    let hyper = Hyper { lengths, sd, nugget: 0.0 };
    let axes = Axes::new(gp, &hyper)?;
    let mut g = Matrix::zeros(axes.nodes.len().pow(axes.dim() as u32), 1);
    g.data_mut().iter_mut().for_each(|g| *g = sd * rng.sample::<f64, _>(StandardNormal));
    let factors: Vec<Matrix> = axes.factors.iter().map(lower).collect();
    let projected = along_axes(&vec![axes.projection.clone(); axes.dim()], along_axes(&factors, g));
    let of_term = |(j, degrees): (usize, &Vec<usize>)| {
        let trend = gp
            .trend_prior()
            .get(j)
            .map_or(0.0, |(mean, sd)| gp.in_carrier(j) * (mean + sd * rng.sample::<f64, _>(StandardNormal)));
        projected[(axes.place(degrees), 0)] + trend
    };
    let terms: Vec<f64> = gp.carrier().degrees().iter().enumerate().map(of_term).collect();
    Some(terms.into_iter().chain(hyper.lengths).chain([sd]).collect())
}

/// The axes of the tensor grid at which functions are drawn.
struct Axes {
    /// Gauss-Legendre nodes of an axis.
    nodes: Vec<f64>,
    /// Of the correlations between the nodes of each axis.
    factors: Vec<Llt<f64>>,
    /// From values at the nodes of an axis to coefficients.
    projection: Matrix,
}

impl Axes {
    fn new(gp: &GaussianProcess, hyper: &Hyper) -> Option<Self> {
        let (dim, degree) = (hyper.lengths.len(), gp.carrier().degree());
        // In one input twice as many as it needs, so that what the carrier cannot follow does not fold back into it.
        let m = if dim == 1 { 2 * (degree + 1) } else { degree + 1 };
        let (nodes, quadrature) = gauss_legendre(m);
        let mut projection = Matrix::zeros(degree + 1, m);
        let mut value = vec![0.0; degree + 1];
        for (q, (u, w)) in nodes.iter().zip(&quadrature).enumerate() {
            legendre(*u, &mut value);
            for (j, value) in value.iter().enumerate() {
                projection[(j, q)] = 0.5 * w * ((2 * j + 1) as f64).sqrt() * value;
            }
        }
        let factor = |d: usize| {
            let jitter = |i: usize, j: usize| if i == j { JITTER } else { 0.0 };
            let mut own = Mat::from_fn(m, m, |i, j| gp.correlation(d, nodes[i], nodes[j], hyper) + jitter(i, j));
            Some(factorise(&mut own)?.0)
        };
        let factors = (0..dim).map(factor).collect::<Option<_>>()?;
        Some(Self { nodes, factors, projection })
    }

    fn dim(&self) -> usize {
        self.factors.len()
    }

    /// Where the coefficient of a term stands among those of all products of degrees.
    fn place(&self, degrees: &[usize]) -> usize {
        degrees.iter().rev().fold(0, |q, degree| q * self.projection.rows() + degree)
    }
}

/// The lower triangle of a factor.
fn lower(factor: &Llt<f64>) -> Matrix {
    let n = factor.L().nrows();
    Matrix::from_fn(n, n, |i, j| if j <= i { factor.L()[(i, j)] } else { 0.0 })
}

/// The tensor grid with training rows; its first input runs fastest.
struct TensorGrid {
    axes: Axes,
    /// Cholesky factors of the correlations of each axis.
    factors: Vec<Matrix>,
    /// Correlations of the nodes of each axis with the rows, and these solved by those between the nodes.
    correlations: Vec<Matrix>,
    weights: Vec<Matrix>,
    /// Root of what the grid leaves open at the rows.
    local: Matrix,
}

impl TensorGrid {
    fn new(gp: &GaussianProcess, hyper: &Hyper, rows: &GpRows) -> Option<Self> {
        let (axes, n) = (Axes::new(gp, hyper)?, rows.len());
        let (m, dim) = (axes.nodes.len(), axes.dim());
        let (mut correlations, mut weights) = (Vec::new(), Vec::new());
        for (d, factor) in axes.factors.iter().enumerate() {
            let with_rows = Mat::from_fn(m, n, |q, i| gp.correlation(d, axes.nodes[q], rows.u[(i, d)], hyper));
            let solved = factor.solve(&with_rows);
            correlations.push(Matrix::from_fn(m, n, |q, i| with_rows[(q, i)]));
            weights.push(Matrix::from_fn(m, n, |q, i| solved[(q, i)]));
        }
        let mut open = Mat::from_fn(n, n, |_, _| 1.0);
        let mut explained = open.clone();
        for d in 0..dim {
            let mut product = Matrix::zeros(n, n);
            product.add_transposed_product(&correlations[d], &weights[d]);
            for j in 0..n {
                for i in 0..n {
                    open[(i, j)] *= gp.correlation(d, rows.u[(i, d)], rows.u[(j, d)], hyper);
                    explained[(i, j)] *= product[(i, j)];
                }
            }
        }
        // Rounding of what is explained, beside a variance of one.
        (0..n).for_each(|i| open[(i, i)] += 10.0 * JITTER);
        let mut open = open - explained;
        let local = lower(&factorise(&mut open)?.0);
        let factors = axes.factors.iter().map(lower).collect();
        Some(Self { axes, factors, correlations, weights, local })
    }

    fn len(&self) -> usize {
        self.axes.nodes.len().pow(self.axes.dim() as u32)
    }

    /// Correlations of the nodes of axis `d` with the value `u` there.
    fn with_nodes(&self, gp: &GaussianProcess, hyper: &Hyper, d: usize, u: f64) -> Matrix {
        let nodes = &self.axes.nodes;
        Matrix::from_fn(nodes.len(), 1, |q, _| gp.correlation(d, nodes[q], u, hyper))
    }

    /// Ranges of nodes whose tables are no larger than memory allows.
    fn blocks(&self) -> Vec<std::ops::Range<usize>> {
        let (len, n) = (self.len(), self.correlations[0].cols());
        let step = (BLOCK / n.max(1)).clamp(1, len);
        (0..len).step_by(step).map(|first| first..(first + step).min(len)).collect()
    }

    /// Products over the axes at some of the nodes (rows) with every training row.
    fn table(&self, of_axes: &[Matrix], block: std::ops::Range<usize>) -> Matrix {
        let (m, n) = (self.axes.nodes.len(), self.correlations[0].cols());
        let mut out = Matrix::zeros(block.len(), n);
        for (k, q) in block.enumerate() {
            let row = out.row_mut(k);
            row.fill(1.0);
            let mut rest = q;
            for of_axis in of_axes {
                row.iter_mut().zip(of_axis.row(rest % m)).for_each(|(out, factor)| *out *= factor);
                rest /= m;
            }
        }
        out
    }
}

/// The outer product of columns, the first running fastest.
fn tensor(columns: &[Matrix]) -> Vec<f64> {
    columns.iter().fold(vec![1.0], |out, column| {
        column.data().iter().flat_map(|value| out.iter().map(move |other| value * other)).collect()
    })
}

/// A matrix applied along each axis of a tensor whose first axis runs fastest, for every column of `values`.
fn along_axes(matrices: &[Matrix], mut values: Matrix) -> Matrix {
    let columns = values.cols();
    let mut inner = 1;
    for matrix in matrices {
        let (to, from) = (matrix.rows(), matrix.cols());
        let outer = values.rows() / (inner * from);
        let width = inner * columns;
        let mut out = Matrix::zeros(outer * to * inner, columns);
        let mut product = Matrix::default();
        for o in 0..outer {
            let slice = &values.data()[o * from * width..(o + 1) * from * width];
            product.set_product(matrix, &Matrix::from_rows(from, width, slice.to_vec()));
            out.data_mut()[o * to * width..(o + 1) * to * width].copy_from_slice(product.data());
        }
        values = out;
        inner *= to;
    }
    values
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::surrogate::{GpSpec, InputScale, Kernel, Normalisation, Scratch, Surrogate, conformance};

    fn marginal(text: &str) -> Marginal {
        text.parse().unwrap()
    }

    /// A process on a linear trend over so many inputs, with rows of a function that no line is.
    fn process(dim: usize, n: usize, kernel: Kernel) -> GaussianProcess {
        let scales = vec![InputScale { lower: 0.0, upper: 2.0, log: false }; dim];
        let names: Vec<String> = (0..dim).map(|d| format!("x{d}")).collect();
        let (length, length_of, sd, carrier) = (None, Vec::new(), marginal("half-normal(1)"), None);
        let spec = GpSpec { kernel, length, length_of, sd, carrier };
        let points = design::unit_points(Method::Halton, n, dim, Stream::root(0)).unwrap();
        let x = Matrix::from_fn(n, dim, |i, d| 2.0 * points[i][d]);
        let z: Vec<f64> = (0..n).map(|i| (3.0 * x[(i, 0)]).sin() + 0.5 * x.row(i).iter().sum::<f64>()).collect();
        let process = GaussianProcess::new(1, Normalisation::None, (0.1, 2.0), &spec, &names, &scales);
        process.with_rows(&x, &z, &vec![0.05; n])
    }

    fn hyper(dim: usize) -> Hyper {
        Hyper { lengths: (0..dim).map(|d| 0.6 + 0.3 * d as f64).collect(), sd: 0.8, nugget: 0.1 }
    }

    fn fit(gp: &GaussianProcess, hyper: Hyper) -> GpFit<'_> {
        let rows = gp.rows().unwrap();
        GpFit { gp, rows, nodes: vec![gp.condition(rows, hyper).unwrap()], k_hat: None }
    }

    /// `C` entry by entry, as the model is written.
    #[test]
    fn the_marginal_likelihood_is_that_of_the_model() {
        let gp = process(2, 5, Kernel::Matern52);
        let (rows, hyper) = (gp.rows().unwrap(), hyper(2));
        let kernel = |r: f64| {
            let a = 5.0_f64.sqrt() * r;
            (1.0 + a + a * a / 3.0) * (-a).exp()
        };
        let covariance = Mat::from_fn(5, 5, |i, j| {
            let (u, v) = (rows.u.row(i), rows.u.row(j));
            let trend = 4.0 * (1.0 + u[0] * v[0] + u[1] * v[1]);
            let process = 0.64 * kernel((u[0] - v[0]).abs() / 0.6) * kernel((u[1] - v[1]).abs() / 0.9);
            trend + process + if i == j { 0.05_f64.powi(2) + 0.01 } else { 0.0 }
        });
        let values = Mat::from_fn(5, 1, |i, _| rows.z[i]);
        let distance = (values.transpose() * covariance.partial_piv_lu().solve(&values))[(0, 0)];
        let exact = -0.5 * (covariance.determinant().ln() + distance + 5.0 * (2.0 * std::f64::consts::PI).ln());
        let found = gp.condition(rows, hyper).unwrap().log_marginal;
        // A few hundred roundings, in a matrix whose condition is below the ratio of its trace to its nugget.
        let condition = (0..5).map(|i| covariance[(i, i)]).sum::<f64>() / 0.0125;
        assert!((found - exact).abs() <= 100.0 * f64::EPSILON * condition * distance.abs().max(1.0), "{found} {exact}");
    }

    #[test]
    fn gradients_by_hyper_parameters_are_differences() {
        for kernel in [Kernel::Matern52, Kernel::SquaredExponential] {
            let gp = process(2, 9, kernel);
            let sigma_a = SigmaA::Prior(marginal("half-normal(0.3)"));
            let posterior = HyperPosterior::new(&gp, gp.rows().unwrap(), &sigma_a);
            let z = [-0.4, 0.2, -0.3, -2.0];
            let (_, gradient) = posterior.score(&z);
            let h = f64::EPSILON.cbrt();
            for d in 0..z.len() {
                let at = |step: f64| {
                    let mut moved = z;
                    moved[d] += step;
                    posterior.log_density(&moved)
                };
                let (near, far) = ((at(h) - at(-h)) / (2.0 * h), (at(2.0 * h) - at(-2.0 * h)) / (4.0 * h));
                // Truncation is a third of the gap; values are rounded where a matrix of condition 1e4 is solved.
                let bound = (near - far).abs() + 1e4 * 16.0 * f64::EPSILON * at(0.0).abs() / h;
                assert!((gradient[d] - near).abs() <= bound, "{kernel:?} {d}: {} {near} ({bound:e})", gradient[d]);
            }
        }
    }

    /// Mean and variance of predictions by a process that never saw the rows.
    #[test]
    fn a_run_is_left_out_with_all_its_rows() {
        let gp = process(1, 8, Kernel::Matern52);
        let fit = fit(&gp, hyper(1));
        let z = &gp.rows().unwrap().z;
        let runs = [vec![0, 3], vec![1], vec![2, 4, 5], vec![6], vec![7]];
        let found = fit.leave_one_out(z, &runs);
        for run in &runs {
            let others: Vec<usize> = (0..8).filter(|i| !run.contains(i)).collect();
            let rows = gp.rows().unwrap();
            let x = |i: usize| rows.u[(i, 0)] + 1.0;
            let trend_mean = |i: usize| 0.1 + 0.1 * rows.u[(i, 0)];
            let inputs = Matrix::from_fn(others.len(), 1, |i, _| x(others[i]));
            let values: Vec<f64> = others.iter().map(|&i| z[i] + trend_mean(i)).collect();
            let rest = gp.clone().with_rows(&inputs, &values, &vec![0.05; others.len()]);
            let at = rest.condition(rest.rows().unwrap(), hyper(1)).unwrap();
            for &i in run {
                let (mean, variance) = rest.predict_at(rest.rows().unwrap(), &at, &[x(i)]);
                let (own_mean, own_sd) = found.predictions[i].unwrap();
                // A condition of at most 8 * 8 / 0.0125 = 5e3.
                let bound = 5e3 * 100.0 * f64::EPSILON;
                assert!((own_mean + trend_mean(i) - mean).abs() <= bound, "{i}: {own_mean} {mean}");
                assert!((own_sd - (variance + 0.0125_f64).sqrt()).abs() <= bound, "{i}");
            }
        }
    }

    /// Functions in the carrier against the closed form, in one input and in two.
    #[test]
    fn functions_have_the_mean_and_the_covariance_of_the_process() {
        const DRAWS: usize = 4000;
        for dim in [1, 2] {
            let gp = process(dim, 10, Kernel::Matern52);
            let fit = fit(&gp, hyper(dim));
            let (loss, _) = fit.carrier_loss().unwrap();
            assert!(loss < crate::train::MOST_CARRIER_LOSS, "{dim}: {loss}");
            let (c, sigma_a) = fit.draws(DRAWS, Stream::root(3), &|| true).unwrap();
            assert!(sigma_a.iter().all(|s| *s == 0.1) && c.rows() == gp.names().len());
            let points = design::unit_points(Method::Halton, 30, dim, Stream::root(0)).unwrap();
            let x = Matrix::from_fn(12, dim, |i, d| 2.0 * points[18 + i][d]);
            let mut eta = Matrix::default();
            gp.predict(&x, &c, &mut eta, &mut Scratch::default());
            for i in 0..x.rows() {
                let (mean, variance) = gp.predict_at(fit.rows, &fit.nodes[0], x.row(i));
                let own = eta.row(i).iter().sum::<f64>() / DRAWS as f64;
                let own_variance = eta.row(i).iter().map(|e| (e - own).powi(2)).sum::<f64>() / DRAWS as f64;
                // Five standard errors of 24 means and variances, and what the carrier leaves out: a share of the root mean square sd, of which
                // a single place may have three times as much.
                let typical = fit_sd(&gp, &fit);
                let bound = 5.0 * (variance / DRAWS as f64).sqrt() + 3.0 * loss * typical;
                assert!((own - mean).abs() <= bound, "{dim} {i}: {own} {mean} ({bound})");
                let bound = variance * 5.0 * (2.0 / DRAWS as f64).sqrt() + 6.0 * loss * typical * variance.sqrt();
                assert!((own_variance - variance).abs() <= bound, "{dim} {i}: {own_variance} {variance} ({bound})");
            }
            let few = c.select_cols(&[0, 1, 2]);
            conformance::check_draws(&gp, &vec![(0.0, 2.0); dim], &few).unwrap();
        }
    }

    /// Root mean square sd over the inputs' range.
    fn fit_sd(gp: &GaussianProcess, fit: &GpFit<'_>) -> f64 {
        let dim = gp.carrier().scales().len();
        let points = design::unit_points(Method::Halton, 64, dim, Stream::root(0)).unwrap();
        let at = |t: &Vec<f64>| t.iter().map(|t| 2.0 * t).collect::<Vec<f64>>();
        let total: f64 = points.iter().map(|t| gp.predict_at(fit.rows, &fit.nodes[0], &at(t)).1).sum();
        (total / points.len() as f64).sqrt()
    }

    /// Against a lattice over all three of them.
    #[test]
    fn importance_weights_give_the_posterior_of_the_hyper_parameters() {
        let gp = process(1, 12, Kernel::Matern52);
        let sigma_a = SigmaA::Prior(marginal("half-normal(0.1)"));
        let posterior = HyperPosterior::new(&gp, gp.rows().unwrap(), &sigma_a);
        let (ends, steps) = ([(-3.5, 2.5), (-5.0, 2.0), (-11.0, 0.0)], 40);
        let at = |d: usize, i: usize| ends[d].0 + (ends[d].1 - ends[d].0) * (i as f64 + 0.5) / steps as f64;
        let lattice: Vec<[f64; 3]> = (0..steps * steps * steps)
            .map(|k| [at(0, k % steps), at(1, k / steps % steps), at(2, k / steps / steps)])
            .collect();
        let log: Vec<f64> = lattice.par_iter().map(|z| posterior.log_density(z)).collect();
        let total = log_sum_exp(&log);
        let modes = modes(&posterior, Stream::root(1), &|| true).unwrap();
        let proposals: Vec<(f64, Proposal)> = modes.into_iter().map(|(v, z)| (v, posterior.around(z))).collect();
        let (draws, weights, k_hat) = importance(&posterior, &proposals, Stream::root(2), &|| true).unwrap();
        assert!(k_hat < RELIABLE, "{k_hat}");
        for d in 0..3 {
            let expect = |f: &dyn Fn(f64) -> f64| -> f64 {
                lattice.iter().zip(&log).map(|(z, l)| (l - total).exp() * f(z[d])).sum()
            };
            let mean = expect(&|z| z);
            let sd = expect(&|z| (z - mean).powi(2)).sqrt();
            let found: f64 = draws.iter().zip(&weights).map(|(z, w)| w * z[d]).sum();
            // The standard error of a weighted mean, four times.
            let se = draws.iter().zip(&weights).map(|(z, w)| (w * (z[d] - found)).powi(2)).sum::<f64>().sqrt();
            assert!(se < 0.2 * sd && (found - mean).abs() <= 4.0 * se, "{d}: {found} {mean} {se} {sd}");
        }
    }

    #[test]
    fn functions_do_not_depend_on_threads_and_equal_inputs_are_no_trouble() {
        let gp = process(1, 6, Kernel::SquaredExponential);
        let rows = gp.rows().unwrap();
        // The same input twice with unequal values, and no known noise.
        let x = Matrix::from_fn(7, 1, |i, _| rows.u[(i.min(5), 0)] + 1.0);
        let z: Vec<f64> = (0..7).map(|i| rows.z[i.min(5)] + 0.01 * (i / 6) as f64).collect();
        let gp = gp.with_rows(&x, &z, &[0.0; 7]);
        let sigma_a = SigmaA::Prior(marginal("half-normal(0.1)"));
        let draws = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let fit = GpFit::new(&gp, &sigma_a, "y", Stream::root(4), &|| true).unwrap();
                fit.draws(100, Stream::root(5), &|| true).unwrap()
            })
        };
        let one = draws(1);
        assert!(one == draws(2) && one.0.data().iter().all(|c| c.is_finite()));
    }
}
