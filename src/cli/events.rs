//! `kvtide events`: prints the cached blocks of all spaces, and all changes, as lines of JSON.

use super::which::Which;
use clap::Args;
use kvtide_client::{Channel, Client, Error as ClientError, Events, Options, SpaceChange, SpaceSpec, Watch};
use kvtide_daemon::output;
use kvtide_types::FeedEvent;
use kvtide_wire::geometry::classes;
use kvtide_wire::hello::SpaceOpened;
use kvtide_wire::status::Status;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum time for the daemon's answers.
const ANSWER: Duration = Duration::from_secs(10);
/// Time between two looks whether the command is to end.
const LOOK: Duration = Duration::from_millis(200);

/// Flags of `kvtide events`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each line is one JSON object with the number and, but for space_closed, the name of the space. Events: space_opened, space_closed; stored \
    (hash, parent, relayed: a relay brought it), recorded (it is on NVMe), removed, used (hash of the last block, count); gap: lines \
    were missed, and all that is cached follows again.\n\nHashes are what tenants' salts rely on, so the daemon tells them only to \
    relays: list your user id in the relay_uids of a domain, or a token's file in its relay_tokens.\n\n\
    Exit status: 0: done; 1: failed; 3: no daemon answers.\n\n\
    Examples:\n  kvtide events\n  kvtide events --follow --seconds 600"
)]
pub(super) struct EventsArgs {
    /// Go on with what changes
    #[arg(long)]
    follow: bool,
    /// End after this time
    #[arg(long, value_name = "SECONDS", requires = "follow")]
    seconds: Option<u64>,
    /// File with the token of a relay
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    which: Which,
}

pub(super) fn run(args: &EventsArgs) -> ExitCode {
    let ended = args.which.engine_socket().and_then(|socket| print_all(args, &socket));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Ended::Output(error)) => output::ended(Err(error), ExitCode::SUCCESS),
        Err(Ended::Usage(why)) => {
            output::say(format_args!("kvtide: {why}"));
            ExitCode::from(output::USAGE)
        }
        Err(Ended::Client(error)) => {
            output::say(format_args!("kvtide: {error}"));
            let unreachable = matches!(error.status(), Status::Daemon);
            ExitCode::from(if unreachable { output::UNREACHABLE } else { output::FAILED })
        }
    }
}

/// Why the command ends.
pub(super) enum Ended {
    /// Its output cannot be written.
    Output(io::Error),
    /// A flag makes no sense here.
    Usage(String),
    /// The daemon refused something or is gone.
    Client(ClientError),
}

impl From<kvtide_daemon::error::Error> for Ended {
    fn from(error: kvtide_daemon::error::Error) -> Ended {
        Ended::Usage(error.to_string())
    }
}

impl From<ClientError> for Ended {
    fn from(error: ClientError) -> Ended {
        Ended::Client(error)
    }
}

/// Shared by the threads of the spaces.
struct Shared {
    socket: PathBuf,
    token_file: Option<PathBuf>,
    follow: bool,
    /// The command is to end.
    over: AtomicBool,
}

fn print_all(args: &EventsArgs, socket: &Path) -> Result<(), Ended> {
    let until = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (watch, open) = Watch::connect(socket, args.token_file.as_deref(), ANSWER)?;
    let shared = Arc::new(Shared {
        socket: socket.into(),
        token_file: args.token_file.clone(),
        follow: args.follow,
        over: AtomicBool::new(false),
    });
    let mut threads = Vec::new();
    let begin = |space: SpaceOpened| {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || shared.print(&space))
    };
    threads.extend(open.into_iter().map(begin));
    let mut ended = Ok(());
    while args.follow && ended.is_ok() && until.is_none_or(|until| Instant::now() < until) {
        ended = match watch.next(LOOK) {
            Ok(Some(SpaceChange::Opened(space))) => {
                threads.push(begin(space));
                Ok(())
            }
            Ok(Some(SpaceChange::Closed(space))) => line(&json!({ "event": "space_closed", "space": space })),
            Ok(None) => Ok(()),
            Err(error) => Err(error.into()),
        };
        // A thread ends with its space, or because nothing more can be printed.
        let (over, going) = threads.into_iter().partition(std::thread::JoinHandle::is_finished);
        threads = going;
        ended = ended.and(joined(over));
    }
    if args.follow {
        shared.over.store(true, Ordering::Relaxed);
    }
    ended.and(joined(threads))
}

