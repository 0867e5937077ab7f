//! `twostep check`: what a study would do, without doing it.

use crate::arguments::Global;
use crate::failure::{Failure, show_problems};
use crate::output;
use crate::session::{self, describe};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use twostep::Error;
use twostep::infer::choose_engine;
use twostep::study::{self, MeasurementSource, Setting, Study, read_measurements};
use twostep::table::Table;

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
    methods: Vec<&'static str>,
    answer: &'static str,
    engine: &'static str,
}

enum Measurements {
    Read(usize),
    Synthetic(usize),
    None,
}

impl Check {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, None)?;
        let plans: Vec<Plan> = project.settings().iter().map(Plan::new).collect::<Result<_, _>>()?;
        if let Some(warnings) = study::warnings(project.settings()) {
            show_problems(&warnings);
        }
        if global.json {
            let name = project.settings().first().map(|setting| setting.study.name.clone());
            let settings: Vec<Value> = plans.iter().map(Plan::json).collect();
            return super::print_json(&json!({ "ok": true, "study": name, "settings": settings }));
        }
        let mut text = String::from("ok\n");
        // Settings mostly differ in what their label says, so the first few stand for all.
        const SHOWN: usize = 6;
        for plan in plans.iter().take(SHOWN) {
            text.push_str(&plan.text());
        }
        if plans.len() > SHOWN {
            text.push_str(&format!("and {} more settings\n", plans.len() - SHOWN));
        }
        let runs: usize = plans.iter().map(|plan| plan.runs).sum();
        if plans.len() > 1 {
            text.push_str(&format!("{} settings, at most {runs} runs; equal stages are shared\n", plans.len()));
        }
        text.push_str(&format!("results would go to {}\n", project.folder().display()));
        Ok(output::print(&text)?)
    }
}

impl Plan {
    fn new(setting: &Setting) -> Result<Self, Error> {
        let Setting { label, study } = setting;
        let runs = match &study.design.points {
            Some(path) => Table::read(path)?.matrix(&study.input_names())?.rows(),
            None => study.design.runs,
        };
        let terms = study
            .outputs
            .iter()
            .map(|output| {
                let surrogate = output.surrogate.build(&study.input_names(), &study.input_scales())?;
                Ok((output.name.clone(), surrogate.names().len()))
            })
            .collect::<Result<_, Error>>()?;
        Ok(Self {
            label: label.clone(),
            runs,
            terms,
            t_draws: study.train.draws,
            measurements: measurements(study)?,
            methods: study.infer.methods.iter().map(|method| method.name()).collect(),
            answer: study.infer.answer.name(),
            engine: choose_engine(study.infer.engine, study.unknowns.len()).name(),
        })
    }

    fn text(&self) -> String {
        let indent = if self.label.is_empty() { "" } else { "  " };
        let head = if self.label.is_empty() { String::new() } else { format!("{}\n", describe(&self.label)) };
        let terms: Vec<String> = self.terms.iter().map(|(output, n)| format!("{output}: {n} coefficients")).collect();
        let measured = match self.measurements {
            Measurements::Read(n) => format!("{n} measurements"),
            Measurements::Synthetic(n) => format!("{n} made-up measurements"),
            Measurements::None => "no measurements yet".to_owned(),
        };
        let methods: Vec<String> = self
            .methods
            .iter()
            .map(|name| if *name == self.answer { format!("{name}*") } else { (*name).into() })
            .collect();
        format!(
            "{head}{indent}simulate   {} runs\n{indent}train      {}; {} T-draws\n{indent}infer      {measured}; {} by {}\n",
            self.runs,
            terms.join(", "),
            self.t_draws,
            methods.join(", "),
            self.engine,
        )
    }

    fn json(&self) -> Value {
        let object = |pairs: &[(String, Value)]| pairs.iter().cloned().collect::<Map<_, _>>();
        let label: Vec<_> = self.label.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        let terms: Vec<_> = self.terms.iter().map(|(output, n)| (output.clone(), json!(n))).collect();
        let (source, n) = match self.measurements {
            Measurements::Read(n) => ("file", n),
            Measurements::Synthetic(n) => ("synthetic", n),
            Measurements::None => ("none", 0),
        };
        json!({
            "setting": object(&label),
            "runs": self.runs,
            "surrogate_terms": object(&terms),
            "t_draws": self.t_draws,
            "measurements": { "source": source, "values": n },
            "methods": self.methods,
            "answer": self.answer,
            "engine": self.engine,
        })
    }
}

fn measurements(study: &Study) -> Result<Measurements, Error> {
    Ok(match &study.measurements {
        MeasurementSource::File(_) => {
            Measurements::Read(read_measurements(study, None)?.iter().map(|measured| measured.y.len()).sum())
        }
        MeasurementSource::Synthetic { at, replicates, .. } => {
            let points = at.first().map_or(1, |(_, values)| values.len());
            Measurements::Synthetic(points * replicates * study.outputs.len())
        }
        MeasurementSource::None => Measurements::None,
    })
}
