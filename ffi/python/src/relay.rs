//! Python object for questions to a relay.

use crate::{
    blocks,
    error::{self, raise, value},
    options::seconds,
};
use kvtide_client::{Progress, Relay as Native};
use kvtide_wire::{status::Status, trace::TraceContext};
use pyo3::prelude::*;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A connection to the relay that the daemon names: `kvtide.Relay`.
#[pyclass(frozen, module = "kvtide")]
pub struct Relay(Mutex<Native>);

/// How far a question is: `kvtide.Answer`.
#[pyclass(frozen, get_all, module = "kvtide")]
pub struct Answer {
    /// Nothing more comes.
    ended: bool,
    /// Blocks that are there, or are expected to be.
    blocks: Option<u32>,
    /// Seconds in which they are expected.
    within: Option<f64>,
}

#[pymethods]
impl Answer {
    fn __repr__(&self) -> String {
        let Answer { ended, blocks, within } = self;
        let blocks = blocks.map_or("None".into(), |blocks| blocks.to_string());
        let within = within.map_or("None".into(), |within| format!("{within:.3}"));
        format!("Answer(ended={}, blocks={blocks}, within={within})", if *ended { "True" } else { "False" })
    }
}

impl Relay {
    /// Wrap a connection.
    pub fn new(relay: Native) -> Relay {
        Relay(Mutex::new(relay))
    }

    fn lock(&self) -> MutexGuard<'_, Native> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ask a question. Return its number, which is not 0.
    ///
    /// # Errors
    /// `Again`: the relay cannot be asked now. `ValueError`: there are no hashes, or `wait` is no duration.
    fn ask(
        &self,
        what: fn(&mut Native, &[u128], Duration) -> Option<u32>,
        hashes: &Bound<'_, PyAny>,
        wait: f64,
    ) -> PyResult<u32> {
        let (hashes, wait) = (blocks::hashes(hashes)?, seconds("wait", wait)?);
        if hashes.is_empty() {
            return Err(value("hashes: a question to the relay needs at least one"));
        }
        let mut relay = self.lock();
        what(&mut relay, &hashes, wait).ok_or_else(|| raise(Status::Again, relay.refusal()))
    }
}

#[pymethods]
impl Relay {
    /// Ask to bring a prefix in from the store.
    #[pyo3(signature = (hashes, *, wait))]
    fn recall(&self, hashes: &Bound<'_, PyAny>, wait: f64) -> PyResult<u32> {
        self.ask(Native::recall, hashes, wait)
    }

    /// Ask to bring in a prefix that another machine is sharing.
    #[pyo3(signature = (hashes, *, wait))]
    fn await_shared(&self, hashes: &Bound<'_, PyAny>, wait: f64) -> PyResult<u32> {
        self.ask(Native::await_shared, hashes, wait)
    }

    /// Ask to copy a cached prefix out to the store.
    #[pyo3(signature = (hashes, *, wait))]
    fn share(&self, hashes: &Bound<'_, PyAny>, wait: f64) -> PyResult<u32> {
        self.ask(Native::share, hashes, wait)
    }

    /// Return how far a question is; wait for its end without the GIL.
    #[pyo3(signature = (question, *, timeout=0.0))]
    fn poll(&self, py: Python<'_>, question: u32, timeout: f64) -> PyResult<Answer> {
        let timeout = seconds("timeout", timeout)?;
        let progress = match timeout {
            Duration::ZERO => self.lock().poll(question),
            _ => py.detach(|| self.lock().wait(question, timeout)),
        };
        Ok(match progress {
            Progress::Waiting(None) => Answer { ended: false, blocks: None, within: None },
            Progress::Waiting(Some((blocks, at))) => {
                let within = at.saturating_duration_since(Instant::now()).as_secs_f64();
                Answer { ended: false, blocks: Some(blocks), within: Some(within) }
            }
            Progress::Done(blocks) => Answer { ended: true, blocks: Some(blocks), within: None },
            Progress::Failed => Answer { ended: true, blocks: None, within: None },
        })
    }

    /// Forget a question.
    fn forget(&self, question: u32) {
        self.lock().forget(question);
    }

    /// Return whether the relay needs the tokens of blocks.
    #[getter]
    fn wants_notes(&self) -> bool {
        self.lock().wants_notes()
    }

    /// True if the relay makes spans of traced questions.
    #[getter]
    fn traces(&self) -> bool {
        self.lock().traces()
    }

    /// Set the trace of the questions from now on.
    fn trace(&self, traceparent: Option<&str>) -> PyResult<bool> {
        let read = traceparent.map_or(Ok(None), TraceContext::from_traceparent);
        let mut relay = self.lock();
        relay.trace(read.ok().flatten());
        read.map(|context| context.is_some() && relay.traces()).map_err(|error| value(error.to_string()))
    }

    /// Send the tokens of blocks.
    #[pyo3(signature = (hashes, tokens, adapter=""))]
    fn note(&self, hashes: &Bound<'_, PyAny>, tokens: Vec<u32>, adapter: &str) -> PyResult<bool> {
        let hashes = blocks::hashes(hashes)?;
        let mut relay = self.lock();
        let each = relay.page_tokens() as usize;
        if tokens.len() != hashes.len() * each {
            let (blocks, count) = (hashes.len(), tokens.len());
            return Err(value(format!("{count} tokens for {blocks} blocks of {each} tokens")));
        }
        Ok(relay.note(&hashes, &tokens, adapter))
    }

    /// Return why the relay cannot be asked now.
    #[getter]
    fn trouble(&self) -> Option<String> {
        self.lock().trouble().map(str::to_owned)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", *self.lock())
    }
}

/// Open the connection of a session.
pub fn open(client: &kvtide_client::Client) -> PyResult<Option<Relay>> {
    Ok(client.relay().map_err(|e| error::from(&e))?.map(Relay::new))
}
