//! The SIMT emulator (`emu/`), as used by the driver.

use crate::{
    code::{self, Code},
    memory::{self, Kind},
    order::{self, Clock, Touched},
    stream,
};
use std::ffi::{CStr, c_char, c_int, c_void};

/// A kernel in the emulator.
#[repr(C)]
struct KvtKernel {
    // SAFETY: types only, in this struct and the next.
    name: *const c_char,
    params_bytes: u32,
    threads_max: u32,
    run: Option<unsafe extern "C" fn(*const c_void)>,
    next: *mut KvtKernel,
}

#[repr(C)]
struct EmuRange {
    low: u64,
    high: u64,
    host: bool,
}

/// Size of a page, in bytes.
const PAGE: u64 = 4096;

/// Accesses of a launch to a page: a bit for each byte.
#[repr(C)]
struct EmuPage {
    at: u64,
    read: [u64; PAGE as usize / 64],
    written: [u64; PAGE as usize / 64],
    // Fields of the emulator follow.
}

#[repr(C)]
struct EmuLaunch {
    kernel: *const KvtKernel,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    params: *const c_void,
    seed: u64,
    // SAFETY: a type; `find_range` may be called only from a launch.
    find: unsafe extern "C" fn(u32, u64, *mut EmuRange) -> bool,
    device: u32,
    // SAFETY: a type; `publish` may be called only from a launch, with its context.
    publish: unsafe extern "C" fn(*const Clock),
    context: *const Clock,
    generation: *const u64,
}

#[repr(C)]
struct EmuOutcome {
    fault: u32,
    pc: *const c_void,
    read_words: bool,
    text: [c_char; 480],
}

/// `emu::FAULT_ADDRESS` and `emu::FAULT_MISALIGNED`; the others are failed launches.
const FAULT_ADDRESS: u32 = 1;
const FAULT_MISALIGNED: u32 = 2;

// SAFETY: as emu.h declares them.
#[cfg(emulator)]
unsafe extern "C" {
    fn kvt_emu_units();
    fn kvt_emu_find(name: *const c_char) -> *const KvtKernel;
    fn kvt_emu_launch(launch: *const EmuLaunch, outcome: *mut EmuOutcome) -> u32;
    fn kvt_emu_copy(to: *mut c_void, from: *const c_void, bytes: usize) -> bool;
    fn kvt_emu_fill(to: *mut c_void, byte: c_int, bytes: usize) -> bool;
    fn kvt_emu_touched(count: *mut u32) -> *const *const EmuPage;
    fn kvt_emu_release();
    fn kvt_emu_word_loads() -> u64;
}

/// A kernel by handle.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    raw: *const KvtKernel,
    pub params_bytes: usize,
    pub threads_max: u32,
}

// SAFETY: kernels are constants of the library.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Return a kernel by name.
#[cfg(emulator)]
pub(crate) fn find(name: &CStr) -> Option<Kernel> {
    // SAFETY: the first makes the linker include every kernel file and does nothing; the second reads constants.
    let raw = unsafe {
        kvt_emu_units();
        kvt_emu_find(name.as_ptr())
    };
    // SAFETY: null, or a constant of the library.
    let kernel = unsafe { raw.as_ref() }?;
    Some(Kernel { raw, params_bytes: kernel.params_bytes as usize, threads_max: kernel.threads_max })
}

/// Return nothing: without a compiler there are no kernels.
#[cfg(not(emulator))]
pub(crate) fn find(_name: &CStr) -> Option<Kernel> {
    None
}

/// Return the memory range of a device that contains an address.
///
/// # Safety
/// The range is writable memory of the emulator.
unsafe extern "C" fn find_range(device: u32, address: u64, range: *mut EmuRange) -> bool {
    match memory::find(address).filter(|found| found.is_for(device as usize)) {
        Some(found) => {
            // SAFETY: writable memory of the emulator.
            unsafe {
                *range = EmuRange {
                    low: found.base,
                    high: found.base + found.bytes as u64,
                    host: found.kind == Kind::Registered,
                }
            };
            true
        }
        None => false,
    }
}

/// Note that a kernel writes a word of host memory, which a host may read.
///
/// # Safety
/// The clock is that of the launch.
unsafe extern "C" fn publish(clock: *const Clock) {
    // SAFETY: guaranteed by the caller.
    order::see(unsafe { &*clock });
}

/// Run a launch to its end on this thread; return the memory that it touched other than by atomics.
#[cfg(emulator)]
pub(crate) fn launch(
    launch: &stream::Launch,
    device: usize,
    clock: &mut Clock,
    seed: u64,
) -> Result<Vec<Touched>, (Code, String)> {
    let asked = EmuLaunch {
        kernel: launch.kernel.raw,
        grid: launch.grid,
        block: launch.block,
        shared_bytes: launch.shared_bytes,
        params: launch.params.as_ptr().cast(),
        seed,
        find: find_range,
        device: device as u32,
        publish,
        context: clock,
        generation: memory::GENERATION.as_ptr(),
    };
    let mut outcome = EmuOutcome { fault: 0, pc: std::ptr::null(), read_words: false, text: [0; 480] };
    // SAFETY: both structs are the emulator's, laid out as in emu.h; the parameters are as long as the kernel's.
    let fault = unsafe { kvt_emu_launch(&asked, &mut outcome) };
    if fault == 0 {
        if outcome.read_words {
            // As after a stream's wait for a word.
            clock.join(&order::ended());
        }
        return Ok(touched());
    }
    // SAFETY: the emulator terminates its text with a zero byte within the buffer.
    let mut text = unsafe { CStr::from_ptr(outcome.text.as_ptr()) }.to_string_lossy().into_owned();
    if let Some(place) = place_of(outcome.pc) {
        text = format!("{text} (near {place})");
    }
    let code = match fault {
        FAULT_ADDRESS => code::ILLEGAL_ADDRESS,
        FAULT_MISALIGNED => code::MISALIGNED,
        _ => code::LAUNCH_FAILED,
    };
    Err((code, text))
}

