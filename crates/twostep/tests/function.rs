//! A surrogate of the calling program gives what the built-in one of the same formula gives, by every engine.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::marginal;
use std::sync::Arc;
use twostep::draws::Draws;
use twostep::infer::propagation::Method;
use twostep::infer::{Engine, IPosterior, InferSpec, Measured, NutsSpec, Prepared, Problem};
use twostep::likelihood::{Family, NoiseSpec, Sd};
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::prior::Prior;
use twostep::stream::Stream;
use twostep::surrogate::{
    BoundSurrogate, FunctionDraws, InputScale, Normalisation, PolynomialChaos, Scratch, SharedSurrogate, SigmaA,
    Surrogate, SurrogateFunction, SurrogateKind, SurrogateSpec,
};
use twostep::train::{self, OutputTask, TPosterior, TrainSpec, TrainingSet};

const SCALES: [InputScale; 2] =
    [InputScale { lower: -1.0, upper: 1.0, log: false }, InputScale { lower: 0.0, upper: 2.0, log: false }];

/// A polynomial that is called as a function; without draws it has those that come from elsewhere.
#[derive(Clone)]
struct Wrapped {
    polynomial: Arc<PolynomialChaos>,
    gradient: bool,
    draws: Option<Draws>,
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
        false
    }

    fn train(&self, _: &Matrix, _: &[f64], _: usize, _: u64) -> twostep::Result<FunctionDraws> {
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
    SurrogateKind::Pce { degree: 2, normalisation: Normalisation::Orthonormal, coefficients: marginal("normal(0, 1)") }
}

fn function(gradient: bool, draws: Option<Draws>) -> SurrogateKind {
    let polynomial = PolynomialChaos::new(2, Normalisation::Orthonormal, marginal("normal(0, 1)"), SCALES.to_vec());
    SurrogateKind::Function(SharedSurrogate::new(Wrapped { polynomial: Arc::new(polynomial), gradient, draws }))
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
    let methods = vec![Method::ELik, Method::EPost];
    let nuts = NutsSpec { chains: 2, warmup: 300, draws: 250 };
    let spec = InferSpec { engine, methods, sigma_a: true, nuts, ..InferSpec::default() };
    let known = Matrix::from_rows(3, 1, vec![0.2, 1.0, 1.8]);
    let measured = [Measured { output: "y".into(), y: vec![0.3, 0.5, 0.75], known, sd: None }];
    let problem = Problem {
        outputs: &posterior.outputs,
        draws: &posterior.draws,
        unknowns: Prior::new(vec!["omega".into()], vec![marginal("normal(0, 1, lower=-1, upper=1)")]).unwrap(),
        noise: vec![NoiseSpec { family: Family::Normal, sd: Sd::Fixed(0.1) }],
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
