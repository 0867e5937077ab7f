//! `twostep report`: the page and the files that show finished results, made anew.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;
use crate::session;
use serde_json::json;
use std::path::PathBuf;

/// What is written.
pub(crate) const ABOUT: &str = "\
Written beside the results, from what is finished; nothing is computed anew:
  report.html   one page with everything, which needs no other file
  figures/      every figure as SVG, PNG (300 dots to the inch) and CSV
  METHOD.nc     each I-posterior for ArviZ: az.from_netcdf(\"e-lik.nc\")
  methods.md    a paragraph for the methods section of a paper, with references";

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Report {
    /// The study file
    study: PathBuf,
    /// The measurements that `infer` was given, where they are not the study's
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
}

impl Report {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, self.measurements.as_deref())?;
        let progress = Progress::new(global.quiet);
        let outcome = twostep::report::Report::new(&project, &progress).and_then(|report| report.write());
        progress.finish();
        let place = outcome?;
        match global.json {
            true => super::print_json(&json!({ "report": place.display().to_string() })),
            false => Ok(output::print(&format!("report in {}\n", place.display()))?),
        }
    }
}
