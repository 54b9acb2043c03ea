//! Host slabs, mapped into this process.

use crate::{Error, Result};
use kvtide_wire::{
    hello::Slab,
    os::{
        map::{Access, Map},
        memfd::Memfd,
    },
    status::Status,
};
use std::os::fd::OwnedFd;

/// A mapped slab of host frames.
pub(super) struct HostSlab {
    map: Map,
    /// Size class of its frames.
    pub class: usize,
    /// Number of frames.
    pub frames: u32,
    /// Bytes from one frame to the next.
    pub stride: usize,
}

impl HostSlab {
    /// First byte.
    pub fn start(&self) -> Option<*mut u8> {
        self.map.as_mut_ptr()
    }

    /// Length.
    #[cfg(feature = "cuda")]
    pub fn bytes(&self) -> usize {
        self.map.len()
    }
}

fn doing(slab: &Slab) -> String {
    format!("map host slab {} of {} bytes", slab.slab, slab.bytes)
}

/// Check a slab announced by the daemon. `stride` is the stride of its class, `known` whether its id is in use.
pub(super) fn check_slab(slab: &Slab, stride: Option<u32>, known: bool) -> Result<()> {
    let bad = |why: &str| Error::System {
        doing: doing(slab),
        status: Status::Protocol,
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, why.to_owned()),
    };
    if stride != Some(slab.stride) {
        return Err(bad("its stride differs from the stride of its size class"));
    }
    if known {
        return Err(bad("its id is already in use"));
    }
    Ok(())
}

/// Map a slab.
pub(super) fn map_slab(slab: &Slab, memfd: OwnedFd) -> Result<HostSlab> {
    let mapped = Memfd::received(memfd, "host slab", slab.bytes)
        .and_then(|memfd| memfd.map(Access::ReadWrite))
        .and_then(Map::private_to_this_process);
    let map = mapped.map_err(|e| Error::System {
        doing: doing(slab),
        status: e.status(),
        source: std::io::Error::other(e),
    })?;
    Ok(HostSlab { map, class: usize::from(slab.class), frames: slab.frames, stride: slab.stride as usize })
}
