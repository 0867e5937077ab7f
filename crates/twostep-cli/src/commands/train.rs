//! `twostep train`: the T-step, and the runs it needs.

use crate::arguments::Global;
use crate::failure::Failure;
use std::path::PathBuf;
use twostep::study::Stage;

/// Arguments of `train`.
#[derive(Debug, clap::Args)]
pub(crate) struct Train {
    /// The study file
    study: PathBuf,
}

impl Train {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        super::run_stages(&self.study, None, Stage::Train, global)
    }
}
