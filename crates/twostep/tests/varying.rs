//! An approximation error that depends on the inputs, from training to the answer.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/small.rs"]
mod small;

use rand::RngExt;
use rand_distr::StandardNormal;
use small::{Small, log_likelihoods, marginal, settings, unit_scale};
use twostep::infer::propagation::Method;
use twostep::infer::{Engine, IPosterior, InferSpec, Measured, Prepared, Problem, infer};
use twostep::likelihood::{ErrorSharing, Family, NoiseSpec, Scale};
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::prior::Prior;
use twostep::stream::Stream;
use twostep::surrogate::{Normalisation, SigmaA, SurrogateKind, SurrogateSpec};
use twostep::train::{OutputTask, TPosterior, TrainMethod, TrainSpec, TrainingSet, train};

const RUNS: usize = 40;

fn spec(of: SurrogateKind, prior: &str) -> SurrogateSpec {
    SurrogateSpec {
        kind: SurrogateKind::VaryingError { of: Box::new(of), degree: 1, coefficients: marginal(prior) },
        sigma_a: SigmaA::Prior(marginal("exponential(1)")),
        standardise: false,
    }
}

fn line() -> SurrogateKind {
    SurrogateKind::Pce {
        degree: 1,
        normalisation: Normalisation::Orthonormal,
        coefficients: marginal("normal(0, 5)"),
        q_norm: 1.0,
    }
}

/// `1 + x` with errors of sd `0.1 exp(x)`.
fn trained(spec: &SurrogateSpec, method: TrainMethod, draws: usize, seed: u64) -> TPosterior {
    let mut rng = Stream::root(17).rng();
    let inputs = Matrix::from_fn(RUNS, 1, |i, _| 2.0 * (i as f64 + 0.5) / RUNS as f64 - 1.0);
    let y = (0..RUNS).map(|i| {
        let x = inputs[(i, 0)];
        1.0 + x + 0.1 * x.exp() * rng.sample::<f64, _>(StandardNormal)
    });
    let set = TrainingSet::new(vec!["a".into()], inputs.clone(), vec![("y".into(), y.collect())]);
    let tasks = [OutputTask { name: "y", spec, log: false, affine: None, n_inputs: 1 }];
    let train_spec = TrainSpec { draws, method, ..TrainSpec::default() };
    train(&set, &tasks, &[unit_scale()], &train_spec, None, Stream::root(seed), &Silent).unwrap()
}

/// Coefficients integrated out against all parameters sampled; a formula, which is the same line, too.
#[test]
fn what_is_integrated_out_and_what_is_sampled_agree() {
    let polynomial = spec(line(), "normal(0, 0.5)");
    let collapsed = trained(&polynomial, TrainMethod::Auto, 2000, 1);
    assert_eq!(collapsed.outputs[0].report.method, "exact-given-nuts");
    assert_eq!(collapsed.draws.names(), ["c[0]", "c[1]", "a[1]", "sigma_a"]);
    // sqrt(3) times the coefficient is the slope of log sigma_A, which is one.
    let slope = &collapsed.outputs[0].report.parameters[2];
    assert!((slope.mean * 3.0_f64.sqrt() - 1.0).abs() < 4.0 * 3.0_f64.sqrt() * slope.sd, "{slope:?}");
    assert!(slope.quantiles[0] > 0.0, "{slope:?}");
    let sampled = trained(&polynomial, TrainMethod::Nuts, 2000, 2);
    let formula = SurrogateKind::Formula {
        formula: "a_0 + sqrt(3) * a_1 * a".into(),
        parameters: ["a_0", "a_1"].map(|name| (name.to_owned(), marginal("normal(0, 5)"))).to_vec(),
    };
    let formula = trained(&spec(formula, "normal(0, 0.5)"), TrainMethod::Nuts, 2000, 3);
    let own = &collapsed.outputs[0].report;
    // Draws of the coefficients are no closer to independent than those of the parameters they are given.
    let least = own.parameters.iter().filter_map(|p| p.ess_bulk).fold(f64::INFINITY, f64::min);
    assert!(least > 500.0, "{least}");
    for other in [&sampled, &formula] {
        for (a, b) in own.parameters.iter().zip(&other.outputs[0].report.parameters) {
            let errors = [a.sd / least.sqrt(), b.mcse_mean.unwrap()];
            let bound = 4.0 * errors[0].hypot(errors[1]);
            assert!((a.mean - b.mean).abs() <= bound, "{}: {} {} ({bound})", a.name, a.mean, b.mean);
            // The sd of an sd is at most that of a normal sample's, sd / sqrt(2 n), with twice its kurtosis.
            let of_sds = 4.0 * a.sd * (1.0 / least + 1.0 / b.ess_bulk.unwrap()).sqrt();
            assert!((a.sd - b.sd).abs() <= of_sds, "{}: {} {}", a.name, a.sd, b.sd);
        }
        let (a, b) = (own.leave_one_out.q2.unwrap(), other.outputs[0].report.leave_one_out.q2.unwrap());
        // Both are exact for the same posterior but for its draws, whose mean prediction moves by 4 sd / sqrt(ESS) of the epistemic sd, a tenth
        // of the outputs' at most.
        assert!((a - b).abs() <= 2.0 * 0.1 * 4.0 / least.sqrt(), "{a} {b}");
    }
}

