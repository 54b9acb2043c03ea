//! The lookups from Python: runs a script in the given interpreter against the daemon that has the blocks.

use super::BenchError;
use crate::bench::nvme::failed;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("lookup.py");
const ROUNDS: u32 = 2000;

/// Return the median and 99th percentile of lookups of 1,024 blocks, in microseconds.
pub(super) fn measure(
    interpreter: &Path,
    socket: &Path,
    block_bytes: u32,
    chains: u32,
) -> Result<(f64, f64), BenchError> {
    let tried = || format!("look up prefixes from Python by {}", interpreter.display());
    let mut command = Command::new(interpreter);
    command.args(["-", &socket.display().to_string()]);
    command.args([block_bytes, chains, ROUNDS].map(|number| number.to_string()));
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|e| failed(tried(), e))?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the process has already ended, its stderr has the reason.
        let _ = stdin.write_all(SCRIPT.as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| failed(tried(), e))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut words = said.split_whitespace().map(str::parse::<f64>);
    match (output.status.success(), words.next(), words.next()) {
        (true, Some(Ok(p50)), Some(Ok(p99))) => Ok((p50, p99)),
        _ => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(BenchError::Peer { tried: tried(), why: format!("{}; stderr: {why}", output.status) })
        }
    }
}
