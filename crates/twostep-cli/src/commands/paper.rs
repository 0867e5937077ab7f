//! `twostep paper`: the figures and tables of the paper, made anew.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;
use serde_json::json;
use std::path::{Path, PathBuf};
use twostep::Error;
use twostep::report::paper::{FIGURES, Made, Numbered, figure};
use twostep::report::{png, svg};
use twostep::table::write_atomically;

/// Where the studies and figures go unless told otherwise.
const FOLDER: &str = "paper";

/// Width of a figure in pixels, 96 to the inch: that of a page's text.
const WIDTH: f64 = 720.0;

/// Dots of an image for each pixel.
const SCALE: f64 = 2.0;

/// What the help says below the options.
pub(crate) const ABOUT: &str = "\
Figures have the paper's numbers (3 to 8 in the text, 10 to 15 in the appendix; 1, 2 and 9 are
drawings). Each is written as figure-03.svg, .png and, with its data, .csv; table 2 as table-2.csv;
into the folder `paper`, or the one that --out names.

The studies lie in the same folder with their results, which are kept: a second call is quick, and
after Ctrl-C the next one goes on. A study file that you have changed is used as it is. Figures 5
and 7 are calibrations of 1200 and 4000 trials, figures 14 and 15 measure times: minutes each.";

/// Arguments of `paper`.
#[derive(Debug, clap::Args)]
pub(crate) struct Paper {
    /// Make this figure alone; may be repeated
    #[arg(long, value_name = "N")]
    figure: Vec<usize>,
}

impl Paper {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        if global.seed.is_some() {
            let repair = "leave it out, or change `seed` in the studies that it writes";
            return Err(Error::invalid("--seed", "each of the paper's studies has a seed of its own", repair).into());
        }
        let folder = global.out.clone().unwrap_or_else(|| PathBuf::from(FOLDER));
        let asked = |figure: &&Numbered| match self.figure[..] {
            [] => !figure.studies.is_empty(),
            _ => self.figure.contains(&figure.number),
        };
        // A wrong number is refused before anything is made.
        if let Some(wrong) =
            self.figure.iter().find(|n| !FIGURES.iter().any(|f| f.number == **n && !f.studies.is_empty()))
        {
            figure(*wrong, &folder, &twostep::monitor::Silent)?;
        }
        let mut written = Vec::new();
        let progress = Progress::new(global.quiet);
        let outcome = FIGURES.iter().filter(asked).try_for_each(|numbered| {
            let made = figure(numbered.number, &folder, &progress)?;
            let files = write(&made, &folder)?;
            if !global.json {
                output::print(&format!("{}: {}\n", made.figure.title, names(&files)))?;
            }
            written.extend(files);
            Ok::<(), Failure>(())
        });
        progress.finish();
        outcome?;
        if global.json {
            let files: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
            return super::print_json(&json!({ "written": files }));
        }
        if self.figure.is_empty() {
            let drawings: Vec<String> = FIGURES
                .iter()
                .filter(|figure| figure.studies.is_empty())
                .map(|figure| format!("{} ({})", figure.number, figure.about))
                .collect();
            output::print(&format!("left out, as they are drawings: {}\n", drawings.join(", ")))?;
        }
        Ok(output::print(&format!("figures, studies and results in {}\n", folder.display()))?)
    }
}

/// `figure-03.svg, figure-03.png`.
fn names(files: &[PathBuf]) -> String {
    let names = files.iter().filter_map(|path| path.file_name());
    names.map(|name| name.to_string_lossy().into_owned()).collect::<Vec<_>>().join(", ")
}

fn write(made: &Made, folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let drawing = svg(&made.figure, WIDTH);
    let id = &made.figure.id;
    let mut files = vec![
        (format!("{id}.svg"), drawing.clone().into_bytes()),
        (format!("{id}.png"), png(&drawing, SCALE)?),
        (format!("{id}.csv"), made.figure.table()?.to_csv()?),
    ];
    if let Some((name, table)) = &made.table {
        files.push((format!("{name}.csv"), table.to_csv()?));
    }
    let mut written = Vec::new();
    for (name, content) in files {
        let path = folder.join(name);
        write_atomically(&path, &content)?;
        written.push(path);
    }
    Ok(written)
}
