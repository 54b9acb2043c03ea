//! The control thread: accepts connections, does handshakes, creates spaces, handles signals, and shuts everything down in order.
//!
//! Only this thread sends attach requests to core threads, so it knows when an empty space can be retired. It never accesses a ring
//! or a core, and no core thread waits for it.

mod connections;
mod disks;
mod drain;
mod dump;
mod identities;
mod key;
mod obstacles;
mod orders;
mod reload;
mod signals;
mod spaces;
mod watchers;

use crate::announce::{RECORDED, say};
use crate::attach::{self, Handshake, Pending, Refusal, Tokens};
use crate::config::{Config, Source};
use crate::error::Error;
use crate::host::HostThread;
use crate::http::{self, HttpServer};
use crate::log::Log;
use crate::orders::{ORDERS, Order, Purge};
use crate::session::{Registry, SessionInfo};
use crate::space::{AttachRequest, Report, SpaceMessage};
use crate::status::{HealthMonitorThread, Quota, Stage, ThreadRegistry};
use crate::supervisor;
use crate::trace::Exporter;
use disks::Disks;
use dump::Dumper;
use identities::Identities;
use key::Key;
use kvtide_format::SlotLayout;
use kvtide_http::access::Access;
use kvtide_rt::mail::{Address, Mailbox, RetryQueue, mailbox};
use kvtide_wire::features;
use kvtide_wire::hello::{Hello, Limits, Protocol, Watch};
use kvtide_wire::layout::Shape;
use kvtide_wire::os::session::DaemonSide;
use kvtide_wire::os::socket::Listener;
use kvtide_wire::status::Status;
pub(crate) use obstacles::{Obstacle, obstacles};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signals::{Signal, Signals};
use spaces::{RETRY, Spaces};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use watchers::WATCHERS_MAX;

/// Mailbox size for reports: more than two per space.
const REPORTS: usize = 4096;

/// Settings from the command line that are not part of the configuration, and the data needed to reload the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Source of the configuration.
    pub source: Source,
    /// The running log.
    pub log: Log,
    /// Parent process. The daemon ends when it ends.
    pub parent: Option<u32>,
    /// Directories to remove, in this order, after the parent has ended.
    pub remove: Vec<PathBuf>,
}

/// State of the control thread.
#[derive(Debug)]
pub(crate) struct Control {
    config: Config,
    tokens: Tokens,
    /// None while its path cannot be bound again, and during shutdown.
    listener: Option<Listener>,
    /// Next check of the socket's path.
    look_at: Instant,
    signals: Signals,
    parent: Option<OwnedFd>,
    /// Source of the configuration.
    source: Source,
    log: Log,
    /// Directories to delete if the daemon ends because its parent did.
    remove: Vec<PathBuf>,
    reports: Mailbox<Report>,
    orders: Mailbox<Order>,
    /// The purge in progress.
    purging: Option<Purge>,
    /// A purged tenant, until the host thread has the message.
    purged: Option<String>,
    pending: Pending,
    spaces: Spaces,
    identities: Identities,
    registry: Registry,
    host: HostThread,
    disks: Disks,
    thread_registry: ThreadRegistry,
    monitor: HealthMonitorThread,
    dumper: Dumper,
    http: HttpServer,
    access: Access,
    /// Accepts no connections before this time.
    paused_until: Option<Instant>,
}

/// Reason for the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// SIGTERM or SIGINT.
    Signal,
    /// The parent of a private daemon has ended.
    Parent,
}

