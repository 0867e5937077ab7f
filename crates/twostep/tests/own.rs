//! Surrogates and propagation methods of the calling program give what the built-in ones of the same formulas give.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::marginal;
use rand::RngExt;
use std::path::Path;
use std::sync::Arc;
use twostep::draws::Draws;
use twostep::infer::propagation::{Method, OwnKind, OwnPropagation, register};
use twostep::infer::{Engine, IPosterior, InferSpec, Measured, NutsSpec, Prepared, Problem};
use twostep::likelihood::{Family, NoiseSpec, Scale};
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::prior::Prior;
use twostep::report::Report;
use twostep::run::{self, Project};
use twostep::stream::Stream;
use twostep::study::{Host, Stage, parse_with};
use twostep::surrogate::{
    BoundSurrogate, FunctionDraws, InputScale, Normalisation, PolynomialChaos, Scratch, SharedSurrogate, SigmaA,
    Surrogate, SurrogateFunction, SurrogateKind, SurrogateSpec,
};
use twostep::train::{self, OutputTask, TPosterior, TrainSpec, TrainingSet};

const SCALES: [InputScale; 2] =
    [InputScale { lower: -1.0, upper: 1.0, log: false }, InputScale { lower: 0.0, upper: 2.0, log: false }];

/// A polynomial that is called as a function; without draws it has those that come from elsewhere, or makes some.
#[derive(Clone)]
struct Wrapped {
    polynomial: Arc<PolynomialChaos>,
    gradient: bool,
    draws: Option<Draws>,
    is_trained: bool,
}

struct WithDraws(Wrapped, Matrix);

impl SurrogateFunction for Wrapped {
    fn name(&self) -> String {
        "polynomial".into()
    }

    fn fingerprint(&self) -> String {
        format!("{:?}", self.draws)
    }

    fn has_gradient(&self) -> bool {
        self.gradient
    }

    fn is_trained(&self) -> bool {
        self.is_trained
    }

    fn train(&self, _: &Matrix, z: &[f64], n_draws: usize, seed: u64) -> twostep::Result<FunctionDraws> {
        if self.is_trained {
            // Constant at the mean of the outputs, sloped a little: enough to tell training sets apart.
            let mut rng = Stream::root(seed).rng();
            let mean = z.iter().sum::<f64>() / z.len() as f64;
            let values = Matrix::from_fn(self.polynomial.names().len(), n_draws, |p, _| {
                [mean, 0.2, 0.0][p.min(2)] + 0.02 * (rng.random::<f64>() - 0.5)
            });
            let (names, log_weights) = (self.polynomial.names().to_vec(), vec![0.0; n_draws]);
            return Ok(FunctionDraws { names, values, log_weights, sigma_a: Some(vec![0.1; n_draws]) });
        }
        let draws = self.draws.as_ref().unwrap();
        let p = draws.names().len() - 1;
        Ok(FunctionDraws {
            names: draws.names()[..p].to_vec(),
            values: draws.values().select_rows(&(0..p).collect::<Vec<_>>()),
            log_weights: draws.log_weights().to_vec(),
            sigma_a: Some(draws.values().row(p).to_vec()),
        })
    }

    fn bind(&self, parameters: &[String], c: &Matrix) -> Arc<dyn BoundSurrogate> {
        assert_eq!(parameters, self.polynomial.names());
        Arc::new(WithDraws(self.clone(), c.clone()))
    }
}

impl BoundSurrogate for WithDraws {
    fn predict(&self, x: &Matrix, eta: &mut Matrix) {
        self.0.polynomial.predict(x, &self.1, eta, &mut Scratch::default());
    }

    fn pull(&self, x: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix) {
        assert!(self.0.gradient, "asked for a gradient that is not there");
        self.0.polynomial.pull_to_inputs(x, &self.1, eta_bar, x_bar, &mut Scratch::default());
    }
}

fn spec(kind: SurrogateKind) -> SurrogateSpec {
    let sigma_a = match kind {
        SurrogateKind::Function(_) => SigmaA::Fixed(0.0),
        _ => SigmaA::Prior(marginal("exponential(10)")),
    };
    SurrogateSpec { kind, sigma_a, standardise: false }
}

fn built_in() -> SurrogateKind {
    SurrogateKind::Pce {
        degree: 2,
        normalisation: Normalisation::Orthonormal,
        coefficients: marginal("normal(0, 1)"),
        q_norm: 1.0,
    }
}

