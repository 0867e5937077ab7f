//! T-steps by normal approximations against exact ones, NUTS and the reference, and what they say where they do not fit.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Case, marginal};
use rand::RngExt;
use rand_distr::StandardNormal;
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::stream::Stream;
use twostep::surrogate::{InputScale, Normalisation, SigmaA, SurrogateKind, SurrogateSpec};
use twostep::train::{OutputTask, TPosterior, TrainMethod, TrainSpec, TrainingSet, train};

const METHODS: [TrainMethod; 2] = [TrainMethod::Laplace, TrainMethod::Pathfinder];

fn trained(set: &TrainingSet, spec: &SurrogateSpec, method: TrainMethod, draws: usize) -> TPosterior {
    let tasks = [OutputTask { name: "y", spec, log: false, affine: None, n_inputs: 1 }];
    let scales = [InputScale { lower: -1.0, upper: 1.0, log: false }];
    let settings = TrainSpec { method, draws, ..TrainSpec::default() };
    train(set, &tasks, &scales, &settings, None, Stream::root(3), &Silent).unwrap()
}

/// `f` at evenly spaced points, with noise of this sd.
fn runs(n: usize, noise: f64, f: impl Fn(f64) -> f64) -> TrainingSet {
    let mut rng = Stream::root(5).rng();
    let x: Vec<f64> = (0..n).map(|i| 2.0 * (i as f64 + 0.5) / n as f64 - 1.0).collect();
    let y = x.iter().map(|x| f(*x) + noise * rng.sample::<f64, _>(StandardNormal)).collect();
    TrainingSet::new(vec!["x".into()], Matrix::from_rows(n, 1, x), vec![("y".into(), y)])
}

fn formula(formula: &str, parameters: &[(&str, &str)]) -> SurrogateSpec {
    SurrogateSpec {
        kind: SurrogateKind::Formula {
            formula: formula.into(),
            parameters: parameters.iter().map(|(name, prior)| (name.to_string(), marginal(prior))).collect(),
        },
        sigma_a: SigmaA::Prior(marginal("exponential(1)")),
        standardise: false,
    }
}

/// With a known sigma_A the T-posterior of a polynomial is normal, and Laplace's approximation is it; with an unknown one it is not.
#[test]
fn a_polynomial_against_its_exact_t_posterior() {
    let set = runs(12, 0.1, |x| 1.0 + x - 0.5 * x * x);
    let polynomial = |sigma_a: SigmaA| SurrogateSpec {
        kind: SurrogateKind::Pce {
            degree: 3,
            normalisation: Normalisation::Orthonormal,
            coefficients: marginal("normal(0, 5)"),
            q_norm: 1.0,
        },
        sigma_a,
        standardise: false,
    };
    let (known, unknown) = (SigmaA::Fixed(0.1), SigmaA::Prior(marginal("exponential(1)")));
    for (is_normal, spec) in [(true, polynomial(known)), (false, polynomial(unknown))] {
        let exact = trained(&set, &spec, TrainMethod::Exact, 10);
        for method in METHODS {
            let found = &trained(&set, &spec, method, 2000).outputs[0].report;
            let own = found.importance.unwrap();
            assert!(!found.troubled && own.k_hat <= 0.7, "{own:?}");
            if is_normal && method == TrainMethod::Laplace {
                // Half of the proposals are normal, so that no weight is above twice the mean: bounded, and no draw repeats.
                assert_eq!((own.normals, own.effective), (1, 2000.0));
                assert_eq!(own.k_hat, 0.0);
            }
            let expected = &exact.outputs[0].report.parameters;
            // A known sigma_A does not vary.
            for (a, b) in found.parameters.iter().zip(expected).filter(|(_, b)| b.sd > 0.0) {
                // Twenty comparisons of means at alpha = 1e-4: z = 4.5. The relative variance of a sample variance is 2/n for a normal; for the
                // log-normal-like sigma_a, whose excess kurtosis is some 3, 5/n, and half as much in the sd.
                assert!((a.mean - b.mean).abs() <= 4.5 * b.sd / own.effective.sqrt(), "{method:?} {a:?} {b:?}");
                assert!((a.sd - b.sd).abs() <= 4.5 * b.sd * (1.25 / own.effective).sqrt(), "{method:?} {a:?} {b:?}");
            }
        }
    }
}

