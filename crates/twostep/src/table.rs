//! CSV files to named columns and back, with errors that name file, line and column.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{self, AtomicU64};

use crate::error::{Error, Result};
use crate::matrix::Matrix;

/// Columns of equal length with distinct names.
///
/// A file that was read keeps its cells as texts; a column becomes numbers when it is asked for as numbers, so that
/// columns which nobody asks for may hold anything. Numbers are written as the shortest text that reads back as the
/// same double.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    source: String,
    columns: Vec<(String, Cells)>,
    /// Line of each row in its file.
    lines: Vec<usize>,
}

/// How the lines of a file are read.
struct Form {
    separator: u8,
    /// Names of the columns, where no line of the file is their header.
    names: Option<Vec<String>>,
    /// Whether lines that start with `#` are passed over, and columns without name are called by their number.
    has_comments: bool,
}

/// The repair of a cell that says in words that it has no value.
const LEAVE_EMPTY: &str = "leave the cell empty where there is no value";

#[derive(Clone, Debug, PartialEq)]
enum Cells {
    Numbers(Vec<f64>),
    Texts(Vec<String>),
}

impl Cells {
    fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Texts(texts) => texts.len(),
        }
    }
}

impl Table {
    /// A table without columns.
    pub fn new() -> Self {
        Self::default()
    }

    /// This table with one more column of numbers.
    ///
    /// # Errors
    /// A name that is there already, or another length than that of the other columns.
    pub fn with_numbers(self, name: impl Into<String>, numbers: Vec<f64>) -> Result<Self> {
        self.with(name.into(), Cells::Numbers(numbers))
    }

    /// This table with one more column of texts.
    ///
    /// # Errors
    /// As for [`Table::with_numbers`].
    pub fn with_texts(self, name: impl Into<String>, texts: Vec<String>) -> Result<Self> {
        self.with(name.into(), Cells::Texts(texts))
    }

    fn with(mut self, name: String, cells: Cells) -> Result<Self> {
        let place = || format!("column `{name}`");
        if self.has(&name) {
            return Err(Error::invalid(place(), "the table has one of that name already", "rename one of them"));
        }
        if self.columns.is_empty() {
            self.lines = (2..).take(cells.len()).collect();
        } else if cells.len() != self.n_rows() {
            let found = format!("{} values beside columns of {}", cells.len(), self.n_rows());
            return Err(Error::invalid(place(), found, "give one value per row"));
        }
        self.columns.push((name, cells));
        Ok(self)
    }