/// With no room for the coefficients of sigma_A the T-posterior is that of a constant, which is known exactly.
#[test]
fn a_narrow_prior_leaves_the_exact_t_posterior() {
    let varying = trained(&spec(line(), "normal(0, 1e-6)"), TrainMethod::Auto, 2000, 4);
    let plain = SurrogateSpec { kind: line(), ..spec(line(), "normal(0, 1)") };
    let exact = trained(&plain, TrainMethod::Auto, 1000, 5);
    let found = &varying.outputs[0].report;
    let least = found.parameters.iter().filter_map(|p| p.ess_bulk).fold(f64::INFINITY, f64::min);
    for expected in &exact.outputs[0].report.parameters {
        let own = found.parameters.iter().find(|p| p.name == expected.name).unwrap();
        let bound = 4.0 * expected.sd / least.sqrt();
        assert!((own.mean - expected.mean).abs() <= bound, "{}: {} {}", own.name, own.mean, expected.mean);
    }
    let [a, b] = [found, &exact.outputs[0].report].map(|report| report.leave_one_out.predictions.clone());
    for (a, b) in a.iter().zip(&b) {
        let ((mean, sd), (expected, exact_sd)) = (a.unwrap(), b.unwrap());
        // Averages over sigma_A, of which sd varies by a tenth.
        let bound = 4.0 * exact_sd * 0.3 / least.sqrt();
        assert!((mean - expected).abs() <= bound && (sd - exact_sd).abs() <= bound, "{a:?} {b:?}");
    }
}

/// A line in the unknown and a condition, three draws, with measurements that share a condition by twos.
fn measured() -> Small {
    let surrogate = small::varying(small::polynomial(1, 2), 1, 2);
    let c = Matrix::from_rows(5, 3, vec![1.0, 1.1, 0.9, 0.5, 0.4, 0.6, 0.8, 1.0, 0.7, 0.4, -0.2, 0.1, 0.3, 0.5, -0.6]);
    let known = Matrix::from_fn(6, 1, |i, _| [-0.8, 0.1, 0.7][i / 2]);
    let y = vec![0.5, 0.62, 1.2, 1.1, 1.5, 1.7];
    Small::new(surrogate, &c, &[0.1, 0.2, 0.3], 1).measure(y, known).noise(Family::Normal, Scale::Fixed(0.15))
}

