//! Shares of work that is divided among processes and machines: what each of them does, without writing where others write.

use super::calibrate::heading;
use super::runs::{self, Bench};
use super::stages;
use super::trials::{Trier, needs_own_runs};
use super::{CalibrationPlan, Project};
use crate::calibrate::{self, Trial, TrialSink};
use crate::error::{Error, Result};
use crate::infer::propagation::Method;
use crate::infer::{self, Fit, FitSink, Prepared};
use crate::monitor::Monitor;
use crate::store::{
    Asked, Journal, Made, MadeRun, RUNS, RunLedger, RunState, Section, Shard, Shards, Share, T_DRAW_FITS, TPosteriors,
    Task,
};
use crate::study::{Stage, Study, digest};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a worker did.
#[derive(Clone, Debug, PartialEq)]
pub struct ShareDone {
    /// What was shared out.
    pub task: Task,
    /// Which share.
    pub share: Share,
    /// Units of work of all shares: T-trials, runs, or T-draws.
    pub units: usize,
    /// Those of this share.
    pub own: usize,
    /// Results that this call added: trials by each method, runs, or fits.
    pub new: usize,
    /// Failures among them.
    pub failed: usize,
    /// Files that hold what this share made.
    pub files: Vec<PathBuf>,
}

/// A T-trial of a setting: a unit of a calibration, whose results are a function of the study, its seed and these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrialUnit {
    /// The setting, from zero.
    pub setting: usize,
    /// Its T-trial, from zero.
    pub t_trial: usize,
}

/// The calibration of a setting that is not the same as that of one before.
pub(super) struct Campaign {
    pub(super) setting: usize,
    pub(super) plan: CalibrationPlan,
    pub(super) kept: Vec<Trial>,
}

impl Campaign {
    /// T-trials that lack some outcome by these methods.
    pub(super) fn missing(&self, methods: &[Method]) -> Vec<usize> {
        let mut outcomes = vec![0; self.plan.t_trials];
        for trial in &self.kept {
            outcomes[trial.t_trial] += 1;
        }
        (0..self.plan.t_trials).filter(|&t| outcomes[t] < self.plan.i_trials_of[t] * methods.len()).collect()
    }
}

/// Where a worker keeps what it makes, and what it knows from before.
struct Worker<'a> {
    keep: &'a (dyn Fn(&[Made]) -> Result<()> + Sync + Send),
    /// Runs that it made before.
    made: Vec<MadeRun>,
    /// Where runs of the simulator work.
    work: PathBuf,
    t_posteriors: TPosteriors,
}

struct Trials<'a>(&'a (dyn Fn(&[Made]) -> Result<()> + Sync + Send));

impl TrialSink for Trials<'_> {
    fn keep(&self, trials: &[Trial]) -> Result<()> {
        self.0(&trials.iter().cloned().map(Made::Trial).collect::<Vec<_>>())
    }
}

struct Fits<'a>(&'a Journal<Made>, &'a AtomicUsize);

impl FitSink for Fits<'_> {
    fn keep(&self, fit: &Fit) -> Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.append(&[Made::Fit(fit.clone())])
    }
}

/// What a worker made, by kind.
#[derive(Default)]
pub(super) struct SortedOut {
    pub(super) trials: Vec<Trial>,
    pub(super) runs: Vec<MadeRun>,
    pub(super) fits: Vec<Fit>,
}

impl SortedOut {
    pub(super) fn of(made: Vec<Made>) -> Self {
        let mut out = Self::default();
        for made in made {
            match made {
                Made::Trial(trial) => out.trials.push(trial),
                Made::Run(run) => out.runs.push(run),
                Made::Fit(fit) => out.fits.push(fit),
            }
        }
        out
    }
}

