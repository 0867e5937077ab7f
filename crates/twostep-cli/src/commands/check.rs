//! `twostep check`: what a study would do, without doing it.

use crate::arguments::Global;
use crate::failure::{Failure, problem_json, show_problems};
use crate::output::{self, Look};
use crate::results::stage_line;
use crate::session::{self, describe};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use twostep::Error;
use twostep::infer::{Engine, Measured};
use twostep::likelihood::Family;
use twostep::run;
use twostep::study::{self, MeasurementSource, Output, Setting, Study, read_measurements};
use twostep::table::counted;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// The study file
    study: PathBuf,
}

/// What one setting would do.
struct Plan {
    label: Vec<(String, String)>,
    runs: usize,
    /// Output and number of coefficients of its surrogate.
    terms: Vec<(String, usize)>,
    t_draws: usize,
    measurements: Measurements,
    /// What the measurements give to think about.
    warnings: Vec<String>,
    methods: Vec<&'static str>,
    answer: &'static str,
    engine: &'static str,
}

/// Output and number of its measurements.
type Counts = Vec<(String, usize)>;

enum Measurements {
    Read(Counts),
    Synthetic(Counts),
    None,
}

impl Check {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, None)?;
        let plans: Vec<Plan> = project.settings().iter().map(Plan::new).collect::<Result<_, _>>()?;
        let noted = study::warnings(project.settings());
        if let Some(warnings) = &noted {
            show_problems(warnings);
        }
        let mut of_measurements: Vec<String> = Vec::new();
        for warning in plans.iter().flat_map(|plan| &plan.warnings) {
            if !of_measurements.contains(warning) {
                output::note_as("warning", Look::Warning, warning);
                of_measurements.push(warning.clone());
            }
        }
        if global.json {
            let name = project.settings().first().map(|setting| setting.study.name.clone());
            let settings: Vec<Value> = plans.iter().map(Plan::json).collect();
            let noted = noted.iter().flat_map(|all| all.problems.iter().map(|problem| problem_json(all, problem)));
            let of_measurements = of_measurements
                .iter()
                .map(|text| json!({ "severity": "warning", "place": "measurements", "line": null, "message": text }));
            let warnings: Vec<Value> = noted.chain(of_measurements).collect();
            return super::print_json(
                &json!({ "ok": true, "study": name, "warnings": warnings, "settings": settings }),
            );
        }
        let mut text = String::from("ok\n");
        // Settings mostly differ in what their label says, so the first few stand for all.
        const SHOWN: usize = 6;
        for plan in plans.iter().take(SHOWN) {
            text.push_str(&plan.text());
        }
        if plans.len() > SHOWN {
            text.push_str(&format!("and {}\n", counted(plans.len() - SHOWN, "more setting")));
        }
        let runs: usize = plans.iter().map(|plan| plan.runs).sum();
        if plans.len() > 1 {
            text.push_str(&format!(
                "{} settings, at most {}; equal stages are shared\n",
                plans.len(),
                counted(runs, "run")
            ));
        }
        text.push_str(&format!("results would go to {}\n", project.folder().display()));
        Ok(output::print(&text)?)
    }
}

impl Plan {
    fn new(setting: &Setting) -> Result<Self, Error> {
        let Setting { label, study } = setting;
        let runs = run::planned_runs(study)?;
        let terms = study
            .outputs
            .iter()
            .map(|output| {
                let n = study.n_inputs(output);
                let surrogate = output.surrogate.build(&study.input_names()[..n], &study.input_scales()[..n])?;
                Ok((output.name.clone(), surrogate.names().len()))
            })
            .collect::<Result<_, Error>>()?;
        let (measurements, warnings) = measurements(study)?;
        Ok(Self {
            label: label.clone(),
            runs,
            terms,
            t_draws: study.train.draws,
            measurements,
            warnings,
            methods: study.infer.methods.iter().map(|method| method.name()).collect(),
            answer: study.infer.answer.name(),
            engine: engine(study),
        })
    }

