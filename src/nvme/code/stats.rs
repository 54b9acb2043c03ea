//! Stats of codecs and encryption.

use super::codec::Codec;
use serde::{Serialize, Serializer};
use std::ops::{Index, IndexMut};
use std::time::Duration;

/// Work done and time spent by a disk's codecs and encryption since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CodeStatus {
    /// Of each codec.
    #[serde(flatten)]
    pub codecs: CodecStats,
    /// Pages encrypted.
    pub encrypted: SealStatus,
    /// Pages decrypted.
    pub decrypted: SealStatus,
    /// Time that the coding threads spent on checksums, in nanoseconds.
    pub checksum_ns: u64,
}

/// Stats of each codec. In JSON they are under the codec's name; `none` does no work and is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecStats([CodecStatus; Codec::ALL.len()]);

impl CodecStats {
    /// Iterate over the codecs that do work.
    pub fn iter(&self) -> impl Iterator<Item = (Codec, &CodecStatus)> {
        Codec::ALL.into_iter().zip(&self.0).filter(|(codec, _)| *codec != Codec::None)
    }
}

impl Index<Codec> for CodecStats {
    type Output = CodecStatus;
    fn index(&self, codec: Codec) -> &CodecStatus {
        &self.0[usize::from(codec.code())]
    }
}

impl IndexMut<Codec> for CodecStats {
    fn index_mut(&mut self, codec: Codec) -> &mut CodecStatus {
        &mut self.0[usize::from(codec.code())]
    }
}

impl Serialize for CodecStats {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.iter())
    }
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
    /// Add other stats.
    pub fn join(&mut self, other: &CodeStatus) {
        for (to, from) in self.codecs.0.iter_mut().zip(&other.codecs.0) {
            to.encoded.join(&from.encoded);
            to.decoded.join(&from.decoded);
        }
        self.encrypted.join(&other.encrypted);
        self.decrypted.join(&other.decrypted);
        self.checksum_ns += other.checksum_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stats_of_a_codec_have_its_name() {
        let mut status = CodeStatus::default();
        status.codecs[Codec::PlanesZstd].encoded.pages = 3;
        let json = serde_json::to_value(status).unwrap();
        assert_eq!(json["planes-zstd"]["encoded"]["pages"], 3);
        assert_eq!((json["lz4"]["encoded"]["pages"].as_u64(), json.get("none")), (Some(0), None));
    }
}
