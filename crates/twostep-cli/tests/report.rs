//! Reports as people see them: in a browser, wide and narrow, light and dark, with hostile names and with many draws.
//!
//! `scripts/test` names the interpreter with `playwright` in `TWOSTEP_TEST_PYTHON` and the browser in `TWOSTEP_TEST_BROWSER`.
//! With `TWOSTEP_TEST_PHOTOS` set to a folder there are pictures of everything in it afterwards.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(unix)]

#[allow(dead_code, reason = "other tests need the rest")]
mod common;

use common::Place;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A report of ten unknowns and 100,000 draws weighs less, in bytes.
const HEAVIEST: u64 = 5_000_000;

/// And has fewer elements: browsers lay out ten thousand well within a second.
const MOST_NODES: u64 = 20_000;

/// What the browser found in each report; none where there is no browser to ask.
fn examine(reports: &[PathBuf]) -> Option<Vec<Value>> {
    let given = |name| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty());
        if value.is_none() {
            eprintln!("{name} is not set: nothing is tested here; scripts/test sets it");
        }
        value
    };
    let (python, browser) = (given("TWOSTEP_TEST_PYTHON")?, given("TWOSTEP_TEST_BROWSER")?);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/report.py");
    let mut command = Command::new(python);
    command.arg(script).arg(browser).args(reports);
    if let Some(photos) = std::env::var_os("TWOSTEP_TEST_PHOTOS") {
        command.arg("--photos").arg(photos);
    }
    let ran = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let found: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&ran.stdout)));
    Some(reports.iter().map(|report| found[report.to_str().unwrap()].clone()).collect())
}

#[track_caller]
fn is_flawless(found: &Value) {
    let problems = found["problems"].as_array().unwrap();
    let lines: Vec<&str> = problems.iter().map(|problem| problem.as_str().unwrap()).collect();
    assert!(lines.is_empty(), "{} problems:\n{}", lines.len(), lines.join("\n"));
}

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies").join(name);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_fault_is_found() {
    let broken = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/broken.html");
    let Some(found) = examine(&[broken]) else { return };
    let problems = found[0]["problems"].to_string();
    for part in [
        "requested file:",
        "a dialog opened: 1",
        "page error: missing is not defined",
        "the page is 2008 px wide in a window of 390",
        "the text \\\"outside\\\" sticks out",
        "the tick labels \\\"12\\\" and \\\"13\\\" overlap",
        "the text \\\"aaaaaaaaaaaaaaaaaaaa\\\" sticks out of its p",
        "empty: no mark",
        "a NaN, undefined or Infinity is shown",
        "which is nowhere",
        "IMG has onerror",
        "a script was injected",
        "does not hide and show its marks",
        "wide: no mark shows a number to the pointer",
        "the contents' link to #gone leads elsewhere",
        "printed to only",
    ] {
        assert!(problems.contains(part), "no `{part}` in {problems}");
    }
}

#[test]
fn the_sir_study_is_shown_without_a_flaw() {
    let place = Place::new("report-sir");
    place.write("sir.toml", &shipped("sir.toml"));
    place.run(&["run", "sir.toml", "-q"]).ends(0);
    let Some(found) = examine(&[place.0.join("sir.twostep/report.html")]) else { return };
    is_flawless(&found[0]);
    assert!(found[0]["figures"].as_u64().unwrap() > 5, "{}", found[0]);
}

/// A line of a sweep with the first of its values and the last: pages of many settings are pages of the same.
fn fewer(line: &str) -> String {
    let numbers = line.split_once(" = [").filter(|(key, _)| key.starts_with('"'));
    match numbers.and_then(|(key, list)| Some((key, list.strip_suffix(']')?))) {
        Some((key, list)) if !list.contains('[') => {
            let values: Vec<&str> = list.split(", ").collect();
            format!("{key} = [{}, {}]", values[0], values[values.len() - 1])
        }
        _ => line.to_owned(),
    }
}

#[test]
fn the_paper_s_studies_are_shown_without_a_flaw() {
    let place = Place::new("report-paper");
    let pce: Vec<String> = shipped("paper/pce.toml").lines().map(fewer).collect();
    place.write("pce.toml", &pce.join("\n"));
    place.run(&["run", "pce.toml", "-q"]).ends(0);
    // Few trials: what they show is drawn in the same way.
    place.write("logistic_calibration.toml", &shipped("paper/logistic_calibration.toml"));
    place.run(&["calibrate", "logistic_calibration.toml", "-q", "--t-trials", "4", "--i-trials", "2"]).ends(0);
    let reports = ["pce", "logistic_calibration"].map(|name| place.0.join(format!("{name}.twostep/report.html")));
    let Some(found) = examine(&reports) else { return };
    found.iter().for_each(is_flawless);
}

