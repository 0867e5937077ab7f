//! Calibrates a study: says what that costs, does the trials that are missing, and writes what they show.

use super::runs::Bench;
use super::trials::{Layout, Runs, Trier, forecast, needs_own_runs};
use super::{Project, VERSION, Workplace, stages};
use crate::calibrate::{self, Context, MethodSummary, Trial, Truth, summarise};
use crate::error::Result;
use crate::infer::propagation::Method;
use crate::kernels::instruction_set;
use crate::monitor::Monitor;
use crate::store::{Heading, Journal, Shard, TPosteriors, TRIALS};
use crate::study::{Setting, Stage};
use crate::surrogate::SigmaA;
use crate::table::{Table, write_atomically};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

/// Name of the file of statistics.
const SUMMARY: &str = "calibration.json";

/// What the calibration of one setting takes.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibrationPlan {
    /// Values of what is swept; empty without a sweep.
    pub label: Vec<(String, String)>,
    /// Where truths and data come from.
    pub truth: Truth,
    /// Number of T-trials.
    pub t_trials: usize,
    /// I-trials of all T-trials together.
    pub i_trials: usize,
    /// I-trials of each T-trial.
    pub(super) i_trials_of: Vec<usize>,
    /// Runs that a surrogate is trained with.
    pub trained_runs: usize,
    /// Whether some point is measured more than once.
    pub replicated: bool,
    /// Whether some output is measured with other noise than the one that infers.
    pub other_noise: bool,
    /// I-trials that are kept from before, by all methods.
    pub kept: usize,
    /// Simulator runs that all trials take, and those that exist and are held out.
    pub runs: Runs,
    /// Simulator runs that are still to be made.
    pub missing_runs: usize,
    /// What to know before.
    pub notes: Vec<String>,
    /// Hash of everything that a trial depends on besides its numbers.
    pub fingerprint: String,
}

/// The calibration of one setting.
pub struct Calibration {
    /// How it was done.
    pub plan: CalibrationPlan,
    /// Every outcome: by T-trial, I-trial and method.
    pub trials: Vec<Trial>,
    /// What they say of each method.
    pub methods: Vec<MethodSummary>,
    /// What made them: several where versions or machines took turns.
    pub made_by: Vec<Heading>,
    /// T-steps that this call had to do: the others were kept, or nothing was missing of their trials.
    pub trained: usize,
}

/// What a calibration takes, its trials that are there, and what made them.
type Planned = (CalibrationPlan, Vec<Trial>, Vec<Heading>);

impl Project {
    /// What the calibration of every setting takes. Settings that differ only in what trials do not depend on, such as the
    /// truth of synthetic measurements, share their trials; runs that one of them takes are not counted again with the next.
    ///
    /// # Errors
    /// A study that cannot be calibrated, or a journal that cannot be read.
    pub fn calibration_plan(&self) -> Result<Vec<CalibrationPlan>> {
        let mut counted: HashMap<String, usize> = HashMap::new();
        (0..self.settings.len())
            .map(|index| {
                let mut plan = self.plan_setting(index)?.0;
                let before = counted.entry(plan.fingerprint.clone()).or_default();
                let all = plan.missing_runs.max(*before);
                plan.missing_runs -= plan.missing_runs.min(*before);
                *before = all;
                Ok(plan)
            })
            .collect()
    }

    /// What the calibration of a setting takes, with its trials that are there and what made them.
    pub(super) fn plan_setting(&self, index: usize) -> Result<Planned> {
        let Setting { label, study } = &self.settings[index];
        // How many runs can be held out is known once they are there.
        let held_out = study.calibrate.truth == Truth::HeldOutRuns && self.is_fresh(index, Stage::Simulate);
        let forecast = forecast(study, held_out.then(|| self.training(index)).transpose()?.as_ref())?;
        let (t_trials, i_trials) = (forecast.i_trials.len(), forecast.i_trials.iter().sum());
        let of_t_trial = |t: usize| forecast.i_trials.get(t).copied().unwrap_or(0);
        let fingerprint = study.calibration_fingerprint(&forecast.layout, &self.trial_runs(index)?);
        let (kept, made_by) = Journal::read(&self.journal(&fingerprint), &fingerprint)?;
        let trials = calibrate::in_order(kept, &study.infer.methods, of_t_trial);
        let mut done: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        trials.iter().for_each(|trial| *done.entry((trial.t_trial, trial.i_trial)).or_default() += 1);
        done.retain(|_, methods| *methods == study.infer.methods.len());
        let missing = i_trials - done.len();
        let finished = |t: &usize| done.range((*t, 0)..(t + 1, 0)).count() == of_t_trial(*t);
        let posteriors = TPosteriors::beside(&self.journal(&fingerprint));
        // What a T-trial keeps of its T-step takes no runs again.
        let untrained = (0..t_trials).filter(|t| !finished(t) && !posteriors.has(*t)).count();
        let own_runs = if needs_own_runs(study) { forecast.own_runs } else { 0 };
        let runs_of = |t: usize, i: usize| t * forecast.runs_of_t_trial + i * forecast.runs_of_i_trial;
        let runs = Runs { simulated: runs_of(t_trials, i_trials) + own_runs, held_out: forecast.held_out };
        let own_runs = if self.is_fresh(index, Stage::Simulate) { 0 } else { own_runs };
        let missing_runs = runs_of(untrained, missing) + own_runs;
        let plan = CalibrationPlan {
            label: label.clone(),
            truth: study.calibrate.truth,
            t_trials,
            i_trials,
            i_trials_of: forecast.i_trials,
            trained_runs: forecast.trained_runs,
            replicated: forecast.layout.iter().any(Layout::is_replicated),
            other_noise: forecast.layout.iter().any(Layout::has_other_noise),
            kept: done.len(),
            runs,
            missing_runs,
            notes: forecast.notes,
            fingerprint,
        };
        Ok((plan, trials, made_by))
    }

