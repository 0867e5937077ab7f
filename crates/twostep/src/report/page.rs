//! The report: the answer first, then what it rests on.

use super::figure::Figure;
use super::html::{Cell, Page};
use super::words::{self, Evidence, Sentence, Tone};
use super::{Report, SettingReport};
use crate::calibrate::{MethodSummary, Truth};
use crate::error::Result;
use crate::infer::propagation::Method;
use crate::infer::{IPosterior, QuantitySummary};
use crate::run::{Calibration, VERSION};
use crate::study::{MeasurementSource, digest};
use crate::table::counted;
use crate::train::TReport;

/// Parameters of a T-posterior that a table shows unasked.
const SHOWN_PARAMETERS: usize = 12;

/// Failed runs that the page lists.
const SHOWN_FAILURES: usize = 20;

/// The whole document.
///
/// # Errors
/// None that a report of this program has.
pub(super) fn page(report: &Report<'_>) -> Result<String> {
    let settings = report.project.settings();
    let study = &settings[0].study;
    let mut page = Page::new(&study.name);
    // A calibration alone has no settings with runs.
    if settings.len() > 1 && !report.settings.is_empty() {
        overview(&mut page, report)?;
    }
    for (i, setting) in report.settings.iter().enumerate() {
        if settings.len() == 1 {
            sections(&mut page, setting, report.calibration(i), None, true)?;
            continue;
        }
        page.set_prefix(&format!("setting-{}-", i + 1));
        page.list("all", &format!("Setting {}", i + 1));
        let name = format!("Setting {}: {}", i + 1, words::setting(&setting.findings.label));
        page.fold("all", &name, "setting", i == 0);
        let trained = |setting: &SettingReport| {
            let stages = setting.findings.records.iter();
            stages.take(2).map(|(_, record)| record.fingerprint.clone()).collect::<Vec<_>>()
        };
        let same = report.settings[..i].iter().position(|before| trained(before) == trained(setting));
        sections(&mut page, setting, report.calibration(i), same.map(|before| before + 1), false)?;
        page.unfold();
        page.set_prefix("");
    }
    if !report.calibrations.is_empty() {
        calibration(&mut page, report)?;
    }
    if let Some(problem) = &report.calibration_problem {
        page.said(Tone::Caution, &format!("Trials of a calibration are not shown: {problem}"));
    }
    provenance(&mut page, report);
    let source = match &study.measurements {
        MeasurementSource::File(path) => {
            format!("Measurements from {}.", path.file_name().unwrap_or_default().to_string_lossy())
        }
        MeasurementSource::Synthetic { .. } => "Synthetic measurements of a known truth.".to_owned(),
        MeasurementSource::None => "No measurements.".to_owned(),
    };
    let swept = if settings.len() > 1 { format!("{}. ", counted(settings.len(), "setting")) } else { String::new() };
    let below = format!("{swept}Simulator: {}. {source}", study.simulator.name());
    let footer = format!(
        "Made by twostep {VERSION} from the results beside this file; `twostep report {}` makes it again. Figures as SVG, PNG and \
         CSV lie in `figures/`.",
        study.file_name()
    );
    Ok(page.finish(&below, &footer))
}

fn figures(page: &mut Page, all: &[Figure], wanted: impl Fn(&str) -> bool) -> Result<()> {
    all.iter().filter(|figure| wanted(&figure.id)).try_for_each(|figure| page.figure(figure))
}

fn say(page: &mut Page, sentences: &[Sentence]) {
    sentences.iter().for_each(|sentence| page.said(sentence.tone, &sentence.text));
}

