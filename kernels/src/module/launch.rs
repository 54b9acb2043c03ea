//! Launches of a kernel.

use super::Module;
use crate::{Error, Result, Stream, params::KernelParams};
use cudarc::driver::sys::{CUfunction, CUfunction_attribute_enum as Attribute};
use std::{ffi::c_void, sync::Arc};

/// Maximum bytes of parameters on every driver; CUDA 12.1 raised it on newer devices only.
pub const PARAMS_BYTES_MAX: usize = 4096;

/// Shared memory, in bytes, that a block may use without an attribute.
const SHARED_UNASKED: u32 = 48 << 10;

/// Threads of a launch and their shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks, in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block, in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, bytes.
    pub shared_bytes: u32,
}

impl Shape {
    /// Return a shape of `blocks` blocks of `threads` threads.
    #[must_use]
    pub fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// Return the same with dynamic shared memory.
    #[must_use]
    pub fn with_shared(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    /// Return the threads of a block.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.block.iter().fold(1, |n: u32, &b| n.saturating_mul(b))
    }
}

/// A kernel on a device.
pub struct Function {
    module: Arc<Module>,
    raw: CUfunction,
    name: String,
    threads_max: u32,
    registers: u32,
    spilled_bytes: u32,
    static_shared: u32,
}

// SAFETY: any thread with the device's context current may use a function's handle.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    pub(super) fn new(module: Arc<Module>, raw: CUfunction, name: &str) -> Result<Self> {
        let mut made = Self {
            module,
            raw,
            name: name.to_owned(),
            threads_max: 0,
            registers: 0,
            spilled_bytes: 0,
            static_shared: 0,
        };
        made.threads_max = made.ask(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        made.registers = made.ask(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?;
        made.spilled_bytes = made.ask(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?;
        made.static_shared = made.ask(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        Ok(made)
    }

    fn ask(&self, which: Attribute) -> Result<u32> {
        let device = self.module.device();
        let _entered = device.enter()?;
        let mut value = 0;
        // SAFETY: writes one int; the function lives as long as its module.
        let code = unsafe { (device.api().cuFuncGetAttribute)(&mut value, which, self.raw) };
        device.check(code, "cuFuncGetAttribute", || format!("{}, {which:?}", self.name))?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Return its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Return the registers of a thread, as compiled for this device.
    #[must_use]
    pub fn registers(&self) -> u32 {
        self.registers
    }

    /// Return the bytes of a thread that were spilled to memory.
    #[must_use]
    pub fn spilled_bytes(&self) -> u32 {
        self.spilled_bytes
    }

    /// Allow its blocks `bytes` bytes of dynamic shared memory. Call it once at set-up, with the maximum of all launches.
    ///
    /// # Errors
    /// The device has less.
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        let device = self.module.device();
        let most = device.info().shared_bytes_max.saturating_sub(self.static_shared);
        if bytes > most {
            return Err(Error::Unsupported {
                what: format!("{} with {bytes} bytes of shared memory a block", self.name),
                needs: format!("{} has {most}", device.info().label()),
            });
        }
        if bytes <= SHARED_UNASKED.saturating_sub(self.static_shared) {
            return Ok(());
        }
        let _entered = device.enter()?;
        // SAFETY: sets one int of a function that lives.
        let code = unsafe {
            (device.api().cuFuncSetAttribute)(
                self.raw,
                Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                bytes as i32,
            )
        };
        device.check(code, "cuFuncSetAttribute", || format!("{}, {bytes} bytes of shared memory", self.name))
    }

    /// Return how many blocks of this shape run on one multiprocessor at a time.
    ///
    /// # Errors
    /// The device is lost.
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        let device = self.module.device();
        let _entered = device.enter()?;
        let mut blocks = 0;
        // SAFETY: writes one int.
        let code = unsafe {
            (device.api().cuOccupancyMaxActiveBlocksPerMultiprocessor)(
                &mut blocks,
                self.raw,
                threads as i32,
                shared_bytes as usize,
            )
        };
        device.check(code, "cuOccupancyMaxActiveBlocksPerMultiprocessor", || self.name.clone())?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Enqueue a launch. An empty grid enqueues nothing.
    ///
    /// # Errors
    /// The block is larger than the kernel was compiled for, the stream belongs to another device, or the device is lost. The
    /// cause may be an earlier kernel, if its failure was not reported before.
    ///
    /// # Safety
    /// The parameters must be those of the kernel. The memory behind them must stay valid, and nothing else may access the memory
    /// that the kernel writes, until it has ended.
    pub unsafe fn launch<P: KernelParams>(&self, stream: &Stream, shape: Shape, params: &P) -> Result<()> {
        const { assert!(size_of::<P>() > 0 && size_of::<P>() <= PARAMS_BYTES_MAX, "parameters do not fit") };
        let device = self.module.device();
        if stream.device().context() != device.context() {
            let why =
                format!("it is of {}, {} of {}", stream.device().info().label(), self.name, device.info().label());
            return Err(Error::invalid("stream", why));
        }
        if shape.threads() > self.threads_max {
            return Err(Error::invalid(
                "block",
                format!("{} threads, {} takes {} at most", shape.threads(), self.name, self.threads_max),
            ));
        }
        if shape.grid.contains(&0) {
            return Ok(());
        }
        let _entered = device.enter()?;
        let mut parameters: [*mut c_void; 1] = [std::ptr::from_ref(params).cast_mut().cast()];
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        // SAFETY: the kernel takes one struct, which is copied before the call returns; the caller guarantees its content.
        let code = unsafe {
            (device.api().cuLaunchKernel)(
                self.raw,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shape.shared_bytes,
                stream.handle(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        device.check(code, "cuLaunchKernel", || format!("{} {shape:?}, {}", self.name, stream.label()))
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Function({}, {} registers, {} bytes spilled)", self.name, self.registers, self.spilled_bytes)
    }
}
