//! What is kept on disk of each setting: training set, T-draws, I-draws, reports, and the fingerprints that say what is fresh.

use crate::draws::Draws;
use crate::error::{Error, Result};
use crate::infer::IPosterior;
use crate::matrix::Matrix;
use crate::study::Stage;
use crate::table::{Table, write_atomically};
use crate::train::{TReport, TrainingSet};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What made a finished stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageRecord {
    /// Hash of everything the stage depends on.
    pub fingerprint: String,
    /// Seconds it took.
    pub seconds: f64,
    /// Version of this program.
    pub version: String,
    /// Instruction set it ran on.
    pub instruction_set: String,
}

/// The folder of one setting.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// A simulator run that failed: its number (from one), inputs and reason.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedRun {
    /// Number of the run, from one.
    pub run: usize,
    /// Its inputs.
    pub inputs: Vec<f64>,
    /// Why.
    pub reason: String,
}

impl Folder {
    /// A folder, made when something is first written.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn prepare(&self) -> Result<()> {
        std::fs::create_dir_all(&self.path)
            .map_err(|e| Error::file(&self.path, e, "choose a folder you may write to with --out"))
    }

    /// Writes what can be read back as the same type, and nothing else: a number that is not finite would become null.
    fn write_json<T: Serialize + DeserializeOwned>(&self, name: &str, value: &T) -> Result<()> {
        self.prepare()?;
        let mut text = serde_json::to_string_pretty(value).expect("these types have string keys");
        if let Err(problem) = serde_json::from_str::<T>(&text) {
            // A line holds one value, or one element of the array that a line above names.
            let before = text.lines().take(problem.line()).collect::<Vec<_>>();
            let field = before.iter().rev().find(|line| line.contains("\": ")).map_or("a value", |line| line.trim());
            return Err(Error::failed(name, format!("cannot keep `{field}` ({problem})"), "report this as a bug"));
        }
        text.push('\n');
        write_atomically(&self.file(name), text.as_bytes())
    }

    fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let path = self.file(name);
        let text = std::fs::read_to_string(&path).map_err(|e| Error::file(&path, e, "run the stage again"))?;
        serde_json::from_str(&text).map_err(|e| {
            Error::invalid(path.display().to_string(), format!("cannot be read: {e}"), "delete the file and run again")
        })
    }

    /// Records of the finished stages.
    pub fn stages(&self) -> BTreeMap<String, StageRecord> {
        self.read_json("stages.json").unwrap_or_default()
    }

    /// Whether a stage is finished with this fingerprint.
    pub fn is_fresh(&self, stage: Stage, fingerprint: &str) -> bool {
        self.stages().get(stage.name()).is_some_and(|record| record.fingerprint == fingerprint)
    }

    /// Marks a stage as finished; its files must have been written before.
    pub fn finish(&self, stage: Stage, record: StageRecord) -> Result<()> {
        let mut stages = self.stages();
        stages.insert(stage.name().into(), record);
        self.write_json("stages.json", &stages)
    }

    /// Forgets a stage before its files change, so that a crash in between cannot leave it marked as finished.
    pub fn forget(&self, stage: Stage) -> Result<()> {
        let mut stages = self.stages();
        match stages.remove(stage.name()) {
            Some(_) => self.write_json("stages.json", &stages),
            None => Ok(()),
        }
    }

    /// Writes the training set, failed runs among it.
    pub fn write_training(&self, set: &TrainingSet, failed: &[FailedRun]) -> Result<()> {
        self.prepare()?;
        let n = set.inputs.rows() + failed.len();
        let mut done = 0..set.inputs.rows();
        // Row of the training set, or the failed run, for each run in order.
        let rows: Vec<std::result::Result<usize, &FailedRun>> = (1..=n)
            .map(|run| match failed.iter().find(|f| f.run == run) {
                Some(failure) => Err(failure),
                None => Ok(done.next().unwrap_or(0)),
            })
            .collect();
        let mut table = Table::new().with_numbers("run", (1..=n).map(|i| i as f64).collect())?;
        for (d, name) in set.input_names.iter().enumerate() {
            let values = rows.iter().map(|row| match row {
                Ok(i) => set.inputs[(*i, d)],
                Err(failure) => failure.inputs[d],
            });
            table = table.with_numbers(name, values.collect())?;
        }
        for (name, y) in &set.outputs {
            let texts = rows.iter().map(|row| row.as_ref().map_or(String::new(), |i| format!("{}", y[*i])));
            table = table.with_texts(name, texts.collect())?;
        }
        let reasons =
            rows.iter().map(|row| row.as_ref().err().map_or("ok".to_string(), |f| format!("failed: {}", f.reason)));
        table.with_texts("state", reasons.collect())?.write(&self.file("training.csv"))
    }

    /// Reads the training set back, without failed runs.
    pub fn read_training(&self, inputs: &[String], outputs: &[String], sigma_s: Option<&str>) -> Result<TrainingSet> {
        let table = Table::read(&self.file("training.csv"))?;
        let states = table.texts("state")?;
        let ok: Vec<usize> = (0..states.len()).filter(|&i| states[i] == "ok").collect();
        let all = table.matrix(inputs)?;
        let outputs = outputs
            .iter()
            .map(|name| {
                let values = table.optional_numbers(name)?;
                Ok((name.clone(), ok.iter().map(|&i| values[i].unwrap_or(f64::NAN)).collect()))
            })
            .collect::<Result<_>>()?;
        let sigma_s = match sigma_s {
            Some(column) => {
                let values = table.numbers(column)?;
                Some(ok.iter().map(|&i| values[i]).collect())
            }
            None => None,
        };
        Ok(TrainingSet { input_names: inputs.to_vec(), inputs: all.select_rows(&ok), outputs, sigma_s })
    }

    /// Writes T-draws and what is known of them.
    pub fn write_t_step(&self, draws: &Draws, reports: &[TReport]) -> Result<()> {
        self.prepare()?;
        draws_table(draws)?.write(&self.file("t_draws.csv"))?;
        self.write_json("t_step.json", &reports.to_vec())
    }

    /// Reads T-draws and reports back.
    pub fn read_t_step(&self) -> Result<(Draws, Vec<TReport>)> {
        Ok((read_draws(&self.file("t_draws.csv"))?, self.read_json("t_step.json")?))
    }

    /// Writes measurements that were generated.
    pub fn write_measurements(&self, table: &Table) -> Result<()> {
        self.prepare()?;
        table.write(&self.file("measurements.csv"))
    }

    /// Writes I-posteriors: draws in a file each, summaries together.
    pub fn write_i_step(&self, names: &[String], posteriors: &[IPosterior]) -> Result<()> {
        self.prepare()?;
        for posterior in posteriors {
            let mut table = Table::new();
            for (d, name) in names.iter().enumerate() {
                let values: Vec<f64> = posterior.draws.iter().map(|x| x[d]).collect();
                table = table.with_numbers(name, finite(&format!("I-draws by {}", posterior.method), name, values)?)?;
            }
            if let Some(t_draws) = &posterior.t_draws {
                table = table.with_numbers("t_draw", t_draws.iter().map(|&s| s as f64).collect())?;
            }
            table.write(&self.file(&format!("i_draws_{}.csv", posterior.method)))?;
        }
        self.write_json("i_step.json", &posteriors.to_vec())
    }

    /// Reads I-posteriors back.
    pub fn read_i_step(&self, names: &[String]) -> Result<Vec<IPosterior>> {
        let mut posteriors: Vec<IPosterior> = self.read_json("i_step.json")?;
        for posterior in &mut posteriors {
            let table = Table::read(&self.file(&format!("i_draws_{}.csv", posterior.method)))?;
            let values = table.matrix(names)?;
            posterior.draws = (0..values.rows()).map(|i| values.row(i).to_vec()).collect();
            if table.has("t_draw") {
                posterior.t_draws = Some(table.numbers("t_draw")?.iter().map(|&s| s as usize).collect());
            }
        }
        Ok(posteriors)
    }
}

