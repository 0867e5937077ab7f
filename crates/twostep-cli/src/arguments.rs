//! What may stand on the command line.

use crate::commands::{
    calibrate, check, compare, design, enough, figures, import, infer, merge, methods, new, paper, predict, report,
    run, runs, serve, simulate, status, submit, train, verify,
};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Infer the inputs of an expensive simulator through a surrogate, without pretending that the surrogate is exact.
///
/// Start with `twostep new`, then `twostep run study.toml`. Results are kept in a folder beside the study; a second run does
/// only what has changed.
#[derive(Debug, Parser)]
#[command(name = "twostep", version = twostep::run::VERSION, max_term_width = 100, arg_required_else_help = true)]
#[command(
    after_help = "Exit status: 0 done, 1 a computation or the disk failed, 2 bad study or arguments, 130 interrupted."
)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Flags of every command.
    #[command(flatten)]
    pub(crate) global: Global,
}

/// Flags of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// Folder of results [default: the study file's name with .twostep for .toml, beside it]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Seed of all random numbers, instead of the study's
    #[arg(long, global = true, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Threads to use [default: one per core]; results do not depend on it
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// No progress, only results, warnings and errors
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Print JSON, and nothing else, on standard output; errors as {"error": ...}
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Do a whole study: simulate, train, infer, report
    #[command(after_long_help = methods::SHORT)]
    Run(run::Run),
    /// Show the design, or write the runs that are still to be made
    Design(design::Design),
    /// Run the simulator over the design
    Simulate(simulate::Simulate),
    /// List the simulator runs and what became of them
    Runs(runs::Runs),
    /// Bring in simulator runs that were made elsewhere
    Import(import::Import),
    /// Train the surrogate (T-step)
    Train(train::Train),
    /// Infer the unknowns from measurements (I-step)
    #[command(after_long_help = methods::SHORT)]
    Infer(infer::Infer),
    /// Check by simulation whether the intervals of a study may be believed
    #[command(after_long_help = calibrate::COLUMNS)]
    Calibrate(calibrate::Calibrate),
    /// Bring together what shards of a calibration, of simulator runs or of fits have done
    #[command(after_long_help = merge::ABOUT)]
    Merge(merge::Merge),
    /// Write, and if you like submit, a Slurm job array of shards with its merge
    #[command(after_long_help = submit::ABOUT)]
    Submit(submit::Submit),
    /// Make the report and the files beside it anew, from finished results
    #[command(after_long_help = report::ABOUT)]
    Report(report::Report),
    /// Write figures for papers and slides, with their data, from finished results
    Figures(figures::Figures),
    /// Predict outputs at new conditions, from finished results
    #[command(after_long_help = predict::COLUMNS)]
    Predict(predict::Predict),
    /// Serve surrogate and posterior to other programs (UM-Bridge), from finished results
    #[command(after_long_help = serve::ABOUT)]
    Serve(serve::Serve),
    /// Say whether the simulator runs were enough, from parts of them
    #[command(after_long_help = enough::ABOUT)]
    Enough(enough::Enough),
    /// Run the simulator where the answer lies, and compare it with the surrogate
    Verify(verify::Verify),
    /// Compare studies of the same measurements by their evidences, from finished results
    #[command(after_long_help = compare::ABOUT)]
    Compare(compare::Compare),
    /// Check a study and say what it would do, without doing it
    Check(check::Check),
    /// Show which stages are finished, and why others are stale
    Status(status::Status),
    /// Write a starter study into the current folder
    New(new::New),
    /// Make the figures and tables of the paper
    #[command(after_long_help = paper::ABOUT)]
    Paper(paper::Paper),
    /// Explain the four ways to carry the surrogate's uncertainty
    Methods,
}
