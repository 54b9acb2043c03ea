//! Attach: handshake, tables, tier 0, copy thread.

use super::{
    BlockId, Error, Layout, Options, Result, channel, device, frames,
    inner::{Inner, Slots},
    lane,
    layout::PlaneLayout,
    options::{bounded, deadline},
};
use crate::{
    agent::{
        attention::Memory,
        copier,
        copy_loop::CopyLoop,
        port::Port,
        protocol::{Geometry, LaneView, Shared, geometry::Bounds, step::Reader},
        session::{self, Session},
    },
    memory::{ClassRoom, Tier0},
};
use kvtide_types::Request as WireRequest;
use kvtide_wire::{
    Error as WireError, features,
    hello::{Hello, Limits, Protocol, Token},
    layout::CHANNELS_MAX,
    os::{bell::Sleepable, numa, session::EngineSide, socket::Socket},
    status::Status,
};
use std::{
    fs::File,
    path::Path,
    sync::{Arc, Mutex},
    time::Instant,
};

/// Minimum entries of the update log, 24 bytes each. A lane may lag behind by this many before jobs wait for it.
const LOG_ENTRIES: u32 = 1 << 14;
/// Maximum pins at a time.
const PINS_MAX: u32 = 1024;

/// A connected session, before its copy thread starts.
pub(super) struct Connected {
    pub session: Arc<Session>,
    pub channels: Vec<channel::State>,
    pub lanes: Vec<lane::State>,
    pub bell: Sleepable,
    /// As in the Welcome message.
    pub other_identity: String,
    /// As in the Welcome message.
    pub relay_socket: String,
    /// As in the Welcome message.
    pub traces: bool,
}

pub(super) fn bad(option: &'static str, why: impl Into<String>) -> Error {
    Error::Options { option, why: why.into() }
}

/// Convert a handshake error into the client's error.
fn refused(options: &Options, error: WireError) -> Error {
    match error {
        WireError::Refused { status, text } => Error::Refused { socket: options.socket.clone(), status, text },
        WireError::Bound { .. } | WireError::PowerOfTwo { .. } => bad("handshake", error.to_string()),
        WireError::Message { message: "hello" | "plane", field, found, expected } => {
            bad(field, format!("is {found}, expected {expected}"))
        }
        error => not_connected(&options.socket, "attach to", error),
    }
}

/// Return the error of a connection to the daemon. A daemon that does not answer is the same as one that died.
pub(super) fn not_connected(socket: &Path, doing: &str, error: WireError) -> Error {
    let status = match error.status() {
        Status::System | Status::TimedOut => Status::Daemon,
        status => status,
    };
    let doing = format!("{doing} {}", socket.display());
    Error::System { doing, status, source: std::io::Error::other(error) }
}

fn hello(options: &Options) -> Result<Hello> {
    let rings = options.channels.saturating_add(options.lanes);
    if options.channels == 0 || options.lanes == 0 {
        return Err(bad("channels, lanes", "at least one channel and one lane are needed"));
    }
    if rings > CHANNELS_MAX {
        return Err(bad("channels + lanes", format!("{rings} rings; a session has at most {CHANNELS_MAX}")));
    }
    let depth = options.depth.max(4).checked_next_power_of_two();
    Ok(Hello {
        protocol: Protocol::ours(features::TRACE),
        name: options.space.name.clone(),
        fingerprint: options.space.fingerprint,
        identity: options.identity.clone(),
        page_tokens: options.space.page_tokens,
        planes: options.space.planes.clone(),
        shards: options.space.shards,
        shard: options.space.shard,
        lanes: options.lanes,
        channels: rings,
        depth: depth.ok_or_else(|| bad("depth", "exceeds the maximum size of a ring"))?,
        seqs_max: options.seqs_max,
        tier0_frames: frames::without_digests(options)?,
        mapped_frames: options.mapped_frames,
        numa_node: None, // known once the device is open
        relay: options.relay,
        local: options.local,
        token: options.token_file.as_deref().map(token).transpose()?,
    })
}

/// Read the token from a file. The file's permissions are not checked: in a container it is often readable by everyone.
pub(super) fn token(path: &Path) -> Result<Token> {
    let mut file = File::open(path).map_err(|source| Error::System {
        doing: format!("read the token file {}", path.display()),
        status: Status::System,
        source,
    })?;
    kvtide_wire::os::token::read(&mut file, path).map_err(|error| match error {
        WireError::Message { .. } => bad("token_file", format!("{}: {error}", path.display())),
        error => Error::System { doing: "attach".into(), status: Status::System, source: std::io::Error::other(error) },
    })
}

