//! Case study 1: the linear model whose posteriors are known in closed form.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{csv, folder, json, marginal};
use twostep::draws::Draws;
use twostep::infer::{Engine, InferSpec, Measured, Prepared, Problem, QuantitySummary};
use twostep::likelihood::{Family, NoiseSpec, Scale};
use twostep::matrix::Matrix;
use twostep::prior::Prior;
use twostep::stream::Stream;
use twostep::surrogate::{InputScale, Normalisation, SigmaA, SurrogateKind, SurrogateSpec};
use twostep::train::{self, OutputTask, TPosterior, TrainMethod, TrainSpec, TrainingSet};

struct Linear {
    set: TrainingSet,
    spec: SurrogateSpec,
    omega: &'static str,
    y: f64,
}

impl Linear {
    fn slope_intercept(sigma_a: f64) -> Self {
        let table = csv(&folder("linear").join("train.csv"));
        let (w, y) = (common::column(&table, "w").to_vec(), common::column(&table, "y").to_vec());
        let kind = SurrogateKind::Pce {
            degree: 1,
            normalisation: Normalisation::None,
            coefficients: marginal("normal(0, 10)"),
            q_norm: 1.0,
        };
        Self::new(w, y, kind, sigma_a, "normal(0, 1)", -0.5)
    }

    /// The appendix's slope-only model, as a formula: it is linear in its parameter, so training is exact as well.
    fn slope_only(sigma_a: f64) -> Self {
        let kind = SurrogateKind::Formula {
            formula: "c * omega".into(),
            parameters: vec![("c".into(), marginal("normal(0, 10)"))],
        };
        Self::new(vec![0.5], vec![-1.0], kind, sigma_a, "normal(0, 5)", 1.0)
    }

    fn new(w: Vec<f64>, outputs: Vec<f64>, kind: SurrogateKind, sigma_a: f64, omega: &'static str, y: f64) -> Self {
        let set = TrainingSet::new(vec!["omega".into()], Matrix::from_rows(w.len(), 1, w), vec![("y".into(), outputs)]);
        Self { set, spec: SurrogateSpec { kind, sigma_a: SigmaA::Fixed(sigma_a), standardise: false }, omega, y }
    }

    fn train(&self, spec: &TrainSpec, imported: Option<Draws>) -> TPosterior {
        let tasks = [OutputTask { name: "y", spec: &self.spec, log: false, affine: None, n_inputs: 1 }];
        let scales = [InputScale { lower: -1.0, upper: 1.0, log: false }];
        train::train(&self.set, &tasks, &scales, spec, imported, Stream::root(1), &twostep::monitor::Silent).unwrap()
    }

    fn infer(&self, posterior: &TPosterior, engine: Engine) -> Vec<(String, QuantitySummary)> {
        let spec = InferSpec { engine, draws: 100, ..InferSpec::default() };
        let measured =
            [Measured { output: "y".into(), y: vec![self.y], known: Matrix::zeros(1, 0), ..Measured::default() }];
        let problem = Problem {
            outputs: &posterior.outputs,
            draws: &posterior.draws,
            unknowns: Prior::new(vec!["omega".into()], vec![marginal(self.omega)]).unwrap().into(),
            noise: vec![NoiseSpec { family: Family::Normal, scale: Scale::Fixed(0.1) }],
            measured: &measured,
            derived: Vec::new(),
        };
        let prepared = Prepared::new(problem, &spec, true).unwrap();
        common::infer(&prepared, &spec, 1).into_iter().map(|p| (p.method, p.unknowns[0].clone())).collect()
    }
}

fn reference(value: &serde_json::Value, method: &str) -> (f64, f64) {
    let key = match method {
        "point" => "Point",
        "e-lik" => "E-Lik",
        "e-post" => "E-Post",
        _ => "E-Log-Lik",
    };
    let entry = &value["methods"][key];
    (entry["mean"].as_f64().unwrap(), entry["sd"].as_f64().unwrap())
}

/// The table prints four decimals.
const PRINTED: f64 = 0.5e-4;

#[test]
fn table_from_quadrature_nodes() {
    let all = json(&folder("linear").join("reference.json"));
    for result in all["results"].as_array().unwrap() {
        let case = Linear::slope_intercept(result["sigma_A"].as_f64().unwrap());
        let spec = TrainSpec { method: TrainMethod::Nodes, draws: 100_000, ..TrainSpec::default() };
        let posterior = case.train(&spec, None);
        for (method, omega) in [Engine::Grid, Engine::Exact].iter().flat_map(|engine| case.infer(&posterior, *engine)) {
            let (mean, sd) = reference(result, &method);
            assert!((omega.mean - mean).abs() < PRINTED, "{method}: mean {} against {mean}", omega.mean);
            assert!((omega.sd - sd).abs() < PRINTED, "{method}: sd {} against {sd}", omega.sd);
        }
    }
}

