//! Why a key cannot be had or is not the right one.

use std::io;
use std::path::PathBuf;

/// What was tried with which key, and why it failed. Nothing on the disk was changed, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A key file or credential cannot be read.
    #[error("cannot read the key {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It was read, and is not to be used.
    #[error("the key {} is refused: {why}", .path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A credential is configured and the service manager gave none.
    #[error("the credential {name:?} was not given to this daemon: {why}")]
    Credential {
        /// Its name.
        name: String,
        /// What is missing.
        why: &'static str,
    },
    /// The store's tenant keys were wrapped with another master key.
    #[error(
        "its tenant keys were wrapped with master key {found}, and the one that is configured is {configured}: configure that \
         key, or another directory"
    )]
    Wrong {
        /// Id of the key that wrapped them.
        found: String,
        /// Id of the configured one.
        configured: String,
    },
    /// The store holds tenant keys and no master key is configured.
    #[error(
        "it holds encrypted slabs under master key {found}, and no such key is configured: configure it (with new_slabs = false \
         to write nothing new under it), or another directory"
    )]
    Missing {
        /// Id of the key that wrapped them.
        found: String,
    },
    /// The key area has no sector left.
    #[error("there is no room for the key of domain {domain:?}: {tenants} are kept already; purge those that are gone")]
    Full {
        /// The domain.
        domain: String,
        /// Tenant keys kept.
        tenants: usize,
    },
    /// No such tenant, and none is to be made.
    #[error("there is no key of domain {domain:?}")]
    Unknown {
        /// The domain.
        domain: String,
    },
    /// The key was made at an earlier start and forgotten at its end.
    #[error(
        "the key of domain {domain:?} was made at an earlier start and forgotten with it, as configured: key = \"ephemeral\""
    )]
    Forgotten {
        /// The domain.
        domain: String,
    },
    /// A domain's name does not fit its sector.
    #[error("the name of domain {domain:?} has {} bytes, {most} fit", .domain.len())]
    Name {
        /// The domain.
        domain: String,
        /// Bytes that fit.
        most: usize,
    },
    /// The system gave no random bytes.
    #[error("the system gave no random bytes for a key")]
    Random,
    /// The disk has been started too often.
    #[error("start {run} of this store: salts are numbered for fewer than 16777216")]
    Starts {
        /// Its number.
        run: u32,
    },
    /// A slab says that it has a codec that this version does not know.
    #[error("region {region} is stored by codec {codec}, which this version does not know")]
    Codec {
        /// The region.
        region: u32,
        /// The codec's number.
        codec: u8,
    },
    /// A sector of the key area could not be read, written or flushed.
    #[error("cannot {tried} the key area at offset {offset}: {source}")]
    Io {
        /// What was tried.
        tried: &'static str,
        /// Where in the file.
        offset: u64,
        /// Why.
        source: io::Error,
    },
}
