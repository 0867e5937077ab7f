//! A Gaussian process on a polynomial trend: a surrogate that knows where it is wrong.
//!
//! `M~(x) = sum_p b_p psi_p(x) + g(x)` with normal `b` and `g ~ GP(0, tau^2 k)`, where k is a product of one-dimensional kernels of the
//! inputs scaled to [-1, 1]. A T-draw is a function, made by pathwise conditioning and written in a *carrier*: Legendre polynomials of
//! a degree so high that what they cannot follow is small beside the uncertainty of the function. So a T-draw is a polynomial like that of a
//! PCE, and all that is built on polynomials works with it.

use super::{Basis, InputScale, Normalisation, Scratch, Surrogate, n_terms};
use crate::matrix::Matrix;
use crate::prior::Marginal;
use faer::linalg::solvers::{DenseSolveCore, Llt, Solve};
use faer::linalg::triangular_solve::solve_lower_triangular_in_place;
use faer::{Mat, Par, Side};
use std::sync::Arc;

/// How the values of a Gaussian process at two inputs are correlated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernel {
    /// `(1 + a + a^2 / 3) exp(-a)` with `a = sqrt(5) r`: twice differentiable functions.
    #[default]
    Matern52,
    /// `exp(-r^2 / 2)`: functions smooth without end.
    SquaredExponential,
}

impl Kernel {
    /// Its name in a study file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Matern52 => "matern-5/2",
            Self::SquaredExponential => "squared-exponential",
        }
    }

    /// The factor in front of the exponential, what its exponent is, and `-d ln k / d ln r`, at a distance of `r` lengths.
    fn parts(self, r: f64) -> (f64, f64, f64) {
        match self {
            Self::Matern52 => {
                let a = 5.0_f64.sqrt() * r;
                let factor = 1.0 + a + a * a / 3.0;
                (factor, -a, a * a * (1.0 + a) / (3.0 * factor))
            }
            Self::SquaredExponential => (1.0, -0.5 * r * r, r * r),
        }
    }

    /// `k(r)` of one input.
    pub(crate) fn value(self, r: f64) -> f64 {
        let (factor, exponent, _) = self.parts(r);
        factor * exponent.exp()
    }
}

/// What a study file says of a Gaussian process beside its trend.
#[derive(Clone, Debug, PartialEq)]
pub struct GpSpec {
    /// The kernel.
    pub kernel: Kernel,
    /// Prior of the length scales, in units of half the range of an input; that of single inputs by their names. Where none is given it is
    /// log-normal around a quarter of the range times the root of the number of inputs.
    pub length: Option<Marginal>,
    /// Priors of the length scales of single inputs.
    pub length_of: Vec<(String, Marginal)>,
    /// Prior of the sd of the process, on the surrogate's scale.
    pub sd: Marginal,
    /// Degree of the carrier, where it is not chosen by the number of inputs.
    pub carrier: Option<usize>,
}

impl Default for GpSpec {
    fn default() -> Self {
        let sd = "half-normal(1)".parse().expect("a prior of the library");
        Self { kernel: Kernel::default(), length: None, length_of: Vec::new(), sd, carrier: None }
    }
}

impl GpSpec {
    /// The prior of the length scale of an input, of so many. What a polynomial of low degree cannot follow varies within a quarter of the range or
    /// so; distances grow with the root of the number of inputs.
    pub fn length_prior(&self, input: &str, n_inputs: usize) -> Marginal {
        let own = self.length_of.iter().find(|(name, _)| name == input).map(|(_, prior)| prior.clone());
        own.or_else(|| self.length.clone()).unwrap_or_else(|| {
            let median = (0.5 * (n_inputs as f64).sqrt()).ln();
            let family = crate::prior::Family::LogNormal { mean: median, sd: 0.7 };
            Marginal::new(family).expect("a proper log-normal")
        })
    }
}

/// Hyper-parameters of a Gaussian process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hyper {
    /// Length scale of each input.
    pub(crate) lengths: Vec<f64>,
    /// Sd of the process.
    pub(crate) sd: f64,
    /// Sd of the nugget: sigma_A.
    pub(crate) nugget: f64,
}