    /// The calibration as far as its trials are there, without doing any: the one that was finished last, or, where none was
    /// with the study as it is, the one that the study asks for. `None` where not one trial was done; a setting without trials
    /// has no methods. Takes no lock and writes nothing.
    ///
    /// # Errors
    /// A study that cannot be calibrated, or a journal that cannot be read.
    pub fn calibrations(&self) -> Result<Option<Vec<Calibration>>> {
        let json = std::fs::read(self.folder.join(SUMMARY)).ok();
        // A study that was never calibrated need not be one that can be.
        let tried = std::fs::read_dir(self.root.join(TRIALS)).is_ok_and(|mut entries| entries.next().is_some());
        if json.is_none() && !tried {
            return Ok(None);
        }
        let last: Value = json.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default();
        let of_setting = |index: usize| {
            let (plan, trials, made_by) = match self.planned_last(index, &last["settings"][index])? {
                Some(planned) => planned,
                None => self.plan_setting(index)?,
            };
            let methods = summarise(&trials, &self.context(index, &plan)?);
            Ok(Calibration { plan, trials, methods, made_by, trained: 0 })
        };
        let out = (0..self.settings.len()).map(of_setting).collect::<Result<Vec<Calibration>>>()?;
        Ok(out.iter().any(|calibration| !calibration.trials.is_empty()).then_some(out))
    }

    /// As [`Project::plan_setting`], with what a setting of `calibration.json` was calibrated with, which flags may have changed;
    /// `None` where the study is another since.
    fn planned_last(&self, index: usize, last: &Value) -> Result<Option<Planned>> {
        let count = |key: &str| last[key].as_u64().and_then(|n| usize::try_from(n).ok());
        let truth = Truth::ALL.into_iter().find(|truth| last["truth"] == truth.name());
        let (Some(truth), Some(t_trials), Some(i_trials)) = (truth, count("t_trials"), count("i_trials")) else {
            return Ok(None);
        };
        // Of held-out runs the file has the number of groups, which may be less than the T-trials that were asked for.
        for t_trials in [t_trials, self.settings[index].study.calibrate.t_trials] {
            let mut settings = self.settings.clone();
            let spec = &mut settings[index].study.calibrate;
            (spec.truth, spec.t_trials, spec.i_trials) = (truth, t_trials, i_trials);
            let asked = Self { settings, root: self.root.clone(), folder: self.folder.clone() };
            let planned = asked.plan_setting(index)?;
            if last["study_hash"] == planned.0.fingerprint.as_str() {
                return Ok(Some(planned));
            }
        }
        Ok(None)
    }

    /// Does the trials of every setting that are missing; those that are finished are kept whatever happens.
    ///
    /// # Errors
    /// A study that cannot be calibrated, a folder that cannot be used, or an interruption.
    pub fn calibrate(&self, monitor: &dyn Monitor) -> Result<Vec<Calibration>> {
        let mut workplace = None;
        self.prepare(&mut workplace, monitor)?;
        let mut out: Vec<Calibration> = Vec::new();
        for (index, plan) in self.calibration_plan()?.into_iter().enumerate() {
            monitor.progress("settings", index, self.settings.len());
            let (trials, made_by, trained) = self.try_setting(index, &plan.fingerprint, &mut workplace, monitor)?;
            let methods = summarise(&trials, &self.context(index, &plan)?);
            out.push(Calibration { plan, trials, methods, made_by, trained });
        }
        monitor.progress("settings", self.settings.len(), self.settings.len());
        self.claim(&mut workplace)?;
        write_atomically(&self.folder.join("calibration.csv"), &self.trials_table(&out)?.to_csv()?)?;
        let json = format!("{:#}\n", calibration_json(self, &out));
        write_atomically(&self.folder.join(SUMMARY), json.as_bytes())?;
        Ok(out)
    }

