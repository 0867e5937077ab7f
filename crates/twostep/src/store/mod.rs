//! What is kept on disk of each setting: training set, T-draws, I-draws, reports, and a ledger of what made which file.

mod journal;
mod runs;
mod shards;
mod t_posteriors;

pub use journal::{Heading, Journal, Section};
pub use runs::{KnownSimulator, MadeRun, Point, RUNS, Run, RunLedger, RunListener, RunSource, RunState};
pub use shards::{Asked, Made, SHARDS, Shard, Shards, Share, Task, journals};
pub use t_posteriors::{TPosteriors, TrialPosterior};

use crate::draws::Draws;
use crate::error::{Error, Result};
use crate::infer::IPosterior;
use crate::matrix::Matrix;
use crate::mcmc::nuts::Transition;
use crate::study::Stage;
use crate::table::{Table, write_atomically};
use crate::train::{TReport, TrainingSet};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Component, Path, PathBuf};

/// Name of the ledger: a folder that holds one was made by this program.
const LEDGER: &str = "stages.json";

/// Name of the file whose lock says that a process writes here.
const LOCK: &str = ".lock";

/// Name of the folder of journals: one for everything that was ever tried in a study.
pub const TRIALS: &str = "trials";

/// Name of the folder of journals of fits of E-Post that were shared out.
pub const T_DRAW_FITS: &str = "fits";

/// Name of the copy of the measurements.
const MEASUREMENTS: &str = "measurements.csv";

/// Name of the file that says whether the runs were enough.
const ENOUGH: &str = "enough.json";

/// Name of the file with the fits that say so.
const FITS: &str = "enough_fits.json";

/// Names of the files that say whether the surrogate agrees with the simulator where the answer lies.
const VERIFICATION: [&str; 2] = ["verify.json", "verify.csv"];

/// Name of the folder of figures.
pub const FIGURES: &str = "figures";

/// What to do about a folder that cannot be used.
const ELSEWHERE: &str = "choose a folder you may write to with --out";

/// What made a finished stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageRecord {
    /// Hash of everything the stage depends on; empty while its files are being written.
    pub fingerprint: String,
    /// Hashes of its parts, by their place in the study file.
    pub parts: BTreeMap<String, String>,
    /// Names of the files it wrote.
    pub files: Vec<String>,
    /// Seconds it took.
    pub seconds: f64,
    /// When it was finished, in seconds since 1970 began; zero where that is not known.
    pub finished: u64,
    /// Version of this program.
    pub version: String,
    /// Instruction set it ran on.
    pub instruction_set: String,
}

/// Everything that this program wrote into a folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Ledger {
    /// The study whose results these are; empty where that is said by the folder around this one.
    study: String,
    /// Stages by name.
    stages: BTreeMap<String, StageRecord>,
    /// Names of the folders of a sweep's settings.
    settings: Vec<String>,
    /// What shows the results.
    shown: Shown,
}

/// Names of files within a folder, `/` between the parts, with their contents.
pub type Files = Vec<(String, Vec<u8>)>;

/// Files that show results: report, figures, files for other programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shown {
    /// Hash of everything that they show.
    pub fingerprint: String,
    /// Their names within the folder, `/` between the parts.
    pub files: Vec<String>,
}

/// The folder of one setting, or of all settings of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Folder {
    path: PathBuf,
}

/// The sole right to write into a folder, until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // By name: processes that were forked meanwhile have the file open as well, and closing it here would leave it locked.
        let _ = self.file.unlock();
    }
}

/// A simulator run that failed: its number (from one), inputs and reason.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedRun {
    /// Number of the run, from one.
    pub run: usize,
    /// Its inputs.
    pub inputs: Vec<f64>,
    /// Why.
    pub reason: String,
}