/// What a Gaussian process was trained with, on its own scale.
#[derive(Clone, Debug)]
pub(crate) struct GpRows {
    /// Inputs scaled to [-1, 1], N x D.
    pub(crate) u: Matrix,
    /// The trend's functions there, N x P.
    trend: Matrix,
    /// `trend diag(sd^2) trend'`.
    trend_covariance: Mat<f64>,
    /// Values less the prior mean of the trend.
    pub(crate) z: Vec<f64>,
    pub(crate) sigma_s: Vec<f64>,
}

impl GpRows {
    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.z.len()
    }

    /// The trend's functions at the rows.
    pub(crate) fn trend(&self) -> &Matrix {
        &self.trend
    }
}

/// The surrogate `M~(x, c) = sum_j c_j psi_j(x)` over the carrier's terms; the last rows of c are hyper-parameters, of which `M~` knows nothing.
#[derive(Clone)]
pub struct GaussianProcess {
    carrier: Basis,
    trend: Basis,
    /// Mean and sd of every coefficient of the trend.
    trend_prior: Vec<(f64, f64)>,
    names: Vec<String>,
    kernel: Kernel,
    /// Priors of the length scales, then of the sd.
    hyper_priors: Vec<Marginal>,
    rows: Option<Arc<GpRows>>,
}

/// Most terms of a carrier whose degree is not asked for, and most nodes of the grid that functions are drawn at.
const MAX_TERMS: usize = 1000;
const MAX_NODES: usize = 100_000;
/// Highest degree of such a carrier in one input, where it leaves out some hundredths of what the runs leave open in a Matern 5/2 process, and in
/// more, where a likelihood takes as many terms as the square of the degree.
const MAX_DEGREES: [usize; 2] = [80, 30];

/// Degree of the carrier over so many inputs.
pub(crate) fn carrier_degree(dim: usize) -> usize {
    let nodes = |degree: usize| ((degree + 1) as f64).powi(dim as i32);
    let fits = |degree: &usize| n_terms(dim, *degree) <= MAX_TERMS as f64 && nodes(*degree) <= MAX_NODES as f64;
    (1..=MAX_DEGREES[usize::from(dim > 1)]).take_while(fits).last().unwrap_or(1)
}

impl GaussianProcess {
    /// A process over inputs with these names on a trend of total degree `degree`, whose coefficients all have the same normal prior.
    pub fn new(
        degree: usize,
        normalisation: Normalisation,
        coefficients: (f64, f64),
        spec: &GpSpec,
        inputs: &[String],
        scales: &[InputScale],
    ) -> Self {
        let trend = Basis::new(scales.to_vec(), degree, normalisation);
        let degree = spec.carrier.unwrap_or_else(|| carrier_degree(scales.len())).max(degree);
        let carrier = Basis::new(scales.to_vec(), degree, Normalisation::Orthonormal);
        let terms = carrier.names().into_iter();
        let lengths = inputs.iter().map(|input| format!("length[{input}]"));
        let names = terms.chain(lengths).chain(["gp_sd".to_owned()]).collect();
        let priors = inputs.iter().map(|input| spec.length_prior(input, inputs.len()));
        Self {
            trend_prior: vec![coefficients; trend.len()],
            hyper_priors: priors.chain([spec.sd.clone()]).collect(),
            carrier,
            trend,
            names,
            kernel: spec.kernel,
            rows: None,
        }
    }

    /// The same with the rows that it is trained with: natural inputs, values and known sds on its own scale.
    pub(crate) fn with_rows(mut self, x: &Matrix, z: &[f64], sigma_s: &[f64]) -> Self {
        let scales = self.carrier.scales();
        let u = Matrix::from_fn(x.rows(), x.cols(), |i, d| scales[d].scaled(x[(i, d)]).0);
        let mut trend = Matrix::default();
        self.trend.features(x, &mut trend, &mut Vec::new());
        let whitened = Mat::from_fn(trend.rows(), trend.cols(), |i, p| trend[(i, p)] * self.trend_prior[p].1);
        let mean = |i: usize| trend.row(i).iter().zip(&self.trend_prior).map(|(f, (m, _))| f * m).sum::<f64>();
        let z = z.iter().enumerate().map(|(i, z)| z - mean(i)).collect();
        let trend_covariance = &whitened * whitened.transpose();
        self.rows = Some(Arc::new(GpRows { u, trend, trend_covariance, z, sigma_s: sigma_s.to_vec() }));
        self
    }

