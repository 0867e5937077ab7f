//! Algorithm 1 itself: T-trials, the I-trials of each, and what is kept of them while they are computed.

use super::trial::{Evidence, Trial};
use crate::error::{Error, Result};
use crate::infer::propagation::Method;
use crate::monitor::Monitor;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A two-step procedure that can be tried again and again.
///
/// Both steps are functions of the numbers of their trial alone, so that trials can be done in any order, anywhere.
pub trait Procedure: Sync {
    /// A surrogate trained in a T-trial, with what its I-trials need.
    type Trained: Sync;

    /// Number of I-trials of a T-trial.
    fn i_trials(&self, t_trial: usize) -> usize;

    /// A training set of its own, and the T-step.
    ///
    /// # Errors
    /// Why the T-trial failed, or an interruption.
    fn train(&self, t_trial: usize, monitor: &dyn Monitor) -> Result<Self::Trained>;

    /// A truth with its measurements, and the I-step by each of these methods.
    ///
    /// A method's outcome must not depend on which others are asked for.
    ///
    /// # Errors
    /// Why the I-trial failed by one of the methods, or an interruption.
    fn infer(
        &self,
        trained: &Self::Trained,
        t_trial: usize,
        i_trial: usize,
        methods: &[Method],
        monitor: &dyn Monitor,
    ) -> Result<Vec<Trial>>;
}

/// Where trials are kept as they come.
pub trait TrialSink: Sync {
    /// Keeps the outcomes of one I-trial.
    ///
    /// # Errors
    /// What the system says.
    fn keep(&self, trials: &[Trial]) -> Result<()>;
}

/// Outcomes that an I-trial needs and those that it has.
type Missing = (usize, Vec<Method>);

/// Does what `kept` lacks of so many T-trials by these methods; everything of the layout, in order, whether kept or done now.
///
/// A trial that fails is an outcome like others, with its reason.
///
/// # Errors
/// A sink that cannot keep, or an interruption; what was kept until then stays.
pub fn run<P: Procedure>(
    procedure: &P,
    t_trials: usize,
    methods: &[Method],
    kept: Vec<Trial>,
    sink: &dyn TrialSink,
    monitor: &dyn Monitor,
) -> Result<Vec<Trial>> {
    let order = |name: &str| methods.iter().position(|method| method.name() == name);
    let mut of_layout: HashMap<(usize, usize, usize), Trial> = HashMap::new();
    for trial in kept {
        if let Some(method) = order(&trial.method).filter(|_| trial.t_trial < t_trials)
            && trial.i_trial < procedure.i_trials(trial.t_trial)
        {
            of_layout.insert((trial.t_trial, trial.i_trial, method), trial);
        }
    }
    let missing: Vec<(usize, Vec<Missing>)> = (0..t_trials)
        .map(|t| {
            let lacks = |i: usize| {
                let lacking = (0..methods.len()).filter(|&m| !of_layout.contains_key(&(t, i, m)));
                (i, lacking.map(|m| methods[m]).collect::<Vec<_>>())
            };
            (t, (0..procedure.i_trials(t)).map(lacks).filter(|(_, methods)| !methods.is_empty()).collect::<Vec<_>>())
        })
        .filter(|(_, of_trial)| !of_trial.is_empty())
        .collect();
    let total: usize = (0..t_trials).map(|t| procedure.i_trials(t)).sum();
    let to_do: usize = missing.iter().map(|(_, of_trial)| of_trial.len()).sum();
    let counter = Counter { monitor, trained: AtomicUsize::new(t_trials - missing.len()), t_trials };
    let done = AtomicUsize::new(total - to_do);
    monitor.progress(I_TRIALS, total - to_do, total);
    let new: Vec<Vec<Trial>> = missing
        .par_iter()
        .map(|(t, of_trial)| {
            let trained = counter.train(procedure, *t);
            let outcomes = of_trial.par_iter().map(|(i, methods)| {
                let trials = match &trained {
                    Ok(trained) => i_trial(procedure, trained, [*t, *i], methods, &Quiet(monitor))?,
                    Err(Error::Interrupted) => return Err(Error::Interrupted),
                    Err(error) => methods.iter().map(|method| failed([*t, *i], *method, error)).collect(),
                };
                sink.keep(&trials)?;
                monitor.progress(I_TRIALS, done.fetch_add(1, Ordering::Relaxed) + 1, total);
                Ok(trials)
            });
            Ok(outcomes.collect::<Result<Vec<_>>>()?.concat())
        })
        .collect::<Result<_>>()?;
    let mut all: Vec<Trial> = of_layout.into_values().chain(new.into_iter().flatten()).collect();
    all.sort_by_key(|trial| (trial.t_trial, trial.i_trial, order(&trial.method)));
    Ok(all)
}

/// Name of the I-trials in progress reports.
pub const I_TRIALS: &str = "I-trials";
/// Name of the T-trials in progress reports.
pub const T_TRIALS: &str = "T-trials";

/// The methods together, or one by one where together they fail: so a method's failure is its own.
fn i_trial<P: Procedure>(
    procedure: &P,
    trained: &P::Trained,
    [t, i]: [usize; 2],
    methods: &[Method],
    monitor: &dyn Monitor,
) -> Result<Vec<Trial>> {
    match procedure.infer(trained, t, i, methods, monitor) {
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(error) if methods.len() == 1 => Ok(vec![failed([t, i], methods[0], &error)]),
        Err(_) => {
            let alone = methods.iter().map(|&method| i_trial(procedure, trained, [t, i], &[method], monitor));
            Ok(alone.collect::<Result<Vec<_>>>()?.concat())
        }
        Ok(trials) => Ok(trials),
    }
}

fn failed([t_trial, i_trial]: [usize; 2], method: Method, error: &Error) -> Trial {
    Trial {
        t_trial,
        i_trial,
        method: method.name().into(),
        weight: 1.0,
        ranked: Vec::new(),
        evidence: Evidence::default(),
        failed: Some(error.to_string()),
    }
}

/// Counts T-trials as they are trained.
struct Counter<'a> {
    monitor: &'a dyn Monitor,
    trained: AtomicUsize,
    t_trials: usize,
}

impl Counter<'_> {
    fn train<P: Procedure>(&self, procedure: &P, t_trial: usize) -> Result<P::Trained> {
        let trained = procedure.train(t_trial, &Quiet(self.monitor));
        self.monitor.progress(T_TRIALS, self.trained.fetch_add(1, Ordering::Relaxed) + 1, self.t_trials);
        trained
    }
}

/// A monitor that hears nothing of the steps within a trial.
struct Quiet<'a>(&'a dyn Monitor);

impl Monitor for Quiet<'_> {
    fn proceed(&self) -> bool {
        self.0.proceed()
    }

    fn progress(&self, _: &str, _: usize, _: usize) {}
}
