//! `twostep predict`: outputs at new conditions, from finished results.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output;
use crate::results::Grid;
use crate::session;
use clap::builder::PossibleValuesParser;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use twostep::Error;
use twostep::infer::propagation::Method;
use twostep::report::words::rounded;
use twostep::run;
use twostep::table::Table;

/// What the columns hold.
pub(crate) const COLUMNS: &str = "\
Output: the surrogate under the I-posterior, with its approximation error where infer.propagate has \"sigma-a\" (rows at the \
same conditions share it where infer.error = \"shared\"), and without where it has not.

Measurement: a new measurement of that output, with the measurement noise besides.";

/// Arguments of `predict`.
#[derive(Debug, clap::Args)]
pub(crate) struct Predict {
    /// The study file
    study: PathBuf,
    /// CSV file with a column for each condition and a row for each point; not needed by a study without conditions
    #[arg(long, value_name = "FILE")]
    at: Option<PathBuf>,
    /// Predict by this method instead of the study's answer
    #[arg(long, value_parser = PossibleValuesParser::new(Method::ALL.map(Method::name)))]
    method: Option<String>,
    /// Setting of the sweep, from 1
    #[arg(long, value_name = "N")]
    setting: Option<usize>,
    /// The measurements that `infer` was given, where they are not the study's
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
    /// Write the table to this CSV file too, with all digits
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

impl Predict {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, self.measurements.as_deref())?;
        let index = session::setting(&project, self.setting, "predictions are")?;
        let at = self.at.as_deref().map(Table::read).transpose()?;
        let resolved = |path: &Option<PathBuf>| path.as_ref().and_then(|path| path.canonicalize().ok());
        if resolved(&self.save).is_some_and(|save| resolved(&self.at) == Some(save)) {
            let repair = "save the predictions under another name";
            return Err(Error::invalid("--save", "this is the file of --at, which would be overwritten", repair).into());
        }
        let method = self.method.as_ref().and_then(|name| Method::named(name));
        let predictions = run::predict(&project, index, at.as_ref(), method)?;
        if let Some(path) = &self.save {
            predictions.write(path)?;
        }
        let study = &project.settings()[index].study;
        let method = method.unwrap_or(study.infer.answer).name();
        if global.json {
            let label: Map<String, Value> =
                project.settings()[index].label.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
            return super::print_json(&json!({
                "study": study.name,
                "setting": label,
                "method": method,
                "predictions": super::records(&predictions)?,
            }));
        }
        let mut text = table(&predictions)?;
        let measurements = self.measurements.as_ref().map_or(String::new(), |file| format!(" from {}", file.display()));
        text.push_str(&format!("\nby {method}{measurements}; output and new measurement as [5 %, 95 %]\n"));
        if let Some(path) = &self.save {
            text.push_str(&format!("saved to {}\n", path.display()));
        }
        Ok(output::print(&text)?)
    }
}

fn table(predictions: &Table) -> Result<String, Error> {
    // Conditions, and the experiment where there are several.
    let names: Vec<String> = predictions.names().take_while(|name| *name != "output").map(str::to_owned).collect();
    let known: Vec<Vec<String>> = names.iter().map(|name| predictions.texts(name)).collect::<Result<_, _>>()?;
    let outputs = predictions.texts("output")?;
    let column = |name| predictions.optional_numbers(name);
    let (mean, low, high) = (column("mean")?, column("q05")?, column("q95")?);
    let (measured_low, measured_high) = (column("measured_q05")?, column("measured_q95")?);
    let value = |column: &[Option<f64>], i: usize| column[i].unwrap_or(f64::NAN);
    let header =
        names.into_iter().chain(["output", "mean", "output in", "measurement in"].map(str::to_owned)).collect();
    let mut grid = Grid::new(header, known.len() + 1);
    for i in 0..predictions.n_rows() {
        let width = value(&high, i) - value(&low, i);
        let [mean, low, high] = rounded([value(&mean, i), value(&low, i), value(&high, i)], width);
        // Where the sd is a column of the measurements, that of a new one is not known.
        let measured = match (measured_low[i], measured_high[i]) {
            (Some(low), Some(high)) => {
                let [low, high] = rounded([low, high], high - low);
                format!("[{low}, {high}]")
            }
            _ => "unknown sd".to_owned(),
        };
        let own = known.iter().map(|column| column[i].clone()).chain([outputs[i].clone()]);
        grid.push(own.chain([mean, format!("[{low}, {high}]"), measured]).collect(), false);
    }
    Ok(grid.render(output::width(), output::stdout_coloured()))
}
