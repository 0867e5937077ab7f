//! `twostep verify`: the real simulator where the answer lies, against the surrogate.

use super::design::export;
use crate::arguments::Global;
use crate::failure::Failure;
use crate::output::{self, Look, wrapped};
use crate::progress::Progress;
use crate::results::Grid;
use crate::session;
use serde_json::to_value;
use std::path::PathBuf;
use twostep::Error;
use twostep::report::words::rounded;
use twostep::run::{Verification, VerifiedValue};

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// The study file
    study: PathBuf,
    /// Number of runs, at draws of the I-posterior
    #[arg(long, value_name = "N", default_value_t = 8)]
    runs: usize,
    /// Write the runs to this CSV file instead of making them, with empty columns for their outputs
    #[arg(long, value_name = "FILE", conflicts_with = "results")]
    export: Option<PathBuf>,
    /// Take the runs from this table, which --export wrote, with the outputs filled in
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Setting of the sweep, from 1
    #[arg(long, value_name = "N")]
    setting: Option<usize>,
    /// The measurements that `infer` was given, where they are not the study's
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
}

impl Verify {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, self.measurements.as_deref())?;
        if self.runs == 0 {
            return Err(Error::invalid("--runs", "0 runs verify nothing", "ask for at least 1, better 8").into());
        }
        let index = session::setting(&project, self.setting, "a verification is")?;
        if let Some(path) = &self.export {
            let then = "`twostep verify STUDY --results FILE` compares them when their outputs are filled in";
            return export(&project.verification_runs(index, self.runs)?, path, then, global);
        }
        let progress = Progress::new(global.quiet);
        let outcome = project.verify(index, self.runs, self.results.as_deref(), &progress);
        progress.finish();
        let verification = outcome?;
        if global.json {
            return super::print_json(&to_value(&verification).unwrap_or_default());
        }
        output::print(&table(&verification))?;
        for reason in &verification.failures {
            output::note_as("warning", Look::Warning, &format!("a run failed: {reason}"));
        }
        let text = format!("verdict: {}. {}", verification.verdict, verification.advice);
        output::print(&format!("{}\n", wrapped(&text, "")))?;
        Ok(output::print(&format!("results in {}\n", project.setting_folder(index).path().display()))?)
    }
}

/// Every value against its prediction; of a series the one that is furthest off.
fn table(verification: &Verification) -> String {
    let values = &verification.values;
    let mut shown: Vec<&VerifiedValue> = Vec::new();
    for value in values {
        match shown.last_mut().filter(|last| last.run == value.run && last.output == value.output) {
            Some(last) if value.z.abs() > last.z.abs() => *last = value,
            Some(_) => {}
            None => shown.push(value),
        }
    }
    let names = values.first().map_or(Vec::new(), |v| v.inputs.iter().map(|(name, _)| name.clone()).collect());
    let is_series = values.iter().any(|value| value.coordinate.is_some());
    let columns = ["output", "simulated", "surrogate [5 %, 95 %]", "z", "PIT"].map(str::to_owned);
    let header = ["run".to_owned()].into_iter().chain(names.clone()).chain(columns).collect();
    let mut grid = Grid::new(header, 1);
    for value in shown {
        let inputs = value.inputs.iter().map(|(_, x)| format!("{x:.4}"));
        let place = value.coordinate.map_or(String::new(), |t| format!(" at {t}"));
        let [simulated, median, low, high] =
            rounded([value.simulated, value.q50, value.q05, value.q95], value.q95 - value.q05);
        let cells = [
            format!("{}{place}", value.output),
            simulated,
            format!("{median} [{low}, {high}]"),
            format!("{:.1}", value.z),
            format!("{:.3}", value.pit),
        ];
        let outside = !(0.05..=0.95).contains(&value.pit);
        grid.push([value.run.to_string()].into_iter().chain(inputs).chain(cells).collect(), outside);
    }
    let note = if is_series { "of each series the value that is furthest off; all are in verify.csv\n" } else { "" };
    format!("{}{note}", grid.render(output::width(), output::stdout_coloured()))
}
