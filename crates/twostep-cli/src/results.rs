//! Finished settings to the tables that people read.

use crate::output::{self, Look, paint, wrapped};
use crate::session::describe;
use std::fmt::Write;
use textwrap::core::display_width;
use twostep::infer::IPosterior;
use twostep::report::words::{CHOICE_COLUMNS, choice_rows, held, quantity, with_unit};
use twostep::run::{Origin, Project, SettingResult};
use twostep::study::{Setting, Stage, Study};
use twostep::table::counted;

/// With more settings than this, one compact table takes the place of a block for each.
const MAX_BLOCKS: usize = 6;

/// Space between columns.
const GAP: usize = 3;

/// A column is not wrapped to less than this, however narrow the window.
const MIN_COLUMN: usize = 16;

/// Where the text of a stage begins in its line.
const STAGE_INDENT: &str = "           ";

/// A table whose leading columns are repeated where it must be broken to fit the window.
pub(crate) struct Grid {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Rows to stand out.
    strong: Vec<bool>,
    /// Number of leading columns.
    leading: usize,
}

impl Grid {
    /// A table without rows.
    pub(crate) fn new(header: Vec<String>, leading: usize) -> Self {
        Self { header, rows: Vec::new(), strong: Vec::new(), leading }
    }

    /// Adds a row with a cell for each column.
    pub(crate) fn push(&mut self, row: Vec<String>, strong: bool) {
        self.rows.push(row);
        self.strong.push(strong);
    }

    /// Text no wider than `width` where columns can be broken into lines of some length.
    pub(crate) fn render(&self, width: usize, coloured: bool) -> String {
        let length = |text: &String| display_width(text);
        let widths: Vec<usize> = (0..self.header.len())
            .map(|j| self.rows.iter().map(|row| length(&row[j])).chain([length(&self.header[j])]).max().unwrap_or(0))
            .collect();
        let lead: usize = widths[..self.leading].iter().map(|w| w + GAP).sum();
        let mut blocks: Vec<Vec<usize>> = Vec::new();
        let mut used = usize::MAX;
        for j in self.leading..self.header.len() {
            match blocks.last_mut() {
                Some(block) if used + GAP + widths[j] <= width => {
                    block.push(j);
                    used += GAP + widths[j];
                }
                _ => {
                    blocks.push(vec![j]);
                    used = lead + widths[j];
                }
            }
        }
        // By what the window shows: a letter of Chinese or an emoji takes two columns.
        let padded = |text: &str, j: usize| format!("{text}{}", " ".repeat(widths[j] + GAP - display_width(text)));
        let line = |row: &[String], block: &[usize]| {
            let lead: String = (0..self.leading).map(|j| padded(&row[j], j)).collect();
            let text = match block {
                [j] => {
                    let indent = display_width(&lead);
                    let room = width.saturating_sub(indent).max(MIN_COLUMN);
                    textwrap::wrap(&row[*j], room).join(&format!("\n{}", " ".repeat(indent)))
                }
                several => several.iter().map(|j| padded(&row[*j], *j)).collect(),
            };
            format!("{lead}{text}").trim_end().to_owned()
        };
        let mut text = String::new();
        for (number, block) in blocks.iter().enumerate() {
            if number > 0 {
                text.push('\n');
            }
            text.push_str(&paint(&line(&self.header, block), Look::Dim, coloured));
            text.push('\n');
            for (row, strong) in self.rows.iter().zip(&self.strong) {
                text.push_str(&paint(&line(row, block), Look::Bold, coloured && *strong));
                text.push('\n');
            }
        }
        text
    }
}

/// All that `run` and its parts say on standard output.
pub(crate) fn render(project: &Project, results: &[SettingResult]) -> String {
    let (width, coloured) = (output::width(), output::stdout_coloured());
    let mut text = String::new();
    let compact = results.len() > MAX_BLOCKS;
    if compact {
        text.push_str(&overview(results));
    }
    for (Setting { label, study }, result) in project.settings().iter().zip(results).filter(|_| !compact) {
        if !label.is_empty() {
            let _ = writeln!(text, "{}", paint(&describe(label), Look::Bold, coloured));
        }
        text.push_str(&stage_lines(study, result));
        if !result.posteriors.is_empty() {
            text.push('\n');
            text.push_str(&setting_table(study, result).render(width, coloured));
            text.push_str(&evidences(result));
        }
        if !label.is_empty() {
            text.push('\n');
        }
    }
    let inferred = results.iter().any(|result| !result.posteriors.is_empty());
    if compact && inferred {
        text.push('\n');
        text.push_str(&sweep_table(project, results).render(width, coloured));
    }
    if inferred {
        if !text.ends_with("\n\n") {
            text.push('\n');
        }
        let answer = results.iter().map(|result| result.answer.as_str()).next().unwrap_or_default();
        let one = results.iter().all(|result| result.answer == answer);
        let which = if one { format!(" ({answer}; `twostep methods` explains the others)") } else { String::new() };
        let _ = writeln!(text, "{}", wrapped(&format!("mean [5 %, 95 %]; * the answer{which}"), "  "));
    }
    text
}

fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Computed => "computed",
        Origin::Kept => "kept",
        Origin::Shared => "shared",
    }
}

fn origin(result: &SettingResult, stage: Stage) -> &'static str {
    result
        .origins
        .iter()
        .find(|(reached, _)| *reached == stage)
        .map_or("not reached", |(_, origin)| origin_name(*origin))
}

/// One line for the runs and one for each output's T-step.
fn stage_lines(study: &Study, result: &SettingResult) -> String {
    let [runs, failed] = result.runs;
    let failures = if failed > 0 { format!(", {failed} more failed") } else { String::new() };
    let simulated = origin(result, Stage::Simulate);
    let runs = counted(runs, "run");
    let mut lines = vec![format!("simulate   {runs} of {}{failures} ({simulated})", study.simulator.name())];
    for report in &result.t_reports {
        let own = &report.leave_one_out;
        let q2 = own.q2.map_or("no Q2 (it needs two different outputs)".to_owned(), |q2| format!("Q2 {q2:.2}"));
        let values = match report.n_rows == report.n_runs {
            true => String::new(),
            false => format!(" from {} values of {}", report.n_rows, counted(report.n_runs, "run")),
        };
        let components = report.series.map_or(String::new(), |series| {
            let number = counted(series.components, "principal component");
            format!(", {number} with {:.2} % of the variance", 100.0 * series.share)
        });
        let terms = report
            .terms
            .as_ref()
            .map_or(String::new(), |terms| format!(", {} of {} terms matter", terms.matter.len(), terms.candidates));
        let chosen = report.choice.as_ref().map_or(String::new(), |choice| {
            let name = &choice.candidates[choice.chosen].name;
            format!("{name}, the best of {}, ", counted(choice.candidates.len(), "surrogate"))
        });
        lines.push(format!(
            "train      {}: {chosen}{}{values}{components}{terms}, {q2}, {} of left-out runs inside their 90 % interval ({})",
            report.output,
            report.how(),
            held(own.coverage_90),
            origin(result, Stage::Train),
        ));
    }
    if let Some(posterior) = result.posteriors.first() {
        let methods = counted(result.posteriors.len(), "method");
        lines.push(format!("infer      {methods} by {} ({})", posterior.engine, origin(result, Stage::Infer)));
    }
    let mut text: String = lines.iter().map(|line| format!("{}\n", stage_line(line))).collect();
    for report in &result.t_reports {
        let Some(choice) = &report.choice else { continue };
        let mut grid = Grid::new(CHOICE_COLUMNS.map(str::to_owned).to_vec(), 1);
        for ([name, rest @ ..], is_chosen) in choice_rows(choice) {
            let name = if is_chosen { format!("* {name}") } else { format!("  {name}") };
            grid.push([name].into_iter().chain(rest).collect(), is_chosen);
        }
        text += &format!("\nsurrogates compared for {}, by the log density of runs left out\n", report.output);
        text += &grid.render(output::width(), false);
    }
    text
}

/// A line that begins with its stage's name, wrapped to the window.
pub(crate) fn stage_line(line: &str) -> String {
    wrapped(line, STAGE_INDENT)
}

