//! The reference posteriors by the grid engine, from the given T-draws.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Case, THETA_C, THETA_C_SIGMA_A};
use twostep::infer::Engine;
use twostep::train::TrainSpec;

fn check(name: &str) {
    let case = Case::load(name);
    let posterior = case.posterior(true, &TrainSpec::default());
    for label in [THETA_C, THETA_C_SIGMA_A] {
        let spec = twostep::infer::InferSpec { engine: Engine::Grid, ..common::settings(label) };
        let prepared = case.prepared(&posterior, &spec, true);
        let answers = common::infer(&prepared, &spec, 1);
        // What the reference's own grid changes when every axis is halved, and never finer than a thousandth of an sd.
        let tolerance = case.grid_convergence(label).max(1e-3);
        for answer in &answers {
            for unknown in &answer.unknowns {
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
