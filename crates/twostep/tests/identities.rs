//! What must hold of the four methods whatever the numbers are: limits, symmetries, inequalities and the paper's counterexample.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/small.rs"]
mod small;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use small::{Small, log_likelihoods, pooled, propagation, settings, size_of_terms, symmetric};
use twostep::draws::Draws;
use twostep::infer::propagation::Method;
use twostep::infer::{Engine, IPosterior, InferSpec, Measured, Prepared, Problem, QuantitySummary};
use twostep::likelihood::{ErrorSharing, Family, NoiseSpec, Scale};
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::prior::Prior;
use twostep::special::log_sum_exp;
use twostep::stream::Stream;
use twostep::surrogate::{Basis, InputScale, Normalisation, PolynomialChaos};
use twostep::train::{TrainedOutput, joint_names};

const POOLS: [Method; 3] = [Method::Point, Method::ELik, Method::ELogLik];
/// Roundings per term of a log-likelihood: the surrogate, residual, square, weight and sum.
const OPERATIONS: f64 = 16.0;

/// A cubic in two unknowns and a condition, five measurements with `replicates` each.
fn cubic(n_draws: usize, replicates: usize, seed: u64) -> Small {
    let surrogate = small::polynomial(3, 3);
    let mut rng = Stream::root(seed).named("centre").rng();
    let mut centre: Vec<f64> = surrogate.names().iter().map(|_| 0.3 * symmetric(&mut rng)).collect();
    // Both unknowns matter at every condition.
    (centre[1], centre[2], centre[3]) = (0.5, 1.0, -1.5);
    let known = Matrix::from_fn(5 * replicates, 1, |i, _| -0.8 + 0.4 * (i / replicates) as f64);
    let y = (0..known.rows()).map(|i| 0.5 * known[(i, 0)] + 0.2 * symmetric(&mut rng)).collect();
    Small::random(surrogate, &centre, 0.1, n_draws, seed).measure(y, known)
}

/// A cubic in one unknown, for posteriors on a grid; with the sd known, or unknown.
fn curve(n_draws: usize, sd: Scale) -> Small {
    let mut rng = Stream::root(7).rng();
    let coefficients = Matrix::from_fn(4, n_draws, |p, _| [0.2, 1.0, 0.3, 0.2][p] + 0.1 * symmetric(&mut rng));
    let sigma_a: Vec<f64> = (0..n_draws).map(|_| 0.1 + 0.1 * symmetric(&mut rng).abs()).collect();
    Small::new(small::polynomial(3, 1), &coefficients, &sigma_a, 1)
        .measure(vec![0.31, 0.52, 0.44], Matrix::zeros(3, 0))
        .noise(Family::Normal, sd)
}

fn sigma() -> Scale {
    Scale::Prior(small::marginal("half-normal(0.5)"))
}

/// How many times the terms of the general form the conditioned one adds up; see `tests/gradients.rs`.
fn expansion(n_unknowns: usize) -> f64 {
    let basis = Basis::new(vec![small::unit_scale(); n_unknowns], 6, Normalisation::Orthonormal);
    (0..basis.len()).map(|k| basis.factor(k)).sum()
}

fn rounding(small: &Small, x: &[f64]) -> f64 {
    OPERATIONS * f64::EPSILON * size_of_terms(small, x)
}

fn by_grid(small: &Small, sigma_a: bool) -> Vec<IPosterior> {
    let spec = InferSpec { engine: Engine::Grid, ..settings(sigma_a, ErrorSharing::Shared) };
    let prepared = small.prepared(&spec, true).unwrap();
    twostep::infer::infer(&prepared, &spec, Stream::root(1), &Silent).unwrap()
}

fn numbers(summary: &QuantitySummary) -> [f64; 7] {
    let [a, b, c, d, e] = summary.quantiles();
    [summary.mean, summary.sd, a, b, c, d, e]
}

/// Largest difference of mean, sd and quantiles in sds.
fn distance(a: &QuantitySummary, b: &QuantitySummary) -> f64 {
    numbers(a).iter().zip(numbers(b)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / a.sd
}

/// Log-weights and log-likelihoods of S draws; the likelihoods span many orders of magnitude.
fn weighted_likelihoods() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
    (1_usize..40).prop_flat_map(|n| {
        let weights = prop::collection::vec(-3.0..0.0_f64, n);
        let values = prop::collection::vec(-400.0..100.0_f64, n);
        (weights, values).prop_map(|(raw, l)| {
            let total = log_sum_exp(&raw);
            (raw.iter().map(|w| w - total).collect(), l)
        })
    })
}

