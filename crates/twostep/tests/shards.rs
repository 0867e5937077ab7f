//! Work that is divided: however that is done the results are the same files, and what does not belong together is refused.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use twostep::monitor::Silent;
use twostep::run::{Project, VERSION};
use twostep::store::{Made, Share, Task};
use twostep::study::{self, Stage};

const STUDY: &str = r#"
name = "shared"
seed = 5
[simulator]
builtin = "logistic"
sigma_s = 0.01
[unknowns.omega]
range = [-1, 1]
prior = "normal(0, 0.5)"
[surrogate]
kind = "pce"
degree = 3
[design]
runs = 10
[measurements]
noise = { sd = "half-normal(0.05)" }
[measurements.synthetic]
truth = { omega = 0.2 }
replicates = 3
noise = { family = "normal", sd = 0.01 }
[train]
draws = 50
[infer]
methods = ["e-lik", "point"]
[calibrate]
t_trials = 11
i_trials = 2
[sweep]
"design.runs" = [10, 14]
"#;

/// A folder of one test alone, removed at its end.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("twostep-shards-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn project(&self, text: &str, results: &str) -> Project {
        let settings = study::parse(text, "study.toml", &self.0).unwrap_or_else(|e| panic!("{e}"));
        Project::new(settings, self.0.join(results))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn share(number: usize, of: usize) -> Share {
    Share::new(number, of).unwrap()
}

/// Every file in a folder by its path inside, but for shards and locks.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn add(folder: &Path, inside: &Path, out: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
            let inside = inside.join(&name);
            match path.is_dir() {
                true if name == "shards" => {}
                true => add(&path, &inside, out),
                false if name == ".lock" => {}
                false => drop(out.insert(inside, std::fs::read(&path).unwrap())),
            }
        }
    }
    let mut out = BTreeMap::new();
    add(folder, Path::new(""), &mut out);
    out
}

/// The files of all shards in a folder of results.
fn shards(results: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(results.join("shards")).unwrap().map(|entry| entry.unwrap().path());
    let inside = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    let mut out: Vec<PathBuf> = inside.filter(|path| path.extension().is_some_and(|e| e == "jsonl")).collect();
    out.sort();
    out
}

#[test]
fn a_campaign_is_the_same_however_it_is_cut() {
    let place = Place::new("cut");
    place.project(STUDY, "local").calibrate(&Silent).unwrap();
    let local = files(&place.0.join("local"));
    assert!(local.keys().any(|name| name.ends_with("calibration.csv")));
    for of in [1, 3, 7] {
        let results = of.to_string();
        // The last first: nothing depends on the order.
        for number in (1..=of).rev() {
            let done = place.project(STUDY, &results).calibrate_share(share(number, of), &Silent).unwrap();
            assert_eq!((done.units, done.failed), (22, 0));
            assert_eq!(done.new, 2 * 2 * done.own, "I-trials by two methods");
        }
        let (project, merged) = place.project(STUDY, &results).merge(&[]).unwrap();
        assert_eq!((merged.new, merged.known, merged.missing.len()), (22 * 4, 0, 0));
        project.calibrate(&Silent).unwrap();
        let first = files(&place.0.join(&results));
        assert!(first == local, "cut into {of}: {:?} against {:?}", first.keys(), local.keys());
        // Once more: nothing is new, nothing changes.
        let (_, again) = place.project(STUDY, &results).merge(&[]).unwrap();
        assert_eq!((again.new, again.known), (0, 22 * 4));
        assert!(files(&place.0.join(&results)) == local);
    }
}

