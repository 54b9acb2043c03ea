//! Captured graphs for tests, on the stand-in or on a GPU.

use crate::install::driver_function;

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`, which PyTorch uses.
const GLOBAL: u32 = 0;

/// A graph that can be launched.
pub struct Graph {
    context: u64,
    executable: u64,
}

/// Call a function of the driver with the context current, and return its result.
fn within(context: u64, call: impl FnOnce() -> u32) -> u32 {
    // SAFETY: the driver's signatures; the driver checks the handle, and the pointer is to a local.
    unsafe {
        let push: unsafe extern "C" fn(u64) -> u32 = driver_function("cuCtxPushCurrent_v2");
        let pop: unsafe extern "C" fn(*mut u64) -> u32 = driver_function("cuCtxPopCurrent_v2");
        assert_eq!(push(context), 0);
        let code = call();
        assert_eq!(pop(&mut 0), 0);
        code
    }
}

impl Graph {
    /// Capture a stream of a context into a graph, in global mode, while `beside` runs on this thread. Return `None` if the capture is
    /// not valid at its end.
    ///
    /// # Panics
    /// The capture cannot begin, or the graph cannot be made executable.
    pub fn capture(context: u64, stream: u64, beside: impl FnOnce()) -> Option<Self> {
        // SAFETY: the driver's signatures.
        let (begin, end, instantiate, destroy) = unsafe {
            (
                driver_function::<unsafe extern "C" fn(u64, u32) -> u32>("cuStreamBeginCapture_v2"),
                driver_function::<unsafe extern "C" fn(u64, *mut u64) -> u32>("cuStreamEndCapture"),
                driver_function::<unsafe extern "C" fn(*mut u64, u64, u64) -> u32>("cuGraphInstantiateWithFlags"),
                driver_function::<unsafe extern "C" fn(u64) -> u32>("cuGraphDestroy"),
            )
        };
        // SAFETY: handles that the driver checks; each pointer is to a local.
        assert_eq!(within(context, || unsafe { begin(stream, GLOBAL) }), 0);
        beside();
        let (mut graph, mut executable) = (0, 0);
        // SAFETY: as above.
        if within(context, || unsafe { end(stream, &mut graph) }) != 0 {
            return None;
        }
        // SAFETY: as above.
        assert_eq!(within(context, || unsafe { instantiate(&mut executable, graph, 0) | destroy(graph) }), 0);
        Some(Self { context, executable })
    }

    /// Launch it on a stream.
    ///
    /// # Panics
    /// The driver refuses.
    pub fn launch(&self, stream: u64) {
        // SAFETY: the driver's signature; handles that the driver checks.
        let code = within(self.context, || unsafe {
            driver_function::<unsafe extern "C" fn(u64, u64) -> u32>("cuGraphLaunch")(self.executable, stream)
        });
        assert_eq!(code, 0, "the graph is launched");
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the driver's signature; made here, destroyed once.
        within(self.context, || unsafe {
            driver_function::<unsafe extern "C" fn(u64) -> u32>("cuGraphExecDestroy")(self.executable)
        });
    }
}

/// Capture a stream of a context while `beside` runs on this thread; return whether the capture is valid at its end.
///
/// # Panics
/// The capture cannot begin.
pub fn captured(context: u64, stream: u64, beside: impl FnOnce()) -> bool {
    Graph::capture(context, stream, beside).is_some()
}