    /// Reads a file with a header line and at least one row below it; lines above the header that start with `#` are
    /// comments.
    ///
    /// # Errors
    /// A file that cannot be read, is empty or has no rows; a header of numbers, or separated by other signs than commas;
    /// a column without name or of a name used before; a row with more or fewer cells than the header.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path)
            .map_err(|problem| Error::file(path, problem, "check that the file is there and that you may read it"))?;
        Self::parse(&bytes, &path.display().to_string())
    }

    /// Reads the content of a file; `source` is what errors call it.
    ///
    /// # Errors
    /// As for [`Table::read`].
    pub fn parse(bytes: &[u8], source: &str) -> Result<Self> {
        let mut bytes = without_mark(bytes);
        let mut comments = 0;
        while bytes.first() == Some(&b'#') {
            comments += 1;
            bytes = &bytes[bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1)..];
        }
        Self::records(bytes, comments, &Form { separator: b',', names: None, has_comments: false }, source)
    }

    /// Reads what a program wrote: as [`Table::parse`], but columns may be separated by semicolons, tabs or blanks as
    /// well, and any line that starts with `#` is a comment. Where a row of numbers stands first, the last comment above
    /// it names the columns if it has as many words; else, and where a name is empty, a column is called by its number,
    /// from one.
    ///
    /// # Errors
    /// As for [`Table::read`], but for what is allowed here.
    pub fn parse_foreign(bytes: &[u8], source: &str) -> Result<Self> {
        let bytes = without_mark(bytes);
        let (mut comment, mut first, mut second): (_, Option<&[u8]>, _) = (None, None, None);
        for line in bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()) {
            match (line.strip_prefix(b"#"), first) {
                (Some(text), None) => comment = Some(text.trim_ascii_start()),
                (Some(_), Some(_)) => {}
                (None, None) => first = Some(line),
                (None, Some(_)) => {
                    second = Some(line);
                    break;
                }
            }
        }
        let first = first.unwrap_or_default();
        let words = |line: &[u8]| line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).count();
        let separator = [b';', b'\t', b','].into_iter().find(|separator| holds_outside_quotes(first, *separator));
        let is_blank = separator.is_none() && words(first) > 1 && second.is_none_or(|row| words(row) == words(first));
        let separator = separator.unwrap_or(if is_blank { b' ' } else { b',' });

        let row = cells_of_line(first, separator);
        let names = (!row.is_empty() && row.iter().all(|cell| foreign_number(cell).is_some())).then(|| {
            let header = comment.map(|text| {
                let cells = cells_of_line(text, separator);
                if cells.len() == row.len() { cells } else { cells_of_line(text, b' ') }
            });
            header.filter(|cells| cells.len() == row.len()).unwrap_or_else(|| vec![String::new(); row.len()])
        });
        let names = names.map(|names| names.into_iter().enumerate().map(name_or_number).collect());
        if separator == b' ' {
            return Self::records(
                &joined_by_tabs(bytes),
                0,
                &Form { separator: b'\t', names, has_comments: true },
                source,
            );
        }
        Self::records(bytes, 0, &Form { separator, names, has_comments: true }, source)
    }

    /// The rows of `bytes`, above which there are `above` lines in the file.
    fn records(bytes: &[u8], above: usize, form: &Form, source: &str) -> Result<Self> {
        let mut reader = csv::ReaderBuilder::new();
        reader.has_headers(false).flexible(true).trim(csv::Trim::All).delimiter(form.separator);
        let mut reader = reader.comment(form.has_comments.then_some(b'#')).from_reader(bytes);
        let mut columns: Vec<(String, Vec<String>)> = Vec::new();
        if let Some(names) = &form.names {
            columns = names.iter().map(|name| (name.clone(), Vec::new())).collect();
            check_names(&columns, source)?;
        }
        let mut lines = Vec::new();
        let (mut line, mut passed) = (above + 1, 0);
        for record in reader.records() {
            let record = record.map_err(|problem| {
                let line = problem.position().map(|position| above as u64 + position.line());
                let line = line.map_or(String::new(), |line| format!(", line {line}"));
                Error::invalid(format!("{source}{line}"), "this is not text in UTF-8", "save the file as CSV in UTF-8")
            })?;
            // A record's position is where the one before it ended, and so before any empty lines and comments.
            let mut start = record.position().map_or(0, |position| position.byte() as usize);
            loop {
                start += bytes[start..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
                if !form.has_comments || bytes.get(start) != Some(&b'#') {
                    break;
                }
                start += bytes[start..].iter().take_while(|byte| **byte != b'\n').count();
            }
            line += bytes[passed..start].iter().filter(|byte| **byte == b'\n').count();
            passed = start;
            if columns.is_empty() {
                let names = record.iter().map(str::to_owned);
                columns = match form.has_comments {
                    true => names.enumerate().map(|name| (name_or_number(name), Vec::new())).collect(),
                    false => names.map(|name| (name, Vec::new())).collect(),
                };
                check_header(&columns, source, line)?;
                continue;
            }
            if record.len() != columns.len() {
                let (cells, columns) = (counted(record.len(), "cell"), counted(columns.len(), "column"));
                let found = format!("{cells} in a table of {columns}");
                let place = format!("{source}, line {line}");
                let repair =
                    "give each row one cell per column, quote cells with commas, and write decimals with a point";
                return Err(Error::invalid(place, found, repair));
            }
            for ((_, cells), cell) in columns.iter_mut().zip(&record) {
                cells.push(cell.to_owned());
            }
            lines.push(line);
        }
        if columns.is_empty() {
            return Err(Error::invalid(source, "the file is empty", "write a header line and a line per row"));
        }
        if lines.is_empty() {
            return Err(Error::invalid(source, "there is a header but no row below it", "write a line per row"));
        }
        let columns = columns.into_iter().map(|(name, cells)| (name, Cells::Texts(cells))).collect();
        Ok(Self { source: source.to_owned(), columns, lines })
    }

    /// Names of the columns in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.lines.len()
    }

    /// Whether there is a column of that name.
    pub fn has(&self, name: &str) -> bool {
        self.names().any(|other| other == name)
    }

    /// The file it was read from; empty for a table that was made.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Line of a row in its file.
    pub fn line(&self, row: usize) -> usize {
        self.lines[row]
    }

    /// File, line and column of a cell, for errors about its value.
    pub fn place(&self, row: usize, name: &str) -> String {
        format!("{}, line {}, column `{name}`", self.source, self.lines[row])
    }

    /// A column of finite numbers.
    ///
    /// # Errors
    /// A missing column, with the nearest name; a cell that is empty, no number, or not finite.
    pub fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        let numbers = self.numbers_or_nan(name)?;
        match numbers.iter().position(|number| !number.is_finite()) {
            None => Ok(numbers),
            Some(row) => {
                let found = format!("{} is not a finite number", numbers[row]);
                Err(Error::invalid(self.place(row, name), found, "correct the cell or remove its row"))
            }
        }
    }

    /// A column of numbers, NaN and infinities included.
    ///
    /// # Errors
    /// A missing column, with the nearest name; a cell that is empty or no number.
    pub fn numbers_or_nan(&self, name: &str) -> Result<Vec<f64>> {
        const REPAIR: &str = "write a number or remove the row";
        let numbers = self.parsed(name, REPAIR)?.into_iter().enumerate();
        let number = |(row, number): (usize, Option<f64>)| {
            number.ok_or_else(|| Error::invalid(self.place(row, name), "the cell is empty", REPAIR))
        };
        numbers.map(number).collect()
    }

    /// A column of numbers in which cells may be empty.
    ///
    /// # Errors
    /// A missing column, with the nearest name; a cell that is neither empty nor a number.
    pub fn optional_numbers(&self, name: &str) -> Result<Vec<Option<f64>>> {
        self.parsed(name, LEAVE_EMPTY)
    }

    /// A column of numbers in which cells may be empty, or bounds such as `<0.5` and `>100`: less or greater than that.
    ///
    /// # Errors
    /// A missing column, with the nearest name; a cell that is nothing of that.
    pub fn numbers_or_bounds(&self, name: &str) -> Result<Vec<Option<(f64, Ordering)>>> {
        let bound = |text: &str| match text.as_bytes().first() {
            Some(b'<') => (Ordering::Less, 1),
            Some(b'>') => (Ordering::Greater, 1),
            _ => (Ordering::Equal, 0),
        };
        match self.cells(name)? {
            Cells::Numbers(numbers) => Ok(numbers.iter().map(|&number| Some((number, Ordering::Equal))).collect()),
            Cells::Texts(texts) => {
                let (signs, plain): (Vec<Ordering>, Vec<String>) =
                    (texts.iter()).map(|text| (bound(text).0, text[bound(text).1..].trim().to_owned())).unzip();
                let numbers = self.parsed_texts(name, &plain, LEAVE_EMPTY)?;
                Ok(numbers.into_iter().zip(signs).map(|(number, sign)| Some((number?, sign))).collect())
            }
        }
    }

    /// The numbers of a column; `if_missing` is the repair of a cell that says in words that it has none.
    fn parsed(&self, name: &str, if_missing: &str) -> Result<Vec<Option<f64>>> {
        match self.cells(name)? {
            Cells::Numbers(numbers) => Ok(numbers.iter().copied().map(Some).collect()),
            Cells::Texts(texts) => self.parsed_texts(name, texts, if_missing),
        }
    }

    /// The numbers of these cells of a column.
    fn parsed_texts(&self, name: &str, texts: &[String], if_missing: &str) -> Result<Vec<Option<f64>>> {
        const MISSING: [&str; 7] = ["na", "n/a", "null", "none", "missing", "-", "?"];
        let number = |(row, text): (usize, &String)| match text.as_str() {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                let repair = match MISSING.contains(&text.to_lowercase().as_str()) {
                    true => if_missing,
                    false => "write a number with a decimal point, such as 0.5 or 1e-3",
                };
                Error::invalid(self.place(row, name), format!("`{text}` is not a number"), repair)
            }),
        };
        texts.iter().enumerate().map(number).collect()
    }

    /// A column as texts; numbers as they would be written.
    ///
    /// # Errors
    /// A missing column, with the nearest name.
    pub fn texts(&self, name: &str) -> Result<Vec<String>> {
        Ok(match self.cells(name)? {
            Cells::Numbers(numbers) => numbers.iter().map(f64::to_string).collect(),
            Cells::Texts(texts) => texts.clone(),
        })
    }

    /// Columns of finite numbers side by side: one row per row, one column per name.
    ///
    /// # Errors
    /// As for [`Table::numbers`].
    pub fn matrix<N: AsRef<str>>(&self, names: &[N]) -> Result<Matrix> {
        let columns = names.iter().map(|name| self.numbers(name.as_ref())).collect::<Result<Vec<_>>>()?;
        Ok(Matrix::from_fn(self.n_rows(), names.len(), |row, column| columns[column][row]))
    }

    fn cells(&self, name: &str) -> Result<&Cells> {
        if let Some((_, cells)) = self.columns.iter().find(|(other, _)| other == name) {
            return Ok(cells);
        }
        let names: Vec<&str> = self.names().collect();
        let place = if self.source.is_empty() { "table" } else { &self.source };
        let list = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let repair = match nearest(name, &names) {
            Some(near) => format!("rename `{near}`, or add the column"),
            None => "add the column".to_owned(),
        };
        Err(Error::invalid(place, format!("there is no column `{name}` among {list}"), repair))
    }

    /// A header line and a line per row.
    ///
    /// # Errors
    /// None that is known: writing to memory does not fail.
    pub fn to_csv(&self) -> Result<Vec<u8>> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let written = writer
            .write_record(self.names())
            .and_then(|()| {
                (0..self.n_rows()).try_for_each(|row| {
                    writer.write_record(self.columns.iter().map(|(_, cells)| match cells {
                        Cells::Numbers(numbers) => numbers[row].to_string(),
                        Cells::Texts(texts) => texts[row].clone(),
                    }))
                })
            })
            .map_err(std::io::Error::other)
            .and_then(|()| writer.into_inner().map_err(|problem| problem.into_error()));
        written.map_err(|problem| Error::failed("table", problem.to_string(), "report this as a bug"))
    }

    /// Writes [`Table::to_csv`], so that a reader sees the old file or the new one, never a part.
    ///
    /// # Errors
    /// What the system says about the file or its folder.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_atomically(path, &self.to_csv()?)
    }
}

