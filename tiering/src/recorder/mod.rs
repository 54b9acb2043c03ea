//! The flight recorder: a bounded record of what went into a core, and the core as it was before, so that an incident can be
//! replayed: the same inputs give the same actions.
//!
//! It stands between the shell and the core. It keeps two segments of input; when one is full, the older is dropped and a new one
//! begins with a copy of the core, which is the only time that it allocates. No payload passes through a core, so none is
//! recorded; block hashes are.

mod codec;
mod recording;

pub use recording::Recording;

use crate::actions::ActionBuf;
use crate::api::Event;
use crate::error::Error;
use crate::space::Core;
use codec::Input;

/// Most bytes of one recorded input: a full list of words or hashes, and its numbers.
const INPUT_BYTES_MAX: usize = 16 * crate::LIST_MAX + 256;

/// Input since a copy of the core was taken.
#[derive(Clone, Debug)]
struct Segment {
    base: Core,
    log: Vec<u8>,
    inputs: u64,
}

/// Records what goes into one core.
#[derive(Clone, Debug)]
pub struct Recorder {
    before: Option<Segment>,
    now: Segment,
    segment_bytes: usize,
}

impl Recorder {
    /// Records `core` from here on, in at most `bytes_max` bytes of input (at least two of the longest inputs), beside two
    /// copies of the core.
    #[must_use]
    pub fn new(core: &Core, bytes_max: usize) -> Recorder {
        let segment_bytes = (bytes_max / 2).max(INPUT_BYTES_MAX);
        let now = Segment { base: core.clone(), log: Vec::with_capacity(segment_bytes), inputs: 0 };
        Recorder { before: None, now, segment_bytes }
    }

    /// Records the event and hands it to the core.
    ///
    /// # Errors
    /// Those of [`Core::handle`].
    pub fn handle(&mut self, core: &mut Core, now_us: u64, event: Event<'_>, buf: &mut ActionBuf) -> Result<(), Error> {
        self.record(core, &Input::event(now_us, event), buf);
        core.handle(now_us, event, buf)
    }

    /// Records the call and makes it.
    pub fn poll(&mut self, core: &mut Core, now_us: u64, buf: &mut ActionBuf) {
        self.record(core, &Input::poll(now_us), buf);
        core.poll(now_us, buf);
    }

    /// Inputs that a dump would hold.
    #[must_use]
    pub fn inputs(&self) -> u64 {
        self.now.inputs + self.before.as_ref().map_or(0, |s| s.inputs)
    }

    /// Everything recorded, as bytes that [`Recording::load`] takes. `core` is the core as it is now.
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
