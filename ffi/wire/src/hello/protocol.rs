//! Versions and features: what two releases agree to speak.
//!
//! The version in a message's header is the oldest one whose readers understand the message; so a client's Hello names the oldest
//! version that the client speaks. The newest one, and the optional features, are in one word of the Hello. The daemon's Welcome
//! answers with the version and the features that both will use. Releases before this agreement wrote zero there.

use super::codec::Reader;
use crate::error::Error;
use crate::layout::{OLDEST, VERSION};

/// Bits of the word below the version.
const FEATURE_BITS: u32 = 48;

/// A protocol version and feature bits: in a Hello the newest that the client supports, in a Welcome those of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// Protocol version.
    pub version: u32,
    /// Feature bits, of the lowest 48. A request, job, message or status that not every release of `version` knows has a bit, and is
    /// sent only if the Welcome has it.
    pub features: u64,
}

impl Protocol {
    /// Return what this release speaks, with these features.
    #[must_use]
    pub const fn ours(features: u64) -> Protocol {
        Protocol { version: VERSION, features }
    }

    /// Return what a session with this peer uses: the older of both versions, and the features that both have.
    #[must_use]
    pub fn common(self, peer: Protocol) -> Protocol {
        Protocol { version: self.version.min(peer.version), features: self.features & peer.features }
    }

    pub(super) const fn word(self) -> u64 {
        (self.version as u64) << FEATURE_BITS | self.features & ((1 << FEATURE_BITS) - 1)
    }

    /// Read the word of a message with this version in its header.
    pub(super) fn read(r: &mut Reader<'_>, header: u32) -> Result<Protocol, Error> {
        let word = r.u64("features")?;
        let version = ((word >> FEATURE_BITS) as u32).max(header);
        Ok(Protocol { version, features: word & ((1 << FEATURE_BITS) - 1) })
    }
}

/// Fail unless this side speaks one of the versions `oldest` to `newest`.
pub(super) fn check(oldest: u32, newest: u32) -> Result<(), Error> {
    if oldest > VERSION || newest < OLDEST {
        return Err(Error::Version { ours: [OLDEST, VERSION], theirs: [oldest, newest] });
    }
    Ok(())
}
