//! A study of `exp(a)` at ten points, and what became of its runs.

use crate::common::Place;
use serde_json::Value;
use std::fs;

/// 0, 0.1, ..., 0.9.
pub(crate) const TEN: &str = "a\n0\n0.1\n0.2\n0.3\n0.4\n0.5\n0.6\n0.7\n0.8\n0.9\n";

/// A study whose simulator has these keys and makes two runs at once.
pub(crate) fn study(simulator: &str) -> String {
    format!(
        r#"
seed = 3
[simulator]
concurrency = 2
{simulator}
[unknowns.a]
range = [0, 1]
[outputs.y]
[design]
points = "points.csv"
[surrogate]
kind = "pce"
degree = 2
[train]
draws = 20
[measurements]
file = "measurements.csv"
noise = {{ sd = 0.1 }}
[infer]
methods = ["point"]
draws = 200
"#
    )
}

/// A folder with a study and its tables; only the simulator is missing.
pub(crate) fn place(name: &str, study: &str) -> Place {
    let place = Place::with_study(name, study);
    place.write("points.csv", TEN);
    place.write("measurements.csv", "y\n1.6\n1.7\n");
    place
}

/// How often the simulator was started: a line in a log beside the study each.
pub(crate) fn starts(place: &Place) -> usize {
    fs::read_to_string(place.0.join("log")).map_or(0, |log| log.lines().count())
}

/// The runs in a state, as `runs --json` lists them.
pub(crate) fn runs(place: &Place, state: &str) -> Vec<Value> {
    let listed = place.run(&["runs", "study.toml", "--json"]).ends(0).json();
    listed["runs"].as_array().unwrap().iter().filter(|run| run["state"] == state).cloned().collect()
}

/// Replaces a part of a file, which must be there.
pub(crate) fn edit(place: &Place, file: &str, from: &str, to: &str) {
    let text = place.read(file);
    assert!(text.contains(from), "no `{from}` in {text}");
    place.write(file, &text.replace(from, to));
}
