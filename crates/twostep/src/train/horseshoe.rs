//! The T-step of a polynomial whose coefficients have a horseshoe prior: scales by slices with the coefficients integrated out,
//! coefficients exactly given the scales, a scale of each coefficient exactly given it.

use super::sensitivity::has_certain_sign;
use super::{Block, Fit, LeaveOneOut, Predictions, T_DRAWS, TermsReport, TrainMethod, TrainSpec};
use crate::error::{Error, Result};
use crate::matrix::Matrix;
use crate::mcmc::{diagnostics, slice};
use crate::monitor::{Monitor, counting};
use crate::stream::Stream;
use crate::surrogate::SigmaA;
use faer::linalg::matmul::triangular::{BlockStructure, matmul};
use faer::{Accum, Col, Mat, Par, Side};
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use rand_distr::StandardNormal;
use rayon::prelude::*;
use std::f64::consts::TAU;

const CHAINS: usize = 4;

/// Iterations before the first draw that is kept, in rounds: another begins where the one before left chains that disagree.
const WARM_UP: [usize; 3] = [300, 1000, 3000];

/// R-hat of the logarithm of sigma_A up to which chains agree: it is what they are slow in.
const AGREE: f64 = 1.1;

/// Starts of sigma_A and of the global scale, in sds of the outputs: from all noise to next to none.
const STARTS: [(f64, f64); CHAINS] = [(0.5, 0.05), (2.0, 1.0), (0.01, 1e-3), (0.1, 10.0)];

/// Terms that are expected to matter; five or fifty instead lead to the same answers.
const EXPECTED_TERMS: f64 = 20.0;

/// The least sigma_A, in sds of the outputs: what is below is lost in the rounding of a covariance that is all but singular.
const FLOOR: f64 = 1e-5;

/// Share of the variance of the approximation error that terms may have which are left out of the draws, and counted to it.
const LEFT_OUT: f64 = 0.01;

/// States of each chain whose sigma_A are compared, at least.
const LEAST: usize = 250;

/// Multiply-adds of an iteration up to which every second one is kept only, for draws that are closer to independent.
const CHEAP: f64 = 2e7;

/// `z_i ~ N(c_0 + sum_j phi_ij w_j theta_j, sigma_A^2 + sigma_S^2)`, `theta_j ~ N(0, tau^2 lambda_j^2)`, `lambda_j ~ C+(0, 1)`,
/// `tau ~ C+(0, sigma tau_0)` [Carvalho 2010; Piironen 2017], a flat prior of `c_0`, and `w_j = 1 / (degree_j order_j!)`: terms of high degree
/// and of many inputs are smaller. All of what does not depend on the scales.
struct Model<'a> {
    fit: &'a Fit<'a>,
    /// `w_j`, of all terms but the constant.
    scales: Vec<f64>,
    /// Weighted features and values along directions that are orthogonal to the constant one: n - 1 of them.
    features: Mat<f64>,
    values: Col<f64>,
    /// Mean of each feature over the rows, and that of the values.
    means: (Vec<f64>, f64),
    sigma_s: f64,
    /// Standard deviation of the values.
    size: f64,
    tau_0: f64,
}

/// Reflects a vector so that its part along the constant one is its first entry.
fn reflect(x: &mut [f64]) {
    let root = (x.len() as f64).sqrt();
    // v = 1 + root e_1 has the squared length 2 (n + root).
    let along = (x.iter().sum::<f64>() + root * x[0]) / (x.len() as f64 + root);
    x.iter_mut().for_each(|x| *x -= along);
    x[0] -= along * root;
}

/// One state of a chain.
#[derive(Clone)]
struct State {
    log_sigma_a: f64,
    log_tau: f64,
    /// `lambda_j^2`.
    local: Vec<f64>,
}

/// A kept draw: terms, the constant first, sigma_A, and every row without its run.
struct Draw {
    coefficients: Vec<f64>,
    sigma_a: f64,
    left_out: Predictions,
}

