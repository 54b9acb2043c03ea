//! Errors of keys: missing, unreadable, or wrong.

use std::io;
use std::path::PathBuf;

/// A failed key operation: action, key and cause. Nothing on the disk was changed unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A key file or credential cannot be read.
    #[error("cannot read the key {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The key was read but must not be used.
    #[error("cannot use the key {}: {why}", .path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// A credential is configured, but the service manager provided none.
    #[error("credential {name:?} not available: {why}")]
    Credential {
        /// Its name.
        name: String,
        /// The missing part.
        why: &'static str,
    },
    /// The store's tenant keys were wrapped with another master key.
    #[error(
        "its tenant keys are wrapped with master key {found}, but the configured key is {configured}. Configure that key, \
         or another directory"
    )]
    Wrong {
        /// Id of the key that wrapped them.
        found: String,
        /// Id of the configured one.
        configured: String,
    },
    /// The store holds tenant keys and no master key is configured.
    #[error(
        "it holds slabs encrypted under master key {found}, but no key is configured. Configure that key (with \
         new_slabs = false to encrypt no new slabs), or another directory"
    )]
    Missing {
        /// Id of the key that wrapped them.
        found: String,
    },
    /// The key area has no free sector.
    #[error(
        "no room for the key of domain {domain:?}: the key area holds {tenants} keys. Purge tenants that no longer exist"
    )]
    Full {
        /// The domain.
        domain: String,
        /// Keys in the area.
        tenants: usize,
    },
    /// There is no key of the domain, and none may be created.
    #[error("no key found for domain {domain:?}")]
    Unknown {
        /// The domain.
        domain: String,
    },
    /// The key was created at an earlier start and deleted when that run ended.
    #[error(
        "the key of domain {domain:?} was created at an earlier start and not saved (configured: key = \"ephemeral\")"
    )]
    Forgotten {
        /// The domain.
        domain: String,
    },
    /// A domain's name does not fit into a sector.
    #[error("the name of domain {domain:?} has {} bytes; at most {most} are allowed", .domain.len())]
    Name {
        /// The domain.
        domain: String,
        /// Maximum bytes.
        most: usize,
    },
    /// The system provided no random bytes.
    #[error("cannot get random bytes for a key from the system")]
    Random,
    /// The store has reached the maximum number of starts.
    #[error("start {run} of this store: the maximum number of starts with encryption is 16777215")]
    Starts {
        /// Number of the start.
        run: u32,
    },
    /// A slab has a codec that this version does not support.
    #[error("region {region} uses codec {codec}, which this version does not support")]
    Codec {
        /// The region.
        region: u32,
        /// The codec's number.
        codec: u8,
    },
    /// The ends of a purged tenant's slabs cannot be flushed.
    #[error("the index log cannot be flushed; purge again")]
    Unflushed,
    /// The disk is out of service.
    #[error("the disk is out of service and unchanged; stop the daemon, then purge the disk by --disk")]
    OutOfService,
    /// A sector of the key area could not be read, written or flushed.
    #[error("cannot {tried} the key area at offset {offset}: {source}")]
    Io {
        /// The attempted action.
        tried: &'static str,
        /// Offset in the file.
        offset: u64,
        /// The cause.
        source: io::Error,
    },
}
