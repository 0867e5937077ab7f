//! `twostep compare`: studies of the same measurements by their evidences, from finished results.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output::{self, Look, wrapped};
use crate::results::Grid;
use crate::session::{self, describe};
use serde_json::to_value;
use std::path::PathBuf;
use twostep::Error;
use twostep::infer::propagation::Method;
use twostep::run::{ComparedBy, Comparison, Contender, compare};

/// What the columns hold.
pub(crate) const ABOUT: &str = "\
The evidence is the probability density of the measurements by a study, all unknowns integrated out; the Bayes factor of two \
studies is the ratio of their evidences. By point it is that of one best surrogate, by e-lik the mean of those of all T-draws, whose \
number is part of the error. E-post weighs T-draws alike whatever the measurements say, and e-log-lik pools no probabilities: neither \
has an evidence. A study that sweeps enters with all its settings.";

/// Arguments of `compare`.
#[derive(Debug, clap::Args)]
pub(crate) struct Compare {
    /// The study files, of the same measurements
    #[arg(required = true, value_name = "STUDY")]
    studies: Vec<PathBuf>,
    /// The measurements that `infer` was given, where they are not the studies'
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
}

impl Compare {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        if global.out.is_some() && self.studies.len() > 1 {
            let found = format!("is one folder of results, and each of {} studies has its own", self.studies.len());
            return Err(Error::invalid("--out", found, "leave it out").into());
        }
        let mut projects = Vec::new();
        for study in &self.studies {
            projects.push((study, session::open(study, global, self.measurements.as_deref())?));
        }
        let mut settings = Vec::new();
        for (file, project) in &projects {
            for (i, setting) in project.settings().iter().enumerate() {
                let label = describe(&setting.label);
                let of_sweep = if label.is_empty() { label } else { format!(", {label}") };
                let name = format!("{}{of_sweep}", file.display());
                let (measured, answers) = project.answered(i, &name)?;
                settings.push((name, &setting.study, measured, answers));
            }
        }
        let contenders: Vec<Contender<'_>> = settings
            .iter()
            .map(|(name, study, measured, answers)| Contender { name: name.clone(), study, measured, answers })
            .collect();
        let comparison = compare(&contenders)?;
        if global.json {
            return super::print_json(&to_value(&comparison).unwrap_or_default());
        }
        output::print(&text(&comparison))?;
        for warning in &comparison.warnings {
            output::note_as("warning", Look::Warning, warning);
        }
        Ok(())
    }
}

/// A table and a sentence by each method, then what to keep in mind.
fn text(comparison: &Comparison) -> String {
    let mut text = String::new();
    for by_method in &comparison.methods {
        text.push_str(&table(by_method).render(output::width(), output::stdout_coloured()));
        text.push_str(&format!("{}\n\n", wrapped(&by_method.verdict, "")));
    }
    let caption =
        "log Bayes factor against the best (*); ± one standard error; probability if all were equally probable before";
    text.push_str(&format!("{}\n", wrapped(caption, "")));
    for note in &comparison.notes {
        text.push_str(&format!("{}\n", wrapped(note, "")));
    }
    text
}

fn table(by_method: &ComparedBy) -> Grid {
    let method = Method::named(&by_method.method);
    let title = method.map_or_else(|| by_method.method.clone(), |method| method.title().to_owned());
    let header = [title, "log evidence".to_owned(), "log Bayes factor".to_owned(), "probability".to_owned()];
    let mut grid = Grid::new(header.to_vec(), 1);
    let best = by_method.studies.iter().position(|study| study.log_bayes_factor == 0.0);
    for (i, study) in by_method.studies.iter().enumerate() {
        let (mark, factor) = match Some(i) == best {
            true => ('*', "0".to_owned()),
            false => (' ', format!("{:.2} ± {:.2}", study.log_bayes_factor, study.log_bayes_factor_error)),
        };
        let probability = match study.probability {
            p if p < 0.001 => "< 0.001".to_owned(),
            p => format!("{p:.3}"),
        };
        let evidence = format!("{:.2} ± {:.2}", study.log_evidence, study.log_evidence_error);
        grid.push(vec![format!("{mark} {}", study.study), evidence, factor, probability], mark == '*');
    }
    grid
}
