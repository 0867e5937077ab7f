//! Simulators outside this process as their users meet them: commands, servers, tables, and what happens to their runs.

// A helper that cannot go on has failed its test.
#![allow(clippy::unwrap_used)]
#![cfg(unix)]

mod common;
#[path = "common/exponential.rs"]
mod exponential;

use common::{Place, Ran, holds};
use exponential::{TEN, edit, runs, starts};
use serde_json::Value;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The beginning of every script: its input, and a line in a log beside the study for each start.
const START: &str = ". ./in\necho \"$a\" >> \"${0%/*}/log\"\n";

/// The value of the model, where the study reads it.
const GIVE: &str = "awk -v a=\"$a\" 'BEGIN { printf \"%.12g\\n\", exp(a) }' > \"$1\"\n";

/// A study of `exp(a)` by a shell script, with these further keys of the simulator.
fn study(keys: &str) -> String {
    let command = "command = [\"sh\", \"sim.sh\", \"{results}\"]\ntemplates = { \"in\" = \"in.tpl\" }";
    exponential::study(&format!("{command}\n{keys}"))
}

/// A folder with a study whose script does `before` and then gives the value.
fn exponential(name: &str, keys: &str, before: &str) -> Place {
    let place = exponential::place(name, &study(keys));
    place.write("in.tpl", "a={{ a }}\n");
    place.write("sim.sh", &format!("{START}{before}\n{GIVE}"));
    place
}

/// Number of runs that the surrogate was trained with.
fn trained(place: &Place) -> u64 {
    let summary: Value = serde_json::from_str(&place.read("study.twostep/summary.json")).unwrap();
    summary["settings"][0]["runs"].as_u64().unwrap()
}

/// Fills the last column of an exported table with `exp(a)`, and writes `a` with `digits` digits.
fn filled(place: &Place, file: &str, digits: usize) -> String {
    let exported = place.read(file);
    let mut lines = exported.lines();
    assert_eq!(lines.next(), Some("a,y"));
    let row = |line: &str| {
        let a: f64 = line.strip_suffix(',').unwrap().parse().unwrap();
        format!("{a:.*e},{:?}\n", digits - 1, a.exp())
    };
    format!("a,y\n{}", lines.map(row).collect::<String>())
}

/// Copies an example and runs it; says the answer's interval of an unknown.
fn example(place: &Place, unknown: &str) -> (f64, f64) {
    place.run(&["run", "study.toml"]).ends(0);
    let summary: Value = serde_json::from_str(&place.read("study.twostep/summary.json")).unwrap();
    let setting = &summary["settings"][0];
    let own = &setting["methods"][setting["answer"].as_str().unwrap()]["unknowns"][unknown];
    (own["q05"].as_f64().unwrap(), own["q95"].as_f64().unwrap())
}

fn copied_example(name: &str) -> Place {
    let place = Place::new(&format!("example-{name}"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), place.0.join(entry.file_name())).unwrap();
    }
    place
}

#[track_caller]
fn lies_in(value: f64, (low, high): (f64, f64)) {
    assert!(low < value && value < high, "{value} is not in [{low}, {high}]");
}

#[test]
fn the_example_of_a_shell_script_finds_its_truth() {
    let place = copied_example("shell");
    lies_in(0.45, example(&place, "rate"));
    lies_in(10.0, example(&place, "c0"));
    assert_eq!(runs(&place, "done").len(), 16);
}

#[test]
fn the_example_of_a_python_program_finds_its_truth() {
    let place = copied_example("python");
    lies_in(210.0, example(&place, "modulus"));
}

#[test]
fn the_example_of_a_table_finds_its_truth() {
    let place = copied_example("table");
    lies_in(352.0, example(&place, "temperature"));
    let listed = runs(&place, "done");
    assert_eq!((listed.len(), &listed[0]["id"], &listed[0]["source"]), (24, &"runs.csv:2".into(), &"table".into()));
    assert!(!place.0.join("study.twostep/runs.sqlite").exists(), "a table needs no ledger");
}

