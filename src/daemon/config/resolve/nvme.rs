//! `[tiers.nvme]`.

use super::disks::SourcedDisks;
use super::watermarks;
use crate::config::ConfigError;
use crate::config::raw::{RawEncryption, RawKey, RawNvme};
use crate::config::size::ByteSize;
use crate::config::sourced::File;
use crate::config::{Demand, Discard, Encryption, ErrorRate, IoEngine, KeySource, NvmeTier, defaults};
use std::time::Duration;

pub(super) fn nvme(file: File<'_>, raw: RawNvme, disks: SourcedDisks) -> Result<Option<NvmeTier>, ConfigError> {
    let slab_bytes = slab(file, &raw, &disks)?;
    let high = file.field("tiers.nvme.high_percent", raw.high_percent, defaults::NVME_HIGH_PERCENT);
    let low = file.field("tiers.nvme.low_percent", raw.low_percent, defaults::NVME_LOW_PERCENT);
    let (low_percent, high_percent) = watermarks(file, &low, &high)?;
    let errors = ErrorRate {
        errors_max: {
            let errors_max = file.field("tiers.nvme.errors_max", raw.errors_max, defaults::ERRORS_MAX);
            file.in_range(&errors_max, &defaults::ERRORS_MAX_RANGE)?
        },
        window: {
            let window = file.field("tiers.nvme.errors_window_s", raw.errors_window_s, defaults::ERRORS_WINDOW_S);
            Duration::from_secs(file.in_range(&window, &defaults::ERRORS_WINDOW_S_RANGE)?)
        },
    };
    let discards = file.field("tiers.nvme.discard", raw.discard, defaults::DISCARD).value;
    let per_s = file.field("tiers.nvme.discard_per_s", raw.discard_per_s, ByteSize(defaults::DISCARD_PER_S));
    let idle = file.field("tiers.nvme.discard_idle_ms", raw.discard_idle_ms, defaults::DISCARD_IDLE_MS);
    let discard = Discard {
        bytes_per_s: file.in_range(&per_s.map(|size| size.0), &defaults::DISCARD_PER_S_RANGE)?,
        idle: Duration::from_millis(file.in_range(&idle, &defaults::DISCARD_IDLE_MS_RANGE)?),
    };
    let direct = file.field("tiers.nvme.direct", raw.direct, Demand::Auto);
    let registered = file.field("tiers.nvme.registered", raw.registered, Demand::Auto);
    let io = file.field("tiers.nvme.io", raw.io, IoEngine::Auto);
    if io.value == IoEngine::Threads && registered.value == Demand::Required {
        return Err(file.contradiction(&registered, &io, "only io_uring can register memory"));
    }
    let depth = file.field("tiers.nvme.depth", raw.depth, defaults::NVME_DEPTH);
    let writeback = file.field("tiers.nvme.writeback", raw.writeback, ByteSize(defaults::NVME_WRITEBACK));
    let timeout = file.field("tiers.nvme.timeout_ms", raw.timeout_ms, defaults::NVME_TIMEOUT_MS);
    let codec_threads = file.field("tiers.nvme.codec_threads", raw.codec_threads, defaults::CODEC_THREADS);
    let tier = NvmeTier {
        slab_bytes,
        high_percent,
        low_percent,
        admission: file.field("tiers.nvme.admission", raw.admission, defaults::NVME_ADMISSION).value,
        codec: file.field("tiers.nvme.codec", raw.codec, defaults::NVME_CODEC).value,
        codec_threads: file.in_range(&codec_threads, &defaults::CODEC_THREADS_RANGE)?,
        encryption: encryption(file, raw.encryption)?,
        errors,
        discard: discards.then_some(discard),
        io: io.value,
        direct: direct.value,
        registered: registered.value,
        depth: file.in_range(&depth, &defaults::NVME_DEPTH_RANGE)?,
        writeback_bytes: file.in_range(&writeback.map(|size| size.0), &defaults::NVME_WRITEBACK_RANGE)?,
        timeout: Duration::from_millis(file.in_range(&timeout, &defaults::NVME_TIMEOUT_MS_RANGE)?),
        disks: disks.disks,
    };
    Ok((!tier.disks.is_empty()).then_some(tier))
}

fn slab(file: File<'_>, raw: &RawNvme, disks: &SourcedDisks) -> Result<u64, ConfigError> {
    let smallest = disks.smallest.as_ref().map_or(u64::MAX, |capacity| capacity.value.0);
    let default_slab = (smallest / defaults::NVME_SLABS_MIN).clamp(defaults::NVME_ALIGN, defaults::NVME_SLAB);
    let default_slab = ByteSize(default_slab - default_slab % defaults::NVME_ALIGN);
    let slab = file.field("tiers.nvme.slab", raw.slab.clone(), default_slab);
    let slab_bytes = file.in_range(&slab.clone().map(|size| size.0), &defaults::NVME_SLAB_RANGE)?;
    if slab_bytes % defaults::NVME_ALIGN != 0 {
        return Err(file.value(&slab, format_args!("a multiple of {}", defaults::NVME_ALIGN)));
    }
    if let Some(capacity) = disks.smallest.as_ref().filter(|capacity| slab_bytes > capacity.value.0) {
        return Err(file.contradiction(&slab, capacity, "a slab must fit into every disk"));
    }
    Ok(slab_bytes)
}

/// Resolve `[tiers.nvme.encryption]`. A path or a name that the kind of key does not use is an error, because the operator expects
/// it to be used.
fn encryption(file: File<'_>, raw: RawEncryption) -> Result<Encryption, ConfigError> {
    let key = file.field("tiers.nvme.encryption.key", raw.key, RawKey::Off);
    let path = raw.path.map(|path| file.given("tiers.nvme.encryption.path", path));
    let name = raw.name.map(|name| file.given("tiers.nvme.encryption.name", name));
    if let Some(path) = path.as_ref().filter(|_| key.value != RawKey::File) {
        return Err(file.contradiction(path, &key, "a path is used with key = \"file\" only"));
    }
    if let Some(name) = name.as_ref().filter(|_| key.value != RawKey::Credential) {
        return Err(file.contradiction(name, &key, "a name is used with key = \"credential\" only"));
    }
    let new_slabs = file.field("tiers.nvme.encryption.new_slabs", raw.new_slabs, true);
    if key.value == RawKey::Ephemeral && !new_slabs.value {
        return Err(file.contradiction(
            &new_slabs,
            &key,
            "an ephemeral key cannot read existing slabs; use new_slabs = true",
        ));
    }
    let source = match key.value {
        RawKey::Off => KeySource::Off,
        RawKey::Ephemeral => KeySource::Ephemeral,
        RawKey::File => {
            let Some(path) = path else {
                return Err(file.value(&key, "`path`, the file of the key, in the same table"));
            };
            if !path.value.is_absolute() {
                return Err(file.value(&path, "an absolute path"));
            }
            KeySource::File(path.value)
        }
        RawKey::Credential => {
            let name =
                name.unwrap_or_else(|| file.field("tiers.nvme.encryption.name", None, defaults::CREDENTIAL.to_owned()));
            let plain = !name.value.is_empty()
                && name.value.len() <= defaults::CREDENTIAL_BYTES_MAX
                && !name.value.contains(['/', '\0'])
                && name.value != "."
                && name.value != "..";
            if !plain {
                return Err(file.value(&name, "a credential name, which is a file name without a directory"));
            }
            KeySource::Credential(name.value)
        }
    };
    Ok(Encryption { source, new_slabs: new_slabs.value })
}
