//! The section about the simulator: what is run, how, and how its outputs are read.

use super::document::{Field, Section, Value};
use super::inputs::{Names, RELATIVE};
use super::problem::found_and_repair;
use super::{Condition, Host, Output, Unknown};
use crate::error::Error;
use crate::simulate::command::{CommandSpec, Keep, ParamsFormat, ResultsSpec, Row, Which};
use crate::simulate::finished::{TableInput, read_runs};
use crate::simulate::{
    OnFailure, OutputAt, PythonFunction, PythonSpec, SharedFunction, Simulator, SimulatorKind, SimulatorSpec,
    UmbridgeSpec, Wanted, builtin, named_interpreter, spelling_repair,
};
use std::path::Path;
use std::time::Duration;

/// Keys that every simulator has.
const COMMON: [&str; 1] = ["table"];
/// Keys of what is run outside this process.
const EXTERNAL: [&str; 7] = ["timeout", "concurrency", "on_failure", "attempts", "wait", "max_failed", "partial"];
/// Keys of each kind of simulator, the first of which chooses it.
const KINDS: [(&str, &[&str]); 4] = [
    ("builtin", &["sigma_s"]),
    ("command", &["retry_command", "params_format", "templates", "copy", "link", "keep", "environment"]),
    ("python", &["interpreter"]),
    ("umbridge", &["model", "config", "inputs"]),
];

/// Share of failed runs with which the surrogate is trained, unless the study says otherwise.
const MAX_FAILED: f64 = 0.2;
/// Attempts and time between them, with on_failure = "retry".
const ATTEMPTS: usize = 3;
const WAIT: Duration = Duration::from_secs(1);

