//! Python object for a session.

use crate::{
    blocks,
    channel::Channel,
    dlpack::{Device, Memory, U8},
    error::{self, raise},
    lane::Lane,
    options::Given,
    relay,
};
use kvtide_client::{Client, Owner};
use kvtide_wire::status::Status;
use pyo3::{prelude::*, types::PyDict};
use std::path::PathBuf;

/// Attach to the daemon. Wait without the GIL.
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
    /// Return channel `index`, for calls of one thread.
    #[pyo3(signature = (index=0))]
    fn channel(&self, index: u16) -> PyResult<Channel> {
        let channel = self.client.channel(index).map_err(|e| error::from(&e))?;
        Ok(Channel::new(channel, index, self.timeout))
    }

    /// Return lane `index`, for steps of one thread.
    #[pyo3(signature = (index=0))]
    fn lane(&self, index: u16) -> PyResult<Lane> {
        let lane = self.client.lane(index).map_err(|e| error::from(&e))?;
        Ok(Lane::new(lane, index, &self.client, self.device))
    }

    /// Memory layout of the session's pages.
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
            nbytes: layout.bytes,
            page_tokens: layout.page_tokens,
            blocks_max: layout.blocks_max,
            planes: planes.collect(),
        }
    }

    /// Return the frames of the plane's size class as bytes [frames, stride]. Tensors made from it keep the session's memory alive.
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

    /// Return counts since the attach.
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
        set("sample_checked", s.sample_checked)?;
        set("sample_failed", s.sample_failed)?;
        Ok(dict)
    }

    /// Return a connection to the relay that the daemon names.
    fn relay(&self) -> PyResult<Option<relay::Relay>> {
        relay::open(&self.client)
    }

    /// Identity of the last engine of this name with another fingerprint, if only that fingerprint has blocks.
    #[getter]
    fn other_identity(&self) -> Option<&str> {
        self.client.other_identity()
    }

    /// True unless the connection to the daemon is known to be lost.
    #[getter]
    fn alive(&self) -> bool {
        self.client.alive()
    }

    /// Return the block ids of a sequence, in order.
    fn seq_blocks(&self, seq: u32) -> PyResult<Vec<u32>> {
        self.client.seq_blocks(seq).map_err(|e| error::from(&e))
    }

    /// Register the engine's own blocks. Hold a reference to `keep` until nothing accesses them.
    #[pyo3(signature = (count, pieces, *, keep=None))]
    fn set_blocks(
        &self,
        py: Python<'_>,
        count: u32,
        pieces: &Bound<'_, PyAny>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let pieces = blocks::pieces(pieces)?;
        let owner = keep.map(|keep| Box::new(keep) as Owner);
        // SAFETY: the documentation of `kvtide.Session.set_blocks` requires that `keep` owns the memory, or that the caller does.
        let set = py.detach(|| unsafe { self.client.set_blocks_of(count, &pieces, owner) });
        set.map_err(|e| error::from(&e))
    }

    /// Map block names to block ids, for pieces with several members.
    fn name_blocks(&self, py: Python<'_>, first: u32, ids: Vec<u32>) -> PyResult<()> {
        py.detach(|| self.client.name_blocks(first, &ids)).map_err(|e| error::from(&e))
    }

    /// Register blocks in memory that the session allocates. Return one tensor of bytes [count, page_bytes] per plane.
    fn allocate_blocks(&self, py: Python<'_>, count: u32) -> PyResult<Vec<Memory>> {
        let bytes: Vec<u32> = self.client.layout().planes.iter().map(|plane| plane.page_bytes).collect();
        let (shown, pieces, owner) = py.detach(|| blocks::allocate(bytes.into_iter(), count))?;
        // SAFETY: `owner` owns the memory.
        let set = py.detach(|| unsafe { self.client.set_blocks_of(count, &pieces, Some(owner)) });
        set.map_err(|e| error::from(&e))?;
        Ok(shown)
    }

    /// Create a new session around this one's tier 0, after its daemon has died.
    fn reattach(&self, py: Python<'_>, socket: PathBuf) -> PyResult<Session> {
        let client = py.detach(|| self.client.reattach(&socket)).map_err(|e| error::from(&e))?;
        Ok(Session { client, timeout: self.timeout, device: self.device })
    }

    /// End the session now. Memory stays until the last tensor on it is gone.
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

/// Memory layout of a session's pages.
#[pyclass(frozen, get_all, module = "kvtide")]
pub struct Layout {
    /// Address of tier 0's first byte.
    tier0: usize,
    /// Bytes of tier 0.
    nbytes: usize,
    /// Tokens per page.
    page_tokens: u32,
    /// Number of block ids; ids are below it.
    blocks_max: u32,
    /// Planes, in step order.
    planes: Vec<PlaneLayout>,
}

/// Layout of one plane: frame `f` is at byte `offset + (f - first_frame) × stride` of tier 0.
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