impl<'a> Model<'a> {
    fn new(fit: &'a Fit<'a>) -> Result<Self> {
        let name = format!("T-step of `{}`", fit.name);
        let rows = fit.rows;
        let n = rows.z.len();
        if n < 3 {
            let found = format!("{n} runs for a horseshoe prior");
            return Err(Error::invalid(
                name,
                found,
                "make three runs at least, or give the coefficients a normal prior",
            ));
        }
        let sigma_s = rows.sigma_s[0];
        if rows.sigma_s.iter().any(|sd| (sd - sigma_s).abs() > 1e-9 * sigma_s) {
            return Err(Error::invalid(
                name,
                "runs with unequal simulation noise for a horseshoe prior",
                "leave sigma_s to the T-step (train.sigma_s), or give the coefficients a normal prior",
            ));
        }
        let no_polynomial =
            || Error::invalid(&name, "a horseshoe prior of what is no polynomial", "use kind = \"pce\"");
        let basis = fit.surrogate.basis().ok_or_else(no_polynomial)?;
        let (_, phi) = fit.surrogate.linear(&rows.x).ok_or_else(no_polynomial)?;
        let weight = |degrees: &Vec<usize>| {
            let order = degrees.iter().filter(|degree| **degree > 0).count();
            let factorial: f64 = (1..=order).map(|k| k as f64).product();
            (degrees.iter().sum::<usize>() as f64 * factorial).recip()
        };
        // The constant comes first.
        let scales: Vec<f64> = basis.degrees()[1..].iter().map(weight).collect();
        let p = scales.len();
        let mut column = vec![0.0; n];
        let (mut features, mut means) = (Mat::zeros(n - 1, p), Vec::with_capacity(p));
        for j in 0..p {
            (0..n).for_each(|i| column[i] = phi[(i, j + 1)]);
            means.push(column.iter().sum::<f64>() / n as f64);
            reflect(&mut column);
            (1..n).for_each(|i| features[(i - 1, j)] = scales[j] * column[i]);
        }
        let mut values = rows.z.clone();
        let mean = values.iter().sum::<f64>() / n as f64;
        reflect(&mut values);
        let values = Col::from_fn(n - 1, |i| values[i + 1]);
        let size = (values.squared_norm_l2() / n as f64).sqrt();
        let others = (p as f64 - EXPECTED_TERMS).max(EXPECTED_TERMS.min(p as f64).max(1.0));
        Ok(Self {
            tau_0: EXPECTED_TERMS.min(p as f64).max(1.0) / (others * (n as f64).sqrt()),
            fit,
            scales,
            features,
            values,
            means: (means, mean),
            sigma_s,
            // Constant values have no size; any other is as good.
            size: if size > 0.0 { size } else { 1.0 },
        })
    }

    fn start(&self, chain: usize, rng: &mut ChaCha8Rng) -> State {
        let (sigma_a, tau) = STARTS[chain];
        let log_sigma_a = match self.fit.sigma_a {
            SigmaA::Fixed(sigma_a) => sigma_a.ln(),
            SigmaA::Prior(_) => (sigma_a * self.size).ln(),
        };
        // The first chain starts with equal scales, the others each with scales of their own.
        let spread = if chain == 0 { 0.0 } else { 2.0 };
        let local = self.scales.iter().map(|_| (spread * rng.sample::<f64, _>(StandardNormal)).exp()).collect();
        State { log_sigma_a, log_tau: (tau * self.size).ln(), local }
    }

    /// Log prior of both scales, by their logarithms.
    fn log_prior(&self, log_tau: f64, log_sigma_a: f64) -> f64 {
        let sigma_a = log_sigma_a.exp();
        if sigma_a < FLOOR * self.size {
            return f64::NEG_INFINITY;
        }
        let own = match self.fit.sigma_a {
            SigmaA::Fixed(_) => 0.0,
            SigmaA::Prior(prior) => prior.log_density(sigma_a) + log_sigma_a,
        };
        let log_ratio = log_tau - (self.tau_0 * sigma_a.hypot(self.sigma_s)).ln();
        own + log_ratio - (2.0 * log_ratio).exp().ln_1p()
    }

