//! What went wrong to words on standard error, JSON on standard output where asked for, and an exit status.

use crate::output::{self, Look};
use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode};
use serde_json::{Value, json};
use std::fmt;
use std::io;
use twostep::Error;
use twostep::study::{Problem, Problems, Severity};
use twostep::table::counted;

/// Why a command did not finish.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The study file is wrong.
    Study(Problems),
    /// Anything the library refuses or cannot do.
    Library(Error),
    /// Standard output cannot be written.
    Output(io::Error),
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Self::Study(problems)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl Failure {
    /// Tells the user, and returns 1 where a computation or the disk failed, 2 for bad input, 130 for an interruption.
    pub(crate) fn report(&self, json: bool) -> u8 {
        if let Some(value) = self.json().filter(|_| json) {
            print_error(&value);
        }
        match self {
            Self::Study(problems) => {
                show_problems(problems);
                let errors = problems.problems.iter().filter(|problem| problem.severity == Severity::Error).count();
                let what = counted(errors, "problem");
                output::note_as("error", Look::Error, &format!("{what} in {}; nothing was run", problems.file));
                2
            }
            // `twostep ... | head` has what it wanted.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Output(error) => {
                output::note_as("error", Look::Error, &format!("standard output: {error}"));
                1
            }
            Self::Library(error) => {
                let (found, repair, code) = match error {
                    Error::Invalid { place, found, repair } => (format!("{place}: {found}"), Some(repair), 2),
                    Error::File { path, source, repair } => {
                        // A disk that is full or read-only is no fault of the arguments.
                        let disk = matches!(
                            source.kind(),
                            io::ErrorKind::StorageFull
                                | io::ErrorKind::ReadOnlyFilesystem
                                | io::ErrorKind::QuotaExceeded
                        );
                        (format!("{}: {source}", path.display()), Some(repair), if disk { 1 } else { 2 })
                    }
                    Error::Failed { stage, problem, repair } => (format!("{stage}: {problem}"), Some(repair), 1),
                    Error::Interrupted => (error.to_string(), None, 130),
                    other => (other.to_string(), None, 1),
                };
                output::note_as("error", Look::Error, &found);
                if let Some(repair) = repair {
                    output::note_as("help", Look::Help, repair);
                }
                code
            }
        }
    }

    /// Place, line, message and help; of a study all its problems besides. `None` where nobody reads standard output.
    fn json(&self) -> Option<Value> {
        Some(match self {
            Self::Output(_) => return None,
            Self::Study(problems) => {
                let all: Vec<Value> = problems.problems.iter().map(|problem| problem_json(problems, problem)).collect();
                let first = all.iter().find(|problem| problem["severity"] == "error").or(all.first())?;
                let mut value = first.clone();
                value["problems"] = json!(all);
                value
            }
            Self::Library(Error::Invalid { place, found, repair }) => error_json(place, found, Some(repair)),
            Self::Library(Error::File { path, source, repair }) => {
                error_json(&path.display().to_string(), &source.to_string(), Some(repair))
            }
            Self::Library(Error::Failed { stage, problem, repair }) => error_json(stage, problem, Some(repair)),
            Self::Library(other) => error_json("run", &other.to_string(), None),
        })
    }
}

/// One problem of a study file, with its place.
pub(crate) fn problem_json(problems: &Problems, problem: &Problem) -> Value {
    let place = problem.span.as_ref().map(|span| problems.line_and_column(span.start));
    json!({
        "severity": match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        },
        "place": problems.file,
        "line": place.map(|(line, _)| line),
        "column": place.map(|(_, column)| column),
        "message": problem.message,
        "expected": Some(&problem.label).filter(|label| !label.is_empty()),
        "help": problem.help,
    })
}

fn error_json(place: &str, message: &str, help: Option<&String>) -> Value {
    // Cells of tables are told by words: `y.csv, line 4, column `y``.
    let line = place.split_once(", line ").map(|(_, rest)| rest.split(',').next().unwrap_or(rest));
    let line = line.and_then(|number| number.parse::<usize>().ok());
    json!({ "severity": "error", "place": place, "line": line, "message": message, "help": help })
}

/// A command line that cannot be read, as JSON.
pub(crate) fn print_usage_error(message: &str) {
    let first = message.lines().next().unwrap_or(message);
    let first = first.strip_prefix("error: ").unwrap_or(first);
    print_error(&error_json("command line", first, Some(&"see `twostep --help`".to_owned())));
}

fn print_error(error: &Value) {
    // The words on standard error and the exit status say it too.
    let _ = output::print(&format!("{:#}\n", json!({ "error": error })));
}

/// Shows every problem with its line of the study file on standard error.
pub(crate) fn show_problems(problems: &Problems) {
    let theme = if output::stderr_coloured() { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let handler = GraphicalReportHandler::new_themed(theme)
        .with_width(output::width())
        .with_word_splitter(textwrap::WordSplitter::NoHyphenation);
    let mut reports = Vec::new();
    for problem in &problems.problems {
        let mut text = String::new();
        let source = NamedSource::new(&problems.file, problems.source.clone());
        if handler.render_report(&mut text, &Report { problem, source }).is_err() {
            // A place that the renderer cannot draw; the library's own text has line and caret too.
            return output::note(&problems.to_string());
        }
        reports.push(text);
    }
    output::note(&reports.join("\n"));
}

/// One problem as miette wants it.
#[derive(Debug)]
struct Report<'a> {
    problem: &'a Problem,
    source: NamedSource<String>,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem.message)
    }
}

impl std::error::Error for Report<'_> {}

impl Diagnostic for Report<'_> {
    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.problem.severity {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.problem.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.problem.span.as_ref().map(|_| &self.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.problem.span.clone()?;
        let label = Some(self.problem.label.clone()).filter(|label| !label.is_empty());
        Some(Box::new(std::iter::once(LabeledSpan::new_primary_with_span(label, span))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_disk_is_no_argument() {
        let code =
            |kind: io::ErrorKind| Failure::from(Error::file(Path::new("results"), kind.into(), "")).report(false);
        assert_eq!(code(io::ErrorKind::StorageFull), 1);
        assert_eq!(code(io::ErrorKind::ReadOnlyFilesystem), 1);
        assert_eq!(code(io::ErrorKind::NotFound), 2);
        assert_eq!(code(io::ErrorKind::PermissionDenied), 2);
    }
}