/// Fits of E-Post of a setting, that are not those of one before.
pub(super) struct FitWork {
    pub(super) setting: usize,
    fingerprint: String,
    prepared: Prepared,
    /// T-draws that are fitted.
    pub(super) numbers: Vec<usize>,
    /// Those whose fit is kept.
    pub(super) kept: HashSet<usize>,
}

impl Project {
    /// The calibrations of all settings, each once, with what is kept of them.
    pub(super) fn campaigns(&self) -> Result<Vec<Campaign>> {
        let mut seen = HashSet::new();
        let mut out = Vec::new();
        for setting in 0..self.settings.len() {
            let (plan, kept, _) = self.plan_setting(setting)?;
            let methods: Vec<&str> = self.settings[setting].study.infer.methods.iter().map(|m| m.name()).collect();
            if seen.insert((plan.fingerprint.clone(), methods)) {
                out.push(Campaign { setting, plan, kept });
            }
        }
        Ok(out)
    }

    /// The runs of the study itself, where its trials need them.
    fn own_training(&self, setting: usize) -> Result<Option<crate::train::TrainingSet>> {
        if !needs_own_runs(&self.settings[setting].study) {
            return Ok(None);
        }
        if !self.is_fresh(setting, Stage::Simulate) {
            return Err(Error::invalid(
                "calibrate",
                "these trials need the runs of the study itself, which are not all there",
                "make them first: `twostep simulate STUDY`",
            ));
        }
        self.training(setting).map(Some)
    }

    /// T-trials of which some outcome is missing.
    ///
    /// # Errors
    /// As for [`Project::calibration_plan`].
    pub fn missing_trials(&self) -> Result<Vec<TrialUnit>> {
        let mut out = Vec::new();
        for campaign in self.campaigns()? {
            let setting = campaign.setting;
            let missing = campaign.missing(&self.settings[setting].study.infer.methods);
            out.extend(missing.into_iter().map(|t_trial| TrialUnit { setting, t_trial }));
        }
        Ok(out)
    }

    /// Does T-trials away from where results are kept: what was made of each setting, as a journal has it, and nothing written but what the
    /// simulator writes.
    ///
    /// # Errors
    /// As for [`Project::calibrate`].
    pub fn try_units(&self, units: &[TrialUnit], monitor: &dyn Monitor) -> Result<Vec<Section<Made>>> {
        let mut settings: Vec<usize> = units.iter().map(|unit| unit.setting).collect();
        settings.sort_unstable();
        settings.dedup();
        let of_setting = |setting: usize| {
            let t_trials: Vec<usize> = units.iter().filter(|u| u.setting == setting).map(|u| u.t_trial).collect();
            let (plan, kept, _) = self.plan_setting(setting)?;
            let made = Mutex::new(Vec::new());
            let keep = |new: &[Made]| {
                made.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(new);
                Ok(())
            };
            let t_posteriors = TPosteriors::beside(&self.journal(&plan.fingerprint));
            let worker = Worker { keep: &keep, made: Vec::new(), work: self.away(), t_posteriors };
            self.try_away(setting, &t_trials, kept, worker, monitor)?;
            Ok((heading(&plan.fingerprint, None), made.into_inner().unwrap_or_else(PoisonError::into_inner)))
        };
        settings.into_iter().map(of_setting).collect()
    }

    /// Does what `kept` lacks of some T-trials of a setting.
    fn try_away(
        &self,
        setting: usize,
        t_trials: &[usize],
        kept: Vec<Trial>,
        worker: Worker<'_>,
        monitor: &dyn Monitor,
    ) -> Result<()> {
        let study = &self.settings[setting].study;
        let Worker { keep, made, work, t_posteriors } = worker;
        let set = self.own_training(setting)?;
        let bench = || {
            self.refuse_changed_simulator(setting)?;
            self.bench_away(study, &made, work, keep)
        };
        let trier = Trier::new(study, set.as_ref(), bench, self.simulators(), t_posteriors)?;
        calibrate::run(&trier, t_trials, &study.infer.methods, kept, &Trials(keep), monitor)?;
        Ok(())
    }

