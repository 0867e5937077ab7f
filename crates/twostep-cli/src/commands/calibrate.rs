//! `twostep calibrate`: whether the intervals of a study may be believed.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output::{self, Look, paint, wrapped};
use crate::progress::Progress;
use crate::results::Grid;
use crate::session::{self, describe};
use std::fmt::Write;
use std::path::PathBuf;
use twostep::calibrate::{MethodSummary, Truth, UnknownSummary};
use twostep::report::words::rounded;
use twostep::run::{Calibration, CalibrationPlan, Project, calibration_json, calibration_plan_json};
use twostep::store::Share;
use twostep::study::Setting;
use twostep::table::counted;

/// What the columns of the table are, after `twostep calibrate --help`.
pub(crate) const COLUMNS: &str = "\
The table has one row per method and unknown:
  log-gamma    how uniform the ranks of the truths are, with the limit below which independent
               trials would be called miscalibrated at the 5 % level
  p            the same as a p-value that respects that I-trials of one T-trial are dependent
  holds 50 %, holds 90 %
               share of trials whose central interval holds the truth, with its own 95 % interval
  width        mean width of the 90 % interval, and as a share of the prior's

Truths and data come from (`truth`):
  simulator        truths from the prior, data from the simulator: the paper's Algorithm 1
  surrogate-prior  everything from the surrogate and its priors: E-Lik must then be calibrated, so
                   this checks the program and the sampler
  held-out-runs    runs that exist, left out of the training in turn: no new simulator runs

Trials are kept as they come: a second call does only what is missing, also with more trials or
methods. All of them are in calibration.csv, all statistics in calibration.json.";

/// With more settings than this, verdicts are given in a word each.
const MAX_SPOKEN: usize = 4;

/// Arguments of `calibrate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Calibrate {
    /// The study file
    study: PathBuf,
    #[command(flatten)]
    trials: Trials,
    /// Say what it would cost, and stop
    #[arg(long)]
    dry_run: bool,
    /// Do only this share of the T-trials, such as 3/100, into a file of its own; `twostep merge` brings all together
    #[arg(long, value_name = "K/N", conflicts_with = "dry_run")]
    shard: Option<Share>,
}

/// What is tried, where it is not what the study says.
#[derive(Debug, clap::Args)]
pub(crate) struct Trials {
    /// Training sets to try, each with a surrogate of its own, instead of the study's number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    t_trials: Option<u32>,
    /// Truths with measurements to try with each of them, instead of the study's number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    i_trials: Option<u32>,
    /// Where truths and data come from, instead of what the study says
    #[arg(long, value_parser = Truth::ALL.map(Truth::name))]
    truth: Option<String>,
}

impl Trials {
    /// The project with these in its calibration.
    pub(crate) fn applied(&self, project: Project) -> Project {
        project.with_calibration(|spec| {
            spec.t_trials = self.t_trials.map_or(spec.t_trials, |n| n as usize);
            spec.i_trials = self.i_trials.map_or(spec.i_trials, |n| n as usize);
            let chosen = Truth::ALL.into_iter().find(|truth| self.truth.as_deref() == Some(truth.name()));
            spec.truth = chosen.unwrap_or(spec.truth);
        })
    }

    /// Whether any is given.
    pub(crate) fn any(&self) -> bool {
        self.t_trials.is_some() || self.i_trials.is_some() || self.truth.is_some()
    }

    /// As they are written on a command line.
    pub(crate) fn as_flags(&self) -> String {
        let number = |name: &str, n: Option<u32>| n.map_or_else(String::new, |n| format!(" --{name} {n}"));
        let truth = self.truth.as_ref().map_or_else(String::new, |truth| format!(" --truth {truth}"));
        number("t-trials", self.t_trials) + &number("i-trials", self.i_trials) + &truth
    }
}

