//! What each stage depends on, to a hash that changes when, and only when, the stage is stale.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::{MeasurementSource, Study};
use crate::calibrate::{CalibrateSpec, Truth};
use crate::infer::{GridSpec, InferSpec};
use crate::train::TrainSpec;

/// Changing what a fingerprint holds changes this, so that results of older versions count as stale.
const VERSION: &str = "twostep study 3";

/// The part that says that runs are in the ledger.
pub(crate) const LEDGER_PART: &str = "run ledger";

/// A stage whose results are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Design and simulator runs.
    Simulate,
    /// The T-step.
    Train,
    /// The I-step.
    Infer,
}

impl Stage {
    /// All, in their order.
    pub const ALL: [Self; 3] = [Self::Simulate, Self::Train, Self::Infer];

    /// Its name as a command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Simulate => "simulate",
            Self::Train => "train",
            Self::Infer => "infer",
        }
    }
}

impl Study {
    /// SHA-256, in hexadecimal digits, of everything that the results of a stage depend on, files by their content; `runs` is
    /// the hash of the runs that are not those of a built-in simulator's design, where there are any.
    ///
    /// Simulate: ranges and scales of the inputs, constants, names of the outputs, series; of a built-in simulator itself, its
    /// design and seed (and the scales of the outputs, where it has noise), of any other its runs. Train: that, the outputs'
    /// scales and surrogates, the T-step, and the seed that was not in Simulate. Infer: that, and priors, noise, measurements,
    /// derived quantities and the I-step, but for its methods, each of which has a result of its own, and which of them
    /// leads. The study's name, units and notes are in none of them.
    pub fn fingerprint(&self, stage: Stage, runs: &str) -> String {
        let earlier = match stage {
            Stage::Simulate => String::new(),
            Stage::Train => self.fingerprint(Stage::Simulate, runs),
            Stage::Infer => self.fingerprint(Stage::Train, runs),
        };
        let mut text = format!("{VERSION}\n{stage:?}\n{earlier}\n");
        for (part, value) in self.parts(stage, runs) {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{part}: {value}");
        }
        digest(&text)
    }

    /// SHA-256, in hexadecimal digits, of everything that the trials of a calibration depend on besides their numbers.
    ///
    /// Measurements count by where and how often they are made, which `layout` describes, not by their values.
    pub fn calibration_fingerprint(&self, layout: &dyn Debug, runs: &str) -> String {
        let mut text = format!("{VERSION}\ncalibrate\n{}\n", self.fingerprint(Stage::Train, runs));
        // Without sigma_a there is no error to share.
        let is_idle = |place: &str| place == "infer.error" && !self.infer.sigma_a;
        let is_other = |place: &str| ["measurements", "[derived]"].contains(&place) || is_idle(place);
        for (part, value) in self.parts(Stage::Infer, runs).into_iter().filter(|(place, _)| !is_other(place)) {
            let _ = writeln!(text, "{part}: {value}");
        }
        // Every field by name, so that a new one is not forgotten.
        let CalibrateSpec { t_trials, i_trials: _, truth, noise } = &self.calibrate;
        // Which runs a T-trial holds out depends on the number of T-trials.
        let folds = (*truth == Truth::HeldOutRuns).then_some(t_trials);
        let _ = writeln!(text, "{truth:?} {folds:?} {noise:?} {layout:?}");
        digest(&text)
    }

    /// Hashes of what the stage itself depends on, earlier ones apart, by the place in the study file: to name what changed.
    pub fn part_fingerprints(&self, stage: Stage, runs: &str) -> BTreeMap<String, String> {
        let short = |value: &str| digest(value).chars().take(16).collect();
        self.parts(stage, runs).into_iter().map(|(part, value)| (part, short(&value))).collect()
    }