fn pool(method: Method, log_alpha: &[f64], l: &[f64]) -> (f64, Vec<f64>) {
    let mut weights = l.to_vec();
    (propagation(method).pool(log_alpha, &mut weights), weights)
}

/// Largest absolute value.
fn largest(values: &[f64]) -> f64 {
    values.iter().fold(1.0, |m: f64, v| m.max(v.abs()))
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn pooled_weights_sum_to_one((log_alpha, l) in weighted_likelihoods()) {
        for method in [Method::Point, Method::ELik, Method::ELogLik, Method::EPost] {
            let (_, weights) = pool(method, &log_alpha, &l);
            prop_assert!(weights.iter().all(|w| (0.0..=1.0).contains(w)), "{}: {weights:?}", method.name());
            // The log-weights themselves sum to one up to their own rounding, each a few epsilon of three log units.
            let bound = 4.0 * (l.len() + 4) as f64 * f64::EPSILON;
            prop_assert!((weights.iter().sum::<f64>() - 1.0).abs() <= bound, "{}", method.name());
        }
    }

    #[test]
    fn a_constant_passes_through((log_alpha, l) in weighted_likelihoods(), constant in -300.0..300.0_f64) {
        let moved: Vec<f64> = l.iter().map(|l| l + constant).collect();
        // One rounding of every log-likelihood, then of the sum.
        let bound = 4.0 * (l.len() + 4) as f64 * f64::EPSILON * (largest(&l) + constant.abs());
        for method in POOLS {
            let ((value, weights), (shifted, same)) = (pool(method, &log_alpha, &l), pool(method, &log_alpha, &moved));
            prop_assert!((shifted - value - constant).abs() <= bound, "{}: {value} {shifted}", method.name());
            for (w, same) in weights.iter().zip(&same) {
                prop_assert!((w - same).abs() <= bound, "{}", method.name());
            }
        }
    }

    #[test]
    fn mean_of_likelihoods_is_never_below_mean_of_logarithms((log_alpha, l) in weighted_likelihoods()) {
        let (mean, log_mean) = (pool(Method::ELik, &log_alpha, &l).0, pool(Method::ELogLik, &log_alpha, &l).0);
        let bound = 4.0 * (l.len() + 4) as f64 * f64::EPSILON * largest(&l);
        prop_assert!(mean >= log_mean - bound, "{mean} {log_mean}");
    }

    #[test]
    fn order_and_splitting_of_draws_change_no_pool(
        (log_alpha, l) in weighted_likelihoods(),
        turn in 0_usize..40,
        split in 0_usize..40,
    ) {
        let (turn, split) = (turn % l.len(), split % l.len());
        let (mut alpha, mut values) = (log_alpha.clone(), l.clone());
        alpha[split] -= std::f64::consts::LN_2;
        alpha.push(alpha[split]);
        values.push(l[split]);
        alpha.rotate_left(turn);
        values.rotate_left(turn);
        let bound = 8.0 * (l.len() + 4) as f64 * f64::EPSILON * largest(&l);
        for method in POOLS {
            let (value, same) = (pool(method, &log_alpha, &l).0, pool(method, &alpha, &values).0);
            prop_assert!((value - same).abs() <= bound, "{}: {value} {same}", method.name());
        }
    }

    #[test]
    fn order_and_splitting_of_draws_change_no_likelihood(
        seed in 0_u64..1000,
        n_draws in 1_usize..40,
        omega in [-0.9..0.9_f64, -0.9..0.9_f64],
        conditioning: bool,
        sigma_a: bool,
    ) {
        let small = cubic(n_draws, 2, seed);
        let split = (seed as usize) % n_draws;
        let index: Vec<usize> = (0..n_draws).rev().chain([split]).collect();
        let log_weights =
            index.iter().map(|&s| if s == split { -std::f64::consts::LN_2 } else { 0.0 }).collect();
        let other = Small { draws: small.draws.select(&index, log_weights), ..small.clone() };
        let spec = settings(sigma_a, ErrorSharing::Shared);
        let [one, two] = [&small, &other].map(|small| small.prepared(&spec, conditioning).unwrap());
        let expansion = if conditioning { expansion(2) } else { 1.0 };
        let bound = rounding(&small, &omega) * expansion;
        for method in [Method::ELik, Method::ELogLik] {
            let ((value, gradient), (same, by_x)) = (pooled(&one, method, &omega), pooled(&two, method, &omega));
            prop_assert!((value - same).abs() <= bound, "{}: {value} {same}", method.name());
            for d in 0..2 {
                // As in tests/gradients.rs: Markov's 6^2 for a polynomial of degree six, and weights moved by rounding.
                let spread = 36.0 + 2.0 * size_of_terms(&small, &omega);
                prop_assert!((gradient[d] - by_x[d]).abs() <= bound * spread, "{}", method.name());
            }
        }
    }

    #[test]
    fn one_measurement_per_input_has_nothing_to_share(
        seed in 0_u64..1000,
        omega in [-0.9..0.9_f64, -0.9..0.9_f64],
        sd in 0.01..2.0_f64,
        conditioning: bool,
    ) {
        let small = cubic(5, 1, seed).noise(Family::Normal, sigma());
        let x = [omega[0], omega[1], sd];
        let [shared, independent] = [ErrorSharing::Shared, ErrorSharing::Independent]
            .map(|error| small.prepared(&settings(true, error), conditioning).unwrap());
        for method in POOLS {
            prop_assert_eq!(pooled(&shared, method, &x), pooled(&independent, method, &x));
        }
    }

    /// The log density of a multivariate normal with covariance `D + sigma_a^2 11'` within each input, by Cholesky.
    #[test]
    fn replicates_share_one_error(
        seed in 0_u64..1000,
        omega in [-0.9..0.9_f64, -0.9..0.9_f64],
        replicates in 1_usize..5,
        column: bool,
    ) {
        let small = cubic(3, replicates, seed);
        let mut rng = Stream::root(seed).named("sd").rng();
        let n = small.measured.y.len();
        let sds: Vec<f64> = (0..n).map(|_| if column { 0.15 + 0.1 * symmetric(&mut rng) } else { 0.2 }).collect();
        let mut small = small.noise(Family::Normal, if column { Scale::Column } else { Scale::Fixed(0.2) });
        small.measured.scale = column.then(|| sds.clone());
        let prepared = small.prepared(&settings(true, ErrorSharing::Shared), false).unwrap();
        let l = log_likelihoods(&prepared, &omega);
        let p = small.output.surrogate.names().len();
        let coefficients = small.draws.values().select_rows(&(0..p).collect::<Vec<_>>());
        let known = &small.measured.known;
        let x = Matrix::from_fn(n, 3, |i, d| if d < 2 { omega[d] } else { known[(i, 0)] });
        let mut eta = Matrix::default();
        small.output.surrogate.predict(&x, &coefficients, &mut eta, &mut Default::default());
        // The smallest sd has the largest terms; a Cholesky factor's rounding grows with the condition number of the
        // covariance, which is below 1 + n sigma_a^2 / sd^2 = 1 + 4 (0.3 / 0.05)^2.
        let smallest = small.clone().noise(Family::Normal, Scale::Fixed(0.05));
        let bound = rounding(&smallest, &omega) * 145.0;
        for s in 0..3 {
            let sigma_a = small.draws.values()[(p, s)];
            let mut exact = 0.0;
            for point in 0..n / replicates {
                let rows: Vec<usize> = (point * replicates..(point + 1) * replicates).collect();
                let residual: Vec<f64> = rows.iter().map(|&i| small.measured.y[i] - eta[(i, s)]).collect();
                exact += log_normal_density(&residual, |i, j| {
                    sigma_a * sigma_a + if i == j { sds[rows[i]] * sds[rows[i]] } else { 0.0 }
                });
            }
            prop_assert!((l[s] - exact).abs() <= bound, "{} against {exact} (bound {bound:e})", l[s]);
        }
    }
}

