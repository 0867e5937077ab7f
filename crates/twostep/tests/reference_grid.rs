//! The reference posteriors by the grid engine, from the given T-draws.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Case, THETA_C, THETA_C_SIGMA_A};
use twostep::infer::{Engine, GridSpec, InferSpec};
use twostep::train::TrainSpec;

fn check(name: &str) {
    let case = Case::load(name);
    let posterior = case.posterior(true, &TrainSpec::default());
    let exactly = GridSpec::default();
    let roughly = GridSpec { accuracy: GridSpec::ACCURACIES[1] };
    for (label, grid) in
        [(THETA_C, exactly), (THETA_C, roughly), (THETA_C_SIGMA_A, exactly), (THETA_C_SIGMA_A, roughly)]
    {
        let spec = InferSpec { engine: Engine::Grid, grid, ..common::settings(label) };
        let prepared = case.prepared(&posterior, &spec, true);
        let answers = common::infer(&prepared, &spec, 1);
        // What the reference's own grid changes when every axis is halved, and never finer than what was asked for.
        let tolerance = case.grid_convergence(label).max(grid.accuracy);
        for answer in &answers {
            for unknown in &answer.unknowns {
                // Sds are summed out by a rule of their own, which states its error and is not refined.
                let stated = unknown.quadrature_error.unwrap();
                assert!(
                    unknown.name == "sigma_i" || stated <= grid.accuracy,
                    "{name} {label} {}: {stated}",
                    unknown.name
                );
                let exact = case.answer(label, &answer.method, &unknown.name);
                let gap = common::values(unknown).iter().zip(exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(
                    gap <= tolerance * exact[1],
                    "{name} {label} {} {}: {:.2e} sd off: {:?} against {exact:?}",
                    answer.method,
                    unknown.name,
                    gap / exact[1],
                    common::values(unknown)
                );
            }
        }
    }
}

#[test]
fn logistic() {
    check("logistic");
}

#[test]
fn pce() {
    check("pce");
}

#[test]
fn pce_clusters() {
    check("pce_clusters");
}

#[test]
fn sir() {
    check("sir");
}
