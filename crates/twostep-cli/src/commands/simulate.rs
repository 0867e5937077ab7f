//! `twostep simulate`: the design and the simulator runs.

use crate::arguments::Global;
use crate::failure::Failure;
use std::path::PathBuf;
use twostep::study::Stage;

/// Arguments of `simulate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Simulate {
    /// The study file
    study: PathBuf,
}

impl Simulate {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        super::run_stages(&self.study, None, Stage::Simulate, global)
    }
}
