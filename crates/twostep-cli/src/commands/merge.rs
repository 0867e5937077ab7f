//! `twostep merge`: what shards have done, brought together.

use crate::arguments::Global;
use crate::commands::calibrate;
use crate::failure::Failure;
use crate::output::{self, Look};
use crate::progress::Progress;
use crate::session;
use std::path::PathBuf;
use twostep::Error;
use twostep::run::Merged;
use twostep::store::Task;
use twostep::study::Stage;
use twostep::table::counted;

/// What is read and what comes of it, after `twostep merge --help`.
pub(crate) const ABOUT: &str = "\
Files that `calibrate --shard`, `simulate --shard` and `infer --shard` have written are read, from
the folder of results or from the files and folders that are named (shards of other machines).
Each must be of this study, seed and version, or nothing is merged. What is there already stays,
so that merging twice changes nothing. Then, if every unit is there, the command goes on as
`calibrate`, `simulate` or `infer` would; if not, it says which shards are to be run again.

The answer is the same to the last bit however the work was divided, on one instruction set.";

/// Arguments of `merge`.
#[derive(Debug, clap::Args)]
pub(crate) struct Merge {
    /// The study file
    study: PathBuf,
    /// Files of shards, or folders with such files [default: those in the folder of results]
    files: Vec<PathBuf>,
}

impl Merge {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let progress = Progress::new(global.quiet);
        let (project, merged) = session::open(&self.study, global, None)?.merge(&self.files)?;
        for note in &merged.notes {
            output::note_as("warning", Look::Warning, note);
        }
        let known = if merged.known > 0 { format!(", {} known before", merged.known) } else { String::new() };
        let found = format!("{}: {}{known}", counted(merged.files, "file"), counted(merged.new, "new result"));
        if !merged.missing.is_empty() {
            return Err(unfinished(&merged, &found).into());
        }
        if !global.quiet && !global.json {
            output::print(&format!("merged {found}\n"))?;
        }
        for task in &merged.tasks {
            match task {
                Task::Calibrate => calibrate::finish(&project, &progress, global)?,
                Task::Simulate => super::run_project(&project, Stage::Simulate, &progress, global)?,
                Task::Infer => super::run_project(&project, Stage::Infer, &progress, global)?,
            }
        }
        Ok(())
    }
}

fn unfinished(merged: &Merged, found: &str) -> Error {
    const SHOWN: usize = 10;
    let mut words: Vec<String> = merged.missing.iter().take(SHOWN).map(|missing| missing.words.clone()).collect();
    if merged.missing.len() > SHOWN {
        words.push(format!("and {} more", merged.missing.len() - SHOWN));
    }
    let repair = "what is there was merged; run those shards again, then merge again";
    Error::failed("merge", format!("{found}; {}", words.join("; ")), repair)
}
