//! A session as a Python object.

use crate::{
    blocks,
    channel::Channel,
    dlpack::{Device, Memory, U8},
    error::{self, raise},
    lane::Lane,
    options::Given,
};
use kvtide_client::{Client, Owner};
use kvtide_wire::status::Status;
use pyo3::{prelude::*, types::PyDict};
use std::path::PathBuf;

/// Attaches to the daemon. Waits without the interpreter's lock.
#[pyfunction]
pub fn attach(py: Python<'_>, given: Given) -> PyResult<Session> {
    let options = given.options()?;
    let (timeout, choice) = (options.timeout.as_secs_f64(), options.device);
    let client = py.detach(|| Client::attach(options)).map_err(|e| error::from(&e))?;
    let device = Device::of(&choice)?;
    Ok(Session { client, timeout, device })
}

/// A session with the daemon: `kvtide.Session`.
#[pyclass(frozen, module = "kvtide")]
pub struct Session {
    client: Client,
    timeout: f64,
    device: Device,
}

#[pymethods]
impl Session {
    /// Channel `index`, for this thread's calls.
    #[pyo3(signature = (index=0))]
    fn channel(&self, index: u16) -> PyResult<Channel> {
        let channel = self.client.channel(index).map_err(|e| error::from(&e))?;
        Ok(Channel::new(channel, index, self.timeout))
    }

    /// Lane `index`, for this thread's steps.
    #[pyo3(signature = (index=0))]
    fn lane(&self, index: u16) -> PyResult<Lane> {
        let lane = self.client.lane(index).map_err(|e| error::from(&e))?;
        Ok(Lane::new(lane, index, &self.client, self.device))
    }

    /// Where frames are in memory.
    #[getter]
    fn layout(&self) -> Layout {
        let layout = self.client.layout();
        let planes = layout.planes.iter().map(|plane| PlaneLayout {
            size_class: plane.class,
            page_bytes: plane.page_bytes,
            stride: plane.stride,
            first_frame: plane.first_frame,
            frames: plane.frames,
            offset: plane.offset,
        });
        Layout {
            tier0: layout.tier0.addr(),
            bytes: layout.bytes,
            page_tokens: layout.page_tokens,
            blocks_max: layout.blocks_max,
            planes: planes.collect(),
        }
    }

    /// The frames of the plane's size class, as bytes [frames, stride]. Tensors made of it keep the session's memory alive.
    fn frames(&self, plane: usize) -> PyResult<Memory> {
        let layout = self.client.layout();
        let Some(at) = layout.planes.get(plane) else {
            let text = format!("frames of plane {plane}: the space has {} planes", layout.planes.len());
            return Err(raise(Status::Range, &text));
        };
        let start = layout.tier0.wrapping_add(at.offset as usize);
        let shape = vec![i64::from(at.frames), i64::from(at.stride)];
        Ok(Memory::new(start.cast(), self.device, U8, shape, Box::new(self.client.clone())))
    }

