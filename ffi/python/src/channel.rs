//! Python object for a channel: the calls of one engine thread.

use crate::{
    blocks::{self, Completion, CopyResult, Lease, Level, LookupResult},
    error::{self, raise, value},
    options::seconds,
};
use kvtide_client::{Channel as Native, Contract, PageRange, Request, Result, Ticket};
use kvtide_wire::{entry::Advice, status::Status, trace::TraceContext};
use pyo3::{prelude::*, types::PyTuple};
use std::{
    os::fd::AsRawFd,
    sync::{Mutex, MutexGuard, TryLockError},
    time::Duration,
};

/// The calls of one engine thread: `kvtide.Channel`.
#[pyclass(frozen, module = "kvtide")]
pub struct Channel {
    native: Mutex<Option<Native>>,
    index: u16,
    timeout: f64,
    traces: bool,
}

/// Pinned pages: `kvtide.Pin`.
#[pyclass(frozen, module = "kvtide")]
pub struct Pin {
    raw: u64,
}

/// Return the advice with this name and value.
fn advice(name: &str, argument: u32) -> PyResult<Advice> {
    match name {
        "willneed" => Ok(Advice::WillNeed),
        "dontneed" => Ok(Advice::DontNeed),
        "sequential" => Ok(Advice::Sequential),
        "cold" => Ok(Advice::Cold),
        "priority" => u8::try_from(argument)
            .map(Advice::Priority)
            .map_err(|_| value(format!("the priority is {argument}, expected 0 to 255"))),
        "remaining" => Ok(Advice::Remaining(argument)),
        name => Err(value(format!(
            "advice {name:?} is unknown; use \"willneed\", \"dontneed\", \"sequential\", \"cold\", \"priority\" or \"remaining\""
        ))),
    }
}

impl Channel {
    /// Wrap a channel. `timeout` (seconds) is the default timeout of its calls.
    pub fn new(native: Native, index: u16, timeout: f64) -> Channel {
        let traces = native.traces();
        Channel { native: Mutex::new(Some(native)), index, timeout, traces }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Option<Native>>> {
        match self.native.try_lock() {
            Ok(native) => Ok(native),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let text = format!("channel {} is in a call of another thread; use one channel per thread", self.index);
                Err(raise(Status::State, &text))
            }
        }
    }

    /// Run a call of the channel without the GIL.
    fn call<T: Send>(&self, py: Python<'_>, call: impl Send + FnOnce(&mut Native) -> Result<T>) -> PyResult<T> {
        let mut native = self.lock()?;
        let Some(native) = native.as_mut() else {
            return Err(raise(Status::State, &format!("channel {} is closed: open it again", self.index)));
        };
        py.detach(|| call(native)).map_err(|e| error::from(&e))
    }

    /// Submit a request without waiting for its completion.
    fn start(&self, py: Python<'_>, request: Request<'_>, timeout: Option<f64>, user: u64) -> PyResult<u64> {
        let timeout = self.timeout(timeout)?;
        Ok(self.call(py, |channel| channel.submit(request, timeout, user))?.into_raw())
    }

    /// Drop the sequence of a lease. If the session has ended, the lease has ended with it.
    pub fn drop_lease(&self, py: Python<'_>, seq: u32) -> PyResult<()> {
        let dropped = |channel: &mut Native| match channel.end_lease(seq) {
            Err(error) if error.status() == Status::Daemon => Ok(()),
            dropped => dropped,
        };
        self.call(py, dropped)
    }

    fn timeout(&self, timeout: Option<f64>) -> PyResult<Duration> {
        seconds("timeout", timeout.unwrap_or(self.timeout))
    }
}

#[pymethods]
impl Channel {
    /// Index of the channel in the session.
    #[getter]
    fn index(&self) -> u16 {
        self.index
    }

    /// True if the daemon makes spans of traced requests.
    #[getter]
    fn traces(&self) -> bool {
        self.traces
    }

    /// Set the trace of the calls from now on; None: no trace. Return whether they are traced: the daemon makes spans, and the
    /// caller's span is sampled.
    fn trace(&self, py: Python<'_>, traceparent: Option<&str>) -> PyResult<bool> {
        let read = traceparent.map_or(Ok(None), TraceContext::from_traceparent);
        let context = read.ok().flatten();
        self.call(py, |channel| channel.trace(context))?;
        read.map(|context| self.traces && context.is_some()).map_err(|error| value(error.to_string()))
    }

    /// Make a round trip to the daemon without effect.
    #[pyo3(signature = (*, timeout=None))]
    fn nop(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let timeout = self.timeout(timeout)?;
        self.call(py, |channel| channel.nop(timeout))
    }

