//! A study file and the flags of every command to a project that can be run.

use crate::arguments::Global;
use crate::failure::Failure;
use std::path::{Path, PathBuf};
use twostep::Error;
pub(crate) use twostep::report::words::setting as describe;
use twostep::run::Project;
use twostep::study::{self, MeasurementSource, Problem, Setting, Severity, read_measurements, shipped, unused_columns};

/// Loads the study, puts in what the flags override, and finds the folder of results.
///
/// # Errors
/// A study that is missing or wrong; a seed that the study sweeps over.
pub(crate) fn open(file: &Path, global: &Global, measurements: Option<&Path>) -> Result<Project, Failure> {
    if !file.exists() {
        return Err(missing(file).into());
    }
    let mut settings = study::load(file)?;
    for Setting { label, study } in &mut settings {
        if let Some(seed) = global.seed {
            if label.iter().any(|(key, _)| key == "seed") {
                let repair = "leave out --seed, or take seed out of [sweep]";
                return Err(Error::invalid("--seed", "this study sweeps over its seed", repair).into());
            }
            study.seed = seed;
        }
        let mut measured = study.clone();
        if let Some(file) = measurements {
            measured.measurements = MeasurementSource::File(file.to_path_buf());
        }
        // A file that cannot be read is refused by those who need it.
        study.notes.extend(unused_columns(&measured).unwrap_or_default().into_iter().map(|message| Problem {
            severity: Severity::Warning,
            message,
            label: String::new(),
            help: None,
            span: None,
        }));
    }
    let folder = global.out.clone().unwrap_or_else(|| default_folder(file));
    let project = Project::new(settings, folder);
    Ok(match measurements {
        Some(file) => project.with_measurements(file),
        None => project,
    })
}

/// Reads every file of measurements, so that a wrong one is refused before the simulator has run for hours.
///
/// # Errors
/// As for [`read_measurements`].
pub(crate) fn check_measurements(project: &Project) -> Result<(), Error> {
    for Setting { study, .. } in project.settings() {
        if !matches!(study.measurements, MeasurementSource::Synthetic { .. }) {
            read_measurements(study)?;
        }
    }
    Ok(())
}

/// The setting with this number, from 1, counted from 0; may be left out where there is one only. `what` is of one setting,
/// as in "predictions are".
///
/// # Errors
/// A number that is missing or too large.
pub(crate) fn setting(project: &Project, number: Option<usize>, what: &str) -> Result<usize, Error> {
    let settings = project.settings();
    match number {
        Some(number) if (1..=settings.len()).contains(&number) => Ok(number - 1),
        None if settings.len() == 1 => Ok(0),
        asked => {
            let found = match asked {
                Some(number) => format!("there is no setting {number}"),
                None => format!("the study sweeps, and {what} of one setting"),
            };
            let first: Vec<String> = settings
                .iter()
                .enumerate()
                .take(5)
                .map(|(i, setting)| format!("{} ({})", i + 1, describe(&setting.label)))
                .collect();
            let more = if settings.len() > first.len() { ", ..." } else { "" };
            let repair = match settings {
                [_] => "leave out --setting: the study has no sweep".to_owned(),
                _ => format!("give 1 to {}: {}{more}", settings.len(), first.join(", ")),
            };
            Err(Error::invalid("--setting", found, repair))
        }
    }
}

/// `sir.toml` to `sir.twostep`, beside it.
fn default_folder(file: &Path) -> PathBuf {
    let mut name = file.file_stem().unwrap_or_default().to_os_string();
    name.push(".twostep");
    file.with_file_name(name)
}

fn missing(file: &Path) -> Error {
    let place = file.display().to_string();
    let known = shipped().iter().find(|(name, _)| Path::new(name) == file.with_extension(""));
    let repair = match known {
        Some((name, _)) => format!("`twostep new --from {name}` writes that study into the current folder"),
        None => "check the path; `twostep new` makes a starter study".to_owned(),
    };
    Error::invalid(place, "there is no such study file", repair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_lie_beside_the_study() {
        assert_eq!(default_folder(Path::new("a/b.c.toml")), Path::new("a/b.c.twostep"));
        assert_eq!(default_folder(Path::new("study")), Path::new("study.twostep"));
    }
}
