//! A Gaussian process from training to the answer: its function integrated out exactly, and by T-draws.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::f64::consts::PI;
use twostep::draws::Draws;
use twostep::infer::propagation::Method;
use twostep::infer::{Engine, IPosterior, InferSpec, Measured, Prepared, Problem, infer};
use twostep::likelihood::{Family, NoiseSpec, Scale};
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::prior::{Marginal, Prior};
use twostep::stream::Stream;
use twostep::surrogate::{GpSpec, InputScale, Kernel, Normalisation, SigmaA, SurrogateKind, SurrogateSpec};
use twostep::train::{OutputTask, TPosterior, TrainSpec, TrainingSet, train};

fn marginal(text: &str) -> Marginal {
    text.parse().unwrap()
}

/// A rising curve of one input, or of one and a condition, that no line follows.
fn simulated(x: &[f64]) -> f64 {
    x[0] + 0.1 * (2.0 * PI * x[0]).sin() + x.get(1).map_or(0.0, |t| 0.3 * t * x[0])
}

fn trained(dim: usize, runs: usize, draws: usize, seed: u64) -> TPosterior {
    let spec = SurrogateSpec {
        kind: SurrogateKind::Gp {
            degree: 1,
            normalisation: Normalisation::Orthonormal,
            coefficients: (0.0, 5.0),
            gp: GpSpec {
                kernel: Kernel::Matern52,
                length: None,
                length_of: Vec::new(),
                sd: marginal("half-normal(1)"),
                carrier: None,
            },
        },
        sigma_a: SigmaA::Prior(marginal("half-normal(0.1)")),
        standardise: true,
    };
    // A lattice that fills the square: the golden ratio is the hardest to approximate by a fraction.
    let golden = 0.5 * (5.0_f64.sqrt() - 1.0);
    let at = |i: usize, d: usize| if d == 0 { (i as f64 + 0.5) / runs as f64 } else { (golden * i as f64).fract() };
    let inputs = Matrix::from_fn(runs, dim, |i, d| 2.0 * at(i, d) - 1.0);
    let y = (0..runs).map(|i| simulated(inputs.row(i))).collect();
    let names = ["a", "t"][..dim].iter().map(|name| name.to_string()).collect();
    let set = TrainingSet::new(names, inputs, vec![("y".into(), y)]);
    let scales = vec![InputScale { lower: -1.0, upper: 1.0, log: false }; dim];
    let tasks = [OutputTask { name: "y", spec: &spec, log: false, affine: None, n_inputs: dim }];
    let train_spec = TrainSpec { draws, ..TrainSpec::default() };
    train(&set, &tasks, &scales, &train_spec, None, Stream::root(seed), &Silent).unwrap()
}

/// Hyper-parameters of every T-draw made a little different from all others: functions do not change, but no two T-draws share a node.
fn without_nodes(posterior: &TPosterior) -> TPosterior {
    let mut values = posterior.draws.values().clone();
    let row = posterior.draws.names().iter().position(|name| name == "gp_sd").unwrap();
    values.row_mut(row).iter_mut().enumerate().for_each(|(s, sd)| *sd *= 1.0 + 1e-9 * s as f64);
    let draws = Draws::new(posterior.draws.names().to_vec(), values);
    TPosterior { outputs: posterior.outputs.clone(), draws }
}

fn answer(posterior: &TPosterior, method: Method, engine: Engine) -> IPosterior {
    let conditions: &[f64] = if posterior.outputs[0].n_inputs == 1 { &[] } else { &[-0.5, 0.2, 0.9] };
    let known = match conditions {
        [] => Matrix::zeros(4, 0),
        of => Matrix::from_fn(6, 1, |i, _| of[i / 2]),
    };
    let y = (0..known.rows()).map(|i| {
        let x: Vec<f64> = std::iter::once(0.15).chain(known.row(i).iter().copied()).collect();
        simulated(&x) + 0.02 * (5.0 * i as f64).sin()
    });
    let measured = [Measured { output: "y".into(), y: y.collect(), known: known.clone(), ..Measured::default() }];
    let problem = Problem {
        unknowns: Prior::new(vec!["a".into()], vec![marginal("normal(0, 0.5)").truncated(-1.0, 1.0).unwrap()])
            .unwrap()
            .into(),
        outputs: &posterior.outputs,
        draws: &posterior.draws,
        noise: vec![NoiseSpec { family: Family::Normal, scale: Scale::Prior(marginal("half-normal(0.05)")) }],
        measured: &measured,
        derived: Vec::new(),
    };
    let spec = InferSpec { methods: vec![method], engine, draws: 4000, ..InferSpec::default() };
    let prepared = Prepared::new(problem, &spec, true).unwrap();
    infer(&prepared, &spec, Stream::root(9), &Silent).unwrap().remove(0)
}

