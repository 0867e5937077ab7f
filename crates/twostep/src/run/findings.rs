//! Everything that the finished stages of a setting left, for those who show it.

use super::Project;
use super::predict::unfinished;
use super::stages::{clustered, parameter_names, prepare, root};
use crate::draws::Draws;
use crate::error::Result;
use crate::infer::{IPosterior, Measured, Prepared};
use crate::store::{FailedRun, Folder, StageRecord};
use crate::study::{MeasurementSource, Stage, Study};
use crate::train::{TPosterior, TrainingSet};
use std::path::PathBuf;

/// What is known of one setting: as far as its stages are finished for the study as it is.
pub struct Findings {
    /// Its study.
    pub study: Study,
    /// Values of what is swept, as `key = value`; empty without a sweep.
    pub label: Vec<(String, String)>,
    /// Its folder.
    pub folder: PathBuf,
    /// Runs that a surrogate is trained with.
    pub training: TrainingSet,
    /// Runs that failed.
    pub failed: Vec<FailedRun>,
    /// The T-posterior, where there is one.
    pub posterior: Option<TPosterior>,
    /// Measurements of each output; empty where the I-step is not finished.
    pub measured: Vec<Measured>,
    /// Names of the unknowns and unknown sds; empty where the I-step is not finished.
    pub parameters: Vec<String>,
    /// I-posteriors by the study's methods, the answer first.
    pub answers: Vec<IPosterior>,
    /// What made each stage that is finished.
    pub records: Vec<(Stage, StageRecord)>,
    /// The first stage that is not finished, and why.
    pub stale: Option<(Stage, String)>,
}

impl Findings {
    /// The true values of unknowns, where measurements are synthetic.
    pub fn truth(&self) -> &[(String, f64)] {
        match &self.study.measurements {
            MeasurementSource::Synthetic { truth, .. } => truth,
            MeasurementSource::File(_) | MeasurementSource::None => &[],
        }
    }

    /// The stage that was finished for an earlier state of the study only, and what changed.
    pub fn outdated(&self) -> Option<(Stage, &str)> {
        let (stage, why) = self.stale.as_ref()?;
        let was_finished = Folder::new(self.folder.clone()).record(*stage).is_ok_and(|record| record.is_some());
        was_finished.then_some((*stage, why.as_str()))
    }

    /// The T-draws that the I-step goes by: all, or clusters of them.
    pub fn t_draws(&self) -> Option<Draws> {
        let posterior = self.posterior.as_ref()?;
        let clusters = clustered(&self.study, posterior, root(&self.study).named("infer"));
        Some(clusters.unwrap_or_else(|| posterior.draws.clone()))
    }

    /// The I-step made ready once more, for densities and likelihoods at I-draws; none where it is not finished.
    ///
    /// # Errors
    /// Those of [`Prepared::new`], which a finished I-step does not have.
    pub fn prepared(&self) -> Result<Option<Prepared>> {
        let (Some(posterior), Some(draws), false) = (&self.posterior, self.t_draws(), self.answers.is_empty()) else {
            return Ok(None);
        };
        let derived = self.study.derived_quantities()?;
        prepare(&self.study, posterior, &draws, &self.measured, derived).map(Some)
    }
}

impl Project {
    /// Whether setting `index` has runs as its study asks for them, so that there is something to show.
    pub fn has_runs(&self, index: usize) -> bool {
        self.is_fresh(index, Stage::Simulate)
    }

    /// What the finished stages of setting `index` left.
    ///
    /// # Errors
    /// Runs that are not finished: without them there is nothing to show. Files that cannot be read.
    pub fn findings(&self, index: usize) -> Result<Findings> {
        let setting = &self.settings[index];
        let study = setting.study.clone();
        let folder = self.setting_folder(index);
        let plan = self.plan(index)?;
        let (record, training) = self
            .finished(index, &plan, Stage::Simulate, |_| self.training(index))
            .map_err(|why| unfinished("report", Stage::Simulate, why))?;
        let names = &study.input_names()[..study.n_run_inputs()];
        let (x, states) = folder.read_run_states(names)?;
        let failed = (0..states.len()).filter(|&i| states[i] != "ok").map(|i| FailedRun {
            run: i + 1,
            inputs: x.row(i).to_vec(),
            reason: states[i].trim_start_matches("failed: ").to_owned(),
        });
        let mut found = Findings {
            label: setting.label.clone(),
            folder: folder.path().to_path_buf(),
            training,
            failed: failed.collect(),
            posterior: None,
            measured: Vec::new(),
            parameters: Vec::new(),
            answers: Vec::new(),
            records: vec![(Stage::Simulate, record)],
            stale: None,
            study,
        };
        match self.finished(index, &plan, Stage::Train, |_| self.t_posterior(index, &found.training)) {
            Ok((record, posterior)) => {
                found.posterior = Some(posterior);
                found.records.push((Stage::Train, record));
            }
            Err(why) => {
                found.stale = Some((Stage::Train, why.into_reason()));
                return Ok(found);
            }
        }
        match self.finished(index, &plan, Stage::Infer, |_| self.i_posteriors(index)) {
            Ok((record, mut answers)) => {
                // Stable: the others stay in the study's order.
                answers.sort_by_key(|p| p.method != found.study.infer.answer.name());
                found.answers = answers;
                found.records.push((Stage::Infer, record));
                found.measured = self.measured(index)?;
                found.parameters = parameter_names(&found.study, &found.measured);
            }
            Err(why) => found.stale = Some((Stage::Infer, why.into_reason())),
        }
        Ok(found)
    }
}