    /// Totals since the attach.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let s = self.client.stats();
        let dict = PyDict::new(py);
        let set = |name: &str, count: u64| dict.set_item(name, count);
        set("steps", s.steps)?;
        set("steps_resident", s.steps_resident)?;
        set("messages_before_steps", s.messages_before_steps)?;
        set("pages_resident", s.pages_resident)?;
        set("pages_missed", s.pages_missed)?;
        set("faults", s.faults)?;
        set("stalls", s.stalls)?;
        set("stall_ns", s.stall_ns)?;
        set("jobs_host_to_tier0", s.jobs_host_to_tier0)?;
        set("bytes_host_to_tier0", s.bytes_host_to_tier0)?;
        set("jobs_tier0_to_host", s.jobs_tier0_to_host)?;
        set("bytes_tier0_to_host", s.bytes_tier0_to_host)?;
        set("jobs_within_tier0", s.jobs_within_tier0)?;
        set("bytes_within_tier0", s.bytes_within_tier0)?;
        set("jobs_table", s.jobs_table)?;
        set("jobs_busy", s.jobs_busy)?;
        set("jobs_canceled", s.jobs_canceled)?;
        set("jobs_invalid", s.jobs_invalid)?;
        set("jobs_failed", s.jobs_failed)?;
        set("requests", s.requests)?;
        set("completions_stray", s.completions_stray)?;
        set("canary_checked", s.canary_checked)?;
        set("canary_failed", s.canary_failed)?;
        Ok(dict)
    }

    /// Whether the daemon is there, as far as is known.
    #[getter]
    fn alive(&self) -> bool {
        self.client.alive()
    }

    /// The block ids of a sequence, in order.
    fn seq_blocks(&self, seq: u32) -> PyResult<Vec<u32>> {
        self.client.seq_blocks(seq).map_err(|e| error::from(&e))
    }

    /// Says where the engine's own blocks are, and keeps `keep` until they are touched no more.
    #[pyo3(signature = (count, pieces, *, keep=None))]
    fn set_blocks(
        &self,
        py: Python<'_>,
        count: u32,
        pieces: Vec<blocks::Given>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let pieces = blocks::pieces(&pieces);
        let owner = keep.map(|keep| Box::new(keep) as Owner);
        // SAFETY: `kvtide.Session.set_blocks` says that `keep` owns the memory, or that the caller does.
        let set = py.detach(|| unsafe { self.client.set_blocks_of(count, &pieces, owner) });
        set.map_err(|e| error::from(&e))
    }

    /// Says what blocks' names stand for, where the pieces have several members.
    fn name_blocks(&self, py: Python<'_>, first: u32, ids: Vec<u32>) -> PyResult<()> {
        py.detach(|| self.client.name_blocks(first, &ids)).map_err(|e| error::from(&e))
    }

    /// Blocks in memory of the session's own: one tensor of bytes [count, page_bytes] a plane.
    fn allocate_blocks(&self, py: Python<'_>, count: u32) -> PyResult<Vec<Memory>> {
        let bytes: Vec<u32> = self.client.layout().planes.iter().map(|plane| plane.page_bytes).collect();
        let (shown, pieces, owner) = py.detach(|| blocks::allocate(bytes.into_iter(), count))?;
        // SAFETY: the owner is the memory's.
        let set = py.detach(|| unsafe { self.client.set_blocks_of(count, &pieces, Some(owner)) });
        set.map_err(|e| error::from(&e))?;
        Ok(shown)
    }

    /// A new session around this one's tier 0, after its daemon has died.
    fn reattach(&self, py: Python<'_>, socket: PathBuf) -> PyResult<Session> {
        let client = py.detach(|| self.client.reattach(&socket)).map_err(|e| error::from(&e))?;
        Ok(Session { client, timeout: self.timeout, device: self.device })
    }

    /// Ends the session now. Memory that tensors show stays until the last of them is gone.
    fn detach(&self, py: Python<'_>) {
        py.detach(|| self.client.detach());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, pyo3::types::PyTuple>) {
        self.detach(py);
    }
}

/// Where a session's pages are in memory.
#[pyclass(frozen, get_all, module = "kvtide")]
pub struct Layout {
    /// Address of tier 0's first byte.
    tier0: usize,
    /// Bytes of tier 0.
    bytes: usize,
    /// Tokens of a page.
    page_tokens: u32,
    /// Block ids are below this.
    blocks_max: u32,
    /// The planes, in step order.
    planes: Vec<PlaneLayout>,
}

/// One plane: frame `f` is at byte `offset + (f - first_frame) × stride` of tier 0.
#[pyclass(frozen, get_all, module = "kvtide")]
#[derive(Clone)]
pub struct PlaneLayout {
    /// Size class.
    size_class: u32,
    /// Bytes of a page.
    page_bytes: u32,
    /// Bytes from one frame to the next.
    stride: u32,
    /// First frame of the class.
    first_frame: u32,
    /// Frames of the class.
    frames: u32,
    /// Byte offset of the class in tier 0.
    offset: u64,
}