    /// The same with at most so many of its rows, evenly among them.
    pub(crate) fn some_rows(&self, most: usize) -> Self {
        let some = self.rows().map(|rows| {
            let n = rows.len().min(most);
            let kept: Vec<usize> = (0..n).map(|i| i * rows.len() / n).collect();
            let of = |values: &[f64]| kept.iter().map(|&i| values[i]).collect::<Vec<f64>>();
            Arc::new(GpRows {
                u: rows.u.select_rows(&kept),
                trend: rows.trend.select_rows(&kept),
                trend_covariance: Mat::from_fn(n, n, |i, j| rows.trend_covariance[(kept[i], kept[j])]),
                z: of(&rows.z),
                sigma_s: of(&rows.sigma_s),
            })
        });
        Self { rows: some, ..self.clone() }
    }

    /// Length scales, sd and nugget of a T-draw.
    fn hyper_of(&self, c: &Matrix, nuggets: &[f64], s: usize) -> Vec<f64> {
        (self.carrier.len()..c.rows()).map(|p| c[(p, s)]).chain([nuggets[s]]).collect()
    }

    /// The rows that it was trained with.
    pub(crate) fn rows(&self) -> Option<&GpRows> {
        self.rows.as_deref()
    }

    /// The carrier.
    pub(crate) fn carrier(&self) -> &Basis {
        &self.carrier
    }

    /// Mean and sd of the trend's coefficients.
    pub(crate) fn trend_prior(&self) -> &[(f64, f64)] {
        &self.trend_prior
    }

    /// What a coefficient of the trend is in the carrier, whose first terms are the trend's.
    pub(crate) fn in_carrier(&self, p: usize) -> f64 {
        self.trend.factor(p) / self.carrier.factor(p)
    }

    /// Priors of the length scales, then of the sd.
    pub(crate) fn hyper_priors(&self) -> &[Marginal] {
        &self.hyper_priors
    }

    /// Number of parameters that the data decide, rather than the carrier's: coefficients of the trend and hyper-parameters.
    pub(crate) fn n_parameters(&self) -> usize {
        self.trend.len() + self.hyper_priors.len()
    }

    /// `k(u, v)` of one input.
    pub(crate) fn correlation(&self, d: usize, u: f64, v: f64, hyper: &Hyper) -> f64 {
        self.kernel.value((u - v).abs() / hyper.lengths[d])
    }

    /// `tau^2 k(u, v)`.
    fn covariance(&self, u: &[f64], v: &[f64], hyper: &Hyper) -> f64 {
        let (mut factor, mut exponent) = (hyper.sd * hyper.sd, 0.0);
        for ((u, v), length) in u.iter().zip(v).zip(&hyper.lengths) {
            let (own, own_exponent, _) = self.kernel.parts((u - v).abs() / length);
            factor *= own;
            exponent += own_exponent;
        }
        factor * exponent.exp()
    }

    /// The values at the rows as a normal distribution, the trend integrated out. None where its covariance is not positive definite, whatever is
    /// added to it.
    pub(crate) fn condition(&self, rows: &GpRows, hyper: Hyper) -> Option<Conditioned> {
        let n = rows.len();
        let mut covariance = rows.trend_covariance.clone();
        for j in 0..n {
            for i in j..n {
                covariance[(i, j)] += self.covariance(rows.u.row(i), rows.u.row(j), &hyper);
            }
            covariance[(j, j)] += rows.sigma_s[j].powi(2) + hyper.nugget.powi(2);
        }
        let (factor, jitter) = factorise(&mut covariance)?;
        let values = Mat::from_fn(n, 1, |i, _| rows.z[i]);
        let alpha = factor.solve(&values);
        let log_det: f64 = (0..n).map(|i| 2.0 * factor.L()[(i, i)].ln()).sum();
        let distance: f64 = (0..n).map(|i| rows.z[i] * alpha[(i, 0)]).sum();
        let log_marginal = -0.5 * (log_det + distance + n as f64 * (2.0 * std::f64::consts::PI).ln());
        let alpha = (0..n).map(|i| alpha[(i, 0)]).collect();
        log_marginal.is_finite().then_some(Conditioned { hyper, factor, alpha, log_marginal, jitter })
    }

