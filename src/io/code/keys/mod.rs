//! Keys: who holds which, where they stand, and what they are good for.
//!
//! ```text
//! master key (file, systemd credential) ──wraps──▶ tenant key: random, one a domain and disk, in a sector of its own
//!                                                      │ HKDF with a salt that is fresh at each start
//!                                                      ▼
//!                                      subkey for pages, subkey for records
//! ```
//!
//! * [`source`]: the master key, from where the configuration says.
//! * [`sector`]: a tenant key as it stands in the key area of the file (docs/format.md).
//! * [`tenant`]: a tenant's key in memory and the subkeys made of it.
//! * [`salts`]: salts and write numbers, and why no nonce is used twice.
//! * [`keyring`]: all of a disk.
//!
//! A key made at start and forgotten (`ephemeral`) has no master and no sector: tenant keys are random and stay in memory.
//! Bytes of keys are overwritten when they are dropped ([`wiped`] for those that `ring` has expanded).

mod error;
mod keyring;
mod salts;
mod sector;
mod source;
mod tenant;
mod wiped;

pub use error::KeyError;
pub(crate) use keyring::{Keyring, key_sectors};
pub(crate) use salts::Spent;
pub(crate) use source::{Encryption, KeySource, MasterKey};
#[cfg(test)]
pub(super) use tenant::nonces;
pub(crate) use tenant::{Stored, Subkey, TenantKey};
