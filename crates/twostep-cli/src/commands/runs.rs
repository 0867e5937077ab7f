//! `twostep runs`: the simulator runs and what became of them.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output;
use crate::results::Grid;
use crate::session;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use twostep::run::RunEntry;
use twostep::simulate::Reading;

/// Arguments of `runs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Runs {
    /// The study file
    study: PathBuf,
    /// List only runs in this state
    #[arg(long, value_name = "STATE", value_parser = ["pending", "running", "done", "failed"])]
    state: Option<String>,
    /// List runs of earlier simulators too, which have been set aside
    #[arg(long)]
    all: bool,
}

impl Runs {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, None)?;
        let (all, aside): (Vec<RunEntry>, Vec<RunEntry>) =
            project.runs()?.into_iter().partition(|run| run.is_current || self.all);
        let shown: Vec<&RunEntry> =
            all.iter().filter(|run| self.state.as_deref().is_none_or(|state| state == run.state)).collect();
        if global.json {
            let runs: Vec<Value> = shown.iter().map(|run| record(run)).collect();
            return super::print_json(&json!({ "runs": runs }));
        }
        if all.is_empty() && aside.is_empty() {
            return Ok(output::print("there are no runs yet; `twostep simulate` makes them\n")?);
        }
        // Constants are the same for all.
        let constants: Vec<&str> =
            project.settings()[0].study.constants.iter().map(|(name, _)| name.as_str()).collect();
        let header = ["run", "state", "inputs", "outputs", "from", "seconds", "attempts"].map(str::to_owned).to_vec();
        let mut grid = Grid::new(header, 2);
        for run in &shown {
            let varied = run.inputs.iter().filter(|(name, _)| !constants.contains(&name.as_str()));
            let inputs: Vec<String> = varied.map(|(name, x)| format!("{name} {}", short(*x))).collect();
            let outputs: Vec<String> = run.outputs.iter().map(|(name, r)| format!("{name} {}", brief(r))).collect();
            let outcome = run.reason.clone().unwrap_or_else(|| outputs.join(", "));
            let seconds = run.seconds.map_or(String::new(), |seconds| format!("{seconds:.3}"));
            let attempts = if run.attempts > 0 { run.attempts.to_string() } else { String::new() };
            let cells = [&run.id, run.state, &inputs.join(", "), &outcome, run.source, &seconds, &attempts];
            grid.push(cells.map(str::to_owned).to_vec(), false);
        }
        let mut text = grid.render(output::width(), output::stdout_coloured());
        let count = |state: &str| all.iter().filter(|run| run.state == state).count();
        let states: Vec<String> = ["done", "failed", "pending", "running"]
            .iter()
            .filter(|state| count(state) > 0)
            .map(|state| format!("{} {state}", count(state)))
            .collect();
        text.push_str(&format!("{}\n", states.join(", ")));
        if !aside.is_empty() {
            text.push_str(&format!("{} of earlier simulators besides; --all lists them\n", aside.len()));
        }
        Ok(output::print(&text)?)
    }
}

/// Six digits, which tell runs apart; all of them are in the JSON.
fn short(x: f64) -> String {
    let rounded: f64 = format!("{x:.5e}").parse().unwrap_or(x);
    rounded.to_string()
}

/// A number, or how many values a series has.
fn brief(reading: &Reading) -> String {
    match (&reading.at[..], &reading.values[..]) {
        ([], [value, ..]) => short(*value),
        ([], []) => String::new(),
        (at, values) => {
            let missing = values.iter().filter(|y| !y.is_finite()).count();
            let lacking = if missing > 0 { format!(", {missing} missing") } else { String::new() };
            format!("series of {}{lacking}", at.len())
        }
    }
}

fn record(run: &RunEntry) -> Value {
    let inputs: Map<String, Value> = run.inputs.iter().map(|(name, x)| (name.clone(), json!(x))).collect();
    let value = |reading: &Reading| match reading.at.is_empty() {
        true => json!(reading.values.first()),
        false => json!({ "at": reading.at, "values": reading.values }),
    };
    let outputs: Map<String, Value> = run.outputs.iter().map(|(name, r)| (name.clone(), value(r))).collect();
    json!({
        "id": run.id,
        "state": run.state,
        "source": run.source,
        "inputs": inputs,
        "outputs": outputs,
        "seconds": run.seconds,
        "attempts": run.attempts,
        "reason": run.reason,
        "simulator": run.simulator,
        "current": run.is_current,
    })
}
