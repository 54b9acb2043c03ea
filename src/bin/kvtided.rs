//! The daemon `kvtided`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvtide_daemon::command::kvtided()
}
