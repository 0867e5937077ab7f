//! The reference posteriors by sequential Monte Carlo and by NUTS, from the given T-draws.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Case, THETA_C, THETA_C_SIGMA_A};
use twostep::infer::propagation::Method;
use twostep::infer::{Engine, IPosterior, InferSpec};
use twostep::special::normal_quantile;
use twostep::train::TrainSpec;

/// Largest number of combined standard errors between an answer and the reference: Monte Carlo and the reference's own grid.
fn worst(case: &Case, label: &str, answer: &IPosterior) -> (f64, String) {
    let mut worst = (0.0, String::new());
    for unknown in &answer.unknowns {
        let exact = case.answer(label, &answer.method, &unknown.name);
        let quantiles = unknown.mcse_quantiles.unwrap();
        let errors = [&[unknown.mcse_mean.unwrap(), unknown.mcse_sd.unwrap()][..], &quantiles[..]].concat();
        let reference = case.grid_convergence(label).max(1e-3) * exact[1];
        for (k, (value, error)) in common::values(unknown).iter().zip(errors).enumerate() {
            let z = (value - exact[k]).abs() / error.hypot(reference);
            if z > worst.0 {
                worst = (z, format!("{} {k}: {value} against {} (error {error:.1e})", unknown.name, exact[k]));
            }
        }
    }
    worst
}

/// The quantile of alpha = 1e-4 for a whole test: seven statistics of every parameter, method and setting in each seed.
fn bound(case: &Case, seeds: usize) -> f64 {
    let comparisons = 7 * (case.unknowns.len() + 1) * Method::ALL.len() * 2 * seeds;
    normal_quantile(1.0 - 0.5 * 1e-4 / comparisons as f64)
}

/// Sequential Monte Carlo with all methods in five seeds, both settings of theta.
fn smc(name: &str) {
    let case = Case::load(name);
    let posterior = case.posterior(true, &TrainSpec::default());
    const SEEDS: u64 = 5;
    let bound = bound(&case, SEEDS as usize);
    for label in [THETA_C, THETA_C_SIGMA_A] {
        let spec = InferSpec { engine: Engine::Smc, ..common::settings(label) };
        let prepared = case.prepared(&posterior, &spec, true);
        for seed in 1..=SEEDS {
            for answer in common::infer(&prepared, &spec, seed) {
                let (z, place) = worst(&case, label, &answer);
                assert!(z < bound, "{name} {label} seed {seed} {}: {z:.2} standard errors: {place}", answer.method);
            }
        }
    }
}

#[test]
fn smc_pce_clusters() {
    smc("pce_clusters");
}

#[test]
fn smc_logistic() {
    smc("logistic");
}

#[test]
fn smc_pce() {
    smc("pce");
}

#[test]
fn smc_sir() {
    smc("sir");
}

/// Posteriors of one mode even for chains that start anywhere in the prior, where NUTS must answer without a warning. The
/// polynomial surrogates have others: a degree-5 polynomial meets the measured value several times, and the SIR posteriors have
/// three to five modes.
const ONE_MODE: [(&str, &str, &str); 3] = [
    ("logistic", THETA_C, "point"),
    ("logistic", THETA_C_SIGMA_A, "point"),
    ("logistic", THETA_C_SIGMA_A, "e-log-lik"),
];

/// NUTS is right or says loudly that it is not.
fn nuts(name: &str) {
    let case = Case::load(name);
    let posterior = case.posterior(true, &TrainSpec::default());
    let bound = bound(&case, 1);
    for label in [THETA_C, THETA_C_SIGMA_A] {
        let spec = InferSpec { engine: Engine::Nuts, ..common::settings(label) };
        let prepared = case.prepared(&posterior, &spec, true);
        for answer in common::infer(&prepared, &spec, 1) {
            let (z, place) = worst(&case, label, &answer);
            let what = format!("{name} {label} {}: {z:.2} standard errors: {place}", answer.method);
            assert!(z < bound || !answer.warnings.is_empty(), "wrong without a warning: {what}");
            if ONE_MODE.contains(&(name, label, answer.method.as_str())) {
                assert!(answer.warnings.is_empty(), "{what}: {:?}", answer.warnings);
                assert!(z < 4.0, "{what}");
            }
        }
    }
}

#[test]
fn nuts_logistic() {
    nuts("logistic");
}

#[test]
fn nuts_pce() {
    nuts("pce");
}

#[test]
fn nuts_pce_clusters() {
    nuts("pce_clusters");
}

#[test]
fn nuts_sir() {
    nuts("sir");
}