#[test]
fn what_a_share_has_is_not_done_again_and_what_is_missing_is_named() {
    let place = Place::new("missing");
    let project = || place.project(STUDY, "results");
    for number in [1, 2, 4] {
        project().calibrate_share(share(number, 4), &Silent).unwrap();
    }
    // The second was killed in the middle of a line.
    let second = shards(&place.0.join("results")).into_iter().find(|path| path.ends_with("2-of-4.jsonl")).unwrap();
    let whole = std::fs::read(&second).unwrap();
    std::fs::write(&second, &whole[..whole.len() / 2]).unwrap();
    let (_, merged) = project().merge(&[]).unwrap();
    let words: Vec<&str> = merged.missing.iter().map(|missing| missing.words.as_str()).collect();
    assert_eq!(merged.missing.iter().map(|m| m.share.unwrap().to_string()).collect::<Vec<_>>(), ["2/4", "3/4"]);
    assert!(words[0].starts_with("shard 2/4 did not finish: T-trial "), "{words:?}");
    assert!(words[1].starts_with("shard 3/4 has no file: T-trial 3 of design.runs = 10, T-trial 7"), "{words:?}");
    // What is there counts already.
    assert!(project().calibrations().unwrap().is_some());
    let done = project().calibrate_share(share(2, 4), &Silent).unwrap();
    assert!(done.new > 0 && done.new < 4 * done.own, "{done:?}");
    project().calibrate_share(share(3, 4), &Silent).unwrap();
    let (project, merged) = project().merge(&[]).unwrap();
    assert!(merged.missing.is_empty());
    project.calibrate(&Silent).unwrap();
    place.project(STUDY, "local").calibrate(&Silent).unwrap();
    assert!(files(&place.0.join("results")) == files(&place.0.join("local")));
}

#[test]
fn units_done_anywhere_are_collected() {
    let place = Place::new("anywhere");
    let project = place.project(STUDY, "results");
    let units = project.missing_trials().unwrap();
    assert_eq!(units.len(), 22);
    let mut collector = project.collector().unwrap();
    for (worker, units) in units.chunks(5).enumerate() {
        let away = place.project(STUDY, &format!("worker-{worker}"));
        for section in away.try_units(units, &Silent).unwrap() {
            assert!(section.1.iter().all(|made| matches!(made, Made::Trial(_))));
            let [new, known] = collector.keep(&project, "worker", section.clone()).unwrap();
            assert_eq!((new, known), (section.1.len(), 0));
            assert_eq!(collector.keep(&project, "worker", section).unwrap()[0], 0);
        }
        assert!(files(&place.0.join("results")).keys().any(|name| name.starts_with("trials")), "kept at once");
    }
    drop(collector);
    assert!(project.missing_trials().unwrap().is_empty());
    project.calibrate(&Silent).unwrap();
    place.project(STUDY, "local").calibrate(&Silent).unwrap();
    assert!(files(&place.0.join("results")) == files(&place.0.join("local")));
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let place = Place::new("refused");
    let small = STUDY.replace("[10, 14]", "[10]").replace("t_trials = 11", "t_trials = 2");
    let file = |text: &str, name: &str, results: &str| {
        let settings = study::parse(text, name, &place.0).unwrap();
        Project::new(settings, place.0.join(results)).calibrate_share(share(1, 1), &Silent).unwrap().files.remove(0)
    };
    let own = file(&small, "study.toml", "own");
    let merge = |files: &[PathBuf]| place.project(&small, "merged").merge(files).map(|(_, merged)| merged);
    let refused = |files: &[PathBuf], why: &str| {
        let problem = merge(files).unwrap_err().to_string();
        assert!(problem.contains(why) && problem.contains("nothing was merged"), "{problem}");
        assert!(!place.0.join("merged").exists(), "nothing is written");
    };
    let seed = file(&small.replace("seed = 5", "seed = 6"), "study.toml", "seed");
    refused(&[own.clone(), seed], "was made with seed 6, and the study has 5");
    let other = file(&small.replace("degree = 3", "degree = 2"), "other.toml", "other");
    refused(&[own.clone(), other], "is of another study, other.toml");
    let changed = file(&small.replace("degree = 3", "degree = 2"), "study.toml", "changed");
    refused(std::slice::from_ref(&changed), "before it was changed");
    let text = std::fs::read_to_string(&own).unwrap();
    let version = place.0.join("version.jsonl");
    std::fs::write(&version, text.replace(&format!("\"version\":\"{VERSION}\""), "\"version\":\"0.0.1\"")).unwrap();
    refused(&[version], "was made by version 0.0.1");
    let broken = place.0.join("broken.jsonl");
    std::fs::write(&broken, "no journal\n").unwrap();
    assert!(merge(&[broken]).unwrap_err().to_string().contains("is no line of a journal"));
    assert!(merge(&[place.0.join("none.jsonl")]).unwrap_err().to_string().contains("no such file"));
    assert!(merge(&[]).unwrap_err().to_string().contains("there are no files of shares"));
    // Another outcome of the same trial.
    merge(std::slice::from_ref(&own)).unwrap();
    let before = files(&place.0.join("merged"));
    let differing = place.0.join("differing.jsonl");
    std::fs::write(&differing, text.replacen("\"weight\":1.0", "\"weight\":0.5", 1)).unwrap();
    assert!(merge(&[differing]).unwrap_err().to_string().contains("came out differently"));
    assert!(files(&place.0.join("merged")) == before);
    // In the folder of results, what is older than the study is left where it is.
    let old = place.0.join("merged/shards/calibrate-0000000000000000/1-of-1.jsonl");
    std::fs::create_dir_all(old.parent().unwrap()).unwrap();
    std::fs::copy(&changed, &old).unwrap();
    let notes = merge(&[]).unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("before it was changed were left alone")), "{notes:?}");
}

