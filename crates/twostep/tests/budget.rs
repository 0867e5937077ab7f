//! Where posterior variances come from: against closed forms where all is normal, against the analysis of variance over T-draws
//! elsewhere.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "common/small.rs"]
mod small;

use common::{Case, THETA_C, THETA_C_SIGMA_A, settings};
use proptest::prelude::*;
use rand::RngExt;
use rand_distr::StandardNormal;
use small::{Small, logistic, marginal, polynomial, symmetric};
use twostep::calibrate::enough::VarianceParts;
use twostep::draws::pick_weighted;
use twostep::infer::propagation::Method;
use twostep::infer::{Budget, Engine, InferSpec, VarianceShare, budget};
use twostep::likelihood::{ErrorSharing, Family, Scale};
use twostep::matrix::Matrix;
use twostep::prior::Prior;
use twostep::stream::Stream;
use twostep::train::TrainSpec;

/// Standard errors within which an estimate has to be: beyond lies one in 16,000.
const Z: f64 = 4.0;

fn shares(budget: &Budget, name: &str) -> [VarianceShare; 3] {
    let of = budget.quantities.iter().find(|q| q.name == name).unwrap();
    [of.noise, of.approximation, of.epistemic]
}

fn budgets(small: &Small, spec: &InferSpec) -> Vec<Budget> {
    let prepared = small.prepared(spec, true).unwrap();
    let answers = common::infer(&prepared, spec, 7);
    answers.iter().filter_map(|answer| budget(&prepared, spec, answer, Stream::root(3)).ok()).collect()
}

/// `y = c0 + c1 t + c2 omega` with these T-draws, three measurements at one t and one at another.
fn linear(spread: f64, sigma_a: f64) -> Small {
    let mut rng = Stream::root(11).rng();
    let centre = [0.3, 0.5, 1.5];
    let coefficients = Matrix::from_fn(3, 200, |p, _| centre[p] + spread * symmetric(&mut rng));
    let sigma_a: Vec<f64> = (0..200).map(|_| sigma_a * (0.5 + rng.random::<f64>())).collect();
    let mut small = Small::new(polynomial(1, 2), &coefficients, &sigma_a, 1);
    small.unknowns = Prior::new(vec!["a".into()], vec![marginal("normal(0, 1)")]).unwrap();
    small.measure(vec![0.9, 1.1, 0.7, 1.4], Matrix::from_rows(4, 1, vec![-0.5, -0.5, -0.5, 0.5]))
}