    /// Makes the runs of the study itself, where trials need them: what else can be done elsewhere.
    ///
    /// # Errors
    /// As for [`Project::run`].
    pub fn prepare_trials(&self, monitor: &dyn Monitor) -> Result<()> {
        self.prepare(&mut None, monitor)
    }

    fn prepare(&self, workplace: &mut Option<Workplace>, monitor: &dyn Monitor) -> Result<()> {
        // First, so that the plan knows which of them can be held out.
        for index in (0..self.settings.len()).filter(|&i| needs_own_runs(&self.settings[i].study)) {
            self.run_setting(index, Stage::Simulate, workplace, monitor)?;
        }
        Ok(())
    }

    /// What the statistics need to know of a setting.
    pub(super) fn context(&self, index: usize, plan: &CalibrationPlan) -> Result<Context> {
        let study = &self.settings[index].study;
        let (unknowns, sigmas) = (study.prior()?, study.sigma_names());
        let sds = study.outputs.iter().zip(sigmas);
        let sds = sds.filter_map(|(output, name)| Some((name?, output.noise.scale.prior()?.clone())));
        let priors = unknowns.iter().map(|(name, prior)| (name.to_owned(), prior.clone())).chain(sds).collect();
        Ok(Context {
            priors,
            truth: plan.truth,
            propagates_sigma_a: study.carries_errors(),
            sigma_a_is_given: study.outputs.iter().all(|o| matches!(o.surrogate.sigma_a, SigmaA::Fixed(_))),
            error: study.infer.error,
            replicated: plan.replicated,
            n_t: plan.trained_runs,
            other_noise: plan.other_noise,
            t_draws: study.infer.clusters.count().unwrap_or(study.train.draws),
            clustered: study.infer.clusters.count().is_some(),
            stream: stages::root(study).named("calibrate").named("statistics"),
        })
    }

    fn try_setting(
        &self,
        index: usize,
        fingerprint: &str,
        workplace: &mut Option<Workplace>,
        monitor: &dyn Monitor,
    ) -> Result<(Vec<Trial>, Vec<Heading>, usize)> {
        let study = &self.settings[index].study;
        let methods: &[Method] = &study.infer.methods;
        let set = needs_own_runs(study).then(|| self.training(index)).transpose()?;
        self.claim(workplace)?;
        let path = self.journal(fingerprint);
        let posteriors = TPosteriors::beside(&path);
        let bench = || Bench::own(&self.root);
        let trier = Trier::new(study, set.as_ref(), bench, self.simulators(), posteriors.clone())?;
        let (journal, kept) = Journal::open(&path, heading(fingerprint, None))?;
        if kept.is_empty() {
            // Trials that were thrown away are done again from the start.
            posteriors.remove();
        }
        let t_trials: Vec<usize> = (0..trier.t_trials()).collect();
        let trials = calibrate::run(&trier, &t_trials, methods, kept, &journal, monitor)?;
        drop(journal);
        Journal::arrange(&path, fingerprint, |trial: &Trial| {
            (trial.t_trial, trial.i_trial, trial.method.clone(), trial.version.clone())
        })?;
        let (_, made_by) = Journal::<Trial>::read(&path, fingerprint)?;
        Ok((trials, made_by, trier.trained()))
    }

    /// Hash of the runs that trials depend on: those of the simulator, or of the study itself.
    pub(super) fn trial_runs(&self, index: usize) -> Result<String> {
        let study = &self.settings[index].study;
        match needs_own_runs(study) {
            true => self.runs_digest(index),
            false => Ok(super::runs::simulator_of_trials(study)),
        }
    }

    pub(super) fn journal(&self, fingerprint: &str) -> PathBuf {
        self.root.join(TRIALS).join(format!("{}.jsonl", &fingerprint[..16]))
    }

