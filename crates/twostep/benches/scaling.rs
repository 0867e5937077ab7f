//! How cost grows with the number of T-draws, measurements, degree, unknowns, clusters and workers, as tables in Markdown with
//! fitted exponents.
//!
//! Arguments choose tables: `draws`, `measurements`, `degree`, `unknowns`, `clusters`, `workers` (none: all).

#![allow(clippy::print_stdout, reason = "its output is its purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/small.rs"]
mod small;

use common::{Case, THETA_C};
use small::{Small, propagation, settings};
use std::hint::black_box;
use std::time::Instant;
use twostep::infer::propagation::Method;
use twostep::infer::{Engine, InferSpec, Target};
use twostep::likelihood::{ErrorSharing, Family, Scale};
use twostep::matrix::Matrix;
use twostep::stream::Stream;
use twostep::train::{TPosterior, TrainSpec, cluster};

/// A polynomial of total degree `degree` in some unknowns and, where asked for, time.
fn problem(degree: usize, unknowns: usize, timed: bool, n_draws: usize, n_measurements: usize) -> Small {
    let surrogate = small::polynomial(degree, unknowns + usize::from(timed));
    let mut centre = vec![0.02; surrogate.names().len()];
    (centre[0], centre[1]) = (3.0, 1.0);
    let at = |i: usize| -1.0 + 2.0 * i as f64 / (n_measurements - 1) as f64;
    let known = Matrix::from_fn(n_measurements, usize::from(timed), |i, _| at(i));
    let y = (0..n_measurements).map(|i| 3.0 + 0.3 * (40.0 * at(i)).sin()).collect();
    let small = Small::random(surrogate, &centre, 0.05, n_draws, 1).with_unknowns(unknowns);
    small.measure(y, known).noise(Family::Normal, Scale::Prior(small::marginal("half-normal(0.5)")))
}

fn seconds(mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    f();
    let once = start.elapsed().as_secs_f64();
    let calls = (0.005 / once.max(1e-9)).clamp(1.0, 1e6) as usize;
    let rounds = if once > 0.3 { 2 } else { 9 };
    let batch = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..calls).for_each(|_| f());
        start.elapsed().as_secs_f64() / calls as f64
    };
    (0..rounds).map(|_| batch(&mut f)).fold(once, f64::min)
}

/// Seconds of preparing the likelihoods, and of one E-Lik log-likelihood with its gradient.
fn costs(small: &Small) -> [f64; 2] {
    let spec = settings(false, ErrorSharing::Shared);
    let start = Instant::now();
    let prepared = small.prepared(&spec, true).unwrap();
    let preparing = start.elapsed().as_secs_f64();
    let propagation = propagation(Method::ELik);
    let mut target = Target::new(prepared.likelihoods(), prepared.prior(), &*propagation, prepared.log_alpha());
    let dim = prepared.prior().len();
    let mut x = vec![0.1; dim];
    x[dim - 1] = 0.5;
    let mut gradient = vec![0.0; dim];
    let evaluating = seconds(|| {
        black_box(target.log_likelihood(black_box(&x), &mut gradient));
    });
    [preparing, evaluating]
}

/// Slope of log cost over log size by least squares.
fn exponent(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let (mx, my) = (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
    let covariance: f64 = logs.iter().map(|(x, y)| (x - mx) * (y - my)).sum();
    covariance / logs.iter().map(|(x, _)| (x - mx).powi(2)).sum::<f64>()
}

/// Largest memory of this process so far, in MB.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok()).map_or(f64::NAN, |kb| kb / 1000.0)
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.2} us", 1e6 * s),
        s if s < 1.0 => format!("{:.2} ms", 1e3 * s),
        s => format!("{s:.2} s"),
    }
}

/// One row for each size: what it costs to make ready and to evaluate; the exponent is fitted to those above `from`.
fn evaluations(name: &str, sizes: &[usize], from: usize, problem: impl Fn(usize) -> Small) {
    println!("\n| {name} | made ready in | evaluated in | peak memory |\n|---|---|---|---|");
    let mut points = Vec::new();
    for &size in sizes {
        let [preparing, evaluating] = costs(&problem(size));
        println!("| {size} | {} | {} | {:.0} MB |", time(preparing), time(evaluating), memory());
        if size >= from {
            points.push((size as f64, evaluating));
        }
    }
    println!("\nEvaluation grows as {name}^{:.2} from {from} on.", exponent(&points));
}

