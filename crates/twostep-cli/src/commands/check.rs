//! `twostep check`: what a study would do, without doing it.

use crate::arguments::Global;
use crate::failure::{Failure, problem_json, show_problems};
use crate::output::{self, Look};
use crate::results::stage_line;
use crate::session::{self, describe};
use serde_json::{Value, json};
use std::path::PathBuf;
use twostep::run::{MeasuredCounts, StudyPlan};
use twostep::study;
use twostep::table::counted;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// The study file
    study: PathBuf,
}

impl Check {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, None)?;
        let plans: Vec<StudyPlan> = project.settings().iter().map(StudyPlan::new).collect::<Result<_, _>>()?;
        let noted = study::warnings(project.settings());
        if let Some(warnings) = &noted {
            show_problems(warnings);
        }
        let mut of_measurements: Vec<String> = Vec::new();
        for warning in plans.iter().flat_map(|plan| &plan.warnings) {
            if !of_measurements.contains(warning) {
                output::note_as("warning", Look::Warning, warning);
                of_measurements.push(warning.clone());
            }
        }
        if global.json {
            let name = project.settings().first().map(|setting| setting.study.name.clone());
            let settings: Vec<Value> = plans.iter().map(StudyPlan::json).collect();
            let noted = noted.iter().flat_map(|all| all.problems.iter().map(|problem| problem_json(all, problem)));
            let of_measurements = of_measurements
                .iter()
                .map(|text| json!({ "severity": "warning", "place": "measurements", "line": null, "message": text }));
            let warnings: Vec<Value> = noted.chain(of_measurements).collect();
            return super::print_json(
                &json!({ "ok": true, "study": name, "warnings": warnings, "settings": settings }),
            );
        }
        let mut text = String::from("ok\n");
        // Settings mostly differ in what their label says, so the first few stand for all.
        const SHOWN: usize = 6;
        for plan in plans.iter().take(SHOWN) {
            text.push_str(&text_of(plan));
        }
        if plans.len() > SHOWN {
            text.push_str(&format!("and {}\n", counted(plans.len() - SHOWN, "more setting")));
        }
        let runs: usize = plans.iter().map(|plan| plan.runs).sum();
        if plans.len() > 1 {
            text.push_str(&format!(
                "{} settings, at most {}; equal stages are shared\n",
                plans.len(),
                counted(runs, "run")
            ));
        }
        text.push_str(&format!("results would go to {}\n", project.folder().display()));
        Ok(output::print(&text)?)
    }
}

/// What one setting would do, in a line for each stage.
fn text_of(plan: &StudyPlan) -> String {
    let head = if plan.label.is_empty() { String::new() } else { format!("{}\n", describe(&plan.label)) };
    let of_each = |output: &String| if plan.by_components.contains(output) { " for each component" } else { "" };
    let of_output = |(output, n): &(String, Option<usize>)| match n {
        Some(n) => format!("{output}: {}{}", counted(*n, "coefficient"), of_each(output)),
        None => format!("{output}: the surrogate that predicts left-out runs best"),
    };
    let terms: Vec<String> = plan.terms.iter().map(of_output).collect();
    let listed = |counts: &[(String, usize)], what: &str| {
        let of_output = |(output, n): &(String, usize)| format!("{} of {output}", counted(*n, what));
        counts.iter().map(of_output).collect::<Vec<_>>().join(", ")
    };
    let measured = match &plan.measurements {
        MeasuredCounts::Read(counts) => listed(counts, "measurement"),
        MeasuredCounts::Synthetic(counts) => listed(counts, "made-up measurement"),
        MeasuredCounts::None => "no measurements yet".to_owned(),
    };
    let methods: Vec<String> = plan
        .methods
        .iter()
        .map(|name| if *name == plan.answer { format!("{name}*") } else { (*name).into() })
        .collect();
    let lines = [
        format!("simulate   {}", counted(plan.runs, "run")),
        format!("train      {}; {}", terms.join(", "), counted(plan.t_draws, "T-draw")),
        format!("infer      {measured}; {} by {}", methods.join(", "), plan.engine),
    ];
    format!("{head}{}\n", lines.map(|line| stage_line(&line)).join("\n"))
}