#[test]
fn every_point_has_its_own_error() {
    let small = measured();
    let x = 0.3;
    let variance = 0.15_f64.powi(2);
    let draws = small.draws.values();
    for error in [ErrorSharing::Shared, ErrorSharing::Independent] {
        let prepared = small.prepared(&settings(true, error), true).unwrap();
        assert!(!prepared.likelihoods().is_conditioned());
        let found = log_likelihoods(&prepared, &[x]);
        for (d, found) in found.iter().enumerate() {
            let (mut expected, mut size) = (0.0, 0.0);
            for pair in 0..3 {
                let t = small.measured.known[(2 * pair, 0)];
                // Terms are ordered by degree, then lexicographically: 1, t, x.
                let eta = draws[(0, d)] + draws[(1, d)] * t + draws[(2, d)] * x;
                let log_sd = 3.0_f64.sqrt() * (draws[(3, d)] * t + draws[(4, d)] * x);
                let a = (draws[(5, d)] * log_sd.exp()).powi(2);
                let [p, q] = [0, 1].map(|i| small.measured.y[2 * pair + i] - eta);
                let (own, both) = (variance + a, if error == ErrorSharing::Shared { a } else { 0.0 });
                let det = own * own - both * both;
                let form = (own * (p * p + q * q) - 2.0 * both * p * q) / det;
                expected -= (2.0 * std::f64::consts::PI).ln() + 0.5 * (det.ln() + form);
                size += form + det.ln().abs() + 2.0;
            }
            // Some roundings in every term, and in what is subtracted for it: det loses a digit at most.
            assert!((found - expected).abs() <= 10.0 * 32.0 * f64::EPSILON * size, "{error:?} {d}: {found} {expected}");
        }
    }
}

fn answer(posterior: &TPosterior, method: Method, engine: Engine, sigma_a: bool) -> IPosterior {
    let measured =
        [Measured { output: "y".into(), y: vec![1.45, 1.52, 1.6], known: Matrix::zeros(3, 0), ..Measured::default() }];
    let problem = Problem {
        unknowns: Prior::new(vec!["a".into()], vec![marginal("normal(0, 0.5)").truncated(-1.0, 1.0).unwrap()])
            .unwrap()
            .into(),
        outputs: &posterior.outputs,
        draws: &posterior.draws,
        noise: vec![NoiseSpec { family: Family::Normal, scale: Scale::Prior(marginal("half-normal(0.2)")) }],
        measured: &measured,
        derived: Vec::new(),
    };
    let spec = InferSpec { methods: vec![method], engine, sigma_a, draws: 4000, ..InferSpec::default() };
    let prepared = Prepared::new(problem, &spec, true).unwrap();
    infer(&prepared, &spec, Stream::root(9), &Silent).unwrap().remove(0)
}

#[test]
fn engines_agree_by_every_method() {
    let posterior = trained(&spec(line(), "normal(0, 0.5)"), TrainMethod::Auto, 400, 6);
    for method in [Method::Point, Method::ELik, Method::ELogLik, Method::EPost] {
        let grid = answer(&posterior, method, Engine::Grid, true);
        // The error at one half is three times that at minus one half.
        assert!((grid.unknowns[0].mean - 0.5).abs() < 2.0 * grid.unknowns[0].sd, "{:?}", grid.unknowns[0]);
        for engine in [Engine::Smc, Engine::Nuts] {
            let found = answer(&posterior, method, engine, true);
            for (own, exact) in found.unknowns.iter().zip(&grid.unknowns) {
                // Five standard errors of a mean by as many effective draws as there are, and the grid's own, in sds.
                let bound =
                    exact.sd * (5.0 / own.ess_bulk.unwrap().sqrt() + grid.diagnostics.quadrature_error.unwrap());
                let gap = (own.mean - exact.mean).abs();
                assert!(gap <= bound, "{} {} {}: {} {}", method.name(), engine.name(), own.name, own.mean, exact.mean);
            }
        }
    }
    // Carried or not, it is the same surrogate; its error makes the answer wider.
    let [with, without] = [true, false].map(|sigma_a| answer(&posterior, Method::ELik, Engine::Grid, sigma_a));
    assert!(with.unknowns[0].sd > 1.5 * without.unknowns[0].sd);
}
