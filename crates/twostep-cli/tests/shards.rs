//! Work that is divided by `--shard`, brought together by `merge` and handed to Slurm by `submit`, as users meet it.

// A helper that cannot go on has failed its test.
#![allow(clippy::unwrap_used)]
#![cfg(unix)]

mod common;

use common::{Place, holds};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const STUDY: &str = r#"
seed = 3
[simulator]
builtin = "logistic"
[unknowns.omega]
range = [-1, 1]
prior = "normal(0, 0.5)"
[design]
runs = 8
[surrogate]
kind = "pce"
degree = 3
[train]
draws = 12
[measurements]
noise = { sd = 0.1 }
[measurements.synthetic]
truth = { omega = 0.2 }
replicates = 3
noise = { family = "normal", sd = 0.01 }
[infer]
methods = ["e-post"]
engine = "nuts"
draws = 240
[infer.nuts]
fits = "all"
chains = 2
warmup = 100
draws = 40
[calibrate]
t_trials = 5
i_trials = 2
"#;

/// [`STUDY`] with ten runs of a command, that of the synthetic truth among them, of which the third fails until `mended` is there.
fn commanded(name: &str) -> Place {
    let simulator = r#"command = ["sh", "model.sh", "{params}", "{results}", "{id}"]
copy = ["model.sh"]"#;
    let study = STUDY.replace("builtin = \"logistic\"", simulator).replace("runs = 8", "runs = 9");
    let place = Place::with_study(name, &study);
    let mended = place.0.join("mended");
    let script = format!(
        "if [ \"$3\" = 3 ] && [ ! -e '{}' ]; then echo no convergence >&2; exit 3; fi\n\
         awk -F: '/omega/ {{ sub(/[,}}]/, \"\", $2); printf \"%.17g\\n\", $2 * $2 }}' \"$1\" >\"$2\"\n",
        mended.display()
    );
    place.write("model.sh", &script);
    place
}

#[test]
fn shards_of_trials_are_merged_and_what_is_missing_is_named() {
    let place = Place::with_study("trials", STUDY);
    let first = place.run(&["calibrate", "study.toml", "--shard", "1/2", "-q"]).ends(0).out;
    holds(&first, "shard 1/2: 3 of 5 T-trials are its own; 6 new results");
    let merged = place.run(&["merge", "study.toml"]).ends(1);
    holds(&merged.err, "shard 2/2 has no file: T-trial 2, T-trial 4 are missing");
    holds(&merged.err, "run those shards again, then merge again");
    // Again it finds its own results, and the other one may be done elsewhere.
    holds(&place.run(&["calibrate", "study.toml", "--shard", "1/2", "-q"]).ends(0).out, "0 new results");
    let second =
        place.run(&["calibrate", "study.toml", "--shard", "2/2", "--out", "elsewhere", "--json"]).ends(0).json();
    assert_eq!(second["new"], 4);
    fs::rename(place.0.join("elsewhere/shards"), place.0.join("brought")).unwrap();
    let merged = place.run(&["merge", "study.toml", "brought", "-q"]).ends(0);
    holds(&merged.out, "log-gamma");
    let local = place.run(&["calibrate", "study.toml", "--out", "local", "-q"]).ends(0);
    assert_eq!(merged.out.replace("study.twostep", "local"), local.out);
    for file in ["calibration.csv", "calibration.json"] {
        assert_eq!(place.read(&format!("study.twostep/{file}")), place.read(&format!("local/{file}")));
    }
    // Flags that were given to the shards are those of the merge.
    for shard in ["1/2", "2/2"] {
        place.run(&["calibrate", "study.toml", "--t-trials", "6", "--shard", shard, "-q"]).ends(0);
    }
    place.run(&["merge", "study.toml", "-q"]).ends(0);
    assert_eq!(place.read("study.twostep/calibration.csv").lines().count(), 1 + 12);
}

#[test]
fn shards_of_fits_are_merged_into_the_answer() {
    let place = Place::with_study("fits", STUDY);
    holds(&place.run(&["infer", "study.toml", "--shard", "1/2"]).ends(2).err, "`twostep train STUDY` first");
    place.run(&["train", "study.toml", "-q"]).ends(0);
    for shard in ["1/2", "2/2"] {
        let done = place.run(&["infer", "study.toml", "--shard", shard, "-q"]).ends(0).out;
        holds(&done, &format!("shard {shard}: 6 of 12 fits are its own; 6 new results"));
    }
    let merged = place.run(&["merge", "study.toml"]).ends(0);
    holds(&merged.out, "merged 2 files: 12 new results");
    place.run(&["infer", "study.toml", "--out", "local", "-q"]).ends(0);
    for file in ["i_draws_e-post.csv", "summary.csv", "t_draws.csv"] {
        assert_eq!(place.read(&format!("study.twostep/{file}")), place.read(&format!("local/{file}")));
    }
}

#[test]
fn wrong_shares_say_how_they_are_written() {
    let place = Place::with_study("wrong", STUDY);
    for wrong in ["0/4", "5/4", "3"] {
        let refused = place.run(&["calibrate", "study.toml", "--shard", wrong]).ends(2);
        holds(&refused.err, "write k/n, from 1/n to n/n, like 3/100");
    }
    holds(&place.run(&["merge", "study.toml"]).ends(2).err, "there are no files of shares in");
    holds(&place.run(&["simulate", "study.toml", "--shard", "1/2"]).ends(2).err, "nothing to share out");
    assert!(!place.0.join("study.twostep").exists(), "nothing is written");
}