    /// Derivatives of the log marginal likelihood by the logarithms of the length scales, of the sd and of the nugget.
    pub(crate) fn log_gradient(&self, rows: &GpRows, at: &Conditioned) -> Vec<f64> {
        let (n, dim) = (rows.len(), at.hyper.lengths.len());
        let inverse = at.factor.inverse();
        let mut out = vec![0.0; dim + 2];
        let mut slopes = vec![0.0; dim];
        for j in 0..n {
            for i in j..n {
                // Entries below the diagonal stand for two.
                let twice = if i == j { 0.5 } else { 1.0 };
                let weight = twice * (at.alpha[i] * at.alpha[j] - inverse[(i, j)]);
                let (mut factor, mut exponent) = (at.hyper.sd * at.hyper.sd, 0.0);
                for (d, length) in at.hyper.lengths.iter().enumerate() {
                    let parts = self.kernel.parts((rows.u[(i, d)] - rows.u[(j, d)]).abs() / length);
                    factor *= parts.0;
                    exponent += parts.1;
                    slopes[d] = parts.2;
                }
                let weighted = weight * factor * exponent.exp();
                out.iter_mut().zip(&slopes).for_each(|(out, slope)| *out += weighted * slope);
                out[dim] += 2.0 * weighted;
            }
            let weight = 0.5 * (at.alpha[j] * at.alpha[j] - inverse[(j, j)]);
            out[dim + 1] += 2.0 * weight * at.hyper.nugget.powi(2);
        }
        out
    }

    /// `tau^2 k(u, u_i)` of natural inputs `x` with every row.
    pub(crate) fn with_every_row(&self, rows: &GpRows, x: &[f64], hyper: &Hyper) -> Vec<f64> {
        let u: Vec<f64> = x.iter().zip(self.carrier.scales()).map(|(x, scale)| scale.scaled(*x).0).collect();
        (0..rows.len()).map(|i| self.covariance(&u, rows.u.row(i), hyper)).collect()
    }

    /// Mean and variance of the function at natural inputs `x`, given the rows.
    pub(crate) fn predict_at(&self, rows: &GpRows, at: &Conditioned, x: &[f64]) -> (f64, f64) {
        let mut own = Matrix::default();
        self.trend.features(&Matrix::from_rows(1, x.len(), x.to_vec()), &mut own, &mut Vec::new());
        let weighted: Vec<f64> = own.row(0).iter().zip(&self.trend_prior).map(|(f, (_, sd))| f * sd * sd).collect();
        let mut covariance = self.with_every_row(rows, x, &at.hyper);
        for (i, covariance) in covariance.iter_mut().enumerate() {
            *covariance += rows.trend.row(i).iter().zip(&weighted).map(|(a, b)| a * b).sum::<f64>();
        }
        let of_trend = || own.row(0).iter().zip(&self.trend_prior);
        let prior_mean: f64 = of_trend().map(|(f, (mean, _))| f * mean).sum();
        let prior: f64 = of_trend().map(|(f, (_, sd))| (f * sd).powi(2)).sum::<f64>() + at.hyper.sd.powi(2);
        let mean = prior_mean + covariance.iter().zip(&at.alpha).map(|(k, a)| k * a).sum::<f64>();
        (mean, (prior - at.explained(&covariance)).max(0.0))
    }

    /// The carrier's terms at every point, and a column of zeros for each hyper-parameter.
    fn features(&self, x: &Matrix, own: &mut Matrix, out: &mut Matrix, table: &mut Vec<f64>) {
        self.carrier.features(x, own, table);
        out.reshape(x.rows(), self.names.len());
        let terms = self.carrier.len();
        for i in 0..x.rows() {
            let (used, unused) = out.row_mut(i).split_at_mut(terms);
            used.copy_from_slice(own.row(i));
            unused.fill(0.0);
        }
    }
}

/// The Cholesky factor, and what had to be added to the diagonal for it, as a share of its mean: nothing, where that will do.
pub(crate) fn factorise(covariance: &mut Mat<f64>) -> Option<(Llt<f64>, f64)> {
    const TRIED: [f64; 6] = [0.0, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8];
    let n = covariance.nrows();
    let mean = (0..n).map(|i| covariance[(i, i)]).sum::<f64>() / n as f64;
    let mut added = 0.0;
    for jitter in TRIED {
        (0..n).for_each(|i| covariance[(i, i)] += (jitter - added) * mean);
        added = jitter;
        if let Ok(factor) = covariance.llt(Side::Lower) {
            return Some((factor, jitter));
        }
    }
    None
}

