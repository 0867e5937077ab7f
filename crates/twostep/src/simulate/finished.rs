//! Finished runs in a table, by the names of its columns: a CSV file, or a tabular file of Dakota.

use super::external::alike;
use super::{Reading, Wanted};
use crate::error::{Error, Result};
use crate::matrix::bits;
use crate::table::{Table, counted, foreign_number};
use std::collections::HashMap;
use std::path::Path;

/// Cells that say that there is no value.
const MISSING: [&str; 8] = ["", "na", "n/a", "nan", "null", "none", "-", "?"];

/// Most lines that a message names.
const NAMED: usize = 5;

/// An input that a table must have.
#[derive(Clone, Debug, PartialEq)]
pub struct TableInput {
    /// Name of its column.
    pub name: String,
    /// Where the surrogate is trained.
    pub range: (f64, f64),
}

/// A finished run.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRun {
    /// Its first line in the file.
    pub line: usize,
    /// Values of the inputs, in their order.
    pub inputs: Vec<f64>,
    /// What it gave, in the order of the outputs.
    pub readings: Vec<Reading>,
}

/// What a table holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FinishedRuns {
    /// Runs that can be used, in the order of the file.
    pub runs: Vec<TableRun>,
    /// Inputs of rows in which outputs have no value yet: runs still to be made.
    pub pending: Vec<Vec<f64>>,
    /// What was left out, with its lines.
    pub warnings: Vec<String>,
}

