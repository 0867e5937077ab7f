//! Algorithm 1 itself: T-trials, the I-trials of each, and what is kept of them while they are computed.

use super::trial::{Evidence, Trial};
use crate::error::{Error, Result};
use crate::infer::propagation::Method;
use crate::monitor::{Monitor, Quiet};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashSet};
use std::panic::AssertUnwindSafe;
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

/// Does what `kept` lacks of these T-trials, in their order, by these methods; everything of theirs, in order, whether kept or done now.
///
/// A trial that fails is an outcome like others, with its reason.
///
/// # Errors
/// A sink that cannot keep, or an interruption; what was kept until then stays.
pub fn run<P: Procedure>(
    procedure: &P,
    t_trials: &[usize],
    methods: &[Method],
    kept: Vec<Trial>,
    sink: &dyn TrialSink,
    monitor: &dyn Monitor,
) -> Result<Vec<Trial>> {
    let asked: HashSet<usize> = t_trials.iter().copied().collect();
    let mut of_layout = of_layout(kept, methods, |t| if asked.contains(&t) { procedure.i_trials(t) } else { 0 });
    let missing: Vec<(usize, Vec<Missing>)> = t_trials
        .iter()
        .map(|&t| {
            let lacks = |i: usize| {
                let lacking = (0..methods.len()).filter(|&m| !of_layout.contains_key(&[t, i, m]));
                (i, lacking.map(|m| methods[m]).collect::<Vec<_>>())
            };
            (t, (0..procedure.i_trials(t)).map(lacks).filter(|(_, methods)| !methods.is_empty()).collect::<Vec<_>>())
        })
        .filter(|(_, of_trial)| !of_trial.is_empty())
        .collect();
    let total: usize = t_trials.iter().map(|&t| procedure.i_trials(t)).sum();
    let to_do: usize = missing.iter().map(|(_, of_trial)| of_trial.len()).sum();
    let counter =
        Counter { monitor, trained: AtomicUsize::new(t_trials.len() - missing.len()), t_trials: t_trials.len() };
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
    of_layout.extend(numbered(new.concat(), methods));
    Ok(of_layout.into_values().collect())
}

/// The trials of `kept` by these methods and with fewer I-trials than each T-trial has, in order.
pub fn in_order(kept: Vec<Trial>, methods: &[Method], i_trials: impl Fn(usize) -> usize) -> Vec<Trial> {
    of_layout(kept, methods, i_trials).into_values().collect()
}

/// Numbers of T-trial, I-trial and method.
type Numbers = [usize; 3];

fn of_layout(kept: Vec<Trial>, methods: &[Method], i_trials: impl Fn(usize) -> usize) -> BTreeMap<Numbers, Trial> {
    numbered(kept, methods).filter(|([t, i, _], _)| *i < i_trials(*t)).collect()
}

/// Trials by these methods with their numbers.
fn numbered(trials: Vec<Trial>, methods: &[Method]) -> impl Iterator<Item = (Numbers, Trial)> {
    let is_by = |trial: &Trial, method: &Method| trial.method == method.name() && trial.version == method.version();
    let number = move |trial: &Trial| methods.iter().position(|method| is_by(trial, method));
    trials
        .into_iter()
        .filter_map(move |trial| number(&trial).map(|method| ([trial.t_trial, trial.i_trial, method], trial)))
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
    match guarded("I-step", || procedure.infer(trained, t, i, methods, monitor)) {
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(error) if methods.len() == 1 => Ok(vec![failed([t, i], methods[0], &error)]),
        Err(_) => {
            let alone = methods.iter().map(|&method| i_trial(procedure, trained, [t, i], &[method], monitor));
            Ok(alone.collect::<Result<Vec<_>>>()?.concat())
        }
        Ok(trials) => Ok(trials),
    }
}

/// What `f` returns; a panic is a failure of its trial alone, as a campaign of days must not end at one of its trials.
fn guarded<T>(what: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
        Err(Error::failed(what, text, "report this as a bug, with the study"))
    })
}