    fn text(&self) -> String {
        let head = if self.label.is_empty() { String::new() } else { format!("{}\n", describe(&self.label)) };
        let terms: Vec<String> =
            self.terms.iter().map(|(output, n)| format!("{output}: {}", counted(*n, "coefficient"))).collect();
        let listed = |counts: &Counts, what: &str| {
            let of_output = |(output, n): &(String, usize)| format!("{} of {output}", counted(*n, what));
            counts.iter().map(of_output).collect::<Vec<_>>().join(", ")
        };
        let measured = match &self.measurements {
            Measurements::Read(counts) => listed(counts, "measurement"),
            Measurements::Synthetic(counts) => listed(counts, "made-up measurement"),
            Measurements::None => "no measurements yet".to_owned(),
        };
        let methods: Vec<String> = self
            .methods
            .iter()
            .map(|name| if *name == self.answer { format!("{name}*") } else { (*name).into() })
            .collect();
        let lines = [
            format!("simulate   {}", counted(self.runs, "run")),
            format!("train      {}; {}", terms.join(", "), counted(self.t_draws, "T-draw")),
            format!("infer      {measured}; {} by {}", methods.join(", "), self.engine),
        ];
        format!("{head}{}\n", lines.map(|line| stage_line(&line)).join("\n"))
    }

    fn json(&self) -> Value {
        let object = |pairs: &[(String, Value)]| pairs.iter().cloned().collect::<Map<_, _>>();
        let label: Vec<_> = self.label.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        let terms: Vec<_> = self.terms.iter().map(|(output, n)| (output.clone(), json!(n))).collect();
        let (source, counts) = match &self.measurements {
            Measurements::Read(counts) => ("file", counts.as_slice()),
            Measurements::Synthetic(counts) => ("synthetic", counts.as_slice()),
            Measurements::None => ("none", &[][..]),
        };
        let n: usize = counts.iter().map(|(_, n)| n).sum();
        let counts: Vec<_> = counts.iter().map(|(output, n)| (output.clone(), json!(n))).collect();
        json!({
            "setting": object(&label),
            "runs": self.runs,
            "surrogate_terms": object(&terms),
            "t_draws": self.t_draws,
            "measurements": { "source": source, "values": n, "outputs": object(&counts) },
            "methods": self.methods,
            "answer": self.answer,
            "engine": self.engine,
        })
    }
}

/// How many measurements there are of each output, and warnings about them.
fn measurements(study: &Study) -> Result<(Measurements, Vec<String>), Error> {
    Ok(match &study.measurements {
        MeasurementSource::File(_) => {
            let measured = read_measurements(study)?;
            let counts = measured.iter().map(|measured| (measured.output.clone(), measured.y.len())).collect();
            let outputs = study.outputs.iter().zip(&measured);
            let warnings = outputs.filter_map(|(output, measured)| zeros(output, measured)).collect();
            (Measurements::Read(counts), warnings)
        }
        MeasurementSource::Synthetic { at, replicates, .. } => {
            let n = at.first().map_or(1, |(_, values)| values.len()) * replicates;
            let counts = study.outputs.iter().map(|output| (output.name.clone(), n)).collect();
            (Measurements::Synthetic(counts), Vec::new())
        }
        MeasurementSource::None => (Measurements::None, Vec::new()),
    })
}

/// The engine of the I-step. Measurements that do not reduce to sums of squares may make sampling cheaper than the grid; by how
/// much is known with the T-draws only.
fn engine(study: &Study) -> &'static str {
    let reduces = |output: &Output| match output.noise.family {
        Family::Normal => !output.log,
        Family::LogNormal { .. } => output.log,
        Family::StudentT { .. } => false,
    };
    match study.engine() {
        Ok(Engine::Grid) if study.infer.engine == Engine::Auto && !study.outputs.iter().all(reduces) => "grid or smc",
        engine => engine.unwrap_or(study.infer.engine).name(),
    }
}

/// A warning about zeros that have no logarithm, where the study does not refuse them.
fn zeros(output: &Output, measured: &Measured) -> Option<String> {
    let n = measured.y.iter().filter(|y| **y == 0.0).count();
    let censors = output.noise.family == Family::LogNormal { refuse_zeros: false };
    (censors && n > 0).then(|| {
        format!(
            "{} of `{}`: without a logarithm, each counts as some value below 1/2 (zeros = \"error\" refuses them)",
            counted(n, "zero"),
            output.name
        )
    })
}
