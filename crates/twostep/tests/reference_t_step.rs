//! The exact and NUTS T-steps against the T-references, from the training data.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Case;
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::stream::Stream;
use twostep::surrogate::{InputScale, SigmaA, SurrogateKind, SurrogateSpec};
use twostep::train::{OutputTask, TrainMethod, TrainSpec, TrainingSet};

/// Mean, sd and five quantiles of one parameter of the `exact` T-reference.
fn exact(case: &Case, name: &str) -> [f64; 7] {
    let entry = &case.t_reference["exact"][name];
    ["mean", "sd", "q05", "q25", "q50", "q75", "q95"].map(|k| entry[k].as_f64().unwrap())
}

fn check_exact(name: &str) {
    let case = Case::load(name);
    let report = &case.posterior(false, &TrainSpec { draws: 1000, ..TrainSpec::default() }).outputs[0].report;
    assert_eq!(report.method, "exact");
    // The reference states how much its own quadrature changes when refined; ours is finer.
    let stated = case.t_reference["exact_grid_check_max_abs_change"].as_f64().unwrap();
    for parameter in &report.parameters {
        let exact = exact(&case, &parameter.name);
        let values = [&[parameter.mean, parameter.sd][..], &parameter.quantiles[..]].concat();
        for (value, exact) in values.iter().zip(exact) {
            assert!((value - exact).abs() < 10.0 * stated, "{name} {}: {value} against {exact}", parameter.name);
        }
    }
}

#[test]
fn exact_pce() {
    check_exact("pce");
}

#[test]
fn exact_sir() {
    check_exact("sir");
}

/// The exact draws have the exact moments within Monte Carlo error.
#[test]
fn exact_draws_are_draws() {
    let case = Case::load("pce_clusters");
    let n = 4000;
    let posterior = case.posterior(false, &TrainSpec { draws: n, ..TrainSpec::default() });
    for (p, parameter) in posterior.outputs[0].report.parameters.iter().enumerate() {
        let row = posterior.draws.values().row(p);
        let mean = row.iter().sum::<f64>() / n as f64;
        // Seven comparisons at alpha = 1e-4: z = 4.34.
        assert!((mean - parameter.mean).abs() < 4.34 * parameter.sd / (n as f64).sqrt(), "{}", parameter.name);
    }
}

/// Where NUTS converges it agrees within 4 MCSE; where it does not, it says so.
fn check_nuts(name: &str, must_converge: bool) {
    let case = Case::load(name);
    let spec = TrainSpec { method: TrainMethod::Nuts, draws: 8000, ..TrainSpec::default() };
    let report = &case.posterior(false, &spec).outputs[0].report;
    // The threshold of the report's own advice.
    let converged = report.parameters.iter().all(|p| p.r_hat.unwrap() <= 1.01);
    assert!(converged || !must_converge, "{:?}", report.parameters);
    if !converged {
        assert!(report.warnings.iter().any(|w| w.contains("not converged")), "{:?}", report.warnings);
        return;
    }
    for parameter in &report.parameters {
        let exact = exact(&case, &parameter.name);
        let error = parameter.mcse_mean.unwrap();
        assert!(
            (parameter.mean - exact[0]).abs() < 4.0 * error,
            "{name} {}: {} against {} (MCSE {error})",
            parameter.name,
            parameter.mean,
            exact[0]
        );
    }
}

#[test]
fn nuts_pce() {
    check_nuts("pce_clusters", true);
}

#[test]
fn nuts_logistic() {
    // Five runs leave the logistic's T-posterior with heavy tails in every direction.
    check_nuts("logistic", false);
}

/// A slope that enters squared has two mirrored modes, between which no chain moves: `auto` replaces the chains.
#[test]
fn two_modes_are_found_or_nuts_is_blamed() {
    let omega: Vec<f64> = (0..8).map(|i| -1.0 + f64::from(i) / 3.5).collect();
    let set = TrainingSet::new(
        vec!["omega".into()],
        Matrix::from_fn(8, 1, |i, _| omega[i]),
        vec![("y".into(), omega.iter().map(|w| 4.0 * w + (17.0 * w).sin()).collect())],
    );
    let spec = SurrogateSpec {
        kind: SurrogateKind::Formula {
            formula: "c * c * omega".into(),
            parameters: vec![("c".into(), common::marginal("normal(0, 3)"))],
        },
        sigma_a: SigmaA::Prior(common::marginal("exponential(1)")),
        standardise: false,
    };
    let tasks = [OutputTask { name: "y", spec: &spec, log: false, affine: None, n_inputs: 1 }];
    let scales = [InputScale { lower: -1.0, upper: 1.0, log: false }];
    for method in [TrainMethod::Auto, TrainMethod::Nuts] {
        let settings = TrainSpec { method, draws: 2000, ..TrainSpec::default() };
        let posterior =
            twostep::train::train(&set, &tasks, &scales, &settings, None, Stream::root(3), &Silent).unwrap();
        let report = &posterior.outputs[0].report;
        assert!(!report.warnings.is_empty());
        if method == TrainMethod::Nuts {
            assert_eq!(report.method, "nuts");
            continue;
        }
        assert_eq!(report.method, "smc");
        let below = posterior.draws.values().row(0).iter().filter(|c| **c < 0.0).count() as f64 / 2000.0;
        // By symmetry one half. Eight runs of 512 particles share out the modes when they first part, so a run's share has at
        // most the sd 1/2 (all in one), and their mean 0.5 / sqrt(8) = 0.18; two such are allowed.
        assert!((below - 0.5).abs() < 0.36, "{below}");
        let size = posterior.draws.values().row(0).iter().map(|c| c.abs()).sum::<f64>() / 2000.0;
        // c^2 is the slope, 4 plus the noise of eight points: its sd is sigma_a / |omega|, at most 1 / 1.8, hence 0.14 of |c|.
        assert!((size - 2.0).abs() < 4.0 * 0.14, "{size}");
    }
}
