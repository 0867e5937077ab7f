//! `twostep infer`: the I-step, and the stages it needs, also with other measurements than the study's.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::session;
use std::path::PathBuf;
use twostep::store::Share;
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
    /// Make only this share of the fits of E-Post by NUTS, such as 3/100, into a file of its own; `twostep merge` brings all
    /// together
    #[arg(long, value_name = "K/N", conflicts_with = "measurements")]
    shard: Option<Share>,
}

impl Infer {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        if let Some(share) = self.shard {
            let project = session::open(&self.study, global, None)?;
            session::check_measurements(&project)?;
            let progress = Progress::new(global.quiet);
            let done = project.infer_share(share, &progress);
            progress.finish();
            return super::show_share(&done?, global);
        }
        super::run_stages(&self.study, self.measurements.as_deref(), Stage::Infer, global)
    }
}