/// All settings of a sweep at a glance.
fn overview(page: &mut Page, report: &Report<'_>) -> Result<()> {
    page.section("settings-section", "All settings");
    report.overview.iter().try_for_each(|figure| page.figure(figure))?;
    let keys: Vec<String> = report.settings[0].findings.label.iter().map(|(key, _)| key.clone()).collect();
    let mut quantities: Vec<&str> = Vec::new();
    let answers = || report.settings.iter().flat_map(|setting| &setting.findings.answers);
    for summary in answers().flat_map(|answer| &answer.unknowns) {
        if !quantities.contains(&summary.name.as_str()) {
            quantities.push(&summary.name);
        }
    }
    let study = &report.settings[0].findings.study;
    let names = quantities.iter().map(|name| words::with_unit(name, study));
    let header: Vec<String> = keys.into_iter().chain(["method".to_owned()]).chain(names).collect();
    let mut rows = Vec::new();
    for setting in &report.settings {
        for answer in &setting.findings.answers {
            let leads = answer.method == setting.findings.study.infer.answer.name();
            let label = setting.findings.label.iter().map(|(_, value)| Cell::Text(value.clone()));
            let find = |name: &&str| answer.unknowns.iter().find(|summary| summary.name == **name);
            let cells = quantities.iter().map(|name| Cell::Number(find(name).map_or(String::new(), words::quantity)));
            rows.push((
                leads,
                label.chain([Cell::Number(words::title(&answer.method).to_owned())]).chain(cells).collect(),
            ));
        }
    }
    if !rows.is_empty() {
        page.fold("", "Table of all answers: mean [5 %, 95 %]", "", rows.len() <= 12);
        page.table(&header, &rows);
        page.unfold();
    }
    Ok(())
}

/// Everything about one setting.
///
/// `same` is the number of an earlier setting whose surrogate this one shares.
fn sections(
    page: &mut Page,
    setting: &SettingReport,
    calibration: Option<&Calibration>,
    same: Option<usize>,
    listed: bool,
) -> Result<()> {
    let findings = &setting.findings;
    let section = |page: &mut Page, id: &str, title: &str| match listed {
        true => page.section(id, title),
        false => page.heading(title),
    };
    if findings.answers.is_empty() {
        section(page, "answer", "No answer yet");
    } else {
        section(page, "answer", "The answer");
    }
    let said: Vec<String> = words::answer(findings).into_iter().map(|sentence| sentence.text).collect();
    page.answers(&said);
    figures(page, &setting.figures, |id| id == "forest")?;
    if !findings.answers.is_empty() {
        answers_table(page, setting);
    }
    section(page, "trust", "How far to trust it");
    let evidence = Evidence {
        surrogate_shares: &setting.surrogate_shares(),
        inside: setting.inside,
        enough: setting.enough.as_ref(),
        calibration: calibration.map_or(&[], |calibration| &calibration.methods),
    };
    say(page, &words::trust(findings, evidence));
    for note in &findings.study.notes {
        page.said(Tone::Caution, &note.message);
    }
    if !findings.answers.is_empty() {
        section(page, "budget-section", "Where the uncertainty comes from");
        page.paragraph(BUDGET);
        figures(page, &setting.figures, |id| id == "budget")?;
        budget_table(page, setting);
        section(page, "detail", "The answer in detail");
        const ELSEWHERE: [&str; 2] = ["forest", "budget"];
        figures(page, &setting.figures, |id| DETAIL.contains(&id) && !ELSEWHERE.contains(&id))?;
        diagnostics(page, &findings.answers);
    }
    section(page, "surrogate-section", "The surrogate");
    match same {
        Some(number) => page.paragraph(&format!("Runs and surrogate are those of setting {number}, shown there.")),
        None => surrogate(page, setting)?,
    }
    Ok(())
}

/// Figures of the answer, in the order in which they are shown.
const DETAIL: [&str; 6] = ["densities", "pairs", "predictive-check", "weights", "trace", "ranks"];

/// The definition of the budget.
const BUDGET: &str = "The variance of each posterior is split by the law of total variance, over the T-draw s (which surrogate), \
     the surrogate's approximation error e at the measured points, and the quantity itself: Var(q | y) = E Var(q | y, s, e) + \
     E Var(E(q | y, s, e) | y, s) + Var E(q | y, s). The first part would remain with a perfect surrogate: measurement noise and \
     prior. The second is the surrogate's approximation error, the third its epistemic uncertainty, which more runs reduce.";

