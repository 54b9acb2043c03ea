//! The Hello and Welcome messages.

use super::codec::{Reader, Writer, within, wrong};
use super::{Kind, MESSAGE_MAX, Protocol, Token, protocol};
use crate::error::Error;
use crate::geometry::{CLASSES_MAX, PAGE_BYTES_MAX, PLANES_MAX, Plane, PlaneKind, PlaneSpec, classes};
use crate::layout::{Layout, OLDEST, Shape};
use crate::status::Status;
use alloc::string::String;
use alloc::vec::Vec;
use zerocopy::{FromBytes, IntoBytes};

/// Maximum length of a space's name in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Maximum length of an engine's identity in bytes.
pub const IDENTITY_BYTES_MAX: usize = 4096;
/// Maximum length of a socket's path in bytes.
pub const SOCKET_BYTES_MAX: usize = 107;
/// Exclusive upper bound of the numbers of NUMA nodes; no configuration of Linux has more (`CONFIG_NODES_SHIFT`).
pub const NUMA_NODES_MAX: u16 = 1024;
/// Stands for "no NUMA node" in a message.
const NO_NODE: u16 = u16::MAX;
/// Maximum tokens of a page. With larger pages one fault would take milliseconds.
const PAGE_TOKENS_MAX: u64 = 1 << 16;
/// Maximum shards of a space.
const SHARDS_MAX: u64 = 1024;
/// Maximum sliding window in tokens.
const WINDOW_TOKENS_MAX: u64 = 1 << 30;
/// Maximum sequences that an engine may request; the daemon's limit is lower.
const SEQS_MAX: u64 = 1 << 20;

/// Attach request of an engine: the space and the engine's part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Newest version and features ([`features`](crate::features)) that the engine supports.
    pub protocol: Protocol,
    /// Name of the space, for humans; not part of its identity. 1 to [`NAME_BYTES_MAX`] bytes, no control characters.
    pub name: String,
    /// Hash over weights, adapters and everything else that KV content depends on.
    pub fingerprint: [u8; 32],
    /// Text from which the engine can say what differs when another engine of the same name has another fingerprint; empty for none.
    /// At most [`IDENTITY_BYTES_MAX`] bytes. The daemon keeps and returns it, and does not interpret it.
    pub identity: String,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Planes in the order in which a step visits them.
    pub planes: Vec<Plane>,
    /// Number of shards of the space.
    pub shards: u16,
    /// Shard of this engine.
    pub shard: u16,
    /// Number of lanes.
    pub lanes: u16,
    /// Number of channels.
    pub channels: u16,
    /// Entries of each channel's rings.
    pub depth: u16,
    /// Number of sequence slots.
    pub seqs_max: u32,
    /// Tier-0 frames of each size class, in class order. All 0: the engine keeps its KV in its own memory.
    pub tier0_frames: Vec<u32>,
    /// Mapped frames of each size class: frames without memory, which show a page in place in host memory. Within a class they are
    /// numbered after its tier-0 frames.
    pub mapped_frames: u32,
    /// NUMA node on which the engine asks for host memory: one that it names, else that of its device, else that of its CPUs. `None`:
    /// unknown, or several.
    pub numa_node: Option<u16>,
    /// It is a relay: it may follow the space's feed, and it attaches only to a space that engines have opened.
    pub relay: bool,
    /// The space stays on this machine: it is not announced to relays. The first engine of the space decides.
    pub local: bool,
    /// Token that proves the tenant; without a token the uid decides.
    pub token: Option<Token>,
}

/// Bits of the flags of a Hello.
const RELAY: u16 = 1;
const LOCAL: u16 = 2;

/// Resources that the daemon grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rings and lanes; determines the layout of the regions.
    pub shape: Shape,
    /// Exclusive upper bound of the space's block ids.
    pub blocks_max: u32,
    /// Exclusive upper bound of sequence slots.
    pub seqs_max: u32,
    /// Maximum blocks of one sequence.
    pub seq_blocks_max: u32,
    /// Deadline in microseconds of requests that specify none.
    pub request_timeout_us: u64,
}

