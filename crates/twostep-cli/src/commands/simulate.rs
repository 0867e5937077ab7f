//! `twostep simulate`: the design and the simulator runs.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::session;
use clap::ValueEnum;
use std::path::PathBuf;
use twostep::run::{Changed, Only};
use twostep::store::Share;
use twostep::study::Stage;

/// Arguments of `simulate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Simulate {
    /// The study file
    study: PathBuf,
    /// Make only these runs: those that have not been made, or once more those that failed
    #[arg(long, value_name = "WHICH", conflicts_with = "run")]
    only: Option<Which>,
    /// Make only the run of this number, as `twostep runs` lists it
    #[arg(long, value_name = "ID")]
    run: Option<i64>,
    /// What to do about finished runs of a simulator that has changed since
    #[arg(long, value_name = "WHAT")]
    changed: Option<WhatThen>,
    /// Make only this share of the runs, such as 3/100, into a file of its own; `twostep merge` brings all together
    #[arg(long, value_name = "K/N", conflicts_with_all = ["run", "changed"])]
    shard: Option<Share>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    Pending,
    Failed,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WhatThen {
    /// Take them as runs of the simulator as it is now
    Keep,
    /// Make them again; the old ones stay in the ledger
    Rerun,
}

impl Simulate {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let only = match (self.run, self.only) {
            (Some(id), _) => Only::Run(id),
            (None, Some(Which::Failed)) => Only::Failed,
            (None, Some(Which::Pending) | None) => Only::Pending,
        };
        let changed = match self.changed {
            None => Changed::Ask,
            Some(WhatThen::Keep) => Changed::Keep,
            Some(WhatThen::Rerun) => Changed::Rerun,
        };
        let project = session::open(&self.study, global, None)?;
        let progress = Progress::new(global.quiet);
        if let Some(share) = self.shard {
            let done = project.simulate_share(share, only == Only::Failed, &progress);
            progress.finish();
            return super::show_share(&done?, global);
        }
        let made = project.make_runs(&only, changed, &progress);
        let outcome = made.and_then(|()| project.run(Stage::Simulate, &progress));
        progress.finish();
        super::show_results(&project, &outcome?, global)
    }
}
