//! A study gives the same files, byte for byte, whatever the number of threads.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use twostep::monitor::Silent;
use twostep::run::Project;
use twostep::study::{self, Stage};

/// Two unknowns, replicates and an unknown sd; the T-step's method and the engine are added.
const STUDY: &str = r#"
name = "threads"
seed = 5

[simulator]
builtin = "logistic"
sigma_s = 0.02

[unknowns.gamma]
range = [-0.5, 0.5]
prior = "normal(0, 0.25)"

[unknowns.beta]
range = [1, 5]

[conditions.omega]
range = [-1, 1]

[design]
method = "latin-hypercube"
runs = 20

[surrogate]
kind = "pce"
degree = 2

[measurements]
noise = { family = "normal", sd = "half-normal(0.1)" }

[measurements.synthetic]
truth = { gamma = 0.15, beta = 3 }
at = { omega = "linspace(-1, 1, 4)" }
replicates = 2
noise = { family = "normal", sd = 0.05 }

[derived]
ratio = "gamma / beta"

[infer]
methods = ["point", "e-lik", "e-log-lik", "e-post"]
propagate = ["coefficients", "sigma-a"]
draws = 100
"#;

/// Every file of results that holds no timing: `stages.json` says how many seconds each stage took.
fn results(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap() != "stages.json")
        .map(|path| (PathBuf::from(path.file_name().unwrap()), std::fs::read(&path).unwrap()))
        .collect()
}

fn run(text: &str, name: &str, threads: usize) -> BTreeMap<PathBuf, Vec<u8>> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("threads").join(format!("{name}-{threads}"));
    // What an earlier run left is fresh and would not be computed again.
    let _ = std::fs::remove_dir_all(&folder);
    let settings = study::parse(text, "threads.toml", Path::new("")).unwrap_or_else(|problems| panic!("{problems}"));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| Project::new(settings, folder.clone()).run(Stage::Infer, &Silent)).unwrap();
    let files = results(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
    files
}

fn check(name: &str, engine: &str, train: &str) {
    // The study ends in [infer], to which the engine belongs.
    let text = format!("{STUDY}{engine}\n[train]\n{train}");
    let one = run(&text, name, 1);
    for file in
        ["training.csv", "t_draws.csv", "summary.json", "summary.csv", "i_draws_e-lik.csv", "i_draws_e-post.csv"]
    {
        assert!(one.contains_key(Path::new(file)), "{name}: no {file} among {:?}", one.keys());
    }
    for threads in [2, 8] {
        let several = run(&text, name, threads);
        assert!(one.keys().eq(several.keys()), "{name}");
        for (file, bytes) in &one {
            assert!(*bytes == several[file], "{name}, {threads} threads: {} differs", file.display());
        }
    }
    // Another seed gives other numbers: the comparison above is of something that could differ.
    let other = run(&text.replace("seed = 5", "seed = 6"), name, 2);
    assert!(one[Path::new("t_draws.csv")] != other[Path::new("t_draws.csv")], "{name}");
}

#[test]
fn grid() {
    check("grid", "engine = \"grid\"", "draws = 12");
}

#[test]
fn smc() {
    check("smc", "engine = \"smc\"\nsmc = { runs = 2, particles = 32 }", "draws = 12");
}

#[test]
fn nuts_in_both_steps() {
    check(
        "nuts",
        "engine = \"nuts\"\nnuts = { chains = 2, warmup = 60, draws = 40 }",
        "draws = 4\nmethod = \"nuts\"\nnuts = { chains = 2, warmup = 100 }",
    );
}

#[test]
fn normal_approximations() {
    check("laplace", "engine = \"grid\"", "draws = 12\nmethod = \"laplace\"");
    check("pathfinder", "engine = \"grid\"", "draws = 12\nmethod = \"pathfinder\"");
}
