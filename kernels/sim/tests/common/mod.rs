//! The stand-in as an engine uses it: loaded by path, called by name. Every call that fails unexpectedly panics.
#![allow(dead_code)] // each test uses a part

use std::ffi::{CString, c_int, c_uint, c_void};
use std::time::{Duration, Instant};

/// `CUDA_ERROR_NOT_READY`.
pub const NOT_READY: u32 = 600;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`, `_INVALIDATED` and `CUDA_ERROR_CAPTURED_EVENT`.
pub const CAPTURE_UNSUPPORTED: u32 = 900;
pub const CAPTURE_INVALIDATED: u32 = 901;
pub const CAPTURED_EVENT: u32 = 907;
/// `CUstreamCaptureMode`.
pub const GLOBAL: u32 = 0;
pub const THREAD_LOCAL: u32 = 1;
pub const RELAXED: u32 = 2;
/// `CUDA_ERROR_LAUNCH_FAILED`.
pub const LAUNCH_FAILED: u32 = 719;
/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_ILLEGAL_ADDRESS`.
pub const ILLEGAL_ADDRESS: u32 = 700;
/// Longer than any kernel of these tests needs, on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

type Stream = usize;

/// The library, with a context current and one module that names the samples.
pub struct Cuda {
    library: *mut c_void,
    module: usize,
}

// SAFETY: handles of a driver, usable from any thread.
unsafe impl Sync for Cuda {}

/// Parameters of a sample: plain data.
///
/// # Safety
/// `repr(C)`, and as the kernel declares it.
pub unsafe trait Params {}

/// Parameters of the kernels in samples/planted.cu, as declared there.
#[repr(C)]
pub struct Sample {
    pub input: u64,
    pub out: u64,
    pub word: u64,
    pub n: u32,
    pub bug: u32,
}

// SAFETY: repr(C), and the same fields.
unsafe impl Params for Sample {}

macro_rules! call {
    ($cuda:expr, $name:ident($($argument:expr),* $(,)?) as fn($($kind:ty),* $(,)?)) => {{
        let address = $cuda.symbol(stringify!($name));
        // SAFETY: the signature of the driver's reference, and a symbol of the stand-in.
        let function: unsafe extern "C" fn($($kind),*) -> u32 = unsafe { std::mem::transmute(address) };
        // SAFETY: pointers are to locals of the right types.
        unsafe { function($($argument),*) }
    }};
}

impl Cuda {
    pub fn new(kernels: &[&str]) -> Self {
        Self::with_entries(
            &kernels.iter().map(|name| format!(".visible .entry {name}(\n)\n{{\n}}\n")).collect::<String>(),
        )
    }

    /// Load a module with these entries.
    pub fn with_entries(entries: &str) -> Self {
        kvtide_cuda_sim::install();
        let path = CString::new(std::env::var("KVTIDE_LIBCUDA").expect("installed")).expect("a path");
        // SAFETY: a library of kvtide; its constructors only register kernels.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "dlopen {path:?}");
        let mut cuda = Self { library, module: 0 };
        assert_eq!(call!(cuda, cuInit(0) as fn(c_uint)), 0);
        cuda.attach(0);
        let ptx = CString::new(format!(".version 8.4\n.target sm_80\n.address_size 64\n{entries}")).expect("no zero");
        let options = std::ptr::null_mut::<c_void>();
        let loaded = call!(
            cuda,
            cuModuleLoadDataEx(&mut cuda.module, ptx.as_ptr().cast(), 0, options, options)
                as fn(*mut usize, *const c_void, c_uint, *mut c_void, *mut c_void)
        );
        assert_eq!(loaded, 0);
        cuda
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let text = CString::new(name).expect("no zero");
        // SAFETY: an open library and a string.
        let address = unsafe { libc::dlsym(self.library, text.as_ptr()) };
        assert!(!address.is_null(), "the stand-in has no {name}");
        address
    }

    /// Make a device's context current for this thread.
    pub fn attach(&self, device: c_int) {
        let mut context = 0_usize;
        assert_eq!(call!(self, cuDevicePrimaryCtxRetain(&mut context, device) as fn(*mut usize, c_int)), 0);
        assert_eq!(call!(self, cuCtxPushCurrent_v2(context) as fn(usize)), 0);
    }

