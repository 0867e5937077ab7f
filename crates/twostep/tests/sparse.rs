//! Polynomials of which few terms matter: public test functions against numbers that others published, and the sampler against a posterior
//! that is known.

#![allow(clippy::unwrap_used, reason = "tests")]

use rand::RngExt;
use std::f64::consts::PI;
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::prior::Marginal;
use twostep::simulate::design::{Method, unit_points};
use twostep::stream::Stream;
use twostep::surrogate::{InputScale, Scratch, SigmaA, SurrogateKind, SurrogateSpec};
use twostep::train::{OutputTask, TPosterior, TrainSpec, TrainingSet, train};

/// A function of inputs between bounds.
struct Function {
    bounds: Vec<(f64, f64)>,
    value: fn(&[f64]) -> f64,
}

impl Function {
    fn of_unit(&self, point: &[f64]) -> Vec<f64> {
        self.bounds.iter().zip(point).map(|((lower, upper), u)| lower + u * (upper - lower)).collect()
    }

    /// Trained with so many Sobol' points.
    fn trained(&self, degree: usize, runs: usize) -> TPosterior {
        let dim = self.bounds.len();
        let points = unit_points(Method::Sobol, runs, dim, Stream::root(1)).unwrap();
        let inputs: Vec<Vec<f64>> = points.iter().map(|point| self.of_unit(point)).collect();
        let y = inputs.iter().map(|x| (self.value)(x)).collect();
        let names = (0..dim).map(|d| format!("x{d}")).collect();
        let set = TrainingSet::new(names, Matrix::from_fn(runs, dim, |i, d| inputs[i][d]), vec![("y".into(), y)]);
        let scales: Vec<InputScale> =
            self.bounds.iter().map(|&(lower, upper)| InputScale { lower, upper, log: false }).collect();
        let spec = SurrogateSpec {
            kind: SurrogateKind::SparsePce { degree, q_norm: 1.0 },
            sigma_a: SigmaA::Prior("exponential(1)".parse::<Marginal>().unwrap()),
            standardise: true,
        };
        let task = OutputTask { name: "y", spec: &spec, log: false, affine: None, n_inputs: dim };
        train(&set, &[task], &scales, &TrainSpec::default(), None, Stream::root(7), &Silent).unwrap()
    }

    /// Root mean square error of the posterior mean, and how often 95 % intervals hold the value, at independent points.
    fn tested(&self, posterior: &TPosterior) -> (f64, f64) {
        const POINTS: usize = 10_000;
        let mut rng = Stream::root(99).rng();
        let dim = self.bounds.len();
        let inputs: Vec<Vec<f64>> =
            (0..POINTS).map(|_| self.of_unit(&(0..dim).map(|_| rng.random::<f64>()).collect::<Vec<_>>())).collect();
        let (coefficients, sigma_a) = posterior.output_draws(0);
        let (shift, factor) = posterior.outputs[0].affine;
        let (mut squares, mut inside) = (0.0, 0);
        let mut scratch = Scratch::default();
        for chunk in inputs.chunks(500) {
            let x = Matrix::from_fn(chunk.len(), dim, |i, d| chunk[i][d]);
            let mut eta = Matrix::default();
            posterior.outputs[0].surrogate.predict(&x, &coefficients, &mut eta, &mut scratch);
            for (i, x) in chunk.iter().enumerate() {
                let value = (self.value)(x);
                let draws: Vec<f64> = eta.row(i).iter().map(|eta| shift + factor * eta).collect();
                let n = draws.len() as f64;
                squares += (draws.iter().sum::<f64>() / n - value).powi(2);
                // The probability below the value of a mixture of normals.
                let below = |(mean, sd): (&f64, &f64)| twostep::special::normal_cdf((value - mean) / sd);
                let below = draws.iter().zip(&sigma_a).map(below).sum::<f64>() / n;
                inside += usize::from((0.025..=0.975).contains(&below));
            }
        }
        ((squares / POINTS as f64).sqrt(), inside as f64 / POINTS as f64)
    }
}

