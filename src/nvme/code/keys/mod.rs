//! Encryption keys: hierarchy, storage and use.
//!
//! ```text
//! master key (file, systemd credential) ──wraps──▶ tenant key: random, one per domain and disk, in a sector of its own
//!                                                      │ HKDF with a salt that is fresh at each start
//!                                                      ▼
//!                                      subkey for pages, subkey for records
//! ```
//!
//! * [`source`]: the master key, from the configured source.
//! * [`sector`]: format of a tenant key in the key area of the file (docs/design/format.md).
//! * [`tenant`]: a tenant's key in memory, and its subkeys.
//! * [`salts`]: salts and write numbers, and why no nonce is used twice.
//! * [`keyring`]: all keys of a disk.
//!
//! With `ephemeral` there is no master key and no sector: tenant keys are random and stay in memory. Key bytes are overwritten when
//! dropped ([`wiped`] for the keys expanded by `ring`).

mod error;
mod keyring;
mod salts;
mod sector;
mod source;
mod tenant;
mod wiped;

pub use error::KeyError;
pub use keyring::{Keyring, erase_sectors};
pub use salts::Spent;
pub use source::{Encryption, KeySource, MasterKey};
#[cfg(test)]
pub(super) use tenant::nonces;
pub use tenant::{Stored, Subkey, TenantKey};
