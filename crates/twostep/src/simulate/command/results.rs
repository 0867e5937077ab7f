//! Files of a finished run to values of its outputs.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::{RESULTS_FILE, ResultsSpec, Row, Which};
use crate::simulate::{Over, Reading, Wanted};
use crate::table::{Table, counted, foreign_number};

/// Reads every output; an error says in words what is wrong.
pub(super) fn read(specs: &[ResultsSpec], folder: &Path, outputs: &[Wanted]) -> Result<Vec<Reading>, String> {
    if specs.len() != outputs.len() {
        return Err(format!("there are {} ways to read {}", specs.len(), counted(outputs.len(), "output")));
    }
    let mut files = Files::new(folder);
    // Where the numbers of an output begin among those of all outputs that are read by default.
    let mut first = 1;
    let mut out = Vec::with_capacity(outputs.len());
    for (spec, output) in specs.iter().zip(outputs) {
        let reading = match spec {
            ResultsSpec::Default => {
                let reading = default(&mut files, spec.file(), output, first);
                first += output.over.as_ref().and_then(|over| over.at.as_ref()).map_or(1, Vec::len);
                reading
            }
            _ => one(&mut files, spec, output),
        };
        out.push(reading.map_err(|problem| format!("{}: {problem}", output.name))?);
    }
    // Among more numbers than are wanted, it would be a guess which are meant.
    if let Some(numbers) = files.numbers.get(RESULTS_FILE)
        && specs.contains(&ResultsSpec::Default)
        && numbers.len() >= first
    {
        let found = counted(numbers.len(), "number");
        return Err(format!("{RESULTS_FILE} has {found} where the outputs need {}; say which are read", first - 1));
    }
    Ok(out)
}

/// The files of one run, each read once.
struct Files<'a> {
    folder: &'a Path,
    texts: HashMap<String, String>,
    numbers: HashMap<String, Vec<f64>>,
    tables: HashMap<String, Table>,
    documents: HashMap<String, Value>,
}

impl<'a> Files<'a> {
    fn new(folder: &'a Path) -> Self {
        Self {
            folder,
            texts: HashMap::new(),
            numbers: HashMap::new(),
            tables: HashMap::new(),
            documents: HashMap::new(),
        }
    }

    fn text(&mut self, file: &str) -> Result<&str, String> {
        cached(&mut self.texts, file, || load(self.folder, file)).map(String::as_str)
    }

    /// All numbers of a file, those not finite included; words that are none are passed over.
    fn numbers(&mut self, file: &str) -> Result<&[f64], String> {
        if !self.numbers.contains_key(file) {
            let text = self.text(file)?;
            if file == RESULTS_FILE
                && let Some(line) = text.lines().map(str::trim).find(|line| !line.is_empty())
                && line.get(..4).is_some_and(|word| word.eq_ignore_ascii_case("fail"))
            {
                return Err(format!("{file} says that the run failed: {}", shortened(line)));
            }
            let numbers = text.split_whitespace().filter_map(number_of_word).collect();
            self.numbers.insert(file.to_owned(), numbers);
        }
        Ok(&self.numbers[file])
    }

    fn table(&mut self, file: &str) -> Result<&Table, String> {
        cached(&mut self.tables, file, || {
            let text = load(self.folder, file)?;
            Table::parse_foreign(text.as_bytes(), file).map_err(|problem| problem.to_string())
        })
    }

    fn document(&mut self, file: &str) -> Result<&Value, String> {
        cached(&mut self.documents, file, || {
            let text = load(self.folder, file)?;
            let parsed = serde_json::from_str(&text).or_else(|problem| {
                // Python writes what is not finite as words that JSON does not have.
                serde_json::from_str(&with_quoted_words(&text)).map_err(|_| problem)
            });
            parsed.map_err(|problem| format!("{file} is not JSON: {problem}"))
        })
    }
}

fn cached<'m, T>(
    map: &'m mut HashMap<String, T>,
    file: &str,
    make: impl FnOnce() -> Result<T, String>,
) -> Result<&'m T, String> {
    if !map.contains_key(file) {
        map.insert(file.to_owned(), make()?);
    }
    Ok(&map[file])
}

fn load(folder: &Path, file: &str) -> Result<String, String> {
    let bytes = fs::read(folder.join(file)).map_err(|problem| match problem.kind() {
        std::io::ErrorKind::NotFound => format!("the command wrote no {file}"),
        _ => format!("{file} cannot be read: {problem}"),
    })?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(format!("{file} is empty"));
    }
    // A sign of another encoding may stand in a comment or unit: only numbers and names matter.
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned())
}

