//! Does a study: which stages are stale, what can be reused, what is computed and kept.

mod predict;
mod stages;
mod summary;

pub use predict::predict;
pub use summary::summary;

use crate::error::{Error, Result};
use crate::infer::propagation::Method;
use crate::infer::{IPosterior, Measured};
use crate::kernels::instruction_set;
use crate::monitor::Monitor;
use crate::store::{Folder, Lock, StageRecord};
use crate::study::{MeasurementSource, Setting, Stage, Study, digest};
use crate::train::{TPosterior, TReport, TrainingSet};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Version of this program, kept with every result.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How names of folders for other measurements than the study's begin; keys of a sweep have another.
const MEASUREMENTS: &str = "measurements=";

/// A study's settings and the folder that keeps their results.
pub struct Project {
    settings: Vec<Setting>,
    /// The study's folder.
    root: PathBuf,
    /// Where these results lie: the root, or inside it for other measurements than the study's.
    folder: PathBuf,
}

/// How a stage was had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Computed now.
    Computed,
    /// Kept from an earlier run.
    Kept,
    /// Shared with another setting, or with other measurements.
    Shared,
}

/// Everything known of one setting after a run.
pub struct SettingResult {
    /// Values of what is swept, as `key = value`; empty without a sweep.
    pub label: Vec<(String, String)>,
    /// Its folder.
    pub folder: PathBuf,
    /// Number of training runs, and of failed ones.
    pub runs: [usize; 2],
    /// T-step reports, where it was reached.
    pub t_reports: Vec<TReport>,
    /// Outputs and the number of their measured values, where the I-step was reached.
    pub measured: Vec<(String, usize)>,
    /// I-posteriors, where it was reached.
    pub posteriors: Vec<IPosterior>,
    /// The method that leads.
    pub answer: String,
    /// How each stage reached was had.
    pub origins: Vec<(Stage, Origin)>,
    /// Warnings of the study and of all stages, each once.
    pub warnings: Vec<String>,
}

/// Freshness of one stage of one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct StageStatus {
    /// The setting's label.
    pub label: Vec<(String, String)>,
    /// The stage.
    pub stage: Stage,
    /// Whether its result can be used as it is.
    pub fresh: bool,
    /// Why not, or when it was made.
    pub reason: String,
}

/// The right to write into a project's folder, and where each stage that is finished in it lies.
struct Workplace {
    _lock: Lock,
    finished: HashMap<String, Folder>,
}

impl Project {
    /// Results of `settings` are kept in `folder`.
    pub fn new(settings: Vec<Setting>, folder: PathBuf) -> Self {
        Self { settings, root: folder.clone(), folder }
    }

    /// The same study with the measurements in `file`. Results lie in a folder of their own inside the study's, so that those
    /// of its own measurements stay as they are; what does not depend on measurements is shared.
    pub fn with_measurements(mut self, file: &Path) -> Self {
        for setting in &mut self.settings {
            setting.study.measurements = MeasurementSource::File(file.to_path_buf());
        }
        let beside = |path: &Path| std::path::absolute(path).ok().and_then(|path| Some(path.parent()?.to_path_buf()));
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Files of one name in several folders are told apart, but not a file called from several folders.
        let whole = match beside(file) {
            folder if folder == beside(&self.root) => name.clone(),
            folder => folder.unwrap_or_default().join(&name).display().to_string(),
        };
        self.folder = self.root.join(folder_name(&format!("{MEASUREMENTS}{name}"), &format!("{MEASUREMENTS}{whole}")));
        self
    }

