//! The `twostep` command: a study file to results on disk and a table on the terminal.

mod arguments;
mod commands;
mod failure;
mod output;
mod progress;
mod results;
mod session;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match arguments::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(message) => {
            // Help and version come this way too; a reader that has gone away has seen enough of them.
            let _ = message.print();
            if message.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
                failure::print_usage_error(&message.to_string());
            }
            return ExitCode::from(u8::try_from(message.exit_code()).unwrap_or(2));
        }
    };
    match commands::execute(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(arguments.global.json),
    }
}
