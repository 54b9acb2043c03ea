//! Summary of the NVMe tier's configuration, and findings about it.

use super::Findings;
use super::explain::{both, share};
use crate::config::{
    Admission, ByteSize, Codec, Config, Disk, Encryption, Human, KeySource, NvmeTier, Place, constants,
};

/// Drive life below which a warning is due. Warranties last three to five years.
const YEAR_DAYS: u64 = 365;

pub(super) fn explain(config: &Config, nvme: &NvmeTier) -> Vec<String> {
    let capacity = nvme.slabs_bytes();
    let mut lines = vec![format!("Capacity: {} in slabs of {}.", both(capacity), ByteSize(nvme.slab_bytes))];
    lines.extend(nvme.disks.iter().map(|disk| explain_disk(nvme, disk)));
    lines.extend(nvme.disks.iter().filter_map(endurance));
    lines.push(
        match nvme.admission {
            Admission::All if nvme.bytes_per_day().is_some() => {
                "Admission: published blocks within bytes_per_day of each disk, previously used blocks first."
            }
            Admission::All => "Admission: every published block, soon after it is published, so that it survives a restart.",
            Admission::SecondTouch => "Admission: published blocks that are requested again.",
            Admission::Budget => {
                "Admission: published blocks within bytes_per_day of each disk, those with the most expected hits first."
            }
        }
        .to_owned(),
    );
    lines.push(format!(
        "Unreferenced blocks are dropped above {}, down to {}.",
        share(capacity, nvme.high_percent),
        share(capacity, nvme.low_percent)
    ));
    if let Some(codec) = codec(nvme) {
        lines.push(codec);
    }
    lines.push(encryption(&nvme.encryption));
    if nvme.has_devices() {
        let discarded = if nvme.discards { "discarded" } else { "not discarded" };
        lines.push(format!("Unused regions of raw devices are {discarded}."));
    }
    lines.push(format!(
        "Requests: io {}, direct {}, registered {}; at most {} in flight at each disk, with at most {} of write-back; stalled \
         after {} ms.",
        nvme.io,
        nvme.direct,
        nvme.registered,
        nvme.depth,
        Human(nvme.writeback_bytes),
        nvme.timeout.as_millis()
    ));
    lines.push(format!(
        "The index of one space holds at most {} blocks, in at most {} of memory.",
        config.limits.entries_max,
        Human(u64::from(config.limits.entries_max) * constants::INDEX_BYTES)
    ));
    lines
}

fn explain_disk(nvme: &NvmeTier, disk: &Disk) -> String {
    let (path, holds, slabs) = (disk.place().path().display(), both(disk.capacity_bytes), nvme.slabs_of(disk));
    match disk.place() {
        Place::Dir(_) => {
            format!(
                "{path}: {holds}, {slabs} slabs. At start, {} of its file system must stay free.",
                disk.reserve_free
            )
        }
        Place::Device(_) => format!("{path} (raw device): {holds}, {slabs} slabs."),
    }
}

/// Describe the write budget and the endurance of a disk.
fn endurance(disk: &Disk) -> Option<String> {
    let path = disk.place().path().display();
    Some(match (disk.bytes_per_day, disk.endurance_bytes) {
        (None, None) => return None,
        (Some(day), None) => format!("{path}: at most {} written a day.", Human(day)),
        (None, Some(life)) => format!("{path}: rated for {} written in total. bytes_per_day is not set.", Human(life)),
        (Some(day), Some(life)) => format!(
            "{path}: at most {} written a day. The rated {} last at least {} days.",
            Human(day),
            Human(life),
            life / day
        ),
    })
}

fn codec(nvme: &NvmeTier) -> Option<String> {
    if nvme.codec == Codec::None {
        return None;
    }
    Some(format!(
        "Compression of new slabs: {} ({}). It saves bytes written and read, not capacity, in whole sectors of {}. A page that does \
         not shrink by a sector is stored uncompressed.",
        nvme.codec,
        nvme.codec.description(),
        ByteSize(constants::NVME_ALIGN)
    ))
}

fn encryption(encryption: &Encryption) -> String {
    if encryption.source() != KeySource::Off && !encryption.new_slabs {
        return "New slabs are not encrypted. Encrypted slabs can be read with the key.".to_owned();
    }
    match &encryption.source() {
        KeySource::Off => "Encryption is off: prompts can be read from the disk.".to_owned(),
        KeySource::File(path) => format!("New slabs are encrypted with the key in {}.", path.display()),
        KeySource::Credential(name) => format!("New slabs are encrypted with the key in the systemd credential {name}."),
        KeySource::Ephemeral => {
            "New slabs are encrypted with a key that exists in memory only: nothing on the disks can be read after a restart."
                .to_owned()
        }
    }
}

pub(super) fn find(nvme: &NvmeTier, findings: &mut Findings) {
    let key = |index: usize, field: &str| format!("tiers.nvme.disks[{index}].{field}");
    if nvme.admission == Admission::Budget && nvme.disks.iter().all(|disk| disk.bytes_per_day.is_none()) {
        let text = "no disk has bytes_per_day, so every block is written, as with \"all\". Set bytes_per_day";
        findings.warn("tiers.nvme.admission", text);
    }
    for (index, disk) in nvme.disks.iter().enumerate() {
        if let (Some(day), Some(life)) = (disk.bytes_per_day, disk.endurance_bytes)
            && life / day < YEAR_DAYS
        {
            let text = format!(
                "{} a day use up the rated {} in {} days, less than a year. For five years, set at most {} a day",
                Human(day),
                Human(life),
                life / day,
                Human(life / (5 * YEAR_DAYS))
            );
            findings.warn(key(index, "endurance"), text);
        }
        if let Some(day) = disk.bytes_per_day
            && day < nvme.slab_bytes
        {
            let text = format!(
                "{} is less than one slab ({}): almost nothing is written",
                ByteSize(day),
                ByteSize(nvme.slab_bytes)
            );
            findings.warn(key(index, "bytes_per_day"), text);
        }
    }
    if nvme.encryption.source() == KeySource::Ephemeral {
        let text = "the key exists in memory only: each restart begins with an empty cache, and blocks reported durable are lost";
        findings.warn("tiers.nvme.encryption.key", text);
    }
    if nvme.codec != Codec::None && nvme.slab_bytes < 2 * constants::NVME_ALIGN {
        let text = format!(
            "a page in slabs of {} has less than two sectors of {}, and compression saves whole sectors only: it saves nothing. \
             Use larger slabs or \"none\"",
            ByteSize(nvme.slab_bytes),
            ByteSize(constants::NVME_ALIGN)
        );
        findings.warn("tiers.nvme.codec", text);
    }
}