    /// A ledger in memory that knows the runs of the study's own and those that were `made` here before, and tells what is new.
    fn bench_away<'a>(
        &self,
        study: &Study,
        made: &[MadeRun],
        work: PathBuf,
        keep: &'a (dyn Fn(&[Made]) -> Result<()> + Sync + Send),
    ) -> Result<Bench<'a>> {
        let simulator = runs::fingerprint(study);
        // Processes of runs are told from those of other workers by where they work.
        let identity = digest(&work.display().to_string());
        let ledger = RunLedger::in_memory(Some(identity), Box::new(|run| keep(&[Made::Run(run.clone())])))?;
        runs::note_simulator(&ledger, study)?;
        if let Some(own) = RunLedger::glance(&self.root.join(RUNS))? {
            ledger.bring_in(&simulator, &own.made(&simulator)?)?;
        }
        ledger.bring_in(&simulator, made)?;
        Ok(Bench { ledger, root: work })
    }

    fn refuse_changed_simulator(&self, setting: usize) -> Result<()> {
        match self.changed_simulator(setting)? {
            Some(words) => Err(Error::invalid(
                "simulator",
                words,
                "settle that first, by one process: `twostep simulate STUDY --changed keep` or `--changed rerun`",
            )),
            None => Ok(()),
        }
    }

    /// Does a share of the trials that are missing, into a file of its own that [`Project::merge`] brings in. Several processes may do shares of one
    /// folder at once; what a share has already is not done again.
    ///
    /// # Errors
    /// As for [`Project::calibrate`]; a share that another process is doing.
    pub fn calibrate_share(&self, share: Share, monitor: &dyn Monitor) -> Result<ShareDone> {
        let mut done = ShareDone::new(Task::Calibrate, share);
        for Campaign { setting, plan, kept } in self.campaigns()? {
            let first = done.units;
            done.units += plan.t_trials;
            let own: Vec<usize> = (0..plan.t_trials).filter(|t| share.has(first + t)).collect();
            done.own += own.len();
            if own.is_empty() {
                continue;
            }
            let path = Shards::within(&self.root).file(Task::Calibrate, &plan.fingerprint, share);
            let spec = &self.settings[setting].study.calibrate;
            let asked = Asked { truth: spec.truth, t_trials: spec.t_trials, i_trials: spec.i_trials };
            let shard = self.shard(setting, Task::Calibrate, share, Some(asked));
            let (journal, before) = Journal::<Made>::open(&path, heading(&plan.fingerprint, Some(shard)))?;
            let SortedOut { trials, runs: made, .. } = SortedOut::of(before);
            let (new, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let keep = |made: &[Made]| {
                for made in made {
                    if let Made::Trial(trial) = made {
                        new.fetch_add(1, Ordering::Relaxed);
                        failed.fetch_add(usize::from(trial.failed.is_some()), Ordering::Relaxed);
                    }
                }
                journal.append(made)
            };
            let t_posteriors = TPosteriors::beside(&self.journal(&plan.fingerprint));
            let worker = Worker { keep: &keep, made, work: work_of(&path), t_posteriors };
            self.try_away(setting, &own, [kept, trials].concat(), worker, monitor)?;
            done.new += new.into_inner();
            done.failed += failed.into_inner();
            done.files.push(path);
        }
        Ok(done)
    }

    /// Makes a share of the runs that the study asks for and that are pending, or of those that `failed`, as [`Project::calibrate_share`].
    ///
    /// # Errors
    /// As for [`Project::make_runs`]; a share that another process is doing.
    pub fn simulate_share(&self, share: Share, failed: bool, monitor: &dyn Monitor) -> Result<ShareDone> {
        let mut done = ShareDone::new(Task::Simulate, share);
        self.refuse_unshared_runs()?;
        for (simulator, settings) in self.settings_by_simulator() {
            self.refuse_changed_simulator(settings[0])?;
            let path = Shards::within(&self.root).file(Task::Simulate, &simulator, share);
            let shard = self.shard(settings[0], Task::Simulate, share, None);
            let (journal, before) = Journal::<Made>::open(&path, heading(&simulator, Some(shard)))?;
            let (new, failures) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let keep = |made: &[Made]| {
                for made in made {
                    if let Made::Run(run) = made {
                        new.fetch_add(1, Ordering::Relaxed);
                        failures.fetch_add(usize::from(run.outputs.is_none()), Ordering::Relaxed);
                    }
                }
                journal.append(made)
            };
            let study = &self.settings[settings[0]].study;
            let bench = self.bench_away(study, &SortedOut::of(before).runs, work_of(&path), &keep)?;
            let asked: Vec<&Study> = settings.iter().map(|&setting| &self.settings[setting].study).collect();
            let of_share = |unit: usize| share.has(unit);
            let state = if failed { RunState::Failed } else { RunState::Pending };
            let [units, own] =
                runs::make_shared(&asked, bench, self.simulators(), done.units, &of_share, Some(state), monitor)?;
            done.units += units;
            done.own += own;
            done.new += new.into_inner();
            done.failed += failures.into_inner();
            done.files.push(path);
        }
        Ok(done)
    }

    /// The fits of E-Post in all settings, each once.
    pub(super) fn fit_works(&self) -> Result<Vec<FitWork>> {
        let mut out: Vec<FitWork> = Vec::new();
        for setting in 0..self.settings.len() {
            let study = &self.settings[setting].study;
            let fingerprint = self.plan(setting)?.of(Stage::Infer).fingerprint.clone();
            if out.iter().any(|work| work.fingerprint == fingerprint) {
                continue;
            }
            if !self.is_fresh(setting, Stage::Train) {
                let found = "the T-step is not finished, whose draws are to be fitted";
                return Err(Error::invalid("infer", found, "`twostep train STUDY` first, by one process"));
            }
            let posterior = self.t_posterior(setting, &self.training(setting)?)?;
            let (prepared, _) = stages::made_ready(study, &posterior, &self.measured(setting)?)?;
            let numbers = infer::fits_to_make(&prepared, &study.infer)?;
            let kept = self.kept_fits(&fingerprint)?.iter().map(|fit| fit.t_draw).collect();
            out.push(FitWork { setting, fingerprint, prepared, numbers, kept });
        }
        Ok(out)
    }

    pub(super) fn fit_journal(&self, fingerprint: &str) -> PathBuf {
        self.root.join(T_DRAW_FITS).join(format!("{}.jsonl", &fingerprint[..16]))
    }

    /// Fits of E-Post that were brought together.
    pub(super) fn kept_fits(&self, fingerprint: &str) -> Result<Vec<Fit>> {
        Ok(Journal::read(&self.fit_journal(fingerprint), fingerprint)?.0)
    }

    /// Fits a share of the T-draws for E-Post by NUTS, as [`Project::calibrate_share`].
    ///
    /// # Errors
    /// A T-step that is not finished, an I-step without such fits, what keeps one from being made; a share that another process is doing.
    pub fn infer_share(&self, share: Share, monitor: &dyn Monitor) -> Result<ShareDone> {
        let mut done = ShareDone::new(Task::Infer, share);
        for FitWork { setting, fingerprint, prepared, numbers, kept } in self.fit_works()? {
            let first = done.units;
            done.units += numbers.len();
            let own: Vec<usize> =
                numbers.iter().enumerate().filter(|(u, _)| share.has(first + u)).map(|(_, s)| *s).collect();
            done.own += own.len();
            let path = Shards::within(&self.root).file(Task::Infer, &fingerprint, share);
            let shard = self.shard(setting, Task::Infer, share, None);
            let (journal, before) = Journal::<Made>::open(&path, heading(&fingerprint, Some(shard)))?;
            let made: HashSet<usize> = SortedOut::of(before).fits.iter().map(|fit| fit.t_draw).chain(kept).collect();
            let to_do: Vec<usize> = own.into_iter().filter(|s| !made.contains(s)).collect();
            let (spec, new) = (&self.settings[setting].study.infer, AtomicUsize::new(0));
            let stream = stages::infer_stream(&self.settings[setting].study);
            infer::make_fits(&prepared, spec, stream, &to_do, &Fits(&journal, &new), monitor)?;
            done.new += new.into_inner();
            done.files.push(path);
        }
        Ok(done)
    }

    /// Makes runs that the study asks for, by their numbers in the order of the designs, away from where results are kept, as [`Project::try_units`].
    ///
    /// # Errors
    /// As for [`Project::make_runs`].
    pub fn make_units(&self, runs: &[usize], monitor: &dyn Monitor) -> Result<Vec<Section<Made>>> {
        self.refuse_unshared_runs()?;
        let (mut first, mut out) = (0, Vec::new());
        for (simulator, settings) in self.settings_by_simulator() {
            let made = Mutex::new(Vec::new());
            let keep = |new: &[Made]| {
                made.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(new);
                Ok(())
            };
            let asked: Vec<&Study> = settings.iter().map(|&setting| &self.settings[setting].study).collect();
            let bench = self.bench_away(asked[0], &[], self.away(), &keep)?;
            let is_asked = |unit: usize| runs.contains(&unit);
            // Those that failed before are made again, once they are asked for.
            let [units, _] = runs::make_shared(&asked, bench, self.simulators(), first, &is_asked, None, monitor)?;
            first += units;
            out.push((heading(&simulator, None), made.into_inner().unwrap_or_else(PoisonError::into_inner)));
        }
        Ok(out)
    }

    /// Where runs of a worker elsewhere work.
    fn away(&self) -> PathBuf {
        let folder = self.root.join("away");
        std::path::absolute(&folder).unwrap_or(folder)
    }

    /// Refuses to share out runs that are no work, or that nobody can make here.
    pub(super) fn refuse_unshared_runs(&self) -> Result<()> {
        let simulator = &self.settings[0].study.simulator;
        if let Some(name) = simulator.builtin() {
            let found = format!("the built-in simulator {name} makes its runs anew, all of them, at no cost");
            return Err(Error::invalid("--shard", found, "leave it out: there is nothing to share out"));
        }
        if simulator.kind == crate::simulate::SimulatorKind::Elsewhere {
            let found = "the study has no simulator that could be run, only a table of runs";
            return Err(Error::invalid("--shard", found, "`twostep import` brings runs in"));
        }
        Ok(())
    }

    /// Settings by the fingerprint of their simulator, in order.
    pub(super) fn settings_by_simulator(&self) -> Vec<(String, Vec<usize>)> {
        let mut out: Vec<(String, Vec<usize>)> = Vec::new();
        for (setting, simulator) in self.simulators().into_iter().enumerate() {
            match out.iter_mut().find(|(other, _)| *other == simulator) {
                Some((_, settings)) => settings.push(setting),
                None => out.push((simulator, vec![setting])),
            }
        }
        out
    }

    fn shard(&self, setting: usize, task: Task, share: Share, asked: Option<Asked>) -> Shard {
        let study = &self.settings[setting].study;
        Shard { task, share, study: study.file_name(), seed: study.seed, asked }
    }
}

impl ShareDone {
    fn new(task: Task, share: Share) -> Self {
        Self { task, share, units: 0, own: 0, new: 0, failed: 0, files: Vec::new() }
    }
}

/// Where the runs of a shard work: beside its file, as an absolute path.
fn work_of(path: &Path) -> PathBuf {
    let folder = path.with_extension("work");
    std::path::absolute(&folder).unwrap_or(folder)
}
