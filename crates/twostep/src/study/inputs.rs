//! Sections about inputs: simulator, unknowns, conditions, constants and the design over them.

use std::path::Path;

use super::document::{Field, Node, Section};
use super::problem::found_and_repair;
use super::{Condition, Unknown};
use crate::error::Error;
use crate::prior::{Family, Marginal};
use crate::simulate::design::{self, Method};
use crate::simulate::{DesignSpec, Simulator, spelling_repair};
use crate::stream::Stream;
use crate::table::{Table, nearest};

/// Probability of a prior outside the range above which the author is told.
const MASS_OUTSIDE: f64 = 0.05;

/// Names that columns of draws and measurements have already.
const RESERVED: [&str; 10] =
    ["sigma_a", "sigma_i", "sigma_s", "sd", "output", "value", "weight", "setting", "experiment", "offset"];

/// Where paths of the study file start.
pub(super) const RELATIVE: &str = "relative paths start at the folder of the study file";

/// Names of the inputs that vary, whether or not the rest of their section is right.
pub(super) struct Names {
    pub(super) unknowns: Vec<String>,
    /// The coordinate of series, where there is one, is last.
    pub(super) conditions: Vec<String>,
    pub(super) has_coordinate: bool,
}

impl Names {
    /// Unknowns, then conditions: the surrogate's inputs.
    pub(super) fn inputs(&self) -> Vec<String> {
        self.unknowns.iter().chain(&self.conditions).cloned().collect()
    }
}

/// The document with misspelt names of inputs and outputs as the simulator spells them, where there are any.
///
/// The spelling is a problem; what is said elsewhere under the right name is none.
pub(super) fn respelled(root: &Section<'_>, node: &Node, model: Option<&dyn Simulator>) -> Option<Node> {
    let model = model?;
    let mut corrected = None;
    let inputs: &[&str] = &["unknowns", "conditions", "constants"];
    for (sections, known, what) in
        [(inputs, model.inputs(), "input"), (&["outputs"] as &[&str], model.outputs(), "output")]
    {
        let keys_of =
            |key: &&str| root.get(key).and_then(|field| field.open_section()).map_or(Vec::new(), |s| s.keys());
        let given: Vec<String> = sections.iter().flat_map(keys_of).collect();
        let mut absent = known.to_vec();
        absent.retain(|name| !given.iter().any(|other| other == name));
        for name in given.iter().filter(|name| !known.contains(&name.as_str()) && !RESERVED.contains(&name.as_str())) {
            let Some(meant) = nearest(name, &absent) else { continue };
            absent.retain(|other| *other != meant);
            let tree = corrected.get_or_insert_with(|| node.clone());
            for section in sections {
                let Some(entry) = tree.entry_mut(section).and_then(|entry| entry.node.entry_mut(name)) else {
                    continue;
                };
                let message = format!("the simulator has no {what} `{name}`");
                let (span, label) = (Some(entry.key_span.clone()), format!("unknown {what}"));
                root.problems.error(span, message, &label, spelling_repair(name, known));
                meant.clone_into(&mut entry.key);
            }
        }
    }
    corrected
}

/// Names of the varied inputs, checked against each other and against what the simulator takes.
pub(super) fn names(root: &Section<'_>, model: Option<&dyn Simulator>) -> Names {
    let section = |key| root.get(key).and_then(|field| field.open_section());
    let sections: Vec<Section<'_>> = ["unknowns", "conditions", "constants"].into_iter().filter_map(section).collect();
    let mut seen: Vec<Field<'_>> = Vec::new();
    for field in sections.iter().flat_map(Section::fields).chain(over(root)) {
        let refuse = |message: String, label: &str, help: String| {
            root.problems.error(Some(field.key_span.clone()), message, label, help);
        };
        if let Some(other) = seen.iter().find(|other| other.key == field.key) {
            let message = format!("`{}` is both {} and {}", field.key, other.path, field.path);
            refuse(message, "used twice", "an input is unknown, a condition or a constant: keep one".to_owned());
        } else if RESERVED.contains(&field.key) {
            refuse(
                format!("`{}` is a name of ours", field.key),
                "reserved",
                format!("rename it; reserved are {}", RESERVED.join(", ")),
            );
        } else if let Some(model) = model.filter(|model| !model.inputs().contains(&field.key)) {
            let message = format!("the simulator has no input `{}`", field.key);
            refuse(message, "unknown input", spelling_repair(field.key, model.inputs()));
        }
        seen.push(field);
    }
    let coordinate = over(root).map(|field| field.key.to_owned());
    if let Some(model) = model {
        let needed = model.inputs().iter().filter(|input| !model.defaults().iter().any(|(name, _)| name == *input));
        let missing = needed
            .copied()
            .filter(|input| !seen.iter().any(|f| f.key == *input) && coordinate.as_deref() != Some(input));
        let missing: Vec<&str> = missing.collect();
        if !missing.is_empty() {
            let message = format!("the simulator needs a value of {}", missing.join(", "));
            let help =
                "make each an unknown, a condition or a constant: [unknowns.NAME], [conditions.NAME], [constants]";
            let span = root.get("simulator").and_then(|field| field.open_section()).and_then(|s| s.get("builtin"));
            root.problems.error(
                span.map(|field| field.node.span.clone()),
                message,
                "inputs are missing",
                help.to_owned(),
            );
        }
    }
    let keys = |key| section(key).map_or(Vec::new(), |section| section.keys());
    let has_coordinate = coordinate.is_some();
    let conditions = keys("conditions").into_iter().chain(coordinate).collect();
    let names = Names { unknowns: keys("unknowns"), conditions, has_coordinate };
    if names.unknowns.is_empty() {
        root.refuse(
            "there is nothing to infer".to_owned(),
            "",
            "add [unknowns.NAME] with range = [lower, upper]".to_owned(),
        );
    }
    names
}