/// The simulator without what is said of its outputs, and the built-in one.
pub(super) fn simulator(root: &Section<'_>, folder: &Path, host: &Host) -> (SimulatorSpec, Option<Box<dyn Simulator>>) {
    let mut spec = SimulatorSpec {
        kind: SimulatorKind::Elsewhere,
        table: None,
        sigma_s: 0.0,
        concurrency: 1,
        on_failure: OnFailure::Continue,
        max_failed: MAX_FAILED,
        keep_partial: true,
    };
    let help = format!(
        "add [simulator] with command = [\"./model\", \"{{params}}\", \"{{results}}\"], python = \"model.py:run\", \
         umbridge = \"http://127.0.0.1:4242\", table = \"runs.csv\", or builtin = one of {}",
        builtin::NAMES.join(", ")
    );
    let Some(field) = root.require("simulator", &help) else { return (spec, None) };
    let all: Vec<&str> =
        KINDS.iter().flat_map(|(kind, keys)| [*kind].into_iter().chain(keys.iter().copied())).collect();
    let Some(section) = field.section(&[&all[..], &COMMON, &EXTERNAL].concat()) else { return (spec, None) };
    spec.table = section.read("table", None, |field| Some(Some(folder.join(field.text()?))));

    let given: Vec<(&str, Field<'_>)> =
        KINDS.iter().filter_map(|(kind, _)| Some((*kind, section.get(kind)?))).collect();
    if let [_, (_, other), ..] = &given[..] {
        let found = "a study has one simulator";
        root.problems.error(Some(other.key_span.clone()), found.to_owned(), "the second one", "keep one".to_owned());
        return (spec, None);
    }
    let kind = given.first().map(|(kind, _)| *kind);
    if kind.is_none() && spec.table.is_none() {
        section.refuse("nothing is named that could be run".to_owned(), "needs a simulator", help);
    }
    for (owner, keys) in KINDS.iter().filter(|(owner, _)| kind != Some(*owner)) {
        for field in keys.iter().filter_map(|key| section.get(key)) {
            let found = format!("only a simulator by {owner} has it");
            field.refuse(found, "of no use here", format!("remove it, or add {owner}"));
        }
    }
    if !matches!(kind, Some("command" | "python" | "umbridge")) {
        for field in
            EXTERNAL.iter().filter_map(|key| section.get(key)).filter(|f| !["max_failed", "partial"].contains(&f.key))
        {
            let found = "only a simulator by command, python or umbridge has it";
            field.refuse(found, "of no use here", "remove it".to_owned());
        }
    }
    spec.concurrency = section.read("concurrency", 1, |field| field.whole(1, 10_000, None));
    spec.max_failed = section.read("max_failed", MAX_FAILED, |field| share(field));
    spec.keep_partial = section.read("partial", true, |field| field.choice(&[("keep", true), ("fail", false)]));
    spec.on_failure = on_failure(&section);
    let timeout = section.read("timeout", None, |field| duration(field).map(Some));
    let mut model = None;
    match given.first() {
        Some(("builtin", field)) => {
            spec.sigma_s = section.read("sigma_s", 0.0, Field::not_negative);
            if let Some(table) = section.get("table") {
                let help = "keep one of them: a built-in simulator makes its runs at once";
                table.refuse("a built-in simulator needs no table of runs", "beside builtin", help.to_owned());
            }
            model = builtin_model(field);
            let name = model.as_ref().map_or_else(String::new, |(name, _)| name.clone());
            spec.kind = SimulatorKind::Builtin(name);
        }
        Some(("command", field)) => {
            spec.kind = command(field, &section, folder, timeout)
                .map_or(SimulatorKind::Elsewhere, |c| SimulatorKind::Command(Box::new(c)));
        }
        Some(("python", field)) => {
            spec.kind = python(field, &section, folder, timeout, host)
                .map_or(SimulatorKind::Elsewhere, SimulatorKind::Function);
        }
        Some((_, field)) => {
            spec.kind = umbridge(field, &section, timeout)
                .map_or(SimulatorKind::Elsewhere, |server| SimulatorKind::Umbridge(Box::new(server)));
        }
        None => {}
    }
    (spec, model.map(|(_, model)| model))
}

fn builtin_model(field: &Field<'_>) -> Option<(String, Box<dyn Simulator>)> {
    let name = field.text()?;
    match builtin::by_name(name) {
        Ok(model) => Some((name.to_owned(), model)),
        Err(error) => {
            let (found, repair) = found_and_repair(error);
            field.refuse(found, "expected a built-in simulator", repair);
            None
        }
    }
}

fn share(field: &Field<'_>) -> Option<f64> {
    let share = field.number()?;
    if !(0.0..1.0).contains(&share) {
        field.refuse(format!("{share} is no share of the runs"), "expected a number from 0 to below 1", None);
        return None;
    }
    Some(share)
}

fn on_failure(section: &Section<'_>) -> OnFailure {
    let chosen = section.read("on_failure", "continue", |field| {
        field.choice(&[("continue", "continue"), ("retry", "retry"), ("abort", "abort")])
    });
    let attempts = section.read("attempts", ATTEMPTS, |field| field.whole(2, 1000, None));
    let wait = section.read("wait", WAIT, duration);
    if chosen != "retry" {
        for field in ["attempts", "wait", "retry_command"].iter().filter_map(|key| section.get(key)) {
            let help = "write on_failure = \"retry\", or remove it";
            field.refuse("nothing is tried again", "only with on_failure = \"retry\"", help.to_owned());
        }
    }
    match chosen {
        "retry" => OnFailure::Retry { attempts, wait },
        "abort" => OnFailure::Abort,
        _ => OnFailure::Continue,
    }
}

/// A number of seconds, or a text such as `8h`, `90s`, `1.5d`.
fn duration(field: &Field<'_>) -> Option<Duration> {
    // Longer words first: each is tried as an ending.
    const UNITS: [(&str, f64); 14] = [
        ("seconds", 1.0),
        ("minutes", 60.0),
        ("minute", 60.0),
        ("hours", 3600.0),
        ("hour", 3600.0),
        ("days", 86400.0),
        ("day", 86400.0),
        ("sec", 1.0),
        ("min", 60.0),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
        ("d", 86400.0),
    ];
    let seconds = if field.is_text() {
        let text = field.text()?.trim();
        UNITS.iter().find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.trim().parse::<f64>().ok()? * factor))
    } else {
        Some(field.number()?)
    };
    let whole = seconds.filter(|seconds| *seconds > 0.0).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    if whole.is_none() {
        let help = "for example timeout = \"8h\", \"30min\", \"90s\", or a number of seconds";
        field.refuse("this is no length of time", "expected a length of time", help.to_owned());
    }
    whole
}

