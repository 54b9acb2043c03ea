//! Metrics of codecs and encryption: bytes saved and time spent.

use super::disk::each;
use super::family::{Family, Samples};
use crate::status::Snapshot;
use kvtide_nvme::CodedStatus;

/// Call `sample` for each disk, codec and direction with its labels.
fn by_codec(
    snapshot: &Snapshot,
    samples: &mut Samples,
    sample: impl Fn(&CodedStatus, &[(&'static str, &str)], &mut Samples),
) {
    each(snapshot, samples, |disk, number, samples| {
        for (codec, status) in disk.code.codecs.iter() {
            for (direction, coded) in [("encode", &status.encoded), ("decode", &status.decoded)] {
                sample(coded, &[("disk", number), ("codec", codec.name()), ("direction", direction)], samples);
            }
        }
    });
}

/// Families of codecs and encryption.
pub(super) const FAMILIES: &[Family] = &[
    Family::counter("kvtide_codec_pages", "Pages processed by a codec.", |snapshot, samples| {
        by_codec(snapshot, samples, |coded, labels, samples| samples.whole(labels, coded.pages));
    }),
    Family::counter(
        "kvtide_codec_raw_pages",
        "Pages stored uncompressed because the codec did not save a sector.",
        |snapshot, samples| by_codec(snapshot, samples, |coded, labels, samples| samples.whole(labels, coded.raw)),
    ),
    Family::counter(
        "kvtide_codec_plain_bytes",
        "Uncompressed bytes of the pages processed by a codec.",
        |snapshot, samples| {
            by_codec(snapshot, samples, |coded, labels, samples| samples.whole(labels, coded.plain_bytes));
        },
    ),
    Family::counter(
        "kvtide_codec_stored_bytes",
        "Stored bytes of the pages processed by a codec.",
        |snapshot, samples| {
            by_codec(snapshot, samples, |coded, labels, samples| samples.whole(labels, coded.stored_bytes));
        },
    ),
    Family::counter("kvtide_codec_cpu_seconds", "Time that the codec threads spent in codecs.", |snapshot, samples| {
        by_codec(snapshot, samples, |coded, labels, samples| samples.real(labels, coded.ns as f64 * 1e-9));
    }),
    Family::counter("kvtide_encryption_bytes", "Bytes encrypted or decrypted.", |snapshot, samples| {
        each(snapshot, samples, |disk, number, samples| {
            for (direction, status) in [("encrypt", &disk.code.encrypted), ("decrypt", &disk.code.decrypted)] {
                samples.whole(&[("disk", number), ("direction", direction)], status.bytes);
            }
        });
    }),
    Family::counter(
        "kvtide_encryption_cpu_seconds",
        "Time that the codec threads spent in encryption and decryption.",
        |snapshot, samples| {
            each(snapshot, samples, |disk, number, samples| {
                for (direction, status) in [("encrypt", &disk.code.encrypted), ("decrypt", &disk.code.decrypted)] {
                    samples.real(&[("disk", number), ("direction", direction)], status.ns as f64 * 1e-9);
                }
            });
        },
    ),
];