/// Two numbers, the lower one first.
fn ends(field: &Field<'_>) -> Option<(f64, f64)> {
    let ends = field.list("two numbers, [lower, upper]")?;
    let ends: Vec<f64> = ends.iter().map(Field::number).collect::<Option<_>>()?;
    let &[lower, upper] = ends.as_slice() else {
        let found = if ends.len() == 1 { "1 number was".to_owned() } else { format!("{} numbers were", ends.len()) };
        field.refuse(format!("{found} found"), "expected two numbers, [lower, upper]", None);
        return None;
    };
    if lower >= upper {
        let help = format!("write {} = [{}, {}]", field.key, upper, if lower > upper { lower } else { lower + 1.0 });
        field.refuse(format!("{lower} is not less than {upper}"), "expected [lower, upper]", help);
        return None;
    }
    if !(upper - lower).is_finite() {
        field.refuse("the range is wider than the largest number", "expected [lower, upper]", None);
        return None;
    }
    Some((lower, upper))
}

/// The first `over` of an output: coordinate and its range, as they stand in the file.
fn over<'d>(root: &Section<'d>) -> Option<Field<'d>> {
    let outputs = root.get("outputs")?.open_section()?;
    outputs.fields().find_map(|output| output.open_section()?.get("over")?.open_section()?.fields().next())
}

/// The coordinate of series. A study has one, and every `over` says the same of it.
pub(super) fn coordinate(root: &Section<'_>) -> Option<Condition> {
    let first = over(root)?;
    let range = ends(&first)?;
    let outputs = root.get("outputs")?.open_section()?;
    for output in outputs.fields() {
        let Some(own) = output.open_section().and_then(|section| section.get("over")) else { continue };
        let fields: Vec<Field<'_>> = own.open_section()?.fields().collect();
        let same = |field: &Field<'_>| field.key == first.key && ends(field) == Some(range);
        if fields.len() != 1 || !fields.iter().all(same) {
            let found = "series of one study have one coordinate with one range";
            let help = format!("write over = {{ {} = [{}, {}] }} for each of them", first.key, range.0, range.1);
            own.refuse(found, "expected the coordinate of the others", help);
            return None;
        }
    }
    Some(Condition { name: first.key.to_owned(), range, log: false, unit: None, coordinate: true })
}

/// Ends of the range and whether the scale is logarithmic.
fn range_and_scale(section: &Section<'_>) -> Option<((f64, f64), bool)> {
    let log = section.read("scale", false, |field| field.choice(&[("linear", false), ("log", true)]));
    let field = section.require("range", "write range = [lower, upper]")?;
    let (lower, upper) = ends(&field)?;
    if log && lower <= 0.0 {
        let help = "start the range above 0, or use scale = \"linear\"";
        field.refuse(
            format!("{lower} has no logarithm"),
            "expected positive numbers with scale = \"log\"",
            help.to_owned(),
        );
        return None;
    }
    Some(((lower, upper), log))
}

fn unit(section: &Section<'_>) -> Option<String> {
    section.read("unit", None, |field| field.text().map(|unit| Some(unit.to_owned())))
}

pub(super) fn unknowns(root: &Section<'_>) -> Vec<Unknown> {
    let section = root.get("unknowns").and_then(|field| field.open_section());
    section.iter().flat_map(Section::fields).filter_map(|field| unknown(&field)).collect()
}