/// The I-posterior by E-Lik and E-Post on the grid from so many clusters of the T-draws.
fn clusters() {
    println!("\n| clusters | E-Lik | E-Post | nodes of E-Post |\n|---|---|---|---|");
    let case = Case::load("sir");
    let posterior = case.posterior(true, &TrainSpec::default());
    let mut points = [Vec::new(), Vec::new()];
    for n in [2, 5, 10, 25, 50, 100, 250, 500, 1000] {
        let representative = cluster::Representative::Centroid;
        let draws = match n < posterior.draws.n_draws() {
            true => cluster::cluster(&posterior, &case.scales, n, representative, false, Stream::root(1)),
            false => posterior.draws.clone(),
        };
        let reduced = TPosterior { outputs: posterior.outputs.clone(), draws };
        let of = |method: Method| {
            let spec = InferSpec { methods: vec![method], engine: Engine::Grid, ..common::settings(THETA_C) };
            let start = Instant::now();
            let answer = common::infer(&case.prepared(&reduced, &spec, true), &spec, 1).remove(0);
            (start.elapsed().as_secs_f64(), answer.diagnostics.evaluations)
        };
        let (e_lik, e_post) = (of(Method::ELik), of(Method::EPost));
        println!("| {n} | {} | {} | {} |", time(e_lik.0), time(e_post.0), e_post.1);
        points[0].push((n as f64, e_lik.0));
        points[1].push((n as f64, e_post.0));
    }
    let [e_lik, e_post] = points.map(|points| exponent(&points[3..]));
    println!("\nFrom 25 clusters on E-Lik grows as L^{e_lik:.2}, E-Post as L^{e_post:.2}.");
}

/// Wall-clock time of the whole I-step, and of one evaluation with very many T-draws, by number of threads.
fn workers() {
    println!("\n| workers | E-Lik by SMC | E-Post by grid | one E-Lik evaluation, S = 10^5 |\n|---|---|---|---|");
    let case = Case::load("sir");
    let posterior = case.posterior(true, &TrainSpec::default());
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let large = problem(4, 2, true, 100_000, 50);
    let mut first: Option<[f64; 3]> = None;
    for workers in [1, 2, 4, 8, 16].into_iter().filter(|n| *n <= most) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(workers).build().unwrap();
        let times = pool.install(|| {
            let of = |method: Method, engine: Engine| {
                let spec = InferSpec { methods: vec![method], engine, ..common::settings(THETA_C) };
                let prepared = case.prepared(&posterior, &spec, true);
                seconds(|| {
                    black_box(common::infer(&prepared, &spec, 1));
                })
            };
            [of(Method::ELik, Engine::Smc), of(Method::EPost, Engine::Grid), costs(&large)[1]]
        });
        let base = *first.get_or_insert(times);
        let cell = |i: usize| format!("{} ({:.1} x)", time(times[i]), base[i] / times[i]);
        println!("| {workers} | {} | {} | {} |", cell(0), cell(1), cell(2));
    }
}

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|c| c == name);
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    one.install(|| {
        if is_chosen("draws") {
            evaluations("S", &[10, 100, 1000, 10_000, 100_000], 100, |n| problem(4, 2, true, n, 50));
        }
        if is_chosen("measurements") {
            evaluations("N_I", &[5, 50, 500, 5000, 100_000], 5, |n| problem(4, 2, true, 1000, n));
        }
        if is_chosen("degree") {
            evaluations("d", &[2, 5, 9, 25], 2, |d| problem(d, 1, false, 1000, 50));
        }
        if is_chosen("unknowns") {
            evaluations("unknowns", &[1, 2, 3, 5, 8, 12, 20], 1, |n| problem(2, n, true, 1000, 50));
        }
        if is_chosen("clusters") {
            clusters();
        }
    });
    if is_chosen("workers") {
        workers();
    }
}
