//! The binary as its users meet it: commands in, text, files and exit statuses out.

// A helper that cannot go on has failed its test.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Place, Ran, holds};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use twostep::infer::QuantitySummary;
use twostep::report::words;

/// Small enough for a fraction of a second, with all stages.
const TINY: &str = r#"
seed = 3
[simulator]
builtin = "logistic"
[unknowns.gamma]
range = [-0.5, 0.5]
[conditions.omega]
range = [-1, 1]
[constants]
beta = 3
[design]
method = "sobol"
runs = 30
[surrogate]
kind = "pce"
degree = 3
[train]
draws = 20
[measurements]
noise = { family = "normal", sd = 0.05 }
[measurements.synthetic]
truth = { gamma = 0.15 }
at = { omega = "linspace(-1, 1, 5)" }
[infer]
methods = ["point", "e-lik"]
draws = 200
"#;

/// `(computed)`, `(kept)` or `(shared)` of the line that starts with `stage`.
#[track_caller]
fn origin(text: &str, stage: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(stage)).unwrap_or_else(|| panic!("no {stage} in\n{text}"));
    line.rsplit('(').next().unwrap().trim_end_matches(')').to_owned()
}

#[test]
fn a_new_study_is_written_once_under_its_name() {
    let place = Place::new("new");
    holds(&place.run(&["new"]).ends(0).out, "wrote study.toml");
    holds(&place.run(&["new", "--from", "paper/pce"]).ends(0).out, "wrote pce.toml\nnow try: twostep run pce.toml");
    holds(&place.run(&["new", "my study"]).ends(0).out, "now try: twostep run 'my study.toml'");
    let aligned = place.read("my study.toml");
    let column = |start: &str| aligned.lines().find(|line| line.starts_with(start)).unwrap().find('#').unwrap();
    assert_eq!(column("name = "), column("seed = "));
    holds(&place.run(&["new", "../elsewhere"]).ends(2).err, "is a path, not a name");
    let again = place.run(&["new"]).ends(2);
    holds(&again.err, "study.toml: the file exists and is not overwritten");
    place.run(&["new", "mine", "--from", "paper/linear"]).ends(0);
    holds(&place.read("mine.toml"), "name = \"mine\"");
    holds(&place.read("linear_design.csv"), "omega");
    place.run(&["check", "mine.toml"]).ends(0);
    // The second file is taken: the first must not be written either.
    place.run(&["new", "other", "--from", "paper/linear"]).ends(2);
    assert!(!place.0.join("other.toml").exists());
    place.run(&["new", "a\"b"]).ends(2);
    place.run(&["new", "no/such/folder"]).ends(2);
    holds(&place.run(&["new", "--from", "paper/pec"]).ends(2).err, "paper/pce");
    let list = place.run(&["new", "--list"]).ends(0).out;
    assert_eq!(list.lines().filter(|line| line.starts_with("paper/")).count(), 9, "{list}");
}

#[test]
fn terminal_summary_and_report_have_the_same_numbers() {
    let place = Place::new("numbers");
    place.write("study.toml", TINY);
    let ran = place.run(&["run", "study.toml"]).ends(0);
    holds(&ran.out, "report in study.twostep/report.html");
    let page = place.read("study.twostep/report.html");
    let summary: Value = serde_json::from_str(&place.read("study.twostep/summary.json")).unwrap();
    let methods = summary["settings"][0]["methods"].as_object().unwrap();
    assert_eq!(methods.len(), 2);
    for of_method in methods.values() {
        for quantity in of_method["unknowns"].as_object().unwrap().values() {
            let quantity: QuantitySummary = serde_json::from_value(quantity.clone()).unwrap();
            let text = words::quantity(&quantity);
            holds(&ran.out, &text);
            assert!(page.contains(&format!("<td class=\"n\">{text}</td>")), "{text}");
        }
    }
    let share = summary["settings"][0]["t_step"][0]["leave_one_out"]["coverage_90"].as_f64().unwrap();
    holds(&ran.out, &format!("{} of left-out runs", words::held(share)));
    let said = format!("{} of the runs lie inside", words::held(share)).replace(" %", "\u{a0}%");
    assert!(page.contains(&said), "{said}");
}

#[test]
fn a_report_shows_what_is_finished_and_nothing_of_before() {
    let place = Place::new("reports");
    place.write("study.toml", TINY);
    holds(&place.run(&["report", "study.toml"]).ends(1).err, "the simulate stage is not finished");
    place.run(&["train", "study.toml"]).ends(0);
    place.run(&["report", "study.toml"]).ends(0);
    holds(&place.read("study.twostep/report.html"), "No answer yet");
    place.run(&["run", "study.toml"]).ends(0);
    let before = place.read("study.twostep/report.html");
    holds(&before, "The answer in detail");
    // A width of its own does not stay in the way of the report's images.
    let image = || fs::read(place.0.join("study.twostep/figures/densities.png")).unwrap();
    let usual = image();
    place.run(&["figures", "study.toml", "--only", "densities", "--width", "60mm", "--format", "png"]).ends(0);
    assert_ne!(image(), usual);
    place.run(&["report", "study.toml"]).ends(0);
    assert_eq!(image(), usual);
    // What shows the earlier answer stays until there is another.
    place.write("study.toml", &TINY.replace("sd = 0.05", "sd = 0.06"));
    holds(&place.run(&["report", "study.toml"]).ends(1).err, "the infer stage is not finished for this study as it is");
    assert_eq!(place.read("study.twostep/report.html"), before);
    assert!(place.0.join("study.twostep/e-lik.nc").exists());
    holds(&place.run(&["figures", "study.toml", "--only", "ecfd"]).ends(2).err, "there is no figure `ecfd`");
}

#[test]
fn the_paper_s_figures_are_made_by_number() {
    let place = Place::new("paper");
    let made = place.run(&["paper", "--figure", "10", "--quiet"]).ends(0);
    holds(
        &made.out,
        "Figure 10: appendix: I-posteriors of the slope-only model: figure-10.svg, figure-10.png, figure-10.csv",
    );
    holds(&made.out, "figures, studies and results in paper");
    holds(&place.read("paper/figure-10.csv"), "panel,series,mark,x,y");
    holds(&place.read("paper/figure-10.svg"), "<svg");
    assert!(std::fs::read(place.0.join("paper/figure-10.png")).unwrap().starts_with(b"\x89PNG"));
    // A study that was changed is used, and said to be.
    let study = place.read("paper/slope.toml").replace("[0.5, 1]", "[0.5]");
    std::fs::write(place.0.join("paper/slope.toml"), study).unwrap();
    let again = place.run(&["paper", "--figure", "10", "--json"]).ends(0);
    holds(&again.err, "is not as it was shipped");
    let written: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(written["written"].as_array().unwrap().len(), 3);
    holds(&place.run(&["paper", "--figure", "2"]).ends(2).err, "figure 2 is a drawing");
    holds(&place.run(&["paper", "--figure", "3", "--seed", "1"]).ends(2).err, "a seed of its own");
    holds(&place.run(&["paper", "--help"]).ends(0).out, "Figures have the paper's numbers");
}

