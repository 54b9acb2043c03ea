//! Shared memory: memfds that are charged to their creator, have a fixed size, and are writable only by the intended side.

use super::failed;
use super::huge;
use super::map::{Access, Map};
use super::numa;
use crate::error::Error;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::format;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::string::String;

/// Anonymous shared memory of a fixed size.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    bytes: u64,
    huge_bytes: u64,
    /// Reason why none of it is on huge pages, if that was tried.
    small: Option<Errno>,
    /// NUMA node that holds it, if one was asked for.
    node: Option<u16>,
    /// Reason why it was not bound to that node, or why its node is not known.
    unbound: Option<Errno>,
}

/// Seals of every memfd of ours: the peer cannot change the size (a shorter file causes SIGBUS) or remove the seals.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Memfd {
    /// Create memory that both sides write. Every byte is allocated now, so that it is charged to this process's cgroup and not to
    /// the peer that touches it first, and so that a lack of memory is an error here and not a SIGBUS in the peer.
    pub fn shared(name: &str, bytes: u64) -> Result<Memfd, Error> {
        Memfd::shared_on(name, bytes, None)
    }

    /// Create memory as by [`Memfd::shared`] on a NUMA node, or elsewhere if that is not possible ([`Memfd::node`]).
    pub fn shared_on(name: &str, bytes: u64, node: Option<u16>) -> Result<Memfd, Error> {
        let memfd = Memfd::allocate(name, bytes, node)?;
        memfd.seal(name, FIXED)?;
        Ok(memfd)
    }

    /// Create memory that only this process writes, through the returned map, which is made before the seal FUTURE_WRITE.
    ///
    /// That seal blocks later writable maps, `mprotect`, reopening and hole punching; a read-only descriptor alone blocks none of
    /// them.
    pub fn owned(name: &str, bytes: u64) -> Result<(Memfd, Map), Error> {
        let memfd = Memfd::allocate(name, bytes, None)?;
        let map = Map::new(memfd.as_fd(), bytes, Access::ReadWrite)?;
        memfd.seal(name, FIXED.union(SealFlags::FUTURE_WRITE))?;
        Ok((memfd, map))
    }

    /// Accept memory that the peer passed. It must hold at least `bytes` and be sealed against shrinking.
    pub fn received(fd: OwnedFd, what: &'static str, bytes: u64) -> Result<Memfd, Error> {
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed("fstat of shared memory", what, e))?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size < bytes {
            return Err(Error::Bound { what: "size of shared memory", value: size, min: bytes, max: u64::MAX });
        }
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|e| failed("fcntl(F_GET_SEALS)", what, e))?;
        if !seals.contains(SealFlags::SHRINK) {
            let (found, expected) = (format!("{:#x}", seals.bits()), "F_SEAL_SHRINK among them".into());
            return Err(Error::Message { message: "shared memory", field: "seals", found, expected });
        }
        Ok(Memfd { fd, bytes, huge_bytes: 0, small: None, node: None, unbound: None })
    }

    fn allocate(name: &str, bytes: u64, node: Option<u16>) -> Result<Memfd, Error> {
        let mut memfd = Memfd::create(name, bytes)?;
        memfd.bind(node);
        memfd.fill_huge();
        rustix::fs::fallocate(&memfd.fd, FallocateFlags::empty(), 0, bytes)
            .map_err(|e| failed("fallocate of shared memory", format!("{name}, {bytes} bytes"), e))?;
        memfd.find_node(node);
        Ok(memfd)
    }

    /// Create a memfd of this size without allocated memory.
    fn create(name: &str, bytes: u64) -> Result<Memfd, Error> {
        let on = || format!("{name}, {bytes} bytes");
        // NOEXEC_SEAL exists since Linux 6.3; older kernels reject the flag.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
            other => other,
        }
        .map_err(|e| failed("memfd_create", on(), e))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(|e| failed("ftruncate of shared memory", on(), e))?;
        Ok(Memfd { fd, bytes, huge_bytes: 0, small: None, node: None, unbound: None })
    }

    /// Put the memory on whole huge pages. The caller allocates the rest, which is everything if there are no huge pages.
    fn fill_huge(&mut self) {
        match huge::fill(self.fd.as_fd(), self.bytes) {
            Ok(bytes) => self.huge_bytes = bytes,
            Err(errno) => self.small = Some(errno),
        }
    }

    /// Bind the memory to a node before it is allocated.
    fn bind(&mut self, node: Option<u16>) {
        self.unbound = node.and_then(|node| numa::prefer(self.fd.as_fd(), self.bytes, node).err());
    }

    /// Find out where bound memory was allocated: a node that is full gives none.
    fn find_node(&mut self, wanted: Option<u16>) {
        if wanted.is_some() && self.unbound.is_none() {
            match numa::of_memory(self.fd.as_fd(), self.bytes) {
                Ok(node) => self.node = Some(node),
                Err(errno) => self.unbound = Some(errno),
            }
        }
    }

    /// Return how many of the bytes are on huge pages, of memory that was allocated here.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.huge_bytes
    }

    /// Return the NUMA node that holds the memory, if it was allocated here for a node. It may be another one.
    #[must_use]
    pub fn node(&self) -> Option<u16> {
        self.node
    }

    /// Return the reason why memory that was allocated for a NUMA node was not bound to it.
    #[must_use]
    pub fn why_unbound(&self) -> Option<Errno> {
        self.unbound
    }

    /// Return the reason why the system gave no huge pages for memory that was allocated here. `None` if it did, or if the memory
    /// is smaller than one.
    #[must_use]
    pub fn why_small(&self) -> Option<Errno> {
        self.small
    }

    fn seal(&self, name: &str, seals: SealFlags) -> Result<(), Error> {
        rustix::fs::fcntl_add_seals(&self.fd, seals).map_err(|e| failed("fcntl(F_ADD_SEALS)", name, e))
    }

    /// Return the bytes of the memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Map all of it.
    pub fn map(&self, access: Access) -> Result<Map, Error> {
        Map::new(self.fd.as_fd(), self.bytes, access)
    }
}