impl Folder {
    /// A folder, made when something is first written.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn prepare(&self) -> Result<()> {
        std::fs::create_dir_all(&self.path).map_err(|e| Error::file(&self.path, e, ELSEWHERE))
    }

    /// Makes the folder and takes the sole right to write results of `study` into it.
    ///
    /// # Errors
    /// A file of that name; files of others in it, or results of another study; a ledger that cannot be read; a folder that
    /// cannot be written; another process that has the right.
    pub fn lock(&self, study: &str) -> Result<Lock> {
        let place = || self.path.display().to_string();
        if self.path.is_file() {
            return Err(Error::invalid(place(), "results need a folder, and this is a file", ELSEWHERE));
        }
        self.prepare()?;
        self.refuse_others()?;
        let path = self.file(LOCK);
        let opened = File::options().create(true).append(true).open(&path);
        let file = opened.map_err(|e| Error::file(&self.path, e, ELSEWHERE))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let repair = "wait until it has finished, or give --out another folder";
                return Err(Error::failed(place(), "another twostep is working in this folder", repair));
            }
            // A file system without locks: nothing can be promised there, and nothing refused.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let mut ledger = self.ledger()?;
        if ![study, ""].contains(&ledger.study.as_str()) {
            let found = format!("the folder holds results of {}, which those of {study} would replace", ledger.study);
            return Err(Error::invalid(place(), found, "give --out another folder, or remove this one"));
        }
        ledger.study = study.into();
        // Written even where nothing changes: the folder is then known as one of ours, and known to be writable.
        self.write_json(LEDGER, &ledger)?;
        Ok(Lock { file })
    }

    /// Makes results that were brought here those of `study`.
    ///
    /// # Errors
    /// A ledger that cannot be read or written.
    pub fn hand_over(&self, study: &str) -> Result<()> {
        let ledger = self.ledger()?;
        match self.file(LEDGER).exists() {
            true => self.write_json(LEDGER, &Ledger { study: study.into(), ..ledger }),
            false => Ok(()),
        }
    }

    /// Makes the folder inside one that is locked.
    ///
    /// # Errors
    /// As for [`Folder::lock`].
    pub fn own(&self) -> Result<()> {
        let ledger = self.ledger()?;
        if self.file(LEDGER).exists() {
            return Ok(());
        }
        self.prepare()?;
        self.refuse_others()?;
        self.write_json(LEDGER, &ledger)
    }

    fn refuse_others(&self) -> Result<()> {
        if self.file(LEDGER).exists() {
            return Ok(());
        }
        let entries = std::fs::read_dir(&self.path).map_err(|e| Error::file(&self.path, e, ELSEWHERE))?;
        let mut others: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        // Left by a process that was killed before it wrote its ledger, or by workers, which write none.
        others.retain(|name| {
            let is_left_over = name.starts_with(&format!(".{LEDGER}.")) && name.ends_with(".tmp");
            !is_left_over && ![LOCK, SHARDS, TRIALS, T_DRAW_FITS].contains(&name.as_str())
        });
        others.sort();
        if others.is_empty() {
            return Ok(());
        }
        let more = if others.len() > 3 { ", ..." } else { "" };
        others.truncate(3);
        Err(Error::invalid(
            self.path.display().to_string(),
            format!("the folder holds files that are not results of twostep ({}{more})", others.join(", ")),
            "give --out a new or empty folder",
        ))
    }

    /// Writes what can be read back as the same type, and nothing else: a number that is not finite would become null.
    fn write_json<T: Serialize + DeserializeOwned>(&self, name: &str, value: &T) -> Result<()> {
        self.prepare()?;
        let mut text = serde_json::to_string_pretty(value).expect("these types have string keys");
        if let Err(problem) = serde_json::from_str::<T>(&text) {
            // A line holds one value, or one element of the array that a line above names.
            let before = text.lines().take(problem.line()).collect::<Vec<_>>();
            let field = before.iter().rev().find(|line| line.contains("\": ")).map_or("a value", |line| line.trim());
            return Err(Error::failed(name, format!("cannot keep `{field}` ({problem})"), "report this as a bug"));
        }
        text.push('\n');
        write_atomically(&self.file(name), text.as_bytes())
    }

    fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let path = self.file(name);
        let text = std::fs::read_to_string(&path).map_err(|e| Error::file(&path, e, "`twostep run` makes it again"))?;
        serde_json::from_str(&text).map_err(|e| {
            Error::invalid(path.display().to_string(), format!("cannot be read: {e}"), "`twostep run` makes it again")
        })
    }

    /// The ledger; an empty one where there is none. One that cannot be read is refused: to write another in its place would
    /// lose the results that it knows of.
    fn ledger(&self) -> Result<Ledger> {
        const REPAIR: &str = "repair it, or rename or delete it with the results beside it";
        let path = self.file(LEDGER);
        let text = match std::fs::read_to_string(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Ledger::default()),
            text => text.map_err(|e| Error::file(&path, e, REPAIR))?,
        };
        let refused = |e| Error::invalid(path.display().to_string(), format!("cannot be read: {e}"), REPAIR);
        serde_json::from_str(&text).map_err(refused)
    }

    /// What made a stage's files.
    ///
    /// # Errors
    /// A ledger that cannot be read.
    pub fn record(&self, stage: Stage) -> Result<Option<StageRecord>> {
        Ok(self.ledger()?.stages.remove(stage.name()))
    }

    /// Records of all stages.
    ///
    /// # Errors
    /// A ledger that cannot be read.
    pub fn records(&self) -> Result<Vec<StageRecord>> {
        let mut stages = self.ledger()?.stages;
        Ok(Stage::ALL.into_iter().filter_map(|stage| stages.remove(stage.name())).collect())
    }

    /// The first file of a stage that is not there.
    pub fn missing<'a>(&self, record: &'a StageRecord) -> Option<&'a str> {
        record.files.iter().map(String::as_str).find(|name| !self.file(name).is_file())
    }

    /// Lets `write` write the files named in `record` in place of those that the stage had before.
    ///
    /// Until all are written the stage counts as unfinished, so that a crash cannot leave a mixture marked as finished.
    ///
    /// # Errors
    /// Those of `write`, or of the system.
    pub fn replace(&self, stage: Stage, record: StageRecord, write: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let mut ledger = self.ledger()?;
        let before = ledger.stages.remove(stage.name()).map_or_else(Vec::new, |record| record.files);
        let mut files = record.files.clone();
        files.extend(before.iter().filter(|name| !record.files.contains(name)).cloned());
        let unfinished = StageRecord { files, fingerprint: String::new(), ..record.clone() };
        ledger.stages.insert(stage.name().into(), unfinished);
        self.write_json(LEDGER, &ledger)?;
        write(self)?;
        self.remove_files(before.iter().filter(|name| !record.files.contains(name)))?;
        ledger.stages.insert(stage.name().into(), record);
        self.write_json(LEDGER, &ledger)
    }

    /// Lets `write` add to the files of a stage that is finished, and stays so whatever happens.
    ///
    /// `write` must leave what can be used after each file that it writes.
    ///
    /// # Errors
    /// Those of `write`, or of the system.
    pub fn extend(&self, stage: Stage, record: StageRecord, write: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let mut ledger = self.ledger()?;
        write(self)?;
        let files = record.files.clone();
        let before = ledger.stages.insert(stage.name().into(), record).map_or_else(Vec::new, |record| record.files);
        self.write_json(LEDGER, &ledger)?;
        // Last: a file that the ledger names and that is gone would make the stage stale.
        self.remove_files(before.iter().filter(|name| !files.contains(name)))
    }

    /// Takes over a stage from another folder; false where it is not whole there.
    ///
    /// # Errors
    /// What the system says about this folder.
    pub fn take_over(&self, stage: Stage, fingerprint: &str, source: &Self) -> Result<bool> {
        let found = source.record(stage).ok().flatten();
        let Some(record) = found.filter(|record| record.fingerprint == fingerprint) else {
            return Ok(false);
        };
        let read = |name: &String| Some((name.clone(), std::fs::read(source.file(name)).ok()?));
        let Some(contents) = record.files.iter().map(read).collect::<Option<Vec<_>>>() else { return Ok(false) };
        let write = |own: &Self| contents.iter().try_for_each(|(name, bytes)| write_atomically(&own.file(name), bytes));
        self.replace(stage, record.clone(), write)?;
        Ok(true)
    }

    /// Names of the settings' folders.
    ///
    /// # Errors
    /// A ledger that cannot be read.
    pub fn settings(&self) -> Result<Vec<String>> {
        Ok(self.ledger()?.settings)
    }

    /// Notes the settings' folders, which are then known to be ours.
    ///
    /// # Errors
    /// What the system says.
    pub fn note_settings(&self, settings: Vec<String>) -> Result<()> {
        let mut ledger = self.ledger()?;
        if ledger.settings == settings {
            return Ok(());
        }
        ledger.settings = settings;
        self.write_json(LEDGER, &ledger)
    }

    /// Removes the files of all stages, what is derived from them, and nothing else.
    ///
    /// # Errors
    /// What the system says.
    pub fn discard_stages(&self) -> Result<()> {
        let mut ledger = self.ledger()?;
        if ledger.stages.is_empty() {
            return Ok(());
        }
        // What is derived from the stages goes with them.
        let derived = [ENOUGH, FITS, VERIFICATION[0], VERIFICATION[1]].map(str::to_owned);
        let shown = std::mem::take(&mut ledger.shown).files;
        self.remove_files(ledger.stages.values().flat_map(|record| &record.files).chain(&derived).chain(&shown))?;
        let _ = std::fs::remove_dir(self.file(FIGURES));
        ledger.stages.clear();
        self.write_json(LEDGER, &ledger)
    }

    /// Removes what this program wrote into the folder of one setting, and the folder where nothing else is in it.
    ///
    /// # Errors
    /// What the system says.
    pub fn discard(&self) -> Result<()> {
        self.discard_stages()?;
        self.remove_files([&LEDGER.to_owned()])?;
        // Files of others stay, and their folder with them.
        let _ = std::fs::remove_dir(&self.path);
        Ok(())
    }

    fn remove_files<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> Result<()> {
        // A ledger is a file that anyone can edit: names that lead out of the folder are not ours.
        let own = |name: &&String| match Path::new(name).components().collect::<Vec<_>>()[..] {
            [Component::Normal(_)] => true,
            [Component::Normal(folder), Component::Normal(_)] => folder == FIGURES,
            _ => false,
        };
        for name in names.into_iter().filter(own) {
            match std::fs::remove_file(self.file(name)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::file(&self.file(name), e, "remove it by hand and run again"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What shows the results that lie here.
    ///
    /// # Errors
    /// A ledger that cannot be read.
    pub fn shown(&self) -> Result<Shown> {
        Ok(self.ledger()?.shown)
    }

    /// Writes the files that show results, those that differ from what is there, and removes earlier ones that are none of them.
    ///
    /// # Errors
    /// What the system says.
    pub fn show(&self, fingerprint: &str, files: &Files) -> Result<()> {
        let mut ledger = self.ledger()?;
        let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
        self.remove_files(ledger.shown.files.iter().filter(|name| !names.contains(name)))?;
        // First: what is written before the process is killed is known as ours.
        ledger.shown = Shown { fingerprint: String::new(), files: names.clone() };
        self.write_json(LEDGER, &ledger)?;
        for (name, content) in files {
            let path = self.file(name);
            if std::fs::read(&path).ok().as_ref() != Some(content) {
                let parent = path.parent().unwrap_or(&self.path);
                std::fs::create_dir_all(parent).map_err(|e| Error::file(parent, e, ELSEWHERE))?;
                write_atomically(&path, content)?;
            }
        }
        // Last: a folder whose files were not all written is not taken for one that shows its results.
        ledger.shown = Shown { fingerprint: fingerprint.to_owned(), files: names };
        self.write_json(LEDGER, &ledger)
    }

    /// Whether what shows the results is there and shows what has this hash.
    ///
    /// # Errors
    /// A ledger that cannot be read.
    pub fn is_shown(&self, fingerprint: &str) -> Result<bool> {
        let shown = self.shown()?;
        Ok(shown.fingerprint == fingerprint && shown.files.iter().all(|name| self.file(name).exists()))
    }

    /// This folder and those inside it, to a depth of two: every place where results of a study may lie.
    pub fn within(&self) -> Vec<Self> {
        let inside = |folder: &Self| -> Vec<Self> {
            let entries = std::fs::read_dir(&folder.path).into_iter().flatten().flatten();
            // Work folders of runs and figures hold no results.
            let is_result =
                |path: &PathBuf| path.is_dir() && path.file_name().is_none_or(|name| name != "runs" && name != FIGURES);
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_result).collect();
            paths.sort();
            paths.into_iter().map(Self::new).collect()
        };
        let children = inside(self);
        let grandchildren: Vec<Self> = children.iter().flat_map(inside).collect();
        [self.clone()].into_iter().chain(children).chain(grandchildren).collect()
    }

    /// Writes the training set, failed runs among it.
    pub fn write_training(&self, set: &TrainingSet, failed: &[FailedRun]) -> Result<()> {
        self.prepare()?;
        let mut done = 0..set.n_runs();
        // Number of the run and row of the training set, or the failed run, for each line.
        let mut rows: Vec<(usize, std::result::Result<usize, &FailedRun>)> = Vec::new();
        for run in 1..=set.n_runs() + failed.len() {
            match failed.iter().find(|f| f.run == run) {
                Some(failure) => rows.push((run, Err(failure))),
                None => rows.extend(set.rows_of(done.next().unwrap_or(0)).map(|row| (run, Ok(row)))),
            }
        }
        // Where there is no value, a cell is empty.
        let text = |value: f64| if value.is_nan() { String::new() } else { format!("{value}") };
        let mut table = Table::new().with_numbers("run", rows.iter().map(|(run, _)| *run as f64).collect())?;
        for (d, name) in set.input_names.iter().enumerate() {
            let values = rows.iter().map(|(_, row)| match row {
                Ok(i) => text(set.inputs[(*i, d)]),
                Err(failure) => failure.inputs.get(d).map_or(String::new(), |x| text(*x)),
            });
            table = table.with_texts(name, values.collect())?;
        }
        for (name, y) in &set.outputs {
            let texts = rows.iter().map(|(_, row)| row.as_ref().map_or(String::new(), |i| text(y[*i])));
            table = table.with_texts(name, texts.collect())?;
        }
        let reasons =
            rows.iter().map(|(_, row)| row.as_ref().err().map_or("ok".into(), |f| format!("failed: {}", f.reason)));
        table.with_texts("state", reasons.collect())?.write(&self.file("training.csv"))
    }

    /// Writes what a verification came to, and its values.
    pub fn write_verification<T: Serialize + DeserializeOwned>(&self, verification: &T, values: &Table) -> Result<()> {
        self.write_json(VERIFICATION[0], verification)?;
        values.write(&self.file(VERIFICATION[1]))
    }

    /// Number of runs of the training set that failed.
    pub fn failed_runs(&self) -> Result<usize> {
        let states = Table::read(&self.file("training.csv"))?.texts("state")?;
        Ok(states.iter().filter(|state| *state != "ok").count())
    }

    /// Inputs of every run of the training set, and its state: `ok`, or `failed: ` with the reason.
    pub fn read_run_states(&self, inputs: &[String]) -> Result<(Matrix, Vec<String>)> {
        let table = Table::read(&self.file("training.csv"))?;
        let (x, states, runs) = (table.matrix(inputs)?, table.texts("state")?, table.numbers("run")?);
        // A series has a line for each of its values.
        let first: Vec<usize> = (0..runs.len()).filter(|&i| i == 0 || runs[i] != runs[i - 1]).collect();
        Ok((x.select_rows(&first), first.iter().map(|&i| states[i].clone()).collect()))
    }

    /// Reads the training set back, without failed runs and simulation noise, and the points of the design (from zero) that its
    /// runs are of. Inputs after the first `n_run_inputs` may be missing in a row.
    pub fn read_training(
        &self,
        inputs: &[String],
        n_run_inputs: usize,
        outputs: &[String],
    ) -> Result<(TrainingSet, Vec<usize>)> {
        let table = Table::read(&self.file("training.csv"))?;
        let states = table.texts("state")?;
        let ok: Vec<usize> = (0..states.len()).filter(|&i| states[i] == "ok").collect();
        let (run_inputs, numbers) = (table.matrix(&inputs[..n_run_inputs])?, table.numbers("run")?);
        let or_nan = |values: Vec<Option<f64>>| values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect();
        let others = inputs[n_run_inputs..].iter().map(|name| Ok(or_nan(table.optional_numbers(name)?)));
        let others: Vec<Vec<f64>> = others.collect::<Result<_>>()?;
        let all = Matrix::from_fn(table.n_rows(), inputs.len(), |row, d| {
            if d < n_run_inputs { run_inputs[(row, d)] } else { others[d - n_run_inputs][row] }
        });
        // Lines of one run stand together.
        let (mut points, mut runs): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        for point in ok.iter().map(|&i| (numbers[i] as usize).saturating_sub(1)) {
            if points.last() != Some(&point) {
                points.push(point);
            }
            runs.push(points.len() - 1);
        }
        let outputs = outputs
            .iter()
            .map(|name| {
                let values = table.optional_numbers(name)?;
                Ok((name.clone(), ok.iter().map(|&i| values[i].unwrap_or(f64::NAN)).collect()))
            })
            .collect::<Result<_>>()?;
        let inputs_ok = all.select_rows(&ok);
        Ok((TrainingSet { input_names: inputs.to_vec(), inputs: inputs_ok, outputs, sigma_s: None, runs }, points))
    }

    /// Writes T-draws and what is known of them.
    pub fn write_t_step(&self, draws: &Draws, reports: &[TReport]) -> Result<()> {
        self.prepare()?;
        draws_table(draws)?.write(&self.file("t_draws.csv"))?;
        self.write_json("t_step.json", &reports.to_vec())
    }

    /// Reads T-draws and reports back.
    pub fn read_t_step(&self) -> Result<(Draws, Vec<TReport>)> {
        Ok((read_draws(&self.file("t_draws.csv"))?, self.read_json("t_step.json")?))
    }

    /// Writes a file of measurements.
    pub fn write_measurements(&self, content: &[u8]) -> Result<()> {
        self.prepare()?;
        write_atomically(&self.file(MEASUREMENTS), content)
    }

    /// Names of the files that measurements and I-posteriors by these methods are kept in.
    pub fn i_step_files<'a>(methods: impl Iterator<Item = &'a str>) -> Vec<String> {
        [MEASUREMENTS, "i_step.json"].map(String::from).into_iter().chain(methods.map(i_draws_file)).collect()
    }

    /// Writes the draws of one I-posterior.
    pub fn write_i_draws(&self, names: &[String], posterior: &IPosterior) -> Result<()> {
        self.prepare()?;
        let mut table = Table::new();
        for (d, name) in names.iter().enumerate() {
            let values: Vec<f64> = posterior.draws.iter().map(|x| x[d]).collect();
            table = table.with_numbers(name, finite(&format!("I-draws by {}", posterior.method), name, values)?)?;
        }
        if let Some(t_draws) = &posterior.t_draws {
            table = table.with_numbers(own_column("t_draw", names), t_draws.iter().map(|&s| s as f64).collect())?;
        }
        if let Some(transitions) = &posterior.transitions {
            for (k, name) in TRANSITION.into_iter().enumerate() {
                // A trajectory that ends at once may have no acceptance.
                let text = |value: f64| if value.is_finite() { format!("{value}") } else { String::new() };
                let column = transitions.iter().map(|transition| text(transition_values(transition)[k])).collect();
                table = table.with_texts(own_column(name, names), column)?;
            }
        }
        table.write(&self.file(&i_draws_file(&posterior.method)))
    }

    /// Writes summaries of I-posteriors whose draws are written, and with them which methods there are.
    pub fn write_i_step(&self, posteriors: &[IPosterior]) -> Result<()> {
        self.write_json("i_step.json", &posteriors.to_vec())
    }

    /// Reads I-posteriors back.
    pub fn read_i_step(&self, names: &[String]) -> Result<Vec<IPosterior>> {
        let mut posteriors: Vec<IPosterior> = self.read_json("i_step.json")?;
        for posterior in &mut posteriors {
            let table = Table::read(&self.file(&i_draws_file(&posterior.method)))?;
            let values = table.matrix(names)?;
            posterior.draws = (0..values.rows()).map(|i| values.row(i).to_vec()).collect();
            let t_draw = own_column("t_draw", names);
            if table.has(&t_draw) {
                posterior.t_draws = Some(table.numbers(&t_draw)?.iter().map(|&s| s as usize).collect());
            }
            let columns = TRANSITION.map(|name| own_column(name, names));
            if columns.iter().all(|name| table.has(name)) {
                let numbers = columns.iter().map(|name| table.optional_numbers(name)).collect::<Result<Vec<_>>>()?;
                let of_draw = |i: usize| transition(|k| numbers[k][i].unwrap_or(f64::NAN));
                posterior.transitions = Some((0..table.n_rows()).map(of_draw).collect());
            }
        }
        Ok(posteriors)
    }

    /// Writes whether the runs were enough.
    pub fn write_enough<T: Serialize + DeserializeOwned>(&self, enough: &T) -> Result<()> {
        self.write_json(ENOUGH, enough)
    }

    /// Reads it back.
    pub fn read_enough<T: DeserializeOwned>(&self) -> Result<T> {
        self.read_json(ENOUGH)
    }

    /// Writes the fits that it rests on, as far as they are done.
    pub fn write_fits<T: Serialize + DeserializeOwned>(&self, fits: &T) -> Result<()> {
        self.write_json(FITS, fits)
    }

    /// Reads them back.
    pub fn read_fits<T: DeserializeOwned>(&self) -> Result<T> {
        self.read_json(FITS)
    }
}

/// Columns beside the draws of a chain, with the names that ArviZ has for them.
const TRANSITION: [&str; 7] = ["lp", "energy", "diverging", "tree_depth", "n_steps", "acceptance_rate", "step_size"];

fn transition_values(t: &Transition) -> [f64; 7] {
    let diverging = f64::from(u8::from(t.diverging));
    [t.log_density, t.energy, diverging, t.tree_depth as f64, t.n_steps as f64, t.acceptance, t.step_size]
}

fn transition(value: impl Fn(usize) -> f64) -> Transition {
    Transition {
        log_density: value(0),
        energy: value(1),
        diverging: value(2) != 0.0,
        tree_depth: value(3) as u64,
        n_steps: value(4) as u64,
        acceptance: value(5),
        step_size: value(6),
    }
}

/// Name of a column beside those of the parameters, none of which it may take.
fn own_column(name: &str, parameters: &[String]) -> String {
    let mut own = name.to_owned();
    while parameters.contains(&own) {
        own.insert(0, '_');
    }
    own
}

fn i_draws_file(method: &str) -> String {
    format!("i_draws_{method}.csv")
}

/// The values, if they can be read back.
fn finite(what: &str, name: &str, values: Vec<f64>) -> Result<Vec<f64>> {
    match values.iter().find(|v| !v.is_finite()) {
        Some(value) => Err(Error::failed(what, format!("{name} is {value} in one of them"), "report this as a bug")),
        None => Ok(values),
    }
}

/// T-draws as a table: one draw a row, parameters by name, then `weight`.
fn draws_table(draws: &Draws) -> Result<Table> {
    let mut table = Table::new();
    for (p, name) in draws.names().iter().enumerate() {
        table = table.with_numbers(name, finite("T-draws", name, draws.values().row(p).to_vec())?)?;
    }
    table.with_numbers("weight", draws.weights())
}

/// Draws from a CSV file with one column per parameter and an optional `weight`.
///
/// # Errors
/// A file that cannot be read, or weights that are negative or all zero.
pub fn read_draws(path: &Path) -> Result<Draws> {
    let table = Table::read(path)?;
    let names: Vec<String> = table.names().filter(|n| *n != "weight").map(String::from).collect();
    let columns = names.iter().map(|name| table.numbers(name)).collect::<Result<Vec<_>>>()?;
    let n = table.n_rows();
    if n == 0 {
        return Err(Error::invalid(path.display().to_string(), "has no draws", "give at least one row"));
    }
    let values = Matrix::from_fn(names.len(), n, |p, s| columns[p][s]);
    if !table.has("weight") {
        return Ok(Draws::new(names, values));
    }
    let weights = table.numbers("weight")?;
    if weights.iter().any(|w| *w < 0.0) || weights.iter().sum::<f64>() <= 0.0 {
        return Err(Error::invalid(
            format!("{}, column `weight`", path.display()),
            "has a negative weight, or none above zero",
            "give non-negative weights",
        ));
    }
    Ok(Draws::weighted(names, values, weights.iter().map(|w| w.ln()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::LeaveOneOut;

    /// A folder of one test alone, that is not there yet.
    fn folder(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("twostep-store-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder::new(path)
    }

    fn record(fingerprint: &str, files: &[&str]) -> StageRecord {
        let files = files.iter().map(|name| (*name).to_owned()).collect();
        StageRecord { fingerprint: fingerprint.into(), files, ..StageRecord::default() }
    }

    /// Writes each name as the content of its file.
    fn write(names: &[&str]) -> impl FnOnce(&Folder) -> Result<()> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        move |folder| names.iter().try_for_each(|name| write_atomically(&folder.file(name), name.as_bytes()))
    }

    fn names(folder: &Folder) -> Vec<String> {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_stage_replaces_its_own_files_and_no_others() {
        let outer = folder("replace");
        let folder = Folder::new(outer.file("results"));
        let lock = folder.lock("a.toml").unwrap();
        std::fs::write(folder.file("notes.txt"), "mine").unwrap();
        folder.replace(Stage::Infer, record("1", &["a", "b"]), write(&["a", "b"])).unwrap();
        folder.replace(Stage::Infer, record("2", &["b", "c"]), write(&["b", "c"])).unwrap();
        assert_eq!(names(&folder), [LOCK, "b", "c", "notes.txt", LEDGER]);
        let failed = folder.replace(Stage::Infer, record("3", &["d"]), |_| Err(Error::Interrupted));
        assert!(failed.is_err());
        let unfinished = folder.record(Stage::Infer).unwrap().unwrap();
        assert_eq!(
            (unfinished.fingerprint.as_str(), unfinished.files),
            ("", ["d", "b", "c"].map(String::from).to_vec())
        );

        let other = Folder::new(folder.file("other"));
        folder.replace(Stage::Infer, record("4", &["d"]), write(&["d"])).unwrap();
        other.own().unwrap();
        assert!(!other.take_over(Stage::Infer, "3", &folder).unwrap());
        assert!(other.take_over(Stage::Infer, "4", &folder).unwrap());
        assert_eq!(folder.within(), [folder.clone(), other.clone()]);
        std::fs::write(other.file("notes.txt"), "mine").unwrap();
        other.discard().unwrap();
        assert_eq!(names(&other), ["notes.txt"]);

        std::fs::remove_file(folder.file("d")).unwrap();
        assert_eq!(folder.missing(&folder.record(Stage::Infer).unwrap().unwrap()), Some("d"));
        std::fs::write(outer.file("thesis.csv"), "mine").unwrap();
        folder.replace(Stage::Infer, record("5", &["../thesis.csv"]), |_| Ok(())).unwrap();
        folder.discard_stages().unwrap();
        assert_eq!(
            (names(&outer), folder.records().unwrap()),
            (vec!["results".into(), "thesis.csv".into()], Vec::new())
        );
        drop(lock);
        std::fs::remove_dir_all(outer.path()).unwrap();
    }

    #[test]
    fn one_process_writes_into_a_folder_and_only_into_its_own() {
        let folder = folder("lock");
        let lock = || folder.lock("a.toml");
        let held = lock().unwrap();
        let second = lock().unwrap_err().to_string();
        assert!(second.contains("another twostep is working in this folder; wait"), "{second}");
        drop(held);
        lock().unwrap();
        let other = folder.lock("b.toml").unwrap_err().to_string();
        assert!(other.contains("holds results of a.toml, which those of b.toml would replace; give --out"), "{other}");
        folder.hand_over("b.toml").unwrap();
        assert!(folder.lock("a.toml").unwrap_err().to_string().contains("holds results of b.toml"));
        drop(folder.lock("b.toml").unwrap());
        folder.hand_over("a.toml").unwrap();
        std::fs::remove_file(folder.file(LEDGER)).unwrap();
        lock().unwrap();
        std::fs::remove_file(folder.file(LEDGER)).unwrap();
        std::fs::write(folder.file("thesis.csv"), "").unwrap();
        let refused = lock().unwrap_err().to_string();
        assert!(refused.contains("not results of twostep (thesis.csv); give --out a new or empty folder"), "{refused}");
        let file = Folder::new(folder.file("thesis.csv")).lock("a.toml").unwrap_err().to_string();
        assert!(file.contains("results need a folder, and this is a file"), "{file}");
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn what_shows_results_is_replaced_and_goes_with_them() {
        let folder = folder("shown");
        let lock = folder.lock("a.toml").unwrap();
        folder.replace(Stage::Infer, record("1", &["a"]), write(&["a"])).unwrap();
        let files = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), b"x".to_vec())).collect::<Vec<_>>();
        folder.show("1", &files(&["report.html", "figures/a.svg", "figures/b.svg"])).unwrap();
        assert!(folder.is_shown("1").unwrap() && !folder.is_shown("2").unwrap());
        std::fs::write(folder.file("figures/mine.svg"), "").unwrap();
        folder.show("2", &files(&["report.html", "figures/a.svg"])).unwrap();
        let there = ["a", "b", "mine"].map(|name| folder.file(&format!("figures/{name}.svg")).exists());
        assert_eq!(there, [true, false, true]);
        std::fs::remove_file(folder.file("figures/a.svg")).unwrap();
        assert!(!folder.is_shown("2").unwrap());
        folder.show("2", &files(&["report.html", "figures/a.svg"])).unwrap();
        folder.discard_stages().unwrap();
        assert_eq!(names(&folder), [LOCK, FIGURES, LEDGER]);
        assert!(folder.file("figures/mine.svg").exists() && !folder.file("figures/a.svg").exists());
        drop(lock);
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn a_stage_that_is_extended_stays_finished() {
        let folder = folder("extend");
        let lock = folder.lock("a.toml").unwrap();
        folder.replace(Stage::Infer, record("1", &["a", "b"]), write(&["a", "b"])).unwrap();
        let before = folder.record(Stage::Infer).unwrap();
        assert!(folder.extend(Stage::Infer, record("1", &["a", "c"]), |_| Err(Error::Interrupted)).is_err());
        assert_eq!(folder.record(Stage::Infer).unwrap(), before);
        folder.extend(Stage::Infer, record("1", &["a", "c"]), write(&["c"])).unwrap();
        assert_eq!(names(&folder), [LOCK, "a", "c", LEDGER]);
        drop(lock);
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn a_ledger_that_cannot_be_read_is_not_replaced() {
        let folder = folder("ledger");
        drop(folder.lock("a.toml").unwrap());
        // Fields of other versions, missing and added.
        let text = r#"{ "stages": { "train": { "fingerprint": "1", "colour": "red" } }, "colour": "red" }"#;
        std::fs::write(folder.file(LEDGER), text).unwrap();
        drop(folder.lock("a.toml").unwrap());
        assert_eq!(folder.record(Stage::Train).unwrap(), Some(record("1", &[])));
        std::fs::write(folder.file(LEDGER), "{").unwrap();
        for refused in [folder.lock("a.toml").map(drop), folder.own(), folder.note_settings(vec!["a".into()])] {
            let message = refused.unwrap_err().to_string();
            assert!(message.contains("stages.json: cannot be read") && message.contains("delete it"), "{message}");
        }
        assert_eq!(std::fs::read_to_string(folder.file(LEDGER)).unwrap(), "{");
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn runs_that_failed_are_left_out_and_the_others_keep_their_rows() {
        let folder = folder("training");
        let outputs = vec![("y".to_owned(), vec![3.0, 5.0])];
        let inputs = Matrix::from_rows(2, 1, vec![0.1, 0.3]);
        let set = TrainingSet { input_names: vec!["a".into()], inputs, outputs, sigma_s: None, runs: vec![0, 1] };
        let failed = FailedRun { run: 2, inputs: vec![0.2], reason: "no".into() };
        folder.write_training(&set, &[failed]).unwrap();
        assert_eq!(folder.read_training(&["a".into()], 1, &["y".into()]).unwrap(), (set, vec![0, 2]));
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn what_could_not_be_read_back_is_not_written() {
        let folder = folder("refuse");
        let leave_one_out = |q2| LeaveOneOut {
            q2,
            coverage_90: 1.0,
            predictions: vec![None, Some((1.0, 0.5))],
            unreliable: 0,
            log_scores: Vec::new(),
        };
        let report = |coverage: f64, q2: Option<f64>| TReport {
            output: "y".into(),
            method: "exact".into(),
            n_rows: 1,
            n_runs: 1,
            parameters: Vec::new(),
            predictive_coverage_90: coverage,
            leave_one_out: leave_one_out(q2),
            divergences: 0,
            troubled: false,
            warnings: Vec::new(),
            choice: None,
            terms: None,
            series: None,
            importance: None,
        };
        let draws = |value: f64| Draws::new(vec!["c".into()], Matrix::from_rows(1, 1, vec![value]));
        let kept = vec![report(1.0, None)];
        folder.write_t_step(&draws(2.0), &kept).unwrap();
        assert_eq!(folder.read_t_step().unwrap(), (draws(2.0), kept.clone()));

        let refused = folder.write_t_step(&draws(2.0), &[report(f64::NAN, None)]).unwrap_err().to_string();
        assert!(refused.contains("t_step.json: cannot keep `\"predictive_coverage_90\": null,`"), "{refused}");
        let refused = folder.write_t_step(&draws(f64::INFINITY), &kept).unwrap_err().to_string();
        assert!(refused.contains("T-draws: c is inf in one of them"), "{refused}");
        assert_eq!(folder.read_t_step().unwrap(), (draws(2.0), kept));
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn chains_are_read_back_whatever_their_parameters_are_called() {
        let folder = folder("chains");
        let names = ["t_draw", "lp", "_lp"].map(String::from);
        let transition = Transition {
            log_density: -1.5,
            energy: 2.5,
            diverging: true,
            tree_depth: 3,
            n_steps: 7,
            acceptance: 0.75,
            step_size: 0.5,
        };
        let written = IPosterior {
            method: "e-lik".into(),
            version: None,
            engine: "nuts".into(),
            unknowns: Vec::new(),
            trust: String::new(),
            diagnostics: crate::infer::Diagnostics::default(),
            warnings: Vec::new(),
            draws: vec![vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0]],
            t_draws: Some(vec![8, 9]),
            chains: 2,
            transitions: Some(vec![transition, Transition { diverging: false, ..transition }]),
        };
        folder.write_i_draws(&names, &written).unwrap();
        folder.write_i_step(std::slice::from_ref(&written)).unwrap();
        assert_eq!(folder.read_i_step(&names).unwrap(), [written]);
        // Files that know of no chains.
        let path = folder.file("i_step.json");
        let text = std::fs::read_to_string(&path).unwrap().replace("    \"chains\": 2\n", "    \"unused\": 2\n");
        std::fs::write(&path, text).unwrap();
        std::fs::write(folder.file("i_draws_e-lik.csv"), "t_draw,lp,_lp\n1,2,3\n").unwrap();
        let read = folder.read_i_step(&names).unwrap().remove(0);
        assert_eq!((read.chains, read.t_draws, read.transitions), (1, None, None));
        std::fs::remove_dir_all(&folder.path).unwrap();
    }
}