fn ishigami() -> Function {
    Function {
        bounds: vec![(-PI, PI); 3],
        value: |x| x[0].sin() + 7.0 * x[1].sin().powi(2) + 0.1 * x[2].powi(4) * x[0].sin(),
    }
}

fn sobol_g() -> Function {
    const A: [f64; 8] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0];
    Function {
        bounds: vec![(0.0, 1.0); 8],
        value: |x| x.iter().zip(A).map(|(x, a)| ((4.0 * x - 2.0).abs() + a) / (1.0 + a)).product(),
    }
}

fn borehole() -> Function {
    Function {
        bounds: vec![
            (0.05, 0.15),
            (100.0, 50_000.0),
            (63_070.0, 115_600.0),
            (990.0, 1110.0),
            (63.1, 116.0),
            (700.0, 820.0),
            (1120.0, 1680.0),
            (9855.0, 12_045.0),
        ],
        value: |x| {
            let log_ratio = (x[1] / x[0]).ln();
            let resistance = 2.0 * x[6] * x[2] / (log_ratio * x[0] * x[0] * x[7]);
            2.0 * PI * x[2] * (x[3] - x[5]) / (log_ratio * (1.0 + resistance + x[2] / x[4]))
        },
    }
}

fn friedman() -> Function {
    Function {
        bounds: vec![(0.0, 1.0); 5],
        value: |x| 10.0 * (PI * x[0] * x[1]).sin() + 20.0 * (x[2] - 0.5).powi(2) + 10.0 * x[3] + 5.0 * x[4],
    }
}

/// What is asked of a polynomial: its error, and the share of 95 % intervals that hold the value.
fn check(function: &Function, degree: usize, runs: usize, most: f64) -> TPosterior {
    let posterior = function.trained(degree, runs);
    let (error, coverage) = function.tested(&posterior);
    assert!(error <= most, "{error}");
    assert!((0.90..=0.98).contains(&coverage), "{coverage}");
    posterior
}

/// A full polynomial with an R2D2 prior has 1.98, the best 25 selected terms 0.0066. The terms that matter are those that the function has:
/// odd ones of the first input with even ones of the third, and even ones of the second alone.
#[test]
fn ishigami_from_a_hundred_runs() {
    let posterior = check(&ishigami(), 10, 100, 0.05);
    let terms = posterior.outputs[0].report.terms.clone().unwrap();
    assert_eq!(terms.candidates, 286);
    let is_of_function = |name: &str| {
        let degrees: Vec<usize> = name[2..name.len() - 1].split(',').map(|d| d.parse().unwrap()).collect();
        let of_first = degrees[0] % 2 == 1 && degrees[1] == 0 && degrees[2].is_multiple_of(2);
        of_first || (degrees[0] == 0 && degrees[1].is_multiple_of(2) && degrees[2] == 0)
    };
    let foreign: f64 = terms.matter.iter().filter(|(name, _)| !is_of_function(name)).map(|(_, share)| share).sum();
    assert!(terms.matter.len() >= 10 && foreign < 1e-4, "{:?}", terms.matter);
    // Total Sobol' indices, 0.55759, 0.44241 and 0.24368, as shares of the mean squares of all terms of an input: the mean square of the error
    // over that of the function bounds what each can be off by.
    let (coefficients, _) = posterior.output_draws(0);
    let basis = posterior.outputs[0].surrogate.basis().unwrap();
    let mean_square = |p: usize| coefficients.row(p).iter().map(|c| c * c).sum::<f64>() / coefficients.cols() as f64;
    let total: f64 = (1..basis.len()).map(mean_square).sum();
    for (d, exact) in [0.55759, 0.44241, 0.24368].into_iter().enumerate() {
        let of_input = (1..basis.len()).filter(|&p| basis.degrees()[p][d] > 0).map(mean_square).sum::<f64>() / total;
        let bound = 2.0 * 0.05 / 13.84459_f64.sqrt();
        assert!((of_input - exact).abs() < bound, "{d}: {of_input}");
    }
}

/// A full polynomial has 0.242, the best selection 0.060.
#[test]
fn sobol_g_from_three_hundred_runs() {
    check(&sobol_g(), 6, 300, 0.06);
}

