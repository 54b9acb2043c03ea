//! Whether a file can be read and written past the page cache, and in which units.

use super::super::error::DiskError;
use super::super::memory::Aligned;
use super::super::settings::Choice;
use super::demand_direct;
use kvtide_tiering::format::{SECTOR, SUPERBLOCK_BYTES};
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// What the kernel asks of requests, in bytes, powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Align {
    /// Of offsets and lengths.
    pub offset: u64,
    /// Of addresses.
    pub memory: u64,
}

impl Align {
    /// Nothing is asked.
    pub const NONE: Align = Align { offset: 1, memory: 1 };
}

/// The smallest unit that drives have, where the kernel does not say (before Linux 6.1).
const LEAST: u64 = 512;

/// Turns direct I/O on if that is wanted and works, and says in which units, or why not.
pub(super) fn choose(file: &File, dir: &Path, choice: Choice) -> Result<(Align, Option<String>), DiskError> {
    let why = match choice {
        Choice::Off => "the configuration says so".into(),
        Choice::Auto | Choice::Required => match turn_on(file) {
            Ok(align) => return Ok((align, None)),
            Err(why) => why,
        },
    };
    demand_direct(choice, dir, &why)?;
    let flags = rustix::fs::fcntl_getfl(file).map_err(|e| DiskError::os("ask for the flags of the file in", dir, e))?;
    let plain = flags.difference(OFlags::DIRECT | OFlags::NONBLOCK);
    rustix::fs::fcntl_setfl(file, plain).map_err(|e| DiskError::os("use the page cache for the file in", dir, e))?;
    Ok((Align::NONE, Some(why)))
}

fn turn_on(file: &File) -> Result<Align, String> {
    let flags = rustix::fs::fcntl_getfl(file).map_err(|e| format!("fcntl(F_GETFL): {e}"))?;
    let direct = flags.difference(OFlags::NONBLOCK) | OFlags::DIRECT;
    rustix::fs::fcntl_setfl(file, direct).map_err(|e| format!("O_DIRECT: {e}"))?;
    let told = told(file);
    if told.is_some_and(|align| align.offset == 0) {
        return Err("the file system says that this file has no direct I/O".into());
    }
    let guesses =
        [Align { offset: LEAST, memory: LEAST }, Align { offset: u64::from(SECTOR), memory: u64::from(SECTOR) }];
    let candidates: &[Align] = told.as_ref().map_or(&guesses, std::slice::from_ref);
    let mut why = String::new();
    for align in candidates {
        if align.offset > u64::from(SECTOR) || align.memory > u64::from(SECTOR) {
            why = format!("its units are {align:?}, and slots stand on multiples of {SECTOR}");
            continue;
        }
        match trial(file, *align) {
            Ok(()) => return Ok(*align),
            Err(errno) => why = format!("a trial read in units of {align:?}: {errno}"),
        }
    }
    Err(why)
}

/// What the kernel says of the file (Linux 6.1, and a file system that knows).
fn told(file: &File) -> Option<Align> {
    let statx = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let known = StatxFlags::from_bits_retain(statx.stx_mask).contains(StatxFlags::DIOALIGN);
    known.then(|| Align { offset: statx.stx_dio_offset_align.into(), memory: statx.stx_dio_mem_align.max(1).into() })
}

/// Reads one unit at the worst offset and address that the units allow.
fn trial(file: &File, align: Align) -> Result<(), Errno> {
    let page = Aligned::new(2 * SUPERBLOCK_BYTES).map_err(|_| Errno::NOMEM)?;
    let (unit, at) = (align.offset as usize, align.memory as usize);
    // SAFETY: `at` + `unit` are at most two sectors, which `page` has, and nobody else refers to it until the call returns.
    let unit = unsafe { std::slice::from_raw_parts_mut(page.as_ptr().add(at), unit) };
    let offset = if align.offset < SUPERBLOCK_BYTES as u64 { align.offset } else { 0 };
    match rustix::io::pread(file, unit, offset) {
        Ok(count) if count == align.offset as usize => Ok(()),
        Ok(_) => Err(Errno::IO),
        Err(errno) => Err(errno),
    }
}