/// The daemon's response. If accepted, it carries descriptors in the order of `os::session`; if refused, none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// `Ok`, or the reason of the refusal.
    pub status: Status,
    /// Session number, for logs.
    pub session: u32,
    /// Version and features that both sides use.
    pub protocol: Protocol,
    /// Granted resources; all zero in a refusal.
    pub limits: Option<Limits>,
    /// Bytes of region E and region D.
    pub region_bytes: [u64; 2],
    /// Reason of a refusal as text; empty if accepted.
    pub text: String,
    /// Identity of the last engine of this name with another fingerprint, if that fingerprint has blocks and this one has none. Empty
    /// otherwise, and in a refusal.
    pub other_identity: String,
    /// Path of the socket where the relay of the engine's domain answers questions; empty without one, and in a refusal.
    pub relay_socket: String,
}

impl Hello {
    /// Check all fields of the message against each other. `encode` runs it too, so that a client sees the error before it sends.
    pub fn check(&self) -> Result<(), Error> {
        const WHAT: &str = "hello";
        let name_ok = !self.name.is_empty() && !self.name.chars().any(char::is_control);
        if !name_ok || self.name.len() > NAME_BYTES_MAX {
            let expected = "1 to 64 bytes without control characters";
            return Err(wrong(WHAT, "space name", alloc::format!("{:?}", self.name), expected));
        }
        if self.identity.len() > IDENTITY_BYTES_MAX {
            let found = alloc::format!("{} bytes long", self.identity.len());
            return Err(wrong(WHAT, "identity", found, alloc::format!("at most {IDENTITY_BYTES_MAX} bytes")));
        }
        check_geometry(WHAT, self.page_tokens, &self.planes, self.shards)?;
        within(WHAT, "shard", self.shard, 0, u64::from(self.shards) - 1)?;
        within(WHAT, "seqs_max", self.seqs_max, 1, SEQS_MAX)?;
        Layout::of(Shape { channels: self.channels, depth: self.depth, jobs: 2, lanes: self.lanes })?;
        let classes = classes(&self.planes).len() as u64;
        within(WHAT, "size classes with tier-0 frames", self.tier0_frames.len() as u64, classes, classes)?;
        // All zero: the engine keeps its KV in its own memory.
        let least = u64::from(self.tier0_frames.iter().any(|frames| *frames > 0));
        for frames in &self.tier0_frames {
            within(WHAT, "tier-0 frames of a class", *frames, least, u64::from(u32::MAX - 1))?;
        }
        let total = self.tier0_frames.iter().map(|n| u64::from(*n)).sum::<u64>();
        let total = total + u64::from(self.mapped_frames) * classes;
        within(WHAT, "NUMA node", self.numa_node.unwrap_or(0), 0, u64::from(NUMA_NODES_MAX) - 1)?;
        if self.relay {
            within(WHAT, "frames of a relay", total, 0, 0)?;
            within(WHAT, "flags of a relay", u64::from(self.local), 0, 0)?;
        }
        within(WHAT, "tier-0 and mapped frames of all classes", total, 0, u64::from(u32::MAX - 1))
    }

