//! What codecs and encryption did and cost.

use super::codec::Codec;
use serde::Serialize;
use std::time::Duration;

/// What a disk's codecs and encryption did and cost since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CodeStatus {
    /// `lz4`.
    pub lz4: CodecStatus,
    /// `planes-zstd`.
    pub planes_zstd: CodecStatus,
    /// Pages that were encrypted.
    pub encrypted: SealStatus,
    /// Pages that were decrypted.
    pub decrypted: SealStatus,
    /// Time that the pool's threads took for checksums, in nanoseconds.
    pub checksum_ns: u64,
}

/// What a codec did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CodecStatus {
    /// On the way to the disk.
    pub encoded: CodedStatus,
    /// On the way back.
    pub decoded: CodedStatus,
}

/// Pages that went through a codec, one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CodedStatus {
    /// Pages.
    pub pages: u64,
    /// Of them, those that stay as they are, because they do not shrink by a sector.
    pub raw: u64,
    /// Bytes of the pages.
    pub plain_bytes: u64,
    /// Bytes of their stored form.
    pub stored_bytes: u64,
    /// Time that it took the pool's threads, in nanoseconds.
    pub ns: u64,
}

/// Pages that went through the cipher, one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SealStatus {
    /// Pages.
    pub pages: u64,
    /// Bytes of their stored form.
    pub bytes: u64,
    /// Time that it took the pool's threads, in nanoseconds.
    pub ns: u64,
}

impl CodedStatus {
    pub(super) fn add(&mut self, plain: u32, stored: u32, took: Duration) {
        self.pages += 1;
        self.raw += u64::from(stored == plain);
        self.plain_bytes += u64::from(plain);
        self.stored_bytes += u64::from(stored);
        self.ns += took.as_nanos() as u64;
    }

    fn join(&mut self, other: &CodedStatus) {
        self.pages += other.pages;
        self.raw += other.raw;
        self.plain_bytes += other.plain_bytes;
        self.stored_bytes += other.stored_bytes;
        self.ns += other.ns;
    }
}

impl SealStatus {
    pub(super) fn add(&mut self, bytes: usize, took: Duration) {
        self.pages += 1;
        self.bytes += bytes as u64;
        self.ns += took.as_nanos() as u64;
    }

    fn join(&mut self, other: &SealStatus) {
        self.pages += other.pages;
        self.bytes += other.bytes;
        self.ns += other.ns;
    }
}

impl CodeStatus {
    /// Of a codec. (`none` does nothing, and is never asked for.)
    pub(super) fn codec(&mut self, codec: Codec) -> &mut CodecStatus {
        match codec {
            Codec::PlanesZstd => &mut self.planes_zstd,
            Codec::Lz4 | Codec::None => &mut self.lz4,
        }
    }

    /// Adds what was done elsewhere.
    pub fn join(&mut self, other: &CodeStatus) {
        for (to, from) in [(&mut self.lz4, &other.lz4), (&mut self.planes_zstd, &other.planes_zstd)] {
            to.encoded.join(&from.encoded);
            to.decoded.join(&from.decoded);
        }
        self.encrypted.join(&other.encrypted);
        self.decrypted.join(&other.decrypted);
        self.checksum_ns += other.checksum_ns;
    }
}
