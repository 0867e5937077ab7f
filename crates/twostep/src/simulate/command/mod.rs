//! An executable as the simulator: a work folder and a process per run, inputs in files, outputs from files.

pub(super) mod check;
mod fill;
pub(super) mod folder;
pub(super) mod process;
mod results;

pub use process::{Ended, Running, end_leftovers};

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Failure, Job, Reading, Wanted};

/// The file in the work folder that `{results}` stands for.
pub const RESULTS_FILE: &str = "results.out";
/// The file in the work folder that holds what the command writes to its standard output.
pub const STDOUT_FILE: &str = "stdout.txt";
/// The file in the work folder that holds what the command writes to its standard error.
pub const STDERR_FILE: &str = "stderr.txt";
/// The file in the work folder that is there once the command has ended, with its exit status.
const STATUS_FILE: &str = "exit_status";

/// What the study file says about a command. No field refers to one run.
///
/// In any argument `{params}` and `{results}` stand for the files of the inputs and of the results, `{folder}` for the work
/// folder, all absolute, and `{id}` for the number of the run; `{{` and `}}` are braces. The command runs in its work
/// folder and never through a shell. An argument that is a file beside the study file, and that is not put into the work
/// folder, is handed over as an absolute path.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandSpec {
    /// Executable and arguments. The executable is a file beside the study file or else on the search path.
    pub argv: Vec<String>,
    /// The command of attempts after the first, if it is another.
    pub retry_argv: Option<Vec<String>>,
    /// How the file of the inputs is written.
    pub params_format: ParamsFormat,
    /// Files made in the work folder, each from a template with markers such as `{{ beta }}` and `{{ beta:12.6e }}`.
    pub templates: Vec<(String, PathBuf)>,
    /// Files and folders copied into the work folder.
    pub copy: Vec<PathBuf>,
    /// Files and folders linked into the work folder.
    pub link: Vec<PathBuf>,
    /// Which work folders stay.
    pub keep: Keep,
    /// How long a run may take; none for any time.
    pub timeout: Option<Duration>,
    /// Variables added to the environment.
    pub environment: Vec<(String, String)>,
    /// How each output is read, in the order of the outputs.
    pub results: Vec<ResultsSpec>,
    /// Folder of the study file, from which relative paths start.
    pub folder: PathBuf,
}

/// How the file of the inputs is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ParamsFormat {
    /// One object, `params.json`.
    #[default]
    Json,
    /// Dakota's standard format, `params.in`.
    Dakota,
    /// Dakota's format for APREPRO, `params.in`.
    Aprepro,
    /// A header and a row, `params.csv`.
    Csv,
}

impl ParamsFormat {
    /// Name of the file in the work folder.
    pub fn file(self) -> &'static str {
        match self {
            Self::Json => "params.json",
            Self::Dakota | Self::Aprepro => "params.in",
            Self::Csv => "params.csv",
        }
    }
}

/// Which work folders stay after their run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Those of failed runs.
    #[default]
    Failed,
    /// All.
    All,
    /// None.
    None,
}

/// How one output is read. A file is relative to the work folder; none is the file that `{results}` stands for.
#[derive(Clone, Debug, PartialEq)]
pub enum ResultsSpec {
    /// The results file: a number for each output that is read so, in their order and with or without a label, or as many
    /// as a series has coordinates; or a JSON object with the outputs by name.
    Default,
    /// A number in a file, or for a series all from there on. Words that are no numbers are passed over.
    Value {
        /// The file.
        file: Option<String>,
        /// Which number, from one.
        value: usize,
    },
    /// A column of a CSV file.
    Csv {
        /// The file.
        file: Option<String>,
        /// Name of the column; its number where the file has no names.
        column: String,
        /// The row of a single number; none if the file has one row.
        row: Option<Row>,
        /// The column of a series' coordinates; none for the coordinate's own name, if there is such a column.
        coordinate: Option<String>,
    },
    /// A value of a JSON file, or for a series an array.
    Json {
        /// The file.
        file: Option<String>,
        /// Where, as in `a.b[3].c`, with indices from zero; empty for the whole file.
        path: String,
        /// Path of a series' coordinates; none for the coordinate's name beside the values, if it is there.
        coordinate: Option<String>,
    },
    /// What the one group of a regular expression matches; for a series all matches. `^` and `$` match at lines.
    Regex {
        /// The file.
        file: Option<String>,
        /// The expression.
        regex: String,
        /// Which match of a single number.
        which: Which,
    },
}

