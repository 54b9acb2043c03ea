//! Memory: device memory, address ranges into which it is mapped, and registered host memory.
//!
//! Every address that a copy or a kernel may access is in a range of [`RANGES`]. Device memory is a private mapping of one file of
//! garbage, so that fresh memory holds garbage and uses real memory only where it is written. Inaccessible pages separate the
//! ranges.

use crate::{
    code::{self, Code},
    context, order, settings,
};
use std::{
    collections::{BTreeMap, HashMap},
    os::fd::RawFd,
    sync::{
        LazyLock, OnceLock, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// Granularity of allocation and mapping, in bytes.
pub(crate) const GRANULARITY: usize = 2 << 20;

const PAGE: usize = 4096;

/// Type of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Allocated in one piece.
    Allocated { device: usize, mapped_bytes: usize },
    /// Mapped into reserved addresses.
    Mapped { device: usize },
    /// Registered host memory.
    Registered,
}

/// A range of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub base: u64,
    pub bytes: usize,
    pub kind: Kind,
}

impl Range {
    fn end(&self) -> u64 {
        self.base + self.bytes as u64
    }

    /// Return whether a device may access it: its own memory, or the host's. There are no calls that enable access to a peer.
    pub fn is_for(&self, at: usize) -> bool {
        match self.kind {
            Kind::Allocated { device, .. } | Kind::Mapped { device } => device == at,
            Kind::Registered => true,
        }
    }
}

#[derive(Default)]
struct Ranges {
    by_base: BTreeMap<u64, Range>,
    reserved: BTreeMap<u64, usize>,
    handles: HashMap<u64, Physical>,
    next_handle: u64,
}

/// Physical memory of a handle.
#[derive(Clone, Copy)]
struct Physical {
    device: usize,
    bytes: usize,
    /// Its creator has not released it.
    held: bool,
    mapped: usize,
}

static RANGES: LazyLock<RwLock<Ranges>> = LazyLock::new(RwLock::default);

/// Incremented when a range is removed.
pub(crate) static GENERATION: AtomicU64 = AtomicU64::new(1);

fn write<T>(change: impl FnOnce(&mut Ranges) -> T) -> T {
    change(&mut RANGES.write().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// Return the range that contains an address.
pub(crate) fn find(address: u64) -> Option<Range> {
    let ranges = RANGES.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    ranges.by_base.range(..=address).next_back().map(|(_, range)| *range).filter(|range| address < range.end())
}

/// Return whether every byte is in a range that a device may access, in adjacent ranges if there are several.
pub(crate) fn is_known(address: u64, bytes: usize, device: usize) -> bool {
    let Some(end) = address.checked_add(bytes as u64) else { return false };
    let mut at = address;
    while at < end {
        match find(at) {
            Some(range) if range.is_for(device) => at = range.end(),
            _ => return false,
        }
    }
    true
}

/// Return whether the copy engines accept it: all known, and either device memory or within one registration.
pub(crate) fn is_copyable(address: u64, bytes: usize) -> bool {
    let Some(end) = address.checked_add(bytes as u64) else { return false };
    let mut at = address;
    while at < end {
        match find(at) {
            Some(range) if range.kind == Kind::Registered => return at == address && range.end() >= end,
            Some(range) => at = range.end(),
            None => return false,
        }
    }
    true
}

/// Return the reservation that contains an address.
pub(crate) fn reservation(address: u64) -> Option<(u64, usize)> {
    let ranges = RANGES.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (&base, &bytes) = ranges.reserved.range(..=address).next_back()?;
    (address < base + bytes as u64).then_some((base, bytes))
}

/// Return the file of garbage for all device memory.
fn rubbish() -> RawFd {
    static FILE: OnceLock<RawFd> = OnceLock::new();
    *FILE.get_or_init(|| {
        // SAFETY: a name that ends in a zero byte; the descriptor is kept for the process's life.
        let fd = unsafe { libc::memfd_create(c"kvtide stand-in: rubbish".as_ptr(), libc::MFD_CLOEXEC) };
        // NaNs in f32, f16 and bf16; a large number as an integer.
        let bytes = [0xff_u8, 0xfe, 0xff, 0xff].repeat(GRANULARITY / 4);
        let mut done = 0;
        while fd >= 0 && done < bytes.len() {
            // SAFETY: within the bytes.
            let wrote = unsafe { libc::write(fd, bytes[done..].as_ptr().cast(), bytes.len() - done) };
            if wrote <= 0 {
                break;
            }
            done += wrote as usize;
        }
        if done < bytes.len() {
            eprintln!("kvtide stand-in: no memory for its rubbish: {}", std::io::Error::last_os_error());
            std::process::abort();
        }
        fd
    })
}

/// Reserve inaccessible addresses; return 0 if there are none.
fn reserve_raw(bytes: usize) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // One piece more on either side, so that the middle can be aligned and nothing is adjacent to it.
    let whole = bytes + 2 * GRANULARITY;
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED { 0 } else { (at.addr() as u64 + 1).next_multiple_of(GRANULARITY as u64) }
}

/// Map garbage into addresses that are reserved here.
fn fill(at: u64, bytes: usize) -> bool {
    (0..bytes).step_by(GRANULARITY).all(|offset| {
        let here = bytes.min(offset + GRANULARITY) - offset;
        let target = std::ptr::with_exposed_provenance_mut((at as usize) + offset);
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: over addresses from `reserve_raw` that are not in use.
        let mapped = unsafe { libc::mmap(target, here, libc::PROT_READ | libc::PROT_WRITE, flags, rubbish(), 0) };
        mapped != libc::MAP_FAILED
    })
}

/// Unmap memory from addresses, which stay reserved.
fn clear(at: u64, bytes: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let target = std::ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: over addresses that were filled here; a device that still uses them faults, as intended.
    let _ = unsafe { libc::mmap(target, bytes, libc::PROT_NONE, flags, -1, 0) };
}

/// Release reserved addresses, without those beside them.
fn unreserve_raw(at: u64, bytes: usize) {
    // SAFETY: addresses from `reserve_raw`. Those beside them stay reserved: 2 MiB of addresses each, no memory.
    let _ = unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(at as usize), bytes) };
}

