//! Functions of Python files as their users meet them: what they may return, how they fail, and what becomes of their processes.

// A helper that cannot go on has failed its test.
#![allow(clippy::unwrap_used)]
#![cfg(unix)]

mod common;
#[path = "common/exponential.rs"]
mod exponential;

use common::{Place, Ran, holds};
use exponential::{edit, runs, starts};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The beginning of every model: a line with its input in a log beside it for each call.
const START: &str = "
import math, os, sys, time
def run(a):
    with open('log', 'a') as log:
        log.write(f'{a}\\n')
";

/// A study of `exp(a)` by a Python function, with these further keys of the simulator.
fn study(keys: &str) -> String {
    exponential::study(&format!("python = \"model.py:run\"\n{keys}"))
}

/// A folder with a study of a function that does `before`, indented by four, and then gives the value.
fn exponential(name: &str, keys: &str, before: &str) -> Place {
    let place = exponential::place(name, &study(keys));
    place.write("model.py", &format!("{START}{before}\n    return math.exp(a)\n"));
    place
}

/// The command with the interpreter of the tests.
fn command(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    match std::env::var_os("TWOSTEP_TEST_PYTHON") {
        Some(python) => command.env("TWOSTEP_PYTHON", python),
        None => command.env_remove("TWOSTEP_PYTHON"),
    };
    command
}

fn run(place: &Place, arguments: &[&str]) -> Ran {
    Ran::from(command(place, arguments).output().unwrap())
}

/// The reason why the run at `a` failed.
#[track_caller]
fn reason(failed: &[Value], a: f64) -> String {
    let run = failed.iter().find(|run| run["inputs"]["a"] == a).unwrap_or_else(|| panic!("no run failed at {a}"));
    run["reason"].as_str().unwrap().to_owned()
}

/// A text in one line, however it was wrapped.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Processes of workers that were started in a place and have not ended.
#[cfg(target_os = "linux")]
fn alive(place: &Place) -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let is_own = |folder: fs::DirEntry| {
        let folder = folder.path();
        let state = fs::read_to_string(folder.join("stat")).unwrap_or_default();
        // A process that has ended and waits for its parent is none.
        fs::read_link(folder.join("cwd")).is_ok_and(|cwd| cwd == place.0) && !state.contains(") Z ")
    };
    entries.filter_map(|entry| is_own(entry).then_some(())).count()
}

/// Waits until `holds` is true; a minute is long enough on any machine.
#[track_caller]
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_example_of_a_function_finds_its_truth() {
    let place = Place::new("example-function");
    for file in ["study.toml", "cooling.py", "measurements.csv"] {
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/function").join(file);
        fs::copy(source, place.0.join(file)).unwrap();
    }
    run(&place, &["run", "study.toml"]).ends(0);
    let summary: Value = serde_json::from_str(&place.read("study.twostep/summary.json")).unwrap();
    let setting = &summary["settings"][0];
    for (unknown, truth) in [("rate", 0.05), ("surroundings", 20.0)] {
        let own = &setting["methods"][setting["answer"].as_str().unwrap()]["unknowns"][unknown];
        let (low, high) = (own["q05"].as_f64().unwrap(), own["q95"].as_f64().unwrap());
        assert!(low < truth && truth < high, "{unknown}: {truth} is not in [{low}, {high}]");
    }
    holds(&place.read("study.twostep/methods.md"), "the Python function cooling.py:run");
}

#[test]
fn numbers_are_those_of_python_to_the_last_bit() {
    let place = exponential("exact", "", "    print('to nowhere')");
    let ran = run(&place, &["run", "study.toml"]).ends(0);
    assert!(!ran.out.contains("nowhere") && !ran.err.contains("nowhere"), "what it prints is not shown");
    let done = runs(&place, "done");
    assert_eq!((done.len(), starts(&place)), (10, 10));
    for run in &done {
        let (a, y) = (run["inputs"]["a"].as_f64().unwrap(), run["outputs"]["y"].as_f64().unwrap());
        // Both call the C library's function; the log has what the function was given.
        assert_eq!(y.to_bits(), a.exp().to_bits(), "{a}");
    }
    let mut given: Vec<f64> = place.read("log").lines().map(|line| line.parse().unwrap()).collect();
    given.sort_by(f64::total_cmp);
    assert_eq!(given, (0..10).map(|i| format!("0.{i}").parse::<f64>().unwrap()).collect::<Vec<_>>());
    run(&place, &["run", "study.toml"]).ends(0);
    assert_eq!(starts(&place), 10, "finished runs are not repeated");
}