/// Check that the daemon granted the requested values, and build the geometry.
fn geometry(options: &Options, limits: &Limits, hello: &Hello) -> Result<Geometry> {
    let shape = limits.shape;
    if (shape.channels, shape.lanes) != (hello.channels, hello.lanes) {
        return Err(bad("channels, lanes", format!("the daemon granted {} and {}", shape.channels, shape.lanes)));
    }
    let planes = options.space.planes.len();
    let log_entries = LOG_ENTRIES.max((4 * planes as u32).next_power_of_two());
    let bounds = Bounds {
        page_tokens: options.space.page_tokens,
        blocks_max: limits.blocks_max,
        seqs_max: limits.seqs_max.min(options.seqs_max),
        seq_blocks_max: limits.seq_blocks_max.min(limits.blocks_max),
        lanes: shape.lanes,
        jobs_max: shape.jobs,
        log_entries,
        pins_max: PINS_MAX,
    };
    Geometry::new(&options.space.planes, &hello.tier0_frames, bounds)
        .and_then(|geometry| geometry.with_mapped_frames(hello.mapped_frames))
        .map_err(|e| bad("space", e.to_string()))
}

/// Check the initial frames of tier 0 against its maximum.
fn initial<'a>(options: &'a Options, most: &[u32]) -> Result<&'a [u32]> {
    let initial = &options.tier0_initial;
    if !initial.is_empty() && initial.len() != most.len() {
        return Err(bad("tier0_initial", format!("{} classes are given, tier 0 has {}", initial.len(), most.len())));
    }
    match initial.iter().zip(most).enumerate().find(|(_, (initial, most))| initial > most) {
        Some((class, (initial, most))) => {
            Err(bad("tier0_initial", format!("{initial} frames in class {class} exceed its {most} tier-0 frames")))
        }
        None => Ok(initial),
    }
}

/// Connect to the daemon and build the session around `tier0`, or around a new tier 0.
pub(super) fn connect(options: &Options, tier0: Option<Arc<Tier0>>) -> Result<Connected> {
    let mut hello = hello(options)?;
    let initial = initial(options, &hello.tier0_frames)?;
    let device = device::open(options)?; // a missing device is reported before the daemon is contacted
    // A relay's copies use no device, and its blocks are for engines on any node.
    if !options.relay {
        let given = options.numa_node.or_else(|| device::numa_node(&device));
        hello.numa_node = given.or_else(|| numa::of_process(Path::new("/")));
    }
    let attached = kvtide_wire::os::session::attach(&options.socket, &hello, bounded(options.timeout));
    let (socket, welcome, limits, side) = attached.map_err(|e| refused(options, e))?;
    let geometry = geometry(options, &limits, &hello)?;
    let tier0 = match tier0 {
        Some(tier0) => tier0,
        None => Arc::new(device::tier0(&device, &geometry, options, initial)?),
    };
    let shared = Shared::new(geometry).map_err(|_| session::no_memory("the page tables"))?;
    let mut connected = assemble(options, Arc::new(shared), tier0, socket, side, limits.shape.depth)?;
    (connected.other_identity, connected.relay_socket) = (welcome.other_identity, welcome.relay_socket);
    connected.traces = welcome.protocol.features & features::TRACE != 0;
    let until = deadline(options.timeout);
    let told = tell_sizes(&mut connected, until);
    told.map_err(|status| Error::call("report the size of tier 0 to the daemon, class", 0, status))?;
    ask_guarantee(&mut connected, options.guaranteed_blocks, until)?;
    Ok(connected)
}

/// Report each class of tier 0 that has less memory than its maximum, before any sequence exists: the daemon must give no page a
/// frame without memory.
fn tell_sizes(connected: &mut Connected, until: Instant) -> std::result::Result<(), Status> {
    let Some(channel) = connected.channels.first_mut() else { return Ok(()) };
    let (geometry, tier0) = (connected.session.shared.geometry(), &connected.session.tier0);
    for (class, max) in (0..geometry.classes()).filter_map(|class| Some((class, geometry.class(class)?.2))) {
        let frames = tier0.frames(class);
        if frames < max {
            let request = WireRequest::Tier0Resize { class: class as u8, frames }; // at most CLASSES_MAX classes
            channel.ask(request, until)?;
        }
    }
    Ok(())
}

/// Have the daemon guarantee a number of blocks.
fn ask_guarantee(connected: &mut Connected, blocks: u32, until: Instant) -> Result<()> {
    const DOING: &str = "attach with a guarantee of blocks, number";
    let Some(channel) = connected.channels.first_mut().filter(|_| blocks > 0) else { return Ok(()) };
    match channel.ask_once(WireRequest::Guarantee { blocks }, until) {
        Ok((Status::Ok, _)) => Ok(()),
        Ok((Status::NoSpace, possible)) => Err(Error::System {
            doing: format!("attach with a guarantee of {blocks} blocks"),
            status: Status::NoSpace,
            source: std::io::Error::other(format!(
                "the daemon can guarantee {possible}: guarantee fewer, or give it more host memory or NVMe"
            )),
        }),
        Ok((Status::Invalid, _)) => Err(bad("guaranteed_blocks", "the session has no tier 0")),
        Ok((status, _)) | Err(status) => Err(Error::call(DOING, blocks.into(), status)),
    }
}

