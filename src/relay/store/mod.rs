//! A remote store: one small trait, its errors, and its implementations.
//!
//! A third store implements [`Store`] and nothing else: names are opaque, runs are opaque bytes, and each operation either ends or is
//! dropped at a deadline by [`Endpoint`](crate::endpoint::Endpoint).

mod bounded;
mod leftovers;
mod object;
mod valkey;

pub use object::ObjectStore;
pub use valkey::{ValkeyConfig, ValkeyStore};

use crate::name::RunName;
use bytes::Bytes;
use std::ops::Range;

/// Maximum bytes of an object: the largest blocks (`object_kib`), with room for the header.
const OBJECT_BYTES_MAX: u64 = 65 << 20;

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The store has the run now.
    Stored,
    /// The store had a run of this name already, and keeps it.
    Existed,
}

/// A place where runs are kept. It may lose any of them at any time.
///
/// Dropping the future of an operation cancels it. A write that was cancelled may or may not have happened. A store must not use a connection
/// again on which the answer to a cancelled operation is missing: the other side may be gone without a sign.
#[async_trait::async_trait]
pub trait Store: Send + Sync {
    /// Return the address of the store, without credentials, for messages.
    fn endpoint(&self) -> &str;

    /// Return whether one call of [`present`](Self::present) costs about one round trip however many names it has.
    fn asks_cheaply(&self) -> bool;

    /// Store a run unless one of its name exists. An object that is empty or of another type is no run, and is replaced.
    async fn put_run(&self, name: &RunName, bytes: Bytes) -> Result<Put, StoreError>;

    /// Read a run, or the part of it in `range` (bytes), or `None` if the store does not have it.
    ///
    /// Fewer bytes than asked for are no error here: the run format finds out. An object that is empty or of another type has no bytes.
    async fn get_run(&self, name: &RunName, range: Option<Range<u64>>) -> Result<Option<Bytes>, StoreError>;

    /// Return for each name whether the store has a run of it. An object that is empty or of another type is no run.
    async fn present(&self, names: &[RunName]) -> Result<Vec<bool>, StoreError>;

    /// Delete a run. A run that does not exist is no error.
    async fn delete(&self, name: &RunName) -> Result<(), StoreError>;

    /// Remove what writers that were killed have left. Return the number of files; `None` if they leave nothing in this kind of store.
    async fn remove_leftovers(&self) -> Option<Result<u64, StoreError>> {
        None
    }
}

/// Kind of an error, for decisions and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No connection, or it was cut.
    Unreachable,
    /// No answer until the deadline.
    TimedOut,
    /// The store refused the credentials, or they lack a right.
    Refused,
    /// The clocks of this machine and of the store differ by more than the store accepts in a signature.
    Clock,
    /// The bucket, container or folder does not exist.
    NoBucket,
    /// The store has no room.
    Full,
    /// The store asks for fewer requests, or is not ready.
    Busy,
    /// The answer is not one of the protocol.
    Garbage,
    /// The configuration cannot be used.
    Config,
    /// Not sent: the circuit breaker is open, or too many bytes are in flight.
    NotSent,
    /// Anything else.
    Other,
}

impl ErrorKind {
    /// All kinds, in the order of their discriminants.
    pub const ALL: [Self; 11] = [
        Self::Unreachable,
        Self::TimedOut,
        Self::Refused,
        Self::Clock,
        Self::NoBucket,
        Self::Full,
        Self::Busy,
        Self::Garbage,
        Self::Config,
        Self::NotSent,
        Self::Other,
    ];

    /// Return the name of the kind in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::Refused => "refused",
            Self::Clock => "clock",
            Self::NoBucket => "no_bucket",
            Self::Full => "full",
            Self::Busy => "busy",
            Self::Garbage => "garbage",
            Self::Config => "config",
            Self::NotSent => "not_sent",
            Self::Other => "other",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Unreachable => "check that the store runs, its address, and the network",
            Self::TimedOut => "check the load of the store and the network, or raise the deadline",
            Self::Refused => "check the credentials and their rights to read, write and delete",
            Self::Clock => {
                "the clocks of this machine and of the store differ, the credentials may be right: compare the time with the store's and \
                 synchronize this machine (timedatectl set-ntp true)"
            }
            Self::NoBucket => "create it, or correct its name",
            Self::Full => "give the store more room, or a policy that evicts (Valkey: maxmemory-policy allkeys-lru)",
            Self::Busy => "the relay retries later; if it lasts, give the store more capacity",
            Self::Garbage => "check that the address is that of a store of the configured kind, and the network",
            Self::Config => "correct the configuration of the store",
            Self::NotSent => "the relay retries by itself",
            Self::Other => "see the log of the store",
        }
    }
}

/// Error of an operation on a store.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct StoreError {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// The action, the endpoint, the reason, and advice.
    pub text: String,
}

impl StoreError {
    /// Describe an error: `tried` is a verb with its object, `reason` why it failed.
    pub fn new(kind: ErrorKind, tried: &str, endpoint: &str, reason: impl std::fmt::Display) -> Self {
        Self { kind, text: format!("cannot {tried} at {endpoint}: {reason}; {}", kind.advice()) }
    }
}

/// Let TLS use ring, which the workspace has already. The process has one such setting; if it is made, it stays.
fn select_cryptography() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Return a URL without user name and password.
fn without_credentials(url: &url::Url) -> String {
    let mut url = url.clone();
    let _ = (url.set_username(""), url.set_password(None));
    url.set_query(None);
    url.to_string()
}