    /// Return to the context before.
    pub fn detach(&self) {
        assert_eq!(call!(self, cuCtxPopCurrent_v2(&mut 0) as fn(*mut usize)), 0);
    }

    pub fn release(&self, device: c_int) -> u32 {
        call!(self, cuDevicePrimaryCtxRelease_v2(device) as fn(c_int))
    }

    pub fn destroy_stream(&self, stream: Stream) -> u32 {
        call!(self, cuStreamDestroy_v2(stream) as fn(usize))
    }

    pub fn destroy_event(&self, event: usize) -> u32 {
        call!(self, cuEventDestroy_v2(event) as fn(usize))
    }

    pub fn stream(&self) -> Stream {
        let mut stream = 0;
        assert_eq!(call!(self, cuStreamCreateWithPriority(&mut stream, 1, 0) as fn(*mut usize, c_uint, c_int)), 0);
        stream
    }

    /// Allocate device memory.
    pub fn allocate(&self, bytes: usize) -> u64 {
        let mut address = 0;
        assert_eq!(call!(self, cuMemAlloc_v2(&mut address, bytes) as fn(*mut u64, usize)), 0);
        address
    }

    pub fn try_free(&self, address: u64) -> u32 {
        call!(self, cuMemFree_v2(address) as fn(u64))
    }

    pub fn free(&self, address: u64) {
        assert_eq!(self.try_free(address), 0);
    }

    /// Unload the module.
    pub fn unload(&self) -> u32 {
        call!(self, cuModuleUnload(self.module) as fn(usize))
    }

    /// Make a stream wait until the word has reached a value.
    pub fn wait_word(&self, stream: Stream, at: u64, value: u64) -> u32 {
        call!(self, cuStreamWaitValue64_v2(stream, at, value, 0) as fn(usize, u64, u64, c_uint))
    }

    /// Make a stream write a word.
    pub fn write_word(&self, stream: Stream, at: u64, value: u64) -> u32 {
        call!(self, cuStreamWriteValue64_v2(stream, at, value, 0) as fn(usize, u64, u64, c_uint))
    }

    /// Register host memory with the device.
    pub fn register<T>(&self, memory: &mut [T]) -> u64 {
        let bytes = size_of_val(memory);
        let at = memory.as_mut_ptr().cast::<c_void>();
        assert_eq!(call!(self, cuMemHostRegister_v2(at, bytes, 3) as fn(*mut c_void, usize, c_uint)), 0);
        at.expose_provenance() as u64
    }

    pub fn try_unregister<T>(&self, memory: &mut [T]) -> u32 {
        let at = memory.as_mut_ptr().cast::<c_void>();
        call!(self, cuMemHostUnregister(at) as fn(*mut c_void))
    }

    pub fn unregister<T>(&self, memory: &mut [T]) {
        assert_eq!(self.try_unregister(memory), 0);
    }

    pub fn copy(&self, to: u64, from: u64, bytes: usize, stream: Stream) -> u32 {
        call!(self, cuMemcpyAsync(to, from, bytes, stream) as fn(u64, u64, usize, usize))
    }

    /// Copy each (to, from, bytes) in one call, in no order.
    pub fn batch(&self, copies: &[(u64, u64, usize)], stream: Stream) -> u32 {
        let (to, from): (Vec<u64>, Vec<u64>) = copies.iter().map(|&(to, from, _)| (to, from)).unzip();
        let bytes: Vec<usize> = copies.iter().map(|&(_, _, bytes)| bytes).collect();
        // Sources in stream order; no locations, no flags.
        let (attributes, first) = ([1_u32, 0, 0, 0, 0, 0], 0_usize);
        let mut failed = 0_usize;
        call!(
            self,
            cuMemcpyBatchAsync(
                to.as_ptr(),
                from.as_ptr(),
                bytes.as_ptr(),
                copies.len(),
                attributes.as_ptr().cast(),
                &first,
                1,
                &mut failed,
                stream
            )
                as fn(
                    *const u64,
                    *const u64,
                    *const usize,
                    usize,
                    *const c_void,
                    *const usize,
                    usize,
                    *mut usize,
                    usize,
                )
        )
    }