#[test]
fn the_starter_runs_and_finds_its_truth() {
    let place = Place::new("starter");
    place.run(&["new", "first"]).ends(0);
    let text = place.read("first.toml").replace("draws = 1000", "draws = 20");
    place.write("first.toml", &text);
    let ran = place.run(&["run", "first.toml"]).ends(0);
    holds(&ran.out, "* e-lik");
    holds(&ran.out, "results in first.twostep");
    holds(&ran.err, "simulate: 40 of 40 done");
    let summary: Value = serde_json::from_str(&place.read("first.twostep/summary.json")).unwrap();
    let gamma = &summary["settings"][0]["methods"]["e-lik"]["unknowns"]["gamma"];
    let (mean, sd) = (gamma["mean"].as_f64().unwrap(), gamma["sd"].as_f64().unwrap());
    // Two-sided normal quantile at 1e-4: the truth of one seed lies within so many sds.
    assert!((mean - 0.15).abs() < 3.9 * sd, "{mean} {sd}");
}

#[test]
fn a_second_run_does_only_what_changed() {
    let place = Place::with_study("rerun", TINY);
    let stages = ["simulate", "train", "infer"];
    let origins = |text: &str| stages.map(|stage| origin(text, stage));
    let first = place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(origins(&first.out), ["computed", "computed", "computed"]);
    let second = place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(origins(&second.out), ["kept", "kept", "kept"]);
    let table = |text: &str| text.lines().skip(3).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(table(&first.out), table(&second.out));

    let modified = |file: &str| fs::metadata(place.0.join("study.twostep").join(file)).unwrap().modified().unwrap();
    let before = [modified("training.csv"), modified("t_draws.csv")];
    place.write("study.toml", &TINY.replace("methods = [\"point\", \"e-lik\"]", "methods = [\"e-post\", \"e-lik\"]"));
    let status = place.run(&["status", "study.toml"]).ends(0);
    let state = |stage: &str| {
        let line = status.out.lines().find(|line| line.starts_with(stage)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(stages.map(state), ["fresh", "fresh", "stale"]);
    holds(&status.out, "e-post: not computed yet");
    let third = place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(origins(&third.out), ["kept", "kept", "computed"]);
    // Methods that are no longer asked for leave nothing behind, and those added are what they would have been alone.
    assert!(!place.0.join("study.twostep/i_draws_point.csv").exists());
    place.run(&["run", "study.toml", "--out", "anew"]).ends(0);
    for file in ["summary.json", "summary.csv", "i_draws_e-lik.csv", "i_draws_e-post.csv"] {
        assert!(place.read(&format!("study.twostep/{file}")) == place.read(&format!("anew/{file}")), "{file} differs");
    }
    assert_eq!(before, [modified("training.csv"), modified("t_draws.csv")]);
    assert!(!third.err.contains("simulate:"), "{}", third.err);

    let seeded = place.run(&["simulate", "study.toml", "--seed", "4"]).ends(0);
    assert_eq!(origin(&seeded.out, "simulate"), "computed");
    assert!(!seeded.out.contains("train"));
}

#[test]
fn a_single_run_has_no_q2_and_is_no_bad_surrogate() {
    // The paper's appendix trains on one run; a constant output has no variance either.
    let place = Place::new("single");
    place.run(&["new", "slope", "--from", "paper/slope"]).ends(0);
    place.write("slope.toml", &place.read("slope.toml").replace("draws = 20000", "draws = 101"));
    let ran = place.run(&["run", "slope.toml"]).ends(0);
    holds(&ran.out, "no Q2 (it needs two different outputs)");
    assert!(!ran.err.contains("predicted badly"), "{}", ran.err);
    place.run(&["run", "slope.toml"]).ends(0);
    place.write("study.toml", &TINY.replace("beta = 3", "beta = 0"));
    holds(&place.run(&["run", "study.toml"]).ends(0).out, "no Q2");
}

#[test]
fn a_derived_quantity_without_a_value_loses_only_itself() {
    let study = format!("{TINY}\n[derived]\nlg = \"log(gamma)\"\ndouble = \"2 * gamma\"\n");
    // Half of the posterior is negative.
    let place = Place::with_study("undefined", &study.replace("truth = { gamma = 0.15 }", "truth = { gamma = 0 }"));
    for engine in ["grid", "smc", "nuts"] {
        let text = place.read("study.toml").replace("[infer]\n", &format!("[infer]\nengine = \"{engine}\"\n"));
        place.write("other.toml", &text);
        let ran = place.run(&["run", "other.toml"]).ends(0);
        holds(&ran.out, "n/a");
        holds(&ran.err, "derived.lg: ");
        holds(&ran.err, "of the posterior by e-lik has no");
        let summary: Value = serde_json::from_str(&place.read("other.twostep/summary.json")).unwrap();
        let quantities = &summary["settings"][0]["methods"]["e-lik"]["unknowns"];
        assert!(quantities["lg"]["mean"].is_null() && quantities["lg"]["q50"].is_null(), "{quantities}");
        let mean = |name: &str| quantities[name]["mean"].as_f64().unwrap();
        // Sums of the same terms in another order: some thousand of at most one.
        assert!((mean("double") - 2.0 * mean("gamma")).abs() <= 1e4 * f64::EPSILON, "{quantities}");
        let table = place.read("other.twostep/summary.csv");
        assert!(table.lines().any(|line| line.starts_with(&format!("e-lik,lg,{engine},,,"))), "{table}");
        place.run(&["run", "other.toml"]).ends(0);
    }
}

/// All files below a folder, with the time of their last change.
fn files(folder: &Path) -> Vec<(PathBuf, std::time::SystemTime)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let changed = fs::metadata(&path).unwrap().modified().unwrap();
        all.extend(if path.is_dir() { files(&path) } else { Vec::new() });
        all.push((path, changed));
    }
    all.sort();
    all
}

/// The reason that `status` gives for a stage, or `fresh`.
fn state(place: &Place, stage: &str) -> String {
    let status = place.run(&["status", "study.toml", "--json"]).ends(0).json();
    let stages = status["stages"].as_array().unwrap();
    let own = stages.iter().find(|own| own["stage"] == stage).unwrap();
    if own["fresh"] == true { "fresh".into() } else { own["reason"].as_str().unwrap().into() }
}

#[test]
fn finished_results_are_not_written_again() {
    let place = Place::with_study("unchanged", TINY);
    place.run(&["run", "study.toml"]).ends(0);
    let before = (files(&place.0), fs::metadata(place.0.join("study.twostep")).unwrap().modified().unwrap());
    for command in ["run", "infer", "train", "simulate"] {
        place.run(&[command, "study.toml"]).ends(0);
    }
    let after = (files(&place.0), fs::metadata(place.0.join("study.twostep")).unwrap().modified().unwrap());
    assert_eq!(before, after);
}