/// `log N(residual | 0, covariance)`.
fn log_normal_density(residual: &[f64], covariance: impl Fn(usize, usize) -> f64) -> f64 {
    let n = residual.len();
    let mut factor = Matrix::zeros(n, n);
    let mut white = vec![0.0; n];
    let mut total = -0.5 * n as f64 * (2.0 * std::f64::consts::PI).ln();
    for i in 0..n {
        for j in 0..=i {
            let rest = covariance(i, j) - (0..j).map(|k| factor[(i, k)] * factor[(j, k)]).sum::<f64>();
            factor[(i, j)] = if i == j { rest.sqrt() } else { rest / factor[(j, j)] };
        }
        white[i] = (residual[i] - (0..i).map(|k| factor[(i, k)] * white[k]).sum::<f64>()) / factor[(i, i)];
        total -= 0.5 * white[i] * white[i] + factor[(i, i)].ln();
    }
    total
}

#[test]
fn one_draw_makes_the_methods_agree() {
    for sd in [Scale::Fixed(0.2), sigma()] {
        for sigma_a in [false, true] {
            let small = curve(1, sd.clone());
            let posteriors = by_grid(&small, sigma_a);
            assert_eq!(posteriors.len(), 4);
            for posterior in &posteriors[1..] {
                for (a, b) in posteriors[0].unknowns.iter().zip(&posterior.unknowns) {
                    // To the last bit: the mean of one number is that number.
                    assert_eq!(numbers(a), numbers(b), "{}, {}", posterior.method, a.name);
                }
            }
        }
    }
}

