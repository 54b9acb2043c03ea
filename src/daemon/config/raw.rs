//! The parsed file before validation: every key is optional, every value has its position.

use super::size::{ByteSize, Reserve};
use super::{Admission, Codec, Demand, IoEngine};
use kvtide_tiering::api::Scoring;
use serde::Deserialize;
use std::path::PathBuf;
use toml::Spanned;

pub(super) type Field<T> = Option<Spanned<T>>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Raw {
    pub daemon: RawDaemon,
    pub http: RawHttp,
    pub tiers: RawTiers,
    pub canary: RawCanary,
    pub edges: RawEdges,
    pub attention: RawAttention,
    pub eviction: RawEviction,
    pub limits: RawLimits,
    pub domains: Vec<RawDomain>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawDaemon {
    pub socket: Field<PathBuf>,
    pub socket_mode: Field<String>,
    pub dir: Field<PathBuf>,
    pub log: Field<String>,
    pub spin_us: Field<u64>,
    pub drain_ms: Field<u64>,
    pub handshake_ms: Field<u64>,
    pub recorder: Field<ByteSize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawHttp {
    pub listen: Field<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawTiers {
    pub host: RawHost,
    pub nvme: RawNvme,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawHost {
    pub capacity: Field<ByteSize>,
    pub slab: Field<ByteSize>,
    pub prefault: Field<bool>,
    pub high_percent: Field<u8>,
    pub low_percent: Field<u8>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawNvme {
    pub slab: Field<ByteSize>,
    pub high_percent: Field<u8>,
    pub low_percent: Field<u8>,
    pub admission: Field<Admission>,
    pub codec: Field<Codec>,
    pub codec_threads: Field<u16>,
    pub errors_max: Field<u32>,
    pub errors_window_s: Field<u64>,
    pub discard: Field<bool>,
    pub discard_per_s: Field<ByteSize>,
    pub discard_idle_ms: Field<u64>,
    pub io: Field<IoEngine>,
    pub direct: Field<Demand>,
    pub registered: Field<Demand>,
    pub depth: Field<u16>,
    pub writeback: Field<ByteSize>,
    pub timeout_ms: Field<u64>,
    pub encryption: RawEncryption,
    pub disks: Vec<RawDisk>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawEncryption {
    pub key: Field<RawKey>,
    pub path: Field<PathBuf>,
    pub name: Field<String>,
    pub new_slabs: Field<bool>,
}

/// Source of the master key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawKey {
    Off,
    File,
    Credential,
    Ephemeral,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDisk {
    #[serde(default)]
    pub dir: Field<PathBuf>,
    #[serde(default)]
    pub device: Field<PathBuf>,
    pub capacity: Spanned<ByteSize>,
    #[serde(default)]
    pub reserve_free: Field<Reserve>,
    #[serde(default)]
    pub bytes_per_day: Field<ByteSize>,
    #[serde(default)]
    pub endurance: Field<ByteSize>,
    #[serde(default)]
    pub weight: Field<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawCanary {
    pub one_in: Field<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawEdges {
    pub tier0_to_host: RawCleaning,
    pub host_to_nvme: RawCleaning,
    pub nvme_to_host: RawScan,
    pub host_to_tier0: RawScan,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawCleaning {
    pub clean_low_percent: Field<u8>,
    pub clean_high_percent: Field<u8>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawScan {
    pub scan_frames: Field<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawAttention {
    pub policy: Field<Scoring>,
    pub drop: Field<bool>,
    pub sinks: Field<u16>,
    pub recent: Field<u16>,
    pub bandwidth_percent: Field<u8>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawEviction {
    pub policy: Field<String>,
    pub ttl_s: Field<u64>,
    pub high_share_percent: Field<u8>,
    pub recompute_tokens_per_s: Field<u32>,
    pub attention_doubles_at: Field<u32>,
    pub ending_tokens: Field<u32>,
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
    pub lease_max_ms: Field<u64>,
    pub lease_percent: Field<u8>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDomain {
    pub name: Spanned<String>,
    #[serde(default)]
    pub uids: Field<Vec<u32>>,
    #[serde(default)]
    pub tokens: Field<Vec<PathBuf>>,
    #[serde(default)]
    pub host: Field<ByteSize>,
    #[serde(default)]
    pub nvme: Field<ByteSize>,
    #[serde(default)]
    pub sessions_max: Field<u32>,
}
