//! A dump: the core as it was, what went in since, and the hash of the actions that came out.

use super::codec::Reader;
use crate::actions::ActionBuf;
use crate::error::Error;
use crate::space::Core;
use crate::trace::Trace;
use serde::{Deserialize, Serialize};

/// First bytes of a dump; the digit is its version.
const MAGIC: &[u8; 8] = b"kvtrec\x007";

/// A loaded dump.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recording {
    base: Core,
    log: Vec<u8>,
    end: Trace,
}

pub(super) fn encode(base: &Core, logs: &[&[u8]], end: Trace) -> Result<Vec<u8>, Error> {
    let failed = |_| Error::Recording { what: "the core does not encode", at: 0 };
    let mut bytes = MAGIC.to_vec();
    bytes.extend(postcard::to_stdvec(&(base, logs.concat(), end)).map_err(failed)?);
    Ok(bytes)
}

impl Recording {
    /// Takes the bytes of a dump.
    ///
    /// # Errors
    /// [`Error::Recording`] if they are none. Bytes from an untrusted source may make a core that panics when it is replayed:
    /// a dump is a debugging aid, not an input of a daemon.
    pub fn load(bytes: &[u8]) -> Result<Recording, Error> {
        let Some(body) = bytes.strip_prefix(MAGIC) else {
            return Err(Error::Recording { what: "it does not begin with the magic bytes of this version", at: 0 });
        };
        let failed = |_| Error::Recording { what: "the core does not decode", at: MAGIC.len() };
        let (base, log, end) = postcard::from_bytes(body).map_err(failed)?;
        Ok(Recording { base, log, end })
    }

    /// The hash of all actions at the time of the dump.
    #[must_use]
    pub fn end(&self) -> Trace {
        self.end
    }

    /// Feeds the inputs to the core again. `look` sees each (as text), the core after it, and the actions that it gave; the
    /// core as it ended is returned. Its [`Core::trace`] equals [`Recording::end`] if the code is the same.
    ///
    /// # Errors
    /// [`Error::Recording`] if the log is damaged. What the core itself refused is refused again, and is no error here.
    pub fn replay(&self, mut look: impl FnMut(&str, &Core, &ActionBuf)) -> Result<Core, Error> {
        let mut core = self.base.clone();
        let mut reader = Reader::new(&self.log);
        while let Some(entry) = reader.next()? {
            // A fresh buffer with the room that there was: what fitted then fits now, and no more.
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
