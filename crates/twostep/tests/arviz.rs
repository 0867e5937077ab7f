//! Files for ArviZ: what is written, and that ArviZ and netCDF4 read it and come to our numbers.
//!
//! `scripts/test` names the interpreter that has both in `TWOSTEP_TEST_PYTHON`; without it nothing is read back.

#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use twostep::infer::{Derived, IPosterior};
use twostep::mcmc::diagnostics;
use twostep::monitor::Silent;
use twostep::report;
use twostep::run::{Findings, Project};
use twostep::study::{self, Stage};

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("arviz").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A series and a level of two unknowns, one of them with a name that no file format likes.
const STUDY: &str = r#"
name = "line <&> \"level\""
[simulator]
table = "runs.csv"
[unknowns."a/🦀 [1]"]
range = [0, 1]
unit = "m"
[unknowns.draw]
range = [0, 1]
[outputs.h]
over = { t = [0, 2] }
series = "coordinate"
noise = { sd = "half-normal(0.5)" }
[outputs.level]
noise = { family = "student-t", df = 4, sd = 0.1 }
[surrogate]
kind = "pce"
degree = 2
[train]
draws = 50
[measurements]
file = "measurements.csv"
[derived]
twice = "2 * draw"
"#;

fn project(name: &str, infer: &str) -> Project {
    let folder = folder(name);
    let (h, level) = (|a: f64, b: f64, t: f64| a + b * t, |a: f64, b: f64| a * b);
    let mut runs = String::from("a/🦀 [1],draw,t,h,level\n");
    for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))) {
        let (a, b) = (f64::from(i) / 3.0, f64::from(j) / 3.0);
        for t in [0.0, 1.0, 2.0] {
            // Something that the surrogate cannot follow.
            let rest = |t: f64| 0.02 * (7.0 * a + 11.0 * b + t).sin();
            runs.push_str(&format!("{a},{b},{t},{},{}\n", h(a, b, t) + rest(t), level(a, b) + rest(9.0)));
        }
    }
    std::fs::write(folder.join("runs.csv"), runs).unwrap();
    let mut measured = String::from("t,h,level\n");
    for (k, t) in (0..12).map(|k| (k, f64::from(k % 6) * 0.4)) {
        // Two values at each time: replicates.
        measured.push_str(&format!("{t},{},\n", h(0.6, 0.3, t) + 0.1 * f64::from(k).sin()));
    }
    measured.push_str(",,0.15\n,,0.25\n");
    std::fs::write(folder.join("measurements.csv"), measured).unwrap();
    let text = format!("{STUDY}\n[infer]\n{infer}\n");
    let settings = study::parse(&text, "study.toml", &folder).unwrap_or_else(|problems| panic!("{problems}"));
    Project::new(settings, folder.join("results"))
}

/// What ArviZ is to find in the file of an I-posterior: our own summary of the same draws.
fn expected(findings: &Findings, derived: &[Derived], answer: &IPosterior) -> Value {
    let n_parameters = findings.parameters.len();
    let names = ["a_1", "draw_2", "sigma_i_h", "twice"];
    let length = answer.draws.len() / answer.chains;
    let quantities = answer.unknowns.iter().enumerate().zip(names).map(|((i, quantity), name)| {
        let value = |x: &Vec<f64>| match i.checked_sub(n_parameters) {
            Some(j) => derived[j].expression.eval_scalar(x),
            None => x[i],
        };
        let values: Vec<f64> = answer.draws.iter().map(value).collect();
        let chains: Vec<&[f64]> = values.chunks(length).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64;
        json!({
            "name": name,
            "long_name": quantity.name,
            "summary": {
                "mean": mean,
                "sd": variance.sqrt(),
                "mcse_mean": diagnostics::mcse_mean(&chains),
                "ess_bulk": diagnostics::ess_bulk(&chains),
                "ess_tail": diagnostics::ess_tail(&chains),
                "r_hat": diagnostics::r_hat(&chains),
            },
            "exact": quantity,
        })
    });
    json!({
        "file": format!("{}.nc", answer.method),
        "method": answer.method,
        "engine": answer.engine,
        "chains": answer.chains,
        "draws": length,
        "has_transitions": answer.transitions.is_some(),
        "has_own_t_draws": answer.t_draws.is_some() || answer.method == "point",
        "study": findings.study.name,
        "study_hash": findings.records.last().unwrap().1.fingerprint,
        "unknowns": quantities.collect::<Vec<_>>(),
        "divergences": answer.transitions.as_ref().map(|all| all.iter().filter(|t| t.diverging).count()),
    })
}

