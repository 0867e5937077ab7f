//! What went wrong to words on standard error and an exit status.

use crate::output::{self, Look};
use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode};
use std::fmt;
use std::io;
use std::process::ExitCode;
use twostep::Error;
use twostep::study::{Problem, Problems, Severity};

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
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Study(problems) => {
                show_problems(problems);
                let errors = problems.problems.iter().filter(|problem| problem.severity == Severity::Error).count();
                let what = if errors == 1 { "one problem".to_owned() } else { format!("{errors} problems") };
                output::note_as("error", Look::Error, &format!("{what} in {}; nothing was run", problems.file));
                ExitCode::from(2)
            }
            // `twostep ... | head` has what it wanted.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Self::Output(error) => {
                output::note_as("error", Look::Error, &format!("standard output: {error}"));
                ExitCode::from(1)
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
                ExitCode::from(code)
            }
        }
    }
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
        let code = |kind: io::ErrorKind| Failure::from(Error::file(Path::new("results"), kind.into(), "")).report();
        assert_eq!(code(io::ErrorKind::StorageFull), ExitCode::from(1));
        assert_eq!(code(io::ErrorKind::ReadOnlyFilesystem), ExitCode::from(1));
        assert_eq!(code(io::ErrorKind::NotFound), ExitCode::from(2));
        assert_eq!(code(io::ErrorKind::PermissionDenied), ExitCode::from(2));
    }
}