impl Calibrate {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = self.trials.applied(session::open(&self.study, global, None)?);
        let plans = project.calibration_plan()?;
        let cost = cost(&project, &plans);
        if self.dry_run {
            return match global.json {
                true => super::print_json(&calibration_plan_json(&project, &plans)),
                false => Ok(output::print(&cost)?),
            };
        }
        if !global.quiet {
            output::note(cost.trim_end());
        }
        let progress = Progress::new(global.quiet);
        if let Some(share) = self.shard {
            let done = project.calibrate_share(share, &progress);
            progress.finish();
            return super::show_share(&done?, global);
        }
        finish(&project, &progress, global)
    }
}

/// Does what is missing, and shows what all trials say.
pub(crate) fn finish(project: &Project, progress: &Progress, global: &Global) -> Result<(), Failure> {
    let outcome = project.calibrate(progress);
    progress.finish();
    let calibrations = outcome?;
    if global.json {
        super::print_json(&calibration_json(project, &calibrations))?;
    } else {
        output::print(&render(project, &calibrations))?;
        output::print(&format!("results in {}\n", project.folder().display()))?;
    }
    super::make_report(project, progress, global)
}

/// What the calibration takes, said before it begins.
fn cost(project: &Project, plans: &[CalibrationPlan]) -> String {
    let mut text = String::new();
    let described = project.settings().iter().zip(plans).map(|(setting, plan)| layout(setting, plan));
    let mut layouts: Vec<(String, usize)> = Vec::new();
    for layout in described {
        match layouts.iter_mut().find(|(other, _)| *other == layout) {
            Some((_, settings)) => *settings += 1,
            None => layouts.push((layout, 1)),
        }
    }
    for (layout, settings) in layouts {
        let each = if plans.len() > 1 { format!(", for {}", counted(settings, "setting")) } else { String::new() };
        let _ = writeln!(text, "calibration {layout}{each}");
    }
    let sum = |f: fn(&CalibrationPlan) -> usize| plans.iter().map(f).sum::<usize>();
    let runs = sum(|p| p.missing_runs);
    let noun = if runs == 1 { "simulator run" } else { "simulator runs" };
    let _ = write!(text, "{} {noun} to make; held-out: {}", thousands(runs), thousands(sum(|p| p.runs.held_out)));
    let (kept, total) = (sum(|p| p.kept), sum(|p| p.i_trials));
    if kept > 0 {
        let _ = write!(text, "; {} of {} I-trials are there already", thousands(kept), thousands(total));
    }
    text.push('\n');
    let mut notes: Vec<&String> = plans.iter().flat_map(|plan| &plan.notes).collect();
    notes.dedup();
    for note in notes {
        text.push_str(&wrapped(&format!("note: {note}"), "  "));
        text.push('\n');
    }
    text
}

/// `with truth = "simulator": 100 T-trials x 2 I-trials by 4 methods`.
fn layout(setting: &Setting, plan: &CalibrationPlan) -> String {
    let (truth, times) = (plan.truth.name(), setting.study.calibrate.i_trials);
    let trials = match plan.truth {
        Truth::HeldOutRuns => {
            let each = if times == 1 { String::new() } else { format!(", {times} times each") };
            format!("{} held out in {}{each}", counted(plan.runs.held_out, "run"), counted(plan.t_trials, "group"))
        }
        _ => format!("{} x {}", counted(plan.t_trials, "T-trial"), counted(times, "I-trial")),
    };
    format!("with truth = \"{truth}\": {trials} by {}", counted(setting.study.infer.methods.len(), "method"))
}

/// `12,800`.
fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let lead = digits.len() % 3;
    let groups = digits.as_bytes()[lead..].chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
    let head = (lead > 0).then(|| digits[..lead].to_owned());
    head.into_iter().chain(groups).collect::<Vec<_>>().join(",")
}