/// Lets the script beside this file check what lies in `folder` against `expected`.
fn read_back(folder: &Path, expected: &Value) {
    let Some(python) = std::env::var_os("TWOSTEP_TEST_PYTHON") else {
        eprintln!("TWOSTEP_TEST_PYTHON is not set: nothing is read back; scripts/test sets it");
        return;
    };
    std::fs::write(folder.join("expected.json"), expected.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/read_arviz.py");
    let out = Command::new(python).arg("-B").arg(script).arg(folder).env("MPLCONFIGDIR", folder).output().unwrap();
    assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
}

fn check(name: &str, infer: &str) -> Project {
    let project = project(name, infer);
    project.run(Stage::Infer, &Silent).unwrap();
    let findings = project.findings(0).unwrap();
    report::keep(&project, &Silent).unwrap();
    let derived = findings.study.derived_quantities().unwrap();
    let answers: Vec<Value> = findings.answers.iter().map(|answer| expected(&findings, &derived, answer)).collect();
    read_back(&findings.folder, &json!({ "answers": answers }));
    project
}

#[test]
fn posteriors_of_a_grid_are_read_back() {
    let project =
        check("grid", "engine = \"grid\"\npropagate = [\"coefficients\", \"sigma-a\"]\nerror = \"independent\"");
    let findings = project.findings(0).unwrap();
    // What is there is not written again, and no clock is read.
    let path = findings.folder.join("e-lik.nc");
    let time = || std::fs::metadata(&path).unwrap().modified().unwrap();
    let before = time();
    report::Report::new(&project, &Silent).unwrap().write().unwrap();
    assert_eq!(time(), before);
}

#[test]
fn chains_are_read_back() {
    let project = check("nuts", "engine = \"nuts\"\nnuts = { chains = 4, warmup = 300, draws = 300 }\ndraws = 800");
    let answers = project.findings(0).unwrap().answers;
    let sizes: Vec<[usize; 2]> = answers.iter().map(|p| [p.chains, p.draws.len()]).collect();
    // E-Lik leads; E-Post is one fit for each T-draw.
    assert_eq!(
        sizes,
        [[4, 800], [1, 800], [4, 800], [4, 800]],
        "{:?}",
        answers.iter().map(|p| &p.method).collect::<Vec<_>>()
    );
}

#[test]
fn particles_are_read_back() {
    check("smc", "engine = \"smc\"\nmethods = [\"e-lik\", \"e-post\"]\nclusters = 10\ndraws = 1500");
}

#[test]
fn calibrations_are_read_back() {
    let place = folder("calibration");
    let studies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
    std::fs::copy(studies.join("null_design.csv"), place.join("null_design.csv")).unwrap();
    let text = std::fs::read_to_string(studies.join("null.toml")).unwrap();
    let text = text.replace("t_trials = 20000", "t_trials = 30").replace("draws = 400", "draws = 50");
    for (sweep, n_settings) in [("", 1), ("\n[sweep]\n\"seed\" = [1, 2]\n", 2)] {
        let settings = study::parse(&format!("{text}{sweep}"), "study.toml", &place).unwrap_or_else(|e| panic!("{e}"));
        let project = Project::new(settings, place.join("results"));
        let calibrations = project.calibrate(&Silent).unwrap();
        report::keep(&project, &Silent).unwrap();
        let there = std::fs::read_dir(project.folder()).unwrap().flatten();
        let names = there.map(|entry| entry.file_name().into_string().unwrap());
        // Those of a changed sweep are gone.
        let names: Vec<String> = names.filter(|name| name.ends_with(".nc")).collect();
        assert_eq!(names.len(), 4 * n_settings);
        let files = names.iter().map(|name| {
            let number = name.split("setting-").nth(1).map_or(0, |rest| rest[..1].parse::<usize>().unwrap() - 1);
            let method = name["calibration_".len()..name.len() - 3].split("_setting").next().unwrap();
            let trials = calibrations[number].trials.iter().filter(|trial| trial.method == method);
            let rows: Vec<Value> = trials.map(|t| json!([t.t_trial + 1, t.i_trial + 1, t.ranked[0].pit])).collect();
            assert_eq!(rows.len(), 30, "{name}");
            json!({ "file": name, "method": method, "rows": rows })
        });
        read_back(project.folder(), &json!({ "calibrations": files.collect::<Vec<_>>() }));
    }
}
