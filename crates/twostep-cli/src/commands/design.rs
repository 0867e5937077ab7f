//! `twostep design`: the runs that are still to be made, as a list or a file.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output;
use crate::results::Grid;
use crate::session;
use serde_json::json;
use std::path::{Path, PathBuf};
use twostep::Error;
use twostep::table::{Table, counted};

/// Most rows of a table on the terminal.
const SHOWN: usize = 20;

/// Arguments of `design`.
#[derive(Debug, clap::Args)]
pub(crate) struct Design {
    /// The study file
    study: PathBuf,
    /// Write the runs that are still to be made to this CSV file, with empty columns for their outputs
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    /// Include runs that failed
    #[arg(long)]
    failed: bool,
}

impl Design {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, None)?;
        let (pending, failed) = project.pending_runs(self.failed)?;
        if let Some(path) = &self.export {
            return export(
                &pending,
                path,
                "`twostep import FILE` brings them in when their outputs are filled in",
                global,
            );
        }
        if global.json {
            return super::print_json(&json!({ "pending": super::records(&pending)?, "failed": failed }));
        }
        let besides = match failed {
            0 => String::new(),
            n => format!("{} failed; --failed includes them\n", counted(n, "run")),
        };
        if pending.n_rows() == 0 {
            let text = if failed > 0 { "no run is waiting to be made" } else { "every run of the design is made" };
            return Ok(output::print(&format!("{text}\n{besides}"))?);
        }
        let names: Vec<String> = pending.names().map(str::to_owned).collect();
        let columns = names.iter().map(|name| pending.texts(name)).collect::<Result<Vec<_>, Error>>()?;
        let filled: Vec<usize> = (0..names.len()).filter(|&j| columns[j].iter().any(|cell| !cell.is_empty())).collect();
        let mut grid = Grid::new(filled.iter().map(|&j| names[j].clone()).collect(), 1);
        for row in 0..pending.n_rows().min(SHOWN) {
            grid.push(filled.iter().map(|&j| columns[j][row].clone()).collect(), false);
        }
        let mut text = grid.render(output::width(), output::stdout_coloured());
        if pending.n_rows() > SHOWN {
            text.push_str(&format!("and {} more\n", pending.n_rows() - SHOWN));
        }
        text.push_str(&format!("{} to be made\n{besides}", counted(pending.n_rows(), "run")));
        Ok(output::print(&text)?)
    }
}

/// Writes runs to be made into a file that is not there yet.
pub(crate) fn export(pending: &Table, path: &Path, then: &str, global: &Global) -> Result<(), Failure> {
    // It may hold the outputs of days.
    if path.exists() {
        let found = "the file is there already, and may hold results";
        return Err(Error::invalid(path.display().to_string(), found, "give another name, or remove it").into());
    }
    pending.write(path)?;
    if global.json {
        return super::print_json(&json!({ "file": path.display().to_string(), "pending": pending.n_rows() }));
    }
    let rows = counted(pending.n_rows(), "row");
    let text =
        format!("{rows} to be filled in written to {}, for a series one line per coordinate; {then}", path.display());
    Ok(output::print(&format!("{}\n", output::wrapped(&text, "")))?)
}
