//! `kvtide drain`: stops new sessions and waits until the attached ones have gone. `kvtide reload`: reloads the configuration.

use super::waiting::Waiting;
use super::which::Which;
use clap::Args;
use kvtide_daemon::error::Error;
use kvtide_daemon::http::operate::Done;
use kvtide_daemon::output;
use kvtide_daemon::status::{Reloads, SessionInfo, Snapshot};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two looks at the daemon.
const PACE: Duration = Duration::from_millis(200);
/// Maximum time of a reload.
const RELOAD: Duration = Duration::from_secs(30);
/// Sessions that are named.
const NAMED: usize = 8;

/// Flags of `kvtide drain`.
#[derive(Debug, Args)]
#[command(
    after_help = "Engines that are attached go on; new ones are refused and try again later. The daemon keeps running: stop it, or \
    let engines attach again with --end.\n\nExit status: 0: no session is left; 1: sessions are left when the time is up; 3: no daemon answers.\n\n\
    Examples:\n  kvtide drain --timeout 600\n  kvtide drain --end"
)]
pub(super) struct DrainArgs {
    /// Seconds to wait for the last session
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(..=86_400))]
    timeout: u64,
    /// Let engines attach again
    #[arg(long, conflicts_with = "timeout")]
    end: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

pub(super) fn run(args: &DrainArgs) -> ExitCode {
    drain(args).unwrap_or_else(|error| output::failed(&error))
}

fn drain(args: &DrainArgs) -> Result<ExitCode, Error> {
    let body = serde_json::json!({ "drain": !args.end }).to_string();
    let done: Done = args.which.read("/v1/drain", Some(&body))?;
    if args.end {
        return Ok(match args.json {
            true => output::print_json(&done, ExitCode::SUCCESS),
            false => output::print(&format!("{}\n", done.text), ExitCode::SUCCESS),
        });
    }
    let (timeout, began) = (Duration::from_secs(args.timeout), Instant::now());
    let mut waiting = Waiting::new();
    let left = loop {
        let (_, status, _) = args.which.status()?;
        let left: Vec<SessionInfo> =
            status.sessions.into_iter().filter(|session| session.live && !session.relay).collect();
        let remaining = timeout.saturating_sub(began.elapsed());
        if left.is_empty() || remaining.is_zero() {
            break left;
        }
        waiting.tell(&format!("waiting for {}", named(&left)), Some(remaining));
        // PACE: of the looks, bounded by the time that the user gave.
        std::thread::sleep(PACE.min(remaining));
    };
    drop(waiting);
    let status = ExitCode::from(if left.is_empty() { 0 } else { output::FAILED });
    if args.json {
        return Ok(output::print_json(&serde_json::json!({ "drained": left.is_empty(), "left": left }), status));
    }
    if left.is_empty() {
        return Ok(output::print(
            "no session is left; the daemon can be stopped (kvtide drain --end admits engines again)\n",
            status,
        ));
    }
    output::say(format_args!(
        "kvtide: after {} s there are still {}; the daemon takes no new ones",
        args.timeout,
        named(&left)
    ));
    Ok(status)
}

/// Name sessions, at most a few.
fn named(sessions: &[SessionInfo]) -> String {
    let one = |session: &SessionInfo| format!("{} (pid {}, session {})", session.program, session.pid, session.session);
    let names: Vec<String> = sessions.iter().take(NAMED).map(one).collect();
    let more = sessions.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} sessions: {}{more}", sessions.len(), names.join(", "))
}

/// Flags of `kvtide reload`.
#[derive(Debug, Args)]
#[command(
    after_help = "The daemon reads its configuration file and its token files again, as after SIGHUP.\n\nExit status: 0: \
    done; 1: the file is wrong, and nothing has changed; 3: no daemon answers.\n\nExamples:\n  kvtide reload\n  kvtide reload --json"
)]
pub(super) struct ReloadArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

pub(super) fn reload(args: &ReloadArgs) -> ExitCode {
    try_reload(args).unwrap_or_else(|error| output::failed(&error))
}

fn try_reload(args: &ReloadArgs) -> Result<ExitCode, Error> {
    let before = args.which.status()?.1;
    let _: Done = args.which.read("/v1/reload", Some("{}"))?;
    let (began, mut waiting) = (Instant::now(), Waiting::new());
    let reloads = loop {
        let Snapshot { reloads, pid, .. } = args.which.status()?.1;
        if reloads.count > before.reloads.count || pid != before.pid {
            break reloads;
        }
        if began.elapsed() > RELOAD {
            let why = format!(
                "the daemon, pid {}, did not reload within {} s; its log says why",
                before.pid,
                RELOAD.as_secs()
            );
            return Err(Error::Refused { address: String::new(), code: String::new(), why });
        }
        waiting.tell("waiting for the daemon to reload", Some(RELOAD.saturating_sub(began.elapsed())));
        // PACE: of the looks, bounded by `RELOAD`.
        std::thread::sleep(PACE / 4);
    };
    drop(waiting);
    let Reloads { failed, changes, .. } = &reloads;
    let status = ExitCode::from(if failed.is_empty() { 0 } else { output::FAILED });
    if args.json {
        return Ok(output::print_json(&reloads, status));
    }
    if !failed.is_empty() {
        output::say(format_args!("kvtide: nothing was changed: {failed}"));
        return Ok(status);
    }
    let lines: String = changes.iter().map(|change| format!("{change}\n")).collect();
    let text = if changes.is_empty() { "reloaded: no value has changed\n".to_owned() } else { lines };
    Ok(output::print(&text, status))
}
