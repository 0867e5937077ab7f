//! Polynomials of which few terms matter: public test functions against numbers that others published, and the sampler against a posterior
//! that is known.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/functions.rs"]
mod functions;

use functions::{Function, borehole, friedman, ishigami, sobol_g};
use twostep::simulate::design::{Method, unit_points};
use twostep::stream::Stream;
use twostep::surrogate::SurrogateKind;
use twostep::train::{Order, TPosterior};

fn sparse(function: &Function, degree: usize, runs: usize) -> TPosterior {
    function.trained(SurrogateKind::SparsePce { degree, q_norm: 1.0 }, runs)
}

/// What is asked of a polynomial: its error, and the share of 95 % intervals that hold the value.
fn check(function: &Function, degree: usize, runs: usize, most: f64) -> TPosterior {
    let posterior = sparse(function, degree, runs);
    let (error, coverage, _) = function.tested(&posterior);
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
    let posterior = sparse(&function, 1, 9);
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

/// First-order and total indices, an input after the other, that central intervals over the T-draws of a probability do not hold.
fn missed(posterior: &TPosterior, exact: &[[f64; 2]], probability: f64) -> Vec<(usize, Order)> {
    let indices = posterior.sensitivity(0).unwrap();
    let mut missed = Vec::new();
    for (d, exact) in exact.iter().enumerate() {
        for (order, exact) in [Order::First, Order::Total].into_iter().zip(exact) {
            let [low, high] = indices.quantiles(order, d, [0.5 - 0.5 * probability, 0.5 + 0.5 * probability]);
            if !(low..=high).contains(exact) {
                missed.push((d, order));
            }
        }
    }
    missed
}

/// First-order and total indices of each input of Ishigami's function.
fn ishigami_indices() -> [[f64; 2]; 3] {
    let (b, pi4) = (0.1, std::f64::consts::PI.powi(4));
    let first = 0.5 * (1.0 + b * pi4 / 5.0_f64).powi(2);
    let (second, both) = (49.0 / 8.0, b * b * pi4 * pi4 * (1.0 / 18.0 - 1.0 / 50.0));
    let variance = first + second + both;
    [[first, first + both], [second, second], [0.0, both]].map(|part| part.map(|part| part / variance))
}

fn sobol_g_indices() -> [[f64; 2]; 8] {
    let own = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0].map(|a: f64| (1.0 + a).powi(-2) / 3.0);
    let product: f64 = own.iter().map(|own| 1.0 + own).product();
    own.map(|own| [own, own * product / (1.0 + own)].map(|part| part / (product - 1.0)))
}

/// The first-order index of Ishigami's third input is zero, and the sum of squares of its coefficients is not; three inputs of Sobol' G have a thousandth of the
/// variance and less, where the polynomial leaves 6e-4 of it open.
#[test]
fn sobol_indices_of_sparse_polynomials() {
    assert_eq!(missed(&sparse(&ishigami(), 10, 100), &ishigami_indices(), 0.95), []);
    assert_eq!(missed(&sparse(&sobol_g(), 6, 300), &sobol_g_indices(), 0.95), []);
}