/// A process that ends with its test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_example_of_a_server_finds_its_truth() {
    let place = copied_example("umbridge");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    edit(&place, "study.toml", "127.0.0.1:4242", &format!("127.0.0.1:{port}"));
    let absent = place.run(&["run", "study.toml"]).ends(1);
    holds(&absent.err, "simulator.umbridge");
    assert!(runs(&place, "failed").is_empty(), "no run failed: there was no server to ask");
    let Some(python) = std::env::var_os("TWOSTEP_TEST_PYTHON") else {
        eprintln!("TWOSTEP_TEST_PYTHON is not set: nothing is tested here; scripts/test sets it");
        return;
    };
    let mut command = Command::new(python);
    command.args(["server.py", &port.to_string()]).current_dir(&place.0).stderr(Stdio::null()).stdout(Stdio::null());
    let mut server = Server(command.spawn().unwrap());
    let patience = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(server.0.try_wait().unwrap().is_none(), "the server ended at once");
        assert!(Instant::now() < patience, "the server does not listen");
        std::thread::sleep(Duration::from_millis(50));
    }
    lies_in(9.81, example(&place, "gravity"));
    lies_in(5.0, example(&place, "speed"));
    drop(server);
    assert_eq!(trained(&place), 12);
}

/// Four of the ten runs fail, each in its way, until there is a file `mended`.
const FOUR_FAILURES: &str = r#"
[ -e "${0%/*}/mended" ] || case $a in
    0.1) echo "no mesh" >&2; exit 3 ;;
    0.3) echo nan > "$1"; exit ;;
    0.5) printf '1.2e' > "$1"; exit ;;
    0.7) sleep 60 ;;
esac"#;

#[test]
fn failures_are_rows_with_reasons_and_are_made_again_on_request() {
    let place = exponential("failures", "timeout = \"300ms\"", FOUR_FAILURES);
    let ran = place.run(&["simulate", "study.toml"]).ends(0);
    holds(&ran.err, "4 simulator runs failed, left out of training");
    let failed = runs(&place, "failed");
    let reason = |a: f64| {
        let run = failed.iter().find(|run| run["inputs"]["a"] == a).unwrap();
        run["reason"].as_str().unwrap().to_owned()
    };
    assert_eq!(failed.len(), 4);
    holds(&reason(0.1), "exit status 3; stderr.txt ends with: no mesh");
    holds(&reason(0.3), "missing or NaN");
    holds(&reason(0.5), "`1.2e` in results.out is not a number");
    holds(&reason(0.7), "0.3 s");
    assert!(place.read("study.twostep/training.csv").lines().count() >= 7);
    let kept: Vec<_> = fs::read_dir(place.0.join("study.twostep/runs")).unwrap().collect();
    assert_eq!(kept.len(), 4, "the work folders of failed runs stay");

    let refused = place.run(&["run", "study.toml"]).ends(1);
    holds(&refused.err, "4 of 10 runs failed, more than simulator.max_failed = 0.2");
    assert_eq!(starts(&place), 10, "failed runs are not made again unasked");

    place.write("mended", "");
    let id = failed[0]["id"].as_str().unwrap();
    place.run(&["simulate", "study.toml", "--run", id]).ends(0);
    assert_eq!((starts(&place), runs(&place, "failed").len()), (11, 3));
    let again = place.run(&["simulate", "study.toml", "--run", id]).ends(2);
    holds(&again.err, "is finished, and finished runs are not repeated");
    holds(&place.run(&["simulate", "study.toml", "--run", "999"]).ends(2).err, "there is no run 999");
    place.run(&["simulate", "study.toml", "--only", "failed"]).ends(0);
    assert_eq!((starts(&place), runs(&place, "done").len()), (14, 10));
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!((starts(&place), trained(&place)), (14, 10));
}

#[test]
fn more_failures_are_allowed_where_the_study_says_so() {
    let place = exponential("allowed", "timeout = \"300ms\"\nmax_failed = 0.4", FOUR_FAILURES);
    let ran = place.run(&["run", "study.toml"]).ends(0);
    holds(&ran.err, "4 simulator runs failed, left out of training");
    assert!(!ran.err.contains("lie together"), "{}", ran.err);
    assert_eq!(trained(&place), 6);
}

#[test]
fn failures_that_lie_together_are_warned_of() {
    let fails_above = "awk -v a=\"$a\" 'BEGIN { exit a > 0.8 }' || exit 1";
    let place = exponential("cluster", "max_failed = 0.3", fails_above);
    edit(&place, "study.toml", "points = \"points.csv\"", "method = \"sobol\"\nruns = 32");
    let ran = place.run(&["run", "study.toml"]).ends(0);
    let text = ran.err.split_whitespace().collect::<Vec<_>>().join(" ");
    holds(&text, "failed runs lie together in the input space (a from 0.8");
}