impl ResultsSpec {
    /// The file it reads.
    pub fn file(&self) -> &str {
        match self {
            Self::Default => RESULTS_FILE,
            Self::Value { file, .. } | Self::Csv { file, .. } | Self::Json { file, .. } | Self::Regex { file, .. } => {
                file.as_deref().unwrap_or(RESULTS_FILE)
            }
        }
    }
}

/// A row of a CSV file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Its number below the header, from one.
    Number(usize),
    /// The last.
    Last,
}

/// A match of a regular expression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// The first.
    First,
    /// The last.
    #[default]
    Last,
}

impl CommandSpec {
    /// The command of that attempt, from one.
    fn argv(&self, attempt: usize) -> &[String] {
        match &self.retry_argv {
            Some(other) if attempt > 1 => other,
            _ => &self.argv,
        }
    }

    /// Starts a run in a work folder made afresh.
    ///
    /// # Errors
    /// In words, what is wrong with the command, a template or a file.
    pub fn start(&self, job: &Job, outputs: &[Wanted]) -> Result<Running, String> {
        let folder = folder::make(self, job, outputs)?;
        let command = folder::command_line(self, job, &folder)?;
        Running::start(&command, &self.environment, folder, &job.marker)
    }

    /// Reads the outputs from the files of a finished run, in their order.
    ///
    /// What a series lacks is NaN: a value that the files leave out, or all from where the series ends.
    ///
    /// # Errors
    /// In words: a file that is missing, short or says that the run failed; a single number that is missing or not finite;
    /// a series without any value, with an infinite one, or whose coordinates are unknown.
    pub fn read(&self, folder: &Path, outputs: &[Wanted]) -> Result<Vec<Reading>, String> {
        results::read(&self.results, folder, outputs)
    }

    /// One run from start to end; `on_start` gets its process group. The work folder stays until [`CommandSpec::tidy`]: its
    /// results are there and nowhere else.
    ///
    /// # Errors
    /// [`Failure::Interrupted`] as soon as `proceed` is false; else the reason why there is nothing to read.
    pub fn run(
        &self,
        job: &Job,
        outputs: &[Wanted],
        on_start: &dyn Fn(i32) -> crate::error::Result<()>,
        proceed: &dyn Fn() -> bool,
    ) -> Result<Vec<Reading>, Failure> {
        let running = self.start(job, outputs).map_err(Failure::Failed)?;
        on_start(running.process_group()).map_err(|problem| Failure::Failed(problem.to_string()))?;
        let ended = running.wait(self.timeout, proceed)?;
        match ended.problem() {
            None => self.read(&job.folder, outputs).map_err(Failure::Failed),
            Some(problem) => Err(Failure::Failed(format!("{problem}{}", last_words(&job.folder)))),
        }
    }

    /// Results of a run that ended well after its owner had gone; none if it did not end well, or they are incomplete.
    /// A folder without the run's marker is of another run.
    pub fn adopt(&self, folder: &Path, marker: &str, outputs: &[Wanted]) -> Option<Vec<Reading>> {
        let status = fs::read_to_string(folder.join(STATUS_FILE)).ok()?;
        // The line's end is written last: without it the status may be half a number.
        if status == format!("0 {marker}\n") { self.read(folder, outputs).ok() } else { None }
    }

    /// Removes a work folder unless `keep` says that it stays.
    pub fn tidy(&self, folder: &Path, succeeded: bool) {
        let stays = match self.keep {
            Keep::All => true,
            Keep::Failed => !succeeded,
            Keep::None => false,
        };
        if !stays {
            // A folder that cannot be removed takes space and does no harm: no run reads what it did not write.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// The last lines of the standard error, or else of the standard output, as the end of a sentence.
fn last_words(folder: &Path) -> String {
    const LINES: usize = 5;
    const BYTES: u64 = 1000;
    let tail = |name: &str| {
        let mut file = File::open(folder.join(name)).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BYTES))).ok()?;
        let mut bytes = Vec::new();
        file.take(BYTES).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(LINES)..].join(" | ");
        (!last.is_empty()).then(|| format!("; {name} ends with: {last}"))
    };
    tail(STDERR_FILE).or_else(|| tail(STDOUT_FILE)).unwrap_or_else(|| "; it wrote no message".to_owned())
}

#[cfg(test)]
mod tests;