#[test]
fn a_method_is_added_to_those_that_are_kept() {
    let with = |methods: &str| TINY.replace("methods = [\"point\", \"e-lik\"]", &format!("methods = [{methods}]"));
    let place =
        Place::with_study("added", &with("\"point\"").replace("draws = 200", "answer = \"point\"\ndraws = 200"));
    place.run(&["run", "study.toml"]).ends(0);
    let kept = || {
        let path = |name: &str| place.0.join("study.twostep").join(name);
        ["i_draws_point.csv", "measurements.csv"].map(|name| fs::metadata(path(name)).unwrap().modified().unwrap())
    };
    let before = kept();
    place.write("study.toml", TINY);
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(kept(), before);
    // What another version computed is not said to be by this one.
    let ledger = place.read("study.twostep/stages.json");
    let version = |version: &str| format!("\"version\": \"{version}\"");
    place.write("study.twostep/stages.json", &ledger.replace(&version(twostep::run::VERSION), &version("0.0.7")));
    place.run(&["run", "study.toml"]).ends(0);
    holds(&place.read("study.twostep/summary.json"), &version("0.0.7"));
    assert!(place.read("study.twostep/summary.csv").lines().skip(1).all(|line| line.ends_with(",0.0.7")));
}

#[test]
fn a_broken_ledger_and_another_study_are_refused() {
    let place = Place::with_study("ledger", TINY);
    place.run(&["run", "study.toml", "--out", "results"]).ends(0);
    place.write("other.toml", &TINY.replace("degree = 3", "degree = 2"));
    let refused = place.run(&["run", "other.toml", "--out", "results"]).ends(2).err;
    holds(&refused, "holds results of study.toml");
    holds(&refused, "give --out another folder");
    place.write("results/stages.json", "{");
    let status = place.run(&["status", "study.toml", "--out", "results"]).ends(0).out;
    holds(&status, "stages.json: cannot be read");
    holds(&place.run(&["run", "study.toml", "--out", "results"]).ends(2).err, "rename or delete it");
    assert_eq!(place.read("results/stages.json"), "{");
}

#[test]
fn which_method_leads_and_their_order_make_nothing_stale() {
    let place = Place::with_study("presentation", TINY);
    place.run(&["run", "study.toml"]).ends(0);
    place.write(
        "study.toml",
        &TINY.replace("methods = [\"point\", \"e-lik\"]", "methods = [\"e-lik\", \"point\"]\nanswer = \"point\""),
    );
    assert_eq!(state(&place, "infer"), "fresh");
    let ran = place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(origin(&ran.out, "infer"), "kept");
    holds(&ran.out, "* point");
    let study = TINY.replace("[infer]", "[infer]\npropagate = [\"coefficients\", \"sigma-a\"]");
    place.write("study.toml", &study.replace("draws = 200", "draws = 300"));
    assert_eq!(state(&place, "infer"), "infer.draws, infer.propagate changed");
    place.write("study.toml", &study.replace("degree = 3", "degree = 2"));
    assert_eq!(state(&place, "train"), "scale or surrogate of y changed");
    assert_eq!(state(&place, "infer"), "an earlier stage is stale");
}

#[test]
fn missing_and_broken_files_are_made_again() {
    let place = Place::with_study("broken", TINY);
    place.run(&["run", "study.toml"]).ends(0);
    let answer = place.read("study.twostep/summary.json");
    for (file, stage) in [
        ("training.csv", "simulate"),
        ("t_draws.csv", "train"),
        ("t_step.json", "train"),
        ("i_draws_point.csv", "infer"),
        ("i_step.json", "infer"),
        ("measurements.csv", "infer"),
    ] {
        let path = place.0.join("study.twostep").join(file);
        fs::remove_file(&path).unwrap();
        assert_eq!(state(&place, stage), format!("{file} is missing"));
        assert_eq!(origin(&place.run(&["run", "study.toml"]).ends(0).out, stage), "computed");
        if file != "measurements.csv" {
            fs::write(&path, "{").unwrap();
            holds(&state(&place, stage), file);
            assert_eq!(origin(&place.run(&["run", "study.toml"]).ends(0).out, stage), "computed");
        }
    }
    assert_eq!(place.read("study.twostep/summary.json"), answer);
}

#[test]
fn a_folder_of_others_is_refused_before_anything_runs() {
    let place = Place::with_study("foreign", TINY);
    fs::create_dir(place.0.join("thesis")).unwrap();
    place.write("thesis/training.csv", "mine");
    for command in ["run", "simulate", "train", "infer"] {
        let ran = place.run(&[command, "study.toml", "--out", "thesis"]).ends(2);
        holds(&ran.err, "not results of twostep (training.csv)");
        assert!(!ran.err.contains("simulate:"), "{}", ran.err);
        holds(&place.run(&[command, "study.toml", "--out", "study.toml"]).ends(2).err, "this is a file");
    }
    assert_eq!(place.read("thesis/training.csv"), "mine");
    // Files that are added to results later are left alone.
    place.run(&["run", "study.toml"]).ends(0);
    place.write("study.twostep/notes.txt", "mine");
    place.run(&["run", "study.toml", "--seed", "9"]).ends(0);
    assert_eq!(place.read("study.twostep/notes.txt"), "mine");
}

#[test]
fn two_processes_do_not_write_into_one_folder() {
    let place = Place::with_study("lock", TINY);
    place.run(&["simulate", "study.toml"]).ends(0);
    let lock = fs::File::open(place.0.join("study.twostep/.lock")).unwrap();
    lock.lock().unwrap();
    let ran = place.run(&["run", "study.toml"]).ends(1);
    holds(&ran.err, "study.twostep: another twostep is working in this folder");
    place.run(&["simulate", "study.toml"]).ends(0);
    drop(lock);
    place.run(&["run", "study.toml"]).ends(0);
}

#[test]
fn other_measurements_leave_the_studys_own_results_alone() {
    let place = Place::with_study("own", TINY);
    place.write("other.csv", "omega,y,note\n-0.5,0.1,a\n0.5,0.9,b\n");
    place.write("at.csv", "omega\n0\n");
    place.run(&["run", "study.toml"]).ends(0);
    let own = files(&place.0.join("study.twostep"));
    let ran = place.run(&["infer", "study.toml", "--measurements", "other.csv"]).ends(0);
    assert_eq!(["simulate", "train", "infer"].map(|stage| origin(&ran.out, stage)), ["shared", "shared", "computed"]);
    holds(&ran.out, "results in study.twostep/measurements=other.csv");
    let name = "study.twostep/measurements=other.csv";
    assert_eq!(place.read(&format!("{name}/measurements.csv")), place.read("other.csv"));
    let summary =
        |folder: &str| -> Value { serde_json::from_str(&place.read(&format!("{folder}/summary.json"))).unwrap() };
    let measurements = &summary(name)["settings"][0]["measurements"];
    assert_eq!(*measurements, serde_json::json!({ "source": "other.csv", "values": { "y": 2 } }));
    let measurements = &summary("study.twostep")["settings"][0]["measurements"];
    assert_eq!(*measurements, serde_json::json!({ "source": "synthetic", "values": { "y": 5 } }));
    assert_eq!(state(&place, "infer"), "fresh");
    let now = files(&place.0.join("study.twostep"));
    // The ledger is written when the folder is taken, with the content that it had.
    let own: Vec<_> = own.iter().filter(|(path, _)| !path.ends_with("stages.json")).collect();
    assert!(own.iter().all(|file| now.contains(file)), "{own:?}\n{now:?}");

    let predict = |more: &[&str]| place.run(&[&["predict", "study.toml", "--at", "at.csv"], more].concat()).ends(0).out;
    let (by_own, by_other) = (predict(&[]), predict(&["--measurements", "other.csv"]));
    holds(&by_other, "from other.csv");
    assert_ne!(by_own, by_other);
    let status = place.run(&["status", "study.toml", "--measurements", "other.csv", "--json"]).ends(0).json();
    assert!(status["stages"].as_array().unwrap().iter().all(|stage| stage["fresh"] == true), "{status}");
    let status = place.run(&["status", "study.toml"]).ends(0).out;
    holds(&status, "results in study.twostep\nresults of other measurements in study.twostep/measurements=other.csv\n");
    // Another file of the same name has a folder of its own.
    fs::create_dir(place.0.join("more")).unwrap();
    place.write("more/other.csv", "omega,y\n0,0.4\n");
    place.run(&["infer", "study.toml", "--measurements", "more/other.csv"]).ends(0);
    assert_eq!(place.read(&format!("{name}/measurements.csv")), place.read("other.csv"));
}

