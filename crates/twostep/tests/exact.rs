//! The exact engine against the grid, and against dense formulas in several unknowns.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/small.rs"]
mod small;

use rand::RngExt;
use small::{Small, marginal, settings, symmetric};
use std::sync::Arc;
use twostep::draws::Draws;
use twostep::infer::propagation::Method;
use twostep::infer::{Engine, IPosterior, InferSpec, locate};
use twostep::likelihood::{ErrorSharing, Family, Scale};
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::prior::Prior;
use twostep::special::log_sum_exp;
use twostep::stream::Stream;
use twostep::surrogate::{Formula, Surrogate};

const SHARINGS: [(bool, ErrorSharing); 3] =
    [(false, ErrorSharing::Shared), (true, ErrorSharing::Shared), (true, ErrorSharing::Independent)];

/// `alpha a t + beta b + ...` in as many unknowns as there are names, over the condition `t`: affine in the unknowns, with
/// slopes that depend on where is measured.
fn surrogate(unknowns: &[&str]) -> Arc<dyn Surrogate> {
    let term = |(d, name): (usize, &&str)| {
        if d.is_multiple_of(2) { format!("p{d} * {name} * t") } else { format!("p{d} * {name}") }
    };
    let terms: Vec<String> = unknowns.iter().enumerate().map(term).collect();
    let inputs: Vec<String> = unknowns.iter().chain(&["t"]).map(|name| name.to_string()).collect();
    let names = (0..unknowns.len()).map(|d| format!("p{d}")).chain(["shift".to_string()]);
    let parameters = names.map(|name| (name, marginal("normal(0, 1)"))).collect();
    Arc::new(Formula::new(&format!("shift + {}", terms.join(" + ")), &inputs, parameters).unwrap())
}

/// Weighted T-draws that differ much, and measurements at four places with one to three replicates of unequal sds.
fn problem(unknowns: &[&str], n_draws: usize) -> Small {
    let mut rng = Stream::root(5).named("exact").rng();
    let p = unknowns.len() + 1;
    let coefficients = Matrix::from_fn(p, n_draws, |_, _| 1.0 + 0.5 * symmetric(&mut rng));
    let sigma_a: Vec<f64> = (0..n_draws).map(|_| 0.1 + 0.3 * rng.random::<f64>()).collect();
    let mut small = Small::new(surrogate(unknowns), &coefficients, &sigma_a, 1);
    let prior = |d: usize| marginal(&format!("normal({}, {})", 0.3 * d as f64 - 0.2, 0.5 + 0.25 * d as f64));
    small.unknowns =
        Prior::new(unknowns.iter().map(|n| n.to_string()).collect(), (0..unknowns.len()).map(prior).collect()).unwrap();
    let log_weights = (0..n_draws).map(|_| -2.0 * rng.random::<f64>()).collect();
    small.draws = Draws::weighted(small.draws.names().to_vec(), small.draws.values().clone(), log_weights);
    let places = [-0.8, -0.8, 0.1, 0.4, 0.4, 0.4, 0.9];
    let known = Matrix::from_rows(places.len(), 1, places.to_vec());
    let y = places.iter().map(|t| 1.2 + 0.7 * t + 0.3 * symmetric(&mut rng)).collect();
    let mut small = small.measure(y, known).noise(Family::Normal, Scale::Column);
    small.measured.scale = Some(vec![0.2, 0.2, 0.3, 0.1, 0.2, 0.4, 0.25]);
    small
}

fn infer(small: &Small, spec: &InferSpec) -> Vec<IPosterior> {
    twostep::infer::infer(&small.prepared(spec, true).unwrap(), spec, Stream::root(1), &Silent).unwrap()
}

