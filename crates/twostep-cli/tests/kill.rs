//! A study that is killed with -9 again and again loses no run, repeats none that was finished, and leaves no process behind.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const RUNS: usize = 200;

/// By the number of the run: crashes, hangs, hangs and ignores TERM, NaN, half a file, children of its own in the group and
/// outside it, and mostly a value after a while.
const SIMULATOR: &str = r#"#!/bin/sh
case $(($1 % 25)) in
    0) exit 3 ;;
    1) kill -9 $$ ;;
    2) sleep 1000 ;;
    3) echo nan > "$3" ;;
    4) printf '0.1' > "$3"; exit 1 ;;
    5) sleep 1000 & echo 5 > "$3" ;;
    6) setsid sleep 1000 & echo 6 > "$3" ;;
    7) (trap '' TERM; sleep 1000) & sleep 0.02; echo 7 > "$3" ;;
    *) sleep 0.0$(($1 % 6)); echo "$1.5" > "$3" ;;
esac
"#;

const STUDY: &str = r#"
[simulator]
command = ["./model.sh", "{id}", "{params}", "{results}"]
environment = { TWOSTEP_KILL_TEST = "NAME" }
timeout = "200ms"
concurrency = 8
[unknowns.x]
range = [0, 1]
[design]
runs = 200
[surrogate]
kind = "pce"
degree = 1
[measurements]
noise = { sd = 0.1 }
"#;

/// Processes whose environment has this variable.
fn alive(variable: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let marked = entries.map(|entry| entry.path()).filter(|path| {
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        // A process that has ended and waits for its parent is none.
        let state = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|v| v == variable.as_bytes()) && !state.contains(") Z ")
    });
    marked.map(|path| std::fs::read_to_string(path.join("cmdline")).unwrap_or_default()).collect()
}

fn twostep(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twostep"));
    command.args(arguments).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// State, number of attempts and outputs of each run by its number.
fn runs(folder: &Path) -> BTreeMap<String, (String, u64, String)> {
    let output = twostep(folder, &["runs", "study.toml", "--json"]).stdout(Stdio::piped()).output().unwrap();
    let Ok(all) = serde_json::from_slice::<Value>(&output.stdout) else { return BTreeMap::new() };
    let entry = |run: &Value| {
        let text = |key: &str| run[key].as_str().unwrap_or_default().to_owned();
        (text("id"), (text("state"), run["attempts"].as_u64().unwrap(), run["outputs"].to_string()))
    };
    all["runs"].as_array().unwrap().iter().map(entry).collect()
}

fn kill_and_restart(name: &str, kills: u64) {
    let folder: PathBuf = std::env::temp_dir().join(format!("twostep-kill-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let marker = format!("{name}-{}", std::process::id());
    std::fs::write(folder.join("study.toml"), STUDY.replace("NAME", &marker)).unwrap();
    std::fs::write(folder.join("model.sh"), SIMULATOR).unwrap();
    std::fs::set_permissions(folder.join("model.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();

    let variable = format!("TWOSTEP_KILL_TEST={marker}");
    let mut finished: BTreeMap<String, (String, u64, String)> = BTreeMap::new();
    let mut moment = 1_u64;
    for _ in 0..kills {
        let mut child = twostep(&folder, &["simulate", "study.toml"]).spawn().unwrap();
        // A linear congruential sequence: moments between 5 and 260 ms, the same every time.
        moment = moment.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(5 + (moment >> 33) % 256));
        child.kill().unwrap();
        child.wait().unwrap();
        let now = runs(&folder);
        for (id, before) in &finished {
            assert_eq!(now.get(id), Some(before), "run {id} was finished, and is as it was");
        }
        finished = now.into_iter().filter(|(_, run)| ["done", "failed"].contains(&run.0.as_str())).collect();
    }
    // Some of the work was done in spite of it all, and some was left.
    assert!(!finished.is_empty(), "the first kills came too early for any run");
    assert!(twostep(&folder, &["simulate", "study.toml"]).status().unwrap().success());
    assert_eq!(alive(&variable), [""; 0], "nothing is left running");

    let all = runs(&folder);
    assert_eq!(all.len(), RUNS);
    for (id, before) in &finished {
        assert_eq!(all.get(id), Some(before), "run {id} was finished, and is as it was");
    }
    for (id, (state, _, outputs)) in &all {
        let number: usize = id.parse().unwrap();
        match number % 25 {
            0..=4 => assert_eq!((state.as_str(), outputs.as_str()), ("failed", "{}"), "run {id}"),
            kind @ 5..=7 => assert_eq!(outputs, &format!("{{\"y\":{kind}.0}}"), "run {id}"),
            _ => assert_eq!(outputs, &format!("{{\"y\":{number}.5}}"), "run {id}"),
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_study_survives_being_killed() {
    kill_and_restart("short", 12);
}

/// Takes a minute.
#[test]
#[ignore = "the same with a hundred kills; cargo test --release -p twostep-cli --test kill -- --ignored"]
fn a_study_survives_being_killed_a_hundred_times() {
    kill_and_restart("long", 100);
}