/// The rows given hyper-parameters.
pub(crate) struct Conditioned {
    pub(crate) hyper: Hyper,
    /// Of the covariance C of the values.
    factor: Llt<f64>,
    /// `C^-1 z`.
    pub(crate) alpha: Vec<f64>,
    /// `log p(z | hyper)`.
    pub(crate) log_marginal: f64,
    /// What had to be added to the diagonal, as a share of its mean.
    pub(crate) jitter: f64,
}

impl Conditioned {
    /// `C^-1 b` of every column.
    pub(crate) fn solve(&self, b: &Mat<f64>) -> Mat<f64> {
        self.factor.solve(b)
    }

    /// `L^-1` of `C = L L'`.
    fn half(&self) -> Mat<f64> {
        let n = self.alpha.len();
        let mut half = Mat::identity(n, n);
        solve_lower_triangular_in_place(self.factor.L(), half.as_mut(), Par::Seq);
        half
    }

    /// `C^-1`.
    pub(crate) fn precision(&self) -> Mat<f64> {
        self.factor.inverse()
    }

    /// `k' C^-1 k`.
    pub(crate) fn explained(&self, covariance: &[f64]) -> f64 {
        let mut half = Mat::from_fn(covariance.len(), 1, |i, _| covariance[i]);
        solve_lower_triangular_in_place(self.factor.L(), half.as_mut(), Par::Seq);
        (0..covariance.len()).map(|i| half[(i, 0)].powi(2)).sum()
    }
}

impl Surrogate for GaussianProcess {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn priors(&self) -> &[Marginal] {
        &[]
    }

    fn predict(&self, x: &Matrix, c: &Matrix, eta: &mut Matrix, scratch: &mut Scratch) {
        let [features, own] = &mut scratch.matrices;
        self.features(x, own, features, &mut scratch.values);
        eta.set_product(features, c);
    }

    fn pull_to_inputs(&self, x: &Matrix, c: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix, scratch: &mut Scratch) {
        let [_, g] = &mut scratch.matrices;
        g.set_product_transposed(eta_bar, c);
        for i in 0..x.rows() {
            let of_terms = &g.row(i)[..self.carrier.len()];
            self.carrier.pull_row(x.row(i), of_terms, x_bar.row_mut(i), &mut scratch.values);
        }
    }

    fn pull_to_coefficients(&self, _: &Matrix, _: &Matrix, _: &Matrix, _: &mut Matrix, _: &mut Scratch) {}

    fn linear(&self, x: &Matrix) -> Option<(Vec<f64>, Matrix)> {
        let (mut own, mut out) = (Matrix::default(), Matrix::default());
        self.features(x, &mut own, &mut out, &mut Vec::new());
        Some((vec![0.0; x.rows()], out))
    }

    fn basis(&self) -> Option<&Basis> {
        Some(&self.carrier)
    }

    fn gaussian_process(&self) -> Option<&GaussianProcess> {
        Some(self)
    }
}

/// A process given each of several draws of its hyper-parameters, for many predictions of its function at several points together.
pub(crate) struct Nodes {
    gp: GaussianProcess,
    nodes: Vec<Node>,
}

/// A draw of the hyper-parameters. Of a covariance `C = L L'` that is close to singular, as that of runs without noise is, products with
/// `L^-1` lose the root of what those with `C^-1` do.
struct Node {
    at: Conditioned,
    /// `L^-1`, and `L^-1 z`.
    half: Mat<f64>,
    half_z: Vec<f64>,
}

/// The node of every T-draw, where draws of several processes with their nuggets share draws of their hyper-parameters; none where
/// there are not two T-draws of each node, as of centroids.
pub(crate) fn shared_nodes(processes: &[(&GaussianProcess, &Matrix, &[f64])]) -> Option<Vec<usize>> {
    let n_draws = processes.first()?.1.cols();
    let key =
        |s: usize| -> Vec<f64> { processes.iter().flat_map(|(gp, c, nuggets)| gp.hyper_of(c, nuggets, s)).collect() };
    let mut keys: Vec<Vec<f64>> = Vec::new();
    let of_draw: Vec<usize> = (0..n_draws)
        .map(|s| {
            let key = key(s);
            keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                keys.push(key);
                keys.len() - 1
            })
        })
        .collect();
    (2 * keys.len() <= n_draws).then_some(of_draw)
}