    /// The settings.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// The folder of results.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Folders of results of the same study with other measurements.
    pub fn other_measurements(&self) -> Vec<PathBuf> {
        let is_other = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            path.parent() == Some(&self.root) && name.starts_with(MEASUREMENTS) && *path != self.folder
        };
        let inside = Folder::new(self.root.clone()).within();
        inside.iter().map(|folder| folder.path().to_path_buf()).filter(is_other).collect()
    }

    /// The folder of a setting: the project's own without a sweep, else one inside it that is named after the setting.
    pub fn setting_folder(&self, index: usize) -> Folder {
        Folder::new(self.setting_name(index).map_or_else(|| self.folder.clone(), |name| self.folder.join(name)))
    }

    /// Name of the folder of a setting of a sweep.
    fn setting_name(&self, index: usize) -> Option<String> {
        let parts: Vec<String> =
            self.settings[index].label.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let label = parts.join(",");
        (!label.is_empty()).then(|| folder_name(&label, &label))
    }

    /// Freshness of every stage of every setting.
    pub fn status(&self) -> Vec<StageStatus> {
        let mut out = Vec::new();
        for (i, setting) in self.settings.iter().enumerate() {
            let mut before = true;
            for stage in Stage::ALL {
                let found = match stage {
                    Stage::Simulate => self.finished(i, stage, |_| self.training(i).map(drop)),
                    Stage::Train => self.finished(i, stage, |folder| folder.read_t_step().map(drop)),
                    Stage::Infer => self.finished(i, stage, |_| self.i_posteriors(i).map(drop)),
                };
                let (fresh, reason) = match found {
                    Ok((record, ())) => (true, format!("{:.1} s, version {}", record.seconds, record.version)),
                    Err(Stale::Changed(_)) if !before => (false, "an earlier stage is stale".into()),
                    Err(stale) => (false, stale.into_reason()),
                };
                before = fresh;
                out.push(StageStatus { label: setting.label.clone(), stage, fresh, reason });
            }
        }
        out
    }

    /// Does every setting up to `until`, reusing what is fresh. Results of finished settings are kept whatever happens.
    ///
    /// Nothing is written, nor need the folder be writable, where all is fresh.
    ///
    /// # Errors
    /// A folder that cannot be used, the first stage that failed, or an interruption.
    pub fn run(&self, until: Stage, monitor: &dyn Monitor) -> Result<Vec<SettingResult>> {
        let mut workplace = None;
        let mut results = Vec::new();
        for i in 0..self.settings.len() {
            monitor.progress("settings", i, self.settings.len());
            results.push(self.run_setting(i, until, &mut workplace, monitor)?);
        }
        monitor.progress("settings", self.settings.len(), self.settings.len());
        if until == Stage::Infer {
            for (name, content) in summary::files(self, &results)? {
                let path = self.folder.join(name);
                if std::fs::read(&path).ok().as_ref() != Some(&content) {
                    self.claim(&mut workplace)?;
                    crate::table::write_atomically(&path, &content)?;
                }
            }
            self.remove_leftovers(&mut workplace)?;
        }
        Ok(results)
    }

    /// Takes the folder, if that was not done before.
    fn claim<'a>(&self, workplace: &'a mut Option<Workplace>) -> Result<&'a mut Workplace> {
        if workplace.is_none() {
            let root = Folder::new(self.root.clone());
            let own = Folder::new(self.folder.clone());
            let lock = root.lock()?;
            if self.folder != self.root {
                own.own()?;
            }
            let mut names = own.settings();
            let new = (0..self.settings.len()).filter_map(|i| self.setting_name(i));
            new.for_each(|name| {
                if !names.contains(&name) {
                    names.push(name)
                }
            });
            own.note_settings(names)?;
            let mut finished = HashMap::new();
            for folder in root.within() {
                for (_, record) in folder.records() {
                    finished.entry(record.fingerprint).or_insert_with(|| folder.clone());
                }
            }
            *workplace = Some(Workplace { _lock: lock, finished });
        }
        Ok(workplace.as_mut().expect("taken above"))
    }

    /// Removes what this program wrote for settings that the study no longer has.
    fn remove_leftovers(&self, workplace: &mut Option<Workplace>) -> Result<()> {
        let own = Folder::new(self.folder.clone());
        let current: Vec<String> = (0..self.settings.len()).filter_map(|i| self.setting_name(i)).collect();
        let (kept, gone): (Vec<String>, Vec<String>) =
            own.settings().into_iter().partition(|name| current.contains(name));
        // Stages of the time before the study had a sweep.
        let superseded = !current.is_empty() && !own.records().is_empty();
        if gone.is_empty() && !superseded {
            return Ok(());
        }
        self.claim(workplace)?;
        for name in &gone {
            Folder::new(self.folder.join(name)).discard()?;
        }
        if superseded {
            own.discard_stages()?;
        }
        own.note_settings(kept)
    }

    fn run_setting(
        &self,
        index: usize,
        until: Stage,
        workplace: &mut Option<Workplace>,
        monitor: &dyn Monitor,
    ) -> Result<SettingResult> {
        let Setting { label, study } = &self.settings[index];
        let folder = self.setting_folder(index);
        let mut warnings: Vec<String> = study.notes.iter().map(|note| note.message.clone()).collect();

        let (set, origin) = self.stage(
            index,
            Stage::Simulate,
            &["training.csv"],
            workplace,
            |_| self.training(index),
            || stages::simulate(study, monitor),
            |folder, (set, failed)| folder.write_training(set, failed),
        )?;
        let failed = stages::planned_runs(study)?.saturating_sub(set.inputs.rows());
        let mut result = SettingResult {
            label: label.clone(),
            folder: folder.path().to_path_buf(),
            runs: [set.inputs.rows(), failed],
            t_reports: Vec::new(),
            measured: Vec::new(),
            posteriors: Vec::new(),
            answer: study.infer.answer.name().into(),
            origins: vec![(Stage::Simulate, origin)],
            warnings: Vec::new(),
        };
        if failed > 0 {
            warnings.push(format!("{failed} simulator runs failed and are left out of training; see training.csv"));
        }
        if until != Stage::Simulate {
            warnings.extend(stages::unreachable_outputs(study, &set)?);
            let (posterior, origin) = self.stage(
                index,
                Stage::Train,
                &["t_draws.csv", "t_step.json"],
                workplace,
                |_| self.t_posterior(index, &set),
                || stages::train(study, &set, monitor),
                |folder, posterior| folder.write_t_step(&posterior.draws, &reports(posterior)),
            )?;
            result.origins.push((Stage::Train, origin));
            result.t_reports = reports(&posterior);
            warnings.extend(result.t_reports.iter().flat_map(|r| r.warnings.clone()));
            if until == Stage::Infer {
                let measured = self.measured(index)?;
                let (posteriors, origin) = self.infer_stage(index, workplace, &posterior, &measured, monitor)?;
                result.origins.push((Stage::Infer, origin));
                result.measured = measured.into_iter().map(|m| (m.output, m.y.len())).collect();
                result.posteriors = posteriors;
                warnings.extend(result.posteriors.iter().flat_map(|p| p.warnings.clone()));
            }
        }
        let mut seen = std::collections::HashSet::new();
        warnings.retain(|w| seen.insert(w.clone()));
        result.warnings = warnings;
        Ok(result)
    }

    /// A finished stage's record and result, or why there is none that can be used.
    fn finished<T>(
        &self,
        index: usize,
        stage: Stage,
        read: impl Fn(&Folder) -> Result<T>,
    ) -> std::result::Result<(StageRecord, T), Stale> {
        let (folder, study) = (self.setting_folder(index), &self.settings[index].study);
        let record = folder.record(stage).ok_or(Stale::Never)?;
        if record.fingerprint != study.fingerprint(stage) {
            return Err(match record.fingerprint.as_str() {
                "" => Stale::Unusable("was stopped while its files were written".into()),
                _ => Stale::Changed(changes(&record, study, stage)),
            });
        }
        if let Some(name) = folder.missing(&record) {
            return Err(Stale::Unusable(format!("{name} is missing")));
        }
        match read(&folder) {
            Ok(value) => Ok((record, value)),
            Err(Error::Invalid { place, found, .. }) => Err(Stale::Unusable(format!("{place}: {found}"))),
            Err(problem) => Err(Stale::Unusable(problem.to_string())),
        }
    }

    /// Takes a stage over from wherever in the project it is finished.
    fn take_over(&self, index: usize, stage: Stage, workplace: &mut Option<Workplace>) -> Result<bool> {
        let folder = self.setting_folder(index);
        let fingerprint = self.settings[index].study.fingerprint(stage);
        match self.claim(workplace)?.finished.get(&fingerprint) {
            Some(source) if *source != folder => {
                folder.own()?;
                folder.take_over(stage, &fingerprint, source)
            }
            _ => Ok(false),
        }
    }

    /// The record of a stage of the study as it is, without files and duration. To be made before the work: files that the
    /// stage depends on may change meanwhile.
    fn record(&self, index: usize, stage: Stage) -> StageRecord {
        let study = &self.settings[index].study;
        StageRecord {
            fingerprint: study.fingerprint(stage),
            parts: study.part_fingerprints(stage),
            version: VERSION.into(),
            instruction_set: instruction_set().into(),
            ..StageRecord::default()
        }
    }

    /// Replaces a stage's files by what `write` writes.
    fn keep(
        &self,
        index: usize,
        stage: Stage,
        workplace: &mut Option<Workplace>,
        record: StageRecord,
        write: impl FnOnce(&Folder) -> Result<()>,
    ) -> Result<()> {
        let folder = self.setting_folder(index);
        let workplace = self.claim(workplace)?;
        folder.own()?;
        workplace.finished.insert(record.fingerprint.clone(), folder.clone());
        folder.replace(stage, record, write)
    }

    /// A stage's result: kept, taken over from another folder of the project, or made by `work` and written to `files` by
    /// `write`.
    fn stage<T, W>(
        &self,
        index: usize,
        stage: Stage,
        files: &[&str],
        workplace: &mut Option<Workplace>,
        read: impl Fn(&Folder) -> Result<T>,
        work: impl FnOnce() -> Result<W>,
        write: impl FnOnce(&Folder, &W) -> Result<()>,
    ) -> Result<(T, Origin)> {
        if let Ok((_, value)) = self.finished(index, stage, &read) {
            return Ok((value, Origin::Kept));
        }
        if self.take_over(index, stage, workplace)?
            && let Ok((_, value)) = self.finished(index, stage, &read)
        {
            return Ok((value, Origin::Shared));
        }
        let (start, record) = (Instant::now(), self.record(index, stage));
        let product = work()?;
        let files = files.iter().map(|name| (*name).to_owned()).collect();
        let record = StageRecord { files, seconds: start.elapsed().as_secs_f64(), ..record };
        self.keep(index, stage, workplace, record, |folder| write(folder, &product))?;
        Ok((read(&self.setting_folder(index))?, Origin::Computed))
    }

    /// The I-posteriors by the study's methods, in its order. Each is kept as soon as it is finished.
    fn infer_stage(
        &self,
        index: usize,
        workplace: &mut Option<Workplace>,
        posterior: &TPosterior,
        measured: &[Measured],
        monitor: &dyn Monitor,
    ) -> Result<(Vec<IPosterior>, Origin)> {
        let study = &self.settings[index].study;
        let names = stages::parameter_names(study, measured);
        let read = |folder: &Folder| folder.read_i_step(&names);
        let (mut found, mut origin) = (self.finished(index, Stage::Infer, read).ok(), Origin::Kept);
        if found.is_none() && self.take_over(index, Stage::Infer, workplace)? {
            (found, origin) = (self.finished(index, Stage::Infer, read).ok(), Origin::Shared);
        }
        let (mut seconds, mut posteriors) = found.map_or((0.0, Vec::new()), |(record, p)| (record.seconds, p));
        let order = |p: &IPosterior| study.infer.methods.iter().position(|method| method.name() == p.method);
        let n_found = posteriors.len();
        posteriors.retain(|p| order(p).is_some());
        let is_missing = |method: &&Method| posteriors.iter().all(|p| p.method != method.name());
        let missing: Vec<Method> = study.infer.methods.iter().filter(is_missing).copied().collect();
        if missing.is_empty() && posteriors.len() == n_found {
            posteriors.sort_by_key(order);
            return Ok((posteriors, origin));
        }
        self.claim(workplace)?;
        let record = self.record(index, Stage::Infer);
        let used = stages::measurement_file(study, measured)?;
        let mut keep = |posteriors: &mut Vec<IPosterior>, seconds: f64| {
            posteriors.sort_by_key(order);
            let files = Folder::i_step_files(posteriors.iter().map(|p| p.method.as_str()));
            let record = StageRecord { files, seconds, ..record.clone() };
            self.keep(index, Stage::Infer, workplace, record, |folder| {
                folder.write_measurements(&used)?;
                folder.write_i_step(&names, posteriors)
            })
        };
        if missing.is_empty() {
            keep(&mut posteriors, seconds)?;
            return Ok((posteriors, origin));
        }
        let mut start = Instant::now();
        stages::infer(study, posterior, measured, &missing, monitor, &mut |new| {
            posteriors.extend(new);
            seconds += start.elapsed().as_secs_f64();
            start = Instant::now();
            keep(&mut posteriors, seconds)
        })?;
        Ok((posteriors, Origin::Computed))
    }

    /// The training set that a finished simulate stage left.
    fn training(&self, index: usize) -> Result<TrainingSet> {
        let study = &self.settings[index].study;
        let outputs: Vec<String> = study.outputs.iter().map(|o| o.name.clone()).collect();
        let mut set = self.setting_folder(index).read_training(&study.input_names(), &outputs, None)?;
        set.sigma_s = stages::known_sigma_s(study, set.inputs.rows())?;
        Ok(set)
    }

    /// The T-posterior that a finished train stage left.
    fn t_posterior(&self, index: usize, set: &TrainingSet) -> Result<TPosterior> {
        let study = &self.settings[index].study;
        let (draws, reports) = self.setting_folder(index).read_t_step()?;
        crate::train::restore(set, &stages::tasks(study), &study.input_scales(), &draws, reports)
    }

    /// The I-posteriors by all of the study's methods that a finished infer stage left.
    fn i_posteriors(&self, index: usize) -> Result<Vec<IPosterior>> {
        let study = &self.settings[index].study;
        let names = stages::parameter_names(study, &self.measured(index)?);
        let posteriors = self.setting_folder(index).read_i_step(&names)?;
        let missing = |method: &&Method| posteriors.iter().all(|p| p.method != method.name());
        match study.infer.methods.iter().find(missing) {
            Some(method) => Err(Error::invalid(method.name(), "not computed yet", "run `twostep run`")),
            None => Ok(posteriors),
        }
    }

    fn measured(&self, index: usize) -> Result<Vec<Measured>> {
        stages::measured(&self.settings[index].study)
    }
}