fn take(at: usize, bytes: usize) -> bool {
    let limit = settings::get().memory;
    let device = context::device(at);
    device.is_some_and(|d| {
        d.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|&now| now <= limit)
            })
            .is_ok()
    })
}

fn give_back(at: usize, bytes: usize) {
    if let Some(device) = context::device(at) {
        device.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Return free and total bytes of a device.
pub(crate) fn info(at: usize) -> (usize, usize) {
    let total = settings::get().memory;
    let used = context::device(at).map_or(0, |d| d.used.load(Ordering::Relaxed));
    (total - used.min(total), total)
}

/// `cuMemAlloc`.
pub(crate) fn allocate(at: usize, bytes: usize) -> Result<u64, Code> {
    if bytes == 0 {
        return Err(code::INVALID_VALUE);
    }
    let whole = bytes.checked_next_multiple_of(PAGE).ok_or(code::OUT_OF_MEMORY)?;
    if !take(at, whole) {
        return Err(code::OUT_OF_MEMORY);
    }
    let base = reserve_raw(whole);
    if base == 0 || !fill(base, whole) {
        give_back(at, whole);
        return Err(code::OUT_OF_MEMORY);
    }
    let kind = Kind::Allocated { device: at, mapped_bytes: whole };
    write(|ranges| ranges.by_base.insert(base, Range { base, bytes, kind }));
    Ok(base)
}

/// `cuMemFree`; the caller has waited for the device.
pub(crate) fn free(address: u64, at: usize) -> Code {
    write(|ranges| match ranges.by_base.get(&address).map(|range| range.kind) {
        Some(Kind::Allocated { device, .. }) if device != at => code::INVALID_CONTEXT,
        Some(Kind::Allocated { device, mapped_bytes }) => {
            ranges.by_base.remove(&address);
            order::forget(address, mapped_bytes);
            GENERATION.fetch_add(1, Ordering::Release);
            clear(address, mapped_bytes);
            give_back(device, mapped_bytes);
            code::SUCCESS
        }
        _ => code::INVALID_VALUE,
    })
}

/// `cuMemAddressReserve`.
pub(crate) fn reserve(bytes: usize) -> Result<u64, Code> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
        return Err(code::INVALID_VALUE);
    }
    match reserve_raw(bytes) {
        0 => Err(code::OUT_OF_MEMORY),
        base => {
            write(|ranges| ranges.reserved.insert(base, bytes));
            Ok(base)
        }
    }
}

/// `cuMemAddressFree`: nothing may be mapped there any more.
pub(crate) fn unreserve(address: u64, bytes: usize) -> Code {
    write(|ranges| {
        let empty = ranges.by_base.range(address..address.saturating_add(bytes as u64)).next().is_none();
        if ranges.reserved.get(&address) != Some(&bytes) || !empty {
            return code::INVALID_VALUE;
        }
        ranges.reserved.remove(&address);
        unreserve_raw(address, bytes);
        code::SUCCESS
    })
}

/// `cuMemCreate`.
pub(crate) fn create(at: usize, bytes: usize) -> Result<u64, Code> {
    if context::device(at).is_none() {
        return Err(code::INVALID_DEVICE);
    }
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
        return Err(code::INVALID_VALUE);
    }
    if !take(at, bytes) {
        return Err(code::OUT_OF_MEMORY);
    }
    Ok(write(|ranges| {
        ranges.next_handle += 1;
        let handle = ranges.next_handle;
        ranges.handles.insert(handle, Physical { device: at, bytes, held: true, mapped: 0 });
        handle
    }))
}