#[test]
fn order_and_splitting_of_draws_change_no_posterior() {
    let small = curve(6, Scale::Fixed(0.2));
    // Backwards, with draw 3 at places 2 and 6.
    let log_weights = vec![0.0, 0.0, -std::f64::consts::LN_2, 0.0, 0.0, 0.0, -std::f64::consts::LN_2];
    let other = Small { draws: small.draws.select(&[5, 4, 3, 2, 1, 0, 3], log_weights), ..small.clone() };
    for sigma_a in [false, true] {
        for (a, b) in by_grid(&small, sigma_a).iter().zip(by_grid(&other, sigma_a)) {
            let gap = distance(&a.unknowns[0], &b.unknowns[0]);
            let bound = 5.0 * rounding(&small, &[1.0]) * expansion(1);
            assert!(gap <= bound, "{}: {gap:e} (bound {bound:e})", a.method);
        }
    }
}

/// Draws `mean +- scale x deviation`: their mean is exact, so methods differ from Point in the second order of the scale.
fn shrunk(scale: f64) -> Small {
    let small = curve(3, Scale::Fixed(0.2));
    let centre = [0.2, 1.0, 0.3, 0.2, 0.15];
    let values = Matrix::from_fn(5, 6, |p, s| {
        let deviation = small.draws.values()[(p, s / 2)] - centre[p];
        centre[p] + if s % 2 == 0 { scale * deviation } else { -scale * deviation }
    });
    Small { draws: Draws::new(small.draws.names().to_vec(), values), ..small }
}

#[test]
fn a_narrow_t_posterior_is_a_point() {
    let x = [0.15];
    let gap = |scale: f64, method: Method| {
        let small = shrunk(scale);
        let spec = settings(true, ErrorSharing::Shared);
        let point = small.reduced(&*propagation(Method::Point)).prepared(&spec, true).unwrap();
        pooled(&small.prepared(&spec, true).unwrap(), method, &x).0 - pooled(&point, Method::Point, &x).0
    };
    for method in [Method::ELik, Method::ELogLik] {
        let gaps = [0.1, 0.05, 0.025].map(|scale| gap(scale, method));
        // a h^2 + b h^4: halving h divides by 4 (1 + 3/4 b h^2 / a), whose rest falls to a quarter at the next halving; the sixth
        // order may double that.
        let rest = |pair: &[f64]| (pair[0] / pair[1] - 4.0).abs();
        assert!(rest(&gaps[..2]) < 1.0, "{}: {gaps:?}", method.name());
        assert!(rest(&gaps[1..]) < 0.5 * rest(&gaps[..2]), "{}: {gaps:?}", method.name());
        let small = shrunk(0.0);
        assert!(gap(0.0, method).abs() <= rounding(&small, &x) * expansion(1), "{}", method.name());
    }
    // The posteriors of all four, on the grid: second order again, down to rounding. Log densities that agree to rounding
    // have weights that do, and with them all numbers within the five sds that hold everything.
    let spread = |scale: f64| {
        let posteriors = by_grid(&shrunk(scale), true);
        let point = posteriors.iter().find(|p| p.method == "point").unwrap().unknowns[0].clone();
        posteriors.iter().map(|p| distance(&point, &p.unknowns[0])).fold(0.0, f64::max)
    };
    let (wide, narrow) = (spread(0.1), spread(0.0125));
    let floor = 5.0 * rounding(&shrunk(0.0), &[1.0]) * expansion(1);
    assert!(wide > 1e3 * floor, "the methods must differ where the T-posterior is wide: {wide:e}");
    // 64 in the limit; the fourth order and the grid, which may refine elsewhere, leave a factor two.
    assert!(narrow <= wide / 32.0, "{wide:e} {narrow:e}");
    assert!(spread(0.0) <= floor, "{:e} {floor:e}", spread(0.0));
}