    /// What the stage itself depends on: place in the study file, and content.
    fn parts(&self, stage: Stage, runs: &str) -> Vec<(String, String)> {
        let mut parts = Vec::new();
        let mut part = |place: String, value: &dyn Debug| parts.push((place, format!("{value:?}")));
        match stage {
            Stage::Simulate => {
                if self.simulator.is_external() {
                    part(LEDGER_PART.into(), &true);
                }
                if let Some(builtin) = self.simulator.builtin() {
                    part("seed".into(), &self.seed);
                    part("[simulator]".into(), &(builtin, self.simulator.sigma_s));
                }
                part("names of the inputs".into(), &self.input_names());
                for (name, scale) in self.input_names().iter().zip(self.input_scales()) {
                    part(format!("range or scale of {name}"), &scale);
                }
                part("[constants]".into(), &self.constants);
                let names: Vec<&String> = self.outputs.iter().map(|output| &output.name).collect();
                part("names of the outputs".into(), &names);
                if self.has_coordinate() {
                    let series: Vec<_> = self.outputs.iter().map(|output| &output.over).collect();
                    part("series".into(), &series);
                }
                // Noise is added on the scale that the surrogate models.
                if self.simulator.sigma_s > 0.0 {
                    let scales: Vec<bool> = self.outputs.iter().map(|output| output.log).collect();
                    part("scales of the outputs".into(), &scales);
                }
                match &self.design.points {
                    // Other simulators' runs say themselves where they were made.
                    _ if self.simulator.builtin().is_none() => {}
                    Some(path) => part("design.points".into(), &content(path)),
                    None => part("[design]".into(), &(self.design.method, self.design.runs)),
                }
                if !runs.is_empty() {
                    part("runs".into(), &runs);
                }
            }
            Stage::Train => {
                // The runs of other simulators do not depend on it, what is drawn with them does.
                if self.simulator.builtin().is_none() {
                    part("seed".into(), &self.seed);
                }
                for output in &self.outputs {
                    part(format!("scale or surrogate of {}", output.name), &(output.log, &output.surrogate));
                }
                part("[train]".into(), &TrainSpec { import: None, ..self.train.clone() });
                part("train.import".into(), &self.train.import.as_deref().map(content));
            }
            Stage::Infer => {
                for unknown in &self.unknowns {
                    part(format!("unknowns.{}.prior", unknown.name), &unknown.prior);
                    if unknown.per_experiment {
                        part(format!("unknowns.{}.per", unknown.name), &self.experiments);
                    }
                }
                for output in &self.outputs {
                    part(format!("noise of {}", output.name), &output.noise);
                    if let Some(path) = &output.covariance {
                        part(format!("covariance of {}", output.name), &content(path));
                    }
                    if let Some(offset) = &output.offset {
                        part(format!("offset of {}", output.name), offset);
                    }
                }
                match &self.measurements {
                    MeasurementSource::File(path) => part("measurements".into(), &content(path)),
                    other => part("measurements".into(), other),
                }
                part("[derived]".into(), &self.derived);
                // Every field by name, so that a new one is not forgotten.
                let InferSpec {
                    methods: _,
                    answer: _,
                    sigma_a,
                    series_errors,
                    error,
                    engine,
                    clusters,
                    representative,
                    point,
                    draws,
                    nuts,
                    smc,
                    grid,
                } = &self.infer;
                let has_components = self.outputs.iter().any(|output| output.surrogate.has_components());
                match has_components {
                    true => part("infer.propagate".into(), &(sigma_a, series_errors)),
                    false => part("infer.propagate".into(), sigma_a),
                }
                part("infer.error".into(), error);
                part("infer.engine".into(), engine);
                part("infer.clusters".into(), clusters);
                part("infer.representative".into(), representative);
                part("infer.point".into(), point);
                part("infer.draws".into(), draws);
                part("[infer.nuts]".into(), nuts);
                part("[infer.smc]".into(), smc);
                // Results of earlier versions had the default.
                if *grid != GridSpec::default() {
                    part("[infer.grid]".into(), grid);
                }
            }
        }
        parts
    }
}

/// Hash of a file's content, or why there is none: that is a fact about the file too.
fn content(path: &Path) -> String {
    std::fs::read(path).map_or_else(|problem| problem.kind().to_string(), |bytes| hex(&Sha256::digest(bytes)))
}

/// SHA-256 of a text in hexadecimal digits.
pub(crate) fn digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