fn answers_table(page: &mut Page, setting: &SettingReport) {
    let findings = &setting.findings;
    let quantities = &findings.answers[0].unknowns;
    let names = quantities.iter().map(|summary| words::with_unit(&summary.name, &findings.study));
    let header: Vec<String> = ["method".to_owned()].into_iter().chain(names).chain(["trust".to_owned()]).collect();
    let row = |(i, answer): (usize, &IPosterior)| {
        let cells = answer.unknowns.iter().map(|summary| Cell::Number(words::quantity(summary)));
        let all = [Cell::Number(words::title(&answer.method).to_owned())]
            .into_iter()
            .chain(cells)
            .chain([Cell::Text(answer.trust.clone())]);
        (i == 0, all.collect())
    };
    let rows: Vec<(bool, Vec<Cell>)> = findings.answers.iter().enumerate().map(row).collect();
    page.paragraph("Mean [5 %, 95 %] by each method; the answer stands first.");
    page.table(&header, &rows);
}

fn budget_table(page: &mut Page, setting: &SettingReport) {
    let header = ["method", "quantity", "noise and prior", "approximation error", "epistemic", "variance"];
    let mut rows = Vec::new();
    for budget in setting.budgets.iter().filter_map(|budget| budget.as_ref().ok()) {
        for quantity in &budget.quantities {
            let share = |part: crate::infer::VarianceShare| Cell::Number(part.to_string());
            let [variance] = words::rounded([quantity.variance], 0.0);
            rows.push((
                false,
                vec![
                    Cell::Number(budget.method.title().to_owned()),
                    Cell::Text(quantity.name.clone()),
                    share(quantity.noise),
                    share(quantity.approximation),
                    share(quantity.epistemic),
                    Cell::Number(variance),
                ],
            ));
        }
    }
    if !rows.is_empty() {
        page.fold("", "Table of shares with their Monte Carlo standard errors", "", false);
        page.table(&header.map(str::to_owned), &rows);
        page.unfold();
    }
    let mut reasons: Vec<&String> = setting.budgets.iter().filter_map(|budget| budget.as_ref().err()).collect();
    reasons.dedup();
    for why in reasons {
        page.paragraph(&format!("No budget: {why}."));
    }
}

/// What the engines know about themselves.
fn diagnostics(page: &mut Page, answers: &[IPosterior]) {
    let header = [
        "method",
        "engine",
        "R-hat",
        "effective draws",
        "divergences",
        "quadrature error",
        "T-draws favoured",
        "log evidence",
    ];
    let number = |value: Option<f64>, decimals: usize| {
        Cell::Number(value.filter(|v| v.is_finite()).map_or("–".to_owned(), |v| format!("{v:.decimals$}")))
    };
    let row = |answer: &IPosterior| {
        let d = &answer.diagnostics;
        let least = |f: fn(&QuantitySummary) -> Option<f64>| {
            answer.unknowns.iter().filter_map(f).filter(|v| v.is_finite()).reduce(f64::min)
        };
        let error = d.quadrature_error.map_or("–".to_owned(), |error| match error < 1e-5 {
            true => "< 0.00001 sd".to_owned(),
            false => format!("{error:.5} sd"),
        });
        (
            false,
            vec![
                Cell::Number(words::title(&answer.method).to_owned()),
                Cell::Text(answer.engine.clone()),
                number(d.max_r_hat, 3),
                number(least(|u| u.ess_bulk), 0),
                Cell::Number(d.divergences.map_or("–".to_owned(), |n| n.to_string())),
                Cell::Number(error),
                number(d.effective_t_draws, 1),
                Cell::Number(answer.evidence().map_or("–".to_owned(), |evidence| evidence.to_string())),
            ],
        )
    };
    page.heading("Diagnostics");
    page.table(&header.map(str::to_owned), &answers.iter().map(row).collect::<Vec<_>>());
    // Those of the answer stand above, where trust is spoken of.
    for warning in answers.iter().skip(1).flat_map(|answer| &answer.warnings) {
        page.said(Tone::Caution, warning);
    }
}

