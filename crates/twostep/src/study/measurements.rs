//! A CSV file of measurements to the values, conditions and standard deviations of each output.

use super::{Condition, MeasurementSource, Output, Study};
use crate::error::{Error, Result};
use crate::infer::Measured;
use crate::likelihood::{Family, Observed, Side};
use crate::matrix::{Matrix, cholesky};
use crate::table::{Table, counted, nearest};
use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

/// A bound written in decimals may come back on its wrong side: values outside by this share of the range count as in.
const ROUNDING: f64 = 1e-9;

/// The measurements of each output of the study, in their order, from the study's file.
///
/// Columns: every condition; and either one per output, by its name, whose cells may be empty where it was not measured,
/// or `output` with names and `value`; and `experiment`, where the study has several. A value `<0.5` or `>100` is censored: all that is known is that it lies below or above. Where sd =
/// "column": `sd`, or `sd[NAME]` for one output; where trials = "column": `trials`, or `trials[NAME]`. Others are not read, see
/// [`unused_columns`].
///
/// # Errors
/// No file; a missing column, or one that is spelt nearly like an output without a column; a cell that is no number; a
/// condition outside the range where the surrogate is trained; a value that the noise family cannot produce, or whose
/// square overflows; an sd that is not positive; no measured value at all. Each with file, line and column.
pub fn read_measurements(study: &Study) -> Result<Vec<Measured>> {
    let MeasurementSource::File(path) = &study.measurements else {
        return Err(Error::invalid(
            "measurements",
            "the study names no file of measurements",
            "add file = \"measurements.csv\" to [measurements], or use `twostep infer --measurements FILE`",
        ));
    };
    let table = Table::read(path)?;
    let known = conditions(study, &table)?;
    let mut measured = if is_long(&table) { long(study, &table, &known)? } else { wide(study, &table, &known)? };
    if measured.iter().all(|measured| measured.y.is_empty()) {
        let found = "no output has a measured value";
        return Err(Error::invalid(path.display().to_string(), found, "fill at least one cell"));
    }
    if study.has_experiments() {
        let of_row = experiments(study, &table)?;
        for measured in &mut measured {
            measured.experiment.iter_mut().for_each(|row| *row = of_row[*row]);
        }
        for measured in &measured {
            let Some(correlation) = &measured.correlation else { continue };
            let n = measured.y.len();
            let mut pairs = (0..n).flat_map(|i| (0..i).map(move |j| (i, j)));
            let apart = |&(i, j): &(usize, usize)| measured.experiment[i] != measured.experiment[j];
            if let Some((i, j)) = pairs.find(|pair| apart(pair) && correlation[*pair] != 0.0) {
                let found = format!(
                    "measurements {} and {} of `{}` are of two experiments, and correlated",
                    j + 1,
                    i + 1,
                    measured.output
                );
                let repair = "noise may be correlated within an experiment; write zeros between them";
                return Err(Error::invalid(path.display().to_string(), found, repair));
            }
        }
        let is_measured = |e: &usize| measured.iter().any(|measured| measured.experiment.contains(e));
        if let Some(e) = (0..study.experiments.len()).find(|e| !is_measured(e)) {
            let found = format!("experiment `{}` has no measurements", study.experiments[e]);
            let repair = "add rows with that name in column `experiment`, or remove it from measurements.experiments";
            return Err(Error::invalid(path.display().to_string(), found, repair));
        }
    } else {
        measured.iter_mut().for_each(|measured| measured.experiment.clear());
    }
    Ok(measured)
}

/// The experiment of every row of a table that has a column for it.
pub(crate) fn experiments(study: &Study, table: &Table) -> Result<Vec<usize>> {
    let names = table.texts("experiment")?;
    let place = |(row, name): (usize, &String)| {
        study.experiments.iter().position(|own| own == name.trim()).ok_or_else(|| {
            let found = match name.trim() {
                "" => "the cell is empty".to_owned(),
                name => format!("there is no experiment `{name}`"),
            };
            let known: Vec<&str> = study.experiments.iter().map(String::as_str).collect();
            let repair = match nearest(name, &known) {
                Some(meant) => format!("write `{meant}`, or add it to measurements.experiments"),
                None => format!("the study has {}", known.join(", ")),
            };
            Error::invalid(table.place(row, "experiment"), found, repair)
        })
    };
    names.iter().enumerate().map(place).collect()
}