/// Why a stage's result cannot be used.
enum Stale {
    /// There is none.
    Never,
    /// The study is another.
    Changed(String),
    /// Its files are not there, or not whole.
    Unusable(String),
}

impl Stale {
    fn into_reason(self) -> String {
        match self {
            Self::Never => "never run".into(),
            Self::Changed(reason) | Self::Unusable(reason) => reason,
        }
    }
}

/// What of the study's part in a stage is not as it was when the stage was finished.
fn changes(record: &StageRecord, study: &Study, stage: Stage) -> String {
    let now = study.part_fingerprints(stage);
    let mut changed: Vec<&str> =
        now.iter().filter(|(k, v)| record.parts.get(*k) != Some(v)).map(|(k, _)| k.as_str()).collect();
    changed.extend(record.parts.keys().filter(|key| !now.contains_key(*key)).map(String::as_str));
    match changed[..] {
        // The same study in the eyes of a version that reads it otherwise.
        [] => format!("made by version {}", record.version),
        _ => format!("{} changed", changed.join(", ")),
    }
}

fn reports(posterior: &TPosterior) -> Vec<TReport> {
    posterior.outputs.iter().map(|o| o.report.clone()).collect()
}

/// `text` as the name of a folder on any system; where that is not `whole` itself, with enough of its hash to tell it apart.
fn folder_name(text: &str, whole: &str) -> String {
    // Room for what is appended to it within the 255 bytes of a name.
    const LONGEST: usize = 80;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._=,+-".contains(c) { c } else { '_' };
    let name: String = text.chars().map(plain).take(LONGEST).collect();
    if name == whole { name } else { format!("{name}-{}", &digest(whole)[..8]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_named_after_their_settings() {
        assert_eq!(folder_name("design.runs=10,seed=2", "design.runs=10,seed=2"), "design.runs=10,seed=2");
        let [a, b] = ["p=f(1)", "p=f[1]"].map(|text| folder_name(text, text));
        assert!(a != b && a.starts_with("p=f_1_-") && b.starts_with("p=f_1_-"), "{a} {b}");
        let long = "x".repeat(300);
        assert_eq!(folder_name(&long, &long).len(), 89);
    }
}
