//! The `twostep` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    let command_line: Vec<_> = std::env::args_os().collect();
    ExitCode::from(twostep_cli::main(&command_line))
}