#[test]
fn the_grid_agrees() {
    for unknowns in [&["a"][..], &["a", "b"]] {
        let small = problem(unknowns, 40);
        for (sigma_a, error) in SHARINGS {
            let grid = InferSpec { engine: Engine::Grid, ..settings(sigma_a, error) };
            let auto = InferSpec { draws: 4000, ..settings(sigma_a, error) };
            let truth: Vec<Option<f64>> = unknowns.iter().map(|_| Some(0.4)).collect();
            let places = |spec: &InferSpec| {
                locate(&small.prepared(spec, true).unwrap(), spec, &truth, Stream::root(1), &Silent).unwrap()
            };
            let located = places(&auto).into_iter().zip(places(&grid));
            for ((exact, grid), (at, at_grid)) in infer(&small, &auto).iter().zip(&infer(&small, &grid)).zip(located) {
                assert_eq!((exact.engine.as_str(), grid.engine.as_str()), ("exact", "grid"));
                assert_eq!(exact.method, grid.method);
                // What the grid says of itself, in sds; a logarithm of an evidence is as good.
                let error = grid.diagnostics.quadrature_error.unwrap().max(1e-6);
                for (d, (a, b)) in exact.unknowns.iter().zip(&grid.unknowns).enumerate() {
                    let of = |u: &twostep::infer::QuantitySummary| [&[u.mean, u.sd][..], &u.quantiles()].concat();
                    for (a, b) in of(a).iter().zip(of(b)) {
                        assert!((a - b).abs() <= error * grid.unknowns[d].sd, "{}: {a} {b}", exact.method);
                    }
                    assert_eq!(a.hdi90.len(), b.hdi90.len());
                    let (here, there) = (at.places[d].unwrap(), at_grid.places[d].unwrap());
                    assert_eq!([here.q05, here.q95], [a.q05, a.q95]);
                    // A normal density is at most 0.4 per sd, and mixtures of narrower ones a few times that.
                    assert!((here.pit - there.pit).abs() <= 2.0 * error, "{} {}", here.pit, there.pit);
                    // Independent draws: 4.5 standard errors leave one in a hundred thousand.
                    let mean = exact.draws.iter().map(|x| x[d]).sum::<f64>() / 4000.0;
                    assert!((mean - a.mean).abs() <= 4.5 * a.sd / 4000_f64.sqrt(), "{mean} {}", a.mean);
                }
                let (a, b) = (&exact.diagnostics, &grid.diagnostics);
                for (a, b) in [(a.log_evidence, b.log_evidence), (a.evidence_agreement, b.evidence_agreement)] {
                    assert_eq!(a.is_some(), b.is_some());
                    assert!((a.unwrap_or(0.0) - b.unwrap_or(0.0)).abs() <= 10.0 * error, "{a:?} {b:?}");
                }
                assert_eq!(exact.t_draws.is_some(), grid.t_draws.is_some());
            }
        }
    }
}

/// `C x = b` by elimination, and `log det C`.
fn solve(mut c: Vec<Vec<f64>>, mut b: Vec<Vec<f64>>) -> (Vec<Vec<f64>>, f64) {
    let n = c.len();
    let mut log_det = 0.0;
    for k in 0..n {
        log_det += c[k][k].ln();
        for i in (0..n).filter(|&i| i != k) {
            let share = c[i][k] / c[k][k];
            (0..n).for_each(|j| c[i][j] -= share * c[k][j]);
            (0..b[0].len()).for_each(|j| b[i][j] -= share * b[k][j]);
        }
    }
    (0..n).for_each(|i| b[i].iter_mut().for_each(|x| *x /= c[i][i]));
    (b, log_det)
}

/// Mean, covariance and log evidence.
type Part = (Vec<f64>, Vec<Vec<f64>>, f64);

/// The posterior of one T-draw by the covariance of all measurements, none of them reduced.
fn dense(small: &Small, sigma_a: Option<f64>, error: ErrorSharing, s: usize) -> Part {
    let (known, y, sd) = (&small.measured.known, &small.measured.y, small.measured.scale.as_ref().unwrap());
    let (n, dim) = (y.len(), small.unknowns.len());
    let c = small.draws.values().col(s);
    let slope = |i: usize, d: usize| c[d] * if d.is_multiple_of(2) { known[(i, 0)] } else { 1.0 };
    let prior: Vec<(f64, f64)> = small.unknowns.marginals().iter().map(|m| m.is_normal().unwrap()).collect();
    let covariance = |i: usize, j: usize| -> f64 {
        let shared = error == ErrorSharing::Shared && known.row(i) == known.row(j);
        let of_error = if i == j || shared { sigma_a.unwrap_or(0.0).powi(2) } else { 0.0 };
        let of_noise = if i == j { sd[i] * sd[i] } else { 0.0 };
        of_error + of_noise + (0..dim).map(|d| slope(i, d) * prior[d].1.powi(2) * slope(j, d)).sum::<f64>()
    };
    let residual = |i: usize| y[i] - c[dim] - (0..dim).map(|d| slope(i, d) * prior[d].0).sum::<f64>();
    let matrix: Vec<Vec<f64>> = (0..n).map(|i| (0..n).map(|j| covariance(i, j)).collect()).collect();
    // Columns: the residual, then the covariance of every unknown with the measurements.
    let cross = |i: usize, d: usize| slope(i, d) * prior[d].1.powi(2);
    let right: Vec<Vec<f64>> =
        (0..n).map(|i| std::iter::once(residual(i)).chain((0..dim).map(|d| cross(i, d))).collect()).collect();
    let (solved, log_det) = solve(matrix, right);
    let sum = |f: &dyn Fn(usize) -> f64| (0..n).map(f).sum::<f64>();
    let mean = (0..dim).map(|d| prior[d].0 + sum(&|i| cross(i, d) * solved[i][0])).collect();
    let entry = |d: usize, e: usize| {
        let own = if d == e { prior[d].1.powi(2) } else { 0.0 };
        own - sum(&|i| cross(i, d) * solved[i][1 + e])
    };
    let posterior = (0..dim).map(|d| (0..dim).map(|e| entry(d, e)).collect()).collect();
    let tau = n as f64 * (2.0 * std::f64::consts::PI).ln();
    (mean, posterior, -0.5 * (sum(&|i| residual(i) * solved[i][0]) + log_det + tau))
}

