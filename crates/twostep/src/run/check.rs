//! What a study would do, without doing it.

use super::stages::planned_runs;
use crate::error::{Error, Result};
use crate::infer::{Engine, Measured};
use crate::likelihood::Family;
use crate::study::{MeasurementSource, Output, Setting, Study, read_measurements};
use crate::table::counted;
use serde_json::{Map, Value, json};

/// What one setting would do.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyPlan {
    /// Values of what is swept; empty without a sweep.
    pub label: Vec<(String, String)>,
    /// Runs of the simulator.
    pub runs: usize,
    /// Output and number of coefficients of its surrogate; of a series by principal components those of each.
    pub terms: Vec<(String, Option<usize>)>,
    /// The outputs that are series by principal components.
    pub by_components: Vec<String>,
    /// T-draws.
    pub t_draws: usize,
    /// What was measured.
    pub measurements: MeasuredCounts,
    /// What the measurements give to think about.
    pub warnings: Vec<String>,
    /// Methods of propagation.
    pub methods: Vec<&'static str>,
    /// The one that leads.
    pub answer: &'static str,
    /// The engine of the I-step.
    pub engine: &'static str,
}

/// Outputs and numbers of their measurements.
#[derive(Clone, Debug, PartialEq)]
pub enum MeasuredCounts {
    /// Of a file.
    Read(Vec<(String, usize)>),
    /// To be made.
    Synthetic(Vec<(String, usize)>),
    /// There are none.
    None,
}

impl StudyPlan {
    /// Reads the tables that the study names, and runs nothing.
    ///
    /// # Errors
    /// A table that cannot be read.
    pub fn new(setting: &Setting) -> Result<Self> {
        let Setting { label, study } = setting;
        let runs = planned_runs(study)?;
        let terms = study
            .outputs
            .iter()
            .map(|output| {
                let n = study.n_inputs(output);
                if output.surrogate.is_open() {
                    return Ok((output.name.clone(), None));
                }
                let surrogate = output.surrogate.build(&study.input_names()[..n], &study.input_scales()[..n])?;
                Ok((output.name.clone(), Some(surrogate.names().len())))
            })
            .collect::<Result<_, Error>>()?;
        let (measurements, warnings) = measurements(study)?;
        Ok(Self {
            label: label.clone(),
            runs,
            terms,
            by_components: (study.outputs.iter())
                .filter(|output| output.surrogate.has_components())
                .map(|output| output.name.clone())
                .collect(),
            t_draws: study.train.draws,
            measurements,
            warnings,
            methods: study.infer.methods.iter().map(|method| method.name()).collect(),
            answer: study.infer.answer.name(),
            engine: engine(study),
        })
    }

    /// As `twostep check --json` has it.
    pub fn json(&self) -> Value {
        let object = |pairs: &[(String, Value)]| pairs.iter().cloned().collect::<Map<_, _>>();
        let label: Vec<_> = self.label.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        let terms: Vec<_> = self.terms.iter().map(|(output, n)| (output.clone(), json!(n))).collect();
        let (source, counts) = match &self.measurements {
            MeasuredCounts::Read(counts) => ("file", counts.as_slice()),
            MeasuredCounts::Synthetic(counts) => ("synthetic", counts.as_slice()),
            MeasuredCounts::None => ("none", &[][..]),
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
fn measurements(study: &Study) -> Result<(MeasuredCounts, Vec<String>)> {
    Ok(match &study.measurements {
        MeasurementSource::File(_) => {
            let measured = read_measurements(study)?;
            let counts = measured.iter().map(|measured| (measured.output.clone(), measured.y.len())).collect();
            let outputs = study.outputs.iter().zip(&measured);
            let warnings = outputs.filter_map(|(output, measured)| zeros(output, measured)).collect();
            (MeasuredCounts::Read(counts), warnings)
        }
        MeasurementSource::Synthetic { at, replicates, .. } => {
            let n = at.first().map_or(1, |(_, values)| values.len()) * replicates;
            let counts = study.outputs.iter().map(|output| (output.name.clone(), n)).collect();
            (MeasuredCounts::Synthetic(counts), Vec::new())
        }
        MeasurementSource::None => (MeasuredCounts::None, Vec::new()),
    })
}

/// The engine of the I-step. Measurements that do not reduce to sums of squares may make sampling cheaper than the grid; by how
/// much is known with the T-draws only.
fn engine(study: &Study) -> &'static str {
    let reduces = |output: &Output| output.noise.family.reduces(output.log);
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