fn function(gradient: bool, draws: Option<Draws>) -> SurrogateKind {
    let polynomial = PolynomialChaos::new(2, Normalisation::Orthonormal, marginal("normal(0, 1)"), SCALES.to_vec());
    let polynomial = Arc::new(polynomial);
    SurrogateKind::Function(SharedSurrogate::new(Wrapped { polynomial, gradient, draws, is_trained: false }))
}

fn trained(kind: SurrogateKind, imported: Option<Draws>) -> TPosterior {
    let x = Matrix::from_fn(12, 2, |i, d| SCALES[d].at_fraction(((7 * i + 3) as f64 * [0.618, 0.414][d]).fract()));
    let y = (0..12).map(|i| (1.2 * x[(i, 0)] + 0.3 * x[(i, 1)]).sin()).collect();
    let set = TrainingSet::new(vec!["omega".into(), "t".into()], x, vec![("y".into(), y)]);
    let surrogate = spec(kind);
    let tasks = [OutputTask { name: "y", spec: &surrogate, log: false, affine: None, n_inputs: 2 }];
    let settings = TrainSpec { draws: 100, ..TrainSpec::default() };
    train::train(&set, &tasks, &SCALES, &settings, imported, Stream::root(3), &Silent).unwrap()
}

fn inferred(posterior: &TPosterior, engine: Engine) -> Vec<IPosterior> {
    inferred_by(posterior, engine, vec![Method::ELik, Method::EPost])
}

fn inferred_by(posterior: &TPosterior, engine: Engine, methods: Vec<Method>) -> Vec<IPosterior> {
    let nuts = NutsSpec { chains: 2, warmup: 300, draws: 250, ..InferSpec::default().nuts };
    let spec = InferSpec { engine, methods, sigma_a: true, nuts, ..InferSpec::default() };
    let known = Matrix::from_rows(3, 1, vec![0.2, 1.0, 1.8]);
    let measured = [Measured { output: "y".into(), y: vec![0.3, 0.5, 0.75], known, ..Measured::default() }];
    let problem = Problem {
        outputs: &posterior.outputs,
        draws: &posterior.draws,
        unknowns: Prior::new(vec!["omega".into()], vec![marginal("normal(0, 1, lower=-1, upper=1)")]).unwrap().into(),
        noise: vec![NoiseSpec { family: Family::Normal, scale: Scale::Fixed(0.1) }],
        measured: &measured,
        derived: Vec::new(),
    };
    common::infer(&Prepared::new(problem, &spec, true).unwrap(), &spec, 1)
}

#[test]
fn a_function_with_the_draws_of_a_polynomial_gives_its_posterior() {
    let polynomial = trained(built_in(), None);
    let draws = polynomial.draws.clone();
    let made = trained(function(false, Some(draws.clone())), None);
    let brought = trained(function(false, None), Some(draws.clone()));
    assert_eq!(
        (made.outputs[0].report.method.as_str(), brought.outputs[0].report.method.as_str()),
        ("function", "imported")
    );
    for posterior in [&made, &brought] {
        assert_eq!(posterior.draws, draws);
        let exact = inferred(&polynomial, Engine::Grid);
        for (own, built_in) in inferred(posterior, Engine::Grid).iter().zip(&exact) {
            let (a, b) = (&own.unknowns[0], &built_in.unknowns[0]);
            // Both to the error that the grid states of itself, in sds.
            let error = a.quadrature_error.unwrap() + b.quadrature_error.unwrap();
            assert!((a.mean - b.mean).abs() <= error * b.sd && (a.q95 - b.q95).abs() <= error * b.sd, "{error}");
        }
    }
}

#[test]
fn draws_without_sigma_a_have_that_of_the_study() {
    let draws = trained(built_in(), None).draws;
    let p = draws.names().len() - 1;
    let bare = Draws::new(draws.names()[..p].to_vec(), draws.values().select_rows(&(0..p).collect::<Vec<_>>()));
    let brought = trained(function(false, None), Some(bare));
    assert!(brought.output_draws(0).1.iter().all(|sigma_a| *sigma_a == 0.0));
    let own = &brought.outputs[0].report;
    // Nothing can be predicted without an error, and it is said so.
    assert!(own.leave_one_out.coverage_90.is_nan() && own.leave_one_out.q2.is_none());
    assert!(own.warnings[0].contains("sigma_a is 0"), "{:?}", own.warnings);
}

