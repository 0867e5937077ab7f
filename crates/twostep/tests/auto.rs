//! The surrogate that the runs choose, on eight public test functions: it predicts new points as well as the best that could have been taken.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/functions.rs"]
mod functions;

use functions::{Function, borehole, branin, friedman, ishigami, otl_circuit, piston, sobol_g, step};
use twostep::prior::Marginal;
use twostep::surrogate::{Choice, SigmaA, SurrogateKind, SurrogateSpec};

/// Trains all candidates, and the one that is taken, with so many runs.
fn check(name: &str, function: &Function, runs: usize) {
    let spec = SurrogateSpec {
        kind: SurrogateKind::Auto(Choice::Any { sigma_a: None }),
        sigma_a: SigmaA::Prior("exponential(1)".parse::<Marginal>().unwrap()),
        standardise: true,
    };
    let chosen = function.trained_as(&spec, runs);
    let choice = chosen.outputs[0].report.choice.clone().unwrap();
    let candidates = spec.candidates(function.bounds.len(), runs).unwrap();
    assert_eq!(candidates.len(), choice.candidates.len());
    let scores: Vec<(String, Vec<f64>)> = candidates
        .into_iter()
        .map(|(candidate, spec)| (candidate, function.tested(&function.trained_as(&spec, runs)).2))
        .collect();
    let mean = |scores: &[f64]| scores.iter().sum::<f64>() / scores.len() as f64;
    let (best, highest) = scores.iter().max_by(|a, b| mean(&a.1).total_cmp(&mean(&b.1))).unwrap();
    let (taken, own) = &scores[choice.chosen];
    // One standard error of the best candidate's score over as many points as there are runs: finer than that runs cannot tell.
    let behind = mean(highest) - mean(own);
    let variance = mean(&highest.iter().map(|score| (score - mean(highest)).powi(2)).collect::<Vec<_>>());
    let error = (variance / runs as f64).sqrt();
    assert!(behind <= error, "{name}: {taken} is behind {best} by {behind:.3} +- {error:.3}");
}

#[test]
fn ishigami_with_sixty_runs() {
    check("ishigami", &ishigami(), 60);
}

#[test]
fn sobol_g_with_eighty_runs() {
    check("sobol g", &sobol_g(), 80);
}

#[test]
fn borehole_with_fifty_runs() {
    check("borehole", &borehole(), 50);
}

#[test]
fn friedman_with_fifty_runs() {
    check("friedman", &friedman(), 50);
}

#[test]
fn branin_with_thirty_runs() {
    check("branin", &branin(), 30);
}

#[test]
fn otl_circuit_with_fifty_runs() {
    check("otl circuit", &otl_circuit(), 50);
}

#[test]
fn piston_with_sixty_runs() {
    check("piston", &piston(), 60);
}

#[test]
fn a_step_with_fifteen_runs() {
    check("step", &step(), 15);
}
