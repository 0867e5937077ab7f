//! All settings of a sweep in one figure.

use super::SettingReport;
use super::figure::{Axis, Direction, Figure, Ink, Mark, Panel, Series, Shape};
use super::words;
use crate::infer::propagation::Method;

/// The answers of all settings: a panel per quantity, a row per setting, an interval per method.
pub(super) fn figures(settings: &[SettingReport]) -> Vec<Figure> {
    let finished: Vec<&SettingReport> =
        settings.iter().filter(|setting| !setting.findings.answers.is_empty()).collect();
    let Some(first) = finished.first() else { return Vec::new() };
    let rows: Vec<String> = finished.iter().map(|setting| name(&setting.findings.label)).collect();
    let keys = first.findings.label.iter().map(|(key, _)| last_part(key)).collect::<Vec<_>>().join(", ");
    let methods: Vec<Method> = Method::known().into_iter().filter(|method| has(&finished, *method)).collect();
    let panel = |quantity: &str| {
        let mut marks: Vec<Mark> = Vec::new();
        for (k, method) in methods.iter().enumerate() {
            // Methods of one setting lie side by side within its row.
            let beside = (k as f64 - (methods.len() - 1) as f64 / 2.0) * 0.8 / methods.len() as f64;
            let interval = |(row, setting): (usize, &&SettingReport)| {
                let answer = setting.findings.answers.iter().find(|answer| answer.method == method.name())?;
                let q = answer.unknowns.iter().find(|summary| summary.name == quantity)?;
                Some([row as f64 + beside, q.q05, f64::NAN, q.mean, f64::NAN, q.q95])
            };
            let intervals = finished.iter().enumerate().filter_map(interval).collect();
            marks.push(Series::method(*method).mark(Shape::Intervals(Direction::Horizontal, intervals)));
        }
        let truths = finished
            .iter()
            .enumerate()
            .filter_map(|(row, setting)| Some([words::truth(&setting.findings, quantity)?, row as f64]));
        let truths: Vec<[f64; 2]> = truths.collect();
        if !truths.is_empty() {
            marks.push(Series::new("truth", Ink::Truth).mark(Shape::Points(truths, Vec::new())));
        }
        Panel {
            title: quantity.to_owned(),
            x: Axis::new(words::with_unit(quantity, &first.findings.study)),
            y: Axis { label: keys.clone(), ..Axis::of(rows.clone()) },
            marks,
        }
    };
    let mut quantities: Vec<&str> = Vec::new();
    let all = finished.iter().flat_map(|setting| &setting.findings.answers).flat_map(|answer| &answer.unknowns);
    for summary in all.filter(|summary| summary.mean.is_finite()) {
        if !quantities.contains(&summary.name.as_str()) {
            quantities.push(&summary.name);
        }
    }
    if quantities.is_empty() {
        return Vec::new();
    }
    let panels: Vec<Panel> = quantities.into_iter().map(panel).collect();
    vec![Figure {
        id: "settings".into(),
        title: "Answers of all settings".into(),
        caption: "Mean and 90 % interval by each method, one row for each setting.".into(),
        columns: panels.len().min(2),
        panels,
        aspect: 0.6,
    }]
}

fn has(settings: &[&SettingReport], method: Method) -> bool {
    settings.iter().any(|setting| setting.findings.answers.iter().any(|answer| answer.method == method.name()))
}

/// `10, 2`: the values, whose keys stand beside the axis.
fn name(label: &[(String, String)]) -> String {
    label.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", ")
}

/// The last part of a key.
pub(super) fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}
