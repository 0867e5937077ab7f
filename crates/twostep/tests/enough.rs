//! Whether runs were enough: shares of variance that are known in closed form, and a study whose answer is known.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use twostep::Error;
use twostep::calibrate::enough::{THRESHOLD, VarianceParts};
use twostep::monitor::{Monitor, Silent};
use twostep::run::{Enough, Project};
use twostep::special::normal_quantile;
use twostep::study::{self, Stage};

fn paper() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies/paper")
}

/// A project whose results lie in a folder of its own, gone before.
fn project(text: &str, name: &str) -> (Project, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("enough").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    let settings = study::parse(text, "study.toml", &paper()).unwrap_or_else(|problems| panic!("{problems}"));
    (Project::new(settings, folder.clone()), folder)
}

/// The surrogate's share of the variance by E-Lik and by E-Post for case study 1: given the coefficients all is normal, and
/// their T-posterior is normal too.
fn linear_shares(sigma_a: f64) -> [f64; 2] {
    let (sigma_i, y_i) = (0.1_f64, -0.5_f64);
    let table = std::fs::read_to_string(paper().join("linear_design.csv")).unwrap();
    let design: Vec<f64> = table.lines().skip(1).map(|line| line.trim().parse().unwrap()).collect();
    // Normal equations of y = c0 + c1 omega with coefficients from normal(0, 10).
    let mut a = [0.01, 0.0, 0.01];
    let mut b = [0.0, 0.0];
    for w in design {
        let (y, precision) = (0.5 + 2.0 * w, sigma_a.powi(-2));
        a = [a[0] + precision, a[1] + precision * w, a[2] + precision * w * w];
        b = [b[0] + precision * y, b[1] + precision * w * y];
    }
    let determinant = a[0] * a[2] - a[1] * a[1];
    let covariance = [a[2] / determinant, -a[1] / determinant, a[0] / determinant];
    let mean = [covariance[0] * b[0] + covariance[1] * b[1], covariance[1] * b[0] + covariance[2] * b[1]];
    let l00 = covariance[0].sqrt();
    let l10 = covariance[1] / l00;
    let l11 = (covariance[2] - l10 * l10).sqrt();
    // Equally spaced nodes to 8 sds: what is left out is below 1e-14, and halving the step changes less than that.
    let nodes: Vec<f64> = (-320..=320).map(|i| f64::from(i) / 40.0).collect();
    // Weight, weighted mean, weighted squared mean and weighted variance of omega given the coefficients.
    let mut sums = [[0.0; 4]; 2];
    for z0 in &nodes {
        for z1 in &nodes {
            let density = (-0.5 * (z0 * z0 + z1 * z1)).exp();
            let (c0, c1) = (mean[0] + l00 * z0, mean[1] + l10 * z0 + l11 * z1);
            let variance = 1.0 / (1.0 + (c1 / sigma_i).powi(2));
            let m = variance * c1 * (y_i - c0) / sigma_i.powi(2);
            let spread = c1 * c1 + sigma_i * sigma_i;
            let evidence = (-0.5 * (y_i - c0).powi(2) / spread).exp() / spread.sqrt();
            for (sums, weight) in sums.iter_mut().zip([density * evidence, density]) {
                for (sum, value) in sums.iter_mut().zip([1.0, m, m * m, variance]) {
                    *sum += weight * value;
                }
            }
        }
    }
    sums.map(|[weight, mean, square, within]| {
        let between = square / weight - (mean / weight).powi(2);
        between / (between + within / weight)
    })
}

