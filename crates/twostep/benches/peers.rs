//! CPU time and answer of one step of a reference case, as one line of JSON; `benches/peers/run` sets them beside Stan's.
//!
//! Arguments: case (`logistic`, `pce`, `sir`), `t-step` or a propagation method, engine, seed and, if wanted, a file for the draws of
//! chains. Engines of the T-step: `auto`, `exact`, `nuts`. Engines of the I-step, from the case's T-draws with theta = c: `auto`, `grid`,
//! `smc`, `nuts`, and `chains`: NUTS from the exact posterior mean, without the engine's check for modes that no chain visited. One thread.
//! `grid:1000` asks for 1000 I-draws, `grid:1000:0.01` for a grid of that accuracy, too. What is quick is done twice: `cpu_s` is the first time of a fresh process, `again_cpu_s` the second.

#![allow(clippy::print_stdout, reason = "its output is its purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Case, THETA_C};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::fmt::Write as _;
use twostep::draws::Sorted;
use twostep::infer::propagation::{Method, PointEstimate};
use twostep::infer::{Engine, GridSpec, IPosterior, InferSpec, Target};
use twostep::mcmc::nuts::{self, Chain, Settings};
use twostep::mcmc::{Posterior, diagnostics};
use twostep::stream::Stream;
use twostep::train::{TPosterior, TrainMethod, TrainSpec};

/// Chains of the standard run, and draws of each.
const CHAINS: usize = 4;
const DRAWS: usize = 1000;

/// CPU seconds below which a step is done again, to see what a fresh process adds.
const QUICK: f64 = 0.1;

/// CPU seconds of this process so far.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// What a step gave and took.
struct Answer {
    engine: String,
    cpu: f64,
    /// Evaluations of the log density, where they are counted.
    evaluations: Option<usize>,
    unknowns: Vec<Value>,
    warnings: Vec<String>,
    /// Draws of chains one after the other, each with the steps of its trajectory where they are known.
    draws: Vec<(u64, Vec<f64>)>,
}

fn unknown(name: &str, [mean, sd, q05, q95]: [f64; 4], ess: Option<f64>, r_hat: Option<f64>) -> Value {
    json!({ "name": name, "mean": mean, "sd": sd, "q05": q05, "q95": q95, "ess_bulk": ess, "r_hat": r_hat })
}

fn t_step(case: &Case, method: TrainMethod, seed: u64) -> Answer {
    let draws = if method == TrainMethod::Nuts { CHAINS * DRAWS } else { TrainSpec::default().draws };
    let spec = TrainSpec { method, draws, ..TrainSpec::default() };
    let start = cpu();
    let posterior = case.trained(&spec, Stream::root(seed));
    let cpu = cpu() - start;
    let (report, values) = (&posterior.outputs[0].report, posterior.draws.values());
    let of_chains = report.method == "nuts";
    let draw = |s: usize| (0, (0..values.rows()).map(|p| values[(p, s)]).collect());
    Answer {
        engine: report.method.clone(),
        cpu,
        evaluations: None,
        unknowns: (report.parameters.iter())
            .map(|p| unknown(&p.name, [p.mean, p.sd, p.quantiles[0], p.quantiles[4]], p.ess_bulk, p.r_hat))
            .collect(),
        warnings: report.warnings.clone(),
        draws: if of_chains { (0..values.cols()).map(draw).collect() } else { Vec::new() },
    }
}

fn i_step(case: &Case, posterior: &TPosterior, method: Method, asked: &str, seed: u64) -> Answer {
    let mut asked = asked.split(':');
    let name = asked.next().unwrap();
    let engine = Engine::ALL.into_iter().find(|known| known.name() == name).unwrap();
    let draws = asked.next().map_or(4000, |draws| draws.parse().unwrap());
    let grid = asked.next().map_or_else(GridSpec::default, |accuracy| GridSpec { accuracy: accuracy.parse().unwrap() });
    let spec = InferSpec { methods: vec![method], engine, draws, grid, ..common::settings(THETA_C) };
    let start = cpu();
    let prepared = case.prepared(posterior, &spec, true);
    let IPosterior { engine, unknowns, diagnostics, warnings, draws, transitions, .. } =
        common::infer(&prepared, &spec, seed).remove(0);
    let cpu = cpu() - start;
    Answer {
        engine,
        cpu,
        evaluations: Some(diagnostics.evaluations),
        unknowns: (unknowns.iter())
            .map(|u| unknown(&u.name, [u.mean, u.sd, u.q05, u.q95], u.ess_bulk, u.r_hat))
            .collect(),
        warnings,
        draws: transitions.iter().flatten().map(|t| t.n_steps).zip(draws).collect(),
    }
}

