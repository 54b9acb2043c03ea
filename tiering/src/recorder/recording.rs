//! A dump: the state of a core, its inputs since then, and the hash of its actions.

use super::codec::Reader;
use crate::Core;
use crate::actions::ActionBuf;
use crate::error::Error;
use crate::trace::Trace;
use serde::{Deserialize, Serialize};

/// First bytes of a dump; the last one is its version.
const MAGIC: &[u8; 8] = b"kvtrec\x00c";

/// A loaded dump.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recording {
    base: Core,
    log: Vec<u8>,
    end: Trace,
}

pub(super) fn encode(base: &Core, logs: &[&[u8]], end: Trace) -> Result<Vec<u8>, Error> {
    let failed = |_| Error::Recording { what: "cannot encode the core", at: 0 };
    let mut bytes = MAGIC.to_vec();
    bytes.extend(postcard::to_stdvec(&(base, logs.concat(), end)).map_err(failed)?);
    Ok(bytes)
}

impl Recording {
    /// Load the bytes of a dump.
    ///
    /// # Errors
    /// [`Error::Recording`] if the bytes are not a dump. Bytes from an untrusted source may make a core that panics in replay: a
    /// dump is a debugging aid, not an input of a daemon.
    pub fn load(bytes: &[u8]) -> Result<Recording, Error> {
        let Some(body) = bytes.strip_prefix(MAGIC) else {
            return Err(Error::Recording { what: "the magic bytes of this version are missing", at: 0 });
        };
        let failed = |_| Error::Recording { what: "cannot decode the core", at: MAGIC.len() };
        let (base, log, end) = postcard::from_bytes(body).map_err(failed)?;
        Ok(Recording { base, log, end })
    }

    /// Return the hash of all actions at the time of the dump.
    #[must_use]
    pub fn end(&self) -> Trace {
        self.end
    }

    /// Replay the inputs and return the final core. `look` gets each input (as text), the core after it, and its actions. The final
    /// [`Core::trace`] equals [`Recording::end`] if the code is the same.
    ///
    /// # Errors
    /// [`Error::Recording`] if the log is damaged. An input that the core refused when recorded is refused again, which is no error
    /// here.
    pub fn replay(&self, mut look: impl FnMut(&str, &Core, &ActionBuf)) -> Result<Core, Error> {
        let mut core = self.base.clone();
        let mut reader = Reader::new(&self.log);
        while let Some(entry) = reader.next()? {
            // A new buffer with the recorded room, so that exactly the same actions fit.
            let mut buf = ActionBuf::with_room(entry.room, entry.words_room);
            let text = match reader.event(&entry)? {
                Some(event) => {
                    let refused = core.handle(entry.now_us, event, &mut buf).err();
                    format!("{} us: {event:?}{}", entry.now_us, refused.map_or(String::new(), |e| format!(": {e}")))
                }
                None => {
                    core.poll(entry.now_us, &mut buf);
                    format!("{} us: poll", entry.now_us)
                }
            };
            look(&text, &core, &buf);
        }
        Ok(core)
    }
}