#[test]
fn a_changed_sweep_finds_its_results_and_removes_what_is_left_over() {
    let sweep = |values: &str| format!("{TINY}\n[sweep]\n\"design.runs\" = [{values}]\n");
    let place = Place::with_study("changed", &sweep("20, 25"));
    place.run(&["run", "study.toml"]).ends(0);
    let table = place.read("study.twostep/summary.csv");
    let rows = |table: &str| {
        table.lines().skip(1).map(|line| line.split(',').take(3).collect::<Vec<_>>().join(",")).collect::<Vec<_>>()
    };
    assert!(table.starts_with("design.runs,setting,folder,method"), "{table}");
    assert_eq!(rows(&table)[2], "25,2,design.runs=25");
    place.write("study.twostep/design.runs=20/notes.txt", "mine");
    place.write("study.toml", &sweep("30, 25"));
    let ran = place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(ran.out.matches("(kept)").count(), 3, "{}", ran.out);
    let gone = place.0.join("study.twostep/design.runs=20");
    let left: Vec<_> = fs::read_dir(&gone).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
    // Without the sweep the study is one of its settings, and then the other way round.
    place.write("study.toml", &TINY.replace("runs = 30", "runs = 25"));
    let ran = place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(ran.out.matches("(shared)").count(), 3, "{}", ran.out);
    assert!(!place.0.join("study.twostep/design.runs=25").exists());
    place.write("study.toml", &sweep("25"));
    let ran = place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(ran.out.matches("(shared)").count(), 3, "{}", ran.out);
    assert!(!place.0.join("study.twostep/training.csv").exists());
    let summary: Value = serde_json::from_str(&place.read("study.twostep/summary.json")).unwrap();
    assert_eq!(
        (&summary["settings"][0]["number"], &summary["settings"][0]["folder"]),
        (&1.into(), &"design.runs=25".into())
    );
}