/// The chains of NUTS alone, for a method that has one density.
fn chains_alone(case: &Case, posterior: &TPosterior, method: Method, seed: u64) -> Answer {
    let spec = InferSpec { methods: vec![method], ..common::settings(THETA_C) };
    let propagation = method.propagation(PointEstimate::Mean);
    let draws = propagation.reduce(&posterior.draws);
    let weights = draws.weights();
    let prepared = case.prepared(&TPosterior { outputs: posterior.outputs.clone(), draws }, &spec, true);
    let averaged = (method == Method::ELogLik).then(|| prepared.likelihoods().averaged(&weights)).flatten();
    let (likelihoods, log_alpha) = match &averaged {
        Some(averaged) => (averaged, &[0.0][..]),
        None => (prepared.likelihoods(), prepared.log_alpha()),
    };
    let target = Target::new(likelihoods, prepared.prior(), &*propagation, log_alpha);
    let settings = Settings { draws: DRAWS, ..Settings::default() };
    let mean = |name: &str| case.answer(THETA_C, method.name(), name)[0];
    let begin: Vec<f64> = prepared.prior().iter().map(|(name, prior)| prior.to_real(mean(name))).collect();
    let stream = Stream::root(seed);
    let start = cpu();
    let chain =
        |c| nuts::sample(&mut Posterior::new(target.clone()), &begin, &settings, &mut stream.at(c).rng(), &|| true);
    let chains: Vec<Chain> = (0..CHAINS as u64).map(|c| chain(c).unwrap()).collect();
    let natural = |z: &[f64]| prepared.prior().marginals().iter().zip(z).map(|(m, &z)| m.from_real(z).x).collect();
    let draws: Vec<(u64, Vec<f64>)> = (chains.iter())
        .flat_map(|chain| chain.transitions.iter().map(|t| t.n_steps).zip(chain.draws.iter().map(|z| natural(z))))
        .collect();
    let cpu = cpu() - start;
    let summary = |(d, name): (usize, &String)| {
        let values: Vec<f64> = draws.iter().map(|(_, x)| x[d]).collect();
        let (n, split) = (values.len() as f64, values.chunks(DRAWS).map(<[f64]>::to_vec).collect::<Vec<_>>());
        let mean = values.iter().sum::<f64>() / n;
        let sd = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
        let sorted = Sorted::new(&values, &vec![1.0; values.len()]);
        let statistics = [mean, sd, sorted.quantile(0.05), sorted.quantile(0.95)];
        unknown(name, statistics, Some(diagnostics::ess_bulk(&split)), Some(diagnostics::r_hat(&split)))
    };
    Answer {
        engine: "chains".into(),
        cpu,
        evaluations: Some(chains.iter().map(|c| c.gradients as usize).sum()),
        unknowns: prepared.prior().names().iter().enumerate().map(summary).collect(),
        warnings: Vec::new(),
        draws,
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [case, step, engine, seed, file @ ..] = arguments.as_slice() else {
        println!("peers: run by benches/peers/run; arguments: case, t-step or method, engine, seed, file for draws");
        return;
    };
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().unwrap();
    let (case, seed) = (Case::load(case), seed.parse().unwrap());
    let mut again = None;
    let answer = if step == "t-step" {
        let methods = [("auto", TrainMethod::Auto), ("exact", TrainMethod::Exact), ("nuts", TrainMethod::Nuts)];
        t_step(&case, methods.iter().find(|(name, _)| name == engine).unwrap().1, seed)
    } else {
        let method = Method::ALL.into_iter().find(|method| method.name() == step).unwrap();
        let posterior = case.posterior(true, &TrainSpec::default());
        match engine.as_str() {
            "chains" => chains_alone(&case, &posterior, method, seed),
            _ => {
                let answer = || i_step(&case, &posterior, method, engine, seed);
                let first = answer();
                again = (first.cpu < QUICK).then(|| answer().cpu);
                first
            }
        }
    };
    if let [file] = file {
        let mut text = String::new();
        for (i, (steps, draw)) in answer.draws.iter().enumerate() {
            write!(text, "{} {steps}", i * CHAINS / answer.draws.len()).unwrap();
            draw.iter().for_each(|value| write!(text, " {value:e}").unwrap());
            text.push('\n');
        }
        std::fs::write(file, text).unwrap();
    }
    let Answer { engine, cpu, evaluations, unknowns, warnings, .. } = answer;
    println!(
        "{}",
        json!({
            "case": case.name, "step": step, "engine": engine, "seed": seed, "cpu_s": cpu, "again_cpu_s": again,
            "evaluations": evaluations, "unknowns": unknowns, "warnings": warnings,
        })
    );
}
