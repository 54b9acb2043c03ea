//! The file as it is written: every key optional, every value with its place.

use super::size::ByteSize;
use serde::Deserialize;
use std::path::PathBuf;
use toml::Spanned;

pub(super) type Field<T> = Option<Spanned<T>>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Raw {
    pub daemon: RawDaemon,
    pub tiers: RawTiers,
    pub limits: RawLimits,
    pub domains: Vec<RawDomain>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawDaemon {
    pub socket: Field<PathBuf>,
    pub socket_mode: Field<String>,
    pub dir: Field<PathBuf>,
    pub spin_us: Field<u64>,
    pub drain_ms: Field<u64>,
    pub handshake_ms: Field<u64>,
    pub recorder: Field<ByteSize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawTiers {
    pub host: RawHost,
    pub tier0: RawTier0,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawHost {
    pub capacity: Field<ByteSize>,
    pub slab: Field<ByteSize>,
    pub high_percent: Field<u8>,
    pub low_percent: Field<u8>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawTier0 {
    pub clean_low_percent: Field<u8>,
    pub clean_high_percent: Field<u8>,
    pub scan_frames: Field<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLimits {
    pub spaces_max: Field<u32>,
    pub sessions_max: Field<u32>,
    pub space_sessions_max: Field<u16>,
    pub handshakes_max: Field<u32>,
    pub blocks_max: Field<u32>,
    pub seqs_max: Field<u32>,
    pub seq_blocks_max: Field<u32>,
    pub lanes_max: Field<u16>,
    pub channels_max: Field<u16>,
    pub tier0_frames_max: Field<u32>,
    pub depth_max: Field<u16>,
    pub jobs_max: Field<u32>,
    pub request_timeout_ms: Field<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDomain {
    pub name: Spanned<String>,
    pub uids: Spanned<Vec<u32>>,
    pub host: Field<ByteSize>,
    pub sessions_max: Field<u32>,
}
