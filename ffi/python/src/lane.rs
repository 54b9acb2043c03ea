//! Python object for a lane: one ordered stream of steps.

use crate::{
    cuda,
    dlpack::{Device, I32, Memory},
    error::{self, raise, value},
};
use kvtide_client::{Client, Lane as Native, Layout, Pass as Found, StepSeq, cuda::BatchOptions};
use kvtide_wire::status::Status;
use pyo3::{prelude::*, types::PyTuple};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// A lane, owned jointly by its handle and the tensors on its table. It is released when the last of them is gone, so a tensor
/// never shows a table that another owner changes, or freed memory.
pub struct Held {
    lane: Mutex<Native>,
    index: u16,
}

impl Held {
    /// Lock the lane for a call.
    ///
    /// # Errors
    /// `WrongState` if another thread is in a call.
    pub fn lock(&self) -> PyResult<MutexGuard<'_, Native>> {
        match self.lane.try_lock() {
            Ok(lane) => Ok(lane),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let text = format!("lane {} is in a call of another thread; use one lane per thread", self.index);
                Err(raise(Status::State, &text))
            }
        }
    }
}

/// One ordered stream of engine work: `kvtide.Lane`.
#[pyclass(frozen, module = "kvtide")]
pub struct Lane {
    held: Mutex<Option<Arc<Held>>>,
    index: u16,
    blocks_max: u32,
    planes: usize,
    device: Device,
    client: Client,
}

/// Result of a boundary: `kvtide.Pass`.
#[pyclass(frozen, get_all, eq, module = "kvtide")]
#[derive(Clone, PartialEq, Eq)]
pub struct Pass {
    /// Every page that the plane needs is readable, and no earlier pass returned any of them.
    whole: bool,
    /// This pass completes the plane.
    last: bool,
    /// Number of pages in the lane's `ready`; 0 if `whole`.
    count: usize,
}

#[pymethods]
impl Pass {
    fn __repr__(&self) -> String {
        format!("Pass(whole={}, last={}, count={})", py_bool(self.whole), py_bool(self.last), self.count)
    }
}

fn py_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

impl Lane {
    /// Wrap a lane of `client`.
    pub fn new(lane: Native, index: u16, client: &Client, device: Device) -> Lane {
        let layout = client.layout();
        let held = Arc::new(Held { lane: Mutex::new(lane), index });
        let (blocks_max, planes) = (layout.blocks_max, layout.planes.len());
        Lane { held: Mutex::new(Some(held)), index, blocks_max, planes, device, client: client.clone() }
    }

    /// Return the lane for joint ownership.
    ///
    /// # Errors
    /// `WrongState` if the handle is closed.
    pub fn held(&self) -> PyResult<Arc<Held>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.clone().ok_or_else(|| raise(Status::State, &format!("lane {} is closed", self.index)))
    }

    /// Return the layout of the session's pages.
    pub fn layout(&self) -> &Layout {
        self.client.layout()
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl Send + FnOnce(&mut Native) -> kvtide_client::Result<T>,
    ) -> PyResult<T> {
        let held = self.held()?;
        let mut lane = held.lock()?;
        let lane = &mut *lane;
        py.detach(|| call(lane)).map_err(|e| error::from(&e))
    }
}

#[pymethods]
impl Lane {
    /// Index of the lane in the session.
    #[getter]
    fn index(&self) -> u16 {
        self.index
    }

    /// Begin a step over `(sequence, tokens that attention covers)`.
    fn begin(&self, py: Python<'_>, seqs: Vec<(u32, u64)>) -> PyResult<()> {
        let seqs: Vec<StepSeq> = seqs.into_iter().map(|(seq, tokens)| StepSeq { seq, tokens }).collect();
        self.call(py, |lane| lane.begin(&seqs))
    }

    /// Run a boundary before the pages of `plane` are read. Wait only if no missing page became readable.
    fn boundary(&self, py: Python<'_>, plane: u16) -> PyResult<Pass> {
        Ok(match self.call(py, |lane| lane.boundary(plane))? {
            Found::All => Pass { whole: true, last: true, count: 0 },
            Found::Part { count, last } => Pass { whole: false, last, count },
        })
    }

    /// Run a boundary without waiting: the lane's stream waits until every page of the plane is readable. Requires a GPU and a step
    /// that fits into tier 0; otherwise raise `WrongState`, and `boundary` must be used.
    fn boundary_async(&self, py: Python<'_>, plane: u16) -> PyResult<()> {
        self.call(py, |lane| lane.boundary_async(plane))
    }

