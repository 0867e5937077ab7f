//! What answers cost in work that does not jitter: points of the grid, gradients for each effective draw, readings of the draws'
//! coefficients. Each may become less, never more.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "common/small.rs"]
mod small;

use common::{Case, THETA_C};
use small::{Small, propagation, settings};
use std::path::Path;
use twostep::infer::propagation::Method;
use twostep::infer::{Engine, InferSpec, Target};
use twostep::likelihood::{ErrorSharing, Family, Scale};
use twostep::matrix::Matrix;
use twostep::mcmc::{Bayes, Point};
use twostep::monitor::Silent;
use twostep::run::Project;
use twostep::study::{self, Stage};
use twostep::train::TrainSpec;

/// Rounding differs between instruction sets, and with it a cell here and there.
const SLACK: f64 = 1.02;

/// Evaluations recorded for a case, method and engine; lower them when they become fewer.
const EVALUATIONS: [(&str, Method, Engine, usize); 8] = [
    ("sir", Method::ELik, Engine::Grid, 11_350),
    ("sir", Method::EPost, Engine::Grid, 31_750),
    ("sir", Method::Point, Engine::Grid, 9400),
    ("sir", Method::ELogLik, Engine::Grid, 7150),
    ("pce", Method::ELik, Engine::Grid, 2720),
    ("pce", Method::EPost, Engine::Grid, 4060),
    ("logistic", Method::ELik, Engine::Grid, 2580),
    ("pce", Method::ELik, Engine::Smc, 191_219),
];

/// Points of the grid for each method of `studies/sir.toml`.
const SHIPPED: [(Method, usize); 4] =
    [(Method::Point, 4750), (Method::ELik, 4400), (Method::ELogLik, 4800), (Method::EPost, 11_150)];

/// Runs whose effective draws and gradients are counted together.
const SEEDS: u64 = 16;

/// Gradients of NUTS for each effective draw, warm-up included.
const GRADIENTS_PER_EFFECTIVE_DRAW: [(&str, Method, f64); 2] =
    [("sir", Method::ELogLik, 16.5), ("logistic", Method::Point, 41.0)];

fn answer(case: &str, method: Method, engine: Engine) -> twostep::infer::IPosterior {
    answer_of(case, method, engine, 1)
}

fn answer_of(case: &str, method: Method, engine: Engine, seed: u64) -> twostep::infer::IPosterior {
    let case = Case::load(case);
    let spec = InferSpec { methods: vec![method], engine, ..common::settings(THETA_C) };
    let posterior = case.posterior(true, &TrainSpec::default());
    common::infer(&case.prepared(&posterior, &spec, true), &spec, seed).remove(0)
}

#[test]
fn evaluations_do_not_become_more() {
    let worse: Vec<String> = EVALUATIONS
        .iter()
        .filter_map(|&(case, method, engine, recorded)| {
            let found = answer(case, method, engine).diagnostics.evaluations;
            let words = format!("{case}, {}, {}: {found} for {recorded}", method.name(), engine.name());
            (found as f64 > SLACK * recorded as f64).then_some(words)
        })
        .collect();
    assert!(worse.is_empty(), "{worse:#?}");
}

#[test]
fn the_shipped_study_takes_no_more_points() {
    let settings = study::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies/sir.toml")).unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("work");
    let _ = std::fs::remove_dir_all(&folder);
    let results = Project::new(settings, folder.clone()).run(Stage::Infer, &Silent).unwrap();
    for (method, recorded) in SHIPPED {
        let answer = results[0].posteriors.iter().find(|answer| answer.method == method.name()).unwrap();
        let found = answer.diagnostics.evaluations;
        assert!(found as f64 <= SLACK * recorded as f64, "{}: {found} for {recorded}", method.name());
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn effective_draws_do_not_take_more_gradients() {
    for (case, method, recorded) in GRADIENTS_PER_EFFECTIVE_DRAW {
        // One run's ratio changes by a third when nothing but the last bits of a density do.
        let (mut evaluations, mut effective) = (0.0, 0.0);
        for seed in 0..SEEDS {
            let answer = answer_of(case, method, Engine::Nuts, seed);
            evaluations += answer.diagnostics.evaluations as f64;
            effective += answer.unknowns.iter().filter_map(|u| u.ess_bulk).fold(f64::INFINITY, f64::min);
        }
        let found = evaluations / effective;
        assert!(found <= SLACK * recorded, "{case}, {}: {found:.2} for {recorded}", method.name());
    }
}

#[test]
fn draws_are_read_once_for_one_point_and_for_sixteen() {
    let surrogate = small::polynomial(3, 3);
    let mut centre = vec![0.1; surrogate.names().len()];
    centre[0] = 1.0;
    let known = Matrix::from_fn(20, 1, |i, _| -0.95 + 0.1 * i as f64);
    let small = Small::random(surrogate, &centre, 0.1, 200, 1)
        .measure((0..20).map(|i| 1.0 + 0.1 * f64::from(i % 7)).collect(), known)
        .noise(Family::Normal, Scale::Prior(small::marginal("half-normal(0.5)")));
    for sigma_a in [false, true] {
        let prepared = small.prepared(&settings(sigma_a, ErrorSharing::Shared), true).unwrap();
        let propagation = propagation(Method::ELik);
        let mut target = Target::new(prepared.likelihoods(), prepared.prior(), &*propagation, prepared.log_alpha());
        assert_eq!(target.readings(), 0);
        target.log_likelihood(&[0.1, 0.2, 0.3], &mut [0.0; 3]);
        assert_eq!(target.readings(), 1);
        let mut points = vec![Point::new(3); 16];
        target.evaluate(&mut points.iter_mut().collect::<Vec<_>>());
        assert_eq!(target.readings(), 2);
        target.evaluate(&mut points.iter_mut().take(3).collect::<Vec<_>>());
        assert_eq!(target.readings(), 5);
    }
}