/// Return the memory that this thread's last launch touched.
#[cfg(emulator)]
fn touched() -> Vec<Touched> {
    let mut count = 0;
    // SAFETY: a launch ran on this thread; its pages stay until the next one.
    let mut pages: Vec<&EmuPage> = unsafe {
        let all = kvt_emu_touched(&mut count);
        (0..count as usize).map(|at| &**all.add(at)).collect()
    };
    pages.sort_unstable_by_key(|page| page.at);
    let mut touched: Vec<Touched> = vec![];
    for write in [false, true] {
        for page in &pages {
            for (at, &bits) in if write { &page.written } else { &page.read }.iter().enumerate() {
                runs(bits, |first, end| {
                    let (low, high) = (page.at * PAGE + at as u64 * 64 + first, page.at * PAGE + at as u64 * 64 + end);
                    match touched.last_mut() {
                        Some(last) if last.1 == low && last.2 == write => last.1 = high,
                        _ => touched.push((low, high, write)),
                    }
                });
            }
        }
    }
    touched
}

/// Call a function with the first bit of each run of ones, and the one after its last.
#[cfg(emulator)]
fn runs(mut bits: u64, mut each: impl FnMut(u64, u64)) {
    while bits != 0 {
        let first = bits.trailing_zeros();
        let end = first + (bits >> first).trailing_ones();
        each(first.into(), end.into());
        bits = if end == 64 { 0 } else { bits >> end << end };
    }
}

/// Return file and line of an instruction of this library, if `addr2line` is installed.
#[cfg(emulator)]
fn place_of(pc: *const c_void) -> Option<String> {
    // SAFETY: all zero bytes are a valid value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: accepts any address, and writes the struct.
    if pc.is_null() || unsafe { libc::dladdr(pc, &mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: not null; a string of the loader.
    let library = unsafe { CStr::from_ptr(found.dli_fname) };
    // The address is the return address of the call: the instruction before it is the one to report.
    let offset = pc.addr().checked_sub(found.dli_fbase.addr() + 1)?;
    let mut ask = std::process::Command::new("addr2line");
    ask.arg("-e").arg(library.to_str().ok()?).arg(format!("{offset:#x}"));
    let answer = ask.output().ok().filter(|output| output.status.success())?;
    let line = String::from_utf8(answer.stdout).ok()?.trim().to_owned();
    (!line.starts_with('?')).then_some(line)
}

/// Fail: no kernel can be found, so none is launched.
#[cfg(not(emulator))]
pub(crate) fn launch(
    _launch: &stream::Launch,
    _device: usize,
    _clock: &mut Clock,
    _seed: u64,
) -> Result<Vec<Touched>, (Code, String)> {
    Err((code::LAUNCH_FAILED, "built without a compiler for kernels".to_owned()))
}

/// Copy bytes; return false if memory is missing.
pub(crate) fn copy(to: u64, from: u64, bytes: usize) -> bool {
    let (to, from) =
        (std::ptr::with_exposed_provenance_mut(to as usize), std::ptr::with_exposed_provenance(from as usize));
    // SAFETY: both ranges are known; the emulator catches one that is unmapped in the meantime.
    #[cfg(emulator)]
    unsafe {
        kvt_emu_copy(to, from, bytes)
    }
    #[cfg(not(emulator))]
    {
        // SAFETY: both ranges are known.
        unsafe { std::ptr::copy::<u8>(from, to, bytes) };
        true
    }
}

/// Fill memory; return false if it is missing.
pub(crate) fn fill(to: u64, byte: u8, bytes: usize) -> bool {
    let to = std::ptr::with_exposed_provenance_mut(to as usize);
    // SAFETY: the range is known; the emulator catches one that is unmapped in the meantime.
    #[cfg(emulator)]
    unsafe {
        kvt_emu_fill(to, byte.into(), bytes)
    }
    #[cfg(not(emulator))]
    {
        // SAFETY: the range is known.
        unsafe { std::ptr::write_bytes::<u8>(to, byte, bytes) };
        true
    }
}

/// Return how often kernels have loaded a word that hosts or other blocks may write.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_sim_word_loads() -> u64 {
    // SAFETY: reads a counter.
    #[cfg(emulator)]
    return unsafe { kvt_emu_word_loads() };
    #[cfg(not(emulator))]
    0
}

/// Free the memory kept by this thread's launches.
pub(crate) fn release() {
    // SAFETY: no launch runs on this thread.
    #[cfg(emulator)]
    unsafe {
        kvt_emu_release()
    }
}
