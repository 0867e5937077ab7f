//! Does a study: which stages are stale, what can be reused, what is computed and kept.

mod calibrate;
mod check;
mod compare;
mod enough;
mod findings;
mod merge;
mod predict;
mod runs;
mod serve;
mod shares;
mod stages;
mod summary;
mod surrogate;
mod trials;
mod verify;

pub use calibrate::{Calibration, CalibrationPlan, calibration_json, calibration_plan_json};
pub use check::{MeasuredCounts, StudyPlan};
pub use compare::{Compared, ComparedBy, Comparison, Contender, compare};
pub use enough::{Enough, EnoughResult, SuggestedRuns, SurrogateShare, Width, Widths, enough_json};
pub use findings::Findings;
pub use merge::{Collector, Merged, MissingUnits, Units};
pub use predict::{At, Predicted, log_likelihoods, predict, predicted};
pub use runs::{Changed, Imported, Only, RunEntry};
pub use serve::{Served, served};
pub use shares::{ShareDone, TrialUnit};
pub use stages::planned_runs;
pub use summary::summary;
pub use trials::Runs;
pub use verify::{Verification, VerifiedValue};

use crate::calibrate::CalibrateSpec;
use crate::error::{Error, Result};
use crate::infer::propagation::Method;
use crate::infer::{IPosterior, Measured};
use crate::kernels::instruction_set;
use crate::matrix::Matrix;
use crate::monitor::Monitor;
use crate::simulate::design::Method as DesignMethod;
use crate::store::{FailedRun, Files, Folder, Lock, StageRecord};
use crate::study::{MeasurementSource, Setting, Stage, digest};
use crate::table::counted;
use crate::train::{TPosterior, TReport, TrainingSet};
use runs::Known;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

/// Version of this program, kept with every result.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How names of folders for other measurements than the study's begin; keys of a sweep have another.
const MEASUREMENTS: &str = "measurements=";

/// Failed runs that a warning names.
const SHOWN_FAILURES: usize = 3;

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
    /// Hash of everything that the I-step depends on.
    pub study_hash: String,
    /// What made the last stage reached.
    pub made_by: StageRecord,
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

/// What each stage of a setting will be recorded as, without files and duration. Made once, before any work: files that a
/// stage depends on may change meanwhile.
struct Plan([StageRecord; 3]);

