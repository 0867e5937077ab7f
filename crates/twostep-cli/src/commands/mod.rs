//! One file per command; what `run`, `simulate`, `train` and `infer` share.

pub(crate) mod calibrate;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod design;
pub(crate) mod enough;
pub(crate) mod figures;
pub(crate) mod import;
pub(crate) mod infer;
pub(crate) mod merge;
pub(crate) mod methods;
pub(crate) mod new;
pub(crate) mod paper;
pub(crate) mod predict;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod status;
pub(crate) mod submit;
pub(crate) mod train;
pub(crate) mod verify;

use crate::arguments::{Arguments, Command, Global};
use crate::failure::Failure;
use crate::output::{self, Look};
use crate::progress::Progress;
use crate::{results, session};
use serde_json::{Value, json};
use std::path::Path;
use twostep::Error;
use twostep::run::{Project, SettingResult, ShareDone, summary};
use twostep::study::Stage;
use twostep::table::{Table, counted};

/// Does what the command line asks for.
///
/// # Errors
/// Whatever kept the command from finishing.
pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let global = &arguments.global;
    if let Some(threads) = global.threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(usize::from(threads));
        let problem = |error: rayon::ThreadPoolBuildError| {
            Error::failed("--threads", error.to_string(), "give a smaller number of threads")
        };
        pool.build_global().map_err(problem)?;
    }
    match &arguments.command {
        Command::Run(command) => command.execute(global),
        Command::Design(command) => command.execute(global),
        Command::Simulate(command) => command.execute(global),
        Command::Runs(command) => command.execute(global),
        Command::Import(command) => command.execute(global),
        Command::Train(command) => command.execute(global),
        Command::Infer(command) => command.execute(global),
        Command::Calibrate(command) => command.execute(global),
        Command::Merge(command) => command.execute(global),
        Command::Submit(command) => command.execute(global),
        Command::Report(command) => command.execute(global),
        Command::Figures(command) => command.execute(global),
        Command::Predict(command) => command.execute(global),
        Command::Serve(command) => command.execute(global),
        Command::Enough(command) => command.execute(global),
        Command::Verify(command) => command.execute(global),
        Command::Compare(command) => command.execute(global),
        Command::Check(command) => command.execute(global),
        Command::Status(command) => command.execute(global),
        Command::New(command) => command.execute(global),
        Command::Paper(command) => command.execute(global),
        Command::Methods => methods::execute(global),
    }
}

/// Does the stages of a study up to `until` and prints what came out.
fn run_stages(study: &Path, measurements: Option<&Path>, until: Stage, global: &Global) -> Result<(), Failure> {
    let project = session::open(study, global, measurements)?;
    if until == Stage::Infer {
        session::check_measurements(&project)?;
    }
    run_project(&project, until, &Progress::new(global.quiet), global)
}

fn run_project(project: &Project, until: Stage, progress: &Progress, global: &Global) -> Result<(), Failure> {
    let outcome = project.run(until, progress);
    progress.finish();
    show_results(project, &outcome?, global)?;
    match until {
        Stage::Infer => make_report(project, progress, global),
        Stage::Simulate | Stage::Train => Ok(()),
    }
}

/// Makes the report where it does not show the results as they are, and says where it lies.
fn make_report(project: &Project, progress: &Progress, global: &Global) -> Result<(), Failure> {
    let kept = twostep::report::keep(project, progress);
    progress.finish();
    match kept {
        Ok(place) if !global.json => Ok(output::print(&format!("report in {}\n", place.display()))?),
        Ok(_) => Ok(()),
        Err(Error::Interrupted) => Err(Error::Interrupted.into()),
        // The results are there, whatever keeps them from being shown.
        Err(problem) => {
            output::note_as("warning", Look::Warning, &format!("the report could not be made: {problem}"));
            Ok(())
        }
    }
}

/// Prints what came out of the stages of a study.
fn show_results(project: &Project, results: &[SettingResult], global: &Global) -> Result<(), Failure> {
    if global.json {
        print_json(&summary(project, results))?;
    } else {
        output::print(&results::render(project, results))?;
    }
    for warning in results::warnings(results) {
        output::note_as("warning", Look::Warning, &warning);
    }
    if !global.json {
        output::print(&format!("results in {}\n", project.folder().display()))?;
    }
    Ok(())
}

/// Says what a worker did of its share.
fn show_share(done: &ShareDone, global: &Global) -> Result<(), Failure> {
    let ShareDone { task, share, units, own, new, failed, files } = done;
    if global.json {
        let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        return print_json(&json!({
            "task": task.name(), "shard": share.to_string(), "units": units, "own": own, "new": new, "failed": failed, "files": files,
        }));
    }
    let failures = if *failed > 0 { format!(", {failed} of them failures") } else { String::new() };
    let mut text = format!(
        "shard {share}: {own} of {} {}; {}{failures}\n",
        counted(*units, task.unit()),
        if *own == 1 { "is its own" } else { "are its own" },
        counted(*new, "new result"),
    );
    for file in files {
        text.push_str(&format!("kept in {}\n", file.display()));
    }
    Ok(output::print(&text)?)
}

fn print_json(value: &Value) -> Result<(), Failure> {
    Ok(output::print(&format!("{value:#}\n"))?)
}

/// One object per row; cells that are numbers as numbers, empty ones as null.
fn records(table: &Table) -> Result<Vec<Value>, Error> {
    let names: Vec<&str> = table.names().collect();
    let columns: Vec<Vec<String>> = names.iter().map(|name| table.texts(name)).collect::<Result<_, _>>()?;
    let cell = |name: &str, text: &str| match text.parse::<f64>() {
        _ if text.is_empty() => Value::Null,
        Ok(number) if name != "output" => json!(number),
        _ => json!(text),
    };
    let row = |i: usize| {
        names.iter().zip(&columns).map(|(name, column)| ((*name).to_owned(), cell(name, &column[i]))).collect()
    };
    Ok((0..table.n_rows()).map(|i| Value::Object(row(i))).collect())
}