#[test]
fn several_outputs_and_series_are_read_in_every_form() {
    let study = study("").replace(
        "[outputs.y]\n",
        "[outputs.y]\n[outputs.s]\nover = { t = [0, 2] }\nseries = \"coordinate\"\nat = [0, 1, 2]\n",
    );
    let forms = [
        "return {'y': a, 's': [a, a + 1, a + 2]}",
        "return a, (a, a + 1, a + 2)",
        "return {'s': [a + 2, a + 1, a], 't': [2, 1, 0], 'y': a, 'unused': 'x'}",
        "return [[a], Series([a, a + 1, a + 2], {'t': [0, 1, 2]})]",
    ];
    let mut first = None;
    for form in forms {
        let place = exponential::place("forms", &study);
        place.write("measurements.csv", "t,y,s\n,0.3,\n1,,1.3\n");
        let class = "class Series:\n    def __init__(self, values, over): self.values, self.over = values, over\n";
        place.write("model.py", &format!("{class}def run(a):\n    {form}\n"));
        run(&place, &["simulate", "study.toml"]).ends(0);
        let training = place.read("study.twostep/training.csv");
        assert_eq!(training.lines().count(), 1 + 40, "{form}: {training}");
        let mut lines: Vec<&str> = training.lines().collect();
        lines.sort_unstable();
        let sorted = lines.join("\n");
        assert_eq!(*first.get_or_insert(sorted.clone()), sorted, "{form}");
    }
}

/// Most of the ten runs fail, each in its way.
const FAILURES: &str = "
    if a == 0.1: raise ValueError('no mesh')
    if a == 0.2: return float('nan')
    if a == 0.3: return [1.0, 2.0]
    if a == 0.4: os.kill(os.getpid(), 9)
    if a == 0.5: print('out of paper', file=sys.stderr); os._exit(3)
    if a == 0.6: sys.exit(4)
    if a == 0.7: time.sleep(1000)
    if a == 0.8: return None
    if a == 0.9:
        os.write(1, b'{\"readings\": [[[], [7.0]]]}\\n')
        print('{\"readings\": [[[], [7.0]]]}')
        print(input())
";

#[test]
fn failures_are_rows_with_reasons_and_are_made_again_on_request() {
    let place = exponential("failures", "timeout = \"1s\"\nmax_failed = 0.95", FAILURES);
    let ran = run(&place, &["simulate", "study.toml"]).ends(0);
    holds(&ran.err, "9 simulator runs failed, left out of training");
    let failed = runs(&place, "failed");
    assert_eq!((failed.len(), starts(&place)), (9, 10));
    for (a, expected) in [
        (0.1, "ValueError: no mesh"),
        (0.2, "there is no value of `y`"),
        (
            0.3,
            "returned 2 values of `y`, which is a single number; declare it as a series with over, or return one number",
        ),
        (0.4, "signal 9 (kill, as when the memory is exhausted) ended the Python process; it wrote no message"),
        (0.5, "the Python process ended with exit status 3; stderr.txt ends with: out of paper"),
        (0.6, "SystemExit: 4"),
        (0.7, "the function took longer than its timeout of 1 s"),
        (0.8, "returned NoneType None as `y`, which is no number"),
        (0.9, "EOFError: EOF when reading a line"),
    ] {
        assert_eq!(reason(&failed, a), expected);
    }
    // What a failed run printed is kept, with where it failed.
    let folder = |a: f64| {
        let run = failed.iter().find(|run| run["inputs"]["a"] == a).unwrap();
        format!("study.twostep/runs/run.{}/stderr.txt", run["id"].as_str().unwrap())
    };
    holds(&place.read(&folder(0.1)), "in run\n    if a == 0.1: raise ValueError('no mesh')");
    holds(&place.read(&folder(0.9)), "[7.0]");

    edit(&place, "model.py", "if a == 0.1", "if a == 1.1");
    let changed = run(&place, &["simulate", "study.toml", "--changed", "rerun"]).ends(0);
    holds(&changed.err, "simulator runs failed");
    assert!(runs(&place, "done").iter().any(|run| run["inputs"]["a"] == 0.1));
}