    /// Another state, and the coefficients theta under it with what the rows say without each run, where they are asked for.
    fn step(&self, state: &mut State, rng: &mut ChaCha8Rng, is_kept: bool) -> Result<Option<Draw>> {
        // Steps out of an interval of this width are as many as it takes; scales move by about as much.
        const WIDTH: f64 = 0.7;
        let (n, p) = (self.values.nrows(), self.scales.len());
        let scaled = Mat::from_fn(n, p, |i, j| self.features[(i, j)] * state.local[j].sqrt());
        let mut gram = Mat::zeros(n, n);
        let (lower, full) = (BlockStructure::TriangularLower, BlockStructure::Rectangular);
        matmul(&mut gram, lower, Accum::Replace, &scaled, full, scaled.transpose(), full, 1.0, Par::Seq);
        let eigen = gram.self_adjoint_eigen(Side::Lower).map_err(|_| {
            Error::failed(
                format!("T-step of `{}`", self.fit.name),
                "the features have no eigenvalues",
                "lower the degree, or give the coefficients a normal prior",
            )
        })?;
        let axes = eigen.U();
        let along = axes.transpose() * &self.values;
        let seen: Vec<(f64, f64)> =
            eigen.S().column_vector().iter().zip(along.iter()).map(|(a, z)| (a.max(0.0), z * z)).collect();
        let noise = |log_sigma_a: f64| (2.0 * log_sigma_a).exp() + self.sigma_s * self.sigma_s;
        let log_density = |log_tau: f64, log_sigma_a: f64| {
            let log_prior = self.log_prior(log_tau, log_sigma_a);
            let (signal, noise) = ((2.0 * log_tau).exp(), noise(log_sigma_a));
            if log_prior == f64::NEG_INFINITY || !(signal.is_normal() && noise.is_normal()) {
                return f64::NEG_INFINITY;
            }
            let of_axis = |(a, square): &(f64, f64)| {
                let v = signal.mul_add(*a, noise);
                v.ln() + square / v
            };
            log_prior - 0.5 * seen.iter().map(of_axis).sum::<f64>()
        };
        let State { log_sigma_a, log_tau, .. } = state;
        *log_tau = slice::sample(*log_tau, WIDTH, |x| log_density(x, *log_sigma_a), rng);
        if let SigmaA::Prior(_) = self.fit.sigma_a {
            *log_sigma_a = slice::sample(*log_sigma_a, WIDTH, |x| log_density(*log_tau, x), rng);
            // Both together: what one explains the other need not.
            let both = slice::sample(0.0, WIDTH, |d| log_density(*log_tau + d, *log_sigma_a - d), rng);
            (*log_tau, *log_sigma_a) = (*log_tau + both, *log_sigma_a - both);
        }

        // theta given the scales, by a draw of the prior that is moved to the values [Bhattacharya 2016].
        let (signal, noise) = ((2.0 * *log_tau).exp(), noise(*log_sigma_a));
        let inverse: Vec<f64> = seen.iter().map(|(a, _)| signal.mul_add(*a, noise).recip()).collect();
        let mut bell = || rng.sample::<f64, _>(StandardNormal);
        let mut theta = Col::from_fn(p, |j| (signal * state.local[j]).sqrt() * bell());
        let missed = &self.values - &self.features * &theta - Col::from_fn(n, |_| noise.sqrt() * bell());
        let solve = |x: &Col<f64>| {
            let mut along = axes.transpose() * x;
            along.iter_mut().zip(&inverse).for_each(|(x, inverse)| *x *= inverse);
            axes * along
        };
        let moved = self.features.transpose() * solve(&missed);
        (0..p).for_each(|j| theta[j] += signal * state.local[j] * moved[j]);
        for (local, theta) in state.local.iter_mut().zip(theta.iter()) {
            *local = local_scale(*local, theta * theta / (2.0 * signal), rng);
        }
        if !is_kept {
            return Ok(None);
        }
        let mut coefficients = vec![0.0; p + 1];
        for j in 0..p {
            coefficients[j + 1] = self.scales[j] * theta[j];
        }
        let others: f64 = self.means.0.iter().zip(&coefficients[1..]).map(|(mean, c)| mean * c).sum();
        let error = (noise / (n + 1) as f64).sqrt() * rng.sample::<f64, _>(StandardNormal);
        coefficients[0] = self.means.1 - others + error;
        // K^-1 of the values, and a root of it, in the rows.
        let pulled = solve(&self.values);
        let mut of_rows = vec![0.0; n + 1];
        (0..n).for_each(|i| of_rows[i + 1] = pulled[i]);
        reflect(&mut of_rows);
        let mut root = Matrix::zeros(n + 1, n);
        for k in 0..n {
            let mut column: Vec<f64> =
                std::iter::once(0.0).chain((0..n).map(|i| axes[(i, k)] * inverse[k].sqrt())).collect();
            reflect(&mut column);
            column.iter().enumerate().for_each(|(i, value)| root[(i, k)] = *value);
        }
        let left_out = self.left_out(&of_rows, &root);
        Ok(Some(Draw { coefficients, sigma_a: state.log_sigma_a.exp(), left_out }))
    }