/// The mean of the log posteriors, normalised, is the E-Log-Lik posterior: the evidences are constants.
#[test]
fn mean_of_log_posteriors_is_e_log_lik() {
    let small = curve(6, Scale::Fixed(0.2));
    let prepared = small.prepared(&settings(true, ErrorSharing::Shared), true).unwrap();
    let omega: Vec<f64> = (0..201).map(|i| -0.99 + 0.0099 * f64::from(i)).collect();
    let log_prior: Vec<f64> = omega.iter().map(|&x| prepared.prior().log_density(&[x])).collect();
    let l: Vec<Vec<f64>> = omega.iter().map(|&x| log_likelihoods(&prepared, &[x])).collect();
    let log_evidence: Vec<f64> =
        (0..6).map(|s| log_sum_exp(&(0..omega.len()).map(|i| l[i][s] + log_prior[i]).collect::<Vec<_>>())).collect();
    let normalised = |raw: Vec<f64>| {
        let total = log_sum_exp(&raw);
        raw.into_iter().map(|v| v - total).collect::<Vec<_>>()
    };
    let weights = small.draws.weights();
    let of_posteriors = normalised(
        (0..omega.len())
            .map(|i| (0..6).map(|s| weights[s] * (l[i][s] + log_prior[i] - log_evidence[s])).sum())
            .collect(),
    );
    let of_likelihoods = normalised(
        omega.iter().zip(&log_prior).map(|(&x, p)| pooled(&prepared, Method::ELogLik, &[x]).0 + p).collect(),
    );
    let bound = rounding(&small, &[1.0]) * expansion(1);
    for (a, b) in of_posteriors.iter().zip(&of_likelihoods) {
        assert!((a - b).abs() <= bound, "{a} against {b} (bound {bound:e})");
    }
}

/// The appendix's tables: `p(y = 0 | omega, theta)` is 1/4 and 1/2 at theta = 0, 1/2 and 1/2 at theta = 1, priors are even.
#[test]
fn e_post_is_not_e_lik() {
    let half = 0.5_f64.ln();
    let log_alpha = [half; 2];
    let likelihood = [[0.25_f64, 0.5], [0.5, 0.5]];
    let evidence = likelihood.map(|row| 0.5 * (row[0] + row[1]));
    let posterior = [0, 1].map(|theta| 0.5 * likelihood[theta][0] / evidence[theta]);
    let mixed = |method: Method| -> f64 {
        let log_weights = propagation(method).mix(&log_alpha, &evidence.map(f64::ln)).unwrap();
        log_weights.iter().zip(posterior).map(|(w, p)| w.exp() * p).sum()
    };
    let bound = 8.0 * f64::EPSILON;
    assert!((mixed(Method::EPost) - 5.0 / 12.0).abs() <= bound);
    assert!((mixed(Method::ELik) - 3.0 / 7.0).abs() <= bound);
    // E-Lik is both: a mixture of posteriors, and the posterior of the pooled likelihood.
    let pooled = [0, 1].map(|omega| {
        let mut l = [0, 1].map(|theta: usize| likelihood[theta][omega].ln());
        propagation(Method::ELik).pool(&log_alpha, &mut l).exp()
    });
    assert!((pooled[0] / (pooled[0] + pooled[1]) - 3.0 / 7.0).abs() <= bound);
}

