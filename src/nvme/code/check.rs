//! Verification of stored pages without a daemon, for `fsck`.

use super::SlabCode;
use super::stats::CodeStatus;
use super::work::{Kept, WorkerScratch};
use kvtide_format::PageKey;

/// Verifier of stored pages.
pub struct Checker(WorkerScratch);

impl Checker {
    /// # Errors
    /// There is not enough memory for the codecs' tables.
    pub fn new() -> std::io::Result<Checker> {
        WorkerScratch::new().map(Checker)
    }

    /// Return true if `stored` is the page of a record: `crc`, `sectors` and `tag` as in `Part`, `salt` as in `Transfer`. `stored`
    /// is overwritten. A page without a key is not good.
    pub fn is_good(
        &mut self,
        code: &SlabCode,
        page: &PageKey,
        (salt, crc, sectors, tag): (u32, u32, u16, &[u8; 16]),
        page_bytes: u32,
        stored: &mut [u8],
    ) -> bool {
        let subkey = code.subkey(salt);
        if code.is_encrypted() && subkey.is_none() {
            return false;
        }
        let (page, subkey, codec) = (*page, subkey.as_deref(), code.codec);
        let kept = Kept { page, page_bytes, codec, subkey, crc, sectors, tag };
        self.0.open(&kept, stored, &mut CodeStatus::default()).is_some()
    }
}