    /// Predictions of every row without its run: with `Q` the precision of the values of a run given those of the others, they miss by
    /// `Q^-1 (K^-1 z)`, with covariance `Q^-1`.
    fn left_out(&self, pulled: &[f64], root: &Matrix) -> Predictions {
        let z = &self.fit.rows.z;
        let mut out = vec![(0.0, 0.0, 0.0); z.len()];
        for run in &self.fit.rows.runs {
            let precision =
                Mat::from_fn(run.len(), run.len(), |a, b| super::exact::dot(root.row(run[a]), root.row(run[b])));
            let eigen = precision.self_adjoint_eigen(Side::Lower);
            let Ok(eigen) = eigen else { continue };
            let (axes, values) = (eigen.U(), eigen.S().column_vector());
            let of_run = Col::from_fn(run.len(), |a| pulled[run[a]]);
            let along = axes.transpose() * of_run;
            let terms = along.iter().zip(values.iter());
            let log_density: f64 = terms.map(|(g, q)| 0.5 * ((q / TAU).ln() - g * g / q)).sum();
            for (a, &row) in run.iter().enumerate() {
                let parts = || (0..run.len()).map(|k| (axes[(a, k)], along[k], values[k]));
                let miss: f64 = parts().map(|(u, g, q)| u * g / q).sum();
                let variance: f64 = parts().map(|(u, _, q)| u * u / q).sum();
                out[row] = (z[row] - miss, variance.sqrt(), -log_density);
            }
        }
        out
    }
}

/// `lambda^2` given a coefficient with `half_square = theta^2 / (2 tau^2)`: a slice of the prior of `1 / lambda^2`, which leaves an
/// exponential distribution up to a bound.
fn local_scale(local: f64, half_square: f64, rng: &mut ChaCha8Rng) -> f64 {
    // Far beyond what any coefficient asks for, and still far from overflow.
    const LEAST: f64 = 1e-14;
    let height = rng.random::<f64>() / (1.0 + local.recip());
    let (bound, uniform) = ((1.0 - height) / height, rng.random::<f64>());
    let inverse = if half_square * bound < 1e-8 {
        uniform * bound
    } else {
        -(uniform * (-half_square * bound).exp_m1()).ln_1p() / half_square
    };
    inverse.clamp(LEAST, LEAST.recip()).recip()
}

/// Draws of all terms.
pub(super) struct Sampled {
    /// Places of the terms that the draws have, in the order of the polynomial's.
    pub(super) kept: Vec<usize>,
    /// Their coefficients by draw.
    coefficients: Matrix,
    sigma_a: Vec<f64>,
    /// How many draws each chain has.
    chains: Vec<usize>,
    left_out: LeaveOneOut,
    terms: TermsReport,
    r_hat: f64,
}

