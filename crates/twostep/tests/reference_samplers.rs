//! The reference posteriors by sequential Monte Carlo and by NUTS, from the given T-draws.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Case, THETA_C, THETA_C_SIGMA_A};
use twostep::infer::{Engine, IPosterior, InferSpec};
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

fn smc(name: &str) {
    let Some(case) = Case::load(name) else { return };
    let posterior = case.posterior(true, &TrainSpec::default());
    for label in [THETA_C, THETA_C_SIGMA_A] {
        let spec = InferSpec {
            engine: Engine::Smc,
            methods: if std::env::var("EP").is_ok() {
                vec![twostep::infer::propagation::Method::EPost]
            } else {
                twostep::infer::propagation::Method::ALL.to_vec()
            },
            ..common::settings(label)
        };
        let prepared = case.prepared(&posterior, &spec, true);
        for seed in 1..=5 {
            let start = std::time::Instant::now();
            for answer in common::infer(&prepared, &spec, seed) {
                let (z, place) = worst(&case, label, &answer);
                eprintln!(
                    "{name} {label} seed {seed} {}: {z:.2} {place} {:?} {:.1}",
                    answer.method,
                    answer.diagnostics.evaluations,
                    start.elapsed().as_secs_f64()
                );
            }
        }
    }
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
fn smc_pce_clusters() {
    smc("pce_clusters");
}

#[test]
fn smc_sir() {
    smc("sir");
}
