//! What the daemon says after the handshake, and the engine's last words.

use super::Kind;
use super::codec::{Reader, Writer, within, wrong};
use crate::error::Error;
use crate::geometry::{CLASSES_MAX, FRAME_ALIGN};
use crate::status::Status;
use alloc::string::String;
use alloc::vec::Vec;

/// Most slabs of a space; ids are below.
const SLABS_MAX: u64 = 1 << 16;

/// Host memory of one size class; comes with one memfd. A job that names it may arrive before it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slab {
    /// Id that jobs carry.
    pub slab: u32,
    /// Size class.
    pub class: u16,
    /// Host frames in it.
    pub frames: u32,
    /// Bytes from one frame to the next.
    pub stride: u32,
    /// Bytes of the memfd, at least frames × stride.
    pub bytes: u64,
}

/// The slab went back to the node; its id may be granted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabGone {
    /// Id.
    pub slab: u32,
}

/// The session's end, as the daemon sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bye {
    /// Why: `Protocol` (the engine broke it), `Daemon` (it is shutting down), ...
    pub status: Status,
    /// Why, for a human.
    pub text: String,
}

/// The engine's last words: no copy of it is under way, none will be, and it shows nothing of host memory. The daemon gives to others at
/// once what it would else keep until the engine's process has exited. Nothing follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goodbye;

impl Slab {
    /// Checks the numbers against one another.
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

    /// The datagram.
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
    /// The datagram.
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

impl Bye {
    /// The datagram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::open(Kind::Bye);
        w.u32(self.status.code() as u32).text(&self.text);
        w.finish()
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Bye, Error> {
        let code = r.u32("status")? as i32;
        match Status::from_code(code) {
            Some(Status::Ok) | None => Err(wrong("bye", "status", code, "a known error code")),
            Some(status) => Ok(Bye { status, text: r.text("text")? }),
        }
    }
}

impl Goodbye {
    /// The datagram: [`super::HEAD_BYTES`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        Writer::open(Kind::Goodbye).finish()
    }
}