impl Fit<'_> {
    /// Draws by chains with several starts; those of terms that have next to nothing are left out where `prunes`.
    pub(super) fn horseshoe(
        &self,
        spec: &TrainSpec,
        prunes: bool,
        stream: Stream,
        monitor: &dyn Monitor,
    ) -> Result<Sampled> {
        if spec.method != TrainMethod::Auto {
            return Err(Error::invalid(
                "train.method",
                format!(
                    "the coefficients of `{}` have a horseshoe prior, which is trained in a way of its own",
                    self.name
                ),
                "leave out method",
            ));
        }
        let model = Model::new(self)?;
        let (n, p) = (model.values.nrows() as f64, model.scales.len());
        let every = if n * n * p as f64 <= CHEAP { 2 } else { 1 };
        let per_chain = spec.draws.div_ceil(CHAINS).max(4);
        // Few draws are of chains as long as those of many.
        let thin = every * LEAST.div_ceil(per_chain);
        let stream = stream.named("horseshoe");
        let mut chains: Vec<(State, ChaCha8Rng)> = (0..CHAINS)
            .map(|chain| {
                let mut rng = stream.at(chain as u64).rng();
                (model.start(chain, &mut rng), rng)
            })
            .collect();
        let mut round = 0;
        let (draws, r_hat) = loop {
            let length = WARM_UP[round] + thin * per_chain;
            let total = CHAINS * length;
            let proceed = counting(monitor, T_DRAWS, total);
            let run = |(state, rng): &mut (State, ChaCha8Rng)| {
                let (mut draws, mut log_sigma) = (Vec::with_capacity(per_chain), Vec::new());
                for i in 1..=length {
                    if !proceed() {
                        return Err(Error::Interrupted);
                    }
                    let is_on = |step: usize| i > WARM_UP[round] && (i - WARM_UP[round]).is_multiple_of(step);
                    draws.extend(model.step(state, rng, is_on(thin))?);
                    log_sigma.extend(is_on(every).then_some(state.log_sigma_a));
                }
                Ok((draws, log_sigma))
            };
            let ran: Vec<(Vec<Draw>, Vec<f64>)> = chains.par_iter_mut().map(run).collect::<Result<_>>()?;
            let (draws, log_sigma): (Vec<_>, Vec<_>) = ran.into_iter().unzip();
            let r_hat = diagnostics::r_hat(&log_sigma);
            round += 1;
            // A sigma_A that is known does not vary, and has no R-hat.
            if round == WARM_UP.len() || r_hat.is_nan() || r_hat <= AGREE {
                break (draws, r_hat);
            }
        };
        Ok(self.gathered(draws, spec.draws, prunes, r_hat))
    }

    fn gathered(&self, chains: Vec<Vec<Draw>>, n_draws: usize, prunes: bool, r_hat: f64) -> Sampled {
        let lengths: Vec<usize> = (0..CHAINS).map(|c| n_draws / CHAINS + usize::from(c < n_draws % CHAINS)).collect();
        let draws: Vec<Draw> =
            chains.into_iter().zip(&lengths).flat_map(|(chain, length)| chain.into_iter().take(*length)).collect();
        let names = self.surrogate.names();
        let mean_square =
            |j: usize| draws.iter().map(|draw| draw.coefficients[j].powi(2)).sum::<f64>() / draws.len() as f64;
        let squares: Vec<f64> = (0..names.len()).map(mean_square).collect();
        let total: f64 = squares[1..].iter().sum();
        let mut by_size: Vec<usize> = (1..names.len()).collect();
        by_size.sort_by(|a, b| squares[*b].total_cmp(&squares[*a]));
        let is_certain =
            |j: &&usize| has_certain_sign(draws.iter().map(|draw| (draw.coefficients[**j], 1.0 / draws.len() as f64)));
        let matter = by_size.iter().filter(is_certain).map(|&j| (names[j].clone(), squares[j] / total)).collect();

        let mut sigma_a: Vec<f64> = draws.iter().map(|draw| draw.sigma_a).collect();
        let mut kept: Vec<usize> = (0..names.len()).collect();
        if prunes && matches!(self.sigma_a, SigmaA::Prior(_)) {
            let most = LEFT_OUT * sigma_a.iter().map(|sigma_a| sigma_a * sigma_a).sum::<f64>() / draws.len() as f64;
            let mut sum = 0.0;
            let is_left_out = |j: &&usize| {
                sum += squares[**j];
                sum <= most
            };
            let left_out: Vec<usize> = by_size.iter().rev().take_while(is_left_out).copied().collect();
            for (sigma_a, draw) in sigma_a.iter_mut().zip(&draws) {
                // Terms are orthonormal: over the inputs their mean squares add up.
                let more: f64 = left_out.iter().map(|&j| draw.coefficients[j].powi(2)).sum();
                *sigma_a = sigma_a.hypot(more.sqrt());
            }
            let mut is_kept = vec![true; names.len()];
            left_out.iter().for_each(|&j| is_kept[j] = false);
            kept.retain(|&j| is_kept[j]);
        }
        let left_out: Vec<&Predictions> = draws.iter().map(|draw| &draw.left_out).collect();
        Sampled {
            coefficients: Matrix::from_fn(kept.len(), draws.len(), |k, s| draws[s].coefficients[kept[k]]),
            left_out: LeaveOneOut::of_draws(&self.rows.z, &self.rows.runs, &left_out),
            terms: TermsReport { candidates: names.len(), kept: kept.len(), matter },
            chains: lengths,
            kept,
            sigma_a,
            r_hat,
        }
    }

    /// The block of draws whose terms this surrogate has.
    pub(super) fn horseshoe_block(&self, sampled: Sampled) -> Block {
        let Sampled { coefficients, sigma_a, chains, left_out, terms, r_hat, .. } = sampled;
        let log_weights = vec![0.0; sigma_a.len()];
        let known = || (None, left_out.clone());
        let mut report = self.report("horseshoe", &coefficients, &sigma_a, &log_weights, Some(&known));
        for (j, parameter) in report.parameters.iter_mut().enumerate().filter(|(_, parameter)| parameter.sd > 0.0) {
            let values = if j < coefficients.rows() { coefficients.row(j) } else { &sigma_a };
            let mut rest = values;
            let runs: Vec<Vec<f64>> = chains
                .iter()
                .map(|&length| {
                    let (own, others) = rest.split_at(length);
                    rest = others;
                    own.to_vec()
                })
                .collect();
            parameter.r_hat = Some(diagnostics::r_hat(&runs));
            parameter.ess_bulk = Some(diagnostics::ess_bulk(&runs));
            parameter.mcse_mean = Some(diagnostics::mcse_mean(&runs));
        }
        if r_hat > AGREE {
            report.troubled = true;
            report.warnings.push(format!(
                "T-step of `{}`: the chains of the horseshoe prior disagree about sigma_a (R-hat {r_hat:.2}); make more runs, or lower the \
                 degree",
                self.name
            ));
        }
        report.terms = Some(terms);
        Block { coefficients, sigma_a, log_weights, report }
    }
}
