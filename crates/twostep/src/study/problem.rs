//! What is wrong with a study file: each problem with its place in the text, what is allowed there and a repair.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use crate::error::Error;

/// Whether a problem stops the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Nothing runs until it is repaired.
    Error,
    /// The study runs; the author may want to think again.
    Warning,
}

/// One problem of a study file.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Whether it stops the study.
    pub severity: Severity,
    /// The key and what was found there.
    pub message: String,
    /// What is allowed there, to stand beside the caret.
    pub label: String,
    /// What to do, with the nearest spelling where one is near.
    pub help: Option<String>,
    /// Bytes of the source it is about; `None` where it is about the whole file.
    pub span: Option<Range<usize>>,
}

/// All problems of one study file that could be found at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Problems {
    /// The file as the user named it.
    pub file: String,
    /// Its text.
    pub source: String,
    /// In the order of the file; never empty.
    pub problems: Vec<Problem>,
}

impl Problems {
    /// Problems in the order of the file, each one once.
    pub(super) fn new(file: &str, source: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.span.as_ref().map(|span| (span.start, span.end)));
        let mut unique: Vec<Problem> = Vec::with_capacity(problems.len());
        for problem in problems {
            // Settings of a sweep share most of their file, and so their problems, which sorting has made neighbours.
            let same_place = unique.iter().rev().take_while(|other| other.span == problem.span);
            if !same_place.into_iter().any(|other| *other == problem) {
                unique.push(problem);
            }
        }
        Self { file: file.to_owned(), source: source.to_owned(), problems: unique }
    }

    /// Line and column, counted from 1, of a byte of the source; columns are characters.
    pub fn line_and_column(&self, offset: usize) -> (usize, usize) {
        let start = self.line_start(offset);
        let line = self.source[..start].matches('\n').count() + 1;
        let column = self.source.get(start..offset).map_or(1, |before| before.chars().count() + 1);
        (line, column)
    }

    fn line_start(&self, offset: usize) -> usize {
        let mut offset = offset.min(self.source.len());
        while !self.source.is_char_boundary(offset) {
            offset -= 1;
        }
        self.source[..offset].rfind('\n').map_or(0, |newline| newline + 1)
    }

    /// The source line of a span and the carets below it.
    fn excerpt(&self, span: &Range<usize>) -> (String, String) {
        let start = self.line_start(span.start);
        let text = self.source[start..].lines().next().unwrap_or("");
        let plain = |text: &str| text.replace(|c: char| c.is_control(), " ");
        let column = self.line_and_column(span.start).1 - 1;
        let marked =
            self.source.get(span.clone()).map_or(1, |marked| marked.lines().next().unwrap_or("").chars().count());
        (plain(text), format!("{}{}", " ".repeat(column), "^".repeat(marked.max(1))))
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            let kind = if problem.severity == Severity::Warning { "warning: " } else { "" };
            match &problem.span {
                Some(span) => {
                    let (line, column) = self.line_and_column(span.start);
                    let (text, carets) = self.excerpt(span);
                    let number = line.to_string();
                    writeln!(f, "{}:{line}:{column}: {kind}{}", self.file, problem.message)?;
                    writeln!(f, "  {number} | {text}")?;
                    write!(f, "  {} | {carets} {}", " ".repeat(number.len()), problem.label)?;
                }
                None => write!(f, "{}: {kind}{}", self.file, problem.message)?,
            }
            if let Some(help) = &problem.help {
                write!(f, "\n  help: {help}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Gathers problems while a file is read, so that one bad value does not hide the next.
#[derive(Debug, Default)]
pub(super) struct Collector(RefCell<Vec<Problem>>);

impl Collector {
    pub(super) fn error(
        &self,
        span: Option<Range<usize>>,
        message: String,
        label: &str,
        help: impl Into<Option<String>>,
    ) {
        self.push(Severity::Error, span, message, label, help.into());
    }

    pub(super) fn warning(
        &self,
        span: Option<Range<usize>>,
        message: String,
        label: &str,
        help: impl Into<Option<String>>,
    ) {
        self.push(Severity::Warning, span, message, label, help.into());
    }

    fn push(&self, severity: Severity, span: Option<Range<usize>>, message: String, label: &str, help: Option<String>) {
        self.0.borrow_mut().push(Problem { severity, message, label: label.to_owned(), help, span });
    }

    /// Whether the study cannot run.
    pub(super) fn has_errors(&self) -> bool {
        self.0.borrow().iter().any(|problem| problem.severity == Severity::Error)
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.0.into_inner()
    }
}

/// What was found and the repair, of an error whose place the caller knows better.
pub(super) fn found_and_repair(error: Error) -> (String, Option<String>) {
    match error {
        Error::Invalid { found, repair, .. } => (found, Some(repair)),
        Error::Failed { problem, repair, .. } => (problem, Some(repair)),
        other => (other.to_string(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(span: Option<Range<usize>>, message: &str) -> Problem {
        let (label, help) = ("two numbers".to_owned(), Some("write [1, 3]".to_owned()));
        Problem { severity: Severity::Error, message: message.to_owned(), label, help, span }
    }

    #[test]
    fn text_has_place_line_caret_and_help() {
        let source = "name = \"µ\"\n\trange = [3, 1]\n";
        let start = source.find('[').unwrap();
        let span = Some(start..start + 6);
        let problems =
            Problems::new("a.toml", source, vec![problem(span.clone(), "b"), problem(None, "a"), problem(span, "b")]);
        assert_eq!(
            problems.to_string(),
            "a.toml: a\n  help: write [1, 3]\n\
             a.toml:2:10: b\n  2 |  range = [3, 1]\n    |          ^^^^^^ two numbers\n  help: write [1, 3]"
        );
    }

    #[test]
    fn any_offset_has_a_place() {
        let problems = Problems::new("a.toml", "a = \"µ\"\n", vec![problem(None, "a")]);
        for offset in 0..20 {
            let _ = problems.line_and_column(offset);
            let _ = problems.excerpt(&(offset..offset + 3));
        }
        assert_eq!(problems.line_and_column(0), (1, 1));
    }
}
