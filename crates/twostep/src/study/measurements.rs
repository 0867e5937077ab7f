//! A CSV file of measurements to the values, conditions and standard deviations of each output.

use std::path::Path;

use super::{MeasurementSource, Output, Study};
use crate::error::{Error, Result};
use crate::infer::Measured;
use crate::likelihood::Sd;
use crate::matrix::Matrix;
use crate::table::Table;

/// A bound written in decimals may come back on its wrong side: values outside by this share of the range count as in.
const ROUNDING: f64 = 1e-9;

/// The measurements of each output of the study, in their order, from `path` or else from the study's own file.
///
/// Columns: every condition; and either one per output, by its name, whose cells may be empty where it was not measured,
/// or `output` with names and `value`. Where sd = "column": `sd`, or `sd[NAME]` for one output. Others are ignored.
///
/// # Errors
/// No file; a missing column; a cell that is no number; a condition outside the range where the surrogate is trained; a
/// value that the noise family cannot produce; an sd that is not positive; no measured value at all. Each with file,
/// line and column.
pub fn read_measurements(study: &Study, path: Option<&Path>) -> Result<Vec<Measured>> {
    let path = match (path, &study.measurements) {
        (Some(path), _) => path,
        (None, MeasurementSource::File(path)) => path,
        _ => {
            return Err(Error::invalid(
                "measurements",
                "the study names no file of measurements",
                "add file = \"measurements.csv\" to [measurements], or give a file",
            ));
        }
    };
    let table = Table::read(path)?;
    let known = conditions(study, &table)?;
    let measured = if table.has("output") || table.has("value") {
        long(study, &table, &known)?
    } else {
        wide(study, &table, &known)?
    };
    if measured.iter().all(|measured| measured.y.is_empty()) {
        let found = "no output has a measured value";
        return Err(Error::invalid(path.display().to_string(), found, "fill at least one cell"));
    }
    Ok(measured)
}

/// One row per line, one column per condition.
fn conditions(study: &Study, table: &Table) -> Result<Matrix> {
    let names: Vec<&str> = study.conditions.iter().map(|condition| condition.name.as_str()).collect();
    let known = table.matrix(&names)?;
    for (column, condition) in study.conditions.iter().enumerate() {
        let (lower, upper) = condition.range;
        let slack = ROUNDING * (upper - lower);
        let outside = |row: &usize| !(lower - slack..=upper + slack).contains(&known[(*row, column)]);
        if let Some(row) = (0..known.rows()).find(outside) {
            let found = format!("{} lies outside the range [{lower}, {upper}]", known[(row, column)]);
            let repair = "remove the row, or widen the condition's range and train the surrogate there";
            return Err(Error::invalid(table.place(row, &condition.name), found, repair));
        }
    }
    Ok(known)
}

/// A column per output.
fn wide(study: &Study, table: &Table, known: &Matrix) -> Result<Vec<Measured>> {
    // Outputs that were not measured may lack a column, but not all of them: that is a misspelling.
    if !study.outputs.iter().any(|output| table.has(&output.name)) {
        table.numbers(&study.outputs[0].name)?;
    }
    let measured = |output: &Output| {
        if !table.has(&output.name) {
            return assemble(output, table, known, &output.name, &[]);
        }
        let values = table.optional_numbers(&output.name)?;
        let cells: Vec<(usize, f64)> = values.iter().enumerate().filter_map(|(row, y)| Some((row, (*y)?))).collect();
        assemble(output, table, known, &output.name, &cells)
    };
    study.outputs.iter().map(measured).collect()
}

/// A line per value, with the output's name.
fn long(study: &Study, table: &Table, known: &Matrix) -> Result<Vec<Measured>> {
    let (names, values) = (table.texts("output")?, table.numbers("value")?);
    if let Some(row) = names.iter().position(|name| !study.outputs.iter().any(|output| output.name == *name)) {
        let outputs: Vec<&str> = study.outputs.iter().map(|output| output.name.as_str()).collect();
        let repair = format!("the study has {}", outputs.join(", "));
        return Err(Error::invalid(table.place(row, "output"), format!("there is no output `{}`", names[row]), repair));
    }
    let measured = |output: &Output| {
        let rows = (0..names.len()).filter(|row| names[*row] == output.name);
        let cells: Vec<(usize, f64)> = rows.map(|row| (row, values[row])).collect();
        assemble(output, table, known, "value", &cells)
    };
    study.outputs.iter().map(measured).collect()
}

/// Measurements of one output from its rows and values, which stand in `column`.
fn assemble(output: &Output, table: &Table, known: &Matrix, column: &str, cells: &[(usize, f64)]) -> Result<Measured> {
    let family = output.noise.family.likelihood();
    for (row, y) in cells {
        let refused = |why: String| {
            Error::invalid(table.place(*row, column), format!("{y} {why}"), "correct it, or change the noise family")
        };
        if !y.is_finite() {
            return Err(refused("is not a finite number".to_owned()));
        }
        family.observe(*y).map_err(refused)?;
    }
    let rows: Vec<usize> = cells.iter().map(|(row, _)| *row).collect();
    let sd = if output.noise.sd == Sd::Column && !rows.is_empty() {
        let own = format!("sd[{}]", output.name);
        let name = if table.has(&own) { own } else { "sd".to_owned() };
        let all = table.optional_numbers(&name)?;
        let sd = |row: &usize| {
            all[*row].filter(|sd| sd.is_finite() && *sd > 0.0).ok_or_else(|| {
                Error::invalid(
                    table.place(*row, &name),
                    "a standard deviation is needed here",
                    "write a positive number",
                )
            })
        };
        Some(rows.iter().map(sd).collect::<Result<Vec<_>>>()?)
    } else {
        None
    };
    let y = cells.iter().map(|(_, y)| *y).collect();
    Ok(Measured { output: output.name.clone(), y, known: known.select_rows(&rows), sd })
}