fn assemble(
    options: &Options,
    shared: Arc<Shared>,
    tier0: Arc<Tier0>,
    socket: Socket,
    side: EngineSide,
    depth: u16,
) -> Result<Connected> {
    let kvtide_wire::os::session::JobRings { jobs, done, waker, sleeper, bell } = side.job_rings;
    let (memory, mut streams) = device::memory(&shared, &tier0, options)?;
    let copy_loop = CopyLoop::new((jobs, done, waker.clone()), session::mover(&shared)?, memory, Arc::clone(&shared));
    let attention = Memory::new(shared.geometry(), options.digests.as_ref(), !tier0.is_host());
    let parts = session::Parts {
        shared: Arc::clone(&shared),
        tier0,
        attention: attention.ok_or_else(|| session::no_memory("the history of pages"))?,
        timeout: options.timeout,
        max_stall: bounded(options.max_stall),
        socket,
        copy_loop,
        sleeper,
        waker,
    };
    let session = Arc::new(Session::new(parts)?);
    let mut ports = side.channels.into_iter().map(|wire| Port::new(wire, depth));
    let channels = (0..options.channels).filter_map(|index| Some(channel::State::new(index, ports.next()?, &session)));
    let channels: Vec<_> = channels.collect();
    let mut lanes = Vec::with_capacity(usize::from(options.lanes));
    for (index, (port, words)) in ports.zip(side.lanes).enumerate() {
        let view = LaneView::new(Arc::clone(&shared), index as u16);
        let view = view.ok_or_else(|| session::no_memory("a lane's page table"))?;
        lanes.push(streams.lane(index, lane::State::new(Reader::new(view), port, words)));
    }
    if channels.len() != usize::from(options.channels) || lanes.len() != usize::from(options.lanes) {
        return Err(bad("channels, lanes", "the daemon passed fewer rings than it granted"));
    }
    let (other_identity, relay_socket) = Default::default();
    Ok(Connected { session, channels, lanes, bell, other_identity, relay_socket, traces: false })
}

/// Compute the layout of frames.
fn layout(options: &Options, session: &Session) -> Layout {
    let geometry = session.shared.geometry();
    let planes = options.space.planes.iter().enumerate().filter_map(|(plane, spec)| {
        let class = geometry.class_of(plane as u16)?;
        let ClassRoom { offset, first_frame, frames_max, stride } = session.tier0.class(usize::from(class))?;
        let mapped_frames = session.tier0.mapped_frames();
        let table = session.tier0.aliases();
        let aliases = if table == 0 { 0 } else { table + u64::from(class) * u64::from(mapped_frames) * 8 };
        let (class, frames, page_bytes) = (u32::from(class), frames_max, spec.page_bytes);
        Some(PlaneLayout { class, page_bytes, stride, first_frame, frames, offset, mapped_frames, aliases })
    });
    Layout {
        tier0: session.tier0.start(),
        bytes: session.tier0.bytes(),
        page_tokens: options.space.page_tokens,
        blocks_max: geometry.table_blocks() as BlockId,
        planes: planes.collect(),
    }
}

/// Start the copy thread.
pub(super) fn start(options: Options, connected: Connected) -> Result<Arc<Inner>> {
    let Connected { session, channels, lanes, bell, other_identity, relay_socket, traces } = connected;
    let body = Arc::clone(&session);
    let run = move || {
        // If the copy thread panicked without this, waits would not notice the end of the connection.
        let guard = EndsSession(body);
        copier::run(&guard.0, &bell);
    };
    let thread = std::thread::Builder::new().name("kvtide-copy".into()).spawn(run);
    let thread = thread.map_err(|source| Error::System {
        doing: "start the copy thread".into(),
        status: Status::System,
        source,
    })?;
    let layout = layout(&options, &session);
    let copier = Mutex::new(Some(thread));
    Ok(Arc::new(Inner {
        layout,
        session,
        options,
        other_identity,
        relay_socket,
        traces,
        channels: Slots::new("take channel", channels),
        lanes: Slots::new("take lane", lanes),
        copier,
    }))
}

/// Ends the session when its copy thread ends for any reason.
struct EndsSession(Arc<Session>);

impl Drop for EndsSession {
    fn drop(&mut self) {
        self.0.fail(Status::Daemon);
        // Release streams that wait, with an error.
        #[cfg(feature = "cuda")]
        self.0.background_tasks.run(&self.0);
    }
}