#[test]
fn a_crash_names_the_line_of_the_function() {
    let place = exponential("crash", "", "    if a == 0.4: import ctypes; ctypes.string_at(0)");
    run(&place, &["simulate", "study.toml"]).ends(0);
    let failed = runs(&place, "failed");
    assert_eq!((failed.len(), runs(&place, "done").len()), (1, 9));
    let reason = reason(&failed, 0.4);
    holds(&reason, "signal 11 (segmentation fault) ended the Python process; stderr.txt ends with: File ");
    assert!(reason.ends_with("/model.py\", line 6 in run"), "{reason}");
}

#[test]
fn a_failed_run_is_made_again_without_its_old_words() {
    let fails = "    if a == 0.1 and not os.path.exists('mended'): raise ValueError('no mesh')";
    let place = exponential("again", "", fails);
    run(&place, &["simulate", "study.toml"]).ends(0);
    assert_eq!(runs(&place, "failed").len(), 1);
    place.write("mended", "");
    run(&place, &["simulate", "study.toml", "--only", "failed"]).ends(0);
    assert_eq!((runs(&place, "failed").len(), runs(&place, "done").len(), starts(&place)), (0, 10, 11));
    let left = fs::read_dir(place.0.join("study.twostep/runs")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "the folder of the failed attempt has gone");
}

#[test]
fn a_retry_comes_from_a_new_process_where_the_old_one_has_ended() {
    let keys = "on_failure = \"retry\"\nattempts = 2\nwait = \"1ms\"";
    let place = exponential("retry", keys, "    if a == 0.2 and open('log').read().count('0.2') == 1: os.abort()");
    run(&place, &["simulate", "study.toml"]).ends(0);
    assert_eq!((runs(&place, "done").len(), starts(&place)), (10, 11));
}

#[test]
fn as_many_processes_as_runs_at_once_and_no_more() {
    // Each call waits until as many are under way as there may be, so that they must be at once.
    let meet = "
    open(f'in.{os.getpid()}', 'w').close()
    patience = time.monotonic() + 30
    while sum(name.startswith('in.') for name in os.listdir('.')) < 4:
        if time.monotonic() > patience: raise RuntimeError('alone')
        time.sleep(0.005)
    open('pids', 'a').write(f'{os.getpid()}\\n')";
    let place = exponential("pool", "", meet);
    edit(&place, "study.toml", "concurrency = 2", "concurrency = 4");
    run(&place, &["simulate", "study.toml"]).ends(0);
    assert_eq!((runs(&place, "done").len(), starts(&place)), (10, 10));
    let mut pids: Vec<String> = place.read("pids").lines().map(str::to_owned).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 4, "ten runs by four processes");
}

#[test]
fn trials_of_a_calibration_share_their_processes() {
    let place = exponential("calibrate", "", "    open('pids', 'a').write(f'{os.getpid()}\\n')");
    let arguments = ["calibrate", "study.toml", "--t-trials", "3", "--i-trials", "1", "--threads", "2"];
    run(&place, &arguments).ends(0);
    let text = place.read("pids");
    let mut pids: Vec<&str> = text.lines().collect();
    assert_eq!(pids.len(), 33, "ten of each T-trial and one of its I-trial");
    pids.sort_unstable();
    pids.dedup();
    assert!(pids.len() <= 2, "{pids:?}");
}

/// Studies that no run can be made of, each with what is said.
#[test]
fn what_cannot_be_called_is_said_once_and_no_run_failed() {
    for (model, expected) in [
        ("def run(a)\n", "model.py cannot be loaded: SyntaxError"),
        (
            "import no_such_module\ndef run(a): return a\n",
            "model.py cannot be loaded: ModuleNotFoundError: No module named 'no_such_module' (model.py, line 1: import no_such_module)",
        ),
        ("def run(a): return a\ndel run\n", "model.py has no function run"),
        ("run = 3\n", "model.py has a int as run, not a function"),
        ("def run(b): return b\n", "run(b) cannot be called with a: missing a required argument: 'b'"),
        ("def run(a, b): return b\n", "run(a, b) cannot be called with a: missing a required argument: 'b'"),
        (
            "import sys\ndef run(a): return a\nsys.exit(1)\n",
            "model.py cannot be loaded: SystemExit: 1 (model.py, line 3: sys.exit(1))",
        ),
        (
            "import os\ndef run(a): return a\nos.write(2, b'bye')\nos._exit(5)\n",
            "Python ended with exit status 5 while model.py was loaded; its last words: bye",
        ),
    ] {
        let place = exponential("refused", "", "");
        place.write("model.py", model);
        let ran = run(&place, &["run", "study.toml"]).ends(1);
        let err = unwrapped(&ran.err);
        // Long words are broken.
        holds(&err.replace(' ', ""), &expected.replace(' ', ""));
        holds(&err, "correct model.py and run again: finished runs are kept");
        assert_eq!(err.matches("error:").count(), 1, "{err}");
        assert_eq!((runs(&place, "failed").len(), runs(&place, "pending").len()), (0, 10), "{model}");
        place.write("model.py", "def run(a): return a\n");
        run(&place, &["simulate", "study.toml"]).ends(0);
        assert_eq!(runs(&place, "done").len(), 10);
    }
}