/// Reads the runs of a table. Lines of equal inputs with different values of a series' coordinate are one run; columns of
/// `constants` must hold their value, and columns of other names are not read.
///
/// Left out, and said so: rows outside the ranges, rows without a value of an output that is no series, repeated rows.
///
/// # Errors
/// A file that cannot be read; a missing column; a cell that is no number; a constant that differs; no run at all.
pub fn read_runs(
    path: &Path,
    inputs: &[TableInput],
    constants: &[(String, f64)],
    outputs: &[Wanted],
) -> Result<FinishedRuns> {
    let bytes = std::fs::read(path)
        .map_err(|problem| Error::file(path, problem, "check that the file is there and that you may read it"))?;
    let table = Table::parse_foreign(&bytes, &path.display().to_string())?;
    let numbers = |name: &str| column(&table, name);
    let columns: Vec<Vec<Option<f64>>> = inputs.iter().map(|input| numbers(&input.name)).collect::<Result<_>>()?;
    for (name, value) in constants.iter().filter(|(name, _)| table.has(name)) {
        if let Some((row, found)) = numbers(name)?.iter().enumerate().find(|(_, found)| **found != Some(*value)) {
            let found = found.map_or("an empty cell".to_owned(), |x| x.to_string());
            let found = format!("{found}, where the study's constant is {value}");
            return Err(Error::invalid(table.place(row, name), found, "runs of other constants do not fit this study"));
        }
    }
    let values: Vec<Vec<Option<f64>>> = outputs.iter().map(|output| numbers(&output.name)).collect::<Result<_>>()?;
    let coordinate = outputs.iter().find_map(|output| output.over.as_ref());
    let at = coordinate.map(|over| numbers(&over.name)).transpose()?;

    let mut out = FinishedRuns::default();
    let (mut outside, mut without_input, mut unfinished, mut twice): (Vec<_>, Vec<_>, Vec<_>, Vec<usize>) =
        Default::default();
    // Rows of each run: one, or with series those of equal inputs as long as no coordinate comes twice.
    let mut groups: Vec<(Vec<f64>, Vec<usize>)> = Vec::new();
    let mut latest: HashMap<Vec<u64>, usize> = HashMap::new();
    for row in 0..table.n_rows() {
        let Some(x) = columns.iter().map(|column| column[row]).collect::<Option<Vec<f64>>>() else {
            without_input.push(row);
            continue;
        };
        if x.iter().zip(inputs).any(|(x, input)| !(input.range.0..=input.range.1).contains(x)) {
            outside.push(row);
            continue;
        }
        // A line that says again what another of its run says.
        let is_twice = |&group: &usize| {
            let same = |other: &&usize| {
                at.as_ref().is_some_and(|at| at[**other] == at[row]) && values.iter().all(|v| v[**other] == v[row])
            };
            groups[group].1.iter().any(|other| same(&other))
        };
        if latest.get(&bits(&x)).is_some_and(is_twice) {
            twice.push(row);
            continue;
        }
        let group = latest.get(&bits(&x)).copied().filter(|&group| {
            let is_new = |at: &Vec<Option<f64>>| groups[group].1.iter().all(|&r| at[r] != at[row]);
            at.as_ref().is_some_and(is_new)
        });
        match group {
            Some(group) => groups[group].1.push(row),
            None => {
                latest.insert(bits(&x), groups.len());
                groups.push((x, vec![row]));
            }
        }
    }
    if let Some(at) = &at {
        let coordinates = |rows: &[usize]| rows.iter().map(|&row| at[row].map(f64::to_bits)).collect::<Vec<_>>();
        let mut first: HashMap<Vec<u64>, Vec<Option<u64>>> = HashMap::new();
        for (x, rows) in &groups {
            let own = coordinates(rows);
            if *first.entry(bits(x)).or_insert_with(|| own.clone()) != own {
                let found = "lines of several runs with these inputs are mixed, or one of them lacks a coordinate";
                let repair = "put the lines of each run together, with the same coordinates";
                return Err(Error::invalid(format!("{}, line {}", path.display(), table.line(rows[0])), found, repair));
            }
            for (values, output) in values.iter().zip(outputs).filter(|(_, output)| output.over.is_none()) {
                let given: Vec<usize> = rows.iter().copied().filter(|&row| values[row].is_some()).collect();
                if let Some(&other) = given.iter().find(|&&row| values[row] != values[given[0]]) {
                    let found = "the lines of one run differ in a value that is no series";
                    return Err(Error::invalid(
                        table.place(other, &output.name),
                        found,
                        "correct it, or name it a series",
                    ));
                }
            }
        }
    }
    let (mut repeated, mut contradicted): (Vec<usize>, Vec<usize>) = (twice, Vec::new());
    let mut known: HashMap<Vec<u64>, Vec<usize>> = HashMap::new();
    for (x, rows) in groups {
        let reading = |(output, values): (&Wanted, &Vec<Option<f64>>)| match (&output.over, &at) {
            (Some(_), Some(at)) => {
                let known: Vec<usize> = rows.iter().copied().filter(|&row| at[row].is_some()).collect();
                let place = |row: &usize| at[*row].unwrap_or(f64::NAN);
                let series = known.iter().map(|&row| values[row].unwrap_or(f64::NAN)).collect();
                let reading = Reading { at: known.iter().map(place).collect(), values: series };
                reading.values.iter().any(|y: &f64| y.is_finite()).then_some(reading)
            }
            _ => {
                let found = rows.iter().find_map(|&row| values[row])?;
                Some(Reading { at: Vec::new(), values: vec![found] })
            }
        };
        let Some(readings) = outputs.iter().zip(&values).map(reading).collect::<Option<Vec<_>>>() else {
            unfinished.push(rows[0]);
            out.pending.push(x);
            continue;
        };
        let twins = known.entry(bits(&x)).or_default();
        if twins.iter().any(|&run| alike(&out.runs[run].readings, &readings)) {
            repeated.push(rows[0]);
            continue;
        }
        if !twins.is_empty() {
            contradicted.push(rows[0]);
        }
        twins.push(out.runs.len());
        out.runs.push(TableRun { line: table.line(rows[0]), inputs: x, readings });
    }
    let mut warn = |rows: &[usize], one: &str, several: &str| {
        if rows.is_empty() {
            return;
        }
        let lines: Vec<String> = rows.iter().take(NAMED).map(|&row| table.line(row).to_string()).collect();
        let more = if rows.len() > NAMED { ", ..." } else { "" };
        let (what, lines) = (counted(rows.len(), "row"), lines.join(", "));
        let place = if rows.len() == 1 { "line" } else { "lines" };
        let said = if rows.len() == 1 { one } else { several };
        out.warnings.push(format!("{}, {place} {lines}{more}: {what} {said}", path.display()));
    };
    warn(&outside, "lies outside the ranges of the study, left out", "lie outside the ranges of the study, left out");
    warn(&without_input, "lacks an input, left out", "lack an input, left out");
    warn(&unfinished, "has no value of some output, left out", "have no value of some output, left out");
    warn(&repeated, "repeats another, left out", "repeat others, left out");
    warn(
        &contradicted,
        "has the inputs of another with other outputs; taken as a repeated run of a random simulator",
        "have the inputs of others with other outputs; taken as repeated runs of a random simulator",
    );
    Ok(out)
}

