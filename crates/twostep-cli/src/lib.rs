//! The `twostep` command: a study file to results on disk and a table on the terminal.
//!
//! A library, so that the Python package carries the same command.

mod arguments;
mod commands;
mod failure;
mod output;
mod progress;
mod results;
mod session;

use clap::Parser;
use std::ffi::OsString;

/// Does what a command line asks for, the program's name first, and returns the exit status.
pub fn main(command_line: &[OsString]) -> u8 {
    let arguments = match arguments::Arguments::try_parse_from(command_line) {
        Ok(arguments) => arguments,
        Err(message) => {
            // Help and version come this way too; a reader that has gone away has seen enough of them.
            let _ = message.print();
            if message.use_stderr() && command_line.iter().any(|argument| argument == "--json") {
                failure::print_usage_error(&message.to_string());
            }
            return u8::try_from(message.exit_code()).unwrap_or(2);
        }
    };
    match commands::execute(&arguments) {
        Ok(()) => 0,
        Err(failure) => failure.report(arguments.global.json),
    }
}
