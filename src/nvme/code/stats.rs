//! Stats of codecs and encryption.

use super::codec::Codec;
use serde::Serialize;
use std::time::Duration;

/// Work done and time spent by a disk's codecs and encryption since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CodeStatus {
    /// `lz4`.
    pub lz4: CodecStatus,
    /// `planes-zstd`.
    pub planes_zstd: CodecStatus,
    /// Pages encrypted.
    pub encrypted: SealStatus,
    /// Pages decrypted.
    pub decrypted: SealStatus,
    /// Time that the coding threads spent on checksums, in nanoseconds.
    pub checksum_ns: u64,
}

/// Stats of a codec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CodecStatus {
    /// Pages encoded.
    pub encoded: CodedStatus,
    /// Pages decoded.
    pub decoded: CodedStatus,
}

/// Pages processed by a codec in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CodedStatus {
    /// Pages.
    pub pages: u64,
    /// Pages stored unchanged, because coding saves no sector.
    pub raw: u64,
    /// Bytes of the pages.
    pub plain_bytes: u64,
    /// Bytes of their stored form.
    pub stored_bytes: u64,
    /// Time spent by the coding threads, in nanoseconds.
    pub ns: u64,
}

/// Pages processed by the cipher in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SealStatus {
    /// Pages.
    pub pages: u64,
    /// Bytes of their stored form.
    pub bytes: u64,
    /// Time spent by the coding threads, in nanoseconds.
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
    /// Return the stats of a codec. (`none` does no work and is never requested.)
    pub(super) fn codec(&mut self, codec: Codec) -> &mut CodecStatus {
        match codec {
            Codec::PlanesZstd => &mut self.planes_zstd,
            Codec::Lz4 | Codec::None => &mut self.lz4,
        }
    }

    /// Add other stats.
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
