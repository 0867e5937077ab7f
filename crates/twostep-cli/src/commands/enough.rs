//! `twostep enough`: whether the simulator runs that exist were enough, by retraining on parts of them.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output::{self, Look, wrapped};
use crate::progress::Progress;
use crate::results::Grid;
use crate::session::{self, describe};
use std::path::PathBuf;
use twostep::calibrate::enough::THRESHOLD;
use twostep::report::words::rounded;
use twostep::run::{EnoughResult, Origin, SurrogateShare, enough_json};
use twostep::study::Study;

/// What the table and the file hold.
pub(crate) const ABOUT: &str = "\
The surrogate is trained again on nested parts of the runs that exist; the simulator is run only where the study's own runs \
are not there yet. The share is that part of the posterior variance which the surrogate has not learned, so that more runs \
remove it; below the share of --share the runs were enough. Results are in enough.json.";

/// Arguments of `enough`.
#[derive(Debug, clap::Args)]
pub(crate) struct Enough {
    /// The study file
    study: PathBuf,
    /// Take the measurements from this CSV file instead of the study's
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
    /// Part of the posterior variance that the surrogate's own uncertainty may be
    #[arg(long, value_name = "SHARE", default_value_t = THRESHOLD)]
    share: f64,
}

impl Enough {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, self.measurements.as_deref())?;
        let progress = Progress::new(global.quiet);
        let outcome = project.enough(self.share, &progress);
        progress.finish();
        let results = outcome?;
        if global.json {
            super::print_json(&enough_json(&project, &results))?;
        } else {
            let blocks: Vec<String> = project
                .settings()
                .iter()
                .zip(&results)
                .map(|(setting, result)| block(&setting.study, result))
                .collect();
            output::print(&blocks.join("\n"))?;
        }
        for result in &results {
            for warning in &result.enough.warnings {
                let about = describe(&result.label);
                let about = if about.is_empty() { about } else { format!(" ({about})") };
                output::note_as("warning", Look::Warning, &format!("{warning}{about}"));
            }
        }
        if !global.json {
            output::print(&format!("results in {}\n", project.folder().display()))?;
        }
        Ok(())
    }
}

/// The table and the advice of one setting.
fn block(study: &Study, result: &EnoughResult) -> String {
    let enough = &result.enough;
    let inferred = study.inferred();
    let several = inferred.len() > 1;
    let header = inferred.iter().flat_map(|unknown| {
        let of = if several { format!(" of {}", unknown.name) } else { String::new() };
        [format!("width{of}"), "of the prior's".to_owned(), format!("surrogate share{of}")]
    });
    let mut grid = Grid::new(["runs".to_owned()].into_iter().chain(header).collect(), 1);
    for size in &enough.widths_by_runs {
        let mark = if size.prior_in_charge { " (prior)" } else { "" };
        let cells = inferred.iter().filter_map(|unknown| size.unknowns.get(&unknown.name)).flat_map(|width| {
            let [mean, low, high] = rounded([width.width, width.range[0], width.range[1]], width.width);
            let of_prior = format!("{:.0} %", 100.0 * width.of_prior);
            [format!("{mean} ({low} to {high})"), of_prior, share(&width.surrogate_share)]
        });
        let last = size.runs == enough.runs;
        grid.push([format!("{}{mark}", size.runs)].into_iter().chain(cells).collect(), last);
    }
    let kept = if result.origin == Origin::Kept { " (kept)" } else { "" };
    let label = describe(&result.label);
    let label = if label.is_empty() { label } else { format!("{label}\n") };
    let mut text = format!("{label}{}\n", grid.render(output::width(), output::stdout_coloured()));
    let mut note = format!(
        "width of the 90 % interval by {}, mean (range) of {} nested sequences of runs; share [5 %, 95 %]",
        enough.method, enough.sequences
    );
    if enough.widths_by_runs.iter().any(|size| size.prior_in_charge) {
        note.push_str(&format!("; (prior): fewer runs than the {} parameters of the surrogate", enough.parameters));
    }
    for paragraph in [note, format!("verdict{kept}: {}. {}", enough.verdict, enough.advice)] {
        text.push_str(&wrapped(&paragraph, ""));
        text.push('\n');
    }
    text
}

fn share(share: &SurrogateShare) -> String {
    let [mean, low, high] = [share.share, share.interval[0], share.interval[1]].map(|s| format!("{:.1}", 100.0 * s));
    format!("{mean} % [{low}, {high}]")
}
