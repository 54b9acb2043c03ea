//! Modules and launches.

use super::{Handles, Owned, driver, list, put, queue};
use crate::{
    code, context,
    module::{Function, Module, SHARED_MAX},
    stream::{Launch, Op, Taken},
};
use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::{Arc, atomic::Ordering},
};

static MODULES: Handles<Module> = Handles::new();
static FUNCTIONS: Handles<Function> = Handles::new();

impl Owned for Module {
    const KIND: &'static str = "module";

    fn device(&self) -> usize {
        self.device
    }
}

impl Owned for Function {
    const KIND: &'static str = "function";

    fn device(&self) -> usize {
        self.device
    }
}

/// Destroy the modules of a context that ends.
pub(super) fn destroy_all(at: usize) {
    MODULES.remove_if(|module| module.device == at);
    FUNCTIONS.remove_if(|function| function.device == at);
}

/// Maximum blocks of a grid, and threads of a block, in each dimension (CUDA programming guide, technical specifications).
const GRID_MAX: [u32; 3] = [0x7fff_ffff, 65535, 65535];
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];

/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const LOG: u32 = 5;
const LOG_BYTES: u32 = 6;

/// Write the compiler's message to the buffer that the caller gave.
fn complain(text: &str, count: c_uint, options: *const u32, values: *const *mut c_void) -> Result<(), code::Code> {
    let (options, values) = (list(options, count as usize)?, list(values, count as usize)?);
    let value = |which| options.iter().position(|&option| option == which).map(|at| values[at]);
    if let (Some(buffer), Some(room)) = (value(LOG), value(LOG_BYTES)) {
        let bytes = text.bytes().take(room.addr().saturating_sub(1)).chain([0]);
        bytes.enumerate().try_for_each(|(at, byte)| put(buffer.cast::<u8>().wrapping_add(at), byte))?;
    }
    Ok(())
}

driver! {
    fn cuModuleLoadDataEx(
        to: *mut usize,
        image: *const c_void,
        count: c_uint,
        options: *const u32,
        values: *const *mut c_void,
    ) {
        let device = context::current()?;
        list(image.cast::<u8>(), 1)?;
        // SAFETY: not null; PTX is a string that ends in a zero byte.
        let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) };
        match Module::load(text, device) {
            Ok(module) => put(to, MODULES.add(module))?,
            Err((code, why)) => {
                if count > 0 {
                    complain(&why, count, options, values)?;
                }
                return Err(code);
            }
        }
    }

    fn cuModuleUnload(handle: usize) {
        let device = context::current()?;
        MODULES.get(handle)?;
        queue::unused(Taken::Module(handle), "cuModuleUnload")?;
        queue::drain(device, "cuModuleUnload")?;
        MODULES.remove(handle)?;
        FUNCTIONS.remove_if(|function| function.module == handle);
    }

    fn cuModuleGetFunction(to: *mut usize, module: usize, name: *const c_char) {
        let (handle, module) = (module, MODULES.get(module)?);
        list(name, 1)?;
        // SAFETY: not null; a string that ends in a zero byte.
        let name = unsafe { CStr::from_ptr(name) };
        put(to, FUNCTIONS.add(Arc::new(module.function(name, handle)?)))?;
    }

    /// Return the maximum threads of a block, or its static shared memory. Registers and spills are properties of a GPU: 0.
    fn cuFuncGetAttribute(to: *mut c_int, which: c_uint, handle: usize) {
        let function = FUNCTIONS.get(handle)?;
        let value = match which {
            0 => function.kernel.threads_max.min(function.needs.threads_max()) as c_int,
            1 => function.needs.shared_bytes as c_int,
            3 | 4 => 0,
            8 => function.shared_allowed.load(Ordering::Relaxed) as c_int,
            _ => return Err(code::INVALID_VALUE),
        };
        put(to, value)?;
    }

    fn cuFuncSetAttribute(handle: usize, which: c_uint, value: c_int) {
        let function = FUNCTIONS.get(handle)?;
        let bytes = u32::try_from(value).map_err(|_| code::INVALID_VALUE)?;
        if which != 8 || bytes.saturating_add(function.needs.shared_bytes) > SHARED_MAX {
            return Err(code::INVALID_VALUE);
        }
        function.shared_allowed.store(bytes, Ordering::Relaxed);
    }

    /// Return how many blocks fit a multiprocessor of compute capability 9.0 by threads and shared memory.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(to: *mut c_int, handle: usize, threads: c_int, shared_bytes: usize) {
        FUNCTIONS.get(handle)?;
        let threads = usize::try_from(threads).ok().filter(|&t| t > 0).ok_or(code::INVALID_VALUE)?;
        put(to, (2048 / threads).min(((SHARED_MAX + 1024) as usize) / (shared_bytes + 1024)) as c_int)?;
    }

    fn cuLaunchKernel(
        handle: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        on: usize,
        parameters: *const *const c_void,
        extra: *const *const c_void,
    ) {
        let (function, stream) = (FUNCTIONS.get(handle)?, queue::stream(on)?);
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let within = |sizes: [u32; 3], most: [u32; 3]| sizes.iter().zip(most).all(|(&n, most)| (1..=most).contains(&n));
        if !extra.is_null() || !within(grid, GRID_MAX) || !within(block, BLOCK_MAX) {
            eprintln!("kvtide stand-in: {:?} with a grid of {grid:?} and blocks of {block:?}", function.name);
            return Err(code::INVALID_VALUE);
        }
        function.fits(block.iter().product(), shared_bytes)?;
        let given = list(list(parameters, 1)?[0].cast::<u8>(), function.kernel.params_bytes)?;
        let mut params = vec![0_u128; given.len().div_ceil(size_of::<u128>()).max(1)];
        // SAFETY: the vector is at least as long.
        unsafe { params.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(given.as_ptr(), given.len()) };
        queue::enqueue(&stream, Op::Launch(Box::new(Launch { kernel: function.kernel, name: function.name.to_string_lossy().into(), module: function.module, grid, block, shared_bytes, params })))?;
    }
}