#[test]
fn samplers_do_without_a_gradient() {
    let draws = trained(built_in(), None).draws;
    let grid = inferred(&trained(built_in(), None), Engine::Grid);
    for (gradient, engine) in [(false, Engine::Smc), (true, Engine::Nuts), (false, Engine::Nuts)] {
        let found = inferred(&trained(function(gradient, Some(draws.clone())), None), engine);
        for (own, exact) in found.iter().zip(&grid) {
            let (a, b) = (&own.unknowns[0], &exact.unknowns[0]);
            // Six comparisons of means at alpha = 1e-4 together: a normal quantile of 4.2, and 5 for errors that are estimates.
            let error = 5.0 * a.mcse_mean.unwrap() + b.quadrature_error.unwrap() * b.sd;
            assert!((a.mean - b.mean).abs() < error, "{engine:?} {}: {} {} {error}", own.method, a.mean, b.mean);
            assert!(error < 0.5 * b.sd, "the test decides nothing: {error}");
            let warned = own.warnings.iter().any(|warning| warning.contains("NUTS used differences"));
            assert_eq!(warned, !gradient && engine == Engine::Nuts, "{:?}", own.warnings);
        }
    }
}

/// A method of the paper in other words.
struct Repeated(&'static str, OwnKind);

impl OwnPropagation for Repeated {
    fn name(&self) -> &str {
        self.0
    }

    fn fingerprint(&self) -> &str {
        "1"
    }

    fn kind(&self) -> OwnKind {
        self.1
    }

    fn weights(&self, log_alpha: &[f64], log_evidence: &[f64]) -> Vec<f64> {
        // Shifted by a constant, which must not matter.
        log_alpha.iter().zip(log_evidence).map(|(a, z)| if self.0 == "my-e-lik" { a + z + 3.0 } else { *a }).collect()
    }

    fn pool(&self, log_alpha: &[f64], l: &mut [f64]) -> f64 {
        let sum = l.iter().zip(log_alpha).map(|(l, a)| a.exp() * l).sum();
        l.iter_mut().zip(log_alpha).for_each(|(l, a)| *l = a.exp());
        sum
    }
}

#[test]
fn own_methods_repeat_those_of_the_paper() {
    let pool = OwnKind::Pool { gradient: true };
    let own = [("my-e-lik", OwnKind::Weights), ("my-e-post", OwnKind::Weights), ("my-e-log-lik", pool)];
    let own = own.map(|(name, kind)| register(Arc::new(Repeated(name, kind))).unwrap());
    let paper = [Method::ELik, Method::EPost, Method::ELogLik];
    assert_eq!(Method::named("my-e-post"), Some(own[1]));
    assert!(Method::known().starts_with(&Method::ALL) && own[0].is_mixture() && !own[2].is_mixture());
    let posterior = trained(built_in(), None);
    let expected = inferred_by(&posterior, Engine::Grid, paper.to_vec());
    let beside = inferred_by(&posterior, Engine::Grid, [paper, own].concat());
    // What they say does not depend on their company.
    assert!(beside[..3].iter().zip(&expected).all(|(a, b)| a.unknowns == b.unknowns));
    for (own, paper) in beside[3..].iter().zip(&expected) {
        let (a, b) = (&own.unknowns[0], &paper.unknowns[0]);
        let error = a.quadrature_error.unwrap() + b.quadrature_error.unwrap();
        assert!((a.mean - b.mean).abs() <= error * b.sd && (a.q95 - b.q95).abs() <= error * b.sd, "{}", own.method);
        assert_eq!((own.version.as_deref(), &paper.version), (Some("1"), &None));
        assert_eq!(own.t_draws.is_some(), paper.t_draws.is_some());
    }
    for (own, paper) in inferred_by(&posterior, Engine::Smc, own.to_vec()).iter().zip(&expected) {
        let (a, b) = (&own.unknowns[0], &paper.unknowns[0]);
        // Three comparisons at alpha = 1e-4 together: 4.0 standard errors, 5 for those that are estimates from 16 runs.
        let error = 5.0 * a.mcse_mean.unwrap() + b.quadrature_error.unwrap() * b.sd;
        assert!((a.mean - b.mean).abs() < error && error < 0.5 * b.sd, "{}: {} {} {error}", own.method, a.mean, b.mean);
    }
}

#[test]
fn names_of_own_methods_must_fit() {
    for name in ["e-lik", "", "my method", "../mine"] {
        let refused = register(Arc::new(Repeated(name, OwnKind::Weights))).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("propagation method `{name}`: is")), "{refused}");
    }
}