#[test]
fn shares_of_the_linear_study_are_those_of_quadrature() {
    let text = std::fs::read_to_string(paper().join("linear.toml")).unwrap();
    let text = text.replace("method = \"nodes\"\ndraws = 100000", "method = \"exact\"\ndraws = 1000");
    let methods = "methods = [\"point\", \"e-log-lik\", \"e-lik\", \"e-post\"]";
    assert!(text.contains(methods));
    let text = text.replace(methods, "methods = [\"e-lik\", \"e-post\"]\ndraws = 8000");
    let (project, folder) = project(&text, "linear");
    // A false alarm in ten thousand, over six comparisons.
    let z = normal_quantile(1.0 - 0.5e-4 / 6.0);
    for (result, sigma_a) in project.run(Stage::Infer, &Silent).unwrap().iter().zip([0.1, 0.5, 1.0]) {
        for (posterior, exact) in result.posteriors.iter().zip(linear_shares(sigma_a)) {
            let values: Vec<f64> = posterior.draws.iter().map(|x| x[0]).collect();
            let parts = VarianceParts::new(&values, posterior.t_draws.as_ref().unwrap());
            let (share, error) = (parts.surrogate_share, parts.error);
            assert!((share - exact).abs() < z * error, "{}: {share} +- {error} against {exact}", posterior.method);
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The formula study of case study 2 with so many runs; short chains will do to see the difference.
fn logistic(runs: usize) -> String {
    let text = std::fs::read_to_string(paper().join("logistic.toml")).unwrap();
    let (text, _) = text.split_once("[sweep]").unwrap();
    let text = text.replace("runs = 5", &format!("runs = {runs}")).replace("draws = 1000", "draws = 200");
    text.replace("warmup = 1000", "warmup = 300")
}

fn enough(text: &str, name: &str, threshold: f64) -> Enough {
    let (project, folder) = project(text, name);
    let result = project.enough(threshold, &Silent).unwrap().remove(0).enough;
    std::fs::remove_dir_all(folder).unwrap();
    result
}

#[test]
fn six_runs_of_the_logistic_study_are_too_few() {
    let six = enough(&logistic(6), "logistic-6", THRESHOLD);
    assert_eq!(six.verdict, "more", "{}", six.advice);
    let sizes: Vec<(usize, bool)> = six.widths_by_runs.iter().map(|w| (w.runs, w.prior_in_charge)).collect();
    // Four coefficients and sigma_a.
    assert_eq!(sizes, [(3, true), (4, true), (5, false), (6, false)]);
    assert!(six.suggested_runs.is_none() && six.suggested_runs_reason.unwrap().contains("only 2"));
}

#[test]
fn forty_runs_of_the_logistic_study_leave_the_measurements_in_charge() {
    let forty = enough(&logistic(40), "logistic-40", THRESHOLD);
    assert_eq!(forty.verdict, "enough", "{}", forty.advice);
    assert_eq!(forty.suggested_runs, None);
    let widths: Vec<f64> = forty.widths_by_runs.iter().map(|w| w.unknowns["omega"].width).collect();
    // Neighbours may change places: their T-draws are of short chains of their own.
    assert!(widths.last() < widths.first(), "{widths:?}");
}

/// Counts fits, and asks to stop after some of them.
struct Counter {
    done: Mutex<Vec<usize>>,
    most: usize,
}

impl Counter {
    fn new(most: usize) -> Self {
        Self { done: Mutex::new(Vec::new()), most }
    }

    /// Fits that were there at the beginning, and at the end.
    fn ends(self) -> (usize, usize) {
        let done = self.done.into_inner().unwrap();
        (done[0], *done.iter().max().unwrap())
    }
}

impl Monitor for Counter {
    fn proceed(&self) -> bool {
        self.done.lock().unwrap().iter().max().is_none_or(|done| *done < self.most)
    }

    fn progress(&self, what: &str, done: usize, _: usize) {
        if what == "enough" {
            self.done.lock().unwrap().push(done);
        }
    }
}

#[test]
fn fits_are_kept_when_stopped_and_for_another_share() {
    let (project, folder) = project(&logistic(6), "kept");
    let first = Counter::new(5);
    assert!(matches!(project.enough(THRESHOLD, &first), Err(Error::Interrupted)));
    let (_, stopped) = first.ends();
    assert!(stopped >= 5, "{stopped}");
    let second = Counter::new(usize::MAX);
    let resumed = project.enough(THRESHOLD, &second).unwrap().remove(0).enough;
    let (kept, all) = second.ends();
    // Fits that were under way when the work was stopped are either kept or not.
    assert!(kept >= 5 && kept < all, "{kept} of {all}");
    let third = Counter::new(usize::MAX);
    let other = project.enough(0.2, &third).unwrap().remove(0).enough;
    assert_eq!(third.ends(), (all, all));
    assert_eq!((other.widths_by_runs, other.threshold), (resumed.widths_by_runs.clone(), 0.2));
    std::fs::remove_dir_all(folder).unwrap();
    let fresh = enough(&logistic(6), "fresh", THRESHOLD);
    assert_eq!(fresh, resumed);
}
