//! Messages of the daemon after the handshake, and the engine's detach message.

use super::Kind;
use super::codec::{Reader, Writer, within, wrong};
use crate::error::Error;
use crate::geometry::{CLASSES_MAX, FRAME_ALIGN};
use crate::status::Status;
use alloc::string::String;
use alloc::vec::Vec;

/// Maximum slabs of a space; exclusive upper bound of slab ids.
const SLABS_MAX: u64 = 1 << 16;

/// Host memory of one size class; carries one memfd. A job that names the slab may arrive before this message was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slab {
    /// Id that jobs use.
    pub slab: u32,
    /// Size class.
    pub class: u16,
    /// Number of host frames.
    pub frames: u32,
    /// Bytes from one frame to the next.
    pub stride: u32,
    /// Bytes of the memfd, at least frames × stride.
    pub bytes: u64,
}

/// The slab returned to the node; its id may be granted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabGone {
    /// Id.
    pub slab: u32,
}

/// End of the session, decided by the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// Reason: `Protocol` (the engine broke it), `Daemon` (it is shutting down), ...
    pub status: Status,
    /// Reason as text.
    pub text: String,
}

/// Detach message of the engine: none of its copies is in progress, it will start none, and it shows no host memory. The daemon
/// reuses at once the frames that it would otherwise quarantine until the engine's process has exited. This is the last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detach;

impl Slab {
    /// Check that the numbers are consistent.
    pub fn check(&self) -> Result<(), Error> {
        const WHAT: &str = "slab";
        within(WHAT, "slab", self.slab, 0, SLABS_MAX - 1)?;
        within(WHAT, "class", self.class, 0, CLASSES_MAX as u64 - 1)?;
        within(WHAT, "frames", self.frames, 1, u64::from(u32::MAX - 1))?;
        within(WHAT, "stride", self.stride, u64::from(FRAME_ALIGN), 1 << 30)?;
        within(WHAT, "stride modulo 64", self.stride % FRAME_ALIGN, 0, 0)?;
        let least = u64::from(self.frames) * u64::from(self.stride);
        within(WHAT, "bytes", self.bytes, least, u64::MAX / 2)
    }

    /// Return the datagram.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        self.check()?;
        let mut w = Writer::open(Kind::Slab);
        w.u32(self.slab).u16(self.class).u16(0).u32(self.frames).u32(self.stride).u64(self.bytes);
        Ok(w.finish())
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Slab, Error> {
        let (slab, class) = (r.u32("slab")?, r.u16("class")?);
        r.zero("reserved")?;
        let slab = Slab { slab, class, frames: r.u32("frames")?, stride: r.u32("stride")?, bytes: r.u64("bytes")? };
        slab.check()?;
        Ok(slab)
    }
}

impl SlabGone {
    /// Return the datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::open(Kind::SlabGone);
        w.u32(self.slab);
        w.finish()
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<SlabGone, Error> {
        let slab = r.u32("slab")?;
        within("slab gone", "slab", slab, 0, SLABS_MAX - 1)?;
        Ok(SlabGone { slab })
    }
}

impl Disconnect {
    /// Return the datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::open(Kind::Disconnect);
        w.u32(self.status.code() as u32).text(&self.text);
        w.finish()
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Disconnect, Error> {
        let code = r.u32("status")? as i32;
        match Status::from_code(code) {
            Some(Status::Ok) | None => Err(wrong("disconnect", "status", code, "a known error code")),
            Some(status) => Ok(Disconnect { status, text: r.text("text")? }),
        }
    }
}

impl Detach {
    /// Return the datagram: [`super::HEAD_BYTES`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        Writer::open(Kind::Detach).finish()
    }
}