/// The number that a word is, NaN if it stands for one that is missing; none for a label.
fn number_of_word(word: &str) -> Option<f64> {
    let word = word.trim_end_matches([',', ';']);
    // Fortran writes stars where a number does not fit: passing over them would shift all others.
    let is_overflow = word.len() > 1 && word.bytes().all(|byte| byte == b'*');
    foreign_number(word).or_else(|| (is_overflow || is_missing(word)).then_some(f64::NAN))
}

/// Whether a word or cell says that there is no value.
fn is_missing(text: &str) -> bool {
    ["", "na", "n/a", "null"].iter().any(|missing| text.eq_ignore_ascii_case(missing))
}

/// The default of `output`, whose numbers begin at the one of number `first`.
fn default(files: &mut Files, file: &str, output: &Wanted, first: usize) -> Result<Reading, String> {
    let text = files.text(file)?;
    if text.trim_start().starts_with('{') {
        let path = [Step::Key(output.name.clone())];
        return json(files, file, &path, None, output);
    }
    // A broken number among labels would shift all others.
    let looks_like_number = |word: &&str| {
        let word = word.strip_prefix(['+', '-', '.']).unwrap_or(word);
        word.starts_with(|c: char| c.is_ascii_digit())
    };
    let broken = text.split_whitespace().filter(looks_like_number).find(|word| number_of_word(word).is_none());
    if let Some(word) = broken {
        return Err(format!("`{}` in {file} is not a number", shortened(word)));
    }
    let count = match &output.over {
        Some(Over { at: Some(at), .. }) => at.len(),
        Some(Over { at: None, name }) => return Err(unknown_coordinates(file, name)),
        None => 1,
    };
    let numbers = files.numbers(file)?;
    let end = (first - 1).saturating_add(count).min(numbers.len());
    let values = numbers.get(first - 1..end).unwrap_or_default().to_vec();
    if values.is_empty() {
        return Err(too_short(file, numbers.len(), first));
    }
    assembled(values, None, output, file)
}

fn one(files: &mut Files, spec: &ResultsSpec, output: &Wanted) -> Result<Reading, String> {
    let file = spec.file();
    match spec {
        ResultsSpec::Default => default(files, file, output, 1),
        ResultsSpec::Value { value, .. } => {
            let numbers = files.numbers(file)?;
            let Some(values) = value.checked_sub(1).and_then(|from| numbers.get(from..)).filter(|v| !v.is_empty())
            else {
                return Err(too_short(file, numbers.len(), *value));
            };
            let values = if output.over.is_some() { values } else { &values[..1] };
            assembled(values.to_vec(), None, output, file)
        }
        ResultsSpec::Csv { column, row, coordinate, .. } => {
            csv(files.table(file)?, column, *row, coordinate.as_deref(), output)
        }
        ResultsSpec::Json { path, coordinate, .. } => {
            let coordinate = coordinate.as_deref().map(parse_path).transpose()?;
            json(files, file, &parse_path(path)?, coordinate.as_deref(), output)
        }
        ResultsSpec::Regex { regex, which, .. } => {
            let expression = compile(regex)?;
            let text = files.text(file)?;
            let matches = || expression.captures_iter(text).filter_map(|captures| captures.get(1));
            let number = |found: &str| match foreign_number(found) {
                Some(number) => Ok(number),
                None if is_missing(found.trim()) => Ok(f64::NAN),
                None => Err(format!("`{}`, which `{regex}` finds in {file}, is not a number", shortened(found))),
            };
            let found: Vec<&str> = match (&output.over, which) {
                (Some(_), _) => matches().map(|found| found.as_str()).collect(),
                (None, Which::First) => matches().next().into_iter().map(|found| found.as_str()).collect(),
                (None, Which::Last) => matches().last().into_iter().map(|found| found.as_str()).collect(),
            };
            if found.is_empty() {
                return Err(format!("`{regex}` matches nothing in {file}"));
            }
            assembled(found.into_iter().map(number).collect::<Result<_, _>>()?, None, output, file)
        }
    }
}

