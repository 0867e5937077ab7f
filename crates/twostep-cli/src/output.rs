//! Text to the terminal: colours where they are seen, lines no wider than the window, and readers that leave early.

use clap::builder::styling::{AnsiColor, Style};
use std::io::{self, IsTerminal, Write};

/// Width of tables where nothing says how wide the window is.
const DEFAULT_WIDTH: usize = 100;

/// Below this width even one number with its interval would be cut.
const MIN_WIDTH: usize = 40;

/// How something is to look.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look {
    Bold,
    Dim,
    Error,
    Warning,
    Help,
}

impl Look {
    fn style(self) -> Style {
        match self {
            Self::Bold => Style::new().bold(),
            Self::Dim => Style::new().dimmed(),
            Self::Error => AnsiColor::Red.on_default().bold(),
            Self::Warning => AnsiColor::Yellow.on_default().bold(),
            Self::Help => AnsiColor::Cyan.on_default(),
        }
    }
}

/// `text` in that look where `coloured`.
pub(crate) fn paint(text: &str, look: Look, coloured: bool) -> String {
    if !coloured {
        return text.to_owned();
    }
    let style = look.style();
    format!("{style}{text}{style:#}")
}

fn colours_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether standard output shows colours.
pub(crate) fn stdout_coloured() -> bool {
    io::stdout().is_terminal() && colours_wanted()
}

/// Whether standard error shows colours.
pub(crate) fn stderr_coloured() -> bool {
    io::stderr().is_terminal() && colours_wanted()
}

/// Columns of the window: `COLUMNS`, else what the terminal says, else 100.
pub(crate) fn width() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse::<usize>().ok());
    let measured = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    told.or_else(measured).unwrap_or(DEFAULT_WIDTH).max(MIN_WIDTH)
}

/// Writes `text` to standard output.
///
/// # Errors
/// What the system says; a reader that has gone away (`BrokenPipe`) is for the caller to take as success.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// `text` in lines no wider than the window, the later ones indented.
pub(crate) fn wrapped(text: &str, indent: &str) -> String {
    // A path or a key must stay whole so that it can be copied.
    let options = textwrap::Options::new(width())
        .subsequent_indent(indent)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}

/// Writes a line to standard error; there is nobody left to tell if that fails.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes `kind: text`, wrapped to the window, to standard error.
pub(crate) fn note_as(kind: &str, look: Look, text: &str) {
    let wrapped = wrapped(&format!("{kind}: {text}"), "  ");
    let head = format!("{kind}:");
    let rest = wrapped.strip_prefix(&head).unwrap_or(&wrapped);
    note(&format!("{}{rest}", paint(&head, look, stderr_coloured())));
}
