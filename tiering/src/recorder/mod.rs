//! Flight recorder: a bounded record of the inputs of a core, and the core's state before them. An incident can be replayed,
//! because the same inputs give the same actions.
//!
//! It sits between the daemon and the core. It keeps two segments of input. When one is full, the older is dropped and a new one
//! begins with a copy of the core; only then does it allocate. A core handles no KV data, so none is recorded; block hashes are.

mod codec;
mod recording;

pub use recording::Recording;

use crate::Core;
use crate::actions::ActionBuf;
use crate::api::Event;
use crate::error::Error;
use codec::Input;

/// Maximum bytes of one recorded input: a full list of words or hashes, and its numbers.
const INPUT_BYTES_MAX: usize = 16 * crate::LIST_MAX + 256;

/// Input since a copy of the core was taken.
#[derive(Clone, Debug)]
struct Segment {
    base: Core,
    log: Vec<u8>,
    inputs: u64,
}

/// Recorder of the inputs of one core.
#[derive(Clone, Debug)]
pub struct Recorder {
    before: Option<Segment>,
    now: Segment,
    segment_bytes: usize,
}

impl Recorder {
    /// Record `core` from here on, in at most `bytes_max` bytes of input (at least two of the longest inputs), in addition to two
    /// copies of the core.
    #[must_use]
    pub fn new(core: &Core, bytes_max: usize) -> Recorder {
        let segment_bytes = (bytes_max / 2).max(INPUT_BYTES_MAX);
        let now = Segment { base: core.clone(), log: Vec::with_capacity(segment_bytes), inputs: 0 };
        Recorder { before: None, now, segment_bytes }
    }

    /// Record the event and pass it to the core.
    ///
    /// # Errors
    /// Those of [`Core::handle`].
    pub fn handle(&mut self, core: &mut Core, now_us: u64, event: Event<'_>, buf: &mut ActionBuf) -> Result<(), Error> {
        self.record(core, &Input::event(now_us, event), buf);
        core.handle(now_us, event, buf)
    }

    /// Record the call and execute it.
    pub fn poll(&mut self, core: &mut Core, now_us: u64, buf: &mut ActionBuf) {
        self.record(core, &Input::poll(now_us), buf);
        core.poll(now_us, buf);
    }

    /// Return the number of inputs in a dump.
    #[must_use]
    pub fn inputs(&self) -> u64 {
        self.now.inputs + self.before.as_ref().map_or(0, |s| s.inputs)
    }

    /// Return the record as bytes for [`Recording::load`]. `core` is the current core.
    ///
    /// # Errors
    /// [`Error::Recording`] if the tables do not encode.
    pub fn dump(&self, core: &Core) -> Result<Vec<u8>, Error> {
        let first = self.before.as_ref().unwrap_or(&self.now);
        let rest = self.before.as_ref().map_or(&[][..], |_| &self.now.log);
        recording::encode(&first.base, &[&first.log, rest], core.trace())
    }

    fn record(&mut self, core: &Core, input: &Input<'_>, buf: &ActionBuf) {
        if self.now.log.len() + input.bytes_max() > self.segment_bytes {
            let mut log = self.before.take().map_or_else(|| Vec::with_capacity(self.segment_bytes), |s| s.log);
            log.clear();
            let next = Segment { base: core.clone(), log, inputs: 0 };
            self.before = Some(std::mem::replace(&mut self.now, next));
        }
        input.encode(buf, &mut self.now.log);
        self.now.inputs += 1;
    }
}