fn unknown(field: &Field<'_>) -> Option<Unknown> {
    let section = field.section(&["range", "prior", "scale", "unit", "truncate", "per"])?;
    let prior_field = section.get("prior");
    let given = prior_field.as_ref().map(Field::prior);
    let truncate = section.read("truncate", true, Field::flag);
    let unit = unit(&section);
    let per_experiment = section.read("per", false, |field| field.choice(&[("study", false), ("experiment", true)]));
    let (range, log) = range_and_scale(&section)?;
    let (lower, upper) = range;
    let whole = match given {
        Some(prior) => prior?,
        None => {
            let family = if log { Family::LogUniform { lower, upper } } else { Family::Uniform { lower, upper } };
            or_refuse(section.get("range")?, Marginal::new(family))?
        }
    };
    let cut = or_refuse(prior_field.clone().unwrap_or_else(|| field.clone()), whole.truncated(lower, upper))?;
    let mass_outside = 1.0 - whole.mass_within(lower, upper);
    if let Some(prior_field) = prior_field.filter(|_| mass_outside > MASS_OUTSIDE) {
        let found = format!("{:.1} % of the prior lies outside the range [{lower}, {upper}]", 100.0 * mass_outside);
        let (label, help) = if truncate {
            ("cut off at the range", "widen the range and simulate there, or narrow the prior")
        } else {
            ("not cut off", "the surrogate extrapolates there: widen the range, or remove truncate = false")
        };
        prior_field.warn(found, label, help.to_owned());
    }
    let prior = if truncate { cut } else { whole };
    Some(Unknown { name: field.key.to_owned(), range, log, unit, prior, mass_outside, truncate, per_experiment })
}

fn or_refuse<T>(field: Field<'_>, result: Result<T, Error>) -> Option<T> {
    result
        .map_err(|error| {
            let (found, repair) = found_and_repair(error);
            field.refuse(found, "prior and range must overlap", repair);
        })
        .ok()
}

pub(super) fn conditions(root: &Section<'_>) -> Vec<Condition> {
    let section = root.get("conditions").and_then(|field| field.open_section());
    let condition = |field: Field<'_>| {
        let section = field.section(&["range", "scale", "unit"])?;
        let unit = unit(&section);
        let (range, log) = range_and_scale(&section)?;
        Some(Condition { name: field.key.to_owned(), range, log, unit, coordinate: false })
    };
    section.iter().flat_map(Section::fields).filter_map(condition).collect()
}

pub(super) fn constants(root: &Section<'_>) -> Vec<(String, f64)> {
    let section = root.get("constants").and_then(|field| field.open_section());
    let constant = |field: Field<'_>| Some((field.key.to_owned(), field.number()?));
    section.iter().flat_map(Section::fields).filter_map(constant).collect()
}

/// The design; its number of runs is the largest possible where it could not be read, and none where a table has the runs.
pub(super) fn design(
    root: &Section<'_>,
    folder: &Path,
    unknowns: &[Unknown],
    conditions: &[Condition],
    names: &Names,
    has_table: bool,
) -> DesignSpec {
    let mut spec = DesignSpec { method: Method::Sobol, runs: usize::MAX, points: None };
    let help = "add [design] with runs = the number of simulator runs, or points = \"design.csv\"";
    if has_table && root.get("design").is_none() {
        return DesignSpec { runs: 0, ..spec };
    }
    let section = root.require("design", help).and_then(|field| field.section(&["method", "runs", "points"]));
    let Some(section) = section else {
        return spec;
    };
    let methods = Method::ALL.map(|method| (method.name(), method));
    spec.method = section.read("method", Method::Sobol, |field| field.choice(&methods));
    if let Some(field) = section.get("points") {
        for other in ["runs", "method"].iter().filter_map(|key| section.get(key)) {
            let help = format!("keep points or {}", other.key);
            other.refuse("the points are in a file already", "not beside points", help);
        }
        if let Some(file) = field.text() {
            let path = folder.join(file);
            let ranges = unknowns.iter().map(|unknown| (&unknown.name, unknown.range));
            let varied = conditions.iter().filter(|condition| !condition.coordinate);
            let ranges: Vec<_> = ranges.chain(varied.map(|c| (&c.name, c.range))).collect();
            match read_points(&path, &ranges) {
                Ok(runs) => spec.runs = runs,
                Err(error) => {
                    let label = "expected a CSV file with a column per unknown and condition";
                    field.refuse(error, label, RELATIVE.to_owned());
                }
            }
            spec.points = Some(path);
        }
    } else if let Some(field) = section.require("runs", help)
        && let Some(runs) = field.count()
    {
        spec.runs = runs;
        let dim = names.unknowns.len() + conditions.iter().filter(|condition| !condition.coordinate).count();
        // Only a grid cares how many there are; one point shows whether a sequence has enough inputs.
        let tried = if spec.method == Method::Grid { runs } else { 1 };
        if dim > 0
            && let Err(error) = design::unit_points(spec.method, tried, dim, Stream::root(0))
        {
            let (found, repair) = found_and_repair(error);
            field.refuse(found, &format!("for {dim} inputs by {}", spec.method), repair);
        }
    }
    spec
}

/// The number of points in a file that holds every input within its range.
fn read_points(path: &Path, ranges: &[(&String, (f64, f64))]) -> Result<usize, Error> {
    let table = Table::read(path)?;
    for (name, (lower, upper)) in ranges {
        let values = table.numbers(name)?;
        if let Some(row) = values.iter().position(|value| !(*lower..=*upper).contains(value)) {
            let found = format!("{} lies outside the range [{lower}, {upper}]", values[row]);
            return Err(Error::invalid(table.place(row, name), found, "widen the range or move the point"));
        }
    }
    Ok(table.n_rows())
}