#[test]
fn a_retry_uses_its_own_command() {
    let keys =
        "on_failure = \"retry\"\nattempts = 2\nwait = \"1ms\"\nretry_command = [\"sh\", \"careful.sh\", \"{results}\"]";
    let place = exponential("retry", keys, "case $a in 0.2|0.6) exit 1 ;; esac");
    place.write("careful.sh", &format!("{START}{GIVE}"));
    place.run(&["run", "study.toml"]).ends(0);
    let done = runs(&place, "done");
    let attempts = |run: &Value| run["attempts"].as_u64().unwrap();
    assert_eq!((done.len(), done.iter().map(attempts).sum::<u64>()), (10, 12));
    assert_eq!(starts(&place), 12);
}

#[test]
fn a_retry_that_keeps_failing_is_one_failed_run() {
    let keys = "on_failure = \"retry\"\nattempts = 3\nwait = \"1ms\"";
    let place = exponential("hopeless", keys, "case $a in 0.2) exit 1 ;; esac");
    let ran = place.run(&["run", "study.toml"]).ends(0);
    holds(&ran.err, "(attempt 3 of 3) at a = 0.2");
    let failed = runs(&place, "failed");
    assert_eq!((failed.len(), &failed[0]["attempts"], starts(&place)), (1, &3.into(), 12));
}

#[test]
fn an_abort_keeps_finished_runs() {
    let place = exponential("abort", "on_failure = \"abort\"", "case $a in 0.4) exit 1 ;; esac");
    edit(&place, "study.toml", "concurrency = 2", "concurrency = 1");
    let ran = place.run(&["run", "study.toml"]).ends(1);
    holds(&ran.err, "run 5 failed: the command ended with exit status 1");
    let count = |state: &str| runs(&place, state).len();
    assert_eq!((count("done"), count("failed"), count("pending"), starts(&place)), (4, 1, 5, 5));
}

#[test]
fn a_changed_simulator_is_never_mixed_silently() {
    let place = exponential("changed", "", "");
    place.run(&["run", "study.toml"]).ends(0);
    edit(&place, "sim.sh", "exp(a)", "(exp(a) + 0)");
    let refused = place.run(&["run", "study.toml"]).ends(2);
    holds(
        &refused.err.split_whitespace().collect::<Vec<_>>().join(" "),
        "changed since 10 finished runs of it were made",
    );
    assert_eq!(starts(&place), 10);
    place.run(&["simulate", "study.toml", "--changed", "keep"]).ends(0);
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(starts(&place), 10);
    edit(&place, "sim.sh", "exp(a) + 0", "exp(a) + 1");
    place.run(&["run", "study.toml"]).ends(2);
    place.run(&["simulate", "study.toml", "--changed", "rerun"]).ends(0);
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!((starts(&place), runs(&place, "done").len(), trained(&place)), (20, 10, 10));
    // Back to the simulator that was set aside: its runs are there.
    edit(&place, "sim.sh", "exp(a) + 1", "exp(a) + 0");
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(starts(&place), 20);
}

#[test]
fn a_larger_design_runs_only_its_new_points() {
    let place = exponential("larger", "", "");
    edit(&place, "study.toml", "points = \"points.csv\"", "method = \"sobol\"\nruns = 8");
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(starts(&place), 8);
    edit(&place, "study.toml", "runs = 8", "runs = 12");
    let pending = place.run(&["design", "study.toml", "--json"]).ends(0).json();
    assert_eq!(pending["pending"].as_array().unwrap().len(), 4);
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!((starts(&place), trained(&place)), (12, 12));
    holds(&place.run(&["design", "study.toml"]).ends(0).out, "every run of the design is made");
    // And back: no run is lost, none is made.
    edit(&place, "study.toml", "runs = 12", "runs = 8");
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!((starts(&place), trained(&place), runs(&place, "done").len()), (12, 8, 12));
}

#[test]
fn a_table_saves_the_command_its_runs() {
    let place = exponential("mixed", "table = \"runs.csv\"", "");
    let row = |a: f64| format!("{a},{}\n", a.exp());
    place.write("runs.csv", &format!("a,y\n{}{}{}", row(0.0), row(0.3), row(0.55)));
    place.run(&["run", "study.toml"]).ends(0);
    // Two of the ten points are in the table; its third run is one more.
    assert_eq!((starts(&place), trained(&place)), (8, 11));
}

