//! A finished study as models that other programs can ask.

use super::Project;
use super::predict::{Finished, finished};
use super::stages::{clustered, prepare, root};
use crate::error::Result;
use crate::infer::propagation::Method;
use crate::monitor::Monitor;
use crate::serve::{Forward, Model, Posterior};

/// What a study serves.
pub struct Served {
    /// `forward` and `posterior`.
    pub models: Vec<Box<dyn Model>>,
    /// Inputs of `forward`: unknowns, then conditions.
    pub inputs: Vec<String>,
    /// Outputs of `forward`.
    pub outputs: Vec<String>,
    /// Inputs of `posterior`: unknowns, then unknown sds.
    pub parameters: Vec<String>,
    /// Their posterior means: a place to try.
    pub centre: Vec<f64>,
    /// The method of `posterior`.
    pub method: Method,
    /// Whether its density integrates to one.
    pub normalised: bool,
}

/// Setting `index`, by `method` or by the one that leads the study, as models: the surrogate, and the log density of the
/// I-posterior. Its engine's evidence normalises the latter, where it has one.
///
/// # Errors
/// A stale or missing stage, a method that the study does not have or whose density is not known, or an interruption.
pub fn served(project: &Project, index: usize, method: Option<Method>, monitor: &dyn Monitor) -> Result<Served> {
    let study = &project.settings()[index].study;
    let method = method.unwrap_or(study.infer.answer);
    let Finished { parameters, posterior, answer } = finished(project, index, "serve", method)?;
    let clusters = clustered(study, &posterior, root(study).named("infer"));
    let draws = clusters.as_ref().unwrap_or(&posterior.draws);
    let prepared = prepare(study, &posterior, draws, &project.measured(index)?, Vec::new())?;
    let log_evidence = answer.diagnostics.log_evidence;
    let density = prepared.density(&study.infer, method, log_evidence, monitor)?;
    let outputs = posterior.outputs.iter().map(|output| output.name.clone()).collect();
    let forward = Forward::new(posterior, study.input_names(), study.input_scales());
    Ok(Served {
        models: vec![Box::new(forward), Box::new(Posterior::new(density))],
        inputs: study.input_names(),
        outputs,
        centre: answer.unknowns.iter().take(parameters.len()).map(|quantity| quantity.mean).collect(),
        parameters,
        method,
        normalised: method.is_weighted() || log_evidence.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::QuantitySummary;
    use crate::monitor::Silent;
    use crate::serve::{Refused, Wrt};
    use crate::study::{Stage, parse};
    use serde_json::{Value, json};
    use std::path::PathBuf;

    /// One unknown, one condition, an output by its logarithm and an unknown sd.
    const STUDY: &str = r#"
seed = 3
[simulator]
builtin = "sir"
[unknowns.gamma]
range = [0.2, 0.6]
prior = "normal(0.4, 0.1)"
[conditions.t]
range = [1, 14]
[constants]
beta = 1.6
[outputs.infected]
scale = "log"
[design]
method = "sobol"
runs = 30
[surrogate]
kind = "pce"
degree = 3
[train]
draws = 20
[measurements]
noise = { family = "log-normal", sd = "half-normal(0.2)" }
[measurements.synthetic]
truth = { gamma = 0.4 }
noise = { family = "log-normal", sd = 0.1 }
at = { t = "linspace(1, 14, 5)" }
replicates = 3
[infer]
methods = ["point", "e-lik", "e-log-lik", "e-post"]
draws = 200
"#;

    /// The study done, in a folder of one test alone.
    fn done(test: &str, text: &str) -> (PathBuf, Project) {
        let folder = std::env::temp_dir().join(format!("twostep-serve-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let settings = parse(text, "study.toml", &folder).unwrap_or_else(|e| panic!("{e}"));
        let project = Project::new(settings, folder.clone());
        project.run(Stage::Infer, &Silent).unwrap();
        (folder, project)
    }

    fn evaluate(model: &dyn Model, x: &[f64], config: &Value) -> Result<f64, Refused> {
        model.evaluate(&[x.to_vec()], config).map(|output| output[0][0])
    }

    /// What the grid engine promises, in sds.
    const ENGINE: f64 = 1e-3;

    /// Total, mean and sd of gamma and of sigma_i over a grid of n x n midpoints.
    fn moments(posterior: &dyn Model, region: [(f64, f64); 2], n: usize) -> [f64; 5] {
        let (mut sums, [a, b]) = ([0.0; 5], region);
        let at = |(lower, upper): (f64, f64), i: usize| lower + (i as f64 + 0.5) * (upper - lower) / n as f64;
        let area = (a.1 - a.0) * (b.1 - b.0) / (n * n) as f64;
        for i in 0..n {
            for j in 0..n {
                let (x, y) = (at(a, i), at(b, j));
                let mass = area * evaluate(posterior, &[x, y], &json!({})).unwrap().exp();
                for (sum, term) in sums.iter_mut().zip([1.0, x, x * x, y, y * y]) {
                    *sum += mass * term;
                }
            }
        }
        let [total, x, xx, y, yy] = sums;
        let sd = |first: f64, second: f64| (second / total - (first / total).powi(2)).sqrt();
        [total, x / total, sd(x, xx), y / total, sd(y, yy)]
    }

    #[test]
    fn the_density_served_is_that_of_the_answer() {
        let (folder, project) = done("density", STUDY);
        for method in Method::ALL {
            let served = served(&project, 0, Some(method), &Silent).unwrap();
            assert_eq!(served.parameters, ["gamma", "sigma_i"]);
            assert!(served.normalised, "{}", method.name());
            let answer = finished(&project, 0, "test", method).unwrap().answer;
            let [gamma, sigma]: &[QuantitySummary; 2] = answer.unknowns[..].try_into().unwrap();
            // The posterior beyond so many sds is less than the grid's own error.
            let reach = (1e-6, sigma.mean + 12.0 * sigma.sd);
            let around = (gamma.mean - 12.0 * gamma.sd, gamma.mean + 12.0 * gamma.sd);
            let region = [(around.0.max(0.2), around.1.min(0.6)), reach];
            let (coarse, fine) = (moments(&*served.models[1], region, 60), moments(&*served.models[1], region, 120));
            let expected = [
                (1.0, 1.0),
                (gamma.mean, gamma.sd),
                (gamma.sd, gamma.sd),
                (sigma.mean, sigma.sd),
                (sigma.sd, sigma.sd),
            ];
            for (k, (expected, scale)) in expected.into_iter().enumerate() {
                // The error of the finer grid is a third of the gap to the coarser one.
                let bound = (fine[k] - coarse[k]).abs() + ENGINE * scale;
                assert!((fine[k] - expected).abs() <= bound, "{} {k}: {} {expected} {bound:e}", method.name(), fine[k]);
                // A bound that says something.
                assert!(bound < 0.02 * scale, "{} {k}: {bound:e}", method.name());
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn derivatives_are_those_of_what_is_served() {
        let (folder, project) = done("derivatives", STUDY);
        // In units of the sds over which the models change; roundings of the 15 terms of a log-likelihood.
        const STEP: f64 = 1e-4;
        const OPERATIONS: f64 = 15.0 * 64.0;
        let wrt = Wrt { output: 0, input: 0 };
        for method in Method::ALL {
            let served = served(&project, 0, Some(method), &Silent).unwrap();
            assert_eq!(
                (served.inputs.as_slice(), served.outputs.as_slice()),
                (&["gamma", "t"].map(String::from)[..], &["infected".to_string()][..])
            );
            let cases = [
                (0, vec![0.35, 6.0], json!({})),
                (0, vec![0.35, 6.0], json!({ "draw": 7 })),
                (0, vec![0.65, 15.0], json!({ "extrapolate": true })),
                (1, vec![0.41, 0.13], json!({})),
                (1, vec![0.38, 0.4], json!({})),
            ];
            for (m, x, config) in cases {
                let model = &*served.models[m];
                let derivatives = model.derivatives().unwrap();
                let gradient = derivatives.gradient(wrt, std::slice::from_ref(&x), &[2.0], &config).unwrap();
                for d in 0..x.len() {
                    let at = |h: f64| {
                        let mut x = x.clone();
                        x[d] += h;
                        evaluate(model, &x, &config).unwrap()
                    };
                    let central = |h: f64| (at(h) - at(-h)) / (2.0 * h);
                    let (near, far) = (central(STEP), central(2.0 * STEP));
                    let rounding = OPERATIONS * f64::EPSILON * at(0.0).abs().max(1.0);
                    // The truncation error of `near` is a third of the gap to `far`.
                    let bound = (near - far).abs() + rounding / STEP;
                    let place = format!("{} {} {config} {d}", method.name(), model.name());
                    assert!((gradient[d] / 2.0 - near).abs() <= bound, "{place}: {} {near} {bound:e}", gradient[d]);
                    let mut unit = vec![0.0; x.len()];
                    unit[d] = 2.0;
                    let product = derivatives.apply_jacobian(wrt, std::slice::from_ref(&x), &unit, &config).unwrap();
                    assert_eq!(product, [gradient[d]], "{place}");
                }
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_mean_prediction_is_that_of_its_draws() {
        let (folder, project) = done("mean", STUDY);
        let served = served(&project, 0, None, &Silent).unwrap();
        let at = |config: Value| evaluate(&*served.models[0], &[0.35, 6.0], &config).unwrap();
        let draws: Vec<f64> = (0..20).map(|k| at(json!({ "draw": k }))).collect();
        let mean = draws.iter().sum::<f64>() / 20.0;
        // A weight, a product and a sum each.
        assert!((at(json!({})) - mean).abs() <= 3.0 * 20.0 * f64::EPSILON * mean, "{mean}");
        assert!(draws.iter().all(|y| *y > 0.0) && draws.iter().any(|y| *y != draws[0]), "{draws:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_cannot_be_answered_says_what_can() {
        let (folder, project) = done("refused", STUDY);
        let served = served(&project, 0, None, &Silent).unwrap();
        let refused = |m: usize, x: [f64; 2], config: Value| match evaluate(&*served.models[m], &x, &config) {
            Err(Refused::Input(message)) => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            refused(0, [0.7, 6.0], json!({})),
            "gamma = 0.7 lies outside [0.2, 0.6], where the surrogate was trained; config {\"extrapolate\": true} takes it \
             all the same"
        );
        assert_eq!(refused(0, [0.4, 6.0], json!({ "draw": 20 })), "draw is 20, and there are T-draws 0 to 19");
        assert_eq!(refused(0, [0.4, 6.0], json!({ "drwa": 1 })), "config has \"drwa\"; known are draw, extrapolate");
        assert_eq!(
            refused(1, [0.7, 0.1], json!({})),
            "the log density is minus infinity: gamma = 0.7 lies outside [0.2, 0.6]; config {\"outside\": -1e300} gives that \
             number instead"
        );
        assert!(refused(1, [0.4, -0.1], json!({})).contains("sigma_i = -0.1 lies outside [0, inf]"));
        assert!(refused(1, [0.7, 0.1], json!({ "outside": "x" })).contains("give a number"));
        assert_eq!(evaluate(&*served.models[1], &[0.7, 0.1], &json!({ "outside": -1e300 })), Ok(-1e300));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn clusters_are_served_as_inferred_and_samplers_without_what_they_do_not_know() {
        let text = STUDY.replace("draws = 200\n", "draws = 200\nengine = \"smc\"\nclusters = 5\n");
        let (folder, project) = done("smc", &text);
        let error = served(&project, 0, Some(Method::EPost), &Silent).err().unwrap().to_string();
        assert!(error.starts_with("--method: the density of e-post needs the evidence of every T-draw"), "{error}");
        assert!(served(&project, 0, Some(Method::ELik), &Silent).unwrap().normalised);
        let unfinished = Project::new(project.settings().to_vec(), folder.join("elsewhere"));
        let error = served(&unfinished, 0, None, &Silent).err().unwrap().to_string();
        assert!(error.starts_with("serve: the simulate stage is not finished"), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