/// Warnings about columns of the study's file of measurements that nothing reads; none where it has no file.
///
/// # Errors
/// A file that cannot be read.
pub fn unused_columns(study: &Study) -> Result<Vec<String>> {
    let MeasurementSource::File(path) = &study.measurements else {
        return Ok(Vec::new());
    };
    let table = Table::read(path)?;
    let (sds, others): (Vec<&str>, Vec<&str>) =
        table.names().filter(|name| !is_used(study, &table, name)).partition(|name| is_sd(name));
    let warning = |names: Vec<&str>, why: &str| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let noun = if names.len() == 1 { "column" } else { "columns" };
        (!names.is_empty()).then(|| format!("{}: {noun} {} not used: {why}", path.display(), names.join(", ")))
    };
    let sds = warning(sds, "the study gives the sd itself; sd = \"column\" in its noise would take it from here");
    Ok(warning(others, "neither an output nor a condition of the study").into_iter().chain(sds).collect())
}

/// Whether a column is read.
fn is_used(study: &Study, table: &Table, name: &str) -> bool {
    let of_output = |output: &Output| {
        let own_sd =
            output.noise.scale.is_column() && (name == scale_column(output) || name == own_scale_column(output));
        own_sd || (output.name == name && !is_long(table))
    };
    study.conditions.iter().any(|condition| condition.name == name)
        || study.outputs.iter().any(of_output)
        || (is_long(table) && ["output", "value"].contains(&name))
        || (!study.experiments.is_empty() && name == "experiment")
}

/// Whether a column holds sds, by its name.
fn is_sd(name: &str) -> bool {
    name == "sd" || name.starts_with("sd[")
}

/// Whether values stand in one column, with their output's name in another.
fn is_long(table: &Table) -> bool {
    table.has("output") || table.has("value")
}

/// The column with the sds of outputs, or with their numbers of trials.
fn scale_column(output: &Output) -> &'static str {
    if output.noise.family == Family::Binomial { "trials" } else { "sd" }
}

/// The same of one output alone.
fn own_scale_column(output: &Output) -> String {
    format!("{}[{}]", scale_column(output), output.name)
}

