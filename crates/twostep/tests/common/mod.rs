//! The reference cases as the library's own types: training sets, T-draws, measurements and exact answers.

#![allow(dead_code, reason = "each test file uses a part of this")]
#![allow(unreachable_pub, reason = "a module of several test crates")]
#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use twostep::draws::Draws;
use twostep::infer::{InferSpec, Measured, Prepared, Problem};
use twostep::likelihood::{ErrorSharing, Family, NoiseSpec, Scale};
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::prior::{Marginal, Prior};
use twostep::stream::Stream;
use twostep::surrogate::{InputScale, Normalisation, SigmaA, SurrogateKind, SurrogateSpec};
use twostep::train::{self, OutputTask, TPosterior, TrainSpec, TrainingSet};

/// The labels of the two settings of theta.
pub const THETA_C: &str = "theta=c";
pub const THETA_C_SIGMA_A: &str = "theta=(c,sigma_A)";

/// The folder of a reference case.
pub fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(case)
}

pub fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A CSV file as columns.
pub fn csv(path: &Path) -> Vec<(String, Vec<f64>)> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    let names: Vec<String> = reader.headers().unwrap().iter().map(String::from).collect();
    let rows: Vec<Vec<f64>> =
        reader.records().map(|r| r.unwrap().iter().map(|v| v.parse().unwrap()).collect()).collect();
    names.into_iter().enumerate().map(|(j, name)| (name, rows.iter().map(|r| r[j]).collect())).collect()
}

pub fn column<'a>(table: &'a [(String, Vec<f64>)], name: &str) -> &'a [f64] {
    &table.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no column {name}")).1
}

pub fn marginal(text: &str) -> Marginal {
    text.parse().unwrap()
}

/// A reference case.
pub struct Case {
    pub name: String,
    pub reference: Value,
    pub t_reference: Value,
    pub set: TrainingSet,
    pub spec: SurrogateSpec,
    pub log: bool,
    pub scales: Vec<InputScale>,
    pub unknowns: Prior,
    pub noise: NoiseSpec,
    pub measured: Measured,
    pub t_draws: Draws,
}

impl Case {
    pub fn load(name: &str) -> Self {
        let folder = folder(name);
        let train_table = csv(&folder.join("train.csv"));
        let measurement_table = csv(&folder.join("measurements.csv"));
        let unit = InputScale { lower: -1.0, upper: 1.0, log: false };
        let pce = |degree| SurrogateKind::Pce {
            degree,
            normalisation: Normalisation::None,
            coefficients: marginal("normal(0, 5)"),
            q_norm: 1.0,
        };
        let sir = name == "sir";
        let (inputs, columns, scales, unknowns) = if sir {
            let scale = |lower, upper| InputScale { lower, upper, log: false };
            (
                vec!["beta", "gamma", "t"],
                vec!["beta", "gamma", "t"],
                vec![scale(1.0, 3.0), scale(0.1, 0.9), scale(1.0, 14.0)],
                vec![
                    ("beta", marginal("normal(2, 0.5)").truncated(1.0, 3.0).unwrap()),
                    ("gamma", marginal("normal(0.5, 0.25)").truncated(0.1, 0.9).unwrap()),
                ],
            )
        } else {
            let omega = marginal("normal(0, 0.5)").truncated(-1.0, 1.0).unwrap();
            (vec!["omega"], vec!["w"], vec![unit], vec![("omega", omega)])
        };
        let kind = match name {
            "sir" => pce(4),
            "logistic" => SurrogateKind::Formula {
                formula: "alpha / (1 + exp(-beta*(omega - gamma))) + delta".into(),
                parameters: vec![
                    ("alpha".into(), marginal("normal(2, 1, lower=0)")),
                    ("beta".into(), marginal("normal(10, 10)")),
                    ("gamma".into(), marginal("normal(0, 1)")),
                    ("delta".into(), marginal("normal(-1, 1)")),
                ],
            },
            _ => pce(5),
        };
        let sd = match name {
            "sir" => "half-normal(0.5)",
            "logistic" => "uniform(0.005, 0.05)",
            _ => "uniform(0, 0.05)",
        };
        let n = train_table[0].1.len();
        let set = TrainingSet::new(
            inputs.iter().map(|s| s.to_string()).collect(),
            Matrix::from_fn(n, columns.len(), |i, d| column(&train_table, columns[d])[i]),
            vec![("y".into(), column(&train_table, "y").to_vec())],
        );
        let y = column(&measurement_table, "y").to_vec();
        let known = if sir {
            Matrix::from_fn(y.len(), 1, |i, _| column(&measurement_table, "t")[i])
        } else {
            Matrix::zeros(y.len(), 0)
        };
        let table = csv(&folder.join("t_draws.csv"));
        let names: Vec<String> = table.iter().map(|(n, _)| n.clone()).filter(|n| n != "weight").collect();
        let values = Matrix::from_fn(names.len(), table[0].1.len(), |p, s| column(&table, &names[p])[s]);
        let log_weights = column(&table, "weight").iter().map(|w| w.ln()).collect();
        Self {
            name: name.into(),
            reference: json(&folder.join("reference.json")),
            t_reference: json(&folder.join("t_reference.json")),
            set,
            spec: SurrogateSpec { kind, sigma_a: SigmaA::Prior(marginal("exponential(1)")), standardise: false },
            log: sir,
            scales,
            unknowns: Prior::new(
                unknowns.iter().map(|u| u.0.to_string()).collect(),
                unknowns.into_iter().map(|u| u.1).collect(),
            )
            .unwrap(),
            noise: NoiseSpec {
                family: if sir { Family::LogNormal { refuse_zeros: false } } else { Family::Normal },
                scale: Scale::Prior(marginal(sd)),
            },
            measured: Measured { output: "y".into(), y, known, ..Measured::default() },
            t_draws: Draws::weighted(names, values, log_weights),
        }
    }