/// What a name can be is up to the study file: everything but the study's own name is free.
fn hostile() -> String {
    let long = "u".repeat(300);
    format!(
        r#"
name = "Ünïcode {}"
seed = 3
[simulator]
command = ["sh", "simulator.sh", "{{params}}", "{{results}}"]
params_format = "csv"
max_failed = 0.5
[unknowns."<script>alert(1)</script>"]
range = [0, 1]
unit = "<img src=x onerror=alert(1)> \"m\""
[unknowns."{long} 🦠 'q'"]
range = [0, 1]
[outputs."</script><b>温度"]
unit = "&lt;"
[design]
method = "sobol"
runs = 24
[surrogate]
kind = "pce"
degree = 2
[train]
draws = 50
[measurements]
noise = {{ family = "normal", sd = "half-normal(0.1)" }}
[measurements.synthetic]
truth = {{ "<script>alert(1)</script>" = 0.4, "{long} 🦠 'q'" = 0.5 }}
replicates = 3
noise = {{ family = "normal", sd = 0.05 }}
[infer]
draws = 200
"#,
        "a".repeat(290)
    )
}

/// Fails at one end of the range, with a message that must stay text.
const HOSTILE_SIMULATOR: &str = r#"
awk -F, 'NR == 2 {
  if ($1 + 0 > 0.9) {
    print "<script>alert(1)</script> \"quoted\" \047single\047 🦠 &amp; `code`" > "/dev/stderr"
    for (i = 0; i < 300; i++) printf "x" > "/dev/stderr"
    exit 1
  }
  print 2 * $1 + $2 * $2
}' "$1" > "$2"
"#;

#[test]
fn hostile_text_stays_text_and_breaks_no_layout() {
    let place = Place::with_study("report-hostile", &hostile());
    place.write("simulator.sh", HOSTILE_SIMULATOR);
    place.run(&["run", "study.toml", "-q"]).ends(0);
    let html = place.read("study.twostep/report.html");
    assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !html.contains("<script>alert(1)"));
    let Some(found) = examine(&[place.0.join("study.twostep/report.html")]) else { return };
    is_flawless(&found[0]);
}

/// Linear with normal priors, so that all draws are made in no time.
fn large() -> String {
    let unknowns: String = (1..=10)
        .map(|i| format!("[unknowns.x{i}]\nrange = [-3, 3]\nprior = \"normal(0, 1)\"\ntruncate = false\n"))
        .collect();
    let truth: Vec<String> = (1..=10).map(|i| format!("x{i} = 0.{i}")).collect();
    format!(
        r#"
seed = 3
[simulator]
command = ["sh", "simulator.sh", "{{params}}", "{{results}}"]
params_format = "csv"
{unknowns}
[conditions.t]
range = [0, 10]
[design]
method = "sobol"
runs = 60
[surrogate]
kind = "formula"
formula = "{}"
sigma_a = 0.1
[surrogate.parameters]
{}
[measurements]
noise = {{ family = "normal", sd = 0.5 }}
[measurements.synthetic]
truth = {{ {} }}
at = {{ t = "linspace(0, 10, 40)" }}
[infer]
draws = 100000
"#,
        (1..=10).map(|i| format!("c{i} * x{i} * cos({i} * t / 3)")).collect::<Vec<_>>().join(" + "),
        (1..=10).map(|i| format!("c{i} = \"normal(0, 2)\"\n")).collect::<String>(),
        truth.join(", "),
    )
}

const LARGE_SIMULATOR: &str = r#"
awk -F, 'NR == 2 { for (i = 1; i <= 10; i++) y += $i * cos(i * $11 / 3); print y }' "$1" > "$2"
"#;

#[test]
fn ten_unknowns_and_a_hundred_thousand_draws_stay_light() {
    let place = Place::with_study("report-large", &large());
    place.write("simulator.sh", LARGE_SIMULATOR);
    place.run(&["run", "study.toml", "-q"]).ends(0);
    let report = place.0.join("study.twostep/report.html");
    let size = std::fs::metadata(&report).unwrap().len();
    assert!(size < HEAVIEST, "{size} bytes");
    let Some(found) = examine(&[report]) else { return };
    is_flawless(&found[0]);
    eprintln!("ten unknowns: {size} bytes, {} elements, loaded in {} ms", found[0]["nodes"], found[0]["load_ms"]);
    assert!(found[0]["nodes"].as_u64().unwrap() < MOST_NODES, "{}", found[0]["nodes"]);
}