fn surrogate(page: &mut Page, setting: &SettingReport) -> Result<()> {
    let findings = &setting.findings;
    let runs = counted(findings.training.n_runs(), "run");
    let failed = match findings.failed.len() {
        0 => String::new(),
        n => format!("; {n} more failed and are left out"),
    };
    page.paragraph(&format!("Trained on {runs} of {}{failed}.", findings.study.simulator.name()));
    if let Some(posterior) = &findings.posterior {
        let header =
            ["output", "T-step", "values", "Q² left out", "left-out runs inside their 90 % interval", "divergences"];
        let row = |report: &TReport| {
            let own = &report.leave_one_out;
            (
                false,
                vec![
                    Cell::Text(report.output.clone()),
                    Cell::Text(report.how()),
                    Cell::Number(format!("{} of {}", report.n_rows, counted(report.n_runs, "run"))),
                    Cell::Number(own.q2.map_or("–".to_owned(), |q2| format!("{q2:.2}"))),
                    Cell::Number(if own.coverage_90.is_nan() {
                        "–".to_owned()
                    } else {
                        words::held(own.coverage_90)
                    }),
                    Cell::Number(report.divergences.to_string()),
                ],
            )
        };
        let rows: Vec<(bool, Vec<Cell>)> = posterior.outputs.iter().map(|output| row(&output.report)).collect();
        page.table(&header.map(str::to_owned), &rows);
        for report in posterior.outputs.iter().map(|output| &output.report) {
            let Some(choice) = &report.choice else { continue };
            page.heading(&format!("Surrogates compared for {}", report.output));
            page.paragraph(
                "Each was trained, and asked for every run by what the others say. The log score is the mean log density that it gave to \
                 what the run returned; the highest was taken. Behind is how much less a score is, with the standard error over the runs.",
            );
            let cells =
                |[name, rest @ ..]: [String; 5]| [Cell::Text(name)].into_iter().chain(rest.map(Cell::Number)).collect();
            let rows: Vec<(bool, Vec<Cell>)> =
                words::choice_rows(choice).into_iter().map(|(row, is_chosen)| (is_chosen, cells(row))).collect();
            page.table(&words::CHOICE_COLUMNS.map(str::to_owned), &rows);
        }
    }
    figures(page, &setting.figures, |id| !DETAIL.contains(&id) && id != "forest" && id != "budget")?;
    for output in findings.posterior.iter().flat_map(|posterior| &posterior.outputs) {
        let parameters = &output.report.parameters;
        let name = format!("T-posterior of {}: {}", output.name, counted(parameters.len(), "parameter"));
        page.fold("", &name, "", parameters.len() <= SHOWN_PARAMETERS);
        let row = |p: &crate::train::ParameterSummary| {
            let width = p.quantiles[4] - p.quantiles[0];
            let [mean, low, high] = words::rounded([p.mean, p.quantiles[0], p.quantiles[4]], width);
            let [sd] = words::rounded([p.sd], 0.0);
            let r_hat = p.r_hat.map_or("–".to_owned(), |r| format!("{r:.3}"));
            (false, [p.name.clone(), mean, sd, low, high, r_hat].map(Cell::Number).into_iter().collect())
        };
        let rows: Vec<(bool, Vec<Cell>)> = parameters.iter().map(row).collect();
        page.table(&["parameter", "mean", "sd", "5 %", "95 %", "R-hat"].map(str::to_owned), &rows);
        page.unfold();
    }
    if !findings.failed.is_empty() {
        page.fold("", &format!("{} failed", counted(findings.failed.len(), "run")), "", true);
        let names = &findings.study.input_names()[..findings.study.n_run_inputs()];
        let header: Vec<String> =
            ["run".to_owned()].into_iter().chain(names.iter().cloned()).chain(["reason".to_owned()]).collect();
        let row = |failed: &crate::store::FailedRun| {
            let inputs = failed.inputs.iter().map(|x| Cell::Number(format!("{x}")));
            let cells = [Cell::Number(failed.run.to_string())].into_iter().chain(inputs);
            (false, cells.chain([Cell::Text(failed.reason.clone())]).collect())
        };
        let rows: Vec<(bool, Vec<Cell>)> = findings.failed.iter().take(SHOWN_FAILURES).map(row).collect();
        page.table(&header, &rows);
        if findings.failed.len() > SHOWN_FAILURES {
            page.paragraph("`twostep runs STUDY --state failed` lists the others.");
        }
        page.unfold();
    }
    Ok(())
}