#[test]
fn runs_made_elsewhere_come_back_with_fewer_digits() {
    let place = exponential("import", "", "");
    edit(&place, "study.toml", "points = \"points.csv\"", "method = \"random\"\nruns = 12");
    place.run(&["design", "study.toml", "--export", "pending.csv"]).ends(0);
    holds(&place.run(&["design", "study.toml", "--export", "pending.csv"]).ends(2).err, "the file is there already");
    place.write("results.csv", &filled(&place, "pending.csv", 12));
    let ran = place.run(&["import", "results.csv"]).ends(0);
    holds(&ran.out, "12 runs brought in; every run of the design is made");
    holds(&place.run(&["import", "results.csv", "study.toml"]).ends(0).out, "0 runs brought in, 12 known before");
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!((starts(&place), trained(&place), runs(&place, "done").len()), (0, 12, 12));

    let ledger = fs::read(place.0.join("study.twostep/runs.sqlite")).unwrap();
    let results = place.read("results.csv");
    let last = results.lines().last().unwrap();
    let (a, _) = last.split_once(',').unwrap();
    place.write("wrong.csv", &format!("a,y\n0.123,1.13\n{a},7\n"));
    let refused = place.run(&["import", "wrong.csv", "study.toml"]).ends(2);
    let text = refused.err.split_whitespace().collect::<Vec<_>>().join(" ");
    holds(&text, "wrong.csv, line 3: run 12 of the ledger has the same inputs and other outputs; nothing was imported");
    assert_eq!(fs::read(place.0.join("study.twostep/runs.sqlite")).unwrap(), ledger);
    holds(&place.run(&["import", "study.toml"]).ends(2).err, "this is a study, not a table");
}

#[test]
fn many_runs_are_imported_and_known_again() {
    let place = exponential("many", "", "");
    let n = 50_000;
    let row = |i: i32| format!("{:?},1.5\n", f64::from(i) / f64::from(n));
    place.write("results.csv", &format!("a,y\n{}", (0..n).map(row).collect::<String>()));
    place.run(&["import", "results.csv", "study.toml"]).ends(0);
    let again = place.run(&["import", "results.csv", "study.toml", "--json"]).ends(0).json();
    assert_eq!((&again["new"], &again["known"], &again["pending"]), (&0.into(), &n.into(), &0.into()));
}

#[test]
fn runs_are_listed_with_all_that_is_known_of_them() {
    let place = exponential("listed", "", "case $a in 0.4) exit 1 ;; esac");
    place.run(&["simulate", "study.toml"]).ends(0);
    let listed = place.run(&["runs", "study.toml", "--json"]).ends(0).json();
    let listed = listed["runs"].as_array().unwrap();
    assert_eq!(listed.len(), 10);
    for (i, run) in listed.iter().enumerate() {
        let mut keys: Vec<&String> = run.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(
            keys,
            ["attempts", "current", "id", "inputs", "outputs", "reason", "seconds", "simulator", "source", "state"]
        );
        assert_eq!(
            (&run["id"], &run["source"], &run["attempts"]),
            (&(i + 1).to_string().into(), &"design".into(), &1.into())
        );
        assert!(run["seconds"].as_f64().unwrap() > 0.0);
        let is_failed = run["inputs"]["a"] == 0.4;
        assert_eq!((run["state"] == "failed", run["reason"].is_string()), (is_failed, is_failed), "{run}");
        if !is_failed {
            let expected = run["inputs"]["a"].as_f64().unwrap().exp();
            // The script writes twelve digits.
            assert!((run["outputs"]["y"].as_f64().unwrap() / expected - 1.0).abs() < 1e-11, "{run}");
        }
    }
    let text = place.run(&["runs", "study.toml", "--state", "failed"]).ends(0).out;
    holds(&text, "9 done, 1 failed");
    holds(&text, "exit status 1");
    assert!(!text.contains("a = 0.5"), "{text}");
}

/// The study with a series of `exp(a t)` at 1, 2, 3, of which one run lacks an entry, and a number besides.
fn series(name: &str, keys: &str) -> Place {
    let place = exponential(name, keys, "");
    let outputs = "[outputs.y]\nresults = { csv = \"out.csv\", column = \"y\" }\nover = { t = [1, 3] }\n\
                   series = \"coordinate\"\n[outputs.largest]\n";
    edit(&place, "study.toml", "[outputs.y]\n", outputs);
    place.write("measurements.csv", "t,y\n1,1.6\n2,2.7\n3,4.5\n");
    let script = r#"
awk -v a="$a" 'BEGIN {
    print "t,y" > "out.csv"
    for (t = 1; t <= 3; t++) print t "," (a == 0.6 && t == 2 ? "" : sprintf("%.12g", exp(a * t))) > "out.csv"
    printf "%.12g\n", exp(a * 3)
}' > "$1"
"#;
    place.write("sim.sh", &format!("{START}{script}"));
    place
}

