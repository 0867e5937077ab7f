//! The exact and NUTS T-steps against the T-references, from the training data.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Case;
use twostep::train::{TrainMethod, TrainSpec};

/// Mean, sd and five quantiles of one parameter of the `exact` T-reference.
fn exact(case: &Case, name: &str) -> [f64; 7] {
    let entry = &case.t_reference["exact"][name];
    ["mean", "sd", "q05", "q25", "q50", "q75", "q95"].map(|k| entry[k].as_f64().unwrap())
}

fn check_exact(name: &str) {
    let Some(case) = Case::load(name) else { return };
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
    let Some(case) = Case::load("pce_clusters") else { return };
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
    let Some(case) = Case::load(name) else { return };
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
