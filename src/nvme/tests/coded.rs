//! Coded and encrypted slabs over real files: the coding pool between the I/O thread and the device.

use super::faulty::{Fault, Faults};
use super::fixture::*;
use crate::{
    Codec, DiskMessage, Encryption, FeatureUse, IoEngine, KeySource, Keyring, Part, Settings, SlabCode, Transfer,
};
use kvtide_format::log::{SlabHeader, Storage};
use kvtide_types::{IoKind, Status};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Storage for a key that is never written.
struct Nowhere;

impl Storage for Nowhere {
    fn read(&mut self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Create a slab's code and the keyring of its disk.
fn code(codec: Codec, encrypted: bool) -> (Arc<SlabCode>, Keyring) {
    let encryption = Encryption { source: KeySource::Ephemeral, new_slabs: true };
    let keyring = Keyring::open(1, &encryption, None, &[]).unwrap();
    keyring.begin(1).unwrap();
    let slab = SlabHeader { codec: codec.code(), encrypted, ..SlabHeader::new(0, 1, [0; 32], "a", MIB, vec![4096]) };
    (keyring.grant(&slab, &mut Nowhere).unwrap().unwrap(), keyring)
}

const ALL: [(Codec, bool); 5] = [
    (Codec::Lz4, false),
    (Codec::PlanesZstd, false),
    (Codec::None, true),
    (Codec::Lz4, true),
    (Codec::PlanesZstd, true),
];

/// Fill frames so that every other page is compressible.
fn fill_some(parts: &[Part], seed: u64) {
    for part in parts {
        fill(&part.memory, part.offset, part.bytes.into(), seed + u64::from(part.plane));
        if part.plane % 2 == 0 {
            for at in 0..u64::from(part.bytes) {
                // SAFETY: inside the memory, as checked in `fill`; no transfer is in flight.
                unsafe { part.memory.at(part.offset + at).write((seed + at / 700) as u8) };
            }
        }
    }
}

fn contents(parts: &[Part]) -> Vec<Vec<u8>> {
    parts.iter().map(|p| bytes(&p.memory, p.offset, p.bytes.into())).collect()
}

fn write(rig: &mut Rig, code: &Arc<SlabCode>, slot: u32, slot_bytes: u64, parts: Vec<Part>) -> Box<Transfer> {
    let mut transfer = rig.transfer(IoKind::Write, slot, slot_bytes, parts);
    transfer.code = Some(Arc::clone(code));
    rig.run(transfer)
}

/// Create the read of a written transfer.
fn reading(rig: &mut Rig, wrote: &Transfer, slot_bytes: u64) -> Box<Transfer> {
    let mut parts = wrote.parts.clone();
    parts.iter_mut().for_each(|part| part.ok = false);
    let mut transfer = rig.transfer(IoKind::Read, wrote.key.slot, slot_bytes, parts);
    (transfer.code, transfer.salt) = (wrote.code.clone(), wrote.salt);
    transfer
}

fn round_trip(rig: &mut Rig, code: &Arc<SlabCode>, what: &str, slot: u32, slot_bytes: u64, parts: Vec<Part>) {
    fill_some(&parts, u64::from(slot) + 1);
    let before = contents(&parts);
    let wrote = write(rig, code, slot, slot_bytes, parts);
    assert_eq!((wrote.status, wrote.errno), (Status::Ok, 0), "{what}: write");
    let shrink = wrote.parts.iter().filter(|part| part.bytes > 4096 && part.plane % 2 == 0);
    assert!(shrink.into_iter().all(|part| (part.sectors > 0) == code.is_coded()), "{what}: {:?}", wrote.parts);
    assert_eq!(wrote.salt > 0, code.is_encrypted());
    assert_eq!(contents(&wrote.parts), before, "{what}: frames are unchanged");
    for part in &wrote.parts {
        fill(&part.memory, part.offset, part.bytes.into(), 255);
    }
    let read = reading(rig, &wrote, slot_bytes);
    let read = rig.run(read);
    assert_eq!((read.status, read.errno), (Status::Ok, 0), "{what}: read");
    assert!(read.parts.iter().all(|part| part.ok), "{what}: {:?}", read.parts);
    assert!(contents(&read.parts) == before, "{what}");
}

#[test]
fn what_was_written_is_read_in_every_mode_and_form() {
    let dir = Dir::new();
    for engine in [IoEngine::Uring, IoEngine::Threads] {
        if engine == IoEngine::Uring && !uring_works() {
            continue;
        }
        for direct in [FeatureUse::Auto, FeatureUse::Off] {
            let mut rig = Rig::start(&Settings { engine, direct, ..dir.settings() });
            let host = memory(8 * MIB);
            rig.send(DiskMessage::Register(Arc::clone(&host)));
            for (codec, encrypted) in ALL {
                let (code, _keyring) = code(codec, encrypted);
                let what = format!("{} {codec:?} {encrypted}", rig.status().mode);
                round_trip(&mut rig, &code, &what, 0, 65536, parts(&host, &[65536], 4096, 65536));
                round_trip(&mut rig, &code, &what, 1, 262_144, parts(&host, &[32768; 8], 4096, 131_072));
                // No sectors, less than a sector, more than a sector, larger than a staging chunk, and at unaligned addresses.
                round_trip(&mut rig, &code, &what, 3, 65536, parts(&host, &[1000, 3000, 77, 4097, 5000], 64, 8192));
                let mut large = parts(&host, &[600_000, 4096, 300_001], 64, 700_000);
                large[0].offset = 4 * MIB + 8;
                round_trip(&mut rig, &code, &what, 0, MIB, large);
            }
            rig.end();
        }
    }
}

#[test]
fn counters_say_what_was_done_and_plain_slabs_have_none() {
    let dir = Dir::new();
    let mut rig = Rig::start(&dir.settings());
    let host = memory(MIB);
    let pages = || parts(&host, &[16384; 4], 4096, 16384);
    fill_some(&pages(), 1);
    let plain = rig.transfer(IoKind::Write, 0, 65536, pages());
    let plain = rig.run(plain);
    assert!(plain.status == Status::Ok && plain.parts.iter().all(|part| part.sectors == 0));
    let before = rig.status();
    assert_eq!(before.code, Default::default(), "plain slabs do not use the pool");
    let (both, _keyring) = code(Codec::PlanesZstd, true);
    let wrote = write(&mut rig, &both, 0, 65536, pages());
    let read = reading(&mut rig, &wrote, 65536);
    assert_eq!(rig.run(read).status, Status::Ok);
    let status = rig.status();
    let stored: u64 =
        wrote.parts.iter().map(|p| if p.sectors == 0 { 16384 } else { u64::from(p.sectors) * 4096 }).sum();
    let (encoded, decoded) =
        (status.code.codecs[Codec::PlanesZstd].encoded, status.code.codecs[Codec::PlanesZstd].decoded);
    assert_eq!((encoded.pages, encoded.plain_bytes, encoded.stored_bytes), (4, 65536, stored));
    assert_eq!(encoded.pages - encoded.raw, decoded.pages, "pages stored unchanged are not decoded");
    assert_eq!((status.code.encrypted.bytes, status.code.decrypted.bytes), (stored, stored));
    assert!(encoded.ns > 0 && decoded.ns > 0 && status.code.encrypted.ns > 0);
    assert_eq!(
        status.written.request_bytes - before.written.request_bytes,
        stored,
        "only the stored bytes are written"
    );
    assert_eq!(status.checksum_failures, 0);
}

#[test]
fn nothing_of_an_encrypted_page_can_be_read_on_the_disk() {
    let dir = Dir::new();
    let mut rig = Rig::start(&dir.settings());
    let host = memory(MIB);
    for (codec, encrypted) in [(Codec::None, true), (Codec::PlanesZstd, true)] {
        let (code, _keyring) = code(codec, encrypted);
        let pages = parts(&host, &[16384; 4], 4096, 16384);
        fill_some(&pages, 9);
        let before = contents(&pages);
        assert_eq!(write(&mut rig, &code, 0, 65536, pages).status, Status::Ok);
        let file = std::fs::File::open(dir.0.join("kvtide.store")).unwrap();
        let mut slot = vec![0; 65536];
        file.read_exact_at(&mut slot, rig.disk().offset(0, 0)).unwrap();
        for page in &before {
            assert!(!slot.windows(16).any(|window| window == &page[4000..4016]), "{codec:?}");
        }
    }
}

#[test]
fn a_flipped_bit_costs_its_page_and_no_frame_gets_what_was_not_written() {
    let dir = Dir::new();
    let mut rig = Rig::start(&Settings { direct: FeatureUse::Off, ..dir.settings() });
    let host = memory(MIB);
    for (codec, encrypted) in ALL {
        let (code, _keyring) = code(codec, encrypted);
        let pages = parts(&host, &[16384; 4], 4096, 16384);
        fill_some(&pages, 3);
        let before = contents(&pages);
        let wrote = write(&mut rig, &code, 0, 65536, pages);
        let file = std::fs::File::options().write(true).read(true).open(dir.0.join("kvtide.store")).unwrap();
        for (part, at) in wrote.parts.iter().zip([0, 1, 4095, 2048]) {
            let place = rig.disk().offset(0, part.at + at);
            let mut byte = [0];
            file.read_exact_at(&mut byte, place).unwrap();
            file.write_all_at(&[byte[0] ^ 16], place).unwrap();
            for other in &wrote.parts {
                fill(&other.memory, other.offset, other.bytes.into(), 255);
            }
            let wiped = contents(&wrote.parts);
            let read = reading(&mut rig, &wrote, 65536);
            let read = rig.run(read);
            assert_eq!(read.status, Status::Ok);
            let found = contents(&read.parts);
            for ((part, other), plane) in
                wrote.parts.iter().zip(&read.parts).map(|(w, r)| ((part, r), w.plane as usize))
            {
                let spoilt = part.plane == other.plane;
                assert_eq!(other.ok, !spoilt, "{codec:?} {encrypted}: byte {at} of plane {}", part.plane);
                let expected = if spoilt { &wiped[plane] } else { &before[plane] };
                // Only pages decrypted in their frame leave garbage there.
                assert!(found[plane] == *expected || (spoilt && codec == Codec::None), "{codec:?} {encrypted}");
            }
            file.write_all_at(&byte, place).unwrap();
        }
        let read = reading(&mut rig, &wrote, 65536);
        assert!(rig.run(read).parts.iter().all(|part| part.ok));
    }
    assert_eq!(rig.status().checksum_failures, 4 * ALL.len() as u64);
}

#[test]
fn a_page_of_another_generation_salt_or_tag_is_not_taken() {
    let dir = Dir::new();
    let mut rig = Rig::start(&dir.settings());
    let host = memory(MIB);
    let (code, _keyring) = code(Codec::None, true);
    let pages = parts(&host, &[16384; 2], 4096, 16384);
    fill_some(&pages, 3);
    let wrote = write(&mut rig, &code, 0, 65536, pages);
    let spoilt: [fn(&mut Transfer); 5] = [
        |read| read.key.generation += 1,
        |read| read.salt += 1,
        |read| read.parts.iter_mut().for_each(|part| part.crc += 1),
        |read| read.parts.iter_mut().for_each(|part| part.tag[7] ^= 1),
        |read| read.key.region = 1,
    ];
    for spoil in spoilt {
        let mut read = reading(&mut rig, &wrote, 65536);
        spoil(&mut read);
        let read = rig.run(read);
        assert!(read.status == Status::Ok && read.parts.iter().all(|part| !part.ok), "{read:?}");
    }
    let mut odd = reading(&mut rig, &wrote, 65536);
    odd.parts[0].sectors = 1;
    assert_eq!(rig.run(odd).status, Status::Invalid, "a slab without a codec cannot have a coded page");
    let mut beside = rig.transfer(IoKind::Write, 0, 65536, wrote.parts[..1].to_vec());
    (beside.code, beside.salt) = (Some(Arc::clone(&code)), wrote.salt + 1);
    assert_eq!(rig.run(beside).status, Status::Io, "a slot has only one salt");
}

#[test]
fn more_than_its_memory_holds_waits_its_turn() {
    let dir = Dir::new();
    let mut rig = Rig::start(&Settings { depth: 64, codec_threads: 2, ..dir.settings() });
    let slot = 2 * MIB;
    let count = 48u32;
    let host = memory(u64::from(count + 1) * slot);
    let frames = |at: u32| {
        let mut parts = parts(&host, &[262_144; 8], 4096, 262_144);
        parts.iter_mut().for_each(|part| part.offset += u64::from(at) * slot);
        parts
    };
    let (code, _keyring) = code(Codec::Lz4, true);
    fill_some(&frames(count), 5);
    // Raw pages too: they need memory for all their bytes when read.
    let before = contents(&frames(count));
    let wrote = write(&mut rig, &code, 0, slot, frames(count));
    assert_eq!(wrote.status, Status::Ok);
    for at in 0..count {
        let mut read = reading(&mut rig, &wrote, slot);
        for (part, frame) in read.parts.iter_mut().zip(frames(at)) {
            part.offset = frame.offset;
        }
        rig.send(DiskMessage::Transfer(read));
        if at % 8 == 0 {
            let mut again = rig.transfer(IoKind::Write, 0, slot, frames(count));
            (again.code, again.key.slot) = (Some(Arc::clone(&code)), 0);
            again.offset = rig.disk().offset(1, 0);
            again.key.region = 1;
            rig.send(DiskMessage::Transfer(again));
        }
    }
    for _ in 0..count + count / 8 {
        let back = rig.take();
        assert_eq!(back.status, Status::Ok);
        assert!(back.kind == IoKind::Write || back.parts.iter().all(|part| part.ok));
        assert!(contents(&back.parts) == before);
    }
    rig.end();
}

#[test]
fn more_write_back_than_the_cap_admits_waits_its_turn() {
    let dir = Dir::new();
    let mut rig = Rig::start(&Settings { depth: 64, writeback_bytes: MIB, ..dir.settings() });
    let host = memory(2 * MIB);
    let (code, _keyring) = code(Codec::None, true);
    // A transfer larger than the read-ahead of encoding, one larger than the cap, and enough to fill both.
    for (count, pages) in [(1u32, vec![262_144; 8]), (64, vec![262_144; 4])] {
        let pages = parts(&host, &pages, 4096, 262_144);
        let bytes = pages.iter().map(|part| u64::from(part.bytes)).sum();
        fill_some(&pages, 1);
        for _ in 0..count {
            let mut transfer = rig.transfer(IoKind::Write, 0, bytes, pages.clone());
            transfer.code = Some(Arc::clone(&code));
            rig.send(DiskMessage::Transfer(transfer));
        }
        assert!((0..count).all(|_| rig.take().status == Status::Ok));
    }
    let status = rig.status();
    assert_eq!((status.writeback_bytes, status.at_device), (0, 0), "completed transfers are no longer counted");
}

#[test]
fn errors_of_the_device_end_in_errors_and_nothing_is_kept() {
    let dir = Dir::new();
    let faults = Faults::default();
    let settings = Settings { errors_max: 10_000, ..dir.settings() };
    let mut rig = Rig::with(&settings, faults.wrap()).expect("cannot start the disk");
    let host = memory(4 * MIB);
    let (code, _keyring) = code(Codec::Lz4, true);
    let pages = || parts(&host, &[524_288; 3], 4096, 524_288);
    fill_some(&pages(), 5);
    let wrote = write(&mut rig, &code, 0, 2 * MIB, pages());
    // Far more than the memory between pool and device, if it leaked.
    faults.always(Some(Fault::Errno(libc::EIO)));
    for _ in 0..60 {
        let failed = write(&mut rig, &code, 0, 2 * MIB, pages());
        assert_eq!((failed.status, failed.errno), (Status::Io, libc::EIO));
        let read = reading(&mut rig, &wrote, 2 * MIB);
        assert_eq!(rig.run(read).status, Status::Io);
    }
    faults.always(None);
    faults.next(&[(Some(IoKind::Write), Fault::Half), (Some(IoKind::Write), Fault::Short(4096))]);
    round_trip(&mut rig, &code, "short", 0, 2 * MIB, pages());
    faults.next(&[(Some(IoKind::Read), Fault::Flip)]);
    let wrote = write(&mut rig, &code, 0, 2 * MIB, pages());
    let read = reading(&mut rig, &wrote, 2 * MIB);
    let read = rig.run(read);
    assert_eq!(read.parts.iter().filter(|part| !part.ok).count(), 1, "the page with the flipped bit");
    rig.end();
}

#[test]
fn the_sample_is_compared_on_the_way_down_and_told_on_the_way_up() {
    let dir = Dir::new();
    let mut rig = Rig::start(&dir.settings());
    let host = memory(MIB);
    for (codec, encrypted) in ALL {
        let (code, _keyring) = code(codec, encrypted);
        let mut pages = parts(&host, &[16384; 2], 4096, 16384);
        fill_some(&pages, 3);
        let digests: Vec<u32> = contents(&pages)
            .iter()
            .map(|page| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, page) as u32)
            .collect();
        pages[0].digest = Some(digests[0]);
        let wrote = write(&mut rig, &code, 0, 65536, pages.clone());
        assert_eq!(wrote.status, Status::Ok, "{codec:?}");
        let mut read = reading(&mut rig, &wrote, 65536);
        for part in &mut read.parts {
            (part.digest, part.sampled) = (None, part.plane == 1);
        }
        let read = rig.run(read);
        assert_eq!((read.parts[0].digest, read.parts[1].digest), (None, Some(digests[1])), "{codec:?}");
        pages[1].digest = Some(digests[1] ^ 4);
        let refused = write(&mut rig, &code, 0, 65536, pages);
        assert_eq!(refused.status, Status::Corrupt, "{codec:?}");
        assert_eq!((refused.parts[0].ok, refused.parts[1].ok), (true, false));
        let read = reading(&mut rig, &wrote, 65536);
        assert!(rig.run(read).parts.iter().all(|part| part.ok), "the slot was not overwritten");
    }
    let status = rig.status();
    assert_eq!((status.sample_checked, status.sample_failed), (3 * ALL.len() as u64, ALL.len() as u64));
}

#[test]
fn every_box_comes_back_when_the_disk_ends() {
    let dir = Dir::new();
    let mut rig = Rig::start(&Settings { codec_threads: 1, ..dir.settings() });
    let host = memory(4 * MIB);
    let (code, _keyring) = code(Codec::PlanesZstd, true);
    let pages = parts(&host, &[262_144; 4], 4096, 262_144);
    fill_some(&pages, 1);
    for _ in 0..40 {
        let mut transfer = rig.transfer(IoKind::Write, 0, MIB, pages.clone());
        transfer.code = Some(Arc::clone(&code));
        rig.send(DiskMessage::Transfer(transfer));
    }
    rig.thread.take().unwrap().end();
    let back: Vec<Status> = (0..40).map(|_| rig.take().status).collect();
    assert!(back.iter().all(|status| matches!(status, Status::Ok | Status::Canceled)), "{back:?}");
}