    pub fn event(&self) -> usize {
        let mut event = 0;
        assert_eq!(call!(self, cuEventCreate(&mut event, 2) as fn(*mut usize, c_uint)), 0);
        event
    }

    pub fn try_record(&self, event: usize, stream: Stream) -> u32 {
        call!(self, cuEventRecord(event, stream) as fn(usize, usize))
    }

    pub fn record(&self, event: usize, stream: Stream) {
        assert_eq!(self.try_record(event, stream), 0);
    }

    pub fn wait_event(&self, stream: Stream, event: usize) {
        assert_eq!(call!(self, cuStreamWaitEvent(stream, event, 0) as fn(usize, usize, c_uint)), 0);
    }

    pub fn launch<P: Params>(&self, name: &str, grid: u32, block: u32, shared: u32, params: &P, stream: Stream) {
        let launched = self.try_launch(self.function(name), [grid, 1, 1], [block, 1, 1], shared, params, stream);
        assert_eq!(launched, 0, "{name}");
    }

    pub fn function(&self, name: &str) -> usize {
        let (mut function, text) = (0_usize, CString::new(name).expect("no zero"));
        let got = call!(
            self,
            cuModuleGetFunction(&mut function, self.module, text.as_ptr().cast())
                as fn(*mut usize, usize, *const c_void)
        );
        assert_eq!(got, 0, "{name}");
        function
    }

    /// Allow a kernel dynamic shared memory.
    pub fn allow_shared(&self, function: usize, bytes: c_int) -> u32 {
        call!(self, cuFuncSetAttribute(function, 8, bytes) as fn(usize, c_uint, c_int))
    }

    pub fn try_launch<P: Params>(
        &self,
        function: usize,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        params: &P,
        stream: Stream,
    ) -> u32 {
        let list = [std::ptr::from_ref(params).cast::<c_void>()];
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        call!(
            self,
            cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, list.as_ptr(), std::ptr::null())
                as fn(
                    usize,
                    c_uint,
                    c_uint,
                    c_uint,
                    c_uint,
                    c_uint,
                    c_uint,
                    c_uint,
                    usize,
                    *const *const c_void,
                    *const c_void,
                )
        )
    }

    pub fn begin_capture(&self, stream: Stream, mode: u32) -> u32 {
        call!(self, cuStreamBeginCapture_v2(stream, mode) as fn(usize, c_uint))
    }

    pub fn end_capture(&self, stream: Stream) -> u32 {
        call!(self, cuStreamEndCapture(stream, &mut 0) as fn(usize, *mut usize))
    }

    /// Set this thread's capture mode; return the previous one.
    pub fn exchange_mode(&self, mut mode: u32) -> u32 {
        assert_eq!(call!(self, cuThreadExchangeStreamCaptureMode(&mut mode) as fn(*mut c_uint)), 0);
        mode
    }

    pub fn query(&self, event: usize) -> u32 {
        call!(self, cuEventQuery(event) as fn(usize))
    }

    pub fn state(&self, stream: Stream) -> u32 {
        call!(self, cuStreamQuery(stream) as fn(usize))
    }

    /// Return the result of a stream: 0, or its fault.
    pub fn finish(&self, stream: Stream) -> u32 {
        let until = Instant::now() + PATIENCE;
        loop {
            let state = self.state(stream);
            if state != NOT_READY {
                return state;
            }
            assert!(Instant::now() < until, "a stream did not end within {PATIENCE:?}");
            std::thread::yield_now();
        }
    }

    /// Copy words to device memory on a separate stream.
    pub fn put<T: Copy>(&self, to: u64, words: &[T]) {
        let mut staged = words.to_vec();
        let (from, stream) = (self.register(&mut staged), self.stream());
        assert_eq!(self.copy(to, from, size_of_val(words), stream), 0);
        assert_eq!(self.finish(stream), 0);
        self.unregister(&mut staged);
    }

    pub fn get<T: Copy + Default>(&self, from: u64, count: usize) -> Vec<T> {
        let mut staged = vec![T::default(); count];
        let (to, stream) = (self.register(&mut staged), self.stream());
        assert_eq!(self.copy(to, from, size_of_val(&staged[..]), stream), 0);
        assert_eq!(self.finish(stream), 0);
        self.unregister(&mut staged);
        staged
    }
}
