//! `twostep status`: which stages are finished, and why others are stale.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output;
use crate::results::Grid;
use crate::session;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use twostep::calibrate::Truth;
use twostep::run::CalibrationPlan;

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    /// The study file
    study: PathBuf,
    /// Show the results of `infer` with these measurements instead of the study's
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
}

impl Status {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, self.measurements.as_deref())?;
        let stages = project.status()?;
        // Trials of every kind of truth; a study that cannot be calibrated, or has never been, has nothing to show.
        let mut calibrations: Vec<CalibrationPlan> = Vec::new();
        for truth in Truth::ALL {
            let project = session::open(&self.study, global, self.measurements.as_deref())?;
            let project = project.with_calibration(|spec| spec.truth = truth);
            let plans = project.calibration_plan().unwrap_or_default();
            calibrations.extend(plans.into_iter().filter(|plan| plan.kept > 0));
        }
        if global.json {
            let stages: Vec<Value> = stages
                .iter()
                .map(|status| {
                    let label: Map<String, Value> =
                        status.label.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
                    let (stage, fresh) = (status.stage.name(), status.fresh);
                    json!({ "setting": label, "stage": stage, "fresh": fresh, "reason": status.reason })
                })
                .collect();
            let calibrations: Vec<Value> = calibrations
                .iter()
                .map(|plan| {
                    let label: Map<String, Value> =
                        plan.label.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
                    json!({ "setting": label, "truth": plan.truth.name(), "kept": plan.kept, "i_trials": plan.i_trials })
                })
                .collect();
            return super::print_json(&json!({
                "folder": project.folder().display().to_string(),
                "stages": stages,
                "calibration": calibrations,
                "other_measurements": project.other_measurements(),
            }));
        }
        let keys = stages.first().map_or(&[][..], |status| &status.label).iter().map(|(key, _)| key.clone());
        let leading = keys.len() + 1;
        let header = keys.chain(["stage", "state", "reason"].map(str::to_owned)).collect();
        let mut grid = Grid::new(header, leading);
        for status in stages {
            let values = status.label.into_iter().map(|(_, value)| value);
            let state = if status.fresh { "fresh" } else { "stale" };
            let cells = [status.stage.name().to_owned(), state.to_owned(), status.reason];
            grid.push(values.chain(cells).collect(), false);
        }
        let table = grid.render(output::width(), output::stdout_coloured());
        let mut text = format!("{table}\nresults in {}\n", project.folder().display());
        for truth in Truth::ALL {
            let own = || calibrations.iter().filter(|plan| plan.truth == truth);
            let (kept, total) =
                (own().map(|plan| plan.kept).sum::<usize>(), own().map(|plan| plan.i_trials).sum::<usize>());
            if kept > 0 {
                text.push_str(&format!(
                    "calibration, truth = {}: {kept} of {total} I-trials are there\n",
                    truth.name()
                ));
            }
        }
        for folder in project.other_measurements() {
            text.push_str(&format!("results of other measurements in {}\n", folder.display()));
        }
        Ok(output::print(&text)?)
    }
}
