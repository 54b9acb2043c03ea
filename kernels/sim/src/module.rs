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

/// Dynamic shared memory, in bytes, that a launch may use without an attribute.
const SHARED_UNASKED: u32 = 48 << 10;

/// Maximum dynamic shared memory, in bytes, that a kernel may be allowed: compute capability 9.0.
pub(crate) const SHARED_MAX: u32 = 227 << 10;

/// A loaded module; its handle is the address inside the `Arc`.
pub(crate) struct Module {
    entries: Vec<Entry>,
}

/// A kernel as the PTX declares it.
struct Entry {
    name: CString,
    /// Bytes of its single parameter struct; `None` if its parameters differ.
    params_bytes: Option<usize>,
}

/// A kernel's handle is the address of one of these.
pub(crate) struct Function {
    pub kernel: Kernel,
    pub name: CString,
    /// Handle of its module.
    pub module: usize,
    /// Dynamic shared memory that its launches may use.
    pub shared_allowed: AtomicU32,
}

impl Module {
    /// Load PTX, or return an error text as the compiler would.
    pub fn load(text: &CStr) -> Result<Arc<Self>, (Code, String)> {
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
        let mut entries = Vec::new();
        for part in text.split(".entry").skip(1) {
            let name: String =
                part.trim_start().chars().take_while(|&c| c.is_ascii_alphanumeric() || c == '_' || c == '$').collect();
            // `.param .align 8 .b8 NAME_param_0[BYTES]`
            let declared = part.split(')').next().and_then(|list| list.split_once('[')).map(|(_, rest)| rest);
            let params_bytes = declared.and_then(|rest| rest.split(']').next()?.trim().parse().ok());
            let name = CString::new(name).map_err(|_| bad("an entry has no name"))?;
            entries.push(Entry { name, params_bytes });
        }
        if entries.is_empty() {
            return Err(bad("the PTX has no entry"));
        }
        Ok(Arc::new(Self { entries }))
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
        Ok(Function { kernel, name: name.to_owned(), module, shared_allowed: AtomicU32::new(SHARED_UNASKED) })
    }
}

impl Function {
    pub fn may_share(&self, bytes: u32) -> bool {
        bytes <= self.shared_allowed.load(Ordering::Relaxed)
    }
}
