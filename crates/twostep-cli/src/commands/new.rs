//! `twostep new`: a shipped study, with the files it needs, to the current folder.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output;
use clap::builder::PossibleValuesParser;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use twostep::Error;
use twostep::study::{Shipped, shipped};

/// Arguments of `new`.
#[derive(Debug, clap::Args)]
pub(crate) struct New {
    /// Name of the study; its file is NAME.toml
    name: Option<String>,
    /// The shipped study to start from
    #[arg(long, value_name = "STUDY", default_value = "starter", hide_possible_values = true)]
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
        let study = written[0].display();
        if global.json {
            let names: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
            return super::print_json(&json!({ "written": names }));
        }
        let names: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
        Ok(output::print(&format!("wrote {}\nnow try: twostep run {study}\n", names.join(", ")))?)
    }

    /// Writes the study under its new name, and its other files beside it under the names that it knows them by.
    fn write(&self, files: &[(&str, &str)]) -> Result<Vec<PathBuf>, Error> {
        let name = self.name.as_deref().unwrap_or("study");
        let stem = name.strip_suffix(".toml").unwrap_or(name);
        let study = PathBuf::from(format!("{stem}.toml"));
        let title = Path::new(stem).file_name().and_then(|title| title.to_str()).unwrap_or_default();
        if title.trim().is_empty() || title.contains(|c: char| c.is_control() || "\"\\".contains(c)) {
            let repair = "use letters, digits, spaces, - and _";
            return Err(Error::invalid("NAME", format!("`{name}` is no name for a study"), repair));
        }
        let paths: Vec<PathBuf> = files
            .iter()
            .enumerate()
            .map(|(i, (file, _))| if i == 0 { study.clone() } else { study.with_file_name(file) })
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

/// The study with another `name = "..."`.
fn renamed(text: &str, title: &str) -> String {
    let line = |line: &str| match line.strip_prefix("name = \"").and_then(|rest| rest.split_once('"')) {
        Some((_, rest)) => format!("name = \"{title}\"{rest}\n"),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
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
    let indent = " ".repeat(18);
    let mut text = String::new();
    for study in shipped() {
        let line = format!("{:<17} {}", study.0, about(study));
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
        assert_eq!(renamed(text, "b c"), "# name = \"x\"\nname = \"b c\"   # why\nseed = 1\n");
    }

    #[test]
    fn every_shipped_study_says_what_it_is_about() {
        for study in shipped() {
            assert!(about(study).len() > 20, "{}", study.0);
        }
    }
}
