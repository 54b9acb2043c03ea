//! Crypto-erase a tenant on a disk that no daemon uses: its key is erased, so all of its encrypted data becomes unreadable.

use super::super::error::DiskError;
use super::super::log::LogFile;
use super::{FILE, checks, device, lock, open, read};
use crate::code::erase_sectors;
use kvtide_format::log::inspect;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Result of a purge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Keys erased and flushed.
    pub keys: u32,
    /// Encrypted slabs of the tenant: unreadable now; the next start drops them.
    pub encrypted_slabs: u32,
    /// Unencrypted slabs of the tenant: unchanged.
    pub plain_slabs: u32,
    /// All tenants with data on the disk.
    pub tenants: BTreeSet<String>,
}

/// Erase a tenant's key on the disk in a directory or on a device. Waits for the lock, as a daemon does.
///
/// # Errors
/// The disk is in use, not a store, damaged, or cannot be written or flushed. The key may then still be on the disk.
pub fn purge(place: &Path, domain: &str) -> Result<Purged, DiskError> {
    let (file, path) = if place.is_dir() {
        let path = place.join(FILE);
        let file = open(&path).map_err(|e| checks::refused("open", &path, place, e))?;
        checks::file(&file, &path)?;
        (file, path)
    } else {
        (device::open(place)?, place.to_owned())
    };
    lock(&file, &path)?;
    let block = read(&file).map_err(|e| DiskError::os("read the superblock of", &path, e))?;
    let block = block.map_err(|source| DiskError::Superblock { path: path.clone(), source })?;
    let mut storage =
        LogFile::new(&Arc::new(file)).map_err(|e| DiskError::os("allocate memory for the log of", &path, e))?;
    let erased = erase_sectors(block.store, domain, &mut storage);
    let (sectors, tenants) = erased.map_err(|source| DiskError::Keys { path: path.clone(), source })?;
    let mut purged = Purged { keys: sectors.len() as u32, tenants, ..Purged::default() };
    let recovered = inspect(&mut storage, &block, None, &mut |_| {});
    let recovered = recovered.map_err(|source| DiskError::Log { path, source })?;
    for slab in recovered.slabs {
        if slab.header.domain == domain {
            let count = if slab.header.encrypted { &mut purged.encrypted_slabs } else { &mut purged.plain_slabs };
            *count += 1;
        }
        purged.tenants.insert(slab.header.domain);
    }
    Ok(purged)
}
