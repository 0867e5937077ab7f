//! `twostep new`: a shipped study, with the files it needs, to the current folder.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output;
use clap::builder::PossibleValuesParser;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use twostep::Error;
use twostep::study::{Shipped, shipped};

/// The shipped study that `new` writes unless told otherwise.
const STARTER: &str = "starter";

/// Arguments of `new`.
#[derive(Debug, clap::Args)]
pub(crate) struct New {
    /// Name of the study; its file is NAME.toml [default: study, or the last part of STUDY]
    name: Option<String>,
    /// The shipped study to start from
    #[arg(long, value_name = "STUDY", default_value = STARTER, hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(shipped().iter().map(|(name, _)| *name)))]
    from: String,
    /// List the shipped studies
    #[arg(long)]
    list: bool,
}

impl New {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        if self.list {
            return list(global);
        }
        let chosen = shipped().iter().find(|(name, _)| *name == self.from);
        let (_, files) = chosen.ok_or_else(|| Error::invalid("--from", "no such study", "see `twostep new --list`"))?;
        let written = self.write(files)?;
        let names: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
        if global.json {
            return super::print_json(&json!({ "written": names }));
        }
        Ok(output::print(&format!("wrote {}\nnow try: twostep run {}\n", names.join(", "), shell_word(&names[0])))?)
    }

    /// Writes the study under its new name, and its other files beside it under the names that it knows them by.
    fn write(&self, files: &[(&str, &str)]) -> Result<Vec<PathBuf>, Error> {
        let default = if self.from == STARTER { "study" } else { self.from.rsplit('/').next().unwrap_or("study") };
        let name = self.name.as_deref().unwrap_or(default);
        let title = name.strip_suffix(".toml").unwrap_or(name);
        if title.contains('/') {
            let repair = "give a name without /, and start from the folder where the study is to lie";
            return Err(Error::invalid("NAME", format!("`{name}` is a path, not a name"), repair));
        }
        if title.trim().is_empty() || title.contains(|c: char| c.is_control() || "\"\\".contains(c)) {
            let repair = "use letters, digits, spaces, - and _";
            return Err(Error::invalid("NAME", format!("`{name}` is no name for a study"), repair));
        }
        let study = PathBuf::from(format!("{title}.toml"));
        let paths: Vec<PathBuf> = files
            .iter()
            .enumerate()
            .map(|(i, (file, _))| if i == 0 { study.clone() } else { PathBuf::from(file) })
            .collect();
        if let Some(taken) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
            let repair = "give another NAME, or work in an empty folder";
            return Err(Error::invalid(taken.display().to_string(), "the file exists and is not overwritten", repair));
        }
        for (path, (_, text)) in paths.iter().zip(files) {
            let text = if *path == study && self.name.is_some() { renamed(text, title) } else { (*text).to_owned() };
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(path)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(|problem| {
                    Error::file(path, problem, "work in a folder that exists and that you may write to")
                })?;
        }
        Ok(paths)
    }
}

/// The study with another `name = "..."`; a comment behind it stays in its column.
fn renamed(text: &str, title: &str) -> String {
    let line = |line: &str| match line.strip_prefix("name = \"").and_then(|rest| rest.split_once('"')) {
        Some((_, rest)) if rest.trim().is_empty() => format!("name = \"{title}\"\n"),
        Some((_, rest)) => {
            let comment = rest.trim_start();
            let column = line.chars().count() - comment.chars().count();
            format!("{:<width$} {comment}\n", format!("name = \"{title}\""), width = column - 1)
        }
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// A file name as a shell takes it for one argument that is no option.
fn shell_word(name: &str) -> String {
    let name = if name.starts_with('-') { format!("./{name}") } else { name.to_owned() };
    if name.chars().all(|c| c.is_alphanumeric() || "-_./+,=@:".contains(c)) {
        return name;
    }
    format!("'{}'", name.replace('\'', "'\\''"))
}

/// What a study is about: the first line of its file.
fn about(&(_, files): &Shipped) -> &'static str {
    files.first().and_then(|(_, text)| text.lines().next()).unwrap_or_default().trim_start_matches(['#', ' '])
}

fn list(global: &Global) -> Result<(), Failure> {
    if global.json {
        let studies: Vec<_> = shipped().iter().map(|study| json!({ "name": study.0, "about": about(study) })).collect();
        return super::print_json(&json!({ "studies": studies }));
    }
    let column = shipped().iter().map(|study| study.0.len()).max().unwrap_or(0) + 1;
    let indent = " ".repeat(column);
    let mut text = String::new();
    for study in shipped() {
        let line = format!("{:<column$}{}", study.0, about(study));
        text.push_str(&textwrap::fill(&line, textwrap::Options::new(output::width()).subsequent_indent(&indent)));
        text.push('\n');
    }
    Ok(output::print(&format!("{text}\n`twostep new NAME --from STUDY` writes one into the current folder\n"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_changes() {
        let text = "# name = \"x\"\nname = \"a\"   # why\nseed = 1\n";
        assert_eq!(renamed(text, "b c"), "# name = \"x\"\nname = \"b c\" # why\nseed = 1\n");
        assert_eq!(renamed(text, "longer"), "# name = \"x\"\nname = \"longer\" # why\nseed = 1\n");
        assert_eq!(renamed("name = \"abc\"   # why\n", "x"), "name = \"x\"     # why\n");
        assert_eq!(renamed("name = \"a\"\n", "b"), "name = \"b\"\n");
    }

    #[test]
    fn a_file_name_is_one_word_for_the_shell() {
        for (name, word) in [
            ("sir.toml", "sir.toml"),
            ("my study.toml", "'my study.toml'"),
            ("it's.toml", "'it'\\''s.toml'"),
            ("-x.toml", "./-x.toml"),
            ("ünï.toml", "ünï.toml"),
        ] {
            assert_eq!(shell_word(name), word);
        }
    }

    #[test]
    fn every_shipped_study_says_what_it_is_about() {
        for study in shipped() {
            assert!(about(study).len() > 20, "{}", study.0);
        }
    }
}