/// How many settings computed, kept or shared each stage, and how good their surrogates are.
fn overview(results: &[SettingResult]) -> String {
    let mut text = format!("{} settings\n", results.len());
    for stage in Stage::ALL {
        let counts: Vec<String> = [Origin::Computed, Origin::Shared, Origin::Kept]
            .into_iter()
            .map(|origin| (origin, results.iter().filter(|result| result.origins.contains(&(stage, origin))).count()))
            .filter(|(_, count)| *count > 0)
            .map(|(origin, count)| format!("{count} {}", origin_name(origin)))
            .collect();
        if counts.is_empty() {
            continue;
        }
        let mut line = format!("{:<10} {}", stage.name(), counts.join(", "));
        if stage == Stage::Train {
            let reports = results.iter().flat_map(|result| &result.t_reports);
            let q2 = || reports.clone().filter_map(|report| report.leave_one_out.q2);
            if let (Some(low), Some(high)) = (q2().reduce(f64::min), q2().reduce(f64::max)) {
                let _ = write!(line, "; Q2 {low:.2} to {high:.2}");
            }
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// The answer first, the others in the study's order.
fn ordered(result: &SettingResult) -> Vec<&IPosterior> {
    let (answer, others): (Vec<_>, Vec<_>) = result.posteriors.iter().partition(|p| p.method == result.answer);
    answer.into_iter().chain(others).collect()
}

fn marked(posterior: &IPosterior, result: &SettingResult) -> (String, bool) {
    let leads = posterior.method == result.answer;
    (format!("{} {}", if leads { '*' } else { ' ' }, posterior.method), leads)
}

/// A row per method, a column per quantity, and how far to trust each.
fn setting_table(study: &Study, result: &SettingResult) -> Grid {
    let posteriors = ordered(result);
    let quantities = posteriors.first().map_or(&[][..], |posterior| &posterior.unknowns);
    let names = quantities.iter().map(|summary| with_unit(&summary.name, study));
    let header = [String::new()].into_iter().chain(names).chain(["trust".to_owned()]).collect();
    let mut grid = Grid::new(header, 1);
    for posterior in posteriors {
        let (name, leads) = marked(posterior, result);
        let cells = posterior.unknowns.iter().map(quantity);
        grid.push([name].into_iter().chain(cells).chain([posterior.trust.clone()]).collect(), leads);
    }
    grid
}

/// The evidence by each method that has one.
fn evidences(result: &SettingResult) -> String {
    let each = ordered(result).into_iter().filter_map(|posterior| Some((posterior, posterior.evidence().ok()?)));
    let each: Vec<String> = each.map(|(posterior, evidence)| format!("{} {evidence}", posterior.method)).collect();
    if each.is_empty() {
        return String::new();
    }
    format!("\n{}\n", output::wrapped(&format!("log evidence: {}", each.join(", ")), ""))
}

/// A row per setting and method; quantities by name, since settings may differ in them.
fn sweep_table(project: &Project, results: &[SettingResult]) -> Grid {
    let mut quantities: Vec<String> = Vec::new();
    for summary in results.iter().flat_map(|result| &result.posteriors).flat_map(|posterior| &posterior.unknowns) {
        if !quantities.contains(&summary.name) {
            quantities.push(summary.name.clone());
        }
    }
    let keys = results.first().map_or(&[][..], |result| &result.label).iter().map(|(key, _)| key.clone());
    let leading = keys.len() + 1;
    let study = &project.settings()[0].study;
    let header = keys.chain([String::new()]).chain(quantities.iter().map(|name| with_unit(name, study))).collect();
    let mut grid = Grid::new(header, leading);
    for result in results {
        for posterior in ordered(result) {
            let (name, leads) = marked(posterior, result);
            let values = result.label.iter().map(|(_, value)| value.clone());
            let find = |name: &String| posterior.unknowns.iter().find(|summary| summary.name == *name);
            let cells = quantities.iter().map(|name| find(name).map_or(String::new(), quantity));
            grid.push(values.chain([name]).chain(cells).collect(), leads);
        }
    }
    grid
}

/// Warnings of all settings, each once, with the settings it is about where those are not all.
pub(crate) fn warnings(results: &[SettingResult]) -> Vec<String> {
    let mut gathered: Vec<(&str, Vec<usize>)> = Vec::new();
    for (i, result) in results.iter().enumerate() {
        for warning in &result.warnings {
            match gathered.iter_mut().find(|(text, _)| text == warning) {
                Some((_, settings)) => settings.push(i + 1),
                None => gathered.push((warning, vec![i + 1])),
            }
        }
    }
    let about = |settings: &[usize]| match settings {
        all if all.len() == results.len() => String::new(),
        [one] => format!(" (setting {one}: {})", describe(&results[one - 1].label)),
        some => {
            let numbers: Vec<String> = some.iter().map(usize::to_string).collect();
            format!(" (settings {})", numbers.join(", "))
        }
    };
    gathered.iter().map(|(text, settings)| format!("{text}{}", about(settings))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_what_the_window_shows() {
        let text = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let mut grid = Grid::new(text(["", "β 🦠", "unit"]), 1);
        grid.push(text(["温度", "1", "K"]), false);
        grid.push(text(["t", "22", "s"]), false);
        assert_eq!(grid.render(80, false), "       β 🦠   unit\n温度   1      K\nt      22     s\n");
    }

    #[test]
    fn wide_tables_break_between_columns() {
        let text = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let mut grid = Grid::new(text(["", "first", "second"]), 1);
        grid.push(text(["a", "1234567890", "abcdefghij"]), true);
        let whole = "    first        second\na   1234567890   abcdefghij\n";
        assert_eq!(grid.render(27, false), whole);
        let broken = "    first\na   1234567890\n\n    second\na   abcdefghij\n";
        assert_eq!(grid.render(26, false), broken);
        assert_eq!(grid.render(1, false), broken);
    }
}