#[test]
fn a_series_with_a_missing_value_keeps_the_others() {
    let place = series("partial-keep", "");
    place.run(&["run", "study.toml"]).ends(0);
    let summary: Value = serde_json::from_str(&place.read("study.twostep/summary.json")).unwrap();
    let t_step = &summary["settings"][0]["t_step"];
    assert_eq!((&t_step[0]["n_rows"], &t_step[0]["n_runs"]), (&29.into(), &10.into()));
    assert_eq!((&t_step[1]["output"], &t_step[1]["n_rows"]), (&"largest".into(), &10.into()));
    let text = place.run(&["runs", "study.toml"]).ends(0).out;
    holds(&text, "series of 3, 1 missing");
    let run = runs(&place, "done").into_iter().find(|run| run["inputs"]["a"] == 0.6).unwrap();
    assert_eq!(
        (&run["outputs"]["y"]["at"], &run["outputs"]["y"]["values"][1]),
        (&[1.0, 2.0, 3.0][..].into(), &Value::Null)
    );
    assert!(run["outputs"]["largest"].is_f64());
}

#[test]
fn a_series_with_a_missing_value_fails_where_the_study_says_so() {
    let place = series("partial-fail", "partial = \"fail\"");
    place.run(&["run", "study.toml"]).ends(0);
    let failed = runs(&place, "failed");
    assert_eq!((failed.len(), trained(&place)), (1, 9));
    holds(failed[0]["reason"].as_str().unwrap(), "1 of 3 values of `y` are missing");
}

#[test]
fn a_verification_makes_runs_that_train_the_surrogate() {
    let place = exponential("verify", "", "");
    holds(
        &place.run(&["verify", "study.toml"]).ends(1).err,
        "the simulate stage is not finished for this study as it is: never run",
    );
    place.run(&["run", "study.toml"]).ends(0);
    let first = place.run(&["verify", "study.toml", "--runs", "3"]).ends(0);
    holds(&first.out, "verdict: ");
    assert_eq!((starts(&place), runs(&place, "done").len()), (13, 13));
    let verified: Value = serde_json::from_str(&place.read("study.twostep/verify.json")).unwrap();
    assert_eq!((&verified["runs"], verified["values"].as_array().unwrap().len()), (&[3, 0][..].into(), 3));
    let stale = place.run(&["verify", "study.toml"]).ends(1).err;
    holds(&stale, "the simulate stage is not finished for this study as it is: runs changed");
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!((starts(&place), trained(&place)), (13, 13));
    // Draws of the next verification are others.
    place.run(&["verify", "study.toml", "--runs", "2"]).ends(0);
    assert_eq!((starts(&place), runs(&place, "done").len()), (15, 15));
}

#[test]
fn a_verification_takes_runs_made_elsewhere() {
    let study = study("table = \"runs.csv\"");
    let place = exponential("verify-elsewhere", "", "");
    let lines = ["command", "templates", "concurrency"];
    let without: Vec<&str> = study.lines().filter(|line| !lines.iter().any(|key| line.starts_with(key))).collect();
    place.write("study.toml", &without.join("\n").replace("[design]\npoints = \"points.csv\"", ""));
    let rows: String = (0..10).map(|i| format!("{0},{1}\n", f64::from(i) / 9.0, (f64::from(i) / 9.0).exp())).collect();
    place.write("runs.csv", &format!("a,y\n{rows}"));
    place.run(&["run", "study.toml"]).ends(0);
    let text = place.run(&["verify", "study.toml"]).ends(2).err;
    holds(&text, "the study has no simulator that could be run");
    place.run(&["verify", "study.toml", "--runs", "4", "--export", "verify.csv"]).ends(0);
    let empty = place.run(&["verify", "study.toml", "--results", "verify.csv"]).ends(2).err;
    holds(&empty, "verify.csv");
    place.write("verified.csv", &filled(&place, "verify.csv", 12));
    holds(&place.run(&["verify", "study.toml", "--results", "verified.csv"]).ends(0).out, "4 runs at likely");
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!((starts(&place), trained(&place)), (0, 14));
}