/// Buffers of [`Nodes`]: what the points have in common with the rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeScratch {
    u: Matrix,
    /// Functions of the trend at the points, and these times their prior variances.
    trend: Matrix,
    weighted: Matrix,
    /// Axes that predictions are made on in place of the points, where these are many.
    pub(crate) axes: Option<Arc<Matrix>>,
    /// Prior mean of the trend, and its covariances with the rows and with itself: at the points, or on the axes.
    trend_mean: Vec<f64>,
    trend_with_rows: Matrix,
    trend_own: Matrix,
    /// Inputs in which the points differ from each other, and the points' values of these.
    differing: Vec<usize>,
    known: Matrix,
    /// How often these have changed, and the products of their kernels that each node has made for them.
    version: usize,
    kernels: Vec<KnownKernels>,
    table: Vec<f64>,
    g: Vec<f64>,
}

/// Products of kernels over some of the inputs: of the rows with the points, and of the points with each other.
#[derive(Clone, Debug, Default)]
struct KnownKernels {
    version: usize,
    with_rows: Matrix,
    own: Matrix,
}

impl Nodes {
    /// Nodes with the hyper-parameters and nuggets of these T-draws; none where the process does not know its rows.
    pub(crate) fn new(gp: &GaussianProcess, c: &Matrix, nuggets: &[f64], draws: &[usize]) -> Option<Self> {
        let rows = gp.rows()?;
        let condition = |s: &usize| {
            let mut key = gp.hyper_of(c, nuggets, *s);
            let nugget = key.pop()?;
            let sd = key.pop()?;
            let at = gp.condition(rows, Hyper { lengths: key, sd, nugget })?;
            let half = at.half();
            let half_z = (0..rows.len()).map(|i| (0..=i).map(|j| half[(i, j)] * rows.z[j]).sum()).collect();
            Some(Node { at, half, half_z })
        };
        let nodes = draws.iter().map(condition).collect::<Option<_>>()?;
        Some(Self { gp: gp.clone(), nodes })
    }

    /// Number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Multiplications that predicting so many points together takes, about.
    pub(crate) fn cost(&self, points: usize) -> f64 {
        let (n, g) = (self.rows().len() as f64, points as f64);
        self.len() as f64 * (n * n * g + n * g * g)
    }

    /// Orthonormal axes (columns) of the points with these known inputs, which follow `n_unknowns` others that they share: functions of the
    /// process differ along them, and beside them by `least` of its variance at most.
    pub(crate) fn axes(&self, n_unknowns: usize, points: &Matrix, least: f64) -> Option<Matrix> {
        let (n, scales) = (points.rows(), self.gp.carrier.scales());
        let known = n_unknowns..scales.len();
        let u = Matrix::from_fn(n, known.len(), |g, d| scales[n_unknowns + d].scaled(points[(g, d)]).0);
        let trend = self.gp.trend.products(known, points);
        let kernel = |h: usize, a: usize, b: usize| -> f64 {
            let lengths = &self.nodes[h].at.hyper.lengths[n_unknowns..];
            let parts = u.row(a).iter().zip(u.row(b)).zip(lengths);
            parts.map(|((a, b), length)| self.gp.kernel.value((a - b).abs() / length)).product()
        };
        let mut sum = Mat::from_fn(n, n, |a, b| {
            let mean = (0..self.len()).map(|h| kernel(h, a, b)).sum::<f64>() / self.len() as f64;
            mean + trend.row(a).iter().zip(trend.row(b)).map(|(f, g)| f * g).sum::<f64>()
        });
        sum *= faer::Scale((0..n).map(|i| sum[(i, i)]).sum::<f64>().recip());
        let eigen = sum.self_adjoint_eigen(Side::Lower).ok()?;
        let (vectors, values) = (eigen.U(), eigen.S().column_vector());
        // Values ascend; those that are left out sum to `least`.
        let mut left = 0.0;
        let first = (0..n).find(|&j| {
            left += values[j].max(0.0);
            left > least
        })?;
        Some(Matrix::from_fn(n, n - first, |i, j| vectors[(i, first + j)]))
    }

    /// The nugget of a node.
    pub(crate) fn nugget(&self, node: usize) -> f64 {
        self.nodes[node].at.hyper.nugget
    }

    fn rows(&self) -> &GpRows {
        self.gp.rows.as_deref().expect("checked when the nodes were made")
    }