/// Two peaks on a line: eight parameters and sigma_A, against long chains.
#[test]
fn a_formula_against_nuts() {
    let peak = |x: f64, height: f64, at: f64, width: f64| height * (-((x - at) / width).powi(2)).exp();
    let set = runs(40, 0.02, |x| 0.3 + 0.4 * x + peak(x, 1.0, -0.4, 0.2) + peak(x, 0.6, 0.45, 0.15));
    let spec = formula(
        "a_0 + a_1*x + h_1*exp(-((x - m_1)/w_1)^2) + h_2*exp(-((x - m_2)/w_2)^2)",
        &[
            ("a_0", "normal(0, 1)"),
            ("a_1", "normal(0, 1)"),
            ("h_1", "half-normal(1)"),
            ("m_1", "normal(-0.5, 0.2)"),
            ("w_1", "log-normal(-1.6, 0.5)"),
            ("h_2", "half-normal(1)"),
            ("m_2", "normal(0.5, 0.2)"),
            ("w_2", "log-normal(-1.6, 0.5)"),
        ],
    );
    let nuts = trained(&set, &spec, TrainMethod::Nuts, 20_000);
    let nuts = &nuts.outputs[0].report;
    assert!(nuts.parameters.iter().all(|p| p.r_hat.unwrap() <= 1.01));
    for method in METHODS {
        let found = &trained(&set, &spec, method, 1000).outputs[0].report;
        let own = found.importance.unwrap();
        assert!(!found.troubled && own.effective > 500.0, "{own:?}");
        assert!(found.warnings.iter().all(|w| !w.contains("normal approximation")), "{:?}", found.warnings);
        for (a, b) in found.parameters.iter().zip(&nuts.parameters) {
            // Eighteen comparisons of means at alpha = 1e-4: z = 4.6. Of sds as above.
            let error = (b.sd / own.effective.sqrt()).hypot(b.mcse_mean.unwrap());
            assert!((a.mean - b.mean).abs() <= 4.6 * error, "{method:?} {} {} {}", a.name, a.mean, b.mean);
            let of_sds = b.sd * (1.25 / own.effective + 1.25 / b.ess_bulk.unwrap()).sqrt();
            assert!((a.sd - b.sd).abs() <= 4.6 * of_sds, "{method:?} {} {} {}", a.name, a.sd, b.sd);
        }
    }
}

/// Five runs leave the logistic's T-posterior with heavy tails in every direction: no normal fits, and that is said.
#[test]
fn the_paper_s_logistic_is_blamed() {
    let case = Case::load("logistic");
    for method in METHODS {
        let spec = TrainSpec { method, draws: 1000, ..TrainSpec::default() };
        let report = &case.posterior(false, &spec).outputs[0].report;
        let own = report.importance.unwrap();
        assert!(report.troubled && own.k_hat > 0.7, "{own:?}");
        let said = report.warnings.iter().find(|w| w.contains("does not fit the T-posterior")).unwrap();
        assert!(said.contains("do not use these draws, but train.method = \"auto\""), "{said}");
        assert!(report.how().contains("k-hat"), "{}", report.how());
    }
}

/// A slope that enters squared has two mirrored modes.
#[test]
fn both_modes_are_found() {
    let set = runs(8, 0.1, |x| 4.0 * x);
    let spec = formula("c * c * x", &[("c", "normal(0, 3)")]);
    for method in METHODS {
        let posterior = trained(&set, &spec, method, 2000);
        let report = &posterior.outputs[0].report;
        let own = report.importance.unwrap();
        assert!(!report.troubled, "{own:?}");
        let below = posterior.draws.values().row(0).iter().filter(|c| **c < 0.0).count() as f64 / 2000.0;
        // By symmetry one half; two comparisons at alpha = 1e-4: z = 4.1.
        assert!((below - 0.5).abs() <= 4.1 * 0.5 / own.effective.sqrt(), "{below}");
        if method == TrainMethod::Laplace {
            assert_eq!(own.normals, 2);
            assert!(report.warnings.iter().any(|w| w.contains("has 2 modes")), "{:?}", report.warnings);
        }
    }
}

#[test]
fn what_has_no_value_anywhere_is_an_error() {
    let set = runs(8, 0.1, |x| x);
    let spec = formula("log(-1 - c * c) * x", &[("c", "normal(0, 1)")]);
    let tasks = [OutputTask { name: "y", spec: &spec, log: false, affine: None, n_inputs: 1 }];
    let scales = [InputScale { lower: -1.0, upper: 1.0, log: false }];
    for method in METHODS {
        let settings = TrainSpec { method, ..TrainSpec::default() };
        let refused =
            train(&set, &tasks, &scales, &settings, None, Stream::root(3), &Silent).err().unwrap().to_string();
        assert!(refused.contains("T-step of `y`") && refused.contains("check the formula"), "{refused}");
    }
}