/// One row per line, one column per condition. A coordinate is NaN where its cell is empty: outputs that are no series have
/// none.
fn conditions(study: &Study, table: &Table) -> Result<Matrix> {
    let column = |condition: &Condition| match condition.coordinate && study.outputs.iter().any(|o| o.over.is_none()) {
        true => Ok(table.optional_numbers(&condition.name)?.into_iter().map(|t| t.unwrap_or(f64::NAN)).collect()),
        false => table.numbers(&condition.name),
    };
    let columns: Vec<Vec<f64>> = study.conditions.iter().map(column).collect::<Result<_>>()?;
    let known = Matrix::from_fn(table.n_rows(), columns.len(), |row, d| columns[d][row]);
    for (column, condition) in study.conditions.iter().enumerate() {
        let (lower, upper) = condition.range;
        let slack = ROUNDING * (upper - lower);
        let inside = |x: f64| (lower - slack..=upper + slack).contains(&x) || (condition.coordinate && x.is_nan());
        let outside = |row: &usize| !inside(known[(*row, column)]);
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
    let absent: Vec<&str> =
        study.outputs.iter().map(|output| output.name.as_str()).filter(|name| !table.has(name)).collect();
    for name in table.names().filter(|name| !is_used(study, table, name) && !is_sd(name)) {
        if let Some(meant) = nearest(name, &absent) {
            let found = format!("column `{name}` is no output, but `{meant}` is one and has no column");
            let repair = format!("rename the column to `{meant}`, or remove it if it is something else");
            return Err(Error::invalid(table.source(), found, repair));
        }
    }
    let measured = |output: &Output| {
        if !table.has(&output.name) {
            return assemble(study, output, table, known, &output.name, &[]);
        }
        let values = table.numbers_or_bounds(&output.name)?.into_iter().enumerate();
        let cells: Vec<Cell> = values.filter_map(|(row, value)| Some(cell(row, value?))).collect();
        assemble(study, output, table, known, &output.name, &cells)
    };
    study.outputs.iter().map(measured).collect()
}

/// A line per value, with the output's name.
fn long(study: &Study, table: &Table, known: &Matrix) -> Result<Vec<Measured>> {
    let (names, values) = (table.texts("output")?, table.numbers_or_bounds("value")?);
    if let Some(row) = values.iter().position(Option::is_none) {
        let repair = "write a number or remove the row";
        return Err(Error::invalid(table.place(row, "value"), "the cell is empty", repair));
    }
    if let Some(row) = names.iter().position(|name| !study.outputs.iter().any(|output| output.name == *name)) {
        let outputs: Vec<&str> = study.outputs.iter().map(|output| output.name.as_str()).collect();
        let repair = format!("the study has {}", outputs.join(", "));
        return Err(Error::invalid(table.place(row, "output"), format!("there is no output `{}`", names[row]), repair));
    }
    let measured = |output: &Output| {
        let rows = (0..names.len()).filter(|row| names[*row] == output.name);
        let cells: Vec<Cell> = rows.filter_map(|row| Some(cell(row, values[row]?))).collect();
        assemble(study, output, table, known, "value", &cells)
    };
    study.outputs.iter().map(measured).collect()
}

/// Row and value of a measurement, and the side of it where that is a bound.
type Cell = (usize, f64, Option<Side>);

fn cell(row: usize, (value, sign): (f64, Ordering)) -> Cell {
    let side = match sign {
        Ordering::Less => Some(Side::Below),
        Ordering::Greater => Some(Side::Above),
        Ordering::Equal => None,
    };
    (row, value, side)
}

/// Sds and correlations of `n` measurements of an output, from the file with their covariance: a row and a column for each, in the order
/// of the measurements, with or without a header.
fn covariance(path: &Path, output: &str, n: usize) -> Result<(Vec<f64>, Matrix)> {
    // Of a matrix that was written with seven digits.
    const SYMMETRIC: f64 = 1e-6;
    let bytes =
        std::fs::read(path).map_err(|problem| Error::file(path, problem, "check the path of the covariance"))?;
    let source = path.display().to_string();
    let table = Table::parse_foreign(&bytes, &source)?;
    let names: Vec<String> = table.names().map(str::to_owned).collect();
    if (table.n_rows(), names.len()) != (n, n) {
        let found = format!(
            "is a matrix of {} by {}, and `{output}` has {}",
            table.n_rows(),
            names.len(),
            counted(n, "measurement")
        );
        return Err(Error::invalid(
            source,
            found,
            "give a row and a column for each measurement, in the order of the file",
        ));
    }
    let matrix = table.matrix(&names)?;
    let place = |i: usize, j: usize| table.place(i, &names[j]);
    let sds: Vec<f64> = (0..n).map(|i| matrix[(i, i)].sqrt()).collect();
    if let Some(i) = (0..n).find(|&i| !(sds[i] > 0.0 && sds[i].is_finite())) {
        let found = format!("the variance {} is not positive", matrix[(i, i)]);
        return Err(Error::invalid(place(i, i), found, "write a positive number on the diagonal"));
    }
    let correlation = Matrix::from_fn(n, n, |i, j| 0.5 * (matrix[(i, j)] + matrix[(j, i)]) / (sds[i] * sds[j]));
    let gap = |i: usize, j: usize| (matrix[(i, j)] - matrix[(j, i)]).abs() / (sds[i] * sds[j]);
    let pairs = || (0..n).flat_map(|i| (0..i).map(move |j| (i, j)));
    if let Some((i, j)) = pairs().find(|&(i, j)| gap(i, j) > SYMMETRIC) {
        let found = format!("{} stands here, and {} across the diagonal", matrix[(i, j)], matrix[(j, i)]);
        return Err(Error::invalid(place(i, j), found, "give a covariance, which is symmetric"));
    }
    if let Some((i, j)) = pairs().find(|&(i, j)| correlation[(i, j)].abs() > 1.0) {
        let found =
            format!("measurements {} and {} would have the correlation {:.3}", j + 1, i + 1, correlation[(i, j)]);
        return Err(Error::invalid(place(i, j), found, "a correlation lies between -1 and 1"));
    }
    let mut triangle: Vec<f64> = (0..n).flat_map(|i| correlation.row(i)[..=i].to_vec()).collect();
    if !cholesky(&mut triangle, n) {
        let found =
            "is not positive definite: some combination of the measurements would have no noise, or less than none";
        let repair = "check how it was estimated; a small number added to its diagonal (a nugget) often mends it";
        return Err(Error::invalid(source, found, repair));
    }
    Ok((sds, correlation))
}

/// Measurements of one output from its rows and values, which stand in `column`.
fn assemble(
    study: &Study,
    output: &Output,
    table: &Table,
    known: &Matrix,
    column: &str,
    cells: &[Cell],
) -> Result<Measured> {
    let family = output.noise.family.likelihood();
    let mut on_scale = Vec::with_capacity(cells.len());
    for (row, y, side) in cells {
        let refused =
            |why: String, repair: &str| Error::invalid(table.place(*row, column), format!("{y} {why}"), repair);
        if !y.is_finite() {
            let repair = "correct it, or leave the cell empty if it was not measured";
            return Err(refused("is not a finite number".to_owned(), repair));
        }
        let observed = family.observe(*y).map_err(|why| refused(why, "correct it, or change the noise family"))?;
        let (Observed::Gaussian(z) | Observed::Direct(z) | Observed::Censored(_, z)) = observed.0;
        if let (Some(_), Observed::Censored(..)) = (side, observed.0) {
            return Err(refused("is no bound: it has no logarithm".to_owned(), "write a positive bound"));
        }
        on_scale.push(z);
    }
    let rows: Vec<usize> = cells.iter().map(|(row, ..)| *row).collect();
    let mut correlation = None;
    let sd = if let Some(path) = output.covariance.as_deref().filter(|_| !rows.is_empty()) {
        if let Some((row, ..)) = cells.iter().find(|(.., side)| side.is_some()) {
            let found = "a bound has no place in a covariance";
            return Err(Error::invalid(table.place(*row, column), found, "give its noise as sd = \"column\" instead"));
        }
        let (sds, correlations) = covariance(path, &output.name, rows.len())?;
        correlation = Some(Arc::new(correlations));
        Some(sds)
    } else if output.noise.scale.is_column() && !rows.is_empty() {
        let own = own_scale_column(output);
        let name = if table.has(&own) { own } else { scale_column(output).to_owned() };
        let all = table.optional_numbers(&name)?;
        let sd = |row: &usize| {
            all[*row].filter(|sd| sd.is_finite() && *sd > 0.0).ok_or_else(|| {
                let found = match output.noise.family {
                    Family::Binomial => "the number of trials is needed here",
                    _ => "a standard deviation is needed here",
                };
                Error::invalid(table.place(*row, &name), found, "write a positive number")
            })
        };
        Some(rows.iter().map(sd).collect::<Result<Vec<_>>>()?)
    } else {
        None
    };
    for (i, z) in on_scale.iter().enumerate() {
        let scale = output.noise.scale.of(Some(1.0), sd.as_ref().map(|own| own[i])).unwrap_or(1.0);
        if output.noise.family == Family::Binomial && cells[i].1 > scale {
            let found = format!("{} of {scale} trials are more than all", cells[i].1);
            return Err(Error::invalid(table.place(rows[i], column), found, "correct the count or the trials"));
        }
        // Counts have no sd, and their scale may be zero.
        let scale = if output.noise.family.generator(1.0).sd().is_some() { scale } else { 1.0 };
        // A likelihood sums squares of all of them.
        if !((z / scale).powi(2) * on_scale.len() as f64).is_finite() {
            let found = format!("{:e} is too large: the square of its distance in sds overflows", cells[i].1);
            return Err(Error::invalid(table.place(rows[i], column), found, "correct it, or use another unit"));
        }
    }
    let (y, mut sides): (Vec<f64>, Vec<Option<Side>>) = cells.iter().map(|(_, y, side)| (*y, *side)).unzip();
    if sides.iter().all(Option::is_none) {
        sides.clear();
    }
    let n_known = study.n_inputs(output) - study.unknowns.len();
    if let Some(row) = rows.iter().find(|&&row| (0..n_known).any(|d| known[(row, d)].is_nan())) {
        let found = format!("`{}` was measured here, at no coordinate", output.name);
        let place = table.place(*row, &study.conditions[n_known - 1].name);
        return Err(Error::invalid(place, found, "write the coordinate of the measurement"));
    }
    let known = Matrix::from_fn(rows.len(), n_known, |i, d| known[(rows[i], d)]);
    // Rows, which are turned into experiments where there are several.
    Ok(Measured { output: output.name.clone(), y, known, scale: sd, sides, experiment: rows, correlation })
}