/// Rounding: condition numbers of these matrices are below a thousand, and sums have tens of terms.
const ROUNDING: f64 = 1e5 * f64::EPSILON;

#[test]
fn dense_formulas_agree_in_five_unknowns() {
    let small = problem(&["a", "b", "c", "d", "f"], 30);
    let log_alpha = small.draws.log_weights();
    for (sigma_a, error) in SHARINGS {
        let spec = settings(sigma_a, error);
        let of_draw = |s: usize| sigma_a.then(|| small.draws.values().col(s)[6]);
        let parts: Vec<_> = (0..30).map(|s| dense(&small, of_draw(s), error, s)).collect();
        let joint: Vec<f64> = parts.iter().zip(log_alpha).map(|(part, a)| part.2 + a).collect();
        let total = log_sum_exp(&joint);
        for posterior in infer(&small, &spec) {
            assert_eq!(posterior.engine, "exact");
            let log_weights: Vec<f64> = match posterior.method.as_str() {
                "e-lik" => joint.iter().map(|j| j - total).collect(),
                "e-post" => log_alpha.to_vec(),
                _ => continue,
            };
            if posterior.method == "e-lik" {
                assert!((posterior.diagnostics.log_evidence.unwrap() - total).abs() < ROUNDING * total.abs());
            }
            for (d, found) in posterior.unknowns.iter().enumerate() {
                let expect = |f: &dyn Fn(&Part) -> f64| {
                    parts.iter().zip(&log_weights).map(|(part, w)| w.exp() * f(part)).sum::<f64>()
                };
                let mean = expect(&|part| part.0[d]);
                let sd = expect(&|part| part.1[d][d] + (part.0[d] - mean).powi(2)).sqrt();
                assert!((found.mean - mean).abs() < ROUNDING, "{} {mean}", found.mean);
                assert!((found.sd - sd).abs() < ROUNDING, "{} {sd}", found.sd);
                let below = expect(&|part| twostep::special::normal_cdf((found.q05 - part.0[d]) / part.1[d][d].sqrt()));
                assert!((below - 0.05).abs() < ROUNDING, "{below}");
            }
        }
    }
}

/// With one T-draw all methods are one; and two equal T-draws are one.
#[test]
fn one_draw_leaves_no_choice() {
    let mut small = problem(&["a", "b"], 1);
    let spec = settings(true, ErrorSharing::Shared);
    let alone = infer(&small, &spec);
    small.draws = small.draws.select(&[0, 0], vec![-1.0, 0.0]);
    for (one, two) in alone.iter().zip(infer(&small, &spec)) {
        for (d, found) in two.unknowns.iter().enumerate() {
            for other in [&one.unknowns[d], &alone[0].unknowns[d]] {
                assert!((found.mean - other.mean).abs() < ROUNDING && (found.sd - other.sd).abs() < ROUNDING);
                assert!(found.quantiles().iter().zip(other.quantiles()).all(|(a, b)| (a - b).abs() < ROUNDING));
            }
        }
    }
}

#[test]
fn what_has_no_closed_form_is_refused_and_auto_takes_another() {
    let linear = problem(&["a"], 5);
    let bounded = {
        let mut small = linear.clone();
        let prior = marginal("normal(0, 1)").truncated(-1.0, 1.0).unwrap();
        small.unknowns = Prior::new(vec!["a".into()], vec![prior]).unwrap();
        small
    };
    let cases = [
        (bounded, "the prior of `a` is not a normal without bounds"),
        (linear.clone().noise(Family::StudentT { df: 4.0 }, Scale::Column), "the noise of `y` is not normal"),
        (linear.clone().noise(Family::Normal, Scale::Prior(marginal("half-normal(1)"))), "the sd of `y` is unknown"),
        (
            Small { output: small::trained(small::polynomial(2, 2)), ..linear.clone() },
            "the surrogate of `y` is not affine",
        ),
    ];
    for (mut small, why) in cases {
        if why.contains("affine") {
            let values = Matrix::from_fn(7, 5, |p, s| 0.1 * (p + s) as f64);
            small =
                Small::new(small.output.surrogate.clone(), &values.select_rows(&[0, 1, 2, 3, 4, 5]), values.row(6), 1);
            small.unknowns = linear.unknowns.clone();
            small = small.measure(vec![0.3], Matrix::zeros(1, 1));
        }
        let spec = settings(false, ErrorSharing::Shared);
        let exact = InferSpec { engine: Engine::Exact, methods: vec![Method::Point], ..spec.clone() };
        let prepared = small.prepared(&exact, true).unwrap();
        let refused = twostep::infer::infer(&prepared, &exact, Stream::root(1), &Silent).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
        assert_eq!(prepared.engine(&spec), Engine::Grid);
    }
}