fn texts(field: &Field<'_>) -> Option<Vec<String>> {
    field.list("texts")?.iter().map(|item| item.text().map(str::to_owned)).collect()
}

fn command(field: &Field<'_>, section: &Section<'_>, folder: &Path, timeout: Option<Duration>) -> Option<CommandSpec> {
    if field.is_text() {
        let words: Vec<String> = field.text()?.split_whitespace().map(|word| format!("\"{word}\"")).collect();
        let help = format!("write command = [{}]: no shell reads it", words.join(", "));
        field.refuse("a text was found", "expected a list of texts", help);
        return None;
    }
    let formats = [
        ("json", ParamsFormat::Json),
        ("dakota", ParamsFormat::Dakota),
        ("aprepro", ParamsFormat::Aprepro),
        ("csv", ParamsFormat::Csv),
    ];
    let paths =
        |key: &str| section.read(key, Vec::new(), |field| Some(texts(field)?.into_iter().map(Into::into).collect()));
    let pairs = |key: &str| -> Vec<(String, String)> {
        section.read(key, Vec::new(), |field| {
            let pair = |field: Field<'_>| Some((field.key.to_owned(), field.text()?.to_owned()));
            field.open_section()?.fields().map(pair).collect()
        })
    };
    Some(CommandSpec {
        argv: texts(field)?,
        retry_argv: section.read("retry_command", None, |field| texts(field).map(Some)),
        params_format: section.read("params_format", ParamsFormat::Json, |field| field.choice(&formats)),
        templates: pairs("templates").into_iter().map(|(file, template)| (file, template.into())).collect(),
        copy: paths("copy"),
        link: paths("link"),
        keep: section.read("keep", Keep::Failed, |field| {
            field.choice(&[("failed", Keep::Failed), ("all", Keep::All), ("none", Keep::None)])
        }),
        timeout,
        environment: pairs("environment"),
        results: Vec::new(),
        folder: std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf()),
    })
}

fn umbridge(field: &Field<'_>, section: &Section<'_>, timeout: Option<Duration>) -> Option<UmbridgeSpec> {
    let config = section.read("config", serde_json::json!({}), |field| {
        field.open_section()?;
        Some(as_json(&field.node.value))
    });
    let inputs = section.read("inputs", None, |field| {
        let vectors = field.list("lists of names, one for each vector")?;
        vectors.iter().map(texts).collect::<Option<Vec<_>>>().map(Some)
    });
    Some(UmbridgeSpec {
        url: field.text()?.to_owned(),
        model: section.read("model", None, |field| field.text().map(|name| Some(name.to_owned()))),
        config,
        inputs,
        outputs: Vec::new(),
        timeout,
    })
}