    /// Return the datagram. It contains the token: overwrite it after sending.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        self.check()?;
        let mut w = Writer::open(Kind::Hello);
        w.u64(self.protocol.word()).raw(&self.fingerprint).u32(self.page_tokens).u32(self.seqs_max);
        w.u16(self.shards).u16(self.shard).u16(self.lanes).u16(self.channels).u16(self.depth);
        let flags = if self.relay { RELAY } else { 0 } | if self.local { LOCAL } else { 0 };
        w.u16(self.tier0_frames.len() as u16).u16(self.planes.len() as u16).u16(flags);
        for frames in &self.tier0_frames {
            w.u32(*frames);
        }
        w.u32(self.mapped_frames).u16(self.numa_node.unwrap_or(NO_NODE));
        write_planes(&mut w, &self.planes);
        w.text(&self.name).text_up_to(&self.identity, IDENTITY_BYTES_MAX);
        Token::write(self.token.as_ref(), &mut w);
        let bytes = w.finish();
        debug_assert!(bytes.len() <= MESSAGE_MAX);
        Ok(bytes)
    }

    /// Read the body of a Hello whose header has this version: the oldest that the engine speaks.
    pub(super) fn read(r: &mut Reader<'_>, oldest: u32) -> Result<Hello, Error> {
        let protocol = Protocol::read(r, oldest);
        protocol::check(oldest, protocol.as_ref().map_or(oldest, |protocol| protocol.version))?;
        let protocol = protocol?;
        let fingerprint = r.array("fingerprint")?;
        let (page_tokens, seqs_max) = (r.u32("page_tokens")?, r.u32("seqs_max")?);
        let (shards, shard) = (r.u16("shards")?, r.u16("shard")?);
        let (lanes, channels, depth) = (r.u16("lanes")?, r.u16("channels")?, r.u16("depth")?);
        let (classes, planes) = (r.u16("size classes")?, r.u16("planes")?);
        let flags = r.u16("flags")?;
        within("hello", "flags", flags, 0, u64::from(RELAY | LOCAL))?;
        within("hello", "size classes", classes, 1, CLASSES_MAX as u64)?;
        let tier0_frames = (0..classes).map(|_| r.u32("tier-0 frames")).collect::<Result<_, _>>()?;
        let mapped_frames = r.u32("mapped frames")?;
        let numa_node = Some(r.u16("NUMA node")?).filter(|node| *node != NO_NODE);
        let planes = read_planes(r, planes)?;
        let name = r.text("space name")?;
        let identity = r.text_up_to("identity", IDENTITY_BYTES_MAX)?;
        let token = Token::read(r)?;
        let hello = Hello {
            protocol,
            name,
            fingerprint,
            identity,
            page_tokens,
            planes,
            shards,
            shard,
            lanes,
            channels,
            depth,
            seqs_max,
            tier0_frames,
            mapped_frames,
            numa_node,
            relay: flags & RELAY != 0,
            local: flags & LOCAL != 0,
            token,
        };
        hello.check()?;
        Ok(hello)
    }
}

/// Check the geometry of a space.
pub(super) fn check_geometry(what: &'static str, page_tokens: u32, planes: &[Plane], shards: u16) -> Result<(), Error> {
    within(what, "page_tokens", page_tokens, 1, PAGE_TOKENS_MAX)?;
    within(what, "planes", planes.len() as u64, 1, PLANES_MAX as u64)?;
    within(what, "shards", shards, 1, SHARDS_MAX)?;
    for plane in planes {
        check_plane(&PlaneSpec::from(*plane))?;
    }
    within(what, "size classes of the planes", classes(planes).len() as u64, 1, CLASSES_MAX as u64)
}

pub(super) fn write_planes(w: &mut Writer, planes: &[Plane]) {
    for plane in planes {
        w.raw(PlaneSpec::from(*plane).as_bytes());
    }
}

pub(super) fn read_planes(r: &mut Reader<'_>, planes: u16) -> Result<Vec<Plane>, Error> {
    within("hello", "planes", planes, 1, PLANES_MAX as u64)?;
    let bytes = r.raw(usize::from(planes) * size_of::<PlaneSpec>(), "planes")?;
    let specs = bytes.chunks_exact(size_of::<PlaneSpec>());
    specs.filter_map(|spec| PlaneSpec::read_from_bytes(spec).ok()).map(|spec| check_plane(&spec)).collect()
}

