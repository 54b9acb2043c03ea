//! The handshake: the messages that travel over the SEQPACKET socket, one a datagram, at most [`MESSAGE_MAX`] bytes.
//!
//! Every message starts with magic, version, kind and length; the version stands early, so that any two versions can tell each other apart. Decoding
//! checks every field against its bounds and against the others, and names the field that is wrong. Whether this peer may
//! attach, and whether there is room for it, is not decided here.

mod attach;
mod codec;
mod notice;
mod token;

pub use attach::{Hello, Limits, NAME_BYTES_MAX, Welcome, size_classes};
pub use notice::{Bye, Goodbye, Slab, SlabGone};
pub use token::{TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, Token};

use crate::error::Error;
use crate::layout::VERSION;
use codec::Reader;

/// Longest message.
pub const MESSAGE_MAX: usize = 16 * 1024;
/// Bytes that every message begins with: magic, version, kind, length.
pub const HEAD_BYTES: usize = 16;
/// Longest text of a message in bytes; longer ones are cut at a character's end.
pub const TEXT_BYTES_MAX: usize = 1024;
/// First word of every message.
pub const MAGIC: u32 = u32::from_le_bytes(*b"kvt\x01");

/// What a message is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Engine to daemon, first.
    Hello = 1,
    /// Daemon to engine, the answer.
    Welcome = 2,
    /// Daemon to engine, with one memfd: host memory for one size class.
    Slab = 3,
    /// Daemon to engine: no job will name this slab any more; unmap it.
    SlabGone = 4,
    /// Daemon to engine: the session ends, and why.
    Bye = 5,
    /// Engine to daemon: it has left, and nothing of it touches host memory any more.
    Goodbye = 6,
}

/// A decoded message from the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromDaemon {
    /// Answer to the hello; with the session's descriptors if it was accepted.
    Welcome(Welcome),
    /// With one memfd.
    Slab(Slab),
    /// Without descriptors.
    SlabGone(SlabGone),
    /// Without descriptors; nothing follows.
    Bye(Bye),
}

impl FromDaemon {
    /// Decodes one datagram.
    pub fn decode(bytes: &[u8]) -> Result<FromDaemon, Error> {
        let (kind, mut reader) = Reader::open(bytes, "message")?;
        let message = match kind {
            k if k == Kind::Welcome as u32 => FromDaemon::Welcome(Welcome::read(&mut reader)?),
            k if k == Kind::Slab as u32 => FromDaemon::Slab(Slab::read(&mut reader)?),
            k if k == Kind::SlabGone as u32 => FromDaemon::SlabGone(SlabGone::read(&mut reader)?),
            k if k == Kind::Bye as u32 => FromDaemon::Bye(Bye::read(&mut reader)?),
            k => return Err(codec::wrong("message", "kind", k, "2 to 5 (daemon to engine)")),
        };
        reader.end()?;
        Ok(message)
    }
}

impl Hello {
    /// Decodes the first datagram of an engine.
    pub fn decode(bytes: &[u8]) -> Result<Hello, Error> {
        let (kind, mut reader) = Reader::open(bytes, "hello")?;
        if kind != Kind::Hello as u32 {
            return Err(codec::wrong("hello", "kind", kind, "1"));
        }
        let hello = Hello::read(&mut reader)?;
        reader.end()?;
        Ok(hello)
    }
}

impl Goodbye {
    /// Decodes what an engine sends after its hello.
    pub fn decode(bytes: &[u8]) -> Result<Goodbye, Error> {
        let (kind, reader) = Reader::open(bytes, "goodbye")?;
        if kind != Kind::Goodbye as u32 {
            return Err(codec::wrong("goodbye", "kind", kind, "6"));
        }
        reader.end()?;
        Ok(Goodbye)
    }
}

/// The version that a datagram claims, if it is one of ours at all.
#[must_use]
pub fn claimed_version(bytes: &[u8]) -> Option<u32> {
    match bytes.as_chunks::<4>().0 {
        [magic, version, ..] if u32::from_le_bytes(*magic) == MAGIC => Some(u32::from_le_bytes(*version)),
        _ => None,
    }
}

/// The version that this side speaks.
#[must_use]
pub const fn version() -> u32 {
    VERSION
}