/// A table of all settings, then the verdicts.
fn render(project: &Project, calibrations: &[Calibration]) -> String {
    let coloured = output::stdout_coloured();
    let keys: Vec<String> = project.settings()[0].label.iter().map(|(key, _)| key.clone()).collect();
    let leading = keys.len() + 2;
    let columns =
        ["method", "unknown", "log-gamma (limit)", "p", "holds 50 %", "holds 90 %", "width (of prior's)", "verdict"];
    let mut grid = Grid::new(keys.into_iter().chain(columns.map(str::to_owned)).collect(), leading);
    for (setting, calibration) in project.settings().iter().zip(calibrations) {
        let answer = setting.study.infer.answer.name();
        for method in &calibration.methods {
            let mut push = |unknown: &str, cells: [String; 6]| {
                let labels = setting.label.iter().map(|(_, value)| value.clone());
                let names = [method.method.clone(), unknown.to_owned()];
                grid.push(labels.chain(names).chain(cells).collect(), method.method == answer);
            };
            for unknown in &method.unknowns {
                push(&unknown.unknown, cells(unknown));
            }
            if method.unknowns.is_empty() {
                let none = || "-".to_owned();
                push(
                    "-",
                    [none(), none(), none(), none(), none(), format!("all {} failed", counted(method.trials, "trial"))],
                );
            }
        }
    }
    let mut text = format!("{}\n", grid.render(output::width(), coloured));
    let spoken = calibrations.len() <= MAX_SPOKEN;
    for calibration in calibrations {
        if !calibration.plan.label.is_empty() && spoken {
            let _ = writeln!(text, "{}\n", paint(&describe(&calibration.plan.label), Look::Bold, coloured));
        }
        for method in calibration.methods.iter().filter(|_| spoken) {
            text.push_str(&spoken_verdict(method, coloured));
        }
    }
    if !spoken {
        text.push_str("calibration.json has the verdicts in words\n");
    }
    let failed: usize = calibrations.iter().flat_map(|c| &c.methods).map(|m| m.failed).sum();
    if failed > 0 {
        let _ = writeln!(text, "{} failed; their reasons are in calibration.csv", counted(failed, "trial"));
    }
    text
}

fn cells(unknown: &UnknownSummary) -> [String; 6] {
    let number = |x: Option<f64>, digits: usize| x.map_or("-".to_owned(), |x| format!("{x:.digits$}"));
    let log_gamma = match (unknown.log_gamma, unknown.log_gamma_threshold) {
        (Some(found), Some(limit)) => format!("{found:.1} ({limit:.1})"),
        _ => "-".to_owned(),
    };
    let holds = |level: f64| {
        let found = unknown.coverage.iter().find(|c| (c.level - level).abs() < 1e-9);
        found.map_or("-".to_owned(), |c| {
            format!("{:.0} ({:.0}-{:.0}) %", 100.0 * c.share, 100.0 * c.lower, 100.0 * c.upper)
        })
    };
    let width = unknown.width_90.map_or("-".to_owned(), |width| {
        let [width] = rounded([width], width);
        unknown.width_90_relative.map_or(width.clone(), |share| format!("{width} ({:.0} %)", 100.0 * share))
    });
    let p = unknown.t_trial_p_value.map(|p| if p < 0.001 { "<0.001".to_owned() } else { number(Some(p), 3) });
    let kind = unknown.verdict.name().to_owned();
    [log_gamma, p.unwrap_or_else(|| "-".to_owned()), holds(0.5), holds(0.9), width, kind]
}

/// A method's verdict, with the causes that fit and what to do.
fn spoken_verdict(method: &MethodSummary, coloured: bool) -> String {
    let verdict = &method.verdict;
    let head = format!("{}: {}.", method.method, verdict.kind.name());
    let mut text = wrapped(&format!("{head} {}", verdict.sentences.join(" ")), "  ");
    if let Some(rest) = text.strip_prefix(&head) {
        text = format!("{}{rest}", paint(&head, Look::Bold, coloured));
    }
    text.push('\n');
    for cause in &verdict.causes {
        let line = format!("  - {}: {} {}", cause.cause.name(), cause.evidence, cause.advice);
        text.push_str(&wrapped(&line, "    "));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        assert_eq!([0, 999, 1000, 12800, 1_234_567].map(thousands), ["0", "999", "1,000", "12,800", "1,234,567"]);
    }
}