fn check_header(columns: &[(String, Vec<String>)], source: &str, line: usize) -> Result<()> {
    let place = || format!("{source}, line {line}");
    if let [(name, _)] = columns
        && let Some(separator) = name.chars().find(|c| [';', '\t'].contains(c))
    {
        let found = format!("columns are separated by {}", if separator == ';' { "semicolons" } else { "tabs" });
        let repair = "separate columns by commas, and write decimals with a point: 0.5, not 0,5";
        return Err(Error::invalid(place(), found, repair));
    }
    if columns.iter().all(|(name, _)| name.parse::<f64>().is_ok()) {
        let repair = "write a line with the columns' names above it; a line that starts with # is a comment";
        return Err(Error::invalid(place(), "there are numbers where the columns' names should be", repair));
    }
    check_names(columns, &place())
}

fn check_names(columns: &[(String, Vec<String>)], place: &str) -> Result<()> {
    for (i, (name, _)) in columns.iter().enumerate() {
        if name.is_empty() {
            let found = format!("column {} has no name", i + 1);
            return Err(Error::invalid(place, found, "name every column in the first line"));
        }
        if columns[..i].iter().any(|(other, _)| other == name) {
            return Err(Error::invalid(place, format!("two columns are called `{name}`"), "rename or remove one"));
        }
    }
    Ok(())
}

