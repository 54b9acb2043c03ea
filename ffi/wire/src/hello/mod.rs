//! The handshake: messages over the SEQPACKET socket, one for each datagram, at most [`MESSAGE_MAX`] bytes.
//!
//! Every message starts with magic, version, kind and length, so that any two versions recognize each other; [`Protocol`] says how they
//! agree. Decoding checks every field against its bounds and against the others, and names the wrong field. Whether this peer may
//! attach, and whether there is room for it, is decided elsewhere.

mod ask;
mod attach;
mod codec;
mod notice;
mod protocol;
mod token;
mod watch;

pub use ask::{
    ASK_HASHES_MAX, Answer, Ask, AskHello, AskWelcome, Forget, FromRelay, NOTE_HASHES_MAX, Note, QUESTION_HASHES_MAX,
    QUESTIONS_MAX, ToRelay, WAIT_MS_MAX, What, ask_hashes_max, is_local, local_hash, note_hashes_max,
};
pub use attach::{Hello, IDENTITY_BYTES_MAX, Limits, NAME_BYTES_MAX, NUMA_NODES_MAX, SOCKET_BYTES_MAX, Welcome};
pub use notice::{Detach, Disconnect, Slab, SlabGone};
pub use protocol::Protocol;
pub use token::{TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, Token};
pub use watch::{FromWatched, RELAY_TEXT_BYTES_MAX, RelayState, SpaceClosed, SpaceOpened, Watch, Watching};

use crate::error::Error;
use codec::Reader;

/// Maximum length of a message in bytes.
pub const MESSAGE_MAX: usize = 16 * 1024;
/// Bytes of the header of every message: magic, version, kind, length.
pub const HEAD_BYTES: usize = 16;
/// Maximum length of a text in a message in bytes; longer texts are cut at a character boundary.
pub const TEXT_BYTES_MAX: usize = 1024;
/// First word of every message.
pub const MAGIC: u32 = u32::from_le_bytes(*b"kvt\x01");

/// Message type.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Engine to daemon: attach request, the first message.
    Hello = 1,
    /// Daemon to engine: response to the attach request.
    Welcome = 2,
    /// Daemon to engine, with one memfd: host memory for one size class.
    Slab = 3,
    /// Daemon to engine: no further job names this slab; the engine unmaps it.
    SlabGone = 4,
    /// Daemon to engine: the session ends; carries the reason.
    Disconnect = 5,
    /// Engine to daemon: the engine has detached and does not access host memory any more.
    Detach = 6,
    /// Relay to daemon: asks which spaces are open, the first message.
    Watch = 7,
    /// Daemon to a relay that watches: a space is open.
    SpaceOpened = 8,
    /// Daemon to a relay that watches: end of the list of open spaces; changes follow.
    Watching = 9,
    /// Daemon to a relay that watches: a space has closed.
    SpaceClosed = 10,
    /// Relay that watches to daemon: its state, for the daemon's status.
    RelayState = 11,
    /// Engine to relay: token and space; the first message.
    AskHello = 12,
    /// Relay to engine: it answers questions of this engine.
    AskWelcome = 13,
    /// Engine to relay: bring a prefix in, or copy it out.
    Ask = 14,
    /// Relay to engine: how far a question is.
    Answer = 15,
    /// Engine to relay: tokens of blocks.
    Note = 16,
    /// Engine to relay: an answer is not needed any more.
    Forget = 17,
}

/// The first message of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First {
    /// An engine or a relay attaches.
    Hello(Hello),
    /// A relay asks which spaces are open.
    Watch(Watch),
}

impl First {
    /// Decode the first datagram of a connection.
    ///
    /// # Errors
    /// It is none of these messages, or a field is out of its bounds.
    pub fn decode(bytes: &[u8]) -> Result<First, Error> {
        let (version, kind, mut reader) = Reader::open_any(bytes, "hello")?;
        if kind != Kind::Watch as u32 {
            return Hello::decode(bytes).map(First::Hello);
        }
        protocol::check(version, version)?;
        let watch = Watch::read(&mut reader)?;
        reader.end()?;
        Ok(First::Watch(watch))
    }
}

impl Hello {
    /// Decode the datagram of an attach request.
    ///
    /// # Errors
    /// It is none, or a field is out of its bounds.
    pub fn decode(bytes: &[u8]) -> Result<Hello, Error> {
        let (oldest, kind, mut reader) = Reader::open_any(bytes, "hello")?;
        if kind != Kind::Hello as u32 {
            protocol::check(oldest, oldest)?;
            return Err(codec::wrong("hello", "kind", kind, "1 (attach) or 7 (watch)"));
        }
        let hello = Hello::read(&mut reader, oldest)?;
        reader.end()?;
        Ok(hello)
    }
}

/// A decoded message from the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromDaemon {
    /// Response to the hello; carries the session's descriptors if it was accepted.
    Welcome(Welcome),
    /// Carries one memfd.
    Slab(Slab),
    /// No descriptors.
    SlabGone(SlabGone),
    /// No descriptors; the last message.
    Disconnect(Disconnect),
}

impl FromDaemon {
    /// Decode one datagram.
    pub fn decode(bytes: &[u8]) -> Result<FromDaemon, Error> {
        let (kind, mut reader) = Reader::open(bytes, "message")?;
        let message = match kind {
            k if k == Kind::Welcome as u32 => FromDaemon::Welcome(Welcome::read(&mut reader)?),
            k if k == Kind::Slab as u32 => FromDaemon::Slab(Slab::read(&mut reader)?),
            k if k == Kind::SlabGone as u32 => FromDaemon::SlabGone(SlabGone::read(&mut reader)?),
            k if k == Kind::Disconnect as u32 => FromDaemon::Disconnect(Disconnect::read(&mut reader)?),
            k => return Err(codec::wrong("message", "kind", k, "2 to 5 (daemon to engine)")),
        };
        reader.end()?;
        Ok(message)
    }
}

impl Detach {
    /// Decode a message that an engine sends after its hello.
    pub fn decode(bytes: &[u8]) -> Result<Detach, Error> {
        let (kind, reader) = Reader::open(bytes, "detach")?;
        if kind != Kind::Detach as u32 {
            return Err(codec::wrong("detach", "kind", kind, "6"));
        }
        reader.end()?;
        Ok(Detach)
    }
}