#[test]
fn the_exact_marginal_is_what_many_functions_average_to() {
    for (dim, runs) in [(1, 7), (2, 12)] {
        let posterior = trained(dim, runs, 1600, 5);
        let exact = answer(&posterior, Method::ELik, Engine::Grid);
        assert!(exact.trust.contains("integrated out exactly"), "{}", exact.trust);
        assert!(exact.t_draws.as_ref().is_some_and(|t_draws| t_draws.len() == 4000 && t_draws.iter().any(|s| *s > 64)));
        let by_draws = answer(&without_nodes(&posterior), Method::ELik, Engine::Grid);
        assert!(!by_draws.trust.contains("exactly") && by_draws.diagnostics.effective_t_draws.is_some());
        let error = by_draws.diagnostics.t_draw_error.unwrap();
        for (own, other) in exact.unknowns.iter().zip(&by_draws.unknowns) {
            let gaps = [own.mean - other.mean, own.q05 - other.q05, own.q95 - other.q95];
            let worst = gaps.iter().fold(0.0, |m: f64, gap| m.max(gap.abs())) / own.sd;
            // Four times the error that the T-draws state, and the share of the sd that their polynomials may leave out.
            assert!(worst <= 4.0 * error + 0.05, "{dim} {}: {worst} ({error})", own.name);
        }
        // The mean of the evidences of all functions is that of their process; both means are of the same hyper-parameters.
        let [own, other] = [&exact, &by_draws].map(|answer| answer.evidence().unwrap());
        assert!((own.log - other.log).abs() <= 4.0 * other.error() + 0.05, "{dim}: {own:?} {other:?}");
    }
}

#[test]
fn sequential_monte_carlo_agrees_with_the_grid_on_the_exact_marginal() {
    let posterior = trained(1, 7, 640, 5);
    let grid = answer(&posterior, Method::ELik, Engine::Grid);
    let found = answer(&posterior, Method::ELik, Engine::Smc);
    for (own, exact) in found.unknowns.iter().zip(&grid.unknowns) {
        // Five standard errors of a mean by as many effective draws as there are.
        let bound = 5.0 * exact.sd / own.ess_bulk.unwrap().sqrt();
        assert!((own.mean - exact.mean).abs() <= bound, "{}: {} {}", own.name, own.mean, exact.mean);
    }
    let [own, exact] = [&found, &grid].map(|answer| answer.evidence().unwrap());
    // Runs have 15 degrees of freedom: t exceeds this with probability 1e-5.
    assert!((own.log - exact.log).abs() <= 6.2 * own.engine_error + exact.engine_error, "{own:?} {exact:?}");
    // By shares of the nodes: of 4000 draws, and of quadrature.
    let [own, exact] = [own, exact].map(|evidence| evidence.t_draw_error.unwrap());
    assert!(exact > 0.0 && (own / exact - 1.0).abs() < 0.1, "{own} {exact}");
}

#[test]
fn every_method_has_an_answer_around_the_truth() {
    let posterior = trained(1, 12, 640, 3);
    assert!(posterior.outputs[0].report.leave_one_out.q2.unwrap() > 0.8);
    assert_eq!(posterior.outputs[0].report.method, "gp");
    for method in Method::ALL {
        let found = answer(&posterior, method, Engine::Auto);
        let (mean, sd) = (found.unknowns[0].mean, found.unknowns[0].sd);
        assert!((mean - 0.15).abs() < 5.0 * sd && sd < 0.2, "{}: {mean} {sd}", method.name());
    }
}