/// Spreadsheets put a byte order mark in front.
fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

fn name_or_number((i, name): (usize, String)) -> String {
    if name.is_empty() { (i + 1).to_string() } else { name }
}

fn holds_outside_quotes(line: &[u8], wanted: u8) -> bool {
    let mut is_quoted = false;
    line.iter().any(|byte| {
        is_quoted ^= *byte == b'"';
        !is_quoted && *byte == wanted
    })
}

/// The cells of one line; a separator that is a blank stands for any number of them.
fn cells_of_line(line: &[u8], separator: u8) -> Vec<String> {
    if separator == b' ' {
        return String::from_utf8_lossy(line).split_whitespace().map(str::to_owned).collect();
    }
    let mut reader = csv::ReaderBuilder::new();
    let mut reader = reader.has_headers(false).trim(csv::Trim::All).delimiter(separator).from_reader(line);
    let record = reader.records().next().and_then(std::result::Result::ok);
    record.map_or_else(Vec::new, |record| record.iter().map(str::to_owned).collect())
}

/// The same lines with a tab for each run of blanks within them.
fn joined_by_tabs(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for line in bytes.split(|byte| *byte == b'\n') {
        for (i, word) in line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).enumerate() {
            if i > 0 {
                out.push(b'\t');
            }
            out.extend_from_slice(word);
        }
        out.push(b'\n');
    }
    out
}