#[test]
fn submit_writes_an_array_of_what_is_missing_and_its_merge() {
    let place = commanded("submit");
    let told = place.run(&["submit", "study.toml", "--slurm"]).ends(0).out;
    holds(&told, "10 runs to do, in 10 tasks of 10 shards");
    holds(&told, "submit them: sh ");
    let script = |name: &str| place.read(&format!("study.twostep/shards/slurm/{name}"));
    let array = script("simulate.sh");
    assert!(array.starts_with("#!/bin/bash\n#SBATCH --job-name=study-simulate\n"), "{array}");
    for own in [
        "simulate-%A_%a.out",
        "--shard \"$shard/10\"",
        "study.toml",
        "--out ",
        "--threads \"${SLURM_CPUS_PER_TASK:-1}\"",
    ] {
        holds(&array, own);
    }
    holds(&script("merge.sh"), " merge ");
    let submit = script("submit.sh");
    holds(&submit, "--array=1-10 ");
    holds(&submit, "--dependency=\"afterany$arrays\"");

    // What tasks of the array do, without Slurm; the third run fails.
    for task in 1..=10 {
        let script = place.0.join("study.twostep/shards/slurm/simulate.sh");
        let done = std::process::Command::new("bash").arg(script).env("SLURM_ARRAY_TASK_ID", task.to_string()).output();
        assert!(done.unwrap().status.success(), "task {task}");
    }
    place.run(&["merge", "study.toml", "-q"]).ends(0);
    holds(&place.run(&["submit", "study.toml", "--slurm"]).ends(0).out, "nothing is left to do; nothing was written");
    let told = place.run(&["submit", "study.toml", "--slurm", "--only", "failed"]).ends(0).out;
    holds(&told, "1 run to do, in 1 task of 10 shards");
    holds(&script("submit.sh"), "--array=3 ");
    holds(&script("simulate.sh"), "--shard \"$shard/10\" --only failed");
}

#[test]
fn submit_hands_over_to_slurm_and_tells_the_jobs() {
    let place = commanded("now");
    place.write("bin-sbatch", "#!/bin/sh\necho \"$@\" >>\"$SBATCH_LOG\"\nwc -l <\"$SBATCH_LOG\" | tr -d ' '\n");
    fs::create_dir(place.0.join("bin")).unwrap();
    fs::rename(place.0.join("bin-sbatch"), place.0.join("bin/sbatch")).unwrap();
    fs::set_permissions(place.0.join("bin/sbatch"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", place.0.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let submit = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        common::Ran::from(command.env("PATH", &path).env("SBATCH_LOG", place.0.join("log")).output().unwrap())
    };
    let told =
        submit(&["submit", "study.toml", "calibrate", "--slurm", "--now", "--t-trials", "2500", "--shards", "2500"]);
    holds(&told.ends(0).out, "submitted: array 1, 2, 3, then merge 4");
    let log = place.read("log");
    let lines: Vec<&str> = log.lines().collect();
    holds(lines[0], "--parsable --array=1-1000 ");
    holds(lines[1], "--array=1-1000 --export=ALL,TWOSTEP_FIRST=1000 ");
    holds(lines[2], "--array=1-500 --export=ALL,TWOSTEP_FIRST=2000 ");
    holds(lines[3], "--parsable --dependency=afterany:1:2:3 ");
    holds(&place.read("study.twostep/shards/slurm/calibrate.sh"), "--shard \"$shard/2500\" --t-trials 2500 --out");

    place.write("bin/sbatch", "#!/bin/sh\necho 'sbatch: error: invalid partition specified' >&2\nexit 1\n");
    let refused = submit(&["submit", "study.toml", "--slurm", "--now"]).ends(1).err;
    holds(&refused, "invalid partition specified");
    holds(&refused, "the scripts are written; correct that, and run sh");
}

#[test]
fn templates_have_their_markers_where_slurm_reads_them() {
    let place = commanded("template");
    let own = place.run(&["submit", "--print-template"]).ends(0).out;
    let submit = |template: &str| {
        place.write("my.slurm", template);
        place.run(&["submit", "study.toml", "--slurm", "--template", "my.slurm"])
    };
    submit(&own.replace("##SBATCH --partition=short", "#SBATCH --partition=long")).ends(0);
    for script in ["simulate.sh", "merge.sh"] {
        holds(&place.read(&format!("study.twostep/shards/slurm/{script}")), "\n#SBATCH --partition=long\n");
    }
    holds(&submit(&own.replace("{{ command }}", "")).ends(2).err, "has no line `{{ command }}`");
    holds(&submit(&own.replace("#!/bin/bash\n", "")).ends(2).err, "does not begin with `#!`");
    let late = own.replace("{{ directives }}", "module load python\n{{ directives }}");
    holds(&submit(&late).ends(2).err, "my.slurm:2: has a command above `{{ directives }}`");
    holds(&place.run(&["submit", "study.toml"]).ends(2).err, "--slurm");
    holds(
        &place.run(&["submit", "study.toml", "calibrate", "--slurm", "--only", "failed"]).ends(2).err,
        "would fail again",
    );
    holds(&place.run(&["submit", "study.toml", "--slurm", "--t-trials", "3"]).ends(2).err, "are for calibrations");
}
