//! `summary.json` and `summary.csv`: every number of every setting and method, with what it was made of.

use super::{Project, SettingResult, VERSION};
use crate::error::Result;
use crate::kernels::instruction_set;
use crate::study::Stage;
use crate::table::{Table, write_atomically};
use serde_json::{Map, Value, json};

/// The content of `summary.json`.
pub fn summary(project: &Project, results: &[SettingResult]) -> Value {
    let settings: Vec<Value> = project
        .settings()
        .iter()
        .zip(results)
        .map(|(setting, result)| {
            let label: Map<String, Value> = result.label.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
            let methods: Map<String, Value> = result
                .posteriors
                .iter()
                .map(|posterior| {
                    let unknowns: Map<String, Value> = posterior
                        .unknowns
                        .iter()
                        .map(|u| (u.name.clone(), serde_json::to_value(u).unwrap_or(Value::Null)))
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
            json!({
                "setting": label,
                "study_hash": setting.study.fingerprint(Stage::Infer),
                "seed": setting.study.seed,
                "runs": result.runs[0],
                "failed_runs": result.runs[1],
                "answer": result.answer,
                "prior_mass_outside_range": outside,
                "t_step": result.t_reports,
                "methods": methods,
                "warnings": result.warnings,
            })
        })
        .collect();
    let study = &project.settings()[0].study;
    json!({
        "study": study.name,
        "version": VERSION,
        "instruction_set": instruction_set(),
        "settings": settings,
    })
}

/// Writes both files to the project's folder.
pub(super) fn write(project: &Project, results: &[SettingResult]) -> Result<()> {
    let mut text = serde_json::to_string_pretty(&summary(project, results)).expect("keys are strings");
    text.push('\n');
    write_atomically(&project.folder().join("summary.json"), text.as_bytes())?;
    table(project, results)?.write(&project.folder().join("summary.csv"))
}

/// One row per setting, method and unknown.
fn table(project: &Project, results: &[SettingResult]) -> Result<Table> {
    let keys: Vec<String> = results[0].label.iter().map(|(k, _)| k.clone()).collect();
    let mut texts: Vec<Vec<String>> = vec![Vec::new(); keys.len() + 4];
    let numbers = ["mean", "sd", "q05", "q25", "q50", "q75", "q95"];
    let optional = ["mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat", "quadrature_error"];
    let mut values: Vec<Vec<String>> = vec![Vec::new(); numbers.len() + optional.len()];
    for (setting, result) in project.settings().iter().zip(results) {
        let hash = setting.study.fingerprint(Stage::Infer);
        for posterior in &result.posteriors {
            for u in &posterior.unknowns {
                let own = result.label.iter().map(|(_, v)| v.clone());
                let row = own.chain([posterior.method.clone(), u.name.clone(), posterior.engine.clone(), hash.clone()]);
                texts.iter_mut().zip(row).for_each(|(column, text)| column.push(text));
                let row = [u.mean, u.sd, u.q05, u.q25, u.q50, u.q75, u.q95].map(Some).into_iter();
                let row = row.chain([u.mcse_mean, u.mcse_sd, u.ess_bulk, u.ess_tail, u.r_hat, u.quadrature_error]);
                // Empty as in JSON null: not known, or not finite.
                let shown = row.map(|v| v.filter(|v| v.is_finite()).map_or(String::new(), |v| format!("{v}")));
                values.iter_mut().zip(shown).for_each(|(column, text)| column.push(text));
            }
        }
    }
    let mut out = Table::new();
    let n = keys.len();
    let mut hash = Vec::new();
    for (j, column) in texts.into_iter().enumerate() {
        match j.checked_sub(n) {
            None => out = out.with_texts(&keys[j], column)?,
            Some(3) => hash = column,
            Some(k) => out = out.with_texts(["method", "unknown", "engine"][k], column)?,
        }
    }
    for (name, column) in numbers.iter().chain(&optional).zip(values) {
        out = out.with_texts(*name, column)?;
    }
    let rows = hash.len();
    let per_setting = project.settings().iter().zip(results);
    let seeds: Vec<String> = per_setting
        .flat_map(|(setting, result)| {
            let n = result.posteriors.iter().map(|p| p.unknowns.len()).sum();
            std::iter::repeat_n(setting.study.seed.to_string(), n)
        })
        .collect();
    out.with_texts("study_hash", hash)?
        .with_texts("study_seed", seeds)?
        .with_texts("version", vec![VERSION.to_string(); rows])
}