    /// The T-posterior of the given draws, or (without them) trained.
    pub fn posterior(&self, imported: bool, spec: &TrainSpec) -> TPosterior {
        self.t_step(spec, imported.then(|| self.t_draws.clone()), Stream::root(1))
    }

    /// The trained T-posterior.
    pub fn trained(&self, spec: &TrainSpec, stream: Stream) -> TPosterior {
        self.t_step(spec, None, stream)
    }

    fn t_step(&self, spec: &TrainSpec, draws: Option<Draws>, stream: Stream) -> TPosterior {
        let tasks =
            [OutputTask { name: "y", spec: &self.spec, log: self.log, affine: None, n_inputs: self.scales.len() }];
        train::train(&self.set, &tasks, &self.scales, spec, draws, stream, &Silent).unwrap()
    }

    pub fn prepared(&self, posterior: &TPosterior, spec: &InferSpec, conditioning: bool) -> Prepared {
        let problem = Problem {
            outputs: &posterior.outputs,
            draws: &posterior.draws,
            unknowns: self.unknowns.clone().into(),
            noise: vec![self.noise.clone()],
            measured: std::slice::from_ref(&self.measured),
            derived: Vec::new(),
        };
        Prepared::new(problem, spec, conditioning).unwrap()
    }

    /// The reference's values of one method and unknown: mean, sd and five quantiles.
    pub fn answer(&self, label: &str, method: &str, unknown: &str) -> [f64; 7] {
        let key = match method {
            "point" => "Point",
            "e-lik" => "E-Lik",
            "e-post" => "E-Post",
            _ => "E-Log-Lik",
        };
        let entry = &self.reference["i_step"][label]["methods"][key][unknown];
        ["mean", "sd", "q05", "q25", "q50", "q75", "q95"].map(|k| entry[k].as_f64().unwrap())
    }

    pub fn grid_convergence(&self, label: &str) -> f64 {
        self.reference["i_step"][label]["grid_convergence"]["max_change_in_sd_units"].as_f64().unwrap()
    }
}

/// The I-step settings of a label.
pub fn settings(label: &str) -> InferSpec {
    InferSpec {
        sigma_a: label == THETA_C_SIGMA_A,
        error: ErrorSharing::Independent,
        draws: 1000,
        ..InferSpec::default()
    }
}

pub fn infer(prepared: &Prepared, spec: &InferSpec, seed: u64) -> Vec<twostep::infer::IPosterior> {
    twostep::infer::infer(prepared, spec, Stream::root(seed), &Silent).unwrap()
}

/// Mean, sd and five quantiles of a summary.
pub fn values(summary: &twostep::infer::QuantitySummary) -> [f64; 7] {
    let [a, b, c, d, e] = summary.quantiles();
    [summary.mean, summary.sd, a, b, c, d, e]
}