impl Control {
    /// Bind the socket and set up everything else that can fail.
    pub fn new(config: Config, options: Options) -> Result<Control, Error> {
        let http = config.http.listen.map(http::bind).transpose()?;
        let signals = Signals::install()?;
        let tokens = Tokens::load(&config.domains)?;
        let access = http::access(&config)?;
        let parent = options.parent.map(signals::watch_parent).transpose()?;
        let wire = |source| Error::Wire { action: "create the control thread's mailbox", source };
        let (to_control, reports) = mailbox(REPORTS).map_err(wire)?;
        let (to_orders, orders) = mailbox(ORDERS).map_err(wire)?;
        // Bind the socket first: it shows at once whether another daemon runs. Clients that connect meanwhile wait.
        let listener = Some(attach::bind(&config.daemon.socket, config.daemon.socket_mode)?);
        let http_socket = http::bind_socket(&config.daemon.socket, config.daemon.socket_mode)?;
        let to_host = HostThread::mailbox()?;
        let thread_registry = ThreadRegistry::default();
        thread_registry.serve_socket(config.daemon.socket.clone());
        let registry = thread_registry.registry().clone();
        let monitor = HealthMonitorThread::spawn(thread_registry.clone(), options.log.clone())?;
        let dumper = Dumper::start(monitor.handle().clone(), config.daemon.dir.join("status.json"))?;
        if let Some(address) = http.as_ref().and_then(|http| http.local_addr().ok()) {
            thread_registry.serve_http(address);
        }
        let daemon = http::Daemon {
            monitor: monitor.handle().clone(),
            registry: thread_registry.clone(),
            access: access.clone(),
            orders: to_orders,
            purging: http::Purging::default(),
        };
        let http = HttpServer::start(http_socket, http, daemon, thread_registry.http_counters())?;
        thread_registry.bound_disks(disks::bounds(&config));
        thread_registry.set_quotas(Quota::of(&config.domains));
        let (disks, recovered) = Disks::start(&config, &to_host.0, &thread_registry)?;
        thread_registry.serve_disks(disks.figures());
        let host = HostThread::spawn(&config, &disks.disks(), recovered, to_host, &thread_registry)?;
        let identities = Identities::start(&config)?;
        let start = |endpoint: &String| {
            let started = Exporter::start("kvtided", endpoint, thread_registry.trace_counters().clone());
            started.map_err(|error| Error::system("export traces", error))
        };
        let exporter = config.tracing.endpoint.as_ref().map(start).transpose()?;
        let disk_handles = disks.disks();
        let spaces = Spaces::new(to_control, host.address(), disk_handles, thread_registry.clone(), &config, exporter);
        thread_registry.control().round();
        // `kvtide status` works from here on: HTTP accepts connections, and the health monitor has answered.
        monitor.handle().snapshot(Duration::ZERO).ok_or_else(|| {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            Error::system("get a first status from the health monitor", late)
        })?;
        thread_registry.advance(Stage::Serving);
        Ok(Control {
            config,
            tokens,
            listener,
            look_at: Instant::now(),
            signals,
            parent,
            remove: options.remove,
            source: options.source,
            log: options.log,
            reports,
            orders,
            purging: None,
            purged: None,
            pending: Pending::default(),
            spaces,
            identities,
            registry,
            host,
            disks,
            thread_registry,
            monitor,
            dumper,
            http,
            access,
            paused_until: None,
        })
    }

    /// Serve until a signal or the parent's end, then shut down in order.
    pub fn run(mut self) -> Result<(), Error> {
        supervisor::ready(&format!("serving {}", self.config.daemon.socket.display()));
        let ending = self.serve()?;
        supervisor::stopping();
        self.thread_registry.advance(Stage::Draining);
        tracing::info!("draining: {ending:?}, grace {:?}", self.config.daemon.drain);
        let orphaned = if ending == Ending::Parent { std::mem::take(&mut self.remove) } else { Vec::new() };
        let drained = self.drain();
        orphaned.into_iter().fold(drained, |so_far, dir| {
            let removed = std::fs::remove_dir_all(&dir).map_err(|source| {
                let action = "remove the directory left by the parent";
                Error::File { action, path: dir, source }
            });
            so_far.and(removed)
        })
    }