#[test]
fn a_typo_shows_its_line_and_the_nearest_spelling() {
    let place = Place::with_study("typo", &TINY.replace("degree", "degre").replace("\"sobol\"", "\"sobl\""));
    let ran = place.run(&["run", "study.toml"]).ends(2);
    assert_eq!(ran.out, "");
    insta::assert_snapshot!(ran.err, @r#"
      × design.method: `sobl` is not known
        ╭─[study.toml:12:10]
     11 │ [design]
     12 │ method = "sobl"
        ·          ───┬──
        ·             ╰── expected one of those below
     13 │ runs = 30
        ╰────
      help: did you mean "sobol"? known are halton-ends, halton, sobol, sobol-scrambled,
            latin-hypercube, grid, random

      × [surrogate] has no key `degre`
        ╭─[study.toml:16:1]
     15 │ kind = "pce"
     16 │ degre = 3
        · ──┬──
        ·   ╰── unknown key
     17 │ [train]
        ╰────
      help: did you mean "degree"? known are kind, sigma_a, standardise, degree, normalisation,
            coefficients, q_norm, residual, gp, sigma_a_degree, sigma_a_coefficients

    error: 2 problems in study.toml; nothing was run
    "#);
    assert!(!place.0.join("study.twostep").exists());
    // Text that is not TOML, and not even text.
    place.write("study.toml", "[unknowns\n");
    place.run(&["check", "study.toml"]).ends(2);
    fs::write(place.0.join("study.toml"), [0xff, 0xfe, 0x00]).unwrap();
    holds(&place.run(&["check", "study.toml"]).ends(2).err, "UTF-8");
    place.run(&["check", "."]).ends(2);
}

#[test]
fn a_missing_study_points_to_new() {
    let place = Place::new("missing");
    let ran = place.run(&["run", "nope.toml"]).ends(2);
    insta::assert_snapshot!(ran.err, @"
    error: nope.toml: there is no such study file
    help: check the path; `twostep new` makes a starter study
    ");
    holds(&place.run(&["run", "paper/pce"]).ends(2).err, "`twostep new --from paper/pce`");
}

#[test]
fn wrong_measurements_are_refused_before_anything_runs() {
    let place = Place::with_study("measurements", TINY);
    for (text, expected) in [
        ("", "empty"),
        ("omega,y\n", "row"),
        ("omega,y\n0.5,abc\n", "abc"),
        ("omega,z\n0.5,1\n", "`y`"),
        ("omega,y\n7,1\n", "outside"),
    ] {
        place.write("other.csv", text);
        let ran = place.run(&["infer", "study.toml", "--measurements", "other.csv"]).ends(2);
        holds(&ran.err, "other.csv");
        holds(&ran.err, expected);
        holds(&ran.err, "help: ");
    }
    let missing = place.run(&["infer", "study.toml", "--measurements", "none.csv"]).ends(2).err;
    holds(&missing, "none.csv");
    assert!(!missing.contains("study file"), "{missing}");
    assert!(!place.0.join("study.twostep").exists());
    place.write("other.csv", "omega,y\n-0.5,0.1\n0.5,0.9\n");
    place.run(&["infer", "study.toml", "--measurements", "other.csv"]).ends(0);
    // Predictions must be told of them too, since the study's own are others.
    place.write("at.csv", "omega\n0\n");
    holds(&place.run(&["predict", "study.toml", "--at", "at.csv"]).ends(1).err, "run `twostep run` first");
    place.run(&["predict", "study.toml", "--at", "at.csv", "--measurements", "other.csv"]).ends(0);
}

#[test]
fn predictions_include_an_output_that_was_never_measured() {
    let study = r#"
[simulator]
builtin = "sir"
[unknowns.beta]
range = [1.4, 1.8]
[conditions.t]
range = [1, 5]
[constants]
gamma = 0.4
[outputs.infected]
scale = "log"
[outputs.susceptible]
[design]
runs = 30
[surrogate]
kind = "pce"
degree = 2
[train]
draws = 20
[measurements]
file = "measurements.csv"
noise = { family = "log-normal", sd = 0.2 }
[infer]
methods = ["e-lik", "point"]
draws = 200
"#;
    let place = Place::with_study("predict", study);
    place.write("measurements.csv", "t,infected\n2,11\n3,36\n4,110\n");
    place.write("at.csv", "t\n2.5\n4.5\n");
    place.run(&["run", "study.toml"]).ends(0);
    let ran = place.run(&["predict", "study.toml", "--at", "at.csv", "--save", "out.csv"]).ends(0);
    let rows = |output: &str| ran.out.lines().filter(|line| line.split_whitespace().nth(1) == Some(output)).count();
    assert_eq!((rows("infected"), rows("susceptible")), (2, 2), "{}", ran.out);
    assert_eq!(place.read("out.csv").lines().count(), 5);
    let value = place.run(&["predict", "study.toml", "--at", "at.csv", "--method", "point", "--json"]).ends(0).json();
    assert_eq!(value["method"], "point");
    for row in value["predictions"].as_array().unwrap() {
        assert!(row["q05"].as_f64().unwrap() <= row["q95"].as_f64().unwrap(), "{row}");
    }
    holds(&place.run(&["predict", "study.toml", "--at", "at.csv", "--method", "e-post"]).ends(2).err, "e-lik, point");
    holds(&place.run(&["predict", "study.toml", "--at", "at.csv", "--setting", "2"]).ends(2).err, "no setting 2");
    place.write("at.csv", "t\n99\n");
    holds(&place.run(&["predict", "study.toml", "--at", "at.csv"]).ends(2).err, "99 lies outside [1, 5]");
}

#[test]
fn predictions_take_t_draws_by_their_weight() {
    let formula = "kind = \"formula\"\nformula = \"c + 0 * gamma + 0 * omega\"\nsigma_a = 0.1\nstandardise = false\n\
                   [surrogate.parameters]\nc = \"normal(0, 1)\"";
    let study =
        TINY.replace("kind = \"pce\"\ndegree = 3", formula).replace("draws = 20\n", "import = \"t.csv\"\n").replace(
            "methods = [\"point\", \"e-lik\"]\ndraws = 200",
            "methods = [\"e-log-lik\"]\nanswer = \"e-log-lik\"\ndraws = 2000",
        );
    let place = Place::with_study("weights", &study);
    let others = "1,0.1,0.03\n".repeat(10);
    place.write("t.csv", &format!("c,sigma_a,weight\n0,0.1,0.7\n{others}"));
    place.write("at.csv", "omega\n0\n");
    place.run(&["run", "study.toml"]).ends(0);
    let ran = place.run(&["predict", "study.toml", "--at", "at.csv", "--json"]).ends(0).json();
    let mean = ran["predictions"][0]["mean"].as_f64().unwrap();
    // The share of draws with c = 1, within the two-sided normal quantile at 1e-4 of its standard error.
    assert!((mean - 0.3).abs() < 3.9 * (0.3_f64 * 0.7 / 2000.0).sqrt(), "{mean}");
}

#[test]
fn predictions_have_the_surrogates_error_where_it_is_propagated() {
    let study = TINY.replace("degree = 3", "degree = 3\nsigma_a = 0.5");
    let propagate = |what: &str| study.replace("[infer]", &format!("[infer]\npropagate = [{what}]"));
    let place = Place::with_study("errors", &propagate("\"coefficients\", \"sigma-a\""));
    place.write("at.csv", "omega\n0\n0\n");
    let predict = |method: &str| {
        place.run(&["run", "study.toml"]).ends(0);
        let ran = place.run(&["predict", "study.toml", "--at", "at.csv", "--method", method, "--json"]).ends(0).json();
        let sd = |i: usize| ran["predictions"][i]["sd"].as_f64().unwrap();
        [sd(0), sd(1)]
    };
    let with = predict("point");
    // As many clusters as T-draws are those T-draws, which I-draws then belong to.
    place.write("study.toml", &TINY.replace("[infer]", "[infer]\nclusters = 20"));
    place.run(&["run", "study.toml"]).ends(0);
    holds(&place.read("study.twostep/i_draws_e-lik.csv"), "t_draw");
    // Rows at the same conditions share their error, so that they are one prediction.
    assert_eq!(with[0], with[1]);
    place.write(
        "study.toml",
        &propagate("\"coefficients\", \"sigma-a\"").replace("[infer]", "[infer]\nerror = \"independent\""),
    );
    let independent = predict("point");
    assert_ne!(independent[0], independent[1]);
    place.write("study.toml", &propagate("\"coefficients\""));
    let without = predict("point");
    // Half the sd of all outputs is many times what five measurements with an sd of 0.05 leave open.
    assert!(without[0] < 0.5 * with[0], "{without:?} {with:?}");
}

#[test]
fn a_study_without_conditions_predicts_without_a_file() {
    let study = TINY
        .replace("[conditions.omega]\nrange = [-1, 1]\n", "")
        .replace("beta = 3", "beta = 3\nomega = 0.2")
        .replace("at = { omega = \"linspace(-1, 1, 5)\" }", "replicates = 3");
    let place = Place::with_study("unconditional", &study);
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(
        place.run(&["predict", "study.toml", "--json"]).ends(0).json()["predictions"].as_array().unwrap().len(),
        1
    );
    place.write("study.toml", TINY);
    holds(&place.run(&["predict", "study.toml"]).ends(2).err, "a column for each of omega");
    holds(&place.run(&["predict", "--help"]).ends(0).out, "approximation error where infer.propagate");
}

#[test]
fn json_stands_alone_on_standard_output() {
    let place = Place::with_study("json", TINY);
    place.write("at.csv", "omega\n0\n");
    let printed = place.run(&["run", "study.toml", "--json"]).ends(0).json();
    let kept: Value = serde_json::from_str(&place.read("study.twostep/summary.json")).unwrap();
    assert_eq!(printed, kept);
    let check = place.run(&["check", "study.toml", "--json"]).ends(0).json();
    assert_eq!(check["settings"][0]["surrogate_terms"]["y"], 10);
    assert_eq!(check["settings"][0]["engine"], "grid");
    assert_eq!(check["settings"][0]["measurements"]["outputs"]["y"], 5);
    assert_eq!(check["warnings"], serde_json::json!([]));
    let status = place.run(&["--json", "status", "study.toml"]).ends(0).json();
    assert!(status["stages"].as_array().unwrap().iter().all(|stage| stage["fresh"] == true), "{status}");
    assert_eq!(place.run(&["methods", "--json"]).ends(0).json()["methods"].as_array().unwrap().len(), 4);
    place.run(&["train", "study.toml", "--json"]).ends(0).json();
    place.run(&["new", "--list", "--json"]).ends(0).json();
    let quiet = place.run(&["run", "study.toml", "--quiet", "--seed", "9"]).ends(0);
    assert!(!quiet.err.contains("done"), "{}", quiet.err);
}

#[test]
fn errors_are_json_where_json_was_asked_for() {
    let place = Place::with_study("json-errors", &TINY.replace("degree", "degre").replace("runs = 30", "runs = 0"));
    let ran = place.run(&["check", "study.toml", "--json"]).ends(2);
    holds(&ran.err, "2 problems in study.toml");
    let error = ran.json()["error"].clone();
    assert_eq!((&error["place"], &error["line"]), (&Value::from("study.toml"), &Value::from(13)));
    assert_eq!(error["message"], "design.runs: 0 is out of range");
    assert_eq!(error["problems"].as_array().unwrap().len(), 2);
    holds(error["problems"][1]["help"].as_str().unwrap(), "degree");

    place.write("study.toml", TINY);
    place.write("other.csv", "omega,y\n0,1\n0.5,x\n");
    let arguments = ["infer", "study.toml", "--measurements", "other.csv", "--json"];
    let error = place.run(&arguments).ends(2).json()["error"].clone();
    assert_eq!(error["line"], 3);
    holds(error["place"].as_str().unwrap(), "other.csv");
    holds(error["help"].as_str().unwrap(), "write a number");
    place.run(&["run", "none.toml", "--json"]).ends(2).json();
    let usage = place.run(&["run", "--jsn", "--json"]).ends(2);
    assert_eq!(usage.json()["error"]["place"], "command line");
    assert!(place.run(&["--help", "--json"]).ends(0).out.contains("Usage"));
}

#[test]
fn a_check_counts_measurements_and_names_what_is_not_read() {
    let study = TINY
        .replace("[measurements.synthetic]\ntruth = { gamma = 0.15 }\nat = { omega = \"linspace(-1, 1, 5)\" }\n", "")
        .replace("noise = { family = \"normal\",", "file = \"y.csv\"\nnoise = { family = \"log-normal\",");
    let place = Place::with_study("check", &study);
    place.write("y.csv", "omega,y,remark\n-0.5,0,a\n0.5,0.9,b\n0.6,0,c\n");
    let ran = place.run(&["check", "study.toml"]).ends(0);
    holds(&ran.out, "infer      3 measurements of y; point, e-lik* by grid");
    let unused = "y.csv: column `remark` not used: neither an output nor a condition of the study";
    holds(&ran.err, unused);
    holds(&ran.err, "warning: 2 zeros of `y`: without a logarithm");
    let check = place.run(&["check", "study.toml", "--json"]).ends(0).json();
    assert_eq!(check["settings"][0]["measurements"]["outputs"]["y"], 3);
    assert_eq!(check["warnings"].as_array().unwrap().len(), 2);
    place.run(&["run", "study.toml"]).ends(0);
    holds(&place.read("study.twostep/summary.json"), unused);
}

#[test]
fn narrow_windows_get_narrow_lines() {
    let place = Place::with_study("narrow", TINY);
    let output = place.command(&["run", "study.toml"]).env("COLUMNS", "40").output().unwrap();
    let ran = Ran::from(output).ends(0);
    // The path of the results must stay whole.
    for line in ran.out.lines().filter(|line| !line.starts_with("results in")) {
        assert!(line.chars().count() <= 40, "{line}\n{}", ran.out);
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let place =
        Place::with_study("threads", &TINY.replace("[\"point\", \"e-lik\"]", "[\"e-lik\", \"e-post\", \"e-log-lik\"]"));
    for threads in ["1", "2"] {
        place.run(&["run", "study.toml", "--threads", threads, "--out", threads]).ends(0);
    }
    let files = [
        "summary.json",
        "training.csv",
        "t_draws.csv",
        "i_draws_e-lik.csv",
        "i_draws_e-post.csv",
        "i_draws_e-log-lik.csv",
    ];
    for file in files {
        assert!(place.read(&format!("1/{file}")) == place.read(&format!("2/{file}")), "{file} differs");
    }
    place.run(&["run", "study.toml", "--threads", "0"]).ends(2);
}

#[test]
fn a_sweep_shares_stages_and_becomes_one_table() {
    let sweep = format!("{TINY}\n[sweep]\n\"surrogate.degree\" = [1, 2]\n");
    let place = Place::with_study("sweep", &sweep);
    let ran = place.run(&["run", "study.toml"]).ends(0);
    holds(&ran.out, "surrogate.degree = 1\nsimulate   30 runs of logistic (computed)");
    holds(&ran.out, "surrogate.degree = 2\nsimulate   30 runs of logistic (shared)");
    place.write("at.csv", "omega\n0\n");
    holds(
        &place.run(&["predict", "study.toml", "--at", "at.csv"]).ends(2).err,
        "give 1 to 2: 1 (surrogate.degree = 1)",
    );
    place.run(&["predict", "study.toml", "--at", "at.csv", "--setting", "2"]).ends(0);
    place.write("study.toml", &sweep.replace("[1, 2]", "[1, 2, 3]\n\"train.draws\" = [10, 20, 30]"));
    let ran = place.run(&["run", "study.toml"]).ends(0);
    // Two settings lay in folders that now belong to others, and one run serves all.
    holds(&ran.out, "9 settings\nsimulate   ");
    assert_eq!(ran.out.lines().filter(|line| line.contains("* e-lik")).count(), 9, "{}", ran.out);
    place.write("study.toml", &sweep.replace("\"surrogate.degree\" = [1, 2]", "seed = [1, 2]"));
    holds(&place.run(&["run", "study.toml", "--seed", "1"]).ends(2).err, "sweeps over its seed");
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_and_keeps_finished_stages() {
    // Ten thousand fits by NUTS, some 5 ms each: far from finished when the signal comes, right after Point.
    let slow = TINY.replace("draws = 20\n", "draws = 10000\n").replace(
        "methods = [\"point\", \"e-lik\"]",
        "methods = [\"e-post\", \"point\"]\nanswer = \"e-post\"\nengine = \"nuts\"",
    );
    let place = Place::with_study("interrupt", &slow);
    let mut command = place.command(&["run", "study.toml"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stages = place.0.join("study.twostep/stages.json");
    let start = Instant::now();
    let started = |path: &Path| fs::read_to_string(path).is_ok_and(|text| text.contains("\"i_draws_point.csv\""));
    while !started(&stages) && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let ran = Ran::from(child.wait_with_output().unwrap()).ends(130);
    holds(&ran.err, "stopping; what is finished is kept");
    holds(&ran.err, "interrupted; finished stages are kept");
    let status = place.run(&["status", "study.toml", "--json"]).ends(0).json();
    let fresh: Vec<&Value> = status["stages"].as_array().unwrap().iter().map(|stage| &stage["fresh"]).collect();
    assert_eq!(fresh, [&Value::Bool(true), &Value::Bool(true), &Value::Bool(false)]);
    assert_eq!(state(&place, "infer"), "e-post: not computed yet");
    place.write("at.csv", "omega\n0\n");
    place.run(&["predict", "study.toml", "--at", "at.csv", "--method", "point"]).ends(0);
    holds(&place.run(&["predict", "study.toml", "--at", "at.csv"]).ends(1).err, "e-post is not computed yet");
}

#[test]
fn whether_runs_were_enough_is_told_kept_and_written() {
    let place = Place::with_study("enough", TINY);
    let ran = place.run(&["enough", "study.toml"]).ends(0);
    holds(&ran.err, "enough: 16 of 16 done");
    holds(&ran.out, "surrogate share");
    holds(&ran.out, "verdict: ");
    let file: Value = serde_json::from_str(&place.read("study.twostep/enough.json")).unwrap();
    let sizes: Vec<u64> =
        file["widths_by_runs"].as_array().unwrap().iter().map(|size| size["runs"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [8, 12, 19, 30]);
    // Ten coefficients and sigma_a.
    assert_eq!(file["widths_by_runs"][0]["prior_in_charge"], true);
    assert!(["enough", "more", "cannot tell"].contains(&file["verdict"].as_str().unwrap()), "{file}");
    assert!(file["surrogate_share"]["gamma"]["share"].is_f64(), "{file}");
    assert_eq!(file["suggested_runs"].is_null(), file["suggested_runs_reason"].is_string(), "{file}");
    // Nothing but the runs and the answer: neither T-draws nor I-draws of the study itself.
    assert!(!place.0.join("study.twostep/t_draws.csv").exists());

    let before = files(&place.0);
    let again = place.run(&["enough", "study.toml", "--json"]).ends(0);
    assert_eq!(again.json(), file);
    assert_eq!(files(&place.0), before);
    holds(&place.run(&["enough", "study.toml"]).ends(0).out, "verdict (kept): ");
    // Another share, another answer; a share that no posterior has is refused.
    let other = place.run(&["enough", "study.toml", "--share", "0.999", "--json"]).ends(0).json();
    assert_eq!((&other["verdict"], &other["suggested_runs"]), (&Value::from("enough"), &Value::Null));
    holds(&place.run(&["enough", "study.toml", "--share", "1"]).ends(2).err, "between 0 and 1");
    // The study's own run leaves it alone.
    place.run(&["run", "study.toml"]).ends(0);
    assert!(place.0.join("study.twostep/enough.json").exists());
}

#[test]
fn settings_of_a_sweep_are_judged_one_by_one() {
    let place = Place::with_study("enough-sweep", &format!("{TINY}\n[sweep]\n\"surrogate.degree\" = [1, 2]\n"));
    let ran = place.run(&["enough", "study.toml", "--json", "-q"]).ends(0).json();
    let all: Value = serde_json::from_str(&place.read("study.twostep/enough.json")).unwrap();
    assert_eq!(all, ran);
    for (setting, degree) in all["settings"].as_array().unwrap().iter().zip(["1", "2"]) {
        assert_eq!(setting["setting"]["surrogate.degree"], degree);
        let own = format!("study.twostep/{}/enough.json", setting["folder"].as_str().unwrap());
        let own: Value = serde_json::from_str(&place.read(&own)).unwrap();
        assert_eq!(own["verdict"], setting["verdict"]);
    }
    let text = place.run(&["enough", "study.toml"]).ends(0).out;
    holds(&text, "surrogate.degree = 2\n");
    // What a setting that is gone left behind goes with it.
    place.write("study.toml", &format!("{TINY}\n[sweep]\n\"surrogate.degree\" = [1]\n"));
    place.run(&["run", "study.toml"]).ends(0);
    assert!(!place.0.join("study.twostep/surrogate.degree=2").exists());
}

#[test]
fn studies_that_cannot_be_judged_are_refused() {
    let place = Place::new("enough-refused");
    place.run(&["new", "slope", "--from", "paper/slope"]).ends(0);
    holds(&place.run(&["enough", "slope.toml"]).ends(2).err, "1 simulator run cannot be compared with fewer");
    let (unmeasured, rest) = TINY.split_once("[measurements.synthetic]").unwrap();
    let infer = rest.split_once("[infer]").unwrap().1;
    place.write("study.toml", &format!("{unmeasured}[infer]{infer}"));
    holds(&place.run(&["enough", "study.toml"]).ends(2).err, "how many runs are enough depends on what is measured");
    place.write("t_draws.csv", "sigma_a\n1\n");
    place.write("study.toml", &TINY.replace("draws = 20\n", "import = \"t_draws.csv\"\n"));
    holds(&place.run(&["enough", "study.toml"]).ends(2).err, "T-draws from a file cannot be trained again");
    assert!(!place.0.join("study.twostep").exists());
}

#[test]
fn an_out_folder_that_cannot_be_made_is_bad_input() {
    let place = Place::with_study("unwritable", TINY);
    // A file where a folder must be: refused for every user, root included.
    place.write("taken", "");
    let ran = place.run(&["run", "study.toml", "--out", "taken/results"]).ends(2);
    holds(&ran.err, "taken/results");
    holds(&ran.err, "help: choose a folder you may write to with --out");
}

#[cfg(unix)]
#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let place = Place::new("pipe");
    let mut child = place.command(&["methods"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ran = Ran::from(child.wait_with_output().unwrap()).ends(0);
    assert_eq!(ran.err, "");
}

#[test]
fn help_names_every_command_and_the_methods() {
    let place = Place::new("help");
    let help = place.run(&["--help"]).ends(0).out;
    for command in [
        "run", "simulate", "train", "infer", "predict", "serve", "enough", "compare", "check", "status", "new",
        "methods",
    ] {
        assert!(help.lines().any(|line| line.starts_with(&format!("  {command} "))), "{command}\n{help}");
    }
    for command in ["run", "infer"] {
        holds(&place.run(&[command, "--help"]).ends(0).out, "gets surer as the surrogate gets worse");
    }
    holds(&place.run(&["methods"]).ends(0).out, "as the surrogate gets worse this method gets surer");
    assert_eq!(place.run(&["--version"]).ends(0).out, format!("twostep {}\n", twostep::run::VERSION));
    place.run(&[]).ends(2);
    holds(&place.run(&["predct", "study.toml"]).ends(2).err, "'predict'");
}

#[test]
fn studies_of_the_same_measurements_are_compared() {
    let place = Place::new("compare");
    // Measured where the truth is 0.15: noise with an sd of 0.05 explains it better than one of 0.5.
    let measurements = "omega,y\n-1,-0.93\n-0.5,-0.72\n0,-0.2\n0.5,0.49\n1,0.91\n";
    place.write("data.csv", measurements);
    let from = TINY.find("[measurements.synthetic]").unwrap()..TINY.find("[infer]").unwrap();
    let mut given = TINY.to_owned();
    given.replace_range(from, "");
    let study = |noise: &str| {
        given.replace(
            "[measurements]\nnoise = { family = \"normal\", sd = 0.05 }",
            &format!("[measurements]\nfile = \"data.csv\"\n{noise}"),
        )
    };
    place.write("narrow.toml", &study("noise = { sd = 0.05 }"));
    place.write("wide.toml", &study("noise = { sd = 0.5 }"));
    holds(&place.run(&["compare", "narrow.toml", "wide.toml"]).ends(1).err, "`twostep run narrow.toml` finishes it");
    let ran = place.run(&["run", "narrow.toml"]).ends(0);
    holds(&ran.out, "log evidence: e-lik ");
    holds(&place.run(&["compare", "narrow.toml", "wide.toml"]).ends(1).err, "`twostep run wide.toml` finishes it");
    place.run(&["run", "wide.toml"]).ends(0);

    let told = place.run(&["compare", "narrow.toml", "wide.toml"]).ends(0);
    for part in [
        "* narrow.toml",
        "  wide.toml",
        "By E-Lik the measurements favour narrow.toml over wide.toml",
        "By Point the",
        "priors",
        "training runs",
    ] {
        holds(&told.out, part);
    }
    let found = place.run(&["compare", "wide.toml", "narrow.toml", "--json"]).ends(0).json();
    for by_method in found["methods"].as_array().unwrap() {
        let studies = by_method["studies"].as_array().unwrap();
        let number = |i: usize, key: &str| studies[i][key].as_f64().unwrap();
        // The file keeps the same numbers; of two studies one against the other.
        for (i, name) in ["wide", "narrow"].iter().enumerate() {
            let summary: Value = serde_json::from_str(&place.read(&format!("{name}.twostep/summary.json"))).unwrap();
            let own = &summary["settings"][0]["methods"][by_method["method"].as_str().unwrap()]["diagnostics"];
            assert_eq!(own["log_evidence"].as_f64().unwrap(), number(i, "log_evidence"));
            let [a, b] =
                ["log_evidence_error", "log_evidence_t_draw_error"].map(|key| own[key].as_f64().unwrap_or(0.0));
            assert_eq!(a.hypot(b), number(i, "log_evidence_error"));
            assert!(page_holds(&place, name, &format!("{:.2} ± {:.2}", number(i, "log_evidence"), a.hypot(b))));
        }
        let factor = number(0, "log_evidence") - number(1, "log_evidence");
        assert_eq!([number(0, "log_bayes_factor"), number(1, "log_bayes_factor")], [factor, 0.0]);
        let error = number(0, "log_evidence_error").hypot(number(1, "log_evidence_error"));
        assert_eq!([number(0, "log_bayes_factor_error"), number(1, "log_bayes_factor_error")], [error, 0.0]);
        let probability = 1.0 / (1.0 + factor.exp());
        // Logarithms below ten, each rounded a few times.
        assert!((number(1, "probability") - probability).abs() < 40.0 * f64::EPSILON);
    }
    // Nothing is computed anew, nor written.
    let before = files(&place.0);
    place.run(&["compare", "narrow.toml", "wide.toml"]).ends(0);
    assert_eq!(files(&place.0), before);

    // Another value in the third row.
    place.write("other.csv", &measurements.replace("-0.2", "-0.3"));
    place.write("other.toml", &study("noise = { sd = 0.05 }").replace("data.csv", "other.csv"));
    place.run(&["run", "other.toml"]).ends(0);
    let refused = place.run(&["compare", "narrow.toml", "other.toml"]).ends(2).err;
    for part in
        ["other.toml (other.csv)", "measurement 3 of `y` is -0.3 at omega = 0", "narrow.toml (data.csv) it is -0.2"]
    {
        holds(&refused.split_whitespace().collect::<Vec<_>>().join(" "), part);
    }
    holds(
        &place.run(&["compare", "narrow.toml", "wide.toml", "--measurements", "other.csv"]).ends(1).err,
        "not finished",
    );
    holds(&place.run(&["compare", "narrow.toml"]).ends(2).err, "one study has nothing to be compared with");
    holds(&place.run(&["compare", "narrow.toml", "wade.toml"]).ends(2).err, "wade.toml: there is no such study file");
    holds(
        &place.run(&["compare", "narrow.toml", "wide.toml", "--out", "x"]).ends(2).err,
        "each of 2 studies has its own",
    );
    place.run(&["compare"]).ends(2);
    // Methods without an evidence.
    place.write(
        "wide.toml",
        &study("noise = { sd = 0.5 }").replace("[\"point\", \"e-lik\"]", "[\"e-post\"]\nanswer = \"e-post\""),
    );
    place.run(&["run", "wide.toml"]).ends(0);
    holds(&place.run(&["compare", "narrow.toml", "wide.toml"]).ends(2).err, "no method has an evidence in all studies");
}

fn page_holds(place: &Place, study: &str, text: &str) -> bool {
    place.read(&format!("{study}.twostep/report.html")).contains(text)
}

#[test]
fn settings_of_a_sweep_are_compared() {
    let place = Place::with_study("compare-sweep", &format!("{TINY}\n[sweep]\n\"surrogate.degree\" = [2, 3]\n"));
    place.run(&["run", "study.toml"]).ends(0);
    let told = place.run(&["compare", "study.toml"]).ends(0).out;
    let of_table = |line: &&str| ["* study", "  study"].iter().any(|start| line.starts_with(start));
    // By two methods.
    assert_eq!(told.lines().filter(of_table).count(), 4, "{told}");
    holds(&told, "study.toml, surrogate.degree = 2 ");
    // Other seeds make other measurements.
    place.write("seeds.toml", &format!("{TINY}\n[sweep]\nseed = [1, 2]\n"));
    place.run(&["run", "seeds.toml"]).ends(0);
    holds(&place.run(&["compare", "seeds.toml"]).ends(2).err, "measurement 1 of `y`");
}

#[test]
fn a_calibration_says_its_cost_first_and_can_be_stopped_and_continued() {
    let place = Place::with_study("calibrate", TINY);
    let small = ["calibrate", "study.toml", "--t-trials", "6", "--i-trials", "2"];
    let planned = place.run(&[&small[..], &["--dry-run"]].concat()).ends(0);
    // Thirty runs of the design and five points to measure.
    holds(
        &planned.out,
        "with truth = \"simulator\": 6 T-trials x 2 I-trials by 2 methods\n240 simulator runs to make; held-out: 0\n",
    );
    holds(&planned.out, "Sobol' points are scrambled");
    assert!(!place.0.join("study.twostep").exists());

    // Stopped as soon as a trial is kept.
    let mut child = place.command(&small).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let trials = place.0.join("study.twostep/trials");
    let kept = || {
        let journals = fs::read_dir(&trials).into_iter().flatten().flatten();
        journals.map(|entry| fs::read_to_string(entry.path()).unwrap_or_default().lines().count()).sum::<usize>()
    };
    let begun = Instant::now();
    while kept() < 2 && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let ran = place.run(&small).ends(0);
    holds(&ran.err, "of 12 I-trials are there already");
    holds(&ran.out, "log-gamma (limit)");
    holds(&ran.out, "e-lik: ");
    let csv = place.read("study.twostep/calibration.csv");
    assert_eq!(csv.lines().count(), 1 + 12 * 2);
    assert!(csv.starts_with("t_trial,i_trial,method,unknown,truth,pit,"), "{csv}");
    let file: Value = serde_json::from_str(&place.read("study.twostep/calibration.json")).unwrap();
    let gamma = &file["settings"][0]["methods"]["e-lik"]["unknowns"][0];
    for key in ["trials", "failed", "log_gamma", "log_gamma_threshold", "coverage", "width_90", "verdict"] {
        assert!(!gamma[key].is_null(), "{key}: {gamma}");
    }
    let again = place.run(&[&small[..], &["--json"]].concat()).ends(0);
    assert_eq!(again.json(), file);
    holds(&again.err, "0 simulator runs to make; held-out: 0; 12 of 12 I-trials are there already");
    let uninterrupted = place.run(&[&small[..], &["--out", "other", "--threads", "1", "-q"]].concat()).ends(0);
    assert_eq!(uninterrupted.out.lines().next(), ran.out.lines().next());
    assert_eq!(place.read("other/calibration.csv"), csv);
    holds(&place.run(&["status", "study.toml"]).ends(0).out, "stale");
}

#[test]
fn what_cannot_be_calibrated_is_refused() {
    let text = TINY
        .replace("[measurements.synthetic]\ntruth = { gamma = 0.15 }\nat = { omega = \"linspace(-1, 1, 5)\" }\n", "");
    let place = Place::with_study("no-calibration", &text);
    let refused = place.run(&["calibrate", "study.toml"]).ends(2);
    holds(&refused.err, "does not say what will be measured");
    place.run(&["calibrate", "study.toml", "--truth", "nature"]).ends(2);
    place.run(&["calibrate", "study.toml", "--t-trials", "0"]).ends(2);
}
