//! `twostep figures`: figures of finished results for papers and slides, with their data.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;
use crate::session;
use clap::ValueEnum;
use serde_json::json;
use std::path::PathBuf;
use twostep::Error;
use twostep::report::{self, Format, Report};
use twostep::table::write_atomically;

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Svg,
    Png,
}

/// Arguments of `figures`.
#[derive(Debug, clap::Args)]
pub(crate) struct Figures {
    /// The study file
    study: PathBuf,
    /// Only these figures, by name; several with commas [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Width of the figure: 85mm, 8.5cm or 3.3in
    #[arg(long, value_name = "LENGTH", default_value = "170mm", value_parser = millimetres)]
    width: f64,
    /// Kind of file; both unless given
    #[arg(long, value_enum)]
    format: Option<Kind>,
    /// Setting of the sweep, from 1 [default: all]
    #[arg(long, value_name = "N")]
    setting: Option<usize>,
    /// Folder to write to [default: figures/ beside the results]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// The measurements that `infer` was given, where they are not the study's
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
    /// List the figures that there are, and stop
    #[arg(long)]
    list: bool,
}

/// Widths that make sense on paper or a poster.
const WIDTHS: std::ops::RangeInclusive<f64> = 40.0..=1200.0;

/// A length in millimetres.
fn millimetres(text: &str) -> Result<f64, String> {
    let units = [("mm", 1.0), ("cm", 10.0), ("in", 25.4)];
    let parsed = units.iter().find_map(|(unit, factor)| {
        text.trim().strip_suffix(unit).and_then(|number| number.trim().parse::<f64>().ok()).map(|n| n * factor)
    });
    match parsed {
        Some(width) if WIDTHS.contains(&width) => Ok(width),
        Some(_) => Err(format!("give between {} and {} mm", WIDTHS.start(), WIDTHS.end())),
        None => Err("give a number with its unit, such as 85mm, 8.5cm or 3.3in".to_owned()),
    }
}

impl Figures {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, self.measurements.as_deref())?;
        let chosen = self.setting.map(|n| session::setting(&project, Some(n), "figures are")).transpose()?;
        let chosen = chosen.map(|index| project.setting_folder(index).path().to_path_buf());
        let progress = Progress::new(global.quiet);
        let report = Report::new(&project, &progress);
        progress.finish();
        let report = report?;
        let all: Vec<_> = report
            .figures()
            .into_iter()
            .filter(|(folder, _)| chosen.as_ref().is_none_or(|own| own == folder))
            .collect();
        let mut names: Vec<&str> = all.iter().map(|(_, figure)| figure.id.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        if self.list {
            return self.print_list(&names, global);
        }
        if let Some(unknown) = self.only.iter().find(|name| !names.contains(&name.as_str())) {
            let found = format!("there is no figure `{unknown}`");
            return Err(Error::invalid("--only", found, format!("choose from {}", names.join(", "))).into());
        }
        let formats: &[Format] = match self.format {
            Some(Kind::Svg) => &[Format::Svg],
            Some(Kind::Png) => &[Format::Png],
            None => &[Format::Svg, Format::Png],
        };
        let mut written = Vec::new();
        for (folder, figure) in all {
            if !self.only.is_empty() && !self.only.contains(&figure.id) {
                continue;
            }
            // Settings of a sweep have figures of the same names.
            let inside = folder.strip_prefix(project.folder()).unwrap_or(&folder).to_path_buf();
            let into = self.to.as_ref().map_or_else(|| folder.join("figures"), |to| to.join(inside));
            std::fs::create_dir_all(&into).map_err(|e| Error::file(&into, e, "give --to a folder you may write to"))?;
            for format in formats {
                let path = into.join(format!("{}.{}", figure.id, format.extension()));
                write_atomically(&path, &report::draw(figure, self.width, *format)?)?;
                written.push(path);
            }
            let path = into.join(format!("{}.csv", figure.id));
            write_atomically(&path, &figure.table()?.to_csv()?)?;
            written.push(path);
        }
        if global.json {
            let paths: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
            return super::print_json(&json!({ "figures": paths }));
        }
        let lines: String = written.iter().map(|path| format!("{}\n", path.display())).collect();
        Ok(output::print(&lines)?)
    }

    fn print_list(&self, names: &[&str], global: &Global) -> Result<(), Failure> {
        match global.json {
            true => super::print_json(&json!({ "figures": names })),
            false => Ok(output::print(&format!("{}\n", names.join("\n")))?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_have_units() {
        assert_eq!(millimetres("85mm"), Ok(85.0));
        assert_eq!(millimetres("8.5 cm"), Ok(85.0));
        assert_eq!(millimetres("4in"), Ok(101.6));
        for wrong in ["85", "mm", "1mm", "1e9mm", "NaNmm", "-85mm"] {
            assert!(millimetres(wrong).is_err(), "{wrong}");
        }
    }
}