#[test]
fn fits_of_e_post_are_shared_out() {
    let place = Place::new("fits");
    let text = STUDY
        .replace("draws = 50", "draws = 12")
        .replace(
            "methods = [\"e-lik\", \"point\"]",
            "methods = [\"e-post\", \"point\"]\nengine = \"nuts\"\ndraws = 240\n[infer.nuts]\nfits = \"all\"\nchains = 2\nwarmup = 100\ndraws = 40",
        )
        .replace("draws = 50", "draws = 12");
    let project = |results: &str| place.project(&text, results);
    let problem = project("results").infer_share(share(1, 3), &Silent).unwrap_err();
    assert!(problem.to_string().contains("`twostep train STUDY` first"), "{problem}");
    project("results").run(Stage::Train, &Silent).unwrap();
    // Both settings of the sweep, twelve T-draws each; the last share first.
    let mut new = 0;
    for number in [3, 1] {
        let done = project("results").infer_share(share(number, 3), &Silent).unwrap();
        assert_eq!((done.units, done.own, done.new), (24, 8, 8));
        new += done.new;
    }
    let (_, merged) = project("results").merge(&[]).unwrap();
    assert_eq!((merged.new, merged.tasks.as_slice()), (new, [Task::Infer].as_slice()));
    let words: Vec<&str> = merged.missing.iter().map(|missing| missing.words.as_str()).collect();
    assert_eq!(words.len(), 1);
    assert!(words[0].starts_with("shard 2/3 has no file: T-draw 2 of design.runs = 10, T-draw 5"), "{words:?}");
    // What another share has made and was merged is not made again.
    assert_eq!(project("results").infer_share(share(1, 1), &Silent).unwrap().new, 8);
    let (merged, found) = project("results").merge(&[]).unwrap();
    assert!(found.missing.is_empty());
    let shared = merged.run(Stage::Infer, &Silent).unwrap();
    let local = project("local").run(Stage::Infer, &Silent).unwrap();
    for (shared, local) in shared.iter().zip(&local) {
        assert_eq!(format!("{:?}", shared.posteriors), format!("{:?}", local.posteriors));
    }
    let csv = |results: &str| {
        files(&place.0.join(results)).into_iter().filter(|(name, _)| name.extension().is_some_and(|e| e == "csv"))
    };
    assert!(csv("results").eq(csv("local")));
    // Fits that are no work of their own are refused with the reason.
    for (from, to, why) in [
        ("fits = \"all\"", "fits = \"needed\"", "no more T-draws than it needs"),
        ("engine = \"nuts\"", "engine = \"grid\"", "by the engine grid"),
        ("\"e-post\", ", "", "does not ask for e-post"),
    ] {
        let other = place.project(&text.replace(from, to), "other");
        other.run(Stage::Train, &Silent).unwrap();
        let problem = other.infer_share(share(1, 3), &Silent).unwrap_err().to_string();
        assert!(problem.contains(why), "{problem}");
    }
}

