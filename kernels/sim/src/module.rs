//! Modules: PTX is parsed for its entries; the kernels are those of the emulator with the same names.

use crate::{
    code::{self, Code},
    emulator::{self, Kernel},
    settings,
};
use std::{
    ffi::{CStr, CString},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// Limits of compute capability 9.0 (CUDA programming guide, technical specifications): registers of a block, in the units in which
/// a warp gets them, and of a thread.
const REGISTERS: u32 = 64 << 10;
const REGISTERS_UNIT: u32 = 256;
const REGISTERS_OF_THREAD: u32 = 255;
const WARP: u32 = 32;

/// Shared memory, in bytes, that a launch may use without an attribute.
const SHARED_UNASKED: u32 = 48 << 10;

/// Maximum shared memory, in bytes, that a kernel may be allowed: compute capability 9.0.
pub(crate) const SHARED_MAX: u32 = 227 << 10;

/// A loaded module; its handle is the address inside the `Arc`.
pub(crate) struct Module {
    pub device: usize,
    entries: Vec<Entry>,
}

/// A kernel as the PTX declares it.
struct Entry {
    name: CString,
    /// Bytes of its single parameter struct; `None` if its parameters differ.
    params_bytes: Option<usize>,
    needs: Needs,
}

/// What a block of a kernel needs, as the PTX declares it.
#[derive(Clone, Copy)]
pub(crate) struct Needs {
    /// Its launch bounds. A compiler assigns no more registers than so many threads may have.
    threads_bound: Option<u32>,
    /// Maximum registers of a thread. Without launch bounds, a block must fit with all of them.
    registers: u32,
    /// Static shared memory, in bytes.
    pub shared_bytes: u32,
}

impl Needs {
    /// Return what the entry with this head and body needs. Shared variables are declared in it, or anywhere in the module.
    fn parse(head: &str, body: &str, shared: &[(&str, u32)]) -> Self {
        let numbers = |directive: &str| {
            let rest = head.split_once(directive)?.1.lines().next()?;
            rest.split(',').map(|n| n.trim().parse::<u32>().ok()).product()
        };
        Self {
            threads_bound: numbers(".maxntid"),
            registers: numbers(".maxnreg").unwrap_or(REGISTERS_OF_THREAD),
            shared_bytes: shared.iter().filter(|(name, _)| body.contains(name)).map(|(_, bytes)| bytes).sum(),
        }
    }

    /// Return the maximum threads of a block that fit the registers, which are assigned to whole warps.
    pub fn threads_max(&self) -> u32 {
        let of_warp = (self.registers * WARP).next_multiple_of(REGISTERS_UNIT);
        self.threads_bound.unwrap_or(REGISTERS / of_warp * WARP)
    }
}

/// Return a variable in shared memory and its bytes: `.shared .align 8 .b8 NAME[512];` or `.shared .align 4 .u32 NAME;`.
fn shared_variable(line: &str) -> Option<(&str, u32)> {
    let mut words = line.trim().strip_prefix(".shared ")?.trim_end_matches(';').split_whitespace();
    let (name, kind) = (words.next_back()?, words.next_back()?);
    let (name, count) = match name.split_once('[') {
        Some((name, rest)) => (name, rest.trim_end_matches(']').parse().ok()?),
        None => (name, 1),
    };
    let bits: u32 = kind.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()?;
    Some((name, bits / 8 * count))
}

/// A kernel's handle is the address of one of these.
pub(crate) struct Function {
    pub kernel: Kernel,
    pub name: CString,
    /// Handle of its module.
    pub module: usize,
    /// Dynamic shared memory that its launches may use.
    pub shared_allowed: AtomicU32,
    pub device: usize,
    pub needs: Needs,
}

impl Module {
    /// Load PTX, or return an error text as the compiler would.
    pub fn load(text: &CStr, device: usize) -> Result<Arc<Self>, (Code, String)> {
        let bad = |why: &str| (code::INVALID_PTX, format!("kvtide stand-in: {why}"));
        let text = text.to_str().map_err(|_| bad("the PTX is not text"))?;
        let isa = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(".version"))
            .ok_or_else(|| bad("the PTX has no .version"))?;
        let (major, minor) = isa.trim().split_once('.').ok_or_else(|| bad("the .version of the PTX is invalid"))?;
        let number = |part: &str| part.trim().parse::<i32>().map_err(|_| bad("the .version of the PTX is invalid"));
        let (major, minor) = (number(major)?, number(minor)?);
        // PTX ISA release notes: 8.x came with CUDA 12.x.
        let speaks = settings::get().version;
        if (major - 7) * 10 + minor > (speaks / 1000 - 11) * 10 + speaks % 1000 / 10 {
            let why = format!("PTX ISA {major}.{minor} is newer than CUDA {}.{}", speaks / 1000, speaks % 1000 / 10);
            return Err((code::UNSUPPORTED_PTX, format!("kvtide stand-in: {why}")));
        }
        let shared: Vec<(&str, u32)> = text.lines().filter_map(shared_variable).collect();
        let mut entries = Vec::new();
        for part in text.split(".entry").skip(1) {
            let name: String =
                part.trim_start().chars().take_while(|&c| c.is_ascii_alphanumeric() || c == '_' || c == '$').collect();
            // `.param .align 8 .b8 NAME_param_0[BYTES]`
            let declared = part.split(')').next().and_then(|list| list.split_once('[')).map(|(_, rest)| rest);
            let params_bytes = declared.and_then(|rest| rest.split(']').next()?.trim().parse().ok());
            let name = CString::new(name).map_err(|_| bad("an entry has no name"))?;
            let body = part.split("\n}").next().unwrap_or(part);
            let head = body.split("\n{").next().unwrap_or(body);
            entries.push(Entry { name, params_bytes, needs: Needs::parse(head, body, &shared) });
        }
        if entries.is_empty() {
            return Err(bad("the PTX has no entry"));
        }
        Ok(Arc::new(Self { device, entries }))
    }

    /// Return a kernel that is in the PTX and in this library.
    pub fn function(&self, name: &CStr, module: usize) -> Result<Function, Code> {
        let entry = self.entries.iter().find(|entry| entry.name.as_c_str() == name).ok_or(code::NOT_FOUND)?;
        let kernel = emulator::find(name);
        // Both are built from one source, so their parameters have one size.
        let fits = |kernel: &Kernel| entry.params_bytes.is_none_or(|bytes| bytes == kernel.params_bytes);
        let Some(kernel) = kernel.filter(fits) else {
            let (ptx, ours) = (entry.params_bytes, kernel.map(|kernel| kernel.params_bytes));
            eprintln!(
                "kvtide stand-in: the PTX has {name:?} with parameters of {ptx:?} bytes, the stand-in was built with {ours:?}: are they of one version?"
            );
            return Err(code::NO_BINARY);
        };
        let needs = entry.needs;
        let shared_allowed = AtomicU32::new(SHARED_UNASKED.saturating_sub(needs.shared_bytes));
        Ok(Function { kernel, name: name.to_owned(), module, shared_allowed, device: self.device, needs })
    }
}

impl Function {
    /// Refuse a block that the device has no room for.
    pub fn fits(&self, threads: u32, shared_bytes: u32) -> Result<(), Code> {
        let refuse = |code, why: String| {
            eprintln!("kvtide stand-in: {:?} with {why}", self.name);
            Err(code)
        };
        let (most, allowed) = (self.needs.threads_max(), self.shared_allowed.load(Ordering::Relaxed));
        let bound = self.needs.threads_bound.unwrap_or(u32::MAX).min(self.kernel.threads_max);
        if threads > bound {
            return refuse(code::INVALID_VALUE, format!("{threads} threads, {bound} at most"));
        }
        if threads > most {
            let why = format!("{threads} threads without launch bounds: {most} have registers in any case");
            return refuse(code::OUT_OF_RESOURCES, why);
        }
        if shared_bytes > allowed {
            let why = format!("{shared_bytes} bytes of dynamic shared memory, {allowed} at most");
            return refuse(code::INVALID_VALUE, why);
        }
        Ok(())
    }
}