/// A regular expression for files of many lines; an error says what is wrong with it.
pub(super) fn compile(regex: &str) -> Result<Regex, String> {
    let expression = RegexBuilder::new(regex).multi_line(true).crlf(true).build();
    let expression = expression.map_err(|problem| {
        // The lines above the last draw a picture.
        let problem = problem.to_string();
        let problem = problem.lines().last().unwrap_or_default().trim_start_matches("error: ");
        format!("`{regex}` is not a regular expression: {problem}")
    })?;
    match expression.captures_len() - 1 {
        1 => Ok(expression),
        groups => Err(format!("`{regex}` has {} where the number is to be one", counted(groups, "group"))),
    }
}

fn csv(
    table: &Table,
    column: &str,
    row: Option<Row>,
    coordinate: Option<&str>,
    output: &Wanted,
) -> Result<Reading, String> {
    let texts = table.texts(column).map_err(|problem| problem.to_string())?;
    let number = |name: &str, row: usize, text: &str| match foreign_number(text) {
        Some(number) => Ok(number),
        None if is_missing(text) => Ok(f64::NAN),
        None => Err(format!("{}: `{}` is not a number", table.place(row, name), shortened(text))),
    };
    let numbers = |name: &str, texts: &[String]| {
        texts.iter().enumerate().map(|(row, text)| number(name, row, text)).collect::<Result<Vec<f64>, String>>()
    };
    let Some(over) = &output.over else {
        let file = table.source();
        let row = match row {
            Some(Row::Last) => texts.len(),
            Some(Row::Number(number)) if (1..=texts.len()).contains(&number) => number,
            Some(Row::Number(number)) => {
                return Err(format!("{file} has {}, and no row {number}", counted(texts.len(), "row")));
            }
            None if texts.len() == 1 => 1,
            None => return Err(format!("{file} has {} rows; say which row to read", texts.len())),
        };
        let value = number(column, row - 1, &texts[row - 1])?;
        return assembled(vec![value], None, output, &table.place(row - 1, column));
    };
    let coordinate = coordinate.or_else(|| table.has(&over.name).then_some(&over.name));
    let coordinates = coordinate.map(|name| {
        let texts = table.texts(name).map_err(|problem| problem.to_string())?;
        numbers(name, &texts)
    });
    assembled(numbers(column, &texts)?, coordinates.transpose()?, output, table.source())
}

/// A step of a path into a JSON file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

/// The steps of `a.b[3]["c.d"]`; an error says what is wrong with it.
pub(super) fn parse_path(path: &str) -> Result<Vec<Step>, String> {
    let wrong = |found: &str| format!("`{path}` is not a path such as a.b[3].c: {found}");
    let (mut out, mut rest) = (Vec::new(), path);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            if let Some(quoted) = after.strip_prefix('"') {
                let (key, after) = quoted.split_once("\"]").ok_or_else(|| wrong("a \" has no partner"))?;
                out.push(Step::Key(key.to_owned()));
                rest = after;
            } else {
                let (index, after) = after.split_once(']').ok_or_else(|| wrong("a [ has no partner"))?;
                let index = index.trim().parse().map_err(|_| wrong(&format!("`{index}` is not an index")))?;
                out.push(Step::Index(index));
                rest = after;
            }
        } else {
            let key = match (rest.strip_prefix('.'), out.is_empty()) {
                (Some(after), false) => after,
                (None, true) => rest,
                _ => return Err(wrong("a key follows nothing but a point")),
            };
            let end = key.find(['.', '[']).unwrap_or(key.len());
            if end == 0 {
                return Err(wrong("a key is empty"));
            }
            out.push(Step::Key(key[..end].to_owned()));
            rest = &key[end..];
        }
    }
    Ok(out)
}

fn shown_path(path: &[Step]) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            Step::Key(key) if out.is_empty() => out.push_str(key),
            Step::Key(key) => out = format!("{out}.{key}"),
            Step::Index(index) => out = format!("{out}[{index}]"),
        }
    }
    out
}

fn walk<'v>(document: &'v Value, path: &[Step]) -> Option<&'v Value> {
    path.iter().try_fold(document, |value, step| match step {
        Step::Key(key) => value.get(key),
        Step::Index(index) => value.get(index),
    })
}

