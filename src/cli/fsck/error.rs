//! Errors of `kvtide fsck`.

use kvtide_format::SuperblockError;
use kvtide_format::log::LogError;
use kvtide_nvme::KeyError;
use std::io;
use std::path::PathBuf;

/// Why a disk cannot be checked or repaired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum FsckError {
    #[error("cannot {tried} {}: {source}", .path.display())]
    Os { tried: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is in use by a daemon or another fsck", .path.display())]
    InUse { path: PathBuf },
    #[error("{} cannot be used: {source}", .path.display())]
    Superblock { path: PathBuf, source: SuperblockError },
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Key(#[from] KeyError),
}