    /// `calibration.csv`: one row per setting, T-trial, I-trial, method and unknown. Trials are counted from one.
    ///
    /// # Errors
    /// A swept key with the name of a column.
    pub fn trials_table(&self, calibrations: &[Calibration]) -> Result<Table> {
        let mut columns: Vec<(&str, Vec<String>)> = [
            "t_trial",
            "i_trial",
            "method",
            "unknown",
            "truth",
            "pit",
            "below",
            "rank",
            "draws",
            "q05",
            "q95",
            "weight",
            "engine",
            "r_hat",
            "divergences",
            "quadrature_error",
            "agreement",
            "t_r_hat",
            "t_warned",
            "sigma_a",
            "epistemic_sd",
            "noise_sd",
            "failed",
        ]
        .map(|name| (name, Vec::new()))
        .to_vec();
        let mut labels: Vec<(String, Vec<String>)> =
            self.settings[0].label.iter().map(|(key, _)| (key.clone(), Vec::new())).collect();
        for (setting, calibration) in self.settings.iter().zip(calibrations) {
            let unknowns: Vec<String> = setting.study.inferred().into_iter().map(|u| u.name).collect();
            for trial in &calibration.trials {
                let ranked = trial.ranked.iter().map(|r| {
                    let numbers = [r.truth, r.pit, r.below].map(|x| x.to_string());
                    let counts = [r.rank, r.draws].map(text);
                    let [q05, q95] = [r.q05, r.q95].map(|x| x.to_string());
                    (r.unknown.as_str(), [numbers.to_vec(), counts.to_vec(), vec![q05, q95]].concat())
                });
                let failed =
                    unknowns.iter().filter(|_| trial.failed.is_some()).map(|u| (u.as_str(), vec![String::new(); 7]));
                for (unknown, place) in ranked.chain(failed) {
                    let e = &trial.evidence;
                    let head = [trial.t_trial + 1, trial.i_trial + 1].map(|n| n.to_string());
                    let names = [trial.method.clone(), unknown.to_owned()];
                    let tail = [
                        trial.weight.to_string(),
                        e.engine.clone(),
                        text(e.r_hat),
                        text(e.divergences),
                        text(e.quadrature_error),
                        text(e.agreement),
                        text(e.t_r_hat),
                        e.t_warned.to_string(),
                        text(e.sigma_a),
                        text(e.epistemic_sd),
                        text(e.noise_sd),
                        trial.failed.clone().unwrap_or_default(),
                    ];
                    let cells = head.into_iter().chain(names).chain(place).chain(tail);
                    columns.iter_mut().zip(cells).for_each(|((_, column), cell)| column.push(cell));
                    let values = setting.label.iter().map(|(_, value)| value);
                    labels.iter_mut().zip(values).for_each(|((_, column), value)| column.push(value.clone()));
                }
            }
        }
        let mut table = Table::new();
        for (name, cells) in labels {
            table = table.with_texts(name, cells)?;
        }
        for (name, cells) in columns {
            table = table.with_texts(name, cells)?;
        }
        Ok(table)
    }
}

/// What this program says of the results that it makes here, of a part of work that is shared out or of all.
pub(super) fn heading(fingerprint: &str, shard: Option<Shard>) -> Heading {
    let (version, instruction_set) = (VERSION.into(), instruction_set().into());
    Heading { fingerprint: fingerprint.into(), version, instruction_set, shard }
}

/// The content of `calibration.json`.
pub fn calibration_json(project: &Project, calibrations: &[Calibration]) -> Value {
    to_json(project, calibrations.iter().map(|calibration| &calibration.plan), calibrations)
}

/// The same of calibrations that are yet to be done.
pub fn calibration_plan_json(project: &Project, plans: &[CalibrationPlan]) -> Value {
    to_json(project, plans.iter(), &[])
}

fn to_json<'a>(
    project: &Project,
    plans: impl Iterator<Item = &'a CalibrationPlan>,
    calibrations: &[Calibration],
) -> Value {
    let settings: Vec<Value> = plans
        .enumerate()
        .map(|(i, plan)| {
            let study = &project.settings[i].study;
            let label: Map<String, Value> = plan.label.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
            let methods: Map<String, Value> = calibrations
                .get(i)
                .map_or(&[][..], |c| &c.methods)
                .iter()
                .map(|m| (m.method.clone(), serde_json::to_value(m).unwrap_or(Value::Null)))
                .collect();
            json!({
                "setting": label,
                "number": i + 1,
                "truth": plan.truth.name(),
                "t_trials": plan.t_trials,
                "i_trials": study.calibrate.i_trials,
                "trials": plan.i_trials,
                "runs": plan.trained_runs,
                "simulator_runs": plan.runs.simulated,
                "held_out_runs": plan.runs.held_out,
                "seed": study.seed,
                "study_hash": plan.fingerprint,
                "made_by": calibrations.get(i).map_or(&[][..], |c| &c.made_by),
                "answer": study.infer.answer.name(),
                "notes": plan.notes,
                "methods": methods,
            })
        })
        .collect();
    json!({ "study": project.settings[0].study.name, "settings": settings })
}

fn text<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
