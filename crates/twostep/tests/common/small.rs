//! Small problems made in memory: a surrogate with given T-draws, measurements and noise.

#![allow(dead_code, reason = "each test file uses a part of this")]
#![allow(unreachable_pub, reason = "a module of several test crates")]
#![allow(clippy::unwrap_used, reason = "tests")]

use rand::RngExt;
use std::sync::Arc;
use twostep::draws::Draws;
use twostep::infer::propagation::{Method, PointEstimate, Propagation};
use twostep::infer::{InferSpec, Likelihoods, Measured, Prepared, Problem, Target};
use twostep::likelihood::{ErrorSharing, Family, NoiseSpec, Scale};
use twostep::matrix::Matrix;
use twostep::prior::{Marginal, Prior};
use twostep::stream::Stream;
use twostep::surrogate::{Formula, InputScale, Normalisation, PolynomialChaos, Surrogate, VaryingError};
use twostep::train::{LeaveOneOut, TReport, TrainedOutput, joint_names};

pub fn marginal(text: &str) -> Marginal {
    text.parse().unwrap()
}

/// Uniform between -1 and 1.
pub fn symmetric(rng: &mut impl RngExt) -> f64 {
    2.0 * rng.random::<f64>() - 1.0
}

pub fn unit_scale() -> InputScale {
    InputScale { lower: -1.0, upper: 1.0, log: false }
}

/// A polynomial of `n_inputs` inputs in [-1, 1] whose basis functions never exceed one.
pub fn polynomial(degree: usize, n_inputs: usize) -> Arc<dyn Surrogate> {
    let scales = vec![unit_scale(); n_inputs];
    Arc::new(PolynomialChaos::new(degree, Normalisation::None, marginal("normal(0, 1)"), scales))
}

/// A logistic curve over the condition `t`, moved by unknown `a` and tilted by unknown `b`.
pub fn logistic() -> Arc<dyn Surrogate> {
    let inputs = ["a", "b", "t"].map(String::from);
    let parameters = ["alpha", "beta", "gamma"].map(|name| (name.to_string(), marginal("normal(0, 1)")));
    Arc::new(Formula::new("alpha / (1 + exp(-beta*(t - a))) + gamma*b", &inputs, parameters.to_vec()).unwrap())
}

/// The surrogate of `n_inputs` inputs in [-1, 1], with an approximation error that depends on them.
pub fn varying(surrogate: Arc<dyn Surrogate>, degree: usize, n_inputs: usize) -> Arc<dyn Surrogate> {
    Arc::new(VaryingError::new(surrogate, degree, &marginal("normal(0, 0.5)"), &vec![unit_scale(); n_inputs]))
}

/// Everything an I-step needs, of one output.
#[derive(Clone)]
pub struct Small {
    pub output: TrainedOutput,
    pub draws: Draws,
    pub unknowns: Prior,
    pub noise: NoiseSpec,
    pub measured: Measured,
}

impl Small {
    /// `coefficients` is P x S; the unknowns have a normal prior within [-1, 1].
    pub fn new(surrogate: Arc<dyn Surrogate>, coefficients: &Matrix, sigma_a: &[f64], n_unknowns: usize) -> Self {
        let names = joint_names(std::iter::once(("y", &*surrogate)));
        let values = Matrix::from_rows(names.len(), sigma_a.len(), [coefficients.data(), sigma_a].concat());
        let unknowns = ["a", "b", "c"][..n_unknowns].iter().map(|name| name.to_string()).collect();
        let prior = marginal("normal(0.1, 0.6)").truncated(-1.0, 1.0).unwrap();
        Self {
            output: trained(surrogate),
            draws: Draws::new(names, values),
            unknowns: Prior::new(unknowns, vec![prior; n_unknowns]).unwrap(),
            noise: NoiseSpec { family: Family::Normal, scale: Scale::Fixed(0.2) },
            measured: Measured { output: "y".into(), ..Measured::default() },
        }
    }

    /// Random coefficients around `centre` (P of them), S draws.
    pub fn random(surrogate: Arc<dyn Surrogate>, centre: &[f64], spread: f64, n_draws: usize, seed: u64) -> Self {
        let mut rng = Stream::root(seed).named("small").rng();
        let coefficients = Matrix::from_fn(centre.len(), n_draws, |p, _| centre[p] + spread * symmetric(&mut rng));
        let sigma_a: Vec<f64> = (0..n_draws).map(|_| 0.1 + 0.2 * rng.random::<f64>()).collect();
        Self::new(surrogate, &coefficients, &sigma_a, 2)
    }

    /// The same with so many unknowns, where the surrogate takes them.
    pub fn with_unknowns(mut self, n: usize) -> Self {
        let prior = self.unknowns.marginals()[0].clone();
        self.unknowns = Prior::new((0..n).map(|d| format!("w{d}")).collect(), vec![prior; n]).unwrap();
        self
    }

    pub fn measure(mut self, y: Vec<f64>, known: Matrix) -> Self {
        self.measured = Measured { y, known, ..self.measured };
        self
    }

    pub fn noise(mut self, family: Family, sd: Scale) -> Self {
        self.noise = NoiseSpec { family, scale: sd };
        self
    }

    pub fn prepared(&self, spec: &InferSpec, conditioning: bool) -> twostep::Result<Prepared> {
        let problem = Problem {
            outputs: std::slice::from_ref(&self.output),
            draws: &self.draws,
            unknowns: self.unknowns.clone().into(),
            noise: vec![self.noise.clone()],
            measured: std::slice::from_ref(&self.measured),
            derived: Vec::new(),
        };
        Prepared::new(problem, spec, conditioning)
    }

