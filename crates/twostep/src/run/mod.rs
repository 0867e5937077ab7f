//! Does a study: which stages are stale, what can be reused, what is computed and kept.

mod predict;
mod stages;
mod summary;

pub use predict::predict;
pub use summary::summary;

use crate::error::{Error, Result};
use crate::infer::{IPosterior, Measured};
use crate::kernels::instruction_set;
use crate::monitor::Monitor;
use crate::store::{Folder, StageRecord};
use crate::study::{MeasurementSource, Setting, Stage, Study};
use crate::train::{TPosterior, TReport, TrainingSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Version of this program, kept with every result.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A study's settings and the folder that keeps their results.
pub struct Project {
    settings: Vec<Setting>,
    folder: PathBuf,
}

/// How a stage was had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Computed now.
    Computed,
    /// Kept from an earlier run.
    Kept,
    /// Shared with another setting of the sweep.
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

impl Project {
    /// Results of `settings` are kept in `folder`.
    pub fn new(settings: Vec<Setting>, folder: PathBuf) -> Self {
        Self { settings, folder }
    }

    /// The settings.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// The folder of results.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a setting: the project's own without a sweep.
    pub fn setting_folder(&self, index: usize) -> Folder {
        if self.settings.len() == 1 {
            return Folder::new(self.folder.clone());
        }
        let digits = self.settings.len().to_string().len();
        Folder::new(self.folder.join(format!("setting-{:0digits$}", index + 1)))
    }

    /// Freshness of every stage of every setting.
    pub fn status(&self) -> Vec<StageStatus> {
        let mut out = Vec::new();
        for (i, setting) in self.settings.iter().enumerate() {
            let folder = self.setting_folder(i);
            let records = folder.stages();
            let mut before = true;
            for stage in Stage::ALL {
                let now = setting.study.fingerprint(stage);
                let (fresh, reason) = match records.get(stage.name()) {
                    None => (false, "never run".to_string()),
                    Some(record) if record.fingerprint == now => {
                        (true, format!("{:.1} s, version {}", record.seconds, record.version))
                    }
                    Some(_) if !before => (false, "an earlier stage is stale".into()),
                    Some(_) => (false, stale_reason(stage).into()),
                };
                before = fresh;
                out.push(StageStatus { label: setting.label.clone(), stage, fresh, reason });
            }
        }
        out
    }

    /// Does every setting up to `until`, reusing what is fresh. Results of finished settings are kept whatever happens.
    ///
    /// # Errors
    /// The first stage that failed, or an interruption.
    pub fn run(&self, until: Stage, monitor: &dyn Monitor) -> Result<Vec<SettingResult>> {
        let mut results = Vec::new();
        for i in 0..self.settings.len() {
            monitor.progress("settings", i, self.settings.len());
            results.push(self.run_setting(i, until, monitor)?);
        }
        monitor.progress("settings", self.settings.len(), self.settings.len());
        if until == Stage::Infer {
            summary::write(self, &results)?;
        }
        Ok(results)
    }

    fn run_setting(&self, index: usize, until: Stage, monitor: &dyn Monitor) -> Result<SettingResult> {
        let Setting { label, study } = &self.settings[index];
        let folder = self.setting_folder(index);
        let mut origins = Vec::new();
        let mut warnings: Vec<String> = study.notes.iter().map(|note| note.message.clone()).collect();

        self.stage(index, Stage::Simulate, &mut origins, || {
            let (set, failed) = stages::simulate(study, monitor)?;
            folder.write_training(&set, &failed)
        })?;
        let set = self.training(index)?;
        let failed = stages::planned_runs(study)?.saturating_sub(set.inputs.rows());
        let mut result = SettingResult {
            label: label.clone(),
            folder: folder.path().to_path_buf(),
            runs: [set.inputs.rows(), failed],
            t_reports: Vec::new(),
            posteriors: Vec::new(),
            answer: study.infer.answer.name().into(),
            origins: Vec::new(),
            warnings: Vec::new(),
        };
        if failed > 0 {
            warnings.push(format!("{failed} simulator runs failed and are left out of training; see training.csv"));
        }
        if until != Stage::Simulate {
            warnings.extend(stages::unreachable_outputs(study, &set)?);
            self.stage(index, Stage::Train, &mut origins, || {
                let posterior = stages::train(study, &set, monitor)?;
                let reports: Vec<TReport> = posterior.outputs.iter().map(|o| o.report.clone()).collect();
                folder.write_t_step(&posterior.draws, &reports)
            })?;
            let posterior = self.t_posterior(index, &set)?;
            result.t_reports = posterior.outputs.iter().map(|o| o.report.clone()).collect();
            warnings.extend(result.t_reports.iter().flat_map(|r| r.warnings.clone()));
            if until == Stage::Infer {
                let names = stages::parameter_names(study, &self.measured(index)?);
                self.stage(index, Stage::Infer, &mut origins, || {
                    let measured = self.measured(index)?;
                    if let MeasurementSource::Synthetic { .. } = study.measurements {
                        folder.write_measurements(&stages::measurement_table(study, &measured)?)?;
                    }
                    let posteriors = stages::infer(study, &posterior, &measured, monitor)?;
                    folder.write_i_step(&names, &posteriors)
                })?;
                result.posteriors = folder.read_i_step(&names)?;
                warnings.extend(result.posteriors.iter().flat_map(|p| p.warnings.clone()));
            }
        }
        let mut seen = std::collections::HashSet::new();
        warnings.retain(|w| seen.insert(w.clone()));
        result.warnings = warnings;
        result.origins = origins;
        Ok(result)
    }

    /// Makes a stage fresh: kept, taken over from another setting, or computed by `work`, which writes its files.
    fn stage(
        &self,
        index: usize,
        stage: Stage,
        origins: &mut Vec<(Stage, Origin)>,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let folder = self.setting_folder(index);
        let fingerprint = self.settings[index].study.fingerprint(stage);
        if folder.is_fresh(stage, &fingerprint) && stages::files(stage).iter().all(|f| folder.path().join(f).exists()) {
            origins.push((stage, Origin::Kept));
            return Ok(());
        }
        let twin = (0..self.settings.len())
            .filter(|&other| other != index)
            .map(|other| self.setting_folder(other))
            .find(|other| other.is_fresh(stage, &fingerprint));
        folder.forget(stage)?;
        let start = Instant::now();
        let origin = match twin {
            Some(twin) if stage != Stage::Infer => {
                std::fs::create_dir_all(folder.path())
                    .map_err(|e| Error::file(folder.path(), e, "choose a folder you may write to with --out"))?;
                for name in stages::files(stage) {
                    let (from, to) = (twin.path().join(name), folder.path().join(name));
                    std::fs::copy(&from, &to)
                        .map_err(|e| Error::file(&to, e, "make room on the disk and run again"))?;
                }
                Origin::Shared
            }
            _ => {
                work()?;
                Origin::Computed
            }
        };
        folder.finish(
            stage,
            StageRecord {
                fingerprint,
                seconds: start.elapsed().as_secs_f64(),
                version: VERSION.into(),
                instruction_set: instruction_set().into(),
            },
        )?;
        origins.push((stage, origin));
        Ok(())
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

    fn measured(&self, index: usize) -> Result<Vec<Measured>> {
        stages::measured(&self.settings[index].study)
    }
}

fn stale_reason(stage: Stage) -> &'static str {
    match stage {
        Stage::Simulate => "simulator, ranges, design or seed changed",
        Stage::Train => "surrogate, output scale or [train] changed",
        Stage::Infer => "priors, noise, measurements, derived quantities or [infer] changed",
    }
}

/// A study whose measurements are those of another file.
pub fn with_measurements(study: &mut Study, file: &Path) {
    study.measurements = MeasurementSource::File(file.to_path_buf());
}
