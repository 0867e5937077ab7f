//! What people see in a terminal, and what a file or a pipe gets instead. Needs `script` of util-linux.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "other tests need the rest")]
mod common;

use common::{Place, Ran, holds};
use std::process::Command;

/// Slow enough for a forecast, by 24 runs and one for the measurements; with a name that is wider than its letters.
const STUDY: &str = r#"
seed = 3
[simulator]
command = ["sh", "simulator.sh", "{params}", "{results}"]
params_format = "csv"
concurrency = 1
[unknowns."温度🦠"]
range = [0, 1]
[design]
method = "sobol"
runs = 24
[surrogate]
kind = "pce"
degree = 1
[train]
draws = 20
[measurements]
noise = { family = "normal", sd = 0.05 }
[measurements.synthetic]
truth = { "温度🦠" = 0.4 }
replicates = 3
[infer]
methods = ["e-lik", "point"]
draws = 50
"#;

const SIMULATOR: &str = "sleep 0.2\ntail -n 1 \"$1\" > \"$2\"\n";

/// What a terminal of 160 columns gets, standard output and standard error together; none without `script`.
fn in_terminal(place: &Place, arguments: &str, environment: &[(&str, &str)]) -> Option<Ran> {
    let line = format!("{} {arguments}", env!("CARGO_BIN_EXE_twostep"));
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).current_dir(&place.0);
    command
        .env("COLUMNS", "160")
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR")
        .envs(environment.iter().copied());
    match command.output() {
        Ok(output) => Some(Ran::from(output)),
        Err(_) => {
            eprintln!("`script` of util-linux is not there: nothing is tested here");
            None
        }
    }
}

/// The table at the end of what was shown, without colours.
fn table(text: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        match c {
            '\u{1b}' => {
                letters.by_ref().find(char::is_ascii_alphabetic);
            }
            '\r' => {}
            c => plain.push(c),
        }
    }
    let lines: Vec<&str> = plain.lines().collect();
    let head = lines.iter().rposition(|line| line.trim_end().ends_with("trust")).unwrap();
    lines[head..].iter().take_while(|line| !line.is_empty()).map(|line| (*line).to_owned()).collect()
}

#[test]
fn bars_and_colours_are_for_terminals() {
    let place = Place::with_study("terminal", STUDY);
    place.write("simulator.sh", SIMULATOR);
    let Some(shown) = in_terminal(&place, "run study.toml", &[]) else { return };
    let shown = shown.ends(0).out;
    // A bar with its count, then the pace and a forecast, and none of it in what remains.
    holds(&shown, "simulate [");
    holds(&shown, " of 25, ");
    holds(&shown, " per ");
    holds(&shown, " s left");
    holds(&shown, "\u{1b}[1m");
    holds(&shown, "\u{1b}[2m");
    let rows = table(&shown);
    assert_eq!(rows.len(), 3, "{rows:?}");
    // `trust` begins in the same column of the window in every row; the name takes six columns with four letters.
    let column = |row: &str, part: &str| {
        let before = &row[..row.find(part).unwrap_or_else(|| panic!("no {part} in {row}"))];
        before.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum::<usize>()
    };
    assert!(rows[0].contains("温度🦠"));
    let trust = column(&rows[0], "trust");
    assert_eq!((column(&rows[1], "grid"), column(&rows[2], "grid")), (trust, trust), "{rows:#?}");

    // The same without colours, where they are not wanted.
    for (name, value, coloured) in [("NO_COLOR", "1", false), ("NO_COLOR", "", true)] {
        let again = in_terminal(&place, "run study.toml", &[(name, value)]).unwrap().ends(0).out;
        assert_eq!(again.contains("\u{1b}[1m"), coloured, "{name}={value}: {again}");
        assert_eq!(table(&again), rows);
    }
    let wrong = in_terminal(&place, "run gone.toml", &[("NO_COLOR", "1")]).unwrap();
    assert!(wrong.code != Some(0) && !wrong.out.contains("\u{1b}["), "{}", wrong.out);
    // Quiet: no bar, however long it takes.
    std::fs::remove_dir_all(place.0.join("study.twostep")).unwrap();
    let quiet = in_terminal(&place, "run study.toml --quiet", &[]).unwrap().ends(0).out;
    assert!(!quiet.contains("simulate ["), "{quiet}");
}

#[test]
fn pipes_get_plain_lines() {
    let place = Place::with_study("pipe", STUDY);
    place.write("simulator.sh", SIMULATOR);
    let ran = place.run(&["run", "study.toml"]).ends(0);
    assert!(!ran.out.contains('\u{1b}') && !ran.err.contains('\u{1b}') && !ran.err.contains('\r'), "{}", ran.err);
    holds(&ran.err, "simulate: 25 of 25 done, ");
    assert_eq!(table(&ran.out).len(), 3);
}