/// A column of finite numbers; none where a cell says that there is no value.
fn column(table: &Table, name: &str) -> Result<Vec<Option<f64>>> {
    let number = |(row, text): (usize, &String)| {
        let text = text.trim();
        if MISSING.contains(&text.to_lowercase().as_str()) {
            return Ok(None);
        }
        foreign_number(text).filter(|number| number.is_finite()).map(Some).ok_or_else(|| {
            let found = format!("`{text}` is not a finite number");
            Error::invalid(table.place(row, name), found, "correct it, or leave the cell empty")
        })
    };
    table.texts(name)?.iter().enumerate().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Over;
    use proptest::prelude::*;

    fn read(test: &str, text: &str, outputs: &[Wanted]) -> Result<FinishedRuns> {
        let path = std::env::temp_dir().join(format!("twostep-finished-{}-{test}.csv", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let input = |name: &str| TableInput { name: name.into(), range: (0.0, 1.0) };
        let found = read_runs(&path, &[input("a"), input("b")], &[("k".into(), 2.0)], outputs);
        std::fs::remove_file(&path).unwrap();
        found
    }

    fn output(name: &str) -> Wanted {
        Wanted { name: name.into(), over: None }
    }

    #[test]
    fn rows_that_cannot_be_used_are_named_by_their_lines() {
        let text = "id,b,a,y\n1,0.1,0.2,5\n2,0.1,2,6\n3,,0.5,1\n4,0.3,0.3,\n5,0.1,0.2,5\n6,0.1,0.2,7\n";
        let found = read("lines", text, &[output("y")]).unwrap();
        let runs: Vec<(usize, &[f64], f64)> =
            found.runs.iter().map(|run| (run.line, &run.inputs[..], run.readings[0].values[0])).collect();
        assert_eq!(runs, [(2, &[0.2, 0.1][..], 5.0), (7, &[0.2, 0.1][..], 7.0)]);
        assert_eq!(found.pending, [vec![0.3, 0.3]]);
        let said: Vec<&str> = found.warnings.iter().map(|w| w.split(".csv, ").last().unwrap()).collect();
        assert_eq!(
            said,
            [
                "line 3: 1 row lies outside the ranges of the study, left out",
                "line 4: 1 row lacks an input, left out",
                "line 5: 1 row has no value of some output, left out",
                "line 6: 1 row repeats another, left out",
                "line 7: 1 row has the inputs of another with other outputs; taken as a repeated run of a random simulator",
            ]
        );
    }

    #[test]
    fn a_tabular_file_of_dakota_is_read() {
        let text = "%eval_id interface             a             b             y\n\
                    1        NO_ID            0.25          0.75  1.5000000000e+00\n\
                    2        NO_ID            0.50          0.75  2.5000000000e+00\n";
        let found = read("dakota", text, &[output("y")]).unwrap();
        assert_eq!((found.runs.len(), found.runs[1].readings[0].values[0]), (2, 2.5));
        assert!(found.warnings.is_empty());
    }

    #[test]
    fn lines_of_one_run_are_its_series() {
        let series = Wanted { name: "h".into(), over: Some(Over { name: "t".into(), at: None }) };
        let text = "a,b,t,h,y\n0,0,1,10,3\n0,0,2,,3\n1,1,1,30,4\n0,0,3,12,3\n";
        let found = read("series", text, &[series, output("y")]).unwrap();
        assert_eq!(found.runs.len(), 2);
        let [h, y] = &found.runs[0].readings[..] else { panic!("two outputs") };
        assert_eq!((&h.at[..], h.values[0], h.values[2], y.values[0]), (&[1.0, 2.0, 3.0][..], 10.0, 12.0, 3.0));
        assert!(h.values[1].is_nan());
    }

    #[test]
    fn lines_of_several_runs_are_told_apart_or_refused() {
        let series = || [Wanted { name: "h".into(), over: Some(Over { name: "t".into(), at: None }) }, output("y")];
        // One run after the other, a line pasted twice.
        let text = "a,b,t,h,y\n0,0,1,10,3\n0,0,1,10,3\n0,0,2,11,3\n0,0,1,12,4\n0,0,2,13,4\n";
        let found = read("several", text, &series()).unwrap();
        let values: Vec<&[f64]> = found.runs.iter().map(|run| &run.readings[0].values[..]).collect();
        assert_eq!(values, [[10.0, 11.0], [12.0, 13.0]]);
        assert!(found.warnings[0].contains("line 3: 1 row repeats another"), "{:?}", found.warnings);
        // Sorted by coordinate, nobody knows which value is whose.
        let refused = |text: &str| read("mixed", text, &series()).unwrap_err().to_string();
        let mixed = refused("a,b,t,h,y\n0,0,1,10,3\n0,0,1,12,3\n0,0,2,11,3\n0,0,2,13,3\n");
        assert!(mixed.contains("are mixed"), "{mixed}");
        let differ = refused("a,b,t,h,y\n0,0,1,10,3\n0,0,2,11,4\n");
        assert!(differ.contains("line 3, column `y`: the lines of one run differ"), "{differ}");
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_place() {
        let refused = |text: &str| read("refused", text, &[output("y")]).unwrap_err().to_string();
        assert!(refused("a,b,k,y\n0,0,3,1\n").contains("line 2, column `k`: 3, where the study's constant is 2"));
        assert!(refused("a,b,y\n0,0,five\n").contains("line 2, column `y`: `five` is not a finite number"));
        assert!(refused("a,y\n0,0\n").contains("there is no column `b`"));
    }

    proptest! {
        #[test]
        fn any_rows_are_read_or_refused(rows in "([0-2.,;-]{0,12}|[01],[01],2?,[0-3],[0-9]?|NaN,,\"\r)(\r?\n[01],[01],2,[0-3]?,[0-9]{0,2}){0,4}") {
            let series = Wanted { name: "h".into(), over: Some(Over { name: "t".into(), at: None }) };
            for wanted in [output("h"), series] {
                if let Ok(found) = read("any", &format!("a,b,k,t,h\n{rows}\n"), &[wanted]) {
                    for run in &found.runs {
                        prop_assert!(run.inputs.iter().all(|x| (0.0..=1.0).contains(x)));
                        prop_assert!(run.readings[0].values.iter().any(|y| y.is_finite()));
                    }
                }
            }
        }
    }
}
