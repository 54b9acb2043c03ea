//! The tool `kvtide`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvtide_daemon::cli::kvtide()
}
