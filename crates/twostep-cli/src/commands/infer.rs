//! `twostep infer`: the I-step, and the stages it needs, also with other measurements than the study's.

use crate::arguments::Global;
use crate::failure::Failure;
use std::path::PathBuf;
use twostep::study::Stage;

/// Arguments of `infer`.
#[derive(Debug, clap::Args)]
pub(crate) struct Infer {
    /// The study file
    study: PathBuf,
    /// Take the measurements from this CSV file instead of the study's; results go into a folder of their own inside the
    /// study's
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
}

impl Infer {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        super::run_stages(&self.study, self.measurements.as_deref(), Stage::Infer, global)
    }
}