/// Sixteen runs of a command, two of which fail at first.
#[cfg(unix)]
#[test]
fn runs_are_shared_out_and_failed_ones_made_again() {
    let place = Place::new("runs");
    let script = place.0.join("sim.sh");
    // Fails above 0.7 until the file `mended` is there.
    let text = "#!/bin/sh\nx=$(sed 's/.*: *\\([-0-9.e]*\\).*/\\1/' \"$1\" | tr -d '\\n{}\"')\n\
                if awk \"BEGIN { exit !($x > 0.7) }\" && [ ! -e \"$3/mended\" ]; then echo too hot >&2; exit 3; fi\n\
                awk \"BEGIN { printf \\\"%.17g\\\\n\\\", $x * $x }\" > \"$2\"\n";
    std::fs::write(&script, text).unwrap();
    let study = STUDY
        .replace(
            "builtin = \"logistic\"\nsigma_s = 0.01",
            &format!(
                "command = [\"sh\", \"{}\", \"{{params}}\", \"{{results}}\", \"{}\"]",
                script.display(),
                place.0.display()
            ),
        )
        .replace("runs = 10", "runs = 16")
        .replace("[sweep]\n\"design.runs\" = [10, 14]", "");
    let project = |results: &str| place.project(&study, results);
    for number in [3, 1, 2] {
        project("shared").simulate_share(share(number, 3), false, &Silent).unwrap();
    }
    let (_, merged) = project("shared").merge(&[]).unwrap();
    assert_eq!((merged.new, merged.tasks.as_slice(), merged.missing.len()), (17, [Task::Simulate].as_slice(), 0));
    let failed = |results: &str| project(results).runs().unwrap().iter().filter(|run| run.state == "failed").count();
    assert_eq!(failed("shared"), 2);
    let attempts = || project("shared").runs().unwrap().iter().map(|run| run.attempts).sum::<usize>();
    assert_eq!(attempts(), 17);
    // Nothing is pending, and only failed ones are made again.
    std::fs::write(place.0.join("mended"), "").unwrap();
    for number in 1..=3 {
        assert_eq!(project("shared").simulate_share(share(number, 3), false, &Silent).unwrap().new, 0);
    }
    let again: usize = (1..=3).map(|k| project("shared").simulate_share(share(k, 3), true, &Silent).unwrap().new).sum();
    assert_eq!(again, 2);
    project("shared").merge(&[]).unwrap();
    assert_eq!((failed("shared"), attempts()), (0, 19));
    project("shared").run(Stage::Simulate, &Silent).unwrap();
    project("local").run(Stage::Simulate, &Silent).unwrap();
    let [shared, local] = ["shared", "local"].map(|results| {
        let runs = project(results).runs().unwrap();
        runs.into_iter().map(|run| (run.id, run.inputs, run.outputs)).collect::<Vec<_>>()
    });
    assert_eq!(shared, local, "numbers, inputs and outputs of the runs");
    let set = |results: &str| std::fs::read(place.0.join(results).join("training.csv")).unwrap();
    assert_eq!(set("shared"), set("local"));
    // Trials that run the simulator bring their runs along.
    for number in 1..=2 {
        project("shared").calibrate_share(share(number, 2), &Silent).unwrap();
    }
    let (merged, _) = project("shared").merge(&[]).unwrap();
    let [shared, local] = [merged, project("local")].map(|project| {
        let calibrations = project.calibrate(&Silent).unwrap();
        (calibrations[0].trials.clone(), project.runs().unwrap().len())
    });
    assert_eq!(shared, local);
}

#[test]
fn a_share_has_one_worker_and_runs_that_are_no_work_are_not_shared() {
    let place = Place::new("worker");
    let problem = place.project(STUDY, "results").simulate_share(share(1, 2), false, &Silent).unwrap_err();
    assert!(problem.to_string().contains("nothing to share out"), "{problem}");
    let held_out = STUDY.replace("i_trials = 2", "i_trials = 2\ntruth = \"held-out-runs\"");
    let problem = place.project(&held_out, "results").calibrate_share(share(1, 2), &Silent).unwrap_err();
    assert!(problem.to_string().contains("twostep simulate STUDY"), "{problem}");
    // Once the runs are there every share knows them.
    place.project(&held_out, "results").run(Stage::Simulate, &Silent).unwrap();
    for number in 1..=2 {
        place.project(&held_out, "results").calibrate_share(share(number, 2), &Silent).unwrap();
    }
    let (project, merged) = place.project(&held_out, "results").merge(&[]).unwrap();
    assert!(merged.missing.is_empty());
    let shared = project.calibrate(&Silent).unwrap();
    let local = place.project(&held_out, "local").calibrate(&Silent).unwrap();
    assert!(shared.iter().zip(&local).all(|(a, b)| a.trials == b.trials && !a.trials.is_empty()));
}
