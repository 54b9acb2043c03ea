//! Codecs and encryption of what stands on a disk: how a page becomes the bytes of its place in a slot, and back.
//!
//! * [`codec`]: one page, as fewer sectors. Pure; stored bytes are hostile bytes.
//!
//! A slab has a codec and is encrypted or not from its grant to its end; a changed configuration holds for slabs to come. Slabs
//! with neither never come in here.
//!
//! The I/O thread and `bench codec` call in here. It must not know blocks, spaces or the device.

mod codec;

pub(crate) use codec::{Codec, Coder};