fn check_plane(spec: &PlaneSpec) -> Result<Plane, Error> {
    const WHAT: &str = "plane";
    within(WHAT, "page_bytes", spec.page_bytes, 1, u64::from(PAGE_BYTES_MAX))?;
    let plane = spec.plane().ok_or_else(|| wrong(WHAT, "kind", spec.kind, "0 (full), 1 (window) or 2 (state)"))?;
    within(WHAT, "reserved", spec.reserved, 0, 0)?;
    match plane.kind {
        PlaneKind::Window { tokens } => within(WHAT, "window_tokens", tokens, 1, WINDOW_TOKENS_MAX)?,
        _ => within(WHAT, "window_tokens of a plane without a window", spec.window_tokens, 0, 0)?,
    }
    Ok(plane)
}

impl Welcome {
    /// Return a refusal.
    #[must_use]
    pub fn refusal(status: Status, text: &str) -> Welcome {
        let (other_identity, relay_socket) = Default::default();
        let (limits, region_bytes, text) = (None, [0; 2], text.into());
        let protocol = Protocol::ours(0);
        Welcome { status, session: 0, protocol, limits, region_bytes, text, other_identity, relay_socket }
    }

    /// Return an acceptance of a session that uses this version and these features.
    pub fn accept(session: u32, protocol: Protocol, limits: Limits) -> Result<Welcome, Error> {
        let layout = Layout::of(limits.shape)?;
        let region_bytes = [layout.engine.bytes, layout.daemon.bytes];
        let accepted = Welcome::refusal(Status::Ok, "");
        Ok(Welcome { session, protocol, limits: Some(limits), region_bytes, ..accepted })
    }

    /// Return the datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::open(Kind::Welcome);
        w.u32(self.status.code() as u32).u32(self.session).u64(self.protocol.word());
        if let Some(limits) = &self.limits {
            let shape = limits.shape;
            w.u16(shape.channels).u16(shape.depth).u16(shape.lanes).u16(0).u32(shape.jobs);
            w.u32(limits.blocks_max).u32(limits.seqs_max).u32(limits.seq_blocks_max).u64(limits.request_timeout_us);
            w.u64(self.region_bytes[0]).u64(self.region_bytes[1]);
            w.text_up_to(&self.other_identity, IDENTITY_BYTES_MAX);
            w.text_up_to(&self.relay_socket, SOCKET_BYTES_MAX);
        } else {
            w.text(&self.text);
        }
        w.finish()
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Welcome, Error> {
        const WHAT: &str = "welcome";
        let code = r.u32("status")? as i32;
        let Some(status) = Status::from_code(code) else {
            return Err(wrong(WHAT, "status", code, "a known code"));
        };
        let (session, protocol) = (r.u32("session")?, Protocol::read(r, OLDEST)?);
        if status != Status::Ok {
            return Ok(Welcome { session, protocol, ..Welcome::refusal(status, &r.text("text")?) });
        }
        let (channels, depth, lanes) = (r.u16("channels")?, r.u16("depth")?, r.u16("lanes")?);
        r.zero("reserved")?;
        let shape = Shape { channels, depth, lanes, jobs: r.u32("jobs")? };
        let limits = Limits {
            shape,
            blocks_max: r.u32("blocks_max")?,
            seqs_max: r.u32("seqs_max")?,
            seq_blocks_max: r.u32("seq_blocks_max")?,
            request_timeout_us: r.u64("request_timeout_us")?,
        };
        let region_bytes = [r.u64("bytes of region E")?, r.u64("bytes of region D")?];
        let other_identity = r.text_up_to("other identity", IDENTITY_BYTES_MAX)?;
        let relay_socket = r.text_up_to("the relay's socket", SOCKET_BYTES_MAX)?;
        protocol::check(protocol.version, protocol.version)?;
        let welcome = Welcome { other_identity, relay_socket, ..Welcome::accept(session, protocol, limits)? };
        if welcome.region_bytes != region_bytes {
            let expected = alloc::format!("{:?}", welcome.region_bytes);
            return Err(wrong(WHAT, "bytes of the regions", alloc::format!("{region_bytes:?}"), expected));
        }
        Ok(welcome)
    }
}