    /// The problem with the draws that a method reduces the T-posterior to.
    pub fn reduced(&self, propagation: &dyn Propagation) -> Self {
        Self { draws: propagation.reduce(&self.draws), ..self.clone() }
    }
}

/// A surrogate that nothing is known about.
pub fn trained(surrogate: Arc<dyn Surrogate>) -> TrainedOutput {
    let leave_one_out =
        LeaveOneOut { q2: None, coverage_90: f64::NAN, predictions: Vec::new(), unreliable: 0, log_scores: Vec::new() };
    let report = TReport {
        output: "y".into(),
        method: "given".into(),
        n_rows: 0,
        n_runs: 0,
        parameters: Vec::new(),
        predictive_coverage_90: f64::NAN,
        leave_one_out,
        divergences: 0,
        troubled: false,
        warnings: Vec::new(),
        choice: None,
        terms: None,
        series: None,
        importance: None,
    };
    TrainedOutput { name: "y".into(), surrogate, affine: (0.0, 1.0), log: false, n_inputs: 1, report }
}

pub fn settings(sigma_a: bool, error: ErrorSharing) -> InferSpec {
    InferSpec { sigma_a, error, draws: 10, ..InferSpec::default() }
}

pub fn propagation(method: Method) -> Box<dyn Propagation> {
    method.propagation(PointEstimate::Mean)
}

/// Pooled log-likelihood and gradient at unknowns and sds `x`.
pub fn pooled(prepared: &Prepared, method: Method, x: &[f64]) -> (f64, Vec<f64>) {
    pooled_of(prepared.likelihoods(), prepared.prior(), method, prepared.log_alpha(), x)
}

pub fn pooled_of(
    likelihoods: &Likelihoods,
    prior: &Prior,
    method: Method,
    log_alpha: &[f64],
    x: &[f64],
) -> (f64, Vec<f64>) {
    let propagation = propagation(method);
    let mut gradient = vec![f64::NAN; x.len()];
    let value = Target::new(likelihoods, prior, &*propagation, log_alpha).log_likelihood(x, &mut gradient);
    (value, gradient)
}

/// `l_s` of every draw at unknowns and sds `x`.
pub fn log_likelihoods(prepared: &Prepared, x: &[f64]) -> Vec<f64> {
    let likelihoods = prepared.likelihoods();
    let (omega, sigma) = x.split_at(likelihoods.n_unknowns());
    let (mut workspace, mut l) = (twostep::infer::Workspace::default(), vec![0.0; likelihoods.n_draws()]);
    likelihoods.set_unknowns(omega, &mut workspace);
    likelihoods.log_likelihoods(sigma, &workspace, &mut l);
    l
}

/// The log density of normal deviations with this covariance, by elimination.
pub fn log_normal_density(mut r: Vec<f64>, mut v: Matrix) -> f64 {
    let mut log = -0.5 * r.len() as f64 * (2.0 * std::f64::consts::PI).ln();
    for k in 0..r.len() {
        log -= 0.5 * (v[(k, k)].ln() + r[k] * r[k] / v[(k, k)]);
        for i in k + 1..r.len() {
            let factor = v[(i, k)] / v[(k, k)];
            r[i] -= factor * r[k];
            (k..v.cols()).for_each(|j| v[(i, j)] -= factor * v[(k, j)]);
        }
    }
    log
}

/// Sum over measurements of the absolute terms of the log-likelihood of each draw (the largest is returned), with the error
/// that one rounding in every term of the surrogate makes there: `(1 + (|z| + |mu|) / sd)^2 + |log sd| + |log y|`.
///
/// Every rounding error of a log-likelihood is a multiple of machine epsilon times this: the squared residual amplifies a
/// relative error of `mu` by at most `(|z| + |mu|) / sd^2 x |mu|`.
pub fn size_of_terms(small: &Small, x: &[f64]) -> f64 {
    let n = small.unknowns.len();
    let log_scale = matches!(small.noise.family, Family::LogNormal { .. });
    let sd = match &small.noise.scale {
        Scale::Fixed(sd) => *sd,
        _ => x[n],
    };
    let p = small.output.surrogate.names().len();
    let coefficients = small.draws.values().select_rows(&(0..p).collect::<Vec<_>>());
    let known = &small.measured.known;
    let inputs = Matrix::from_fn(known.rows(), n + known.cols(), |i, d| if d < n { x[d] } else { known[(i, d - n)] });
    let mut eta = Matrix::default();
    small.output.surrogate.predict(&inputs, &coefficients, &mut eta, &mut Default::default());
    let mut largest = 0.0_f64;
    for s in 0..coefficients.cols() {
        // Basis functions and the logistic curve lie within one; an error in its exponent is multiplied by at most one.
        let size: f64 = 1.0 + coefficients.col(s).iter().map(|c| c.abs()).sum::<f64>();
        let mut sum = 0.0;
        for (i, &y) in small.measured.y.iter().enumerate() {
            let mu = match (small.output.log, log_scale) {
                (true, false) => eta[(i, s)].exp() * (1.0 + size),
                (false, true) => eta[(i, s)].ln().abs() + size / eta[(i, s)],
                _ => size,
            };
            let log_y = if log_scale { y.max(0.5).ln().abs() } else { 0.0 };
            let z = if log_scale { log_y } else { y.abs() };
            sum += (1.0 + (z + mu) / sd).powi(2) + sd.ln().abs() + log_y;
        }
        largest = largest.max(sum);
    }
    largest
}
