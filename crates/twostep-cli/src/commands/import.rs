//! `twostep import`: simulator runs that were made elsewhere.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output::{self, Look};
use crate::session;
use serde_json::json;
use std::path::PathBuf;
use twostep::Error;
use twostep::table::counted;

/// Arguments of `import`.
#[derive(Debug, clap::Args)]
pub(crate) struct Import {
    /// Table of finished runs: a column for each input and output, a row for each run
    file: PathBuf,
    /// The study file [default: the only one in the current folder]
    study: Option<PathBuf>,
}

impl Import {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let study = match &self.study {
            Some(study) => study.clone(),
            None => only_study()?,
        };
        if self.file.extension().is_some_and(|extension| extension == "toml") {
            let repair = "write the table first: twostep import runs.csv study.toml";
            return Err(Error::invalid(self.file.display().to_string(), "this is a study, not a table", repair).into());
        }
        let project = session::open(&study, global, None)?;
        let imported = project.import_runs(0, &self.file)?;
        for warning in &imported.warnings {
            output::note_as("warning", Look::Warning, warning);
        }
        if global.json {
            return super::print_json(&json!({
                "new": imported.new,
                "known": imported.known,
                "pending": imported.pending,
                "failed": imported.failed,
                "warnings": imported.warnings,
            }));
        }
        let mut text = format!("{} brought in", counted(imported.new, "run"));
        if imported.known > 0 {
            text.push_str(&format!(", {} known before", imported.known));
        }
        let rest = match (imported.pending, imported.failed) {
            (0, 0) => "every run of the design is made".to_owned(),
            (0, failed) => format!("{} of the design failed", counted(failed, "run")),
            (pending, 0) => format!("{} of the design to be made", counted(pending, "run")),
            (pending, failed) => format!("{} of the design to be made, {failed} failed", counted(pending, "run")),
        };
        Ok(output::print(&format!("{text}; {rest}\n"))?)
    }
}

/// The only study file in the current folder.
fn only_study() -> Result<PathBuf, Error> {
    let entries = std::fs::read_dir(".").map_err(|e| Error::file(".".as_ref(), e, "name the study file"))?;
    let is_study = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "toml") && path.is_file();
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_study).collect();
    found.sort();
    match &found[..] {
        [only] => Ok(only.strip_prefix(".").unwrap_or(only).to_path_buf()),
        several => {
            let found = match several.len() {
                0 => "there is no study file in the current folder".to_owned(),
                n => format!("there are {n} study files in the current folder"),
            };
            Err(Error::invalid("study", found, "name it: twostep import runs.csv study.toml"))
        }
    }
}
