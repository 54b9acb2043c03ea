//! Codecs and encryption: what they save and what they cost.

use super::disk::each;
use super::family::{Family, Samples};
use crate::io::{CodeStatus, CodedStatus};
use crate::status::Snapshot;

/// Calls `sample` with the labels of each codec and direction of each disk.
fn by_codec(
    snapshot: &Snapshot,
    samples: &mut Samples,
    sample: impl Fn(&CodedStatus, &[(&'static str, &str)], &mut Samples),
) {
    each(snapshot, samples, |disk, number, samples| {
        let CodeStatus { lz4, planes_zstd, .. } = &disk.code;
        for (codec, status) in [("lz4", lz4), ("planes-zstd", planes_zstd)] {
            for (direction, coded) in [("encode", &status.encoded), ("decode", &status.decoded)] {
                sample(coded, &[("disk", number), ("codec", codec), ("direction", direction)], samples);
            }
        }
    });
}

/// The table.
pub(super) const FAMILIES: &[Family] = &[
    Family::counter("kvtide_codec_pages", "Pages that went through a codec.", |snapshot, samples| {
        by_codec(snapshot, samples, |coded, labels, samples| samples.whole(labels, coded.pages));
    }),
    Family::counter(
        "kvtide_codec_raw_pages",
        "Of those, pages that stayed as they are, because they do not shrink by a sector.",
        |snapshot, samples| by_codec(snapshot, samples, |coded, labels, samples| samples.whole(labels, coded.raw)),
    ),
    Family::counter("kvtide_codec_plain_bytes", "Bytes of pages that went through a codec.", |snapshot, samples| {
        by_codec(snapshot, samples, |coded, labels, samples| samples.whole(labels, coded.plain_bytes));
    }),
    Family::counter("kvtide_codec_stored_bytes", "Bytes of their stored form.", |snapshot, samples| {
        by_codec(snapshot, samples, |coded, labels, samples| samples.whole(labels, coded.stored_bytes));
    }),
    Family::counter(
        "kvtide_codec_cpu_seconds",
        "Time that codecs took of the disks' codec threads.",
        |snapshot, samples| {
            by_codec(snapshot, samples, |coded, labels, samples| samples.real(labels, coded.ns as f64 * 1e-9));
        },
    ),
    Family::counter("kvtide_encryption_bytes", "Bytes that were encrypted or decrypted.", |snapshot, samples| {
        each(snapshot, samples, |disk, number, samples| {
            for (direction, status) in [("encrypt", &disk.code.encrypted), ("decrypt", &disk.code.decrypted)] {
                samples.whole(&[("disk", number), ("direction", direction)], status.bytes);
            }
        });
    }),
    Family::counter(
        "kvtide_encryption_cpu_seconds",
        "Time that encryption took of the disks' codec threads.",
        |snapshot, samples| {
            each(snapshot, samples, |disk, number, samples| {
                for (direction, status) in [("encrypt", &disk.code.encrypted), ("decrypt", &disk.code.decrypted)] {
                    samples.real(&[("disk", number), ("direction", direction)], status.ns as f64 * 1e-9);
                }
            });
        },
    ),
];