    fn serve(&mut self) -> Result<Ending, Error> {
        loop {
            let flushed = self.spaces.flush();
            self.wait(flushed)?;
            self.thread_registry.control().round();
            if self.parent.as_ref().is_some_and(signals::has_ended) {
                return Ok(Ending::Parent);
            }
            while let Some(signal) = self.signals.take() {
                match signal {
                    Signal::End => return Ok(Ending::Signal),
                    // The log and the status have the result.
                    Signal::Reload => drop(self.reload()),
                    Signal::Dump => self.dumper.want(),
                    Signal::Record => {
                        self.spaces.record();
                        say(RECORDED, &self.config.daemon.dir);
                    }
                }
            }
            self.reports.quiet();
            while let Some(report) = self.reports.take() {
                self.spaces.handle(report);
            }
            self.orders.quiet();
            self.take_orders();
            self.spaces.hear_relays();
            self.hear_silent();
            self.accept();
            self.keep_socket();
        }
    }

    /// Sleep until an event or a deadline. `flushed`: no message waits to be sent again.
    fn wait(&self, flushed: bool) -> Result<(), Error> {
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.reports, PollFlags::IN)];
        fds.push(PollFd::new(&self.orders, PollFlags::IN));
        fds.extend(self.parent.as_ref().map(|parent| PollFd::new(parent, PollFlags::IN)));
        let now = Instant::now();
        let resumes = self.paused_until.filter(|until| *until > now);
        if resumes.is_none() {
            fds.extend(self.listener.as_ref().map(|listener| PollFd::new(listener, PollFlags::IN)));
        }
        fds.extend(self.pending.iter().map(|silent| PollFd::new(silent, PollFlags::IN)));
        fds.extend(self.spaces.watchers.sockets().map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        let retry = (!flushed).then(|| now + RETRY);
        let due = self.pending.due().into_iter().chain(resumes).chain(retry).chain([self.look_at]).min();
        let left = due.map(|due| due.saturating_duration_since(now));
        self.thread_registry.control().sleep(left);
        let timeout = left.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::system("poll in the control thread", errno)),
        }
    }

    fn admit(&mut self, handshake: Handshake, hello: Hello) {
        match self.prepare_session(&handshake, &hello) {
            Err(refusal) => handshake.refuse(&self.registry, &refusal),
            Ok((space, admitted)) => {
                let (socket, peer, pidfd) = handshake.into_parts();
                let Admitted { number, side, fds, protocol, limits, relay_socket } = admitted;
                let (shard, relay, mut frames) = (hello.shard, hello.relay, hello.tier0_frames);
                if hello.mapped_frames > 0 {
                    frames.extend(vec![hello.mapped_frames; frames.len()]);
                }
                let request = AttachRequest {
                    number,
                    socket,
                    peer,
                    pidfd,
                    side,
                    fds,
                    protocol,
                    limits,
                    shard,
                    numa_node: hello.numa_node,
                    relay,
                    relay_socket,
                    identity: hello.identity,
                    frames,
                };
                if !self.spaces.send(space, request) {
                    self.registry.remove(number);
                }
            }
        }
    }

    /// Tell a relay which spaces of its domain are open, and from now on what changes.
    fn watch(&mut self, handshake: Handshake, watch: &Watch) {
        let peer = handshake.peer();
        let domain = attach::domain_of(&self.config.domains, &self.tokens, peer.uid, watch.token.as_ref(), true);
        let domain = domain.and_then(|domain| match self.spaces.watchers.len() {
            WATCHERS_MAX.. => {
                let text = format!("{WATCHERS_MAX} relays watch the spaces, the maximum");
                Err(Refusal { status: Status::Limit, text })
            }
            _ => Ok(domain),
        });
        match domain {
            Err(refusal) => handshake.refuse(&self.registry, &refusal),
            Ok(domain) => {
                let (socket, peer, _) = handshake.into_parts();
                tracing::info!(
                    "relay (pid {}, uid {}) watches the spaces of domain {}",
                    peer.pid,
                    peer.uid,
                    self.config.domains[domain].name
                );
                self.spaces.watch(socket, (domain, &self.config.domains[domain].name), peer);
            }
        }
    }

    /// Create everything that a session needs before its core thread gets it. Also return the number of its space.
    fn prepare_session(&mut self, handshake: &Handshake, hello: &Hello) -> Result<(u32, Admitted), Refusal> {
        if self.thread_registry.is_drained() {
            let text = "the daemon takes no new sessions: an operator drains it (kvtide drain)".to_owned();
            return Err(Refusal { status: Status::Daemon, text });
        }
        let peer = handshake.peer();
        let index = attach::domain_of(&self.config.domains, &self.tokens, peer.uid, hello.token.as_ref(), hello.relay)?;
        let domain = &self.config.domains[index];
        if self.is_purging(&domain.name) {
            let text = format!("tenant {:?} is being purged; try again", domain.name);
            return Err(Refusal { status: Status::Daemon, text });
        }
        let key = Key::new(index, hello);
        let found = self.spaces.find(&key);
        let stored = key.digest(&domain.name, &SlotLayout::new(&hello.planes));
        let limits = &match found.and_then(|space| self.spaces.limits(space)) {
            Some(begun) => self.config.limits.in_space(begun),
            None => self.config.limits,
        };
        if hello.relay && !found.is_some_and(|space| self.spaces.is_open_to_relays(space)) {
            let text = format!("no engine of domain {:?} has opened such a space to relays", domain.name);
            return Err(Refusal { status: Status::NotFound, text });
        }
        let config = attach::admit(&self.config, limits, domain, hello)?;
        let counts = [
            (self.registry.count(None), limits.sessions_max, "limits.sessions_max"),
            (self.registry.count(Some(index)), domain.sessions_max, "the domain's sessions_max"),
        ];
        for (count, max, key) in counts {
            if count >= max && !hello.relay {
                let text = format!(
                    "{count} sessions are attached or wait for process exit; at most {max} are allowed ({key})"
                );
                return Err(Refusal { status: Status::Limit, text });
            }
        }
        let (channels, depth, lanes) = (hello.channels, hello.depth, hello.lanes);
        let granted = Limits {
            shape: Shape { channels, depth, jobs: config.limits.jobs_max, lanes },
            blocks_max: config.limits.blocks_max,
            seqs_max: hello.seqs_max,
            seq_blocks_max: config.limits.seq_blocks_max,
            request_timeout_us: limits.request_timeout.as_micros() as u64,
        };
        let system = |error: String| Refusal { status: Status::System, text: error };
        let protocol = Protocol::ours(if self.config.tracing.endpoint.is_some() { features::TRACE } else { 0 })
            .common(hello.protocol);
        let (side, fds) = DaemonSide::create(granted.shape, protocol.version)
            .map_err(|error| system(format!("cannot create the session's shared memory: {error}")))?;
        let space = match found {
            Some(space) => space,
            None => {
                let domains = self.config.domains.iter().enumerate().filter(|(_, domain)| domain.admits());
                let domains: Vec<usize> = domains.map(|(index, _)| index).collect();
                let room = self.spaces.make_room((index, &domains), limits.spaces_max as usize);
                room.map_err(|text| Refusal { status: Status::Limit, text })?;
                let others = self.identities.others(&domain.name, &hello.name, stored);
                let started = self.spaces.start(key, hello, domain, (config, *limits), others);
                started.map_err(|error| system(error.to_string()))?
            }
        };
        if !hello.identity.is_empty() {
            self.identities.keep(&domain.name, &hello.name, stored, &hello.identity);
        }
        let info = |session| SessionInfo {
            session,
            space,
            domain: index,
            pid: peer.pid,
            uid: peer.uid,
            program: attach::program(peer.pid).unwrap_or_default(),
            attached_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            protocol: protocol.version,
            shard: hello.shard,
            relay: hello.relay,
            live: true,
        };
        let number = self.registry.add(info);
        // A space that stays on this machine has nothing to ask a relay.
        let relay_socket = if hello.local || hello.relay { PathBuf::new() } else { domain.relay_socket.clone() };
        Ok((space, Admitted { number, side, fds, protocol, limits: granted, relay_socket }))
    }
}

/// Resources of an admitted peer.
struct Admitted {
    number: u32,
    side: DaemonSide,
    fds: kvtide_wire::os::session::PeerFds,
    protocol: Protocol,
    limits: Limits,
    relay_socket: PathBuf,
}
