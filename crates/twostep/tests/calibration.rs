//! Calibration by trials: the exact null, which only E-Lik may pass, what survives an interruption, and held-out runs against
//! the simulator.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use twostep::calibrate::{I_TRIALS, Trial, Truth};
use twostep::monitor::{Monitor, Silent};
use twostep::run::{Calibration, Project};
use twostep::study::{self, Setting};

/// A folder of one test alone, removed at its end.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("twostep-calibration-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// The settings of a study that comes with the library, after `change` of its text.
    fn shipped(&self, name: &str, change: impl Fn(String) -> String) -> Vec<Setting> {
        let (_, files) = study::shipped().iter().find(|(other, _)| *other == name).unwrap();
        for (file, text) in files.iter() {
            std::fs::write(self.0.join(file), text).unwrap();
        }
        let text = change(files[0].1.to_owned());
        study::parse(&text, "study.toml", &self.0).unwrap_or_else(|e| panic!("{e}"))
    }

    fn project(&self, settings: Vec<Setting>, results: &str) -> Project {
        Project::new(settings, self.0.join(results))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pits(trials: &[Trial], method: &str, unknown: &str) -> Vec<f64> {
    let of_method = trials.iter().filter(|trial| trial.method == method);
    let ranked = of_method.flat_map(|trial| trial.ranked.iter().filter(|r| r.unknown == unknown));
    ranked.map(|ranked| ranked.pit).collect()
}

/// Kolmogorov's statistic times the square root of the sample size.
fn kolmogorov(mut pits: Vec<f64>) -> f64 {
    pits.sort_by(f64::total_cmp);
    let n = pits.len() as f64;
    let gaps = pits.iter().enumerate().map(|(i, u)| f64::max((i + 1) as f64 / n - u, u - i as f64 / n));
    gaps.fold(0.0, f64::max) * n.sqrt()
}

/// The 0.1 % point of Kolmogorov's distribution: `2 sum_k (-1)^(k-1) exp(-2 k^2 x^2)` is 0.001 there to three digits.
const CRITICAL: f64 = 1.95;

/// Data of both steps from the surrogate and its priors: E-Lik is the exact posterior, and its ranks are uniform by theorem.
#[test]
fn only_e_lik_passes_the_exact_null() {
    let place = Place::new("null");
    let project = place.project(place.shipped("null", |text| text), "results");
    let [calibration] = &project.calibrate(&Silent).unwrap()[..] else { panic!("one setting") };
    assert_eq!(calibration.plan.runs.simulated, 0);
    let statistic = |method: &str| {
        let pits = pits(&calibration.trials, method, "omega");
        assert_eq!(pits.len(), 20_000, "{method}");
        kolmogorov(pits)
    };
    let found = ["e-lik", "e-post", "point", "e-log-lik"].map(statistic);
    assert!(found[0] < CRITICAL, "{found:?}");
    assert!(found[1..].iter().all(|statistic| *statistic > CRITICAL), "{found:?}");
    // The test of the command itself agrees, at the same level.
    for method in &calibration.methods {
        let p_value = method.unknowns[0].t_trial_p_value.unwrap();
        assert_eq!(p_value > 0.001, method.method == "e-lik", "{}: {p_value}", method.method);
    }
}

/// The same trials by the grid, which knows nothing of normals.
#[test]
fn the_grid_places_truths_as_closed_forms_do() {
    let place = Place::new("null-grid");
    let with = |engine: &str| {
        let settings = place.shipped("null", |text| {
            let text = text.replace("t_trials = 20000", "t_trials = 40");
            format!("{text}\n[infer]\nengine = \"{engine}\"\n")
        });
        place.project(settings, engine).calibrate(&Silent).unwrap().remove(0).trials
    };
    for (exact, grid) in with("exact").iter().zip(&with("grid")) {
        assert_eq!((exact.evidence.engine.as_str(), grid.evidence.engine.as_str()), ("exact", "grid"));
        let (exact, error) = (&exact.ranked[0], grid.evidence.quadrature_error.unwrap().max(1e-6));
        let grid = &grid.ranked[0];
        assert_eq!(exact.truth, grid.truth);
        // An error of the grid in sds moves a probability by the density, which is at most 0.4 per sd of its narrowest part.
        assert!((exact.pit - grid.pit).abs() <= 2.0 * error, "{exact:?} {grid:?}");
        let width = exact.q95 - exact.q05;
        assert!((exact.q05 - grid.q05).abs().max((exact.q95 - grid.q95).abs()) <= error * width, "{exact:?} {grid:?}");
    }
}

/// The same by chains that start blind, with ranks among thinned draws.
#[test]
fn e_lik_passes_the_exact_null_by_nuts_too() {
    let place = Place::new("null-nuts");
    let settings = place.shipped("null", |text| {
        let text = text.replace("t_trials = 20000", "t_trials = 300").replace("draws = 400", "draws = 200");
        format!(
            "{text}\n[infer]\nengine = \"nuts\"\nmethods = [\"e-lik\", \"e-log-lik\"]\nnuts = {{ chains = 4, warmup = 150, \
             draws = 150 }}\n"
        )
    });
    let calibrations = place.project(settings, "results").calibrate(&Silent).unwrap();
    let trials = &calibrations[0].trials;
    assert!(trials.iter().flat_map(|trial| &trial.ranked).all(|r| r.rank <= r.draws && r.draws.unwrap() > 0));
    let found = ["e-lik", "e-log-lik"].map(|method| kolmogorov(pits(trials, method, "omega")));
    assert!(found[0] < CRITICAL && found[1] > CRITICAL, "{found:?}");
}

/// Stops the work after so many I-trials.
struct StopAfter(usize, AtomicUsize);

impl Monitor for StopAfter {
    fn proceed(&self) -> bool {
        self.1.load(Ordering::SeqCst) < self.0
    }

    fn progress(&self, what: &str, done: usize, _: usize) {
        if what == I_TRIALS {
            self.1.fetch_max(done, Ordering::SeqCst);
        }
    }
}

fn small(place: &Place, methods: &str) -> Vec<Setting> {
    place.shipped("paper/pce_calibration", |text| {
        let text = text.replace("t_trials = 10", "t_trials = 4").replace("i_trials = 20", "i_trials = 3");
        let text = text.replace("[10, 20, 30, 40, 50]", "[10, 12]").replace("draws = 1000", "draws = 60");
        let text = text.replace("[\"point\", \"e-lik\", \"e-log-lik\", \"e-post\"]", methods);
        text.replace("\"infer.error\" = [\"independent\", \"shared\"]", "")
    })
}

fn files(folder: &Path) -> [Vec<u8>; 2] {
    ["calibration.csv", "calibration.json"].map(|name| std::fs::read(folder.join(name)).unwrap())
}

#[test]
fn an_interrupted_campaign_ends_like_any_other() {
    let place = Place::new("resume");
    let methods = "[\"point\", \"e-lik\"]";
    let whole = place.project(small(&place, methods), "whole");
    whole.calibrate(&Silent).unwrap();
    let broken = place.project(small(&place, methods), "broken");
    for stop in [2, 5, 9] {
        assert!(broken.calibrate(&StopAfter(stop, AtomicUsize::new(0))).is_err());
    }
    // A line that a crash cut off.
    let journals = std::fs::read_dir(broken.folder().join("trials")).unwrap();
    for journal in journals.map(|entry| entry.unwrap().path()) {
        let mut bytes = std::fs::read(&journal).unwrap();
        bytes.truncate(bytes.len() - 7);
        std::fs::write(&journal, bytes).unwrap();
    }
    let plan = &broken.calibration_plan().unwrap()[0];
    assert!(plan.kept >= 2 && plan.missing_runs < plan.runs.simulated, "{plan:?}");
    let threads = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    threads.install(|| broken.calibrate(&Silent)).unwrap();
    assert_eq!(files(broken.folder()), files(whole.folder()));
}

/// Counts I-trials that are done.
#[derive(Default)]
struct Count(AtomicUsize);

impl Monitor for Count {
    fn proceed(&self) -> bool {
        true
    }

    fn progress(&self, what: &str, done: usize, _: usize) {
        if what == I_TRIALS && done > 0 {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn another_method_or_more_trials_leave_the_rest_as_it_is() {
    let place = Place::new("grow");
    let narrow = place.project(small(&place, "[\"point\"]"), "results");
    narrow.calibrate(&Silent).unwrap();
    let kept = std::fs::read_dir(narrow.folder().join("trials")).unwrap().count();
    let wide = place.project(small(&place, "[\"point\", \"e-log-lik\"]"), "results");
    let both = wide.calibrate(&Silent).unwrap();
    // The journals are the same, and each outcome stands in them once.
    assert_eq!(std::fs::read_dir(wide.folder().join("trials")).unwrap().count(), kept);
    for calibration in &both {
        let lines = std::fs::read_to_string(journal(&wide, calibration)).unwrap().lines().count();
        assert_eq!(lines, 1 + calibration.trials.len());
    }
    let more = wide.with_calibration(|spec| spec.t_trials = 5);
    let count = Count::default();
    let grown = more.calibrate(&count).unwrap();
    // One T-trial of three I-trials for each of four settings, and what was counted before them.
    assert_eq!(count.0.load(Ordering::SeqCst), 4 * (3 + 1));
    for (before, after) in both.iter().zip(&grown) {
        assert_eq!(before.trials, after.trials[..before.trials.len()]);
        assert_eq!(after.trials.len(), before.trials.len() / 4 * 5);
    }
}

/// A method that is added computes nothing but itself, and comes out as if it had been there from the start.
#[test]
fn an_added_method_trains_nothing() {
    let place = Place::new("added");
    let settings = |methods: &str| {
        place.shipped("paper/logistic_calibration", |text| {
            let text = text.replace("[5, 6, 7, 8, 9, 10]", "[8]").replace("t_trials = 10", "t_trials = 2");
            let text = text.replace("i_trials = 20", "i_trials = 2").replace("draws = 1000", "draws = 100");
            text.replace("[\"point\", \"e-lik\", \"e-log-lik\", \"e-post\"]", methods)
        })
    };
    let calibrate = |methods: &str, results: &str| {
        let project = place.project(settings(methods), results);
        let calibration = project.calibrate(&Silent).unwrap().remove(0);
        let kept = std::fs::read_dir(journal(&project, &calibration).with_extension("")).unwrap().count();
        (calibration, kept, files(project.folder()))
    };
    let (first, kept, _) = calibrate("[\"point\"]", "grown");
    assert_eq!((first.trained, kept), (2, 2));
    let (both, kept, grown) = calibrate("[\"point\", \"e-log-lik\"]", "grown");
    assert_eq!((both.trained, kept), (0, 2));
    assert_eq!(both.plan.missing_runs, 4, "one run for each I-trial, none to train with");
    let (fresh, _, whole) = calibrate("[\"point\", \"e-log-lik\"]", "fresh");
    assert_eq!(fresh.trained, 2);
    assert_eq!(grown, whole);
    // Whoever deletes the trials wants them done again.
    std::fs::remove_file(journal(&place.project(settings("[\"point\"]"), "grown"), &both)).unwrap();
    assert_eq!(calibrate("[\"point\"]", "grown").0.trained, 2);
}

fn journal(project: &Project, calibration: &Calibration) -> PathBuf {
    project.folder().join("trials").join(format!("{}.jsonl", &calibration.plan.fingerprint[..16]))
}

#[test]
fn a_trial_that_fails_is_an_outcome() {
    let place = Place::new("failed");
    // Log-normal noise has no likelihood for the negative values that normal noise measures.
    let settings = place.shipped("null", |text| {
        let text = text.replace("t_trials = 20000", "t_trials = 20").replace("truth = \"surrogate-prior\"", "");
        let text = text.replace("family = \"normal\", sd = 0.3", "family = \"log-normal\", sd = 0.3");
        format!("{text}\nnoise = {{ family = \"normal\", sd = 5 }}\n")
    });
    let calibrations = place.project(settings, "results").calibrate(&Silent).unwrap();
    let trials = &calibrations[0].trials;
    assert_eq!(trials.len(), 80);
    let failed = trials.iter().filter(|trial| trial.failed.is_some()).count();
    assert!((1..80).contains(&failed), "{failed}");
    assert_eq!(calibrations[0].methods.iter().map(|m| m.failed).sum::<usize>(), failed);
    assert!(trials.iter().all(|trial| trial.failed.is_some() == trial.ranked.is_empty()));
}

/// Counts, inferred with log-normal noise: its sd has no true value.
#[test]
fn other_noise_than_the_inferring_has_no_true_sd() {
    let place = Place::new("counts");
    let settings = place.shipped("sir", |text| {
        let text = text.replace("[infer]", "[calibrate]\nt_trials = 2\ni_trials = 1\n\n[infer]");
        let text = text.replace("draws = 1000", "draws = 50").replace("linspace(1, 14, 50)", "linspace(1, 14, 5)");
        text.replace("[\"point\", \"e-lik\", \"e-log-lik\", \"e-post\"]", "[\"point\", \"e-lik\"]")
    });
    let project = place.project(settings, "results");
    let plan = &project.calibration_plan().unwrap()[0];
    // 64 runs of the design, and one for each time that is measured.
    assert_eq!(plan.runs.simulated, 2 * (64 + 5));
    assert!(plan.notes[0].contains("scrambled"), "{:?}", plan.notes);
    let calibrations = project.calibrate(&Silent).unwrap();
    let ranked: Vec<Vec<&str>> =
        calibrations[0].trials.iter().map(|t| t.ranked.iter().map(|r| r.unknown.as_str()).collect()).collect();
    assert_eq!(ranked, vec![["beta", "gamma"]; 4]);
}

#[test]
fn methods_that_are_swept_keep_their_own_results() {
    let place = Place::new("methods");
    let settings = place.shipped("null", |text| {
        let text = text.replace("t_trials = 20000", "t_trials = 3");
        format!("{text}\n[sweep]\n\"infer.methods\" = [[\"point\"], [\"e-lik\"]]\n")
    });
    let calibrations = place.project(settings, "results").calibrate(&Silent).unwrap();
    let methods: Vec<&str> = calibrations.iter().map(|c| c.methods[0].method.as_str()).collect();
    assert_eq!(methods, ["point", "e-lik"]);
    assert!(calibrations.iter().zip(methods).all(|(c, method)| c.trials.iter().all(|t| t.method == method)));
}

/// On a bound of its prior no interval holds a truth, and the twin of a run that is held out would give it away.
#[test]
fn runs_on_a_bound_are_not_held_out_and_repeats_go_together() {
    let place = Place::new("bounds");
    let settings = |i_trials: usize| {
        place.shipped("paper/pce_calibration", |text| {
            let text = text.split_once("[sweep]").unwrap().0.to_owned();
            let text = text.replace("method = \"halton-ends\"\nruns = 10", "points = \"points.csv\"");
            let text = text.replace("i_trials = 20", &format!("i_trials = {i_trials}\ntruth = \"held-out-runs\""));
            text.replace("draws = 1000", "draws = 50").replace("degree = 5", "degree = 2")
        })
    };
    std::fs::write(place.0.join("points.csv"), "omega\n-1\n-0.5\n0\n0\n0.3\n0.6\n1\n").unwrap();
    let project = place.project(settings(1), "results");
    let before = project.calibrate(&Silent).unwrap().remove(0);
    let truths = |calibration: &Calibration| -> Vec<(usize, f64)> {
        let of_point = calibration.trials.iter().filter(|trial| trial.method == "point");
        of_point.map(|trial| (trial.t_trial, trial.ranked[0].truth)).collect()
    };
    assert_eq!(truths(&before), [(0, -0.5), (1, 0.0), (1, 0.0), (2, 0.3), (3, 0.6)]);
    // Known from the first call on, which made the runs.
    assert_eq!((before.plan.t_trials, before.plan.i_trials, before.plan.runs.held_out), (4, 5, 5));
    let plan = &project.calibration_plan().unwrap()[0];
    assert_eq!((plan.t_trials, plan.i_trials, plan.kept, plan.runs.held_out), (4, 5, 5, 5));
    assert!(plan.notes.iter().any(|note| note.contains("2 of 7 runs")), "{:?}", plan.notes);
    // More I-trials of each run leave the first as they were, and are those that a fresh start gives.
    let after = place.project(settings(2), "results").calibrate(&Silent).unwrap().remove(0);
    let fresh = place.project(settings(2), "fresh").calibrate(&Silent).unwrap().remove(0);
    assert_eq!(after.trials, fresh.trials);
    assert_eq!(truths(&after).len(), 10);
    assert!(before.trials.iter().all(|trial| after.trials.contains(trial)));
}

/// No new runs, and yet the same answer: coverages agree within what both of them say of their errors.
#[test]
fn held_out_runs_agree_with_the_simulator() {
    let place = Place::new("held-out");
    let settings = |truth: &str| {
        let mut settings = place.shipped("paper/logistic_calibration", |text| {
            let text = text.replace("[5, 6, 7, 8, 9, 10]", "[8, 24]").replace("t_trials = 10", "t_trials = 24");
            let text = text.replace("i_trials = 20", &format!("i_trials = 2\ntruth = \"{truth}\""));
            text.replace("[\"point\", \"e-lik\", \"e-log-lik\", \"e-post\"]", "[\"point\", \"e-lik\"]")
        });
        settings.iter_mut().for_each(|setting| setting.study.infer.draws = 100);
        settings
    };
    let by = |truth: Truth| place.project(settings(truth.name()), truth.name()).calibrate(&Silent).unwrap();
    let (simulated, held_out) = (by(Truth::Simulator), by(Truth::HeldOutRuns));
    for (simulated, held_out) in simulated.iter().zip(&held_out) {
        assert!(simulated.plan.runs.simulated > 0);
        assert_eq!(held_out.plan.runs.held_out, held_out.plan.t_trials);
        for (a, b) in simulated.methods.iter().zip(&held_out.methods) {
            let omega = |method: &twostep::calibrate::MethodSummary| {
                let unknown = method.unknowns.iter().find(|u| u.unknown == "omega").unwrap();
                assert_eq!(unknown.log_gamma.is_none(), std::ptr::eq(method, b));
                *unknown.coverage.iter().find(|c| c.level == 0.9).unwrap()
            };
            let (a, b) = (omega(a), omega(b));
            assert!(a.lower <= b.upper && b.lower <= a.upper, "{a:?} {b:?}");
        }
    }
}