impl Plan {
    fn of(&self, stage: Stage) -> &StageRecord {
        &self.0[stage as usize]
    }
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
        let beside = |path: &Path| {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            parent.canonicalize().or_else(|_| std::path::absolute(parent)).ok()
        };
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Files of one name in several folders are told apart, but not a file called from several folders.
        let whole = match beside(file) {
            folder if folder == beside(&self.root) => name.clone(),
            folder => folder.unwrap_or_default().join(&name).display().to_string(),
        };
        self.folder = self.root.join(folder_name(&format!("{MEASUREMENTS}{name}"), &format!("{MEASUREMENTS}{whole}")));
        self
    }

    /// The same study with another calibration.
    pub fn with_calibration(mut self, change: impl Fn(&mut CalibrateSpec)) -> Self {
        self.settings.iter_mut().for_each(|setting| change(&mut setting.study.calibrate));
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

    /// Makes results that were brought to the folder those of this study's file.
    ///
    /// # Errors
    /// A folder whose ledger cannot be read or written.
    pub fn adopt(&self) -> Result<()> {
        Folder::new(self.root.clone()).hand_over(&self.settings[0].study.file_name())
    }

    /// Name of the file of measurements that was given in place of the study's.
    pub fn other_measurements_file(&self) -> Option<String> {
        match &self.settings[0].study.measurements {
            MeasurementSource::File(path) if self.folder != self.root => {
                Some(path.file_name().unwrap_or_default().to_string_lossy().into_owned())
            }
            _ => None,
        }
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
    ///
    /// # Errors
    /// A run ledger or a table of runs that cannot be read.
    pub fn status(&self) -> Result<Vec<StageStatus>> {
        let mut out = Vec::new();
        for (i, setting) in self.settings.iter().enumerate() {
            let (mut before, plan, mut set) = (true, self.plan(i)?, None);
            let pending = if setting.study.simulator.is_external() { self.known(i)?.pending } else { 0 };
            let changed = self.changed_simulator(i)?;
            for stage in Stage::ALL {
                let found = match stage {
                    Stage::Simulate => self.finished(i, &plan, stage, |_| self.training(i)).map(|(record, found)| {
                        set = Some(found);
                        record
                    }),
                    Stage::Train => {
                        let read = |folder: &Folder| match &set {
                            Some(set) => self.t_posterior(i, set).map(drop),
                            None => folder.read_t_step().map(drop),
                        };
                        self.finished(i, &plan, stage, read).map(|(record, ())| record)
                    }
                    Stage::Infer => self.finished(i, &plan, stage, |_| self.i_posteriors(i)).map(|(record, _)| record),
                };
                let (fresh, reason) = match found {
                    _ if stage == Stage::Simulate && changed.is_some() => (false, changed.clone().unwrap_or_default()),
                    _ if stage != Stage::Simulate && !before => (false, "an earlier stage is stale".into()),
                    _ if stage == Stage::Simulate && pending > 0 => {
                        (false, format!("{} to be made", counted(pending, "run")))
                    }
                    Ok(record) => (true, format!("{:.1} s, version {}", record.seconds, record.version)),
                    Err(stale) => (false, stale.into_reason()),
                };
                before = fresh;
                out.push(StageStatus { label: setting.label.clone(), stage, fresh, reason });
            }
        }
        Ok(out)
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

    /// Writes files that show results, each list into its folder: see [`Folder::show`].
    ///
    /// # Errors
    /// A folder that cannot be used.
    pub fn show(&self, shown: &[(Folder, Files)], fingerprint: &str) -> Result<()> {
        let mut workplace = None;
        self.claim(&mut workplace)?;
        shown.iter().try_for_each(|(folder, files)| {
            folder.own()?;
            folder.show(fingerprint, files)
        })
    }

    /// Takes the folder, if that was not done before.
    fn claim<'a>(&self, workplace: &'a mut Option<Workplace>) -> Result<&'a mut Workplace> {
        if workplace.is_none() {
            let root = Folder::new(self.root.clone());
            let own = Folder::new(self.folder.clone());
            let lock = root.lock(&self.settings[0].study.file_name())?;
            if self.folder != self.root {
                own.own()?;
            }
            let mut names = own.settings()?;
            let new = (0..self.settings.len()).filter_map(|i| self.setting_name(i));
            new.for_each(|name| {
                if !names.contains(&name) {
                    names.push(name)
                }
            });
            own.note_settings(names)?;
            let mut finished = HashMap::new();
            for folder in root.within() {
                // Where the ledger cannot be read there is nothing to take over.
                let whole = |record: &StageRecord| !record.fingerprint.is_empty() && folder.missing(record).is_none();
                for record in folder.records().unwrap_or_default().into_iter().filter(whole) {
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
            own.settings()?.into_iter().partition(|name| current.contains(name));
        // Stages of the time before the study had a sweep.
        let superseded = !current.is_empty() && !own.records()?.is_empty();
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

        self.complete(index, &Only::Pending, Changed::Ask, workplace, monitor)?;
        let plan = self.plan(index)?;
        let (set, made_by, origin) = self.stage(
            index,
            &plan,
            Stage::Simulate,
            &["training.csv"],
            workplace,
            |_| self.training(index),
            || self.simulate(index, monitor),
            |folder, (set, failed)| folder.write_training(set, failed),
        )?;
        let failed = self.setting_folder(index).failed_runs()?;
        let mut result = SettingResult {
            label: label.clone(),
            folder: folder.path().to_path_buf(),
            runs: [set.n_runs(), failed],
            t_reports: Vec::new(),
            measured: Vec::new(),
            posteriors: Vec::new(),
            answer: study.infer.answer.name().into(),
            origins: vec![(Stage::Simulate, origin)],
            study_hash: plan.of(Stage::Infer).fingerprint.clone(),
            made_by,
            warnings: Vec::new(),
        };
        warnings.extend(self.about_runs(index, failed)?);
        if until != Stage::Simulate {
            self.refuse_failures(index, &set, failed)?;
            warnings.extend(stages::unreachable_outputs(study, &set)?);
            let (posterior, made_by, origin) = self.stage(
                index,
                &plan,
                Stage::Train,
                &["t_draws.csv", "t_step.json"],
                workplace,
                |_| self.t_posterior(index, &set),
                || stages::train(study, &set, stages::root(study), monitor),
                |folder, posterior| folder.write_t_step(&posterior.draws, &reports(posterior)),
            )?;
            result.origins.push((Stage::Train, origin));
            result.made_by = made_by;
            result.t_reports = reports(&posterior);
            warnings.extend(result.t_reports.iter().flat_map(|r| r.warnings.clone()));
            if until == Stage::Infer {
                let measured = self.measured(index)?;
                let (posteriors, made_by, origin) =
                    self.infer_stage(index, &plan, workplace, &posterior, &measured, monitor)?;
                result.origins.push((Stage::Infer, origin));
                result.made_by = made_by;
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
        plan: &Plan,
        stage: Stage,
        read: impl Fn(&Folder) -> Result<T>,
    ) -> std::result::Result<(StageRecord, T), Stale> {
        let (folder, planned) = (self.setting_folder(index), plan.of(stage));
        let record = folder.record(stage).map_err(Stale::unusable)?.ok_or(Stale::Never)?;
        if record.fingerprint != planned.fingerprint {
            return Err(match record.fingerprint.as_str() {
                "" => Stale::Unusable("was stopped while its files were written".into()),
                _ => Stale::Changed(changes(&record, planned)),
            });
        }
        if let Some(name) = folder.missing(&record) {
            return Err(Stale::Unusable(format!("{name} is missing")));
        }
        let value = read(&folder).map_err(Stale::unusable)?;
        Ok((record, value))
    }

    /// Whether a stage's result is there and can be used.
    fn is_fresh(&self, index: usize, stage: Stage) -> bool {
        self.plan(index).is_ok_and(|plan| self.finished(index, &plan, stage, |_| Ok(())).is_ok())
    }

    /// Takes a stage over from wherever in the project it is finished.
    fn take_over(&self, index: usize, plan: &Plan, stage: Stage, workplace: &mut Option<Workplace>) -> Result<bool> {
        let folder = self.setting_folder(index);
        let workplace = self.claim(workplace)?;
        // A folder that cannot be used is refused before any work is done.
        folder.own()?;
        let fingerprint = &plan.of(stage).fingerprint;
        match workplace.finished.get(fingerprint) {
            Some(source) if *source != folder => folder.take_over(stage, fingerprint, source),
            _ => Ok(false),
        }
    }

    /// What the stages of a setting will be recorded as.
    ///
    /// # Errors
    /// A run ledger or a table of runs that cannot be read.
    fn plan(&self, index: usize) -> Result<Plan> {
        let study = &self.settings[index].study;
        let runs = self.runs_digest(index)?;
        Ok(Plan(Stage::ALL.map(|stage| StageRecord {
            fingerprint: study.fingerprint(stage, &runs),
            parts: study.part_fingerprints(stage, &runs),
            version: VERSION.into(),
            instruction_set: instruction_set().into(),
            ..StageRecord::default()
        })))
    }

    /// Hash of the runs that are not of a built-in simulator's design; empty where there are none.
    fn runs_digest(&self, index: usize) -> Result<String> {
        let known = self.known(index)?;
        let is_builtin = self.settings[index].study.simulator.builtin().is_some();
        Ok(if is_builtin && known.outcomes.is_empty() {
            String::new()
        } else {
            known.digest() + &self.truth_digest(index)?
        })
    }

    /// A stage's result: kept, taken over from another folder of the project, or made by `work` and written to `files` by
    /// `write`.
    fn stage<T, W>(
        &self,
        index: usize,
        plan: &Plan,
        stage: Stage,
        files: &[&str],
        workplace: &mut Option<Workplace>,
        read: impl Fn(&Folder) -> Result<T>,
        work: impl FnOnce() -> Result<W>,
        write: impl FnOnce(&Folder, &W) -> Result<()>,
    ) -> Result<(T, StageRecord, Origin)> {
        if let Ok((record, value)) = self.finished(index, plan, stage, &read) {
            return Ok((value, record, Origin::Kept));
        }
        if self.take_over(index, plan, stage, workplace)?
            && let Ok((record, value)) = self.finished(index, plan, stage, &read)
        {
            return Ok((value, record, Origin::Shared));
        }
        let start = Instant::now();
        let product = work()?;
        let files = files.iter().map(|name| (*name).to_owned()).collect();
        let seconds = start.elapsed().as_secs_f64();
        let record = StageRecord { files, seconds, finished: seconds_since_1970(), ..plan.of(stage).clone() };
        let folder = self.setting_folder(index);
        self.claim(workplace)?.finished.insert(record.fingerprint.clone(), folder.clone());
        folder.replace(stage, record.clone(), |folder| write(folder, &product))?;
        Ok((read(&folder)?, record, Origin::Computed))
    }

    /// The I-posteriors by the study's methods, in its order. Each is kept as soon as it is finished.
    fn infer_stage(
        &self,
        index: usize,
        plan: &Plan,
        workplace: &mut Option<Workplace>,
        posterior: &TPosterior,
        measured: &[Measured],
        monitor: &dyn Monitor,
    ) -> Result<(Vec<IPosterior>, StageRecord, Origin)> {
        let study = &self.settings[index].study;
        let names = stages::parameter_names(study, measured);
        let read = |folder: &Folder| folder.read_i_step(&names);
        let (mut found, mut origin) = (self.finished(index, plan, Stage::Infer, read).ok(), Origin::Kept);
        if found.is_none() && self.take_over(index, plan, Stage::Infer, workplace)? {
            (found, origin) = (self.finished(index, plan, Stage::Infer, read).ok(), Origin::Shared);
        }
        let mut is_finished = found.is_some();
        let (mut record, mut posteriors) = found.unwrap_or_else(|| (plan.of(Stage::Infer).clone(), Vec::new()));
        let is_by = |p: &IPosterior, method: &Method| p.method == method.name() && p.version == method.version();
        let order = |p: &IPosterior| study.infer.methods.iter().position(|method| is_by(p, method));
        let n_found = posteriors.len();
        posteriors.retain(|p| order(p).is_some());
        let is_missing = |method: &&Method| !posteriors.iter().any(|p| is_by(p, method));
        let missing: Vec<Method> = study.infer.methods.iter().filter(is_missing).copied().collect();
        if missing.is_empty() && posteriors.len() == n_found {
            posteriors.sort_by_key(order);
            return Ok((posteriors, record, origin));
        }
        let folder = self.setting_folder(index);
        self.claim(workplace)?.finished.insert(record.fingerprint.clone(), folder.clone());
        let files = |posteriors: &[IPosterior]| Folder::i_step_files(posteriors.iter().map(|p| p.method.as_str()));
        if missing.is_empty() {
            posteriors.sort_by_key(order);
            record.files = files(&posteriors);
            folder.extend(Stage::Infer, record.clone(), |folder| folder.write_i_step(&posteriors))?;
            return Ok((posteriors, record, origin));
        }
        let used = stages::measurement_file(study, measured)?;
        record = StageRecord { seconds: record.seconds, ..plan.of(Stage::Infer).clone() };
        let mut start = Instant::now();
        let fits = self.kept_fits(&record.fingerprint)?;
        stages::infer(study, posterior, measured, &missing, fits, monitor, &mut |new| {
            let is_new: Vec<String> = new.iter().map(|p| p.method.clone()).collect();
            posteriors.extend(new);
            posteriors.sort_by_key(order);
            record.files = files(&posteriors);
            record.seconds += start.elapsed().as_secs_f64();
            record.finished = seconds_since_1970();
            start = Instant::now();
            // Draws before the list of methods: what is listed is whole at any time.
            let write = |folder: &Folder| {
                let mut new = posteriors.iter().filter(|p| is_new.contains(&p.method));
                new.try_for_each(|p| folder.write_i_draws(&names, p))?;
                folder.write_i_step(&posteriors)
            };
            if is_finished {
                return folder.extend(Stage::Infer, record.clone(), write);
            }
            is_finished = true;
            folder.replace(Stage::Infer, record.clone(), |folder| {
                folder.write_measurements(&used)?;
                write(folder)
            })
        })?;
        Ok((posteriors, record, Origin::Computed))
    }

    /// The training rows of a setting: the design's runs by a built-in simulator, and all others that exist.
    fn simulate(&self, index: usize, monitor: &dyn Monitor) -> Result<(TrainingSet, Vec<FailedRun>)> {
        let study = &self.settings[index].study;
        let known = self.known(index)?;
        if study.simulator.builtin().is_none() {
            if known.outcomes.is_empty() {
                let pending = counted(known.pending, "run");
                let repair = "`twostep design STUDY --export FILE` writes them; make them and bring them in with `twostep import`";
                return Err(Error::failed("simulate", format!("no run is finished, {pending} to be made"), repair));
            }
            return stages::training_set(study, &known.x, &known.outcomes);
        }
        let call = stages::Call::known(study, None)?;
        let x = stages::points(study, stages::root(study))?;
        let mut outcomes = stages::outcomes(&call, &x, stages::root(study), monitor)?;
        outcomes.extend(known.outcomes);
        let rows = x.rows();
        let x =
            Matrix::from_fn(outcomes.len(), x.cols(), |i, d| if i < rows { x[(i, d)] } else { known.x[(i - rows, d)] });
        stages::training_set(study, &x, &outcomes)
    }

    /// What there is to know about the runs.
    fn about_runs(&self, index: usize, failed: usize) -> Result<Vec<String>> {
        let study = &self.settings[index].study;
        let mut warnings = Vec::new();
        let Known { pending, unused, .. } = self.known(index)?;
        // Sequences are continued: what a smaller design leaves out, a larger one takes up again.
        let is_whole = [DesignMethod::LatinHypercube, DesignMethod::Grid].contains(&study.design.method);
        if unused > 0 && is_whole && study.design.points.is_none() {
            let unused = counted(unused, "finished run");
            warnings.push(format!(
                "{unused} of an earlier design not used: a design by {} is another one for each number of runs; sobol and halton \
                 continue theirs",
                study.design.method
            ));
        }
        if pending > 0 {
            let pending = counted(pending, "run");
            warnings
                .push(format!("{pending} of the design to be made; `twostep design STUDY --export FILE` writes them"));
        }
        if failed == 0 {
            return Ok(warnings);
        }
        let names = &study.input_names()[..study.n_run_inputs()];
        let (x, states) = self.setting_folder(index).read_run_states(names)?;
        let has_failed: Vec<bool> = states.iter().map(|state| state != "ok").collect();
        let failures = (0..states.len()).filter(|&i| has_failed[i]).take(SHOWN_FAILURES).map(|i| {
            let inputs: Vec<String> = names.iter().zip(x.row(i)).map(|(name, x)| format!("{name} = {x}")).collect();
            format!("at {}: {}", inputs.join(", "), states[i].trim_start_matches("failed: "))
        });
        let failures: Vec<String> = failures.collect();
        let more = if failed > failures.len() { "; ..." } else { "" };
        let counted = counted(failed, "simulator run");
        warnings.push(format!(
            "{counted} failed, left out of training ({}{more}); `twostep runs STUDY --state failed` lists them",
            failures.join("; ")
        ));
        warnings.extend(runs::clustered_failures(study, &x, &has_failed));
        Ok(warnings)
    }

    /// Refuses to train where too many runs failed.
    fn refuse_failures(&self, index: usize, set: &TrainingSet, failed: usize) -> Result<()> {
        let most = self.settings[index].study.simulator.max_failed;
        let all = set.n_runs() + failed;
        if failed as f64 <= most * all as f64 {
            return Ok(());
        }
        Err(Error::failed(
            "train",
            format!("{failed} of {} failed, more than simulator.max_failed = {most}", counted(all, "run")),
            "`twostep runs STUDY` says why and where; `twostep simulate STUDY --only failed` tries them again",
        ))
    }

    /// The training set that a finished simulate stage left.
    fn training(&self, index: usize) -> Result<TrainingSet> {
        let study = &self.settings[index].study;
        let outputs = study.output_names();
        let folder = self.setting_folder(index);
        let (set, points) = folder.read_training(&study.input_names(), study.n_run_inputs(), &outputs)?;
        stages::with_known_noise(study, set, &points)
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
        let is_by = |p: &IPosterior, method: &Method| p.method == method.name() && p.version == method.version();
        let missing = |method: &&Method| !posteriors.iter().any(|p| is_by(p, method));
        match study.infer.methods.iter().find(missing) {
            Some(method) => Err(Error::invalid(method.name(), "not computed yet", "run `twostep run`")),
            None => Ok(posteriors),
        }
    }

    fn measured(&self, index: usize) -> Result<Vec<Measured>> {
        stages::measured(&self.settings[index].study, self.ledger()?.as_ref())
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
    fn unusable(problem: Error) -> Self {
        Self::Unusable(match problem {
            Error::Invalid { place, found, .. } => format!("{place}: {found}"),
            problem => problem.to_string(),
        })
    }

    fn into_reason(self) -> String {
        match self {
            Self::Never => "never run".into(),
            Self::Changed(reason) | Self::Unusable(reason) => reason,
        }
    }
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// What of the study's part in a stage is not as it was when the stage was finished.
fn changes(record: &StageRecord, planned: &StageRecord) -> String {
    let now = &planned.parts;
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

    const STUDY: &str = r#"
[simulator]
builtin = "logistic"
[unknowns.omega]
range = [-1, 1]
[design]
points = "design.csv"
[surrogate]
kind = "pce"
degree = 1
[train]
draws = 10
[measurements]
noise = { sd = 0.1 }
"#;

    /// A folder of one test alone with a design of five runs, and the study's settings.
    fn study(test: &str) -> (PathBuf, Vec<Setting>) {
        let folder = std::env::temp_dir().join(format!("twostep-run-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("design.csv"), "omega\n-1\n-0.5\n0\n0.5\n1\n").unwrap();
        let settings = crate::study::parse(STUDY, "study.toml", &folder).unwrap_or_else(|e| panic!("{e}"));
        (folder, settings)
    }

    /// Writes another design while the simulator runs.
    struct Meddler(PathBuf);

    impl Monitor for Meddler {
        fn proceed(&self) -> bool {
            true
        }

        fn progress(&self, what: &str, _: usize, _: usize) {
            if what == "simulate" {
                std::fs::write(&self.0, "omega\n-1\n-0.6\n0.1\n0.6\n1\n").unwrap();
            }
        }
    }

    #[test]
    fn a_file_that_changes_during_the_work_makes_every_later_stage_stale() {
        let (folder, settings) = study("meddled");
        let project = Project::new(settings, folder.join("results"));
        project.run(Stage::Train, &Meddler(folder.join("design.csv"))).unwrap();
        let fresh: Vec<bool> = project.status().unwrap().iter().map(|status| status.fresh).collect();
        assert_eq!(fresh, [false, false, false]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_of_measurements_has_one_folder_whichever_way_it_is_named() {
        let (folder, settings) = study("named");
        std::fs::create_dir(folder.join("sub")).unwrap();
        let place = |file: &str| {
            let project = Project::new(settings.clone(), folder.join("results"));
            project.with_measurements(&folder.join(file)).folder().to_path_buf()
        };
        assert_eq!(place("sub/../y.csv"), place("y.csv"));
        assert_ne!(place("sub/y.csv"), place("y.csv"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
