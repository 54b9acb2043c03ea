//! Direct I/O of a file: whether it works, and in which units.

use super::super::error::DiskError;
use super::super::memory::Aligned;
use super::super::settings::FeatureUse;
use super::demand_direct;
use kvtide_format::{SECTOR, SUPERBLOCK_BYTES};
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// Alignment required by the kernel in bytes, powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Align {
    /// Alignment of offsets and lengths.
    pub offset: u64,
    /// Alignment of addresses.
    pub memory: u64,
}

impl Align {
    /// No alignment required.
    pub const NONE: Align = Align { offset: 1, memory: 1 };
}

/// Smallest unit of drives, used if the kernel does not report one (before Linux 6.1).
const LEAST: u64 = 512;

/// Enable direct I/O if it is wanted and works. Return the alignment, and the reason if it is not used.
pub(super) fn choose(file: &File, dir: &Path, choice: FeatureUse) -> Result<(Align, Option<String>), DiskError> {
    let why = match choice {
        FeatureUse::Off => "disabled by the configuration".into(),
        FeatureUse::Auto | FeatureUse::Required => match turn_on(file) {
            Ok(align) => return Ok((align, None)),
            Err(why) => why,
        },
    };
    demand_direct(choice, dir, &why)?;
    let flags = rustix::fs::fcntl_getfl(file).map_err(|e| DiskError::os("read the file flags in", dir, e))?;
    let plain = flags.difference(OFlags::DIRECT | OFlags::NONBLOCK);
    rustix::fs::fcntl_setfl(file, plain).map_err(|e| DiskError::os("enable the page cache for the file in", dir, e))?;
    Ok((Align::NONE, Some(why)))
}

fn turn_on(file: &File) -> Result<Align, String> {
    let flags = rustix::fs::fcntl_getfl(file).map_err(|e| format!("fcntl(F_GETFL): {e}"))?;
    let direct = flags.difference(OFlags::NONBLOCK) | OFlags::DIRECT;
    rustix::fs::fcntl_setfl(file, direct).map_err(|e| format!("O_DIRECT: {e}"))?;
    let told = told(file);
    if told.is_some_and(|align| align.offset == 0) {
        return Err("the file system does not support direct I/O for this file".into());
    }
    let guesses =
        [Align { offset: LEAST, memory: LEAST }, Align { offset: u64::from(SECTOR), memory: u64::from(SECTOR) }];
    let candidates: &[Align] = told.as_ref().map_or(&guesses, std::slice::from_ref);
    let mut why = String::new();
    for align in candidates {
        if align.offset > u64::from(SECTOR) || align.memory > u64::from(SECTOR) {
            why = format!("it requires {align:?}, but slots are aligned to {SECTOR}");
            continue;
        }
        match trial(file, *align) {
            Ok(()) => return Ok(*align),
            Err(errno) => why = format!("a trial read with {align:?} failed: {errno}"),
        }
    }
    Err(why)
}

/// Return the alignment reported by the kernel (Linux 6.1 and a file system that supports it).
fn told(file: &File) -> Option<Align> {
    let statx = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let known = StatxFlags::from_bits_retain(statx.stx_mask).contains(StatxFlags::DIOALIGN);
    known.then(|| Align { offset: statx.stx_dio_offset_align.into(), memory: statx.stx_dio_mem_align.max(1).into() })
}

/// Read one unit at the least aligned offset and address that the alignment permits.
fn trial(file: &File, align: Align) -> Result<(), Errno> {
    let page = Aligned::new(2 * SUPERBLOCK_BYTES).map_err(|_| Errno::NOMEM)?;
    let (unit, at) = (align.offset as usize, align.memory as usize);
    // SAFETY: `at` + `unit` are at most two sectors, which `page` has; there are no other references to it until the call returns.
    let unit = unsafe { std::slice::from_raw_parts_mut(page.as_ptr().add(at), unit) };
    let offset = if align.offset < SUPERBLOCK_BYTES as u64 { align.offset } else { 0 };
    match rustix::io::pread(file, unit, offset) {
        Ok(count) if count == align.offset as usize => Ok(()),
        Ok(_) => Err(Errno::IO),
        Err(errno) => Err(errno),
    }
}