    /// Create an empty sequence.
    fn create_seq(&self, py: Python<'_>) -> PyResult<u32> {
        self.call(py, Native::create_seq)
    }

    /// Drop a sequence and its pins.
    fn drop_seq(&self, py: Python<'_>, seq: u32) -> PyResult<()> {
        self.call(py, |channel| channel.drop_seq(seq))
    }

    /// Reserve space for positions below `tokens`.
    #[pyo3(signature = (seq, tokens, *, timeout=None))]
    fn reserve(&self, py: Python<'_>, seq: u32, tokens: u64, timeout: Option<f64>) -> PyResult<()> {
        let timeout = self.timeout(timeout)?;
        self.call(py, |channel| channel.reserve(seq, tokens, timeout))
    }

    /// Declare tokens below `tokens` final.
    fn commit(&self, py: Python<'_>, seq: u32, tokens: u64) -> PyResult<()> {
        self.call(py, |channel| channel.commit(seq, tokens))
    }

    /// Create a child sequence that shares the sealed blocks and has copies of the unsealed ones.
    #[pyo3(signature = (seq, *, timeout=None))]
    fn fork(&self, py: Python<'_>, seq: u32, timeout: Option<f64>) -> PyResult<u32> {
        let timeout = self.timeout(timeout)?;
        self.call(py, |channel| channel.fork(seq, timeout))
    }

    /// Truncate the sequence to `tokens`.
    #[pyo3(signature = (seq, tokens, *, timeout=None))]
    fn truncate(&self, py: Python<'_>, seq: u32, tokens: u64, timeout: Option<f64>) -> PyResult<()> {
        let timeout = self.timeout(timeout)?;
        self.call(py, |channel| channel.truncate(seq, tokens, timeout))
    }

    /// Publish sealed blocks from block index `first` under their content hashes. Return the level reached.
    #[pyo3(signature = (seq, first, parent, hashes, *, level=Level::DEFAULT, timeout=None))]
    #[allow(clippy::too_many_arguments)] // Python passes them by keyword
    fn publish(
        &self,
        py: Python<'_>,
        seq: u32,
        first: u32,
        parent: Option<&[u8]>,
        hashes: &Bound<'_, PyAny>,
        level: Level,
        timeout: Option<f64>,
    ) -> PyResult<Level> {
        let (first, parent) = blocks::place(first, parent)?;
        let (hashes, timeout) = (blocks::hashes(hashes)?, self.timeout(timeout)?);
        let reached = self.call(py, |channel| channel.publish(seq, first, parent, &hashes, level.0, timeout))?;
        Ok(Level(reached))
    }

    /// Attach the longest cached prefix of `hashes` to an empty sequence. Return its number of blocks.
    /// `looked_up`: a lookup has found it, so statistics do not count it a second time.
    #[pyo3(signature = (seq, hashes, *, looked_up=false, timeout=None))]
    fn attach_prefix(
        &self,
        py: Python<'_>,
        seq: u32,
        hashes: &Bound<'_, PyAny>,
        looked_up: bool,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let (hashes, timeout) = (blocks::hashes(hashes)?, self.timeout(timeout)?);
        let attach = if looked_up { Native::attach_looked_up } else { Native::attach_prefix };
        self.call(py, |channel| attach(channel, seq, &hashes, timeout))
    }

    /// Set the reading contract of a sequence: "exact" or "approx:SHARE". It takes effect with the next step.
    #[pyo3(signature = (seq, contract, *, timeout=None))]
    fn set_contract(&self, py: Python<'_>, seq: u32, contract: &str, timeout: Option<f64>) -> PyResult<()> {
        let (contract, timeout) = (contract.parse::<Contract>().map_err(value)?, self.timeout(timeout)?);
        self.call(py, |channel| channel.contract(seq, contract, timeout))
    }

    /// Allow an idle sequence to leave tier 0. `due`: expected seconds until it is used again, 0 if unknown.
    #[pyo3(signature = (seq, due=0.0))]
    fn park(&self, py: Python<'_>, seq: u32, due: f64) -> PyResult<()> {
        let due = seconds("due", due)?;
        self.call(py, |channel| channel.park(seq, due))
    }

    /// Bring a parked sequence back.
    #[pyo3(signature = (seq, *, timeout=None))]
    fn resume(&self, py: Python<'_>, seq: u32, timeout: Option<f64>) -> PyResult<()> {
        let timeout = self.timeout(timeout)?;
        self.call(py, |channel| channel.resume(seq, timeout))
    }

