//! The streams of one direction.

use super::{
    Way,
    batch::{self, Lists, Piece},
    plan::Launch,
    slots::Part,
};
use crate::{Device, Event, Priority, Result, Stream, launch::Gather, params::CopyFragment};
use std::sync::Arc;

/// How copies are passed to the copy engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engines {
    /// Many copies in one call.
    Batched,
    /// One call for each copy.
    OneByOne,
}

/// Streams of one direction: one for the copy engines, one of low priority for the kernel.
pub(super) struct Lane {
    way: Way,
    engines: Stream,
    kernel: Stream,
}

impl Lane {
    pub fn new(device: &Arc<Device>, way: Way) -> Result<Self> {
        Ok(Self { way, engines: Stream::new(device, Priority::Normal)?, kernel: Stream::new(device, Priority::Low)? })
    }

    pub fn stream(&self, part: Part) -> &Stream {
        match part {
            Part::Engines => &self.engines,
            Part::Kernel => &self.kernel,
        }
    }

    /// Make both streams wait for an event.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.engines.wait_event(event)?;
        self.kernel.wait_event(event)
    }

    /// Enqueue pieces for the copy engines.
    ///
    /// # Safety
    /// As for [`Stream::copy`] for each piece; no two write the same bytes.
    pub unsafe fn by_engines(&self, how: Engines, pieces: &[Piece], lists: &mut Lists) -> Result<()> {
        match how {
            // SAFETY: guaranteed by the caller.
            Engines::Batched => unsafe { batch::enqueue(&self.engines, pieces, self.way != Way::Within, lists) },
            // SAFETY: guaranteed by the caller.
            Engines::OneByOne => pieces.iter().try_for_each(|p| unsafe { self.engines.copy(p.to, p.from, p.bytes) }),
        }
    }

    /// Enqueue one launch of the kernel over a part of a list.
    ///
    /// # Safety
    /// As for [`Gather::copy_list`].
    pub unsafe fn by_kernel(&self, kernel: &Gather, list: u64, launch: &Launch, blocks: u32) -> Result<()> {
        let first = list + u64::from(launch.first) * size_of::<CopyFragment>() as u64;
        // SAFETY: guaranteed by the caller.
        unsafe { kernel.copy_list(&self.kernel, first, launch.count, launch.bytes_max, blocks) }
    }
}