/// Memory that is allocated but not yet assigned: every byte is allocated and zeroed, and it may still shrink.
#[derive(Debug)]
pub struct Reserved {
    memfd: Memfd,
    name: String,
}

impl Reserved {
    /// Allocate memory on huge pages, or else by writing zeros, so that the first access causes no page fault. (A GiB takes 0.07 s
    /// of a core on huge pages, 0.37 s by writing, and 0.9 s by `fallocate` and a populating map; Linux 6.18, memory that the
    /// machine had touched before.)
    ///
    /// `node`: as for [`Memfd::shared_on`].
    pub fn take(name: &str, bytes: u64, node: Option<u16>) -> Result<Reserved, Error> {
        static ZEROS: [u8; 256 << 10] = [0; 256 << 10];
        let mut memfd = Memfd::create(name, bytes)?;
        memfd.bind(node);
        memfd.fill_huge();
        let mut at = memfd.huge_bytes;
        while at < bytes {
            let count = (bytes - at).min(ZEROS.len() as u64) as usize;
            match rustix::io::pwrite(&memfd.fd, &ZEROS[..count], at) {
                Ok(count) => at += count as u64,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(failed(
                        "write of zeros to shared memory",
                        format!("{name}, {at} of {bytes} bytes"),
                        errno,
                    ));
                }
            }
        }
        memfd.find_node(node);
        Ok(Reserved { memfd, name: name.into() })
    }

    /// See [`Memfd::node`].
    #[must_use]
    pub fn node(&self) -> Option<u16> {
        self.memfd.node
    }

    /// See [`Memfd::why_unbound`].
    #[must_use]
    pub fn why_unbound(&self) -> Option<Errno> {
        self.memfd.unbound
    }

    /// See [`Memfd::why_small`].
    #[must_use]
    pub fn why_small(&self) -> Option<Errno> {
        self.memfd.small
    }

    /// See [`Memfd::huge_bytes`].
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.memfd.huge_bytes
    }

    /// Return the bytes of the memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memfd.bytes
    }

    /// Convert it to memory that both sides write, as by [`Memfd::shared`]; memory beyond `bytes` returns to the system.
    pub fn shared(self, bytes: u64) -> Result<Memfd, Error> {
        let Reserved { mut memfd, name } = self;
        if bytes > memfd.bytes {
            return Err(Error::Bound { what: "bytes of reserved memory", value: bytes, min: 0, max: memfd.bytes });
        }
        rustix::fs::ftruncate(&memfd.fd, bytes)
            .map_err(|e| failed("ftruncate of shared memory", format!("{name}, {bytes} bytes"), e))?;
        memfd.bytes = bytes;
        memfd.huge_bytes = memfd.huge_bytes.min(bytes / huge::HUGE * huge::HUGE);
        memfd.seal(&name, FIXED)?;
        Ok(memfd)
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