    /// Announce how blocks `first .. first + count` will be used.
    #[pyo3(signature = (seq, first, count, advice, value=0))]
    fn advise(&self, py: Python<'_>, seq: u32, first: u32, count: u32, advice: &str, value: u32) -> PyResult<()> {
        let advice = self::advice(advice, value)?;
        self.call(py, |channel| channel.advise(seq, first, count, advice))
    }

    /// Pin blocks `first .. first + count` of `planes` planes, starting at `plane`, in tier 0.
    #[pyo3(signature = (seq, first, count, plane, planes=1, *, timeout=None))]
    #[allow(clippy::too_many_arguments)] // Python passes them by keyword
    fn acquire(
        &self,
        py: Python<'_>,
        seq: u32,
        first: u32,
        count: u32,
        plane: u16,
        planes: u16,
        timeout: Option<f64>,
    ) -> PyResult<Pin> {
        let timeout = self.timeout(timeout)?;
        let range = PageRange { seq, first, count, plane, planes };
        let pin = self.call(py, |channel| channel.acquire(range, timeout))?;
        Ok(Pin { raw: pin.into_raw() })
    }

    /// Unpin pages.
    fn release(&self, py: Python<'_>, pin: &Pin) -> PyResult<()> {
        let pin = kvtide_client::Pin::from_raw(pin.raw);
        self.call(py, |channel| channel.release(pin))
    }

    /// Limit a size class of tier 0 to its first `frames` frames, of those that it attached with. Return that number. Do not access
    /// the frames beyond it.
    #[pyo3(signature = (size_class, frames, *, timeout=None))]
    fn resize_tier0(&self, py: Python<'_>, size_class: usize, frames: u32, timeout: Option<f64>) -> PyResult<u32> {
        let timeout = self.timeout(timeout)?;
        self.call(py, |channel| channel.resize_tier0(size_class, frames, timeout))
    }

    /// Return the number of frames that a size class of tier 0 has now.
    fn tier0_frames(&self, py: Python<'_>, size_class: usize) -> PyResult<u32> {
        self.call(py, |channel| Ok(channel.tier0_frames(size_class)))
    }

    /// Return how many blocks of a prefix are cached.
    #[pyo3(signature = (hashes, *, timeout=None))]
    fn lookup(&self, py: Python<'_>, hashes: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<LookupResult> {
        let (hashes, timeout) = (blocks::hashes(hashes)?, self.timeout(timeout)?);
        Ok(self.call(py, |channel| channel.lookup(&hashes, timeout))?.into())
    }

    /// Pin a cached prefix of `count` blocks for `seconds`. `last_hash` is the hash of its last block.
    #[pyo3(signature = (last_hash, count, seconds, *, timeout=None))]
    fn lease(
        slf: &Bound<'_, Self>,
        last_hash: &[u8],
        count: u32,
        seconds: f64,
        timeout: Option<f64>,
    ) -> PyResult<Lease> {
        let (channel, hash) = (slf.get(), blocks::hash(format_args!("last_hash"), last_hash)?);
        let (time, timeout) = (self::seconds("seconds", seconds)?, channel.timeout(timeout)?);
        let leased = channel.call(slf.py(), |channel| channel.lease(hash, count, time, timeout))?;
        Ok(Lease::new(leased, slf))
    }

