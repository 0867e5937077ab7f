//! `twostep run`: all stages of a study.

use crate::arguments::Global;
use crate::failure::Failure;
use std::path::PathBuf;
use twostep::study::Stage;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// The study file
    study: PathBuf,
}

impl Run {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        super::run_stages(&self.study, None, Stage::Infer, global)
    }
}