/// Waits until the simulator was started `n` times.
fn await_starts(place: &Place, n: usize) {
    let patience = Instant::now() + Duration::from_secs(60);
    while starts(place) < n {
        assert!(Instant::now() < patience, "the simulator does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn of_two_processes_one_works_and_the_other_says_so() {
    let place = exponential("two", "", "while [ ! -e \"${0%/*}/go\" ]; do sleep 0.02; done");
    let first = place.command(&["run", "study.toml"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    await_starts(&place, 1);
    let second = place.run(&["run", "study.toml"]).ends(1);
    holds(&second.err, "study.twostep: another twostep is working in this folder");
    // Looking is allowed.
    assert!(!runs(&place, "pending").is_empty());
    place.write("go", "");
    Ran::from(first.wait_with_output().unwrap()).ends(0);
    assert_eq!((starts(&place), trained(&place)), (10, 10));
}

#[test]
fn a_full_disk_loses_no_finished_run() {
    let place = exponential("full", "", "");
    let outputs = "[outputs.y]\nresults = { csv = \"out.csv\", column = \"y\" }\nover = { t = [1, 100] }\n\
                   series = \"coordinate\"\n";
    edit(&place, "study.toml", "[outputs.y]\n", outputs);
    place.write("measurements.csv", "t,y\n1,0.9\n2,0.8\n");
    let script = r#"awk -v a="$a" 'BEGIN { print "t,y"; for (t = 1; t <= 100; t++) printf "%d,%.12g\n", t, exp(-a * t / 9) }' > out.csv"#;
    place.write("sim.sh", &format!("{START}{script}\n"));
    // No file may have more blocks, of 512 bytes; the room grows until it is enough.
    let limited = |blocks: usize| {
        let line = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" simulate study.toml");
        let ran = Command::new("sh").args(["-c", &line, env!("CARGO_BIN_EXE_twostep")]).current_dir(&place.0).output();
        Ran::from(ran.unwrap())
    };
    let (mut blocks, mut done, mut spare, mut stopped_midway) = (32, 0, 0, false);
    loop {
        let ran = limited(blocks);
        if ran.code == Some(0) {
            break;
        }
        let ran = ran.ends(1);
        holds(&ran.err, "runs.sqlite");
        let finished = runs(&place, "done").len();
        assert!(done <= finished, "a finished run is gone");
        // At most the two that were running when the room was used up may have to be made again.
        let unfinished = starts(&place) - finished;
        assert!(unfinished <= spare + 2, "{unfinished} runs were made for nothing, {spare} of them before");
        (done, spare) = (finished, unfinished);
        stopped_midway |= 0 < done && done < 10;
        blocks += blocks / 4;
    }
    assert!(stopped_midway, "the room was never used up between two runs");
    assert_eq!(runs(&place, "done").len(), 10);
    assert!(starts(&place) <= 10 + spare, "a finished run was made again");
}

#[test]
fn a_damaged_ledger_is_refused_and_left_as_it_is() {
    let place = exponential("damaged", "", "");
    place.run(&["run", "study.toml"]).ends(0);
    let file = place.0.join("study.twostep/runs.sqlite");
    let whole = fs::read(&file).unwrap();
    let overwritten = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at..at + 200].fill(0xA5);
        bytes
    };
    let damaged =
        [overwritten(0), overwritten(4096), overwritten(whole.len() - 4096), whole[..whole.len() / 2].to_vec()];
    for (i, bytes) in damaged.iter().enumerate() {
        fs::write(&file, bytes).unwrap();
        place.write("points.csv", &format!("{TEN}0.95\n"));
        for command in ["run", "simulate", "runs", "design"] {
            let ran = place.run(&[command, "study.toml"]).ends(1);
            holds(&ran.err.split_whitespace().collect::<Vec<_>>().join(" "), "the run ledger is damaged");
            assert!(fs::read(&file).unwrap() == *bytes, "damage {i}: `{command}` changed the ledger");
        }
        place.write("more.csv", "a,y\n0.25,1.28\n");
        place.run(&["import", "more.csv", "study.toml"]).ends(1);
        assert!(fs::read(&file).unwrap() == *bytes, "damage {i}: `import` changed the ledger");
    }
    assert_eq!(starts(&place), 10);
    fs::write(&file, &whole).unwrap();
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!(starts(&place), 11);
}

#[test]
fn results_as_windows_writes_them_are_read() {
    let place = exponential("windows", "table = \"runs.csv\"", "");
    edit(&place, "study.toml", "[outputs.y]\n", "[outputs.y]\nresults = { csv = \"out.csv\", column = \"y\" }\n");
    let script = r#"awk -v a="$a" 'BEGIN { text = sprintf("%.12f", exp(a)); sub(/[.]/, ",", text); printf "\357\273\277note;y\r\n\"first\";%s\r\n", text }' > out.csv"#;
    place.write("sim.sh", &format!("{START}{script}\n"));
    place.write("runs.csv", "\u{feff}a;y\r\n0,3;1,349858807576\r\n");
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!((starts(&place), trained(&place)), (9, 10));
    for run in runs(&place, "done") {
        let (a, y) = (run["inputs"]["a"].as_f64().unwrap(), run["outputs"]["y"].as_f64().unwrap());
        // Twelve decimals were written.
        assert!((y - a.exp()).abs() <= 1e-12, "{run}");
    }
}

#[test]
fn a_method_that_is_added_to_a_calibration_starts_no_simulator() {
    let place = exponential("calibrate", "", "");
    let call = |t_trials: &str| {
        let arguments = ["calibrate", "study.toml", "--t-trials", t_trials, "--i-trials", "2"];
        place.run(&arguments).ends(0)
    };
    call("2");
    let first = starts(&place);
    assert!(first > 0);
    edit(&place, "study.toml", "methods = [\"point\"]", "methods = [\"point\", \"e-lik\"]");
    call("2");
    assert_eq!(starts(&place), first);
    // Another T-trial makes runs of its own and repeats none.
    call("3");
    let log = place.read("log");
    let mut inputs: Vec<&str> = log.lines().collect();
    assert!(inputs.len() > first);
    inputs.sort_unstable();
    inputs.dedup();
    assert_eq!(inputs.len(), starts(&place), "a run was made twice");
}

/// Trials that end early must leave alone what the simulators of others still do.
#[test]
fn trials_at_once_do_not_end_each_others_runs() {
    let place = exponential("at_once", "", "sleep 0.0$(($$ % 7))");
    edit(&place, "study.toml", "concurrency = 2", "concurrency = 5");
    let arguments = ["calibrate", "study.toml", "--t-trials", "6", "--i-trials", "1", "--threads", "4"];
    place.run(&arguments).ends(0);
    assert_eq!(runs(&place, "failed"), [Value::Null; 0]);
    // Ten of each T-trial and one of its I-trial.
    assert_eq!((runs(&place, "done").len(), starts(&place)), (66, 66));
}

#[test]
fn results_that_could_not_be_read_are_read_again() {
    let place = series("reread", "partial = \"fail\"");
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!((runs(&place, "failed").len(), trained(&place), starts(&place)), (1, 9, 10));
    edit(&place, "study.toml", "partial = \"fail\"", "partial = \"keep\"");
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!((runs(&place, "failed").len(), trained(&place), starts(&place)), (0, 10, 10));
    // And the other way round, without a word from the simulator.
    edit(&place, "study.toml", "partial = \"keep\"", "partial = \"fail\"");
    place.run(&["run", "study.toml"]).ends(0);
    assert_eq!((trained(&place), starts(&place)), (9, 10));
}

#[test]
fn what_failed_before_a_correction_is_not_kept_in_its_place() {
    let place = exponential("corrected", "", "exit 1");
    place.run(&["simulate", "study.toml"]).ends(1);
    place.write("sim.sh", &format!("{START}{GIVE}"));
    place.run(&["simulate", "study.toml"]).ends(0);
    place.write("sim.sh", &format!("{START}{GIVE}# a comment\n"));
    holds(&place.run(&["simulate", "study.toml"]).ends(2).err, "changed since 10 finished runs of it were made");
    place.run(&["simulate", "study.toml", "--changed", "keep"]).ends(0);
    assert_eq!((runs(&place, "done").len(), runs(&place, "failed").len(), starts(&place)), (10, 0, 20));
}

#[test]
fn a_table_that_contradicts_the_simulator_is_refused() {
    let place = exponential("contradiction", "table = \"old.csv\"", "");
    place.write("old.csv", "a,y\n0.95,2.585709659\n");
    place.run(&["simulate", "study.toml"]).ends(0);
    place.write("old.csv", "a,y\n0.95,2.585709659\n0,1\n");
    place.run(&["simulate", "study.toml"]).ends(0);
    assert_eq!(trained_lines(&place), 11);
    place.write("old.csv", "a,y\n0.5,99\n");
    let refused = place.run(&["simulate", "study.toml"]).ends(2).err;
    holds(&refused, "old.csv, line 2: the simulator gave other outputs at the same inputs");
}

/// Rows of the training set, below its header.
fn trained_lines(place: &Place) -> usize {
    place.read("study.twostep/training.csv").lines().count() - 1
}

#[test]
fn a_ledger_that_has_gone_is_missed() {
    let place = exponential("gone", "", "");
    place.run(&["simulate", "study.toml"]).ends(0);
    fs::remove_file(place.0.join("study.twostep/runs.sqlite")).unwrap();
    holds(&place.run(&["simulate", "study.toml"]).ends(1).err, "the run ledger is gone or empty");
    assert_eq!(starts(&place), 10);
}

#[test]
fn a_larger_latin_hypercube_says_what_it_leaves_unused() {
    let place = exponential("hypercube", "", "");
    edit(&place, "study.toml", "points = \"points.csv\"", "method = \"latin-hypercube\"\nruns = 6");
    place.run(&["simulate", "study.toml"]).ends(0);
    edit(&place, "study.toml", "runs = 6", "runs = 8");
    let larger = place.run(&["simulate", "study.toml"]).ends(0);
    holds(&larger.err, "6 finished runs of an earlier design not used");
    assert_eq!(starts(&place), 14);
}

#[test]
fn another_seed_makes_the_stages_of_any_simulator_stale() {
    let place = exponential("seed", "", "");
    place.run(&["run", "study.toml"]).ends(0);
    edit(&place, "study.toml", "seed = 3", "seed = 4");
    let again = place.run(&["run", "study.toml"]).ends(0);
    holds(&again.out, "interval (computed)");
    assert_eq!(starts(&place), 10);
}

#[test]
fn outputs_in_another_order_are_another_simulator() {
    let place = exponential("order", "", "");
    edit(&place, "study.toml", "[outputs.y]\n", "[outputs.y]\n[outputs.z]\n");
    place.write("sim.sh", &format!("{START}printf '1\\n2\\n' > \"$1\"\n"));
    place.run(&["simulate", "study.toml"]).ends(0);
    edit(&place, "study.toml", "[outputs.y]\n[outputs.z]\n", "[outputs.z]\n[outputs.y]\n");
    holds(&place.run(&["simulate", "study.toml"]).ends(2).err, "outputs: results changed since 10 finished runs");
}

#[test]
fn settings_of_a_sweep_have_simulators_of_their_own() {
    let place = exponential("siblings", "environment = { SHIFT = \"0\" }", "");
    let study = place.read("study.toml") + "[sweep]\n\"simulator.environment.SHIFT\" = [\"0\", \"1\"]\n";
    place.write("study.toml", &study);
    place.run(&["simulate", "study.toml"]).ends(0);
    place.run(&["simulate", "study.toml"]).ends(0);
    assert_eq!((starts(&place), runs(&place, "done").len()), (20, 20));
    holds(&place.run(&["status", "study.toml"]).ends(0).out, "fresh");
}

#[test]
fn a_run_in_table_and_ledger_counts_once() {
    let place = exponential("both", "table = \"old.csv\"", "");
    place.write("old.csv", "a,y\n0.95,2.585709659\n");
    place.run(&["import", "old.csv", "study.toml"]).ends(0);
    place.run(&["simulate", "study.toml"]).ends(0);
    assert_eq!(trained_lines(&place), 11);
}

#[test]
fn a_simulator_that_is_edited_meanwhile_is_noticed() {
    let place = exponential("edited", "", "[ $(wc -l < \"${0%/*}/log\") -ge 5 ] && echo '# later' >> \"$0\"");
    let stopped = place.run(&["simulate", "study.toml"]).ends(1);
    holds(&stopped.err, "files of the simulator changed while it was run");
    let done = runs_of_all(&place, "done");
    assert!((3..=5).contains(&done), "{done}");
    holds(&place.run(&["simulate", "study.toml"]).ends(2).err, &format!("changed since {done} finished runs"));
}

/// How many runs of any simulator are in a state.
fn runs_of_all(place: &Place, state: &str) -> usize {
    let listed = place.run(&["runs", "study.toml", "--all", "--json"]).ends(0).json();
    listed["runs"].as_array().unwrap().iter().filter(|run| run["state"] == state).count()
}