#[test]
fn slope_only_is_bimodal_and_exact() {
    let all = json(&folder("linear").join("reference.json"));
    for result in all["slope_only"]["results"].as_array().unwrap() {
        let case = Linear::slope_only(result["sigma_A"].as_f64().unwrap());
        let spec = TrainSpec { method: TrainMethod::Nodes, draws: 20_001, ..TrainSpec::default() };
        let posterior = case.train(&spec, None);
        let t = &posterior.outputs[0].report.parameters[0];
        // Closed form, to rounding of a 1 x 1 solve.
        assert!((t.mean - result["T_mean"].as_f64().unwrap()).abs() < 8.0 * f64::EPSILON * t.mean.abs());
        for (method, omega) in [Engine::Grid, Engine::Exact].iter().flat_map(|engine| case.infer(&posterior, *engine)) {
            let (mean, sd) = reference(result, &method);
            // The grid's own stated error, and the nodes'.
            let tolerance = omega.quadrature_error.unwrap_or(0.0).max(1e-4) * sd;
            assert!((omega.mean - mean).abs() < tolerance, "{method}: mean {} against {mean}", omega.mean);
            assert!((omega.sd - sd).abs() < tolerance, "{method}: sd {} against {sd}", omega.sd);
            // At sigma_A = 0.5 the second mode holds less than the tenth that the interval leaves out.
            if method == "e-lik" && result["sigma_A"] == 1.0 {
                assert!(omega.hdi90.len() > 1, "two modes need two intervals: {:?}", omega.hdi90);
            }
        }
    }
}

#[test]
fn given_random_draws() {
    let folder = folder("linear");
    let all = json(&folder.join("reference.json"));
    let table = csv(&folder.join("t_draws.csv"));
    let setting = common::column(&table, "sigma_a_setting");
    for result in all["on_fixed_draws"]["results"].as_array().unwrap() {
        let sigma_a = result["sigma_A"].as_f64().unwrap();
        let rows: Vec<usize> = (0..setting.len()).filter(|&i| (setting[i] - sigma_a).abs() < 1e-12).collect();
        let columns = [common::column(&table, "c1"), common::column(&table, "c2")];
        let values = Matrix::from_fn(3, rows.len(), |p, s| if p < 2 { columns[p][rows[s]] } else { sigma_a });
        let draws = Draws::new(vec!["c[0]".into(), "c[1]".into(), "sigma_a".into()], values);
        let case = Linear::slope_intercept(sigma_a);
        let posterior = case.train(&TrainSpec::default(), Some(draws));
        for (method, omega) in [Engine::Grid, Engine::Exact].iter().flat_map(|engine| case.infer(&posterior, *engine)) {
            let (mean, sd) = reference(result, &method);
            // Every reference here is an exact mixture of normals, printed with sixteen digits, and so is the exact engine's;
            // the grid has its stated error.
            let tolerance = omega.quadrature_error.map_or(1e-12, |error| error.max(1e-4)) * sd;
            assert!((omega.mean - mean).abs() < tolerance, "{method}: mean {} against {mean}", omega.mean);
            assert!((omega.sd - sd).abs() < tolerance, "{method}: sd {} against {sd}", omega.sd);
        }
    }
}

#[test]
fn t_step_is_the_normal_equations() {
    let reference = json(&folder("linear").join("t_reference.json"));
    for result in reference["results"].as_array().unwrap() {
        let case = Linear::slope_intercept(result["sigma_A"].as_f64().unwrap());
        let report = &case.train(&TrainSpec::default(), None).outputs[0].report;
        assert_eq!(report.method, "exact");
        for p in 0..2 {
            let mean = result["T_mean"][p].as_f64().unwrap();
            let sd = result["T_cov"][p][p].as_f64().unwrap().sqrt();
            // The normal matrix has condition number below 1e5: rounding times that.
            let tolerance = 1e5 * f64::EPSILON;
            assert!((report.parameters[p].mean - mean).abs() < tolerance);
            assert!((report.parameters[p].sd - sd).abs() < tolerance);
        }
    }
}