const STUDY: &str = r#"
[simulator]
builtin = "logistic"
[unknowns.omega]
range = [-1, 1]
[design]
runs = 8
[surrogate]
kind = "python"
[train]
draws = 40
[measurements]
noise = { sd = 0.05 }
[measurements.synthetic]
truth = { omega = 0.2 }
replicates = 3
[infer]
methods = ["e-lik", "e-post", "point", "whole-study"]
answer = "whole-study"
propagate = ["coefficients", "sigma-a"]
draws = 400
clusters = 20
[calibrate]
t_trials = 3
i_trials = 2
"#;

fn project(name: &str, is_trained: bool) -> Project {
    let scale = InputScale { lower: -1.0, upper: 1.0, log: false };
    let polynomial = PolynomialChaos::new(1, Normalisation::Orthonormal, marginal("normal(0, 1)"), vec![scale]);
    let values = Matrix::from_fn(3, 40, |p, s| [0.5, 0.3, 0.0][p] + 0.001 * s as f64);
    let names = polynomial.names().iter().cloned().chain(["sigma_a".to_owned()]).collect();
    let draws = Some(Draws::new(names, values));
    let wrapped = Wrapped { polynomial: Arc::new(polynomial), gradient: false, draws, is_trained };
    let host = Host { surrogates: vec![(None, SharedSurrogate::new(wrapped))], ..Host::default() };
    let settings =
        parse_with(STUDY, "study.toml", Path::new(""), &host).unwrap_or_else(|problems| panic!("{problems}"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("own").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    Project::new(settings, folder)
}

#[test]
fn a_study_of_own_parts_goes_all_the_way() {
    let own = register(Arc::new(Repeated("whole-study", OwnKind::Weights))).unwrap();
    let project = project("trained", true);
    project.run(Stage::Infer, &Silent).unwrap();
    // Read back, nothing is stale.
    assert!(project.status().unwrap().iter().all(|status| status.fresh), "{:?}", project.status());
    let kept = project.run(Stage::Infer, &Silent).unwrap().remove(0);
    let methods: Vec<&str> = kept.posteriors.iter().map(|p| p.method.as_str()).collect();
    assert_eq!(methods, ["e-lik", "e-post", "point", "whole-study"]);
    assert!(kept.warnings.iter().any(|warning| warning.starts_with("point: the mean of the parameters")));
    let calibrations = project.calibrate(&Silent).unwrap();
    assert_eq!(calibrations[0].trials.len(), 3 * 2 * 4);
    assert_eq!(project.calibrations().unwrap().unwrap()[0].trials.len(), 3 * 2 * 4, "kept");
    let report = Report::new(&project, &Silent).unwrap();
    assert!(report.figures().iter().all(|(_, figure)| !figure.id.contains("sobol")));
    let page = std::fs::read_to_string(report.write().unwrap()).unwrap();
    assert!(page.contains("whole-study"));
    let methods = std::fs::read_to_string(project.folder().join("methods.md")).unwrap();
    assert!(methods.contains("was the function polynomial") && methods.contains("whole-study"), "{methods}");
    assert!(!methods.contains("NaN") && project.folder().join("whole-study.nc").exists());
    assert!(run::predict(&project, 0, None, Some(own)).unwrap().n_rows() > 0);
    assert!(run::served(&project, 0, None, &Silent).is_ok());
    project.enough(0.1, &Silent).unwrap();
}

#[test]
fn what_has_its_draws_cannot_be_trained_again() {
    register(Arc::new(Repeated("whole-study", OwnKind::Weights))).unwrap();
    let project = project("fixed", false);
    project.run(Stage::Infer, &Silent).unwrap();
    for refused in [project.calibrate(&Silent).err(), project.enough(0.1, &Silent).err()] {
        let refused = refused.unwrap().to_string();
        assert!(
            refused.ends_with("cannot be trained again; give it a function `train` in place of draws"),
            "{refused}"
        );
    }
}
