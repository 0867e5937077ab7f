//! What each stage depends on, to a hash that changes when, and only when, the stage is stale.

use std::fmt::Write;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::{MeasurementSource, Study};
use crate::train::TrainSpec;

/// Changing what a fingerprint holds changes this, so that results of older versions count as stale.
const VERSION: &str = "twostep study 1";

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
    /// SHA-256, in hexadecimal digits, of everything that the results of a stage depend on, files by their content.
    ///
    /// Simulate: simulator, ranges and scales of the inputs, constants, names of the outputs, design, seed. Train: that,
    /// and the outputs' scales and surrogates and the T-step. Infer: that, and priors, noise, measurements, derived
    /// quantities and the I-step. The study's name, units and notes are in none of them.
    pub fn fingerprint(&self, stage: Stage) -> String {
        let mut text = format!("{VERSION}\n{stage:?}\n");
        let mut line = |what: &str, value: &dyn std::fmt::Debug| {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{what}: {value:?}");
        };
        match stage {
            Stage::Simulate => {
                line("seed", &self.seed);
                line("simulator", &self.simulator);
                line("names", &self.input_names());
                line("scales", &self.input_scales());
                line("constants", &self.constants);
                line("outputs", &self.outputs.iter().map(|output| &output.name).collect::<Vec<_>>());
                match &self.design.points {
                    Some(path) => line("points", &content(path)),
                    None => line("design", &(self.design.method, self.design.runs)),
                }
            }
            Stage::Train => {
                line("simulate", &self.fingerprint(Stage::Simulate));
                for output in &self.outputs {
                    line(&output.name, &(output.log, &output.surrogate));
                }
                line("train", &TrainSpec { import: None, ..self.train.clone() });
                line("import", &self.train.import.as_deref().map(content));
            }
            Stage::Infer => {
                line("train", &self.fingerprint(Stage::Train));
                for unknown in &self.unknowns {
                    line(&unknown.name, &unknown.prior);
                }
                for output in &self.outputs {
                    line(&output.name, &output.noise);
                }
                match &self.measurements {
                    MeasurementSource::File(path) => line("measurements", &content(path)),
                    other => line("measurements", other),
                }
                line("derived", &self.derived);
                line("infer", &self.infer);
            }
        }
        hex(&Sha256::digest(text.as_bytes()))
    }
}

/// Hash of a file's content, or why there is none: that is a fact about the file too.
fn content(path: &Path) -> String {
    std::fs::read(path).map_or_else(|problem| problem.kind().to_string(), |bytes| hex(&Sha256::digest(bytes)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