/// Shares by the closed form: given coefficients and errors all is normal.
fn linear_shares(small: &Small, sigma_i: f64, spec: &InferSpec, method: Method) -> [f64; 3] {
    let groups = [(-0.5, 3.0, (0.9 + 1.1 + 0.7) / 3.0), (0.5, 1.0, 1.4)];
    let values = small.draws.values();
    let n_draws = if method == Method::Point { 1 } else { values.cols() };
    let mut parts: Vec<[f64; 4]> = Vec::new();
    for s in 0..n_draws {
        let value = |p: usize| if method == Method::Point { small.draws.mean(p) } else { values[(p, s)] };
        let (c, sigma_a) = ([value(0), value(1), value(2)], value(3));
        let names = small.draws.names();
        assert_eq!(names, ["c[0,0]", "c[0,1]", "c[1,0]", "sigma_a"]);
        let (mut precision, mut given_errors, mut pull) = (1.0, 1.0, 0.0);
        // The evidence of groups whose means are normal and share omega: by the matrix determinant lemma.
        let (mut log_evidence, mut misfit) = (0.0, 0.0);
        for (t, n, mean) in groups {
            let own = match (spec.sigma_a, spec.error) {
                (false, _) => 0.0,
                (true, ErrorSharing::Shared) => sigma_a * sigma_a,
                (true, ErrorSharing::Independent) => sigma_a * sigma_a / n,
            };
            let variance = sigma_i * sigma_i / n + own;
            let residual = mean - c[0] - c[1] * t;
            precision += c[2] * c[2] / variance;
            given_errors += c[2] * c[2] * n / (sigma_i * sigma_i);
            pull += c[2] * residual / variance;
            misfit += residual * residual / variance;
            log_evidence -= 0.5 * f64::ln(variance);
        }
        // Within groups, where errors are independent the scatter of replicates tells of sigma_a, too.
        if spec.sigma_a && spec.error == ErrorSharing::Independent {
            let scatter: f64 = [0.9, 1.1, 0.7].iter().map(|y| (y - groups[0].2).powi(2)).sum();
            let v = sigma_i * sigma_i + sigma_a * sigma_a;
            log_evidence -= 0.5 * (2.0 * v.ln() + scatter / v);
        }
        let mean = pull / precision;
        log_evidence -= 0.5 * (precision.ln() + misfit - pull * mean);
        parts.push([log_evidence, mean, 1.0 / precision, 1.0 / given_errors]);
    }
    let most = parts.iter().map(|p| p[0]).fold(f64::NEG_INFINITY, f64::max);
    let weight = |p: &[f64; 4]| if method == Method::EPost { 1.0 } else { (p[0] - most).exp() };
    let total: f64 = parts.iter().map(weight).sum();
    let average = |f: &dyn Fn(&[f64; 4]) -> f64| parts.iter().map(|p| weight(p) * f(p)).sum::<f64>() / total;
    let mean = average(&|p| p[1]);
    let (between, within, noise) = (average(&|p| (p[1] - mean).powi(2)), average(&|p| p[2]), average(&|p| p[3]));
    [noise, within - noise, between].map(|part| part / (between + within))
}

#[test]
fn a_linear_problem_has_the_shares_of_its_closed_form() {
    for (spread, sigma_a) in [(0.05, 0.1), (0.3, 0.3), (0.1, 1.0)] {
        let small = linear(spread, sigma_a);
        for (propagated, error) in
            [(false, ErrorSharing::Shared), (true, ErrorSharing::Shared), (true, ErrorSharing::Independent)]
        {
            let spec = InferSpec { sigma_a: propagated, error, engine: Engine::Exact, ..InferSpec::default() };
            let found = budgets(&small, &spec);
            assert_eq!(found.len(), 3, "all but E-Log-Lik");
            for budget in found {
                let exact = linear_shares(&small, 0.2, &spec, budget.method);
                for (found, exact) in shares(&budget, "a").iter().zip(exact) {
                    let case = format!("{:?} {spread} {sigma_a} {error:?}: {found:?} {exact}", budget.method);
                    // Rounding where a share is known without draws.
                    assert!((found.share - exact).abs() <= Z * found.error + 1e-12, "{case}");
                    assert!(found.error < 0.1, "{case}");
                }
            }
        }
    }
}

/// With noise this small no I-draw has weight given the errors of another: what is known comes from chains.
#[test]
fn chains_stand_in_where_weights_fail() {
    let small = linear(0.3, 0.3).noise(Family::Normal, Scale::Fixed(0.002));
    for error in [ErrorSharing::Shared, ErrorSharing::Independent] {
        let spec = InferSpec { sigma_a: true, error, engine: Engine::Exact, draws: 100, ..InferSpec::default() };
        for budget in budgets(&small, &spec) {
            let exact = linear_shares(&small, 0.002, &spec, budget.method);
            for (found, exact) in shares(&budget, "a").iter().zip(exact) {
                let case = format!("{:?} {error:?}: {found:?} {exact}", budget.method);
                assert!((found.share - exact).abs() <= Z * found.error + 1e-12, "{case}");
                assert!(found.error < 0.3, "{case}");
            }
        }
    }
}