    /// Copy blocks of a lease, starting at block index `first`, into blocks of the engine's own memory.
    #[pyo3(signature = (lease, first, blocks, *, timeout=None))]
    fn load(
        &self,
        py: Python<'_>,
        lease: &Bound<'_, PyAny>,
        first: u32,
        blocks: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<CopyResult> {
        let (lease, blocks, timeout) = (blocks::lease(lease)?, blocks::numbers(blocks)?, self.timeout(timeout)?);
        Ok(self.call(py, |channel| channel.load(lease, first, &blocks, timeout))?.into())
    }

    /// Cache blocks of the engine's own memory under their hashes.
    #[pyo3(signature = (first, parent, hashes, blocks, *, level=Level::DEFAULT, timeout=None))]
    #[allow(clippy::too_many_arguments)] // Python passes them by keyword
    fn store(
        &self,
        py: Python<'_>,
        first: u32,
        parent: Option<&[u8]>,
        hashes: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        level: Level,
        timeout: Option<f64>,
    ) -> PyResult<CopyResult> {
        let at = blocks::place(first, parent)?;
        let (hashes, blocks, timeout) = (blocks::hashes(hashes)?, blocks::numbers(blocks)?, self.timeout(timeout)?);
        Ok(self.call(py, |channel| channel.store(at, &hashes, &blocks, level.0, timeout))?.into())
    }

    /// Wait until no request that ended before the daemon confirmed it accesses the engine's own memory.
    #[pyo3(signature = (*, timeout=None))]
    fn settle(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let timeout = self.timeout(timeout)?;
        self.call(py, |channel| channel.settle(timeout))
    }

    /// Start a lookup. Return its ticket.
    #[pyo3(signature = (hashes, *, timeout=None, user=0))]
    fn start_lookup(
        &self,
        py: Python<'_>,
        hashes: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        user: u64,
    ) -> PyResult<u64> {
        let hashes = blocks::hashes(hashes)?;
        self.start(py, Request::Lookup { hashes: &hashes }, timeout, user)
    }

    /// Start a lease. Return its ticket.
    #[pyo3(signature = (last_hash, count, seconds, *, timeout=None, user=0))]
    #[allow(clippy::too_many_arguments)] // Python passes them by keyword
    fn start_lease(
        &self,
        py: Python<'_>,
        last_hash: &[u8],
        count: u32,
        seconds: f64,
        timeout: Option<f64>,
        user: u64,
    ) -> PyResult<u64> {
        let hash = blocks::hash(format_args!("last_hash"), last_hash)?;
        let time = self::seconds("seconds", seconds)?;
        self.start(py, Request::Lease { hash, count, time }, timeout, user)
    }

    /// Start a load of at most 506 blocks. Return its ticket.
    #[pyo3(signature = (lease, first, blocks, *, timeout=None, user=0))]
    #[allow(clippy::too_many_arguments)] // Python passes them by keyword
    fn start_load(
        &self,
        py: Python<'_>,
        lease: &Bound<'_, PyAny>,
        first: u32,
        blocks: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        user: u64,
    ) -> PyResult<u64> {
        let (lease, blocks) = (blocks::lease(lease)?, blocks::numbers(blocks)?);
        self.start(py, Request::Load { lease, first, blocks: &blocks }, timeout, user)
    }

    /// Start a store of at most 101 blocks. Return its ticket.
    #[pyo3(signature = (first, parent, hashes, blocks, *, level=Level::DEFAULT, timeout=None, user=0))]
    #[allow(clippy::too_many_arguments)] // Python passes them by keyword
    fn start_store(
        &self,
        py: Python<'_>,
        first: u32,
        parent: Option<&[u8]>,
        hashes: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        level: Level,
        timeout: Option<f64>,
        user: u64,
    ) -> PyResult<u64> {
        let (first, parent) = blocks::place(first, parent)?;
        let (hashes, blocks) = (blocks::hashes(hashes)?, blocks::numbers(blocks)?);
        let request = Request::Store { first, parent, hashes: &hashes, blocks: &blocks, level: level.0 };
        self.start(py, request, timeout, user)
    }

    /// Return the completions that have arrived. Do not wait.
    fn poll(slf: &Bound<'_, Self>) -> PyResult<Vec<Completion>> {
        let drain = |channel: &mut Native| Ok(std::iter::from_fn(|| channel.poll_any()).collect::<Vec<_>>());
        let ended = slf.get().call(slf.py(), drain)?;
        ended.into_iter().map(|completed| Completion::of(slf, completed)).collect()
    }

    /// Wait for one request and return its completion.
    #[pyo3(signature = (ticket, *, timeout=None))]
    fn wait(slf: &Bound<'_, Self>, ticket: u64, timeout: Option<f64>) -> PyResult<Completion> {
        let timeout = slf.get().timeout(timeout)?;
        let completed = slf.get().call(slf.py(), |channel| channel.wait(Ticket::from_raw(ticket), timeout))?;
        Completion::of(slf, completed)
    }

    /// Request cancellation. The request still completes.
    fn cancel(&self, py: Python<'_>, ticket: u64) -> PyResult<()> {
        self.call(py, |channel| channel.cancel(Ticket::from_raw(ticket)))
    }

    /// Return the descriptor that becomes readable when a request completes after `arm`, or when the daemon is gone.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let fd = self.call(py, |channel| Ok(channel.fd().map(|fd| fd.as_raw_fd())))?;
        fd.ok_or_else(|| raise(Status::State, &format!("channel {} has no descriptor", self.index)))
    }

    /// Enable a wake-up through `fileno`. True: a completion has already arrived, so poll first.
    fn arm(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, Native::arm)
    }

    /// Close the channel; its sequences stay. Closing twice has no effect.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let native = self.lock()?.take();
        py.detach(|| drop(native));
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