/// Return the first error with which a thread ended.
fn joined(threads: Vec<std::thread::JoinHandle<Result<(), Ended>>>) -> Result<(), Ended> {
    threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

impl Shared {
    /// Print what a space has cached, and what changes, until it closes or the command ends.
    fn print(&self, space: &SpaceOpened) -> Result<(), Ended> {
        let printer = Printer { space: space.space, name: &space.name };
        printer.line(json!({
            "event": "space_opened",
            "fingerprint": space.fingerprint.map(|byte| format!("{byte:02x}")).concat(),
            "page_tokens": space.page_tokens,
            "shards": space.shards,
            "planes": space.planes.len(),
        }))?;
        let client = match self.attach(space) {
            // It has closed meanwhile; the other connection reports that.
            Err(error) if error.status() == Status::NotFound => return Ok(()),
            attached => attached?,
        };
        match self.follow(&client, &printer) {
            // The same.
            Err(Ended::Client(error)) if error.status() == Status::Daemon => Ok(()),
            ended => ended,
        }
    }

    fn attach(&self, space: &SpaceOpened) -> Result<Client, ClientError> {
        let SpaceOpened { fingerprint, page_tokens, shards, .. } = *space;
        let (name, planes) = (space.name.clone(), space.planes.clone());
        let frames = vec![0; classes(&planes).len()];
        let spec = SpaceSpec { name, fingerprint, page_tokens, planes, shards, shard: 0 };
        let token_file = self.token_file.clone();
        let options = Options::new(self.socket.clone(), spec, frames);
        Client::attach(Options { token_file, relay: true, seqs_max: 1, ..options })
    }

    fn follow(&self, client: &Client, printer: &Printer<'_>) -> Result<(), Ended> {
        let mut channel = client.channel(0)?;
        if !self.follow {
            return printer.list(&mut channel);
        }
        let mut next = u64::MAX; // no number of an event: the first answer is a gap
        while !self.over.load(Ordering::Relaxed) {
            let part = channel.follow(next, LOOK)?;
            for event in part.events {
                printer.event(event)?;
                if event == FeedEvent::Gap {
                    printer.list(&mut channel)?;
                }
            }
            next = part.next;
        }
        Ok(())
    }
}

/// Prints the lines of one space.
struct Printer<'a> {
    space: u32,
    name: &'a str,
}

impl Printer<'_> {
    fn list(&self, channel: &mut Channel) -> Result<(), Ended> {
        let mut cursor = 0;
        loop {
            let Events { events, next } = channel.list_blocks(cursor, ANSWER)?;
            events.into_iter().try_for_each(|event| self.event(event))?;
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    fn event(&self, event: FeedEvent) -> Result<(), Ended> {
        let hex = kvtide_types::hash_hex;
        self.line(match event {
            FeedEvent::Gap => json!({ "event": "gap" }),
            FeedEvent::Stored { hash, parent, relayed } => {
                let parent = (parent != 0).then(|| hex(parent));
                json!({ "event": "stored", "hash": hex(hash), "parent": parent, "relayed": relayed })
            }
            FeedEvent::Recorded { hash } => json!({ "event": "recorded", "hash": hex(hash) }),
            FeedEvent::Removed { hash } => json!({ "event": "removed", "hash": hex(hash) }),
            FeedEvent::Used { hash, count } => json!({ "event": "used", "hash": hex(hash), "count": count }),
        })
    }

    fn line(&self, mut value: Value) -> Result<(), Ended> {
        value["space"] = self.space.into();
        value["name"] = self.name.into();
        line(&value)
    }
}

fn line(value: &Value) -> Result<(), Ended> {
    output::write(&output::json_line(value)).map_err(Ended::Output)
}