/// The values, if they can be read back.
fn finite(what: &str, name: &str, values: Vec<f64>) -> Result<Vec<f64>> {
    match values.iter().find(|v| !v.is_finite()) {
        Some(value) => Err(Error::failed(what, format!("{name} is {value} in one of them"), "report this as a bug")),
        None => Ok(values),
    }
}

/// T-draws as a table: one draw a row, parameters by name, then `weight`.
fn draws_table(draws: &Draws) -> Result<Table> {
    let mut table = Table::new();
    for (p, name) in draws.names().iter().enumerate() {
        table = table.with_numbers(name, finite("T-draws", name, draws.values().row(p).to_vec())?)?;
    }
    table.with_numbers("weight", draws.weights())
}

/// Draws from a CSV file with one column per parameter and an optional `weight`.
///
/// # Errors
/// A file that cannot be read, or weights that are negative or all zero.
pub fn read_draws(path: &Path) -> Result<Draws> {
    let table = Table::read(path)?;
    let names: Vec<String> = table.names().filter(|n| *n != "weight").map(String::from).collect();
    let columns = names.iter().map(|name| table.numbers(name)).collect::<Result<Vec<_>>>()?;
    let n = table.n_rows();
    if n == 0 {
        return Err(Error::invalid(path.display().to_string(), "has no draws", "give at least one row"));
    }
    let values = Matrix::from_fn(names.len(), n, |p, s| columns[p][s]);
    if !table.has("weight") {
        return Ok(Draws::new(names, values));
    }
    let weights = table.numbers("weight")?;
    if weights.iter().any(|w| *w < 0.0) || weights.iter().sum::<f64>() <= 0.0 {
        return Err(Error::invalid(
            format!("{}, column `weight`", path.display()),
            "has a negative weight, or none above zero",
            "give non-negative weights",
        ));
    }
    Ok(Draws::weighted(names, values, weights.iter().map(|w| w.ln()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::LeaveOneOut;

    #[test]
    fn what_could_not_be_read_back_is_not_written() {
        let folder = Folder::new(std::env::temp_dir().join(format!("twostep-store-{}", std::process::id())));
        let leave_one_out =
            |q2| LeaveOneOut { q2, coverage_90: 1.0, predictions: vec![None, Some((1.0, 0.5))], unreliable: 0 };
        let report = |coverage: f64, q2: Option<f64>| TReport {
            output: "y".into(),
            method: "exact".into(),
            n_rows: 1,
            parameters: Vec::new(),
            predictive_coverage_90: coverage,
            leave_one_out: leave_one_out(q2),
            divergences: 0,
            warnings: Vec::new(),
        };
        let draws = |value: f64| Draws::new(vec!["c".into()], Matrix::from_rows(1, 1, vec![value]));
        let kept = vec![report(1.0, None)];
        folder.write_t_step(&draws(2.0), &kept).unwrap();
        assert_eq!(folder.read_t_step().unwrap(), (draws(2.0), kept.clone()));

        let refused = folder.write_t_step(&draws(2.0), &[report(f64::NAN, None)]).unwrap_err().to_string();
        assert!(refused.contains("t_step.json: cannot keep `\"predictive_coverage_90\": null,`"), "{refused}");
        let refused = folder.write_t_step(&draws(f64::INFINITY), &kept).unwrap_err().to_string();
        assert!(refused.contains("T-draws: c is inf in one of them"), "{refused}");
        assert_eq!(folder.read_t_step().unwrap(), (draws(2.0), kept));
        std::fs::remove_dir_all(folder.path()).unwrap();
    }
}