fn drop_unused(ranges: &mut Ranges, handle: u64) {
    if let Some(physical) = ranges.handles.get(&handle).copied().filter(|p| !p.held && p.mapped == 0) {
        ranges.handles.remove(&handle);
        give_back(physical.device, physical.bytes);
    }
}

/// `cuMemRelease`.
pub(crate) fn release(handle: u64) -> Code {
    write(|ranges| {
        match ranges.handles.get_mut(&handle) {
            Some(physical) if physical.held => physical.held = false,
            _ => return code::INVALID_VALUE,
        }
        drop_unused(ranges, handle);
        code::SUCCESS
    })
}

/// Mapped handles, by address.
static MAPPED: LazyLock<RwLock<HashMap<u64, u64>>> = LazyLock::new(RwLock::default);

/// `cuMemMap`: not accessible before `allow`.
pub(crate) fn map(address: u64, bytes: usize, handle: u64) -> Code {
    write(|ranges| {
        let Some((base, reserved)) = ranges.reserved.range(..=address).next_back().map(|(&base, &bytes)| (base, bytes))
        else {
            return code::INVALID_VALUE;
        };
        let end = address.checked_add(bytes as u64);
        let inside = end.is_some_and(|end| end <= base + reserved as u64);
        let taken = end.is_none_or(|end| ranges.by_base.range(address..end).next().is_some());
        let aligned = address.is_multiple_of(GRANULARITY as u64);
        match ranges.handles.get_mut(&handle) {
            Some(physical) if inside && !taken && aligned && physical.held && physical.bytes == bytes => {
                physical.mapped += 1;
                let kind = Kind::Mapped { device: physical.device };
                ranges.by_base.insert(address, Range { base: address, bytes, kind });
                MAPPED.write().unwrap_or_else(std::sync::PoisonError::into_inner).insert(address, handle);
                code::SUCCESS
            }
            _ => code::INVALID_VALUE,
        }
    })
}

/// `cuMemSetAccess`: makes the memory accessible.
pub(crate) fn allow(address: u64, bytes: usize, device: usize) -> Code {
    match find(address) {
        Some(range) if range.base == address && range.bytes == bytes && range.kind == (Kind::Mapped { device }) => {
            if fill(address, bytes) {
                code::SUCCESS
            } else {
                code::OUT_OF_MEMORY
            }
        }
        _ => code::INVALID_VALUE,
    }
}

/// `cuMemUnmap` of exactly one mapping.
pub(crate) fn unmap(address: u64, bytes: usize) -> Code {
    write(|ranges| {
        let is_it = |range: &Range| range.bytes == bytes && matches!(range.kind, Kind::Mapped { .. });
        if !ranges.by_base.get(&address).is_some_and(is_it) {
            return code::INVALID_VALUE;
        }
        ranges.by_base.remove(&address);
        order::forget(address, bytes);
        GENERATION.fetch_add(1, Ordering::Release);
        clear(address, bytes);
        let handle = MAPPED.write().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&address);
        if let Some(handle) = handle {
            if let Some(physical) = ranges.handles.get_mut(&handle) {
                physical.mapped -= 1;
            }
            drop_unused(ranges, handle);
        }
        code::SUCCESS
    })
}

/// `cuMemHostRegister`.
pub(crate) fn register(address: u64, bytes: usize) -> Code {
    let Some(end) = address.checked_add(bytes as u64).filter(|_| bytes > 0 && address != 0) else {
        return code::INVALID_VALUE;
    };
    if !is_mapped(address, bytes) {
        return code::INVALID_VALUE;
    }
    write(|ranges| {
        let before = ranges.by_base.range(..end).next_back();
        if before.is_some_and(|(_, range)| range.end() > address) {
            return code::ALREADY_REGISTERED;
        }
        ranges.by_base.insert(address, Range { base: address, bytes, kind: Kind::Registered });
        code::SUCCESS
    })
}

/// Return whether the process has memory at these addresses.
fn is_mapped(address: u64, bytes: usize) -> bool {
    let start = address as usize / PAGE * PAGE;
    let whole = address as usize + bytes - start;
    let mut resident = vec![0_u8; whole.div_ceil(PAGE)];
    // SAFETY: only queries; the vector has a byte for each page.
    unsafe { libc::mincore(std::ptr::with_exposed_provenance_mut(start), whole, resident.as_mut_ptr()) == 0 }
}

/// `cuMemHostUnregister`.
pub(crate) fn unregister(address: u64) -> Code {
    write(|ranges| {
        let Some(range) = ranges.by_base.get(&address).copied().filter(|range| range.kind == Kind::Registered) else {
            return code::NOT_REGISTERED;
        };
        ranges.by_base.remove(&address);
        order::forget(address, range.bytes);
        GENERATION.fetch_add(1, Ordering::Release);
        code::SUCCESS
    })
}