/// The function that the calling program brings, or that of a Python file.
fn python(
    field: &Field<'_>,
    section: &Section<'_>,
    folder: &Path,
    timeout: Option<Duration>,
    host: &Host,
) -> Option<SharedFunction> {
    let text = field.text()?;
    if let Some(function) = &host.simulator {
        for field in ["interpreter", "timeout"].iter().filter_map(|key| section.get(key)) {
            let help = "remove it, or give the simulator as \"model.py:run\", which runs in processes of its own";
            field.refuse("the function runs inside the calling program", "not for a function", help.to_owned());
        }
        return Some(function.clone());
    }
    // The folder of a file that is named without one is empty.
    let folder = std::path::absolute(Path::new(".").join(folder)).unwrap_or_else(|_| folder.to_path_buf());
    let interpreter = section.read("interpreter", host.interpreter.clone(), |field| {
        let name = field.text()?;
        let found = named_interpreter(name, &folder);
        if found.is_none() {
            let help = "write the path of a Python from the study file's folder, as \".venv/bin/python\", or the name of one on \
                        the search path, as \"python3.12\"";
            field.refuse(format!("there is no program {name}"), "expected a Python interpreter", help.to_owned());
        }
        Some(found)
    });
    let expected = "expected \"FILE.py:FUNCTION\"";
    let Some((file, function)) = text.rsplit_once(':').filter(|(file, _)| !file.is_empty()) else {
        let file = if text.ends_with(".py") { text } else { "model.py" };
        let help = format!("write python = \"{file}:run\" for the function run of {file}");
        field.refuse("no function is named", expected, help);
        return None;
    };
    if !is_python_name(function) {
        let help = "name a function that stands in the file by itself, not within a class or another function";
        field.refuse(format!("`{function}` is no name of a function"), expected, help.to_owned());
        return None;
    }
    let path = folder.join(file);
    if path.extension().is_none_or(|extension| extension != "py") {
        let help = match folder.join(format!("{}.py", file.replace('.', "/"))) {
            other if other.is_file() => format!("write python = \"{}.py:{function}\"", file.replace('.', "/")),
            _ => "name the file of the function, which ends in .py".to_owned(),
        };
        field.refuse(format!("{file} is no Python file"), expected, help);
        return None;
    }
    let source = match std::fs::read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(problem) => {
            let found = match path.exists() {
                true => format!("{} cannot be read: {problem}", path.display()),
                false => format!("there is no file {}", path.display()),
            };
            field.refuse(found, expected, RELATIVE.to_owned());
            return None;
        }
    };
    if let Some(repair) = lacks_function(&source, function) {
        field.refuse(format!("{file} has no function {function}"), expected, repair);
        return None;
    }
    let function = function.to_owned();
    let file = path.canonicalize().unwrap_or(path);
    Some(SharedFunction::new(PythonFunction::new(PythonSpec { file, function, interpreter, timeout, folder })))
}

