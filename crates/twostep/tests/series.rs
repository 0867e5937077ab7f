//! Runs that return series: training rows, outputs of both kinds side by side, whole runs left out.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use twostep::monitor::Silent;
use twostep::run::Project;
use twostep::study::{self, Stage};

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("series").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn one_run_of_the_epidemic_yields_fourteen_training_points() {
    let settings = study::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies/sir_series.toml")).unwrap();
    let folder = folder("sir");
    let results = Project::new(settings, folder.clone()).run(Stage::Train, &Silent).unwrap();
    let report = &results[0].t_reports[0];
    assert_eq!((results[0].runs, report.n_runs, report.n_rows), ([32, 0], 32, 32 * 14));
    let table = std::fs::read_to_string(folder.join("training.csv")).unwrap();
    assert_eq!(table.lines().filter(|line| line.starts_with("7,")).count(), 14);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A level that does not depend on time, beside a series that does; one value of the series is missing, and the run stays.
const STUDY: &str = r#"
[simulator]
table = "runs.csv"
[unknowns.a]
range = [0, 1]
[unknowns.b]
range = [0, 1]
[outputs.h]
over = { t = [0, 2] }
series = "coordinate"
[outputs.level]
noise = { sd = 0.001 }
[surrogate]
kind = "pce"
degree = 2
sigma_a = 1e-6
[measurements]
file = "measurements.csv"
noise = { sd = 0.001 }
[infer]
methods = ["point", "e-lik"]
"#;

#[test]
fn a_series_and_a_number_share_their_unknowns() {
    let folder = folder("both");
    let (h, level) = (|a: f64, b: f64, t: f64| a + b * t, |a: f64, b: f64| a * b);
    let mut runs = String::from("a,b,t,h,level\n");
    for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))) {
        let (a, b) = (f64::from(i) / 3.0, f64::from(j) / 3.0);
        for t in [0.0, 1.0, 2.0] {
            let value = if (i, j, t) == (1, 1, 1.0) { String::new() } else { h(a, b, t).to_string() };
            runs.push_str(&format!("{a},{b},{t},{value},{}\n", level(a, b)));
        }
    }
    std::fs::write(folder.join("runs.csv"), runs).unwrap();
    let truth = (0.6, 0.3);
    // The level has no coordinate.
    let measured =
        format!("t,h,level\n1.5,{},\n0.5,{},\n,,{}\n", h(0.6, 0.3, 1.5), h(0.6, 0.3, 0.5), level(truth.0, truth.1));
    std::fs::write(folder.join("measurements.csv"), measured).unwrap();
    let settings = study::parse(STUDY, "study.toml", &folder).unwrap_or_else(|problems| panic!("{problems}"));
    let results = Project::new(settings, folder.join("results")).run(Stage::Infer, &Silent).unwrap();
    let result = &results[0];
    // 16 runs of three values, one of them missing; ten terms in three inputs, six in two.
    let sizes: Vec<[usize; 3]> =
        result.t_reports.iter().map(|report| [report.n_runs, report.n_rows, report.parameters.len() - 1]).collect();
    assert_eq!(sizes, [[16, 47, 10], [16, 16, 6]]);
    assert_eq!(result.measured, [("h".to_owned(), 2), ("level".to_owned(), 1)]);
    for posterior in &result.posteriors {
        for (unknown, truth) in posterior.unknowns.iter().zip([truth.0, truth.1]) {
            // Measurements are exact, so that the posterior mean is off by its curvature alone: a fraction of the sd.
            assert!((unknown.mean - truth).abs() < 0.1 * unknown.sd, "{}: {unknown:?}", posterior.method);
            assert!(unknown.sd < 0.01, "{unknown:?}");
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Standard deviations of a and b in `1 + a + b t`, measured at 0.3, 1.1 and twice at 1.9 with noise of sd 0.001.
fn least_squares_sds() -> [f64; 2] {
    let t = [0.3, 1.1, 1.9, 1.9];
    let (n, sum, squares) = (4.0, t.iter().sum::<f64>(), t.iter().map(|t| t * t).sum::<f64>());
    let det = n * squares - sum * sum;
    [squares / det, n / det].map(|variance| 0.001 * variance.sqrt())
}

/// The same by principal components, which are two: the series is linear in a and b.
#[test]
fn components_of_a_series_know_its_missing_value() {
    let folder = folder("components");
    let h = |a: f64, b: f64, t: f64| 1.0 + a + b * t;
    let mut runs = String::from("a,b,t,h\n");
    for (i, j) in (0..5).flat_map(|i| (0..5).map(move |j| (i, j))) {
        let (a, b) = (f64::from(i) / 4.0, f64::from(j) / 4.0);
        for t in [0.0, 0.5, 1.0, 1.5, 2.0] {
            let value = if (i, j, t) == (1, 1, 1.0) { String::new() } else { h(a, b, t).to_string() };
            runs.push_str(&format!("{a},{b},{t},{value}\n"));
        }
    }
    std::fs::write(folder.join("runs.csv"), runs).unwrap();
    std::fs::write(folder.join("measurements.csv"), "t,h\n0.3,1.69\n1.1,1.93\n1.9,2.17\n1.9,2.17\n").unwrap();
    let study = STUDY.replace("series = \"coordinate\"\n[outputs.level]\nnoise = { sd = 0.001 }\n", "");
    let study = study.replace("degree = 2\nsigma_a = 1e-6", "degree = 1");
    for engine in ["grid", "smc"] {
        let study = format!("{study}engine = \"{engine}\"\n");
        let settings = study::parse(&study, "study.toml", &folder).unwrap_or_else(|problems| panic!("{problems}"));
        let results = Project::new(settings, folder.join(engine)).run(Stage::Infer, &Silent).unwrap();
        let report = &results[0].t_reports[0];
        // 25 runs of five values, one of them missing; two components of three coefficients and a sigma_a each.
        assert_eq!((report.n_runs, report.n_rows, report.parameters.len() - 1), (25, 124, 8));
        assert_eq!(report.series.map(|series| series.components), Some(2));
        assert_eq!(report.parameters[3].name, "pc1.sigma_a");
        // Runs are a plane to rounding, which the T-step takes for an error of 1e-6 of their size at least.
        assert!(
            1.0 - report.leave_one_out.q2.unwrap() < 25.0 * 1e-6_f64.powi(2) * 16.0,
            "{:?}",
            report.leave_one_out.q2
        );
        for posterior in &results[0].posteriors {
            for ((unknown, truth), sd) in posterior.unknowns.iter().zip([0.6, 0.3]).zip(least_squares_sds()) {
                // The posterior is that of least squares, with errors of the surrogate of a thousandth of the noise; the grid aims at a
                // thousandth of the sd, and a sampler has its standard errors.
                let by_sampler = unknown.ess_bulk.map_or(0.0, |ess| 4.0 / ess.sqrt());
                let bound = 2e-3 + by_sampler;
                assert!((unknown.mean - truth).abs() < bound * sd, "{} {engine}: {unknown:?}", posterior.method);
                assert!((unknown.sd / sd - 1.0).abs() < bound, "{} {engine}: {unknown:?} {sd}", posterior.method);
            }
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}