/// A number as programs write it, NaN and infinities included: also with a decimal comma, with Fortran's exponent as in
/// `1.0D+03` and `1.0-103`, and as C libraries spell what is not finite.
pub(crate) fn foreign_number(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let lower = text.to_ascii_lowercase();
    let unsigned = lower.strip_prefix(['+', '-']).unwrap_or(&lower);
    if unsigned == "nan" || unsigned.starts_with("nan(") || unsigned.starts_with("1.#") {
        return Some(if unsigned == "1.#inf" { f64::INFINITY } else { f64::NAN });
    }
    if !lower.bytes().all(|byte| byte.is_ascii_digit() || b"+-.,ed".contains(&byte)) {
        return None;
    }
    let lower = match lower.matches(',').count() {
        0 => lower,
        1 if !lower.contains('.') => lower.replace(',', "."),
        _ => return None,
    };
    if let Ok(number) = lower.parse() {
        return Some(number);
    }
    let lower = match lower.matches(['e', 'd']).count() {
        0 => {
            // Fortran leaves the letter out where the exponent has three digits.
            let exponent = lower.len().checked_sub(4).filter(|at| lower[*at..].starts_with(['+', '-']) && *at > 1)?;
            let (mantissa, exponent) = lower.split_at(exponent);
            if mantissa.contains('.') { format!("{mantissa}e{exponent}") } else { return None }
        }
        1 => lower.replace('d', "e"),
        _ => return None,
    };
    lower.parse().ok()
}

/// `1 run`, `2 runs`.
pub fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The name of `known` that is likely meant by `found`.
pub(crate) fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    // Jaro-Winkler similarity, measured on the names of a study: words that mean something else reach 0.68, a slip or a
    // dropped ending stays above 0.86.
    const NEAR: f64 = 0.8;
    let alike = |name: &str| strsim::jaro_winkler(&found.to_lowercase(), &name.to_lowercase());
    let best = known.iter().copied().max_by(|a, b| alike(a).total_cmp(&alike(b)));
    best.filter(|name| alike(name) >= NEAR)
}

