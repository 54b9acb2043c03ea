//! Whether what the daemon finds is closed under ancestors: it asks its core for every hash of a lookup by itself, at one moment.

use crate::coverage::Met;
use crate::failure::Caught;
use crate::world::context::{Check, Context, wrong};
use crate::world::daemon::Daemon;
use crate::world::session::Session;
use kvtide_tiering::api::{Event, Request, SessionId};

/// Tags from here on are the daemon's own: no channel is so deep.
const OWN_TAGS: u16 = 1 << 15;
/// A hash that nothing has.
const NOBODYS: u128 = 1;

impl Daemon {
    /// Take the answer to a question of the daemon's own; false: it is an engine's.
    pub(in crate::world) fn is_own_answer(&mut self, tag: u16, value: u64) -> bool {
        if tag >= OWN_TAGS {
            self.probed.push(value as u32 == 1);
        }
        tag >= OWN_TAGS
    }

    /// Of the hashes of one chain, none is found below one that is not. Contents go at any moment, and none comes while it asks: so it asks
    /// in the order of the chain.
    pub(in crate::world) fn is_closed(
        &mut self,
        cx: &mut Context,
        sessions: &mut [Session],
        slot: SessionId,
        hashes: &[u128],
    ) -> Check {
        self.probed.clear();
        for hash in hashes {
            // What ends between two probes is told whether or not its windows are there.
            let request = Request::Lookup { hashes: &[*hash, NOBODYS] };
            let tag = OWN_TAGS;
            self.handle(cx, sessions, Event::Request { session: slot, channel: 0, tag, timeout_us: 0, request })?;
        }
        if self.probed.len() != hashes.len() {
            let detail = format!("{} lookups were answered {} times", hashes.len(), self.probed.len());
            return wrong(Caught::Protocol, detail);
        }
        cx.coverage.met(Met::LookupEach);
        match self.probed.iter().skip_while(|found| **found).any(|found| *found) {
            true => {
                wrong(Caught::WrongAnswer, format!("what is cached is not closed under ancestors: {:?}", self.probed))
            }
            false => Ok(()),
        }
    }
}
