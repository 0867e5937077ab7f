//! `summary.json` and `summary.csv`: every number of every setting and method, with what it was made of.

use super::{Project, SettingResult};
use crate::error::Result;
use crate::study::{MeasurementSource, Study};
use crate::table::Table;
use serde_json::{Map, Value, json};
use std::path::Path;

/// The content of `summary.json`.
pub fn summary(project: &Project, results: &[SettingResult]) -> Value {
    let settings: Vec<Value> = project
        .settings()
        .iter()
        .zip(results)
        .enumerate()
        .map(|(i, (setting, result))| {
            let label: Map<String, Value> = result.label.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
            let methods: Map<String, Value> = result
                .posteriors
                .iter()
                .map(|posterior| {
                    let unknowns: Map<String, Value> = posterior
                        .unknowns
                        .iter()
                        .map(|u| {
                            let mut value = serde_json::to_value(u).unwrap_or(Value::Null);
                            // For figures: many numbers, and none that a table has a place for.
                            value.as_object_mut().map(|object| object.shift_remove("curve"));
                            (u.name.clone(), value)
                        })
                        .collect();
                    let value = json!({
                        "engine": posterior.engine,
                        "trust": posterior.trust,
                        "unknowns": unknowns,
                        "diagnostics": posterior.diagnostics,
                        "warnings": posterior.warnings,
                    });
                    (posterior.method.clone(), value)
                })
                .collect();
            let outside: Map<String, Value> =
                setting.study.unknowns.iter().map(|u| (u.name.clone(), json!(u.mass_outside))).collect();
            let values: Map<String, Value> = result.measured.iter().map(|(o, n)| (o.clone(), json!(n))).collect();
            json!({
                "setting": label,
                "number": i + 1,
                "folder": folder_name(project, &result.folder),
                "study_hash": result.study_hash,
                "version": result.made_by.version,
                "instruction_set": result.made_by.instruction_set,
                "seed": setting.study.seed,
                "runs": result.runs[0],
                "failed_runs": result.runs[1],
                "measurements": { "source": source(&setting.study), "values": values },
                "answer": result.answer,
                "prior_mass_outside_range": outside,
                "t_step": result.t_reports,
                "methods": methods,
                "warnings": result.warnings,
            })
        })
        .collect();
    let study = &project.settings()[0].study;
    json!({ "study": study.name, "settings": settings })
}

/// A setting's folder as seen from the project's.
pub(super) fn folder_name(project: &Project, folder: &Path) -> String {
    let inside = folder.strip_prefix(project.folder()).unwrap_or(folder);
    if inside.as_os_str().is_empty() { ".".into() } else { inside.display().to_string() }
}

/// Where the measurements come from: `synthetic`, or the name of the file.
fn source(study: &Study) -> Option<String> {
    match &study.measurements {
        MeasurementSource::File(path) => Some(path.file_name().unwrap_or_default().to_string_lossy().into_owned()),
        MeasurementSource::Synthetic { .. } => Some("synthetic".into()),
        MeasurementSource::None => None,
    }
}

/// Names and contents of both files.
pub(super) fn files(project: &Project, results: &[SettingResult]) -> Result<[(&'static str, Vec<u8>); 2]> {
    let mut text = serde_json::to_string_pretty(&summary(project, results)).expect("keys are strings");
    text.push('\n');
    Ok([("summary.json", text.into_bytes()), ("summary.csv", table(project, results)?.to_csv()?)])
}

/// One row per setting, method and unknown.
fn table(project: &Project, results: &[SettingResult]) -> Result<Table> {
    let keys: Vec<&str> = results[0].label.iter().map(|(key, _)| key.as_str()).collect();
    // Which setting a row belongs to, so that predictions of it can be asked for by number.
    let places: &[&str] = if keys.is_empty() { &[] } else { &["setting", "folder"] };
    let numbers = ["mean", "sd", "q05", "q25", "q50", "q75", "q95"];
    let optional = ["mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat", "quadrature_error"];
    let origin = ["study_hash", "study_seed", "version"];
    let names: Vec<&str> = [&keys[..], places, &["method", "unknown", "engine"], &numbers, &optional, &origin].concat();
    let mut columns: Vec<Vec<String>> = vec![Vec::new(); names.len()];
    for (i, (setting, result)) in project.settings().iter().zip(results).enumerate() {
        let place = [(i + 1).to_string(), folder_name(project, &result.folder)];
        for posterior in &result.posteriors {
            for u in &posterior.unknowns {
                let label = result.label.iter().map(|(_, value)| value.clone());
                let place = place.iter().take(places.len()).cloned();
                let what = [posterior.method.clone(), u.name.clone(), posterior.engine.clone()];
                let values = [u.mean, u.sd, u.q05, u.q25, u.q50, u.q75, u.q95].map(Some).into_iter();
                let values =
                    values.chain([u.mcse_mean, u.mcse_sd, u.ess_bulk, u.ess_tail, u.r_hat, u.quadrature_error]);
                // Empty as in JSON null: not known, or not finite.
                let values = values.map(|v| v.filter(|v| v.is_finite()).map_or(String::new(), |v| format!("{v}")));
                let seed = setting.study.seed.to_string();
                let origin = [result.study_hash.clone(), seed, result.made_by.version.clone()];
                let row = label.chain(place).chain(what).chain(values).chain(origin);
                columns.iter_mut().zip(row).for_each(|(column, cell)| column.push(cell));
            }
        }
    }
    names.into_iter().zip(columns).try_fold(Table::new(), |table, (name, column)| table.with_texts(name, column))
}