/// Replaces the content of `path` at once: temporary file in the same folder, flushed to disk, renamed.
///
/// # Errors
/// What the system says about the file or its folder; the old content is then still there.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<()> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let number = COUNTER.fetch_add(1, atomic::Ordering::Relaxed);
    let name = path.file_name().map_or("file".into(), |name| name.to_string_lossy());
    let temporary: PathBuf = path.with_file_name(format!(".{name}.{}-{number}.tmp", std::process::id()));
    let written = File::create(&temporary)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    written.map_err(|problem| {
        // Nothing to do if even that fails: the first problem is the one to report.
        let _ = fs::remove_file(&temporary);
        Error::file(path, problem, "check that the folder exists, is writable and has space left")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Table> {
        Table::parse(text.as_bytes(), "data.csv")
    }

    fn refused(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    /// A folder of this test alone.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("twostep-table-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn columns_are_read_by_name() {
        let table = parse("\u{feff}t,\"c[0,1]\" ,note\r\n1,2.5,\"a, b\"\r\n\r\n-3e2,,c\n").unwrap();
        assert_eq!(table.names().collect::<Vec<_>>(), ["t", "c[0,1]", "note"]);
        assert_eq!((table.n_rows(), table.has("t"), table.has("T")), (2, true, false));
        assert_eq!(table.numbers("t").unwrap(), [1.0, -300.0]);
        assert_eq!(table.optional_numbers("c[0,1]").unwrap(), [Some(2.5), None]);
        assert_eq!(table.texts("note").unwrap(), ["a, b", "c"]);
        let commented = parse("# made by hand\n#\nt,y\n1,2\n\n3,x\n").unwrap();
        assert_eq!(commented.numbers("t").unwrap(), [1.0, 3.0]);
        assert!(commented.numbers("y").unwrap_err().to_string().starts_with("data.csv, line 6, column `y`"));
        let matrix = parse("a,b\n1,2\n3,4\n").unwrap().matrix(&["b", "a"]).unwrap();
        assert_eq!((matrix.row(0), matrix.row(1)), (&[2.0, 1.0][..], &[4.0, 3.0][..]));
    }

    #[test]
    fn refusals_name_the_place_and_the_repair() {
        assert_eq!(refused(""), "data.csv: the file is empty; write a header line and a line per row");
        assert_eq!(refused("t,y\n"), "data.csv: there is a header but no row below it; write a line per row");
        assert_eq!(refused("t,y,t\n1,2,3\n"), "data.csv, line 1: two columns are called `t`; rename or remove one");
        assert_eq!(refused("t,\n1,2\n"), "data.csv, line 1: column 2 has no name; name every column in the first line");
        assert_eq!(
            refused("t,y\n1,2\n\n3\n"),
            "data.csv, line 4: 1 cell in a table of 2 columns; give each row one cell per column, \
             quote cells with commas, and write decimals with a point"
        );
        let table = parse("time,y,z\n1,x,nan\n2,,1\n").unwrap();
        let message = |name: &str| table.numbers(name).unwrap_err().to_string();
        assert_eq!(
            message("y"),
            "data.csv, line 2, column `y`: `x` is not a number; \
             write a number with a decimal point, such as 0.5 or 1e-3"
        );
        assert_eq!(
            message("z"),
            "data.csv, line 2, column `z`: NaN is not a finite number; correct the cell or remove its row"
        );
        assert!(table.numbers_or_nan("z").unwrap()[0].is_nan());
        assert_eq!(
            message("tim"),
            "data.csv: there is no column `tim` among `time`, `y`, `z`; rename `time`, or add the column"
        );
        assert!(message("beta").ends_with("`z`; add the column"));
        let empty = parse("t,y\n1,\n").unwrap().numbers("y").unwrap_err().to_string();
        assert_eq!(empty, "data.csv, line 2, column `y`: the cell is empty; write a number or remove the row");
        assert_eq!(
            refused("t;y\n0,5;2\n"),
            "data.csv, line 1: columns are separated by semicolons; \
             separate columns by commas, and write decimals with a point: 0.5, not 0,5"
        );
        assert!(refused("t\ty\n1\t2\n").contains("separated by tabs"));
        let headless = refused("# t,y\n1,2\n3,4\n");
        assert!(headless.starts_with("data.csv, line 2: there are numbers where the columns' names"), "{headless}");
        let words = parse("y\nNA\n").unwrap();
        let required = words.numbers("y").unwrap_err().to_string();
        assert!(required.ends_with("`NA` is not a number; write a number or remove the row"), "{required}");
        let optional = words.optional_numbers("y").unwrap_err().to_string();
        assert!(optional.ends_with("leave the cell empty where there is no value"), "{optional}");
        let latin = Table::parse(b"t,y\n1,2\xe9\n", "data.csv").unwrap_err().to_string();
        assert!(latin.starts_with("data.csv, line 2: this is not text in UTF-8"), "{latin}");
        let missing = Table::read(Path::new("no-such-folder/data.csv")).unwrap_err().to_string();
        assert!(missing.starts_with("no-such-folder/data.csv: "), "{missing}");
    }

    #[test]
    fn columns_must_fit_together() {
        let table = Table::new().with_numbers("t", vec![1.0, 2.0]).unwrap();
        let twice = table.clone().with_numbers("t", vec![1.0, 2.0]).unwrap_err().to_string();
        assert_eq!(twice, "column `t`: the table has one of that name already; rename one of them");
        let short = table.with_texts("note", vec!["a".to_owned()]).unwrap_err().to_string();
        assert_eq!(short, "column `note`: 1 values beside columns of 2; give one value per row");
    }

    #[test]
    fn writing_replaces_the_file_and_leaves_nothing_else() {
        let folder = folder("replace");
        let path = folder.join("t.csv");
        for value in [1.0, 2.0] {
            Table::new().with_numbers("c[0,1]", vec![value]).unwrap().write(&path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("\"c[0,1]\"\n{value}\n"));
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let nowhere = Table::new().write(&folder.join("none/t.csv")).unwrap_err().to_string();
        assert!(nowhere.ends_with("check that the folder exists, is writable and has space left"), "{nowhere}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn numbers_of_programs_are_understood() {
        for (text, number) in [
            ("1.5", 1.5),
            (" -2 ", -2.0),
            ("1,5", 1.5),
            ("-1,25E-3", -1.25e-3),
            ("1.0D+03", 1000.0),
            ("1.5d0", 1.5),
            ("0.125-102", 0.125e-102),
            ("-.5+100", -0.5e100),
            ("1.#INF", f64::INFINITY),
        ] {
            assert_eq!(foreign_number(text), Some(number), "{text}");
        }
        for text in ["nan", "-nan", "-nan(ind)", "NaN(0x1)", "1.#QNAN"] {
            assert!(foreign_number(text).is_some_and(f64::is_nan), "{text}");
        }
        // A date, a time, a thousand with its sign, a list, words.
        for text in ["", "-", "2024-01-05", "12:30", "1,234.5", "1,2,3", "2024-100", "deed", "e", "d5", "1e5e5", "x1"] {
            assert_eq!(foreign_number(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn numbers_read_back_bit_for_bit(bits in proptest::collection::vec(any::<u64>(), 1..20)) {
            let numbers = bits.into_iter().map(f64::from_bits).filter(|x| !x.is_nan());
            let numbers: Vec<f64> = numbers.chain([-0.0]).collect();
            let folder = folder("bits");
            let path = folder.join("t.csv");
            Table::new().with_numbers("x", numbers.clone()).unwrap().write(&path).unwrap();
            let back = Table::read(&path).unwrap().numbers_or_nan("x").unwrap();
            let bits = |numbers: &[f64]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&back), bits(&numbers));
            fs::remove_dir_all(folder).unwrap();
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for table in [Table::parse(&bytes, "data.csv"), Table::parse_foreign(&bytes, "data.csv")].into_iter().flatten() {
                for name in table.names() {
                    let _ = table.numbers(name);
                }
            }
        }

        #[test]
        fn any_cells_are_read_or_refused(
            text in "\u{feff}?(#[a-z]{0,3}\r?\n)?[%ab\",; \t]{1,8}\r?\n([-+0-9.,;eEdD\" \t\r\n*a#%]{0,30}\r?\n){0,4}",
        ) {
            let bytes = text.as_bytes();
            for table in [Table::parse(bytes, "data.csv"), Table::parse_foreign(bytes, "data.csv")].into_iter().flatten() {
                for name in table.names() {
                    let texts = table.texts(name).unwrap();
                    let _ = texts.iter().map(|text| foreign_number(text)).collect::<Vec<_>>();
                    if let Ok(numbers) = table.numbers(name) {
                        prop_assert!(numbers.len() == table.n_rows() && numbers.iter().all(|x| x.is_finite()));
                    }
                    let _ = (table.numbers_or_nan(name), table.optional_numbers(name));
                }
            }
        }
    }
}