fn is_python_name(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// What to do about a source text that nowhere gives a name to a function or value; none where it does, as far as a look at
/// its lines can tell: Python itself has the last word.
fn lacks_function(source: &str, name: &str) -> Option<String> {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let has = |text: &str| text.split(|c| !is_of_name(c)).any(|word| word == name);
    let mut defined = Vec::new();
    let mut in_import = false;
    for line in source.lines() {
        let code = line.split('#').next().unwrap_or_default();
        let bare = code.trim_start();
        let bare = bare.strip_prefix("async ").map_or(bare, str::trim_start);
        if let Some(rest) = bare.strip_prefix("def ").or_else(|| bare.strip_prefix("class ")) {
            let found = rest.trim_start().split(|c| !is_of_name(c)).next().unwrap_or_default();
            // What is indented may stand below an `if`.
            if found == name {
                return None;
            }
            if !code.starts_with([' ', '\t']) {
                defined.push(found);
            }
            continue;
        }
        in_import |= bare.starts_with("from ") || bare.starts_with("import ");
        let target = bare.split_once('=').map_or("", |(target, _)| target).split(':').next().unwrap_or_default();
        let is_assigned = target.split(',').any(|part| part.trim() == name);
        if is_assigned || in_import && (has(bare) || bare.contains('*')) {
            return None;
        }
        // An import goes on as long as its brackets are open.
        in_import &=
            (code.contains('(') || !bare.starts_with("from ")) && !code.contains(')') && !bare.starts_with("import ");
    }
    Some(match defined[..] {
        [] => format!("write `def {name}(...):` in it, with the study's inputs as its arguments"),
        _ => spelling_repair(name, &defined),
    })
}

/// A value as JSON.
fn as_json(value: &Value) -> serde_json::Value {
    use serde_json::{Value as Json, json};
    match value {
        Value::Text(text) => json!(text),
        Value::Integer(number) => i64::try_from(*number).map_or_else(|_| json!(*number as f64), |number| json!(number)),
        Value::Float(number) => json!(number),
        Value::Boolean(flag) => json!(flag),
        Value::Date => Json::Null,
        Value::List(items) => Json::Array(items.iter().map(|item| as_json(&item.value)).collect()),
        Value::Table(entries) => {
            Json::Object(entries.iter().map(|entry| (entry.key.clone(), as_json(&entry.node.value))).collect())
        }
    }
}

/// Reads how each output is had from a run, and checks all that shows before the first one.
pub(super) fn couple(
    root: &Section<'_>,
    spec: &mut SimulatorSpec,
    names: &Names,
    unknowns: &[Unknown],
    conditions: &[Condition],
    constants: &[(String, f64)],
    outputs: Option<&[Output]>,
) {
    let Some(section) = root.get("simulator").and_then(|field| field.open_section()) else { return };
    let of_output = root.get("outputs").and_then(|field| field.open_section());
    let result = |name: &str| of_output.as_ref()?.get(name)?.open_section()?.get("results");
    let Some(outputs) = outputs else { return };
    let wanted: Vec<Wanted> =
        outputs.iter().map(|output| Wanted { name: output.name.clone(), over: output.over.clone() }).collect();
    let constants_names = constants.iter().map(|(name, _)| name.clone());
    let mut inputs = names.inputs();
    inputs.truncate(inputs.len() - usize::from(names.has_coordinate));
    let all_inputs: Vec<String> = inputs.iter().cloned().chain(constants_names).collect();
    let is_misplaced = |output: &Output| {
        if let Some(field) = result(&output.name) {
            let help = "remove it: columns of a table and outputs of a built-in simulator or a function have the outputs' names";
            field.refuse("there is nothing to read it from", "only with command or umbridge", help.to_owned());
        }
    };
    match &mut spec.kind {
        SimulatorKind::Builtin(_) | SimulatorKind::Function(_) | SimulatorKind::Elsewhere => {
            outputs.iter().for_each(is_misplaced)
        }
        SimulatorKind::Command(command) => {
            command.results = wanted.iter().map(|output| results(result(&output.name))).collect();
            if root.problems.has_errors() {
                return;
            }
            for problem in command.check(&wanted, &all_inputs) {
                refuse(root, &section, problem);
            }
        }
        SimulatorKind::Umbridge(server) => {
            let places: Vec<Option<OutputAt>> = wanted.iter().map(|output| place(&result(&output.name)?)).collect();
            match places.iter().filter(|place| place.is_some()).count() {
                0 => {}
                n if n == places.len() => server.outputs = places.into_iter().flatten().collect(),
                _ => section.refuse(
                    "some outputs say where they stand, others not".to_owned(),
                    "needs all or none",
                    "write results = { vector = 0, entry = 0 } for every output".to_owned(),
                ),
            }
        }
    }
    if let (Some(path), Some(field)) = (&spec.table, section.get("table")) {
        if !path.is_file() {
            if root.get("design").is_some() {
                let help = "`twostep design --export FILE` writes the runs to be made; save their results there";
                field.warn(format!("{} is not there yet", path.display()), "no finished runs", help.to_owned());
            } else {
                field.refuse(
                    format!("there is no file {}", path.display()),
                    "expected a table of runs",
                    RELATIVE.to_owned(),
                );
            }
            return;
        }
        let ranges = unknowns.iter().map(|unknown| (&unknown.name, unknown.range));
        let varied = conditions.iter().filter(|condition| !condition.coordinate);
        let ranges = ranges.chain(varied.map(|condition| (&condition.name, condition.range)));
        let table_inputs: Vec<TableInput> =
            ranges.map(|(name, range)| TableInput { name: name.clone(), range }).collect();
        match read_runs(path, &table_inputs, constants, &wanted) {
            Err(error) => {
                let help = "columns have the names of the study's inputs and outputs";
                field.refuse(error, "expected a column for each input and output", help.to_owned());
            }
            Ok(found) => {
                for warning in found.warnings {
                    field.warn(warning, "of this table", None);
                }
            }
        }
    }
}

/// A problem of the command at its own key.
fn refuse(root: &Section<'_>, section: &Section<'_>, problem: Error) {
    let key = match &problem {
        Error::Invalid { place, .. } => place.split('.').next_back().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    let output = match &problem {
        Error::Invalid { place, .. } => place.strip_prefix("outputs.").and_then(|rest| rest.split('.').next()),
        _ => None,
    };
    let of_output = output.and_then(|name| root.get("outputs")?.open_section()?.get(name));
    let field = of_output.or_else(|| section.get(&key)).or_else(|| section.get("command"));
    let place = match &problem {
        Error::Invalid { place, .. } => place.clone(),
        _ => "simulator".to_owned(),
    };
    let (found, repair) = found_and_repair(problem);
    let span = field.map(|field| field.node.span.clone());
    root.problems.error(span, format!("{place}: {found}"), "cannot be run", repair);
}

/// How an output is read from the files of a run.
fn results(field: Option<Field<'_>>) -> ResultsSpec {
    let read = |field: Field<'_>| {
        let keys = ["file", "csv", "json", "column", "row", "coordinate", "path", "value", "regex", "match"];
        let section = field.section(&keys)?;
        let text = |key: &str| section.get(key).and_then(|field| field.text().map(str::to_owned));
        let of = |own: &[&str]| {
            for key in keys.iter().filter(|key| !own.contains(key)) {
                if let Some(other) = section.get(key) {
                    other.refuse("does not go with the others", "not here", format!("keep {}", own.join(", ")));
                }
            }
        };
        if section.get("csv").is_some() {
            of(&["csv", "column", "row", "coordinate"]);
            let row = section.read("row", None, |field| match field.is_text() {
                true => field.choice(&[("last", Some(Row::Last))]),
                false => field.whole(1, usize::MAX, None).map(|n| Some(Row::Number(n))),
            });
            let column = section.require("column", "write column = \"NAME\"")?.text()?.to_owned();
            return Some(ResultsSpec::Csv { file: text("csv"), column, row, coordinate: text("coordinate") });
        }
        if section.get("json").is_some() {
            of(&["json", "path", "coordinate"]);
            let path = section.require("path", "write path = \"a.b[3]\"")?.text()?.to_owned();
            return Some(ResultsSpec::Json { file: text("json"), path, coordinate: text("coordinate") });
        }
        if section.get("regex").is_some() {
            of(&["file", "regex", "match"]);
            let which = section.read("match", Which::default(), |field| {
                field.choice(&[("first", Which::First), ("last", Which::Last)])
            });
            return Some(ResultsSpec::Regex { file: text("file"), regex: text("regex")?, which });
        }
        of(&["file", "value"]);
        let help = "write value = 1 for the first number of the file, or csv, json or regex";
        let value = section.require("value", help)?.count()?;
        Some(ResultsSpec::Value { file: text("file"), value })
    };
    field.and_then(read).unwrap_or(ResultsSpec::Default)
}

/// Where an output stands in what a UM-Bridge model gives.
fn place(field: &Field<'_>) -> Option<OutputAt> {
    let section = field.section(&["vector", "entry"])?;
    let number = |field: &Field<'_>| field.whole(0, usize::MAX, None);
    Some(OutputAt {
        vector: section.read("vector", 0, number),
        entry: section.read("entry", None, |field| number(field).map(Some)),
    })
}