#[test]
fn units_of_an_unknown_do_not_matter() {
    let scaled = |factor: f64| {
        let small = cubic(5, 2, 11).noise(Family::Normal, Scale::Fixed(0.3));
        let scale = |f: f64| InputScale { lower: -f, upper: f, log: false };
        let surrogate = PolynomialChaos::new(
            3,
            Normalisation::None,
            small::marginal("normal(0, 1)"),
            vec![scale(factor), scale(1.0), scale(1.0)],
        );
        let prior = small::marginal(&format!("normal({}, {})", 0.1 * factor, 0.6 * factor));
        let priors = vec![prior.truncated(-factor, factor).unwrap(), small.unknowns.marginals()[1].clone()];
        Small {
            output: small::trained(std::sync::Arc::new(surrogate)),
            unknowns: Prior::new(small.unknowns.names().to_vec(), priors).unwrap(),
            ..small
        }
    };
    let one = scaled(1.0);
    for factor in [1024.0, 3.7e-3] {
        let other = scaled(factor);
        for conditioning in [true, false] {
            let spec = settings(true, ErrorSharing::Shared);
            let [a, b] = [&one, &other].map(|small| small.prepared(&spec, conditioning).unwrap());
            for method in POOLS {
                let (value, gradient) = pooled(&a, method, &[0.3, -0.4]);
                let (same, by_x) = pooled(&b, method, &[0.3 * factor, -0.4]);
                if factor == 1024.0 {
                    // A power of two rounds nothing.
                    assert_eq!((value, gradient), (same, vec![by_x[0] * factor, by_x[1]]));
                } else {
                    let expansion = if conditioning { expansion(2) } else { 1.0 };
                    let bound = rounding(&one, &[0.3, -0.4]) * expansion;
                    assert!((value - same).abs() <= bound, "{}: {value} {same}", method.name());
                    let spread = 36.0 + 2.0 * size_of_terms(&one, &[0.3, -0.4]);
                    assert!((gradient[0] - by_x[0] * factor).abs() <= bound * spread, "{}", method.name());
                    assert!((gradient[1] - by_x[1]).abs() <= bound * spread, "{}", method.name());
                }
            }
        }
        // The posterior, too, in the unknown's own units.
        let bound = 5.0 * rounding(&one, &[1.0, 1.0]) * expansion(2);
        for (a, b) in by_grid(&one, true).iter().zip(by_grid(&other, true)) {
            for (d, unit) in [(0, factor), (1, 1.0)] {
                let (a, b) = (&a.unknowns[d], &b.unknowns[d]);
                for (a_value, b_value) in numbers(a).iter().zip(numbers(b)) {
                    let gap = (a_value - b_value / unit).abs() / a.sd;
                    assert!(gap <= bound, "{}: {gap:e} (bound {bound:e})", a.name);
                }
            }
        }
    }
}

/// Measurements far from what the prior of sigma_I expects: the sd is found where they put it, not where the prior ends.
#[test]
fn sd_beyond_its_prior() {
    let y: Vec<f64> = (0..12).map(|i| if i % 2 == 0 { 3.0 } else { -3.0 }).collect();
    let (n, r) = (y.len() as f64, y.iter().map(|v| v * v).sum::<f64>());
    for text in ["half-normal(0.1)", "exponential(50)", "log-normal(-3, 0.2)"] {
        let prior = small::marginal(text);
        // A constant surrogate at zero leaves sigma alone: p(sigma | y) by the trapezoidal rule in log sigma, which converges
        // beyond any order for a density that vanishes at both ends.
        let log_density = |u: f64| prior.log_density(u.exp()) + (1.0 - n) * u - 0.5 * r * (-2.0 * u).exp();
        let nodes: Vec<f64> = (-4000..4000).map(|i| f64::from(i) * 2e-3).collect();
        let top = nodes.iter().map(|&u| log_density(u)).fold(f64::NEG_INFINITY, f64::max);
        let moment = |power: i32| -> f64 {
            nodes.iter().map(|&u| (log_density(u) - top).exp() * u.exp().powi(power)).sum::<f64>()
        };
        let mean = moment(1) / moment(0);
        let sd = (moment(2) / moment(0) - mean * mean).sqrt();
        let constant = Small::new(small::polynomial(0, 1), &Matrix::zeros(1, 1), &[0.1], 1)
            .measure(y.clone(), Matrix::zeros(y.len(), 0))
            .noise(Family::Normal, Scale::Prior(prior));
        for answer in by_grid(&constant, false) {
            let sigma = &answer.unknowns[1];
            let bound = sigma.quadrature_error.unwrap().max(1e-3);
            assert!((sigma.mean - mean).abs() <= bound * sd, "{text}: {} {mean}", sigma.mean);
            assert!((sigma.sd - sd).abs() <= bound * sd, "{text}: {} {sd}", sigma.sd);
            assert!(
                answer.warnings.iter().any(|w| w.contains("contradict the prior of sigma_i")),
                "{:?}",
                answer.warnings
            );
        }
    }
}