/// Half a percent of the outputs' sd of 45.6. With fewer runs the intervals are too wide: they hold the value in 98.8 % at 150 runs.
#[test]
fn borehole_from_two_hundred_runs() {
    check(&borehole(), 4, 200, 0.005 * 45.6);
}

/// Half a percent of the outputs' sd of 4.8.
#[test]
fn friedman_from_a_hundred_runs() {
    check(&friedman(), 6, 100, 0.005 * 4.8);
}

/// The horseshoe of one coefficient against quadrature over its scale: a line of which the data say little.
#[test]
fn one_coefficient_has_its_posterior() {
    let function = Function { bounds: vec![(-1.0, 1.0)], value: |x| 0.3 * x[0] + 0.4 * (40.0 * x[0]).sin() };
    let posterior = function.trained(1, 9);
    let (shift, factor) = posterior.outputs[0].affine;
    let points = unit_points(Method::Sobol, 9, 1, Stream::root(1)).unwrap();
    let x: Vec<f64> = points.iter().map(|point| 2.0 * point[0] - 1.0).collect();
    let z: Vec<f64> = x.iter().map(|x| ((function.value)(&[*x]) - shift) / factor).collect();
    let n = x.len() as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / n;
    let phi: Vec<f64> = x.iter().map(|x| 3.0_f64.sqrt() * x).collect();
    let (phi_mean, z_mean) = (mean(&phi), mean(&z));
    let centred = |values: &[f64], mean: f64| values.iter().map(|v| v - mean).collect::<Vec<f64>>();
    let (phi, z) = (centred(&phi, phi_mean), centred(&z, z_mean));
    let inner = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (gram, along, square) = (inner(&phi, &phi), inner(&phi, &z), inner(&z, &z));
    // Scales by their logarithms: lambda, tau over sigma tau_0, and sigma. One term is expected of one: tau_0 = 1 / sqrt(n).
    let (mut total, mut first, mut second, mut of_sigma) = (0.0, 0.0, 0.0, 0.0);
    let half_cauchy = |log: f64| log.exp() / (1.0 + (2.0 * log).exp());
    let grid = |k: i32, half: i32, reach: f64| reach * f64::from(k) / f64::from(half);
    for i in -80..=80 {
        let sigma = grid(i, 80, 7.0).exp();
        for j in -80..=80 {
            let log_tau = grid(j, 80, 16.0);
            for k in -80..=80 {
                let log_lambda = grid(k, 80, 16.0);
                let sd = (log_lambda + log_tau).exp() * sigma / n.sqrt();
                let precision = gram / (sigma * sigma) + sd.powi(-2);
                let variance = precision.recip();
                let centre = variance * along / (sigma * sigma);
                // The flat constant takes one of the n directions.
                let log_likelihood = -(n - 1.0) * sigma.ln() - 0.5 * square / (sigma * sigma)
                    + 0.5 * centre * centre * precision
                    + 0.5 * (variance / (sd * sd)).ln();
                let prior = half_cauchy(log_lambda) * half_cauchy(log_tau) * (-sigma).exp() * sigma;
                let weight = prior * log_likelihood.exp();
                total += weight;
                first += weight * centre;
                second += weight * (centre * centre + variance);
                of_sigma += weight * sigma;
            }
        }
    }
    let (exact_mean, exact_square, exact_sigma) = (first / total, second / total, of_sigma / total);
    let draws = posterior.draws.values();
    let (c, sigma_a) = (draws.row(1), draws.row(2));
    let squares: Vec<f64> = c.iter().map(|c| c * c).collect();
    // Three comparisons at alpha = 1e-4: z = 4.15.
    for (values, exact) in [(c, exact_mean), (&squares[..], exact_square), (sigma_a, exact_sigma)] {
        let chains: Vec<Vec<f64>> = values.chunks(values.len() / 4).map(<[f64]>::to_vec).collect();
        let found = values.iter().sum::<f64>() / values.len() as f64;
        let error = twostep::mcmc::diagnostics::mcse_mean(&chains);
        assert!((found - exact).abs() < 4.15 * error, "{found} {exact} ({error})");
    }
}