#[test]
fn the_interpreter_is_the_one_that_is_named() {
    let place = exponential(
        "interpreter",
        "interpreter = \"bin/python\"",
        "    open('used', 'a').write(os.environ.get('WRAPPED', 'no'))",
    );
    fs::create_dir(place.0.join("bin")).unwrap();
    let python = std::env::var("TWOSTEP_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    place.write("bin/python", &format!("#!/bin/sh\nWRAPPED=yes exec {python} \"$@\"\n"));
    Command::new("chmod").args(["+x", "bin/python"]).current_dir(&place.0).status().unwrap();
    run(&place, &["simulate", "study.toml"]).ends(0);
    assert_eq!(place.read("used"), "yes".repeat(10));
    // Without a name, that of the active virtual environment; the variable of our own comes first.
    edit(&place, "study.toml", "interpreter = \"bin/python\"\n", "");
    for (variable, value) in [("VIRTUAL_ENV", place.0.clone()), ("TWOSTEP_PYTHON", place.0.join("bin/python"))] {
        let _ = fs::remove_file(place.0.join("used"));
        edit(&place, "model.py", "def run", "# \ndef run");
        let mut command = place.command(&["simulate", "study.toml", "--changed", "rerun"]);
        command.env_remove("TWOSTEP_PYTHON").env_remove("VIRTUAL_ENV").env(variable, value);
        Ran::from(command.output().unwrap()).ends(0);
        assert_eq!(place.read("used"), "yes".repeat(10), "{variable}");
    }
    // None at all.
    edit(&place, "model.py", "def run", "# \ndef run");
    let mut command = place.command(&["simulate", "study.toml", "--changed", "rerun"]);
    command.env_remove("TWOSTEP_PYTHON").env_remove("VIRTUAL_ENV").env("PATH", place.0.join("nothing"));
    let none = Ran::from(command.output().unwrap()).ends(1);
    holds(&unwrapped(&none.err), "there is no Python to run model.py with");
    assert!(runs(&place, "failed").is_empty());
}

#[test]
fn a_function_finds_its_neighbours() {
    let place = exponential("neighbours", "", "");
    // A package with a relative import, a module beside the file, and processes of its own that find the function again.
    fs::create_dir_all(place.0.join("models/beam")).unwrap();
    place.write("models/beam/__init__.py", "");
    place.write("models/beam/inner.py", "def square(a): return a * a\n");
    place.write("models/beam/beside.py", "OFFSET = 1\n");
    place.write(
        "models/beam/model.py",
        "from .inner import square\nimport beside, multiprocessing, os\n\ndef one(a): return square(a) + beside.OFFSET\n\n\
         def run(a):\n    assert __name__ == 'beam.model', __name__\n    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        \
         return pool.map(one, [a])[0]\n",
    );
    edit(&place, "study.toml", "model.py:run", "models/beam/model.py:run");
    run(&place, &["simulate", "study.toml"]).ends(0);
    for run in runs(&place, "done") {
        let a = run["inputs"]["a"].as_f64().unwrap();
        assert_eq!(run["outputs"]["y"].as_f64().unwrap(), a * a + 1.0);
    }
    assert_eq!(runs(&place, "done").len(), 10);
}

#[test]
fn an_edited_function_is_never_mixed_silently() {
    let place = exponential("changed", "", "");
    run(&place, &["run", "study.toml"]).ends(0);
    // As long as before, and within the same second: what Python cached of the file looks like it.
    edit(&place, "model.py", "math.exp(a)", "math.cos(a)");
    let refused = run(&place, &["run", "study.toml"]).ends(2);
    holds(&unwrapped(&refused.err), "simulator.python: model.py changed since 10 finished runs of it were made");
    assert_eq!(starts(&place), 10);
    run(&place, &["simulate", "study.toml", "--changed", "rerun"]).ends(0);
    assert_eq!(starts(&place), 20);
    let zero = runs(&place, "done").into_iter().find(|run| run["inputs"]["a"] == 0.5).unwrap();
    assert_eq!(zero["outputs"]["y"].as_f64().unwrap(), 0.5_f64.cos());
    edit(&place, "model.py", "math.cos(a)", "math.exp(a)");
    run(&place, &["run", "study.toml"]).ends(0);
    assert_eq!(starts(&place), 20, "the runs of the function as it was are there");
}

#[test]
fn a_function_that_is_edited_meanwhile_is_noticed() {
    let edits = "    if open('log').read().count('\\n') >= 5: open(__file__, 'a').write('# later\\n')";
    let place = exponential("edited", "", edits);
    let stopped = run(&place, &["simulate", "study.toml"]).ends(1);
    holds(&stopped.err, "files of the simulator changed while it was run");
    holds(&run(&place, &["simulate", "study.toml"]).ends(2).err, "finished runs of it were made");
}

/// A model whose runs past the third wait for good and start a process that ignores TERM, until there is a file `go`. Runs are begun in
/// the order of the design; how many calls there were before could not tell: another process calls meanwhile.
#[cfg(target_os = "linux")]
const STUCK: &str = "
    if a > 0.25 and not os.path.exists('go'):
        import subprocess
        subprocess.Popen(['sh', '-c', 'trap : TERM; while :; do sleep 1; done'])
        open('stuck', 'a').write('x')
        time.sleep(1000)";

#[cfg(target_os = "linux")]
#[test]
fn an_interruption_keeps_finished_runs_and_leaves_no_process() {
    let place = exponential("interrupted", "", STUCK);
    let child =
        command(&place, &["simulate", "study.toml"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stuck = || fs::read_to_string(place.0.join("stuck")).is_ok_and(|text| text.len() == 2);
    wait_until("two runs are under way", stuck);
    let pid = child.id().to_string();
    Command::new("kill").args(["-INT", &pid]).status().unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap()).ends(130);
    holds(&ran.err, "interrupted");
    assert_eq!(alive(&place), 0, "nothing is left running");
    assert_eq!((runs(&place, "done").len(), runs(&place, "pending").len(), runs(&place, "failed").len()), (3, 7, 0));
    assert_eq!(starts(&place), 5);
    place.write("go", "");
    run(&place, &["simulate", "study.toml"]).ends(0);
    assert_eq!((runs(&place, "done").len(), starts(&place)), (10, 12), "only what was not finished is made again");
}

#[cfg(target_os = "linux")]
#[test]
fn processes_end_with_a_command_that_is_killed() {
    let place = exponential("killed", "", STUCK);
    let mut child =
        command(&place, &["simulate", "study.toml"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let stuck = || fs::read_to_string(place.0.join("stuck")).is_ok_and(|text| text.len() == 2);
    wait_until("two runs are under way", stuck);
    child.kill().unwrap();
    child.wait().unwrap();
    // The workers notice by themselves; a child of theirs that ignores TERM is ended by whoever goes on.
    let workers = || {
        let own = |text: &[u8]| text.windows(8).any(|part| part == b"model.py");
        let entries = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let here = entries.filter(|path| fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == place.0));
        here.filter(|path| own(&fs::read(path.join("cmdline")).unwrap_or_default())).count()
    };
    wait_until("the workers end by themselves", || workers() == 0);
    place.write("go", "");
    run(&place, &["simulate", "study.toml"]).ends(0);
    assert_eq!(alive(&place), 0, "nothing is left running");
    assert_eq!((runs(&place, "done").len(), starts(&place)), (10, 12), "finished runs were kept");
}

#[cfg(target_os = "linux")]
#[test]
fn a_timeout_ends_what_the_function_started() {
    let before = "
    if a == 0.3:
        import subprocess
        subprocess.Popen(['sleep', '1000'])
        time.sleep(1000)";
    let place = exponential("timeout", "timeout = \"500ms\"", before);
    run(&place, &["simulate", "study.toml"]).ends(0);
    assert_eq!(alive(&place), 0, "nothing is left running");
    assert_eq!(reason(&runs(&place, "failed"), 0.3), "the function took longer than its timeout of 0.5 s");
    assert_eq!(runs(&place, "done").len(), 9);
}