    /// Open the gates of the step that `begin` began, in place of boundaries: from now on each gate in the lane's stream waits for
    /// its plane. Then launch the graph that contains the gates, and call `end`. Raise `WrongState` where `boundary_async` does, and
    /// after a boundary.
    fn open_gates(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |lane| lane.open_gates())
    }

    /// Enqueue the gate of `plane` on the lane's stream, before the kernels that read the plane's pages. It may be captured into a
    /// CUDA graph: capture on the lane's stream (`torch.cuda.graph(graph, stream=...)`). Gates come in ascending order of planes.
    /// Outside of a gated step they return at once.
    fn gate(&self, py: Python<'_>, plane: u16) -> PyResult<()> {
        self.call(py, |lane| lane.gate(plane))
    }

    /// Raise the error of a boundary that failed while the stream waited for it; later kernels' output is then invalid. Call it
    /// after the stream has passed the step's last kernel.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |lane| lane.check())
    }

    /// Return the address of the device word that is not 0 after a boundary of the step failed in the stream; `None` without a
    /// device.
    fn status_word(&self) -> PyResult<Option<u64>> {
        Ok(self.held()?.lock()?.device().map(|device| device.status))
    }

    /// Create a batch: block ids, lengths and block tables of this lane's steps on tier 0's device, for `seqs` sequences of at most
    /// `max_blocks` blocks, and tables of `table_planes` planes at once. The lane must be bound to a stream.
    #[pyo3(signature = (seqs, max_blocks, table_planes=1))]
    fn batch(&self, py: Python<'_>, seqs: u32, max_blocks: u32, table_planes: u32) -> PyResult<cuda::Batch> {
        let options = BatchOptions { seqs, max_blocks, table_planes };
        let (client, device) = (&self.client, self.device);
        self.call(py, |lane| cuda::Batch::new(client, lane, options, device))
    }

    /// Return the pages that the last boundary made ready: `(position in the step, block index, frame)`.
    fn ready(&self) -> PyResult<Vec<(u32, u32, u32)>> {
        let held = self.held()?;
        let lane = held.lock()?;
        Ok(lane.ready().iter().map(|ready| (ready.position, ready.index, ready.frame)).collect())
    }

    /// Return the same as a copied int32 tensor of shape [count, 3].
    fn ready_memory(&self) -> PyResult<Memory> {
        let held = self.held()?;
        let lane = held.lock()?;
        let entries = lane.ready().iter().flat_map(|r| [r.position as i32, r.index as i32, r.frame as i32]);
        let entries: Box<[i32]> = entries.collect();
        let shape = vec![entries.len() as i64 / 3, 3];
        Ok(Memory::owned(entries, shape))
    }

    /// End the step, complete or not.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, Native::end)
    }

    /// Return the frame of the page of `block` in `plane` as of the last boundary, or None.
    fn pte(&self, block: u32, plane: u16) -> PyResult<Option<u32>> {
        Ok(self.held()?.lock()?.pte(block, plane))
    }

    /// Return a copy of a page of a sequence in this lane's step, or None if it is not readable now.
    fn page<'py>(
        &self,
        py: Python<'py>,
        seq: u32,
        index: u32,
        plane: u16,
    ) -> PyResult<Option<Bound<'py, pyo3::types::PyBytes>>> {
        let held = self.held()?;
        let lane = held.lock()?;
        Ok(lane.page(seq, index, plane).map(|page| pyo3::types::PyBytes::new(py, page)))
    }

    /// Write `data` into an unsealed page of a sequence in this lane's step, starting at byte `offset`.
    #[pyo3(signature = (seq, index, plane, data, offset=0))]
    fn write_page(&self, seq: u32, index: u32, plane: u16, data: &[u8], offset: usize) -> PyResult<()> {
        let held = self.held()?;
        let mut lane = held.lock()?;
        let Some(page) = lane.page_mut(seq, index, plane) else {
            let text = format!(
                "write page {index} of sequence {seq} in plane {plane}: it is sealed, not reserved, not in lane {}'s step, or \
                 tier 0 is on a device",
                self.index
            );
            return Err(raise(Status::State, &text));
        };
        let (len, room) = (data.len(), page.len());
        let end = offset.checked_add(len).filter(|end| *end <= room);
        let Some(end) = end else {
            return Err(value(format!("{len} bytes from byte {offset} do not fit into a page of {room}")));
        };
        page[offset..end].copy_from_slice(data);
        Ok(())
    }

    /// Return this lane's table as an int32 tensor [blocks_max, planes]: 0 is absent, else frame + 1. Do not write to it. It is
    /// valid between `begin` and `end`. The lane is released when it and all such tensors are gone.
    fn table(&self) -> PyResult<Memory> {
        let held = self.held()?;
        let at = held.lock()?.table().as_ptr().cast_mut();
        let shape = vec![i64::from(self.blocks_max), self.planes as i64];
        Ok(Memory::new(at.cast(), Device::CPU, I32, shape, Box::new(held)))
    }

    /// Return the table on tier 0's device, as this lane's stream sees it; `None` without a device.
    fn device_table(&self) -> PyResult<Option<Memory>> {
        let held = self.held()?;
        let Some(device) = held.lock()?.device() else { return Ok(None) };
        let at = std::ptr::with_exposed_provenance_mut(device.table as usize);
        let shape = vec![i64::from(self.blocks_max), self.planes as i64];
        Ok(Some(Memory::new(at, self.device, I32, shape, Box::new(held))))
    }

    /// Bind the lane to a stream of tier 0's device (`torch.cuda.Stream.cuda_stream`; 0 is the legacy default stream, as in torch).
    /// The contents of the lane's tables are ordered with that stream. Call it between steps, before `begin`.
    fn bind(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        // SAFETY: torch keeps its streams until the process ends; callers with other streams must do the same.
        self.call(py, |lane| unsafe { lane.bind(cuda::named(stream)) })
    }

    /// End the lane's step and release the lane. Closing twice has no effect.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(held) = held {
            let mut lane = held.lock()?;
            let lane = &mut *lane;
            py.detach(|| drop(lane.end())); // an error means that no step is open
        }
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}