fn json(
    files: &mut Files,
    file: &str,
    path: &[Step],
    coordinate: Option<&[Step]>,
    output: &Wanted,
) -> Result<Reading, String> {
    let document = files.document(file)?;
    let place = |path: &[Step]| match path {
        [] => file.to_owned(),
        _ => format!("`{}` in {file}", shown_path(path)),
    };
    let number = |value: &Value, path: &[Step]| match value {
        Value::Null => Ok(f64::NAN),
        Value::Number(number) => number.as_f64().ok_or_else(|| format!("{} is out of range", place(path))),
        Value::String(text) if is_missing(text.trim()) => Ok(f64::NAN),
        Value::String(text) if foreign_number(text).is_some() => Ok(foreign_number(text).unwrap_or(f64::NAN)),
        other => Err(format!("{} holds {} where a number should be", place(path), kind(other))),
    };
    let found = |path: &[Step]| walk(document, path).ok_or_else(|| format!("there is no {}", place(path)));
    let numbers = |path: &[Step]| match found(path)? {
        Value::Array(values) => values.iter().map(|value| number(value, path)).collect::<Result<Vec<f64>, String>>(),
        other => Err(format!("{} is {} where an array should be", place(path), kind(other))),
    };
    let Some(over) = &output.over else {
        return assembled(vec![number(found(path)?, path)?], None, output, &place(path));
    };
    let coordinates = match coordinate {
        Some(coordinate) => Some(numbers(coordinate)?),
        None => {
            let beside = path.split_last().map(|(_, parent)| [parent, &[Step::Key(over.name.clone())]].concat());
            beside.filter(|beside| walk(document, beside).is_some()).map(|beside| numbers(&beside)).transpose()?
        }
    };
    assembled(numbers(path)?, coordinates, output, &place(path))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The same text with `NaN`, `Infinity` and `-Infinity` outside texts as texts.
fn with_quoted_words(text: &str) -> String {
    const WORDS: [&str; 3] = ["NaN", "-Infinity", "Infinity"];
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    let (mut is_text, mut is_escaped) = (false, false);
    while let Some(c) = rest.chars().next() {
        if let Some(word) = WORDS.iter().find(|word| !is_text && rest.starts_with(**word)) {
            out.push('"');
            out.push_str(word);
            out.push('"');
            rest = &rest[word.len()..];
            continue;
        }
        is_text ^= c == '"' && !is_escaped;
        is_escaped = is_text && c == '\\' && !is_escaped;
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// What was read as a single number or a series; `place` is what errors call its origin.
fn assembled(values: Vec<f64>, coordinates: Option<Vec<f64>>, output: &Wanted, place: &str) -> Result<Reading, String> {
    let Some(over) = &output.over else {
        return match values[..] {
            [value] if value.is_finite() => Ok(Reading { at: Vec::new(), values }),
            [value] if value.is_nan() => Err(format!("the value of {place} is missing or NaN")),
            [value] => Err(format!("the value of {place} is {value}")),
            _ => Err(format!("{place} has {} values where there should be one", values.len())),
        };
    };
    if let Some(i) = values.iter().position(|value| value.is_infinite()) {
        return Err(format!("value {} of {place} is {}", i + 1, values[i]));
    }
    let reading = match (coordinates, &over.at) {
        (None, None) => return Err(unknown_coordinates(place, &over.name)),
        (None, Some(at)) => paired(at.clone(), values, place, &over.name)?,
        (Some(coordinates), at) => {
            if let Some(i) = coordinates.iter().position(|coordinate| !coordinate.is_finite()) {
                return Err(format!("coordinate {} of {place} is missing or not finite", i + 1));
            }
            let reading = paired(coordinates, values, place, &over.name)?;
            match at {
                None => reading,
                Some(at) => selected(&reading, at),
            }
        }
    };
    match reading.values.iter().all(|value| value.is_nan()) {
        true => Err(format!("{place} has no value at any {}", over.name)),
        false => Ok(reading),
    }
}

/// Values at coordinates; a series that ends early lacks the rest.
fn paired(at: Vec<f64>, mut values: Vec<f64>, place: &str, name: &str) -> Result<Reading, String> {
    if values.len() > at.len() {
        return Err(format!(
            "{place} has {} for {} of {name}",
            counted(values.len(), "value"),
            counted(at.len(), "value")
        ));
    }
    values.resize(at.len(), f64::NAN);
    Ok(Reading { at, values })
}

/// The values of a series at other coordinates; NaN where it has none. Of several at the same the last counts.
fn selected(series: &Reading, at: &[f64]) -> Reading {
    // Half a unit in the sixth digit, as many as programs print unless told otherwise.
    const PRINTED: f64 = 5e-6;
    let mut order: Vec<usize> = (0..series.at.len()).collect();
    order.sort_by(|i, j| series.at[*i].total_cmp(&series.at[*j]));
    let value = |wanted: &f64| {
        let tolerance = PRINTED * wanted.abs();
        let from = order.partition_point(|i| series.at[*i] < wanted - tolerance);
        let near = order[from..].iter().take_while(|i| series.at[**i] <= wanted + tolerance);
        let distance = |i: usize| (series.at[i] - wanted).abs();
        // The last of equally near ones: the order is stable, so it is the one written last.
        let nearest = near.copied().reduce(|best, i| if distance(i) <= distance(best) { i } else { best });
        nearest.map_or(f64::NAN, |i| series.values[i])
    };
    Reading { at: at.to_vec(), values: at.iter().map(value).collect() }
}

fn too_short(file: &str, found: usize, wanted: usize) -> String {
    format!("{file} has {}, and number {wanted} is wanted", counted(found, "number"))
}

fn unknown_coordinates(place: &str, name: &str) -> String {
    format!("nothing says at which {name} the values of {place} are")
}

/// As much of a text as a message can show.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::PathBuf;

    /// A work folder of this test alone with these files.
    fn folder(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("twostep-results-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        for (file, content) in files {
            fs::write(folder.join(file), content).unwrap();
        }
        folder
    }

    fn number(name: &str) -> Wanted {
        Wanted { name: name.to_owned(), over: None }
    }

    fn series(name: &str, at: Option<&[f64]>) -> Wanted {
        Wanted { name: name.to_owned(), over: Some(Over { name: "t".to_owned(), at: at.map(<[f64]>::to_vec) }) }
    }

    /// One output from one file.
    fn from(content: &str, spec: &ResultsSpec, output: &Wanted) -> Result<Reading, String> {
        static COUNTER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = folder(&number.to_string(), &[(RESULTS_FILE, content)]);
        let read = read(std::slice::from_ref(spec), &folder, std::slice::from_ref(output));
        fs::remove_dir_all(folder).unwrap();
        read.map(|mut readings| readings.remove(0))
    }

    fn csv_spec(column: &str, row: Option<Row>) -> ResultsSpec {
        ResultsSpec::Csv { file: None, column: column.to_owned(), row, coordinate: None }
    }

    fn json_spec(path: &str) -> ResultsSpec {
        ResultsSpec::Json { file: None, path: path.to_owned(), coordinate: None }
    }

    fn regex_spec(regex: &str, which: Which) -> ResultsSpec {
        ResultsSpec::Regex { file: None, regex: regex.to_owned(), which }
    }

    /// Compares with NaN equal to NaN.
    fn same(found: &[f64], expected: &[f64]) -> bool {
        found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()))
    }

    #[test]
    fn default_results_are_numbers_in_the_order_of_the_outputs() {
        let outputs = [number("a"), series("b", Some(&[1.0, 2.0, 3.0])), number("c")];
        let specs = [ResultsSpec::Default, ResultsSpec::Default, ResultsSpec::Default];
        let all = |content: &str| {
            let folder = folder("order", &[(RESULTS_FILE, content)]);
            let out = read(&specs, &folder, &outputs);
            fs::remove_dir_all(folder).unwrap();
            out
        };
        let readings = all("\u{feff}1.5 f1\r\n2 \"b, first\" 3\r\n4,5 b3\r\n  1.0D+03, c\r\n").unwrap();
        assert_eq!(readings[0], Reading { at: vec![], values: vec![1.5] });
        assert_eq!(readings[1], Reading { at: vec![1.0, 2.0, 3.0], values: vec![2.0, 3.0, 4.5] });
        assert_eq!(readings[2].values, [1000.0]);
        assert_eq!(all("1 2 3 4").unwrap_err(), "c: results.out has 4 numbers, and number 5 is wanted");
        assert_eq!(all("1 2,3,4 3 4 5").unwrap_err(), "a: `2,3,4` in results.out is not a number");
        assert_eq!(
            all("1 2 3 4 5 6").unwrap_err(),
            "results.out has 6 numbers where the outputs need 5; say which are read"
        );
        assert!(all("1 ******** 3 4 5").unwrap()[1].values[0].is_nan());
        assert_eq!(all("1 2 3 4 inf").unwrap_err(), "c: the value of results.out is inf");
        assert_eq!(all("-nan(ind) 2 3 4 5").unwrap_err(), "a: the value of results.out is missing or NaN");
        assert_eq!(all("1 2 -inf 4 5").unwrap_err(), "b: value 2 of results.out is -inf");
        for failed in ["fail", "FAIL\n1 2 3 4 5", "\n  Failed: no convergence", "\u{feff}fail"] {
            assert!(all(failed).unwrap_err().starts_with("a: results.out says that the run failed: "), "{failed}");
        }
        assert_eq!(all(" \r\n ").unwrap_err(), "a: results.out is empty");
        let named = all("{\"c\": 3, \"a\": \"1,5\", \"t\": [1, 2, 3], \"b\": [NaN, 2.5, null]}").unwrap();
        assert_eq!((&named[0].values[..], &named[2].values[..]), (&[1.5][..], &[3.0][..]));
        assert!(same(&named[1].values, &[f64::NAN, 2.5, f64::NAN]));
        assert_eq!(all("{\"a\": 1}").unwrap_err(), "b: there is no `b` in results.out");
        let nowhere = read(&specs, Path::new("no-such-folder"), &outputs).unwrap_err();
        assert_eq!(nowhere, "a: the command wrote no results.out");
    }

    #[test]
    fn a_number_is_counted_past_labels() {
        let value = |value| ResultsSpec::Value { file: None, value };
        let text = "drag = 1.25 N at 12:30, 2024-01-05\nlift -3e-2 NA ***\n";
        assert_eq!(from(text, &value(1), &number("y")).unwrap().values, [1.25]);
        assert_eq!(from(text, &value(2), &number("y")).unwrap().values, [-0.03]);
        assert_eq!(from(text, &value(3), &number("y")).unwrap_err(), "y: the value of results.out is missing or NaN");
        assert!(from(text, &value(4), &number("y")).is_err());
        assert_eq!(
            from(text, &value(5), &number("y")).unwrap_err(),
            "y: results.out has 4 numbers, and number 5 is wanted"
        );
        assert!(from(text, &value(0), &number("y")).is_err());
        let read = from("9 1 2", &value(2), &series("y", Some(&[0.0, 1.0, 2.0]))).unwrap();
        assert!(same(&read.values, &[1.0, 2.0, f64::NAN]), "a series that ends early lacks the rest");
        let long = from("9 1 2 3", &value(1), &series("y", Some(&[0.0, 1.0, 2.0]))).unwrap_err();
        assert_eq!(long, "y: results.out has 4 values for 3 values of t");
        let nowhere = from("1 2", &value(1), &series("y", None)).unwrap_err();
        assert_eq!(nowhere, "y: nothing says at which t the values of results.out are");
        assert_eq!(
            from("NA NA", &value(1), &series("y", Some(&[0.0, 1.0]))).unwrap_err(),
            "y: results.out has no value at any t"
        );
    }

    #[test]
    fn columns_of_any_csv_are_read() {
        let with_comments = "# solver 3.1\nt,y\n0,1.5\n# restart\n1,NA\n2,\n3,2.5e0\n";
        for content in [
            "t,y\n0,1.5\n1,NA\n2,\n3,2.5\n",
            "\u{feff}t,y\r\n0,1.5\r\n1,NA\r\n2,\r\n3,2.5\r\n",
            "t;y\n0;1,5\n1;nan\n2;\n3;2,5\n",
            "t\ty\n0\t1.5\n1\tNaN\n2\t\n3\t2.5\n",
            " t ,  y\n 0 , 1.5 \n 1 , null\n2, -nan\n 3 , 2.5D+00\n",
            "  t     y\n  0   1.5\n  1   NA\n  2  nan\n  3   2.5\n",
            "# t, y\n0, 1.5\n1, NA\n2, NA\n3, 2.5\n",
            "#t y\n0 1.5\n1 NA\n2 NA\n3 2.5\n",
            "\"t\",\"y\",\"what; else\"\n0,1.5,a\n1,NA,b\n2,,c\n3,2.5,d\n",
            ",t,y\n0,0,1.5\n1,1,NA\n2,2,\n3,3,2.5\n",
            with_comments,
        ] {
            let read = from(content, &csv_spec("y", None), &series("y", None)).unwrap();
            assert_eq!(read.at, [0.0, 1.0, 2.0, 3.0], "{content}");
            assert!(same(&read.values, &[1.5, f64::NAN, f64::NAN, 2.5]), "{content}");
        }
        let headless = from("0,1.5\n1,2.5\n", &csv_spec("2", Some(Row::Last)), &number("y")).unwrap();
        assert_eq!(headless.values, [2.5]);
        let refused = |content: &str, row| from(content, &csv_spec("y", row), &number("y")).unwrap_err();
        assert_eq!(from("t,y\n1,2\n3,4\n", &csv_spec("y", Some(Row::Number(1))), &number("y")).unwrap().values, [2.0]);
        assert_eq!(from("t,y\n1,2\n", &csv_spec("y", None), &number("y")).unwrap().values, [2.0]);
        assert_eq!(refused("y\n1\n2\n", Some(Row::Number(3))), "y: results.out has 2 rows, and no row 3");
        assert_eq!(refused("y\n1\n2\n", None), "y: results.out has 2 rows; say which row to read");
        assert_eq!(
            refused("t,y\n1,\n", Some(Row::Last)),
            "y: the value of results.out, line 2, column `y` is missing or NaN"
        );
        assert_eq!(refused("# a\nt,y\n#b\n\n1,x\n", None), "y: results.out, line 5, column `y`: `x` is not a number");
        assert!(refused("t,z\n1,2\n", None).contains("there is no column `y` among `t`, `z`"));
        assert!(refused("t,y\n1,2\n3\n", None).contains("line 3: 1 cell in a table of 2 columns"), "half a row");
        assert!(refused("t,y\n", None).contains("there is a header but no row below it"));
    }

    #[test]
    fn a_series_is_read_at_the_coordinates_of_the_study() {
        let fine = "t,y\n0,0\n0.5,1\n0.999996,2\n1.5,3\n2,4\n2,5\n";
        let read = from(fine, &csv_spec("y", None), &series("y", Some(&[1.0, 2.0, 3.0]))).unwrap();
        assert_eq!(read.at, [1.0, 2.0, 3.0]);
        assert!(same(&read.values, &[2.0, 5.0, f64::NAN]), "{read:?}");
        assert!(from(fine, &csv_spec("y", None), &series("y", Some(&[7.0]))).is_err());
        let named = |coordinate: &str| ResultsSpec::Csv {
            file: None,
            column: "y".to_owned(),
            row: None,
            coordinate: Some(coordinate.to_owned()),
        };
        let read = from("time,y\n3,1\n4,2\n", &named("time"), &series("y", None)).unwrap();
        assert_eq!(read, Reading { at: vec![3.0, 4.0], values: vec![1.0, 2.0] });
        assert!(from("time,y\n3,1\n", &named("tim"), &series("y", None)).unwrap_err().contains("no column `tim`"));
        let by_order = from("z,y\n8,1\n9,2\n", &csv_spec("y", None), &series("y", Some(&[0.0, 1.0]))).unwrap();
        assert_eq!(by_order, Reading { at: vec![0.0, 1.0], values: vec![1.0, 2.0] });
        let lost = from("t,y\n0,1\n,2\n", &csv_spec("y", None), &series("y", None)).unwrap_err();
        assert_eq!(lost, "y: coordinate 2 of results.out is missing or not finite");
    }

    #[test]
    fn values_of_json_are_found_by_path() {
        let content = "\u{feff}{\"a\": {\"b\": [1, 2, {\"c.d\": 2.5e0}], \"t\": [0, 1, 2], \"y\": [1, null, NaN]},\r\n \
                       \"bad\": -Infinity, \"x\": \"say \\\"NaN\\\"\", \"one\": [1]}";
        let get = |path: &str, output: &Wanted| from(content, &json_spec(path), output);
        assert_eq!(get("a.b[2][\"c.d\"]", &number("y")).unwrap().values, [2.5]);
        assert_eq!(get("a[\"b\"][0]", &number("y")).unwrap().values, [1.0]);
        assert_eq!(from("[3, 4]", &json_spec("[1]"), &number("y")).unwrap().values, [4.0]);
        assert_eq!(from("0.5\n", &json_spec(""), &number("y")).unwrap().values, [0.5]);
        let read = get("a.y", &series("y", None)).unwrap();
        assert_eq!(read.at, [0.0, 1.0, 2.0]);
        assert!(same(&read.values, &[1.0, f64::NAN, f64::NAN]));
        let elsewhere = ResultsSpec::Json { file: None, path: "one".to_owned(), coordinate: Some("a.t".to_owned()) };
        assert!(same(&from(content, &elsewhere, &series("y", None)).unwrap().values, &[1.0, f64::NAN, f64::NAN]));
        let refused = |path: &str, output: &Wanted| get(path, output).unwrap_err();
        assert_eq!(refused("a.b[7]", &number("y")), "y: there is no `a.b[7]` in results.out");
        assert_eq!(refused("a.y[1]", &number("y")), "y: the value of `a.y[1]` in results.out is missing or NaN");
        assert_eq!(refused("bad", &number("y")), "y: the value of `bad` in results.out is -inf");
        assert_eq!(refused("x", &number("y")), "y: `x` in results.out holds a text where a number should be");
        assert_eq!(refused("a", &series("y", None)), "y: `a` in results.out is an object where an array should be");
        assert!(from("{\"a\": [1, 2", &json_spec("a"), &number("y")).unwrap_err().contains("is not JSON: EOF"));
        for path in ["a..b", ".a", "a[", "a[x]", "a[\"b]", "[0]b"] {
            assert!(parse_path(path).unwrap_err().contains("is not a path"), "{path}");
        }
    }

    #[test]
    fn regular_expressions_find_numbers_in_logs() {
        let log = "iteration 1\r\ndrag: 1,5 N\r\niteration 2\r\ndrag: 2.5E+00 N\r\ndone\r\n";
        let drag = r"^drag: (\S+) N$";
        assert_eq!(from(log, &regex_spec(drag, Which::First), &number("y")).unwrap().values, [1.5]);
        assert_eq!(from(log, &regex_spec(drag, Which::Last), &number("y")).unwrap().values, [2.5]);
        let all = from(log, &regex_spec(drag, Which::Last), &series("y", Some(&[1.0, 2.0]))).unwrap();
        assert_eq!(all.values, [1.5, 2.5]);
        let refused = |regex: &str| from(log, &regex_spec(regex, Which::First), &number("y")).unwrap_err();
        assert_eq!(refused("lift: (.*)"), "y: `lift: (.*)` matches nothing in results.out");
        assert!(refused("drag").contains("has 0 groups where the number is to be one"));
        assert!(refused("(d)(r)").contains("has 2 groups"));
        assert_eq!(refused("("), "y: `(` is not a regular expression: unclosed group");
        assert!(refused("(iteration)").ends_with("which `(iteration)` finds in results.out, is not a number"));
    }

    #[test]
    fn a_million_rows_are_read() {
        use std::fmt::Write;
        let mut content = String::from("t,y\n");
        for i in 0..1_000_000 {
            writeln!(content, "{i},{}", f64::from(i) * 0.5).unwrap();
        }
        let read = from(&content, &csv_spec("y", None), &series("y", Some(&[0.0, 999_999.0]))).unwrap();
        assert_eq!(read.values, [0.0, 499_999.5]);
        let last = from(&content, &csv_spec("y", Some(Row::Last)), &number("y")).unwrap();
        assert_eq!(last.values, [499_999.5]);
    }

    proptest! {
        #[test]
        fn any_file_is_read_or_refused(
            text in "[ty0-9,;.# eEdD+\\-\\t\\n\\r\"{}\\[\\]:naif*]{0,80}",
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let folder = folder("any", &[("a", &text)]);
            fs::write(folder.join("b"), bytes).unwrap();
            for file in ["a", "b"] {
                let file = Some(file.to_owned());
                let specs = [
                    ResultsSpec::Value { file: file.clone(), value: 1 },
                    ResultsSpec::Csv { file: file.clone(), column: "y".to_owned(), row: None, coordinate: None },
                    ResultsSpec::Csv { file: file.clone(), column: "1".to_owned(), row: Some(Row::Last), coordinate: None },
                    ResultsSpec::Json { file: file.clone(), path: "y".to_owned(), coordinate: None },
                    ResultsSpec::Regex { file, regex: "y(.*)".to_owned(), which: Which::Last },
                ];
                for spec in &specs {
                    for output in [number("y"), series("y", None), series("y", Some(&[1.0, 2.0]))] {
                        if let Ok(readings) = read(std::slice::from_ref(spec), &folder, std::slice::from_ref(&output)) {
                            prop_assert!(readings[0].values.iter().all(|value| !value.is_infinite()));
                            prop_assert!(output.over.is_some() || readings[0].values[0].is_finite());
                        }
                    }
                }
            }
            let _ = fs::rename(folder.join("a"), folder.join(RESULTS_FILE));
            let _ = read(&[ResultsSpec::Default], &folder, &[number("y")]);
            let _ = parse_path(&text);
            let _ = with_quoted_words(&text);
        }
    }
}