fn calibration(page: &mut Page, report: &Report<'_>) -> Result<()> {
    page.section("calibration", "Calibration");
    page.paragraph(
        "Truths were drawn, measured and inferred again and again. Intervals that may be believed hold the truth as often as they \
         say; those that hold it less often are overconfident.",
    );
    let several = report.calibrations.len() > 1;
    let methods: Vec<Method> = Method::known()
        .into_iter()
        .filter(|method| report.calibrations.iter().any(|calibration| summary(calibration, *method).is_some()))
        .collect();
    let header = ["setting", "trials", "truths from"].into_iter().chain(methods.iter().map(|method| method.title()));
    let row = |calibration: &Calibration| {
        let plan = &calibration.plan;
        let done = calibration.methods.first().map_or(0, |method| method.trials);
        let verdict =
            |method: &Method| summary(calibration, *method).map_or("–", |own| own.verdict.kind.name()).to_owned();
        let own = [words::setting(&plan.label), format!("{done} of {}", plan.i_trials), plan.truth.name().to_owned()];
        let cells = own.map(Cell::Text).into_iter().chain(methods.iter().map(|method| Cell::Number(verdict(method))));
        (false, cells.collect())
    };
    let rows: Vec<(bool, Vec<Cell>)> = report.calibrations.iter().map(row).collect();
    page.table(&header.map(str::to_owned).collect::<Vec<_>>(), &rows);
    report.calibration_figures.iter().try_for_each(|figure| page.figure(figure))?;
    page.fold("verdicts", "Verdicts in words", "", !several);
    for calibration in &report.calibrations {
        if several {
            page.heading(&words::setting(&calibration.plan.label));
        }
        for own in methods.iter().filter_map(|method| summary(calibration, *method)) {
            page.said(words::verdict_tone(own.verdict.kind), &own.verdict.to_string());
        }
    }
    page.unfold();
    Ok(())
}

fn summary(calibration: &Calibration, method: Method) -> Option<&MethodSummary> {
    calibration.methods.iter().find(|own| own.method == method.name())
}

fn provenance(page: &mut Page, report: &Report<'_>) {
    page.section("provenance", "Provenance");
    let study = &report.project.settings()[0].study;
    let header = ["setting", "stage", "seconds", "version", "instruction set", "hash of what it depends on"];
    let mut rows = Vec::new();
    for setting in &report.settings {
        for (stage, record) in &setting.findings.records {
            rows.push((
                false,
                vec![
                    Cell::Text(words::setting(&setting.findings.label)),
                    Cell::Text(stage.name().to_owned()),
                    Cell::Number(format!("{:.2}", record.seconds)),
                    Cell::Number(record.version.clone()),
                    Cell::Number(record.instruction_set.clone()),
                    Cell::Text(record.fingerprint.clone()),
                ],
            ));
        }
    }
    page.paragraph(&format!("Seed {}. SHA-256 of the study file: `{}`.", study.seed, digest(study.source())));
    page.fold("", "Stages", "", rows.len() <= 3);
    page.table(&header.map(str::to_owned), &rows);
    page.unfold();
    let file = study.file_name();
    let seed = format!("{file} --seed {}", study.seed);
    let mut commands = match report.project.other_measurements_file() {
        Some(measurements) => format!("twostep infer {seed} --measurements {measurements}\n"),
        None => format!("twostep run {seed}\n"),
    };
    if let Some(Calibration { plan, .. }) = report.calibrations.first() {
        let trials = match plan.truth {
            Truth::HeldOutRuns => String::new(),
            _ => format!(" --t-trials {} --i-trials {}", plan.t_trials, plan.i_trials / plan.t_trials.max(1)),
        };
        commands += &format!("twostep calibrate {seed}{trials} --truth {}\n", plan.truth.name());
    }
    page.paragraph("To make it again, with the files that the study names beside it:");
    page.verbatim(commands.trim_end());
    page.fold("study-file", &format!("Study file {file}"), "", false);
    page.verbatim(study.source().trim_end());
    page.unfold();
    page.paragraph("A methods paragraph with these numbers, and references in BibTeX, are in `methods.md`.");
}