    /// Makes ready for [`Self::predict`], on the axes of `scratch` where it has any, and [`Self::pull`] at these points, a row each.
    pub(crate) fn set(&self, x: &Matrix, scratch: &mut NodeScratch) {
        let (scales, prior) = (self.gp.carrier.scales(), &self.gp.trend_prior);
        scratch.u.reshape(x.rows(), x.cols());
        for g in 0..x.rows() {
            for (d, scale) in scales.iter().enumerate() {
                scratch.u[(g, d)] = scale.scaled(x[(g, d)]).0;
            }
        }
        self.gp.trend.features(x, &mut scratch.trend, &mut scratch.table);
        scratch.weighted.reshape(x.rows(), prior.len());
        for g in 0..x.rows() {
            for (p, (_, sd)) in prior.iter().enumerate() {
                scratch.weighted[(g, p)] = scratch.trend[(g, p)] * sd * sd;
            }
        }
        let mean = |g: usize| scratch.trend.row(g).iter().zip(prior).map(|(f, (mean, _))| f * mean).sum::<f64>();
        let mean: Vec<f64> = (0..x.rows()).map(mean).collect();
        // The trend's functions weighted by their prior variances, on the axes.
        let axes = scratch.axes.clone();
        let (mut own, mut weighted) = (Matrix::default(), Matrix::default());
        let (trend, weighted) = match &axes {
            Some(axes) => {
                own.reshape(axes.cols(), prior.len());
                own.data_mut().fill(0.0);
                own.add_transposed_product(axes, &scratch.trend);
                weighted.reshape(axes.cols(), prior.len());
                weighted.data_mut().fill(0.0);
                weighted.add_transposed_product(axes, &scratch.weighted);
                let along = |j: usize| (0..x.rows()).map(|g| axes[(g, j)] * mean[g]).sum();
                scratch.trend_mean = (0..axes.cols()).map(along).collect();
                (&own, &weighted)
            }
            None => {
                scratch.trend_mean = mean;
                (&scratch.trend, &scratch.weighted)
            }
        };
        scratch.trend_with_rows.set_product_transposed(&self.rows().trend, weighted);
        scratch.trend_own.set_product_transposed(trend, weighted);
        let u = &scratch.u;
        let differs = |d: &usize| (1..u.rows()).any(|g| u[(g, *d)] != u[(0, *d)]);
        let differing: Vec<usize> = (0..u.cols()).filter(differs).collect();
        let known = u.select_cols(&differing);
        // Unknowns are the same at all points, and known inputs at every call: kernels of the latter are made once.
        if scratch.version == 0 || (&differing, &known) != (&scratch.differing, &scratch.known) {
            (scratch.differing, scratch.known) = (differing, known);
            scratch.version += 1;
        }
        scratch.kernels.resize_with(self.len(), KnownKernels::default);
    }

    /// Makes the kernels of inputs in which the points differ.
    fn set_kernels(&self, node: usize, scratch: &mut NodeScratch) {
        let NodeScratch { u, axes, differing, version, kernels, .. } = scratch;
        if kernels[node].version == *version {
            return;
        }
        let (rows, hyper) = (self.rows(), &self.nodes[node].at.hyper);
        let kernel = |a: &[f64], b: &[f64]| -> f64 {
            differing.iter().map(|&d| self.gp.kernel.value((a[d] - b[d]).abs() / hyper.lengths[d])).product()
        };
        let mut with_rows = Matrix::from_fn(rows.len(), u.rows(), |i, g| kernel(rows.u.row(i), u.row(g)));
        let mut own = Matrix::from_fn(u.rows(), u.rows(), |g, h| kernel(u.row(g), u.row(h)));
        if let Some(axes) = axes {
            let (of_points, mut half) = (own, Matrix::default());
            half.set_product(&of_points, axes);
            own = Matrix::zeros(axes.cols(), axes.cols());
            own.add_transposed_product(axes, &half);
            let at_points = with_rows;
            with_rows = Matrix::default();
            with_rows.set_product(&at_points, axes);
        }
        kernels[node] = KnownKernels { version: *version, with_rows, own };
    }