/// A parabola in omega, measured twice at one t: the noise's share by sampling errors and integrating over omega on a grid.
#[test]
fn errors_of_a_bent_surrogate_take_their_share() {
    const NODES: usize = 400;
    const REPEATS: usize = 4000;
    let (sigma_i, y, t): (f64, [f64; 3], [f64; 3]) = (0.1, [0.42, 0.5, 0.3], [0.5, 0.5, -0.7]);
    let small = Small {
        noise: twostep::likelihood::NoiseSpec { family: Family::Normal, scale: Scale::Fixed(sigma_i) },
        ..parabola(20)
    };
    let small = small.measure(y.to_vec(), Matrix::from_rows(3, 1, t.to_vec()));
    let spec = InferSpec { sigma_a: true, methods: vec![Method::ELik], ..InferSpec::default() };
    let found = budgets(&small, &spec).remove(0);

    let (values, prior) = (small.draws.values(), &small.unknowns.marginals()[0]);
    let omega: Vec<f64> = (0..NODES).map(|i| -1.0 + 2.0 * (i as f64 + 0.5) / NODES as f64).collect();
    let coefficients = values.select_rows(&[0, 1, 2, 3, 4, 5]);
    let eta = |t: f64| {
        let mut eta = Matrix::default();
        let inputs = Matrix::from_fn(NODES, 2, |i, d| if d == 0 { omega[i] } else { t });
        small.output.surrogate.predict(&inputs, &coefficients, &mut eta, &mut Default::default());
        eta
    };
    let eta = [eta(0.5), eta(-0.7)];
    let (means, n) = ([(y[0] + y[1]) / 2.0, y[2]], [2.0, 1.0]);
    let log_density = |i: usize, s: usize, means: [f64; 2], sigma_a: f64| {
        let groups = (0..2).map(|g| {
            let v = sigma_i * sigma_i / n[g] + sigma_a * sigma_a;
            -0.5 * (means[g] - eta[g][(i, s)]).powi(2) / v - 0.5 * v.ln()
        });
        prior.log_density(omega[i]) + groups.sum::<f64>()
    };
    let moments = |weights: &[f64]| {
        let total: f64 = weights.iter().sum();
        let mean = weights.iter().zip(&omega).map(|(w, x)| w * x).sum::<f64>() / total;
        weights.iter().zip(&omega).map(|(w, x)| w * (x - mean).powi(2)).sum::<f64>() / total
    };
    let joint: Vec<f64> =
        (0..20 * NODES).map(|at| log_density(at % NODES, at / NODES, means, values[(6, at / NODES)]).exp()).collect();
    let marginal: Vec<f64> = (0..NODES).map(|i| (0..20).map(|s| joint[s * NODES + i]).sum()).collect();
    let total = moments(&marginal);
    let mut rng = Stream::root(5).rng();
    let given: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let at = pick_weighted(&joint, &mut rng);
            let (i, s) = (at % NODES, at / NODES);
            let error = values[(6, s)].powi(2);
            let shifted = std::array::from_fn(|g| {
                let noise = sigma_i * sigma_i / n[g];
                let e = (means[g] - eta[g][(i, s)]) * error / (error + noise)
                    + (error * noise / (error + noise)).sqrt() * rng.sample::<f64, _>(StandardNormal);
                means[g] - e
            });
            let weights: Vec<f64> = (0..NODES).map(|i| log_density(i, s, shifted, 0.0).exp()).collect();
            moments(&weights) / total
        })
        .collect();
    let mean = given.iter().sum::<f64>() / REPEATS as f64;
    let variance = given.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (REPEATS as f64).powi(2);
    let within: f64 = (0..20)
        .map(|s| {
            let own = &joint[s * NODES..(s + 1) * NODES];
            own.iter().sum::<f64>() * moments(own)
        })
        .sum::<f64>()
        / joint.iter().sum::<f64>();
    let exact = [mean, within / total - mean, 1.0 - within / total];
    for (found, (exact, chance)) in shares(&found, "a").iter().zip(exact.into_iter().zip([variance, variance, 0.0])) {
        assert!((found.share - exact).abs() <= Z * (found.error.powi(2) + chance).sqrt(), "{found:?} {exact}");
        assert!(found.error < 0.1, "{found:?}");
    }
}