fn failed([t_trial, i_trial]: [usize; 2], method: Method, error: &Error) -> Trial {
    Trial {
        t_trial,
        i_trial,
        method: method.name().into(),
        version: method.version(),
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
        let trained = guarded("T-step", || procedure.train(t_trial, &Quiet(self.monitor)));
        self.monitor.progress(T_TRIALS, self.trained.fetch_add(1, Ordering::Relaxed) + 1, self.t_trials);
        trained
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::Ranked;
    use super::*;
    use crate::infer::rank;
    use crate::monitor::Silent;
    use crate::stream::Stream;
    use rand::RngExt;
    use rand_distr::StandardNormal;
    use std::sync::Mutex;

    /// An inference whose posterior is known: truth and data are normal, so that the posterior given y is N(y / 2, 1/2), of
    /// which it draws with the sd times `width`.
    struct Mock {
        width: f64,
        /// Draws follow an autoregression with this coefficient.
        correlation: f64,
        /// Whether draws are thinned by their effective number.
        thinned: bool,
        done: Mutex<Vec<(usize, usize, &'static str)>>,
    }

    impl Mock {
        fn new(width: f64, correlation: f64, thinned: bool) -> Self {
            Self { width, correlation, thinned, done: Mutex::new(Vec::new()) }
        }
    }

    impl Procedure for Mock {
        type Trained = ();

        fn i_trials(&self, t_trial: usize) -> usize {
            1 + t_trial % 3
        }

        fn train(&self, t_trial: usize, _: &dyn Monitor) -> Result<()> {
            match t_trial {
                7 => panic!("the seventh T-trial"),
                _ => Ok(()),
            }
        }

        fn infer(&self, (): &(), t: usize, i: usize, methods: &[Method], _: &dyn Monitor) -> Result<Vec<Trial>> {
            let stream = Stream::root(3).at(t as u64).at(i as u64);
            let mut rng = stream.rng();
            let truth: f64 = rng.sample(StandardNormal);
            let y = truth + rng.sample::<f64, _>(StandardNormal);
            let (mean, sd) = (0.5 * y, self.width * 0.5_f64.sqrt());
            let n = 1000;
            let mut z: f64 = rng.sample(StandardNormal);
            let mut next = || {
                let e: f64 = rng.sample(StandardNormal);
                z = self.correlation * z + (1.0 - self.correlation * self.correlation).sqrt() * e;
                mean + sd * z
            };
            let draws: Vec<f64> = (0..n).map(|_| next()).collect();
            let effective = n as f64 * (1.0 - self.correlation) / (1.0 + self.correlation);
            let (rank, ranked, pit) =
                rank(&draws, if self.thinned { effective } else { n as f64 }, truth, stream.at(1));
            if t == 8 && methods.contains(&Method::EPost) {
                return Err(Error::failed("E-Post", "of the eighth trial", "none"));
            }
            self.done.lock().unwrap().extend(methods.iter().map(|m| (t, i, m.name())));
            let ranked = Ranked {
                unknown: "omega".into(),
                truth,
                pit,
                below: pit,
                rank: Some(rank),
                draws: Some(ranked),
                q05: 0.0,
                q95: 1.0,
            };
            let trial = |method: &Method| Trial {
                t_trial: t,
                i_trial: i,
                method: method.name().into(),
                version: None,
                weight: 1.0,
                ranked: vec![ranked.clone()],
                evidence: Evidence::default(),
                failed: None,
            };
            Ok(methods.iter().map(trial).collect())
        }
    }

    /// Keeps in memory.
    #[derive(Default)]
    struct Memory(Mutex<Vec<Trial>>);

    impl TrialSink for Memory {
        fn keep(&self, trials: &[Trial]) -> Result<()> {
            self.0.lock().unwrap().extend_from_slice(trials);
            Ok(())
        }
    }

    const METHODS: [Method; 2] = [Method::ELik, Method::EPost];

    #[test]
    fn only_what_is_missing_is_done_and_failures_are_outcomes() {
        let (mock, memory) = (Mock::new(1.0, 0.0, true), Memory::default());
        let first = run(&mock, &[0, 1, 2, 3, 4, 5], &METHODS[..1], Vec::new(), &memory, &Silent).unwrap();
        let kept = memory.0.lock().unwrap().clone();
        assert_eq!(first.len(), 2 * (1 + 2 + 3));
        assert_eq!(kept.len(), first.len());
        mock.done.lock().unwrap().clear();
        let all = run(&mock, &(0..12).collect::<Vec<_>>(), &METHODS, kept, &memory, &Silent).unwrap();
        assert_eq!(all.len(), 2 * 4 * (1 + 2 + 3));
        assert!(all.is_sorted_by_key(|trial| (trial.t_trial, trial.i_trial, trial.method == "e-post")));
        let done = mock.done.lock().unwrap();
        assert!(done.iter().all(|(t, _, method)| *t >= 6 || *method == "e-post"), "{done:?}");
        let failed: Vec<(usize, usize, &str)> =
            all.iter().filter(|t| t.failed.is_some()).map(|t| (t.t_trial, t.i_trial, t.method.as_str())).collect();
        // The seventh T-trial has two I-trials, and fails by every method; the eighth has three.
        assert_eq!(failed[..4], [(7, 0, "e-lik"), (7, 0, "e-post"), (7, 1, "e-lik"), (7, 1, "e-post")]);
        assert_eq!(failed[4..], [(8, 0, "e-post"), (8, 1, "e-post"), (8, 2, "e-post")]);
        assert!(all.iter().filter(|t| t.t_trial < 6 && t.method == "e-lik").eq(&first));
    }

    /// Ranks of a correct posterior are uniform on 0..=99, whatever the autocorrelation of its draws, if these are thinned.
    #[test]
    fn ranks_of_a_known_posterior_are_uniform() {
        let chi_square = |width: f64, correlation: f64, thinned: bool| {
            let mock = Mock::new(width, correlation, thinned);
            let trials =
                run(&mock, &(0..2000).collect::<Vec<_>>(), &METHODS[..1], Vec::new(), &Memory::default(), &Silent)
                    .unwrap();
            let mut counts = [0.0; 10];
            let ranked: Vec<&Ranked> = trials.iter().flat_map(|trial| &trial.ranked).collect();
            ranked.iter().for_each(|ranked| counts[(10.0 * ranked.pit) as usize] += 1.0);
            let expected = ranked.len() as f64 / 10.0;
            counts.iter().map(|count| (count - expected).powi(2) / expected).sum::<f64>()
        };
        // 99.9 % point of chi-square with nine degrees of freedom.
        let critical = 27.88;
        for correlation in [0.0, 0.9, 0.99] {
            let found = chi_square(1.0, correlation, true);
            assert!(found < critical, "{correlation}: {found}");
        }
        assert!(chi_square(0.7, 0.0, true) > critical, "a posterior that is too narrow");
        assert!(chi_square(1.0, 0.99, false) > critical, "99 of a thousand draws that are worth five");
    }
}
