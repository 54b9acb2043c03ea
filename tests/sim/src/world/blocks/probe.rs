//! Check that the daemon's lookups are closed under ancestors: it looks up every hash of a lookup separately, at one moment.

use crate::coverage::Met;
use crate::failure::Caught;
use crate::world::context::{Check, Context, wrong};
use crate::world::daemon::Daemon;
use crate::world::session::Session;
use kvtide_tiering::api::{Event, Request, SessionId};

/// First tag of the daemon's own requests, above the depth of every channel.
const OWN_TAGS: u16 = 1 << 15;
/// A hash that no block has.
const NOBODYS: u128 = 1;

impl Daemon {
    /// Handle the response to a request of the daemon itself; return false if it is an engine's.
    pub(in crate::world) fn is_own_answer(&mut self, tag: u16, value: u64) -> bool {
        if tag >= OWN_TAGS {
            self.probed.push(value as u32 == 1);
        }
        tag >= OWN_TAGS
    }

    /// Check that no hash of a chain is found below one that is not. Contents may be dropped at any moment, and none is added
    /// during the check, so the probes follow the order of the chain.
    pub(in crate::world) fn is_closed(
        &mut self,
        cx: &mut Context,
        sessions: &mut [Session],
        slot: SessionId,
        hashes: &[u128],
    ) -> Check {
        self.probed.clear();
        for hash in hashes {
            // A probe that ends between two others is answered whether or not its windows are cached.
            let request = Request::Lookup { hashes: &[*hash, NOBODYS], asked: 0, range: 0 };
            let tag = OWN_TAGS;
            self.handle(cx, sessions, Event::Request { session: slot, channel: 0, tag, timeout_us: 0, request })?;
        }
        if self.probed.len() != hashes.len() {
            let detail = format!("{} lookups were answered {} times", hashes.len(), self.probed.len());
            return wrong(Caught::Protocol, detail);
        }
        cx.coverage.met(Met::LookupEach);
        match self.probed.iter().skip_while(|found| **found).any(|found| *found) {
            true => wrong(Caught::WrongAnswer, format!("a cached block has an uncached ancestor: {:?}", self.probed)),
            false => Ok(()),
        }
    }
}
