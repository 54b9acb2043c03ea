//! The NVMe tier in sentences, and what in it contradicts what it is for.

use super::Findings;
use super::explain::{both, share};
use crate::config::{
    Admission, ByteSize, Codec, Config, Disk, Encryption, KeySource, NvmeTier, Place, defaults, size::Human,
};

/// Shorter than this, a drive is used up before its warranty ends, which is three to five years.
const YEAR_DAYS: u64 = 365;

pub(super) fn explain(config: &Config, nvme: &NvmeTier) -> Vec<String> {
    let capacity = nvme.slabs_bytes();
    let mut lines = vec![format!("It holds {} in slabs of {}.", both(capacity), ByteSize(nvme.slab_bytes))];
    lines.extend(nvme.disks.iter().map(|disk| explain_disk(nvme, disk)));
    lines.extend(nvme.disks.iter().filter_map(wear));
    lines.push(
        match nvme.admission {
            Admission::All if nvme.bytes_per_day().is_some() => {
                "Published blocks are written to it as far as each disk's bytes_per_day goes, those that were used before first."
            }
            Admission::All => "Every published block is written to it soon after, so that it survives a restart.",
            Admission::SecondTouch => "A published block is written to it once it was asked for again.",
            Admission::Budget => {
                "Published blocks are written to it as far as each disk's bytes_per_day goes, those that promise most hits first."
            }
        }
        .to_owned(),
    );
    lines.push(format!(
        "Published blocks that no sequence uses are dropped from {} in use down to {}.",
        share(capacity, nvme.high_percent),
        share(capacity, nvme.low_percent)
    ));
    if let Some(codec) = codec(nvme) {
        lines.push(codec);
    }
    lines.push(encryption(&nvme.encryption));
    lines.push(format!(
        "A disk goes out of service with {} errors within {:?}, at once if it is gone or read-only; the others go on.",
        nvme.errors.errors_max, nvme.errors.window
    ));
    if nvme.has_devices() {
        lines.push(match nvme.discard {
            Some(discard) => format!(
                "What is free on a raw device is discarded, {} a second at most, once it has been idle for {:?}.",
                Human(discard.bytes_per_s),
                discard.idle
            ),
            None => "What is free on a raw device is not discarded.".to_owned(),
        });
    }
    lines.push(format!(
        "Requests: io {}, direct {}, registered {}; {} at one disk at once, {} of cleaning among them at most, stalled after {:?}.",
        nvme.io,
        nvme.direct,
        nvme.registered,
        nvme.depth,
        Human(nvme.writeback_bytes),
        nvme.timeout
    ));
    lines.push(format!(
        "The index of one space holds {} blocks at most, {} of memory.",
        config.limits.contents_max,
        Human(u64::from(config.limits.contents_max) * defaults::INDEX_BYTES)
    ));
    lines
}

fn explain_disk(nvme: &NvmeTier, disk: &Disk) -> String {
    let (path, holds, slabs) = (disk.place.path().display(), both(disk.capacity_bytes), nvme.slabs_of(disk));
    match disk.place {
        Place::Dir(_) => {
            format!("{path} holds {holds}: {slabs} slabs; {} of its file system stays free.", disk.reserve_free)
        }
        Place::Device(_) => format!("{path}, a raw device, holds {holds}: {slabs} slabs."),
    }
}

/// What a disk may take in a day and in its life.
fn wear(disk: &Disk) -> Option<String> {
    let path = disk.place.path().display();
    Some(match (disk.bytes_per_day, disk.endurance_bytes) {
        (None, None) => return None,
        (Some(day), None) => format!("{path} is written {} a day at most.", Human(day)),
        (None, Some(life)) => format!("{path} is rated for {} written in its life; nothing bounds a day.", Human(life)),
        (Some(day), Some(life)) => format!(
            "{path} is written {} a day at most: its rated {} last {} days or longer.",
            Human(day),
            Human(life),
            life / day
        ),
    })
}

fn codec(nvme: &NvmeTier) -> Option<String> {
    let how = match nvme.codec {
        Codec::None => return None,
        Codec::Lz4 => "with LZ4, which gains nothing on raw bf16",
        Codec::PlanesZstd => "with the bytes of each value apart and zstd at level 1",
    };
    let threads = match nvme.codec_threads {
        0 => "as many threads a disk as half of the cores, 2 to 8".to_owned(),
        1 => "one thread a disk".to_owned(),
        threads => format!("{threads} threads a disk"),
    };
    Some(format!(
        "Pages of new slabs are stored {how}, by {threads}: that saves bytes written and read, not capacity, in whole sectors of \
         {}; a page that does not become a sector smaller is stored as it is.",
        ByteSize(defaults::NVME_ALIGN)
    ))
}

fn encryption(encryption: &Encryption) -> String {
    if encryption.source != KeySource::Off && !encryption.new_slabs {
        return "New slabs are not encrypted; those that are can be read with the key.".to_owned();
    }
    match &encryption.source {
        KeySource::Off => "What is on it is not encrypted: whoever reads the disk reads prompts.".to_owned(),
        KeySource::File(path) => format!("New slabs are encrypted with the key in {}.", path.display()),
        KeySource::Credential(name) => format!("New slabs are encrypted with the key in systemd's credential {name}."),
        KeySource::Ephemeral => {
            "New slabs are encrypted with a key that dies with the daemon: nothing on it can be read after a restart."
                .to_owned()
        }
    }
}

pub(super) fn find(nvme: &NvmeTier, findings: &mut Findings) {
    let key = |index: usize, field: &str| format!("tiers.nvme.disks[{index}].{field}");
    if nvme.admission == Admission::Budget && nvme.disks.iter().all(|disk| disk.bytes_per_day.is_none()) {
        let text = "no disk has bytes_per_day, so there is no budget to keep: every block is written, as with \"all\"";
        findings.warn("tiers.nvme.admission", text);
    }
    for (index, disk) in nvme.disks.iter().enumerate() {
        if let (Some(day), Some(life)) = (disk.bytes_per_day, disk.endurance_bytes)
            && life / day < YEAR_DAYS
        {
            let text = format!(
                "{} a day use up the rated {} in {} days: less than a year; {} a day would last for five",
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
            let text = format!("less than one slab ({}): hardly anything is written", ByteSize(nvme.slab_bytes));
            findings.warn(key(index, "bytes_per_day"), text);
        }
    }
    if nvme.encryption.source == KeySource::Ephemeral {
        let text = "the key dies with the daemon: each start finds a cold cache, and nothing that was reported durable is read again";
        findings.warn("tiers.nvme.encryption.key", text);
    }
    if nvme.codec != Codec::None && nvme.slab_bytes < 2 * defaults::NVME_ALIGN {
        let text = format!(
            "a page in slabs of {} has less than two sectors of {}, and what a codec saves counts in whole ones: it saves nothing",
            ByteSize(nvme.slab_bytes),
            ByteSize(defaults::NVME_ALIGN)
        );
        findings.warn("tiers.nvme.codec", text);
    }
}