/// Two outputs that contradict each other: either one fits and the other has a large sd, and both compromises are found.
#[test]
fn contradicting_outputs_have_two_modes() {
    let prior = small::marginal("half-normal(0.3)");
    let unknown = small::marginal("normal(0.1, 0.6)").truncated(-1.0, 1.0).unwrap();
    let data = [vec![0.68, 0.71, 0.73, 0.69, 0.70, 0.72], vec![-0.52, -0.49, -0.50, -0.51, -0.48, -0.50]];
    let line = || small::trained(small::polynomial(1, 1));
    let outputs = ["first", "second"].map(|name| TrainedOutput { name: name.into(), ..line() });
    let names = joint_names(outputs.iter().map(|o| (o.name.as_str(), &*o.surrogate)));
    // eta = omega in both; sigma_a is not propagated.
    let values = Matrix::from_rows(names.len(), 1, vec![0.0, 1.0, 0.1, 0.0, 1.0, 0.1]);
    let measured = [0, 1].map(|o| Measured {
        output: outputs[o].name.clone(),
        y: data[o].clone(),
        known: Matrix::zeros(data[o].len(), 0),
        ..Measured::default()
    });
    let problem = Problem {
        outputs: &outputs,
        draws: &Draws::new(names, values),
        unknowns: Prior::new(vec!["a".into()], vec![unknown.clone()]).unwrap().into(),
        noise: vec![NoiseSpec { family: Family::Normal, scale: Scale::Prior(prior.clone()) }; 2],
        measured: &measured,
        derived: Vec::new(),
    };
    let spec = InferSpec { engine: Engine::Grid, ..settings(false, ErrorSharing::Shared) };
    let prepared = Prepared::new(problem, &spec, true).unwrap();
    let answers = twostep::infer::infer(&prepared, &spec, Stream::root(1), &Silent).unwrap();

    // Both sds by the trapezoidal rule in their logarithms, and omega by the midpoint rule: steps far below every width.
    let marginal = |y: &[f64], a: f64| -> f64 {
        let (n, r) = (y.len() as f64, y.iter().map(|v| (v - a).powi(2)).sum::<f64>());
        let term = |u: f64| (prior.log_density(u.exp()) + (1.0 - n) * u - 0.5 * r * (-2.0 * u).exp()).exp();
        (-1000..300).map(|i| term(f64::from(i) * 5e-3)).sum()
    };
    let nodes: Vec<(f64, f64)> = (0..4000)
        .map(|i| -1.0 + (f64::from(i) + 0.5) * 5e-4)
        .map(|a| (a, unknown.log_density(a).exp() * marginal(&data[0], a) * marginal(&data[1], a)))
        .collect();
    let total: f64 = nodes.iter().map(|n| n.1).sum();
    let mean = nodes.iter().map(|(a, w)| a * w).sum::<f64>() / total;
    let sd = (nodes.iter().map(|(a, w)| (a - mean).powi(2) * w).sum::<f64>() / total).sqrt();
    let share = nodes.iter().filter(|n| n.0 < 0.1).map(|n| n.1).sum::<f64>() / total;
    assert!((0.01..0.99).contains(&share), "the test needs two modes: {share}");
    for answer in answers {
        let a = &answer.unknowns[0];
        assert!((a.mean - mean).abs() <= 1e-3 * sd, "{}: {} {mean}", answer.method, a.mean);
        assert!((a.sd - sd).abs() <= 1e-3 * sd, "{}: {} {sd}", answer.method, a.sd);
    }
}