    /// Covariances of the points with the rows, or of the axes, trend and process together.
    fn with_rows(&self, node: usize, scratch: &NodeScratch) -> Mat<f64> {
        let (rows, hyper) = (self.rows(), &self.nodes[node].at.hyper);
        let mut same: Vec<usize> = (0..hyper.lengths.len()).collect();
        same.retain(|d| !scratch.differing.contains(d));
        let shared = |i: usize| {
            let parts = same.iter().map(|&d| {
                let r = (scratch.u[(0, d)] - rows.u[(i, d)]).abs() / hyper.lengths[d];
                let (factor, exponent, _) = self.gp.kernel.parts(r);
                (factor, exponent)
            });
            let (factor, exponent) = parts.fold((1.0, 0.0), |(f, e), (factor, exponent)| (f * factor, e + exponent));
            hyper.sd * hyper.sd * factor * exponent.exp()
        };
        let shared: Vec<f64> = (0..rows.len()).map(shared).collect();
        let kernels = &scratch.kernels[node].with_rows;
        Mat::from_fn(rows.len(), kernels.cols(), |i, g| scratch.trend_with_rows[(i, g)] + shared[i] * kernels[(i, g)])
    }

    /// Mean and covariance of the function at the points that were set.
    pub(crate) fn predict(&self, node: usize, scratch: &mut NodeScratch) -> (Vec<f64>, Mat<f64>) {
        self.set_kernels(node, scratch);
        let Node { at, half, half_z } = &self.nodes[node];
        let explained_half = half * self.with_rows(node, scratch);
        let n_points = scratch.trend_mean.len();
        let from_rows = |g: usize| half_z.iter().enumerate().map(|(i, z)| z * explained_half[(i, g)]).sum::<f64>();
        let mean = (0..n_points).map(|g| scratch.trend_mean[g] + from_rows(g)).collect();
        let explained = explained_half.transpose() * &explained_half;
        let covariance = Mat::from_fn(n_points, n_points, |g, h| {
            let own = at.hyper.sd * at.hyper.sd * scratch.kernels[node].own[(g, h)];
            let prior = scratch.trend_own[(g, h)] + own;
            prior - 0.5 * (explained[(g, h)] + explained[(h, g)])
        });
        (mean, covariance)
    }

    /// Adds to `x_bar` the derivatives by the points that were set, of what depends on mean and covariance of the function there with
    /// these derivatives, of which the second is symmetric.
    pub(crate) fn pull(
        &self,
        node: usize,
        x: &Matrix,
        (mean_bar, covariance_bar): (&[f64], &Mat<f64>),
        x_bar: &mut Matrix,
        scratch: &mut NodeScratch,
    ) {
        let (Node { at, half, .. }, rows) = (&self.nodes[node], self.rows());
        let with_rows = Mat::from_fn(rows.len(), x.rows(), |i, g| {
            let trend: f64 = rows.trend.row(i).iter().zip(scratch.weighted.row(g)).map(|(a, b)| a * b).sum();
            trend + self.gp.covariance(scratch.u.row(g), rows.u.row(i), &at.hyper)
        });
        let solved = half.transpose() * (half * with_rows);
        let rest = &solved * covariance_bar;
        let n_points = x.rows();
        for g in 0..n_points {
            let by_row = |i: usize| mean_bar[g] * at.alpha[i] - 2.0 * rest[(i, g)];
            scratch.g.clear();
            for (p, (mean, sd)) in self.gp.trend_prior.iter().enumerate() {
                let of_rows: f64 = (0..rows.len()).map(|i| by_row(i) * rows.trend[(i, p)]).sum();
                let of_points: f64 = (0..n_points).map(|h| covariance_bar[(g, h)] * scratch.trend[(h, p)]).sum();
                scratch.g.push(mean_bar[g] * mean + sd * sd * (of_rows + 2.0 * of_points));
            }
            self.gp.trend.pull_row(x.row(g), &scratch.g, x_bar.row_mut(g), &mut scratch.table);
            let u = scratch.u.row(g);
            let others = (0..rows.len()).map(|i| (by_row(i), rows.u.row(i)));
            let own = (0..n_points).map(|h| (2.0 * covariance_bar[(g, h)], scratch.u.row(h)));
            for (weight, v) in others.chain(own) {
                let weighted = weight * self.gp.covariance(u, v, &at.hyper);
                for (d, scale) in self.gp.carrier.scales().iter().enumerate() {
                    let away = u[d] - v[d];
                    // Kernels are flat where inputs are equal.
                    if away != 0.0 {
                        let slope = self.gp.kernel.parts(away.abs() / at.hyper.lengths[d]).2;
                        x_bar[(g, d)] -= weighted * slope / away * scale.scaled(x[(g, d)]).1;
                    }
                }
            }
        }
    }
}
