//! `[limits]`.

use crate::config::ConfigError;
use crate::config::raw::RawLimits;
use crate::config::sourced::{File, Sourced};
use crate::config::{Limits, Machine, defaults};
use std::fmt;
use std::time::Duration;

pub(super) fn limits(
    file: File<'_>,
    sessions_max: &Sourced<u32>,
    raw: RawLimits,
    machine: &Machine,
) -> Result<Limits, ConfigError> {
    let blocks = file.field("limits.blocks_max", raw.blocks_max, defaults::BLOCKS_MAX);
    let blocks_max = Some(file.in_range(&blocks, &defaults::BLOCKS_RANGE)?).filter(|blocks| *blocks > 0);
    let default_seq_blocks = defaults::SEQ_BLOCKS_MAX.min(blocks_max.unwrap_or(u32::MAX));
    let seq_blocks = file.field("limits.seq_blocks_max", raw.seq_blocks_max, default_seq_blocks);
    let seq_blocks_max = file.in_range(&seq_blocks, &defaults::SEQ_BLOCKS_RANGE)?;
    if blocks_max.is_some_and(|blocks_max| seq_blocks_max > blocks_max) {
        return Err(file.contradiction(&seq_blocks, &blocks, "a sequence cannot have more blocks than its space"));
    }
    let default_space = u32::from(defaults::SPACE_SESSIONS_MAX).min(sessions_max.value) as u16;
    let space_sessions = file.field("limits.space_sessions_max", raw.space_sessions_max, default_space);
    let space_sessions_max = file.in_range(&space_sessions, &defaults::SPACE_SESSIONS_RANGE)?;
    if u32::from(space_sessions_max) > sessions_max.value {
        return Err(file.contradiction(
            &space_sessions,
            sessions_max,
            "a space cannot have more sessions than the daemon",
        ));
    }
    let timeout = file.field("limits.request_timeout_ms", raw.request_timeout_ms, defaults::REQUEST_TIMEOUT_MS);
    let lease = file.field("limits.lease_max_ms", raw.lease_max_ms, defaults::LEASE_MAX_MS);
    let percent = file.field("limits.lease_percent", raw.lease_percent, defaults::LEASE_PERCENT);
    let depth = file.field("limits.depth_max", raw.depth_max, defaults::DEPTH_MAX);
    let depth_max = power_of_two(file, &depth, file.in_range(&depth, &defaults::DEPTH_RANGE)?)?;
    let jobs = file.field("limits.jobs_max", raw.jobs_max, defaults::JOBS_MAX);
    let jobs_max = power_of_two(file, &jobs, file.in_range(&jobs, &defaults::JOBS_RANGE)?)?;
    let memory = machine.cgroup.as_ref().map_or(machine.total_bytes, |limit| limit.bytes.min(machine.total_bytes));
    let u32_of = |key: &str, field, default, range| file.in_range(&file.field(key, field, default), &range);
    let u16_of = |key: &str, field, default, range| file.in_range(&file.field(key, field, default), &range);
    Ok(Limits {
        spaces_max: u32_of("limits.spaces_max", raw.spaces_max, defaults::SPACES_MAX, defaults::SPACES_RANGE)?,
        sessions_max: file.in_range(sessions_max, &defaults::SESSIONS_RANGE)?,
        space_sessions_max,
        handshakes_max: u32_of(
            "limits.handshakes_max",
            raw.handshakes_max,
            defaults::HANDSHAKES_MAX,
            defaults::HANDSHAKES_RANGE,
        )?,
        blocks_max,
        contents_max: contents_max(memory),
        tables_bytes_max: memory / defaults::TABLES_PART,
        seqs_max: u32_of("limits.seqs_max", raw.seqs_max, defaults::SEQS_MAX, defaults::SEQS_RANGE)?,
        seq_blocks_max,
        lanes_max: u16_of("limits.lanes_max", raw.lanes_max, defaults::LANES_MAX, defaults::LANES_RANGE)?,
        channels_max: u16_of(
            "limits.channels_max",
            raw.channels_max,
            defaults::CHANNELS_MAX,
            defaults::CHANNELS_RANGE,
        )?,
        tier0_frames_max: u32_of(
            "limits.tier0_frames_max",
            raw.tier0_frames_max,
            defaults::TIER0_FRAMES_MAX,
            defaults::TIER0_FRAMES_RANGE,
        )?,
        depth_max,
        jobs_max,
        request_timeout: Duration::from_millis(file.in_range(&timeout, &defaults::REQUEST_TIMEOUT_MS_RANGE)?),
        lease_max: Duration::from_millis(file.in_range(&lease, &defaults::LEASE_MAX_MS_RANGE)?),
        lease_percent: file.in_range(&percent, &defaults::LEASE_PERCENT_RANGE)?,
    })
}

/// Return the maximum number of blocks in the index of a space for the memory of the machine.
fn contents_max(memory_bytes: u64) -> u32 {
    let contents = memory_bytes / defaults::INDEX_PART / defaults::INDEX_BYTES;
    u32::try_from(contents).unwrap_or(u32::MAX).clamp(defaults::CONTENTS_MIN, defaults::CONTENTS_MAX)
}

fn power_of_two<T: fmt::Debug + Copy + Into<u32>>(
    file: File<'_>,
    sourced: &Sourced<T>,
    value: T,
) -> Result<T, ConfigError> {
    if value.into().is_power_of_two() {
        Ok(value)
    } else {
        Err(file.value(sourced, "a power of two (it sizes a ring buffer)"))
    }
}