fn parabola(n_draws: usize) -> Small {
    let mut rng = Stream::root(2).rng();
    let centre = [0.1, 0.2, 0.8, 0.1, 0.1, 0.3];
    let coefficients = Matrix::from_fn(6, n_draws, |p, _| centre[p] + 0.1 * symmetric(&mut rng));
    Small::new(polynomial(2, 2), &coefficients, &vec![0.15; n_draws], 1)
}

#[test]
fn the_epistemic_share_is_that_of_the_analysis_of_variance() {
    let case = Case::load("sir");
    let posterior = case.posterior(true, &TrainSpec::default());
    for label in [THETA_C, THETA_C_SIGMA_A] {
        let spec = InferSpec { draws: 4000, methods: vec![Method::ELik, Method::EPost], ..settings(label) };
        let prepared = case.prepared(&posterior, &spec, true);
        for answer in common::infer(&prepared, &spec, 1) {
            let found = budget(&prepared, &spec, &answer, Stream::root(1)).unwrap();
            for (d, name) in ["beta", "gamma"].iter().enumerate() {
                let values: Vec<f64> = answer.draws.iter().map(|x| x[d]).collect();
                let parts = VarianceParts::new(&values, answer.t_draws.as_ref().unwrap());
                let own = shares(&found, name)[2];
                let gap = (own.share - parts.surrogate_share).abs();
                assert!(gap <= Z * own.error.hypot(parts.error), "{label} {name}: {own:?} {parts:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn shares_are_none_below_zero_and_sum_to_one(seed in 0u64..1000, shared in any::<bool>(), censored in any::<bool>()) {
        let known = Matrix::from_fn(5, 1, |i, _| 0.4 * (i / 2) as f64 - 0.5);
        let error = if shared { ErrorSharing::Shared } else { ErrorSharing::Independent };
        let spec = InferSpec { sigma_a: true, error, ..InferSpec::default() };
        let small = Small::random(logistic(), &[1.5, 4.0, 0.4], 0.2, 60, seed);
        let small = if censored {
            let mut small = small.noise(Family::LogNormal { refuse_zeros: false }, Scale::Prior(marginal("half-normal(0.5)")));
            small.output.log = true;
            small.measure(vec![0.0, 1.5, 2.0, 2.5, 3.0], known)
        } else {
            small.noise(Family::Normal, Scale::Prior(marginal("half-normal(0.5)"))).measure(vec![0.2, 0.4, 0.9, 1.0, 1.5], known)
        };
        for budget in budgets(&small, &spec) {
            prop_assert!((budget.weights.iter().sum::<f64>() - 1.0).abs() < 64.0 * f64::EPSILON);
            for of in &budget.quantities {
                let parts = [of.noise, of.approximation, of.epistemic];
                prop_assert!((parts.iter().map(|p| p.share).sum::<f64>() - 1.0).abs() < 64.0 * f64::EPSILON);
                for part in parts {
                    prop_assert!(part.share >= -Z * part.error, "{:?} {of:?}", budget.method);
                }
            }
        }
    }
}

#[test]
fn what_has_no_budget_says_why() {
    let small = parabola(3).measure(vec![0.4], Matrix::from_rows(1, 1, vec![0.0]));
    let why = |small: &Small, spec: &InferSpec| {
        let prepared = small.prepared(spec, true).unwrap();
        let answer = common::infer(&prepared, spec, 1).remove(0);
        budget(&prepared, spec, &answer, Stream::root(1)).unwrap_err()
    };
    let of = |method: Method| InferSpec { sigma_a: true, methods: vec![method], ..InferSpec::default() };
    assert!(why(&small, &of(Method::ELogLik)).starts_with("E-Log-Lik averages"));
    let few = InferSpec { draws: 10, ..of(Method::ELik) };
    assert_eq!(why(&small, &few), "10 different I-draws are too few for it");
    let small = small.noise(Family::StudentT { df: 4.0 }, Scale::Fixed(0.2));
    assert_eq!(why(&small, &of(Method::ELik)), "errors of the surrogate cannot be told from student-t noise");
}
