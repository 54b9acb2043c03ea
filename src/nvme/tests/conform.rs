//! Behaviour that every engine must have, with and without page cache and registered memory.

use super::fixture::*;
use crate::{DiskMessage, FeatureUse, IoEngine, Part, Settings, Transfer};
use kvtide_types::{IoClass, IoKind, Status};
use std::path::Path;
use std::sync::Arc;

/// Return all modes that work here; the resulting mode shows what does not.
fn modes(dir: &Dir) -> Vec<Settings> {
    let mut all = Vec::new();
    for engine in [IoEngine::Uring, IoEngine::Threads] {
        if engine == IoEngine::Uring && !uring_works() {
            continue;
        }
        for direct in [FeatureUse::Auto, FeatureUse::Off] {
            for registered in [FeatureUse::Auto, FeatureUse::Off] {
                if engine == IoEngine::Uring || registered == FeatureUse::Off {
                    all.push(Settings { engine, direct, registered, ..dir.settings() });
                }
            }
        }
    }
    all
}

/// Run a check in every mode.
fn in_every_mode(check: impl Fn(&mut Rig, &str)) {
    let dir = Dir::new();
    for settings in modes(&dir) {
        let mut rig = Rig::start(&settings);
        let mode = rig.status().mode;
        check(&mut rig, &mode);
        rig.end();
    }
}

/// Write pages, clear the frames, read them back, and compare.
fn round_trip(rig: &mut Rig, mode: &str, slot: u32, slot_bytes: u64, parts: Vec<Part>) {
    for part in &parts {
        fill(&part.memory, part.offset, part.bytes.into(), u64::from(slot * 100 + u32::from(part.plane)));
    }
    let before: Vec<Vec<u8>> = parts.iter().map(|p| bytes(&p.memory, p.offset, p.bytes.into())).collect();
    let write = rig.transfer(IoKind::Write, slot, slot_bytes, parts);
    let wrote = rig.run(write);
    assert_eq!((wrote.status, wrote.errno), (Status::Ok, 0), "{mode}: write");
    let mut parts = wrote.parts;
    for part in &mut parts {
        part.ok = false;
        fill(&part.memory, part.offset, part.bytes.into(), 255);
    }
    let read = rig.transfer(IoKind::Read, slot, slot_bytes, parts);
    let read = rig.run(read);
    assert_eq!((read.status, read.errno), (Status::Ok, 0), "{mode}: read");
    for (part, before) in read.parts.iter().zip(&before) {
        assert!(part.ok, "{mode}: checksum of plane {}", part.plane);
        assert!(bytes(&part.memory, part.offset, part.bytes.into()) == *before, "{mode}: plane {}", part.plane);
    }
}

#[test]
fn what_was_written_is_read() {
    in_every_mode(|rig, mode| {
        let host = memory(8 * MIB);
        rig.send(DiskMessage::Register(Arc::clone(&host)));
        // One range, several adjacent in memory, several apart, sizes that are not whole sectors, and all together.
        round_trip(rig, mode, 0, 65536, parts(&host, &[65536], 4096, 65536));
        round_trip(rig, mode, 1, 262_144, parts(&host, &[65536; 4], 4096, 65536));
        round_trip(rig, mode, 2, 262_144, parts(&host, &[32768; 8], 4096, 131_072));
        round_trip(rig, mode, 3, 65536, parts(&host, &[1000, 3000, 77, 4097, 5000], 64, 8192));
        round_trip(rig, mode, 4, 65536, parts(&host, &[4096, 512, 1536, 8192, 100], 512, 8192));
        // A page larger than a staging chunk, at an address that direct I/O does not accept.
        let mut large = parts(&host, &[600_000, 4096], 64, 700_000);
        large[0].offset = 4 * MIB + 8;
        round_trip(rig, mode, 0, MIB, large);
        rig.send(DiskMessage::Forget(host));
    });
}

#[test]
fn single_pages_of_a_block_are_read() {
    in_every_mode(|rig, mode| {
        let host = memory(2 * MIB);
        for (slot, sizes, align) in [(0, &[4096; 8][..], 4096), (1, &[1000, 3000, 77, 4097, 5000][..], 64)] {
            let all = parts(&host, sizes, align, 16384);
            for part in &all {
                fill(&host, part.offset, part.bytes.into(), u64::from(part.plane) + 1);
            }
            let write = rig.transfer(IoKind::Write, slot, 65536, all);
            let wrote = rig.run(write);
            assert_eq!(wrote.status, Status::Ok, "{mode}");
            for part in &wrote.parts {
                let before = bytes(&host, part.offset, part.bytes.into());
                let mut one = part.clone();
                one.offset = MIB + part.offset;
                let read = rig.transfer(IoKind::Read, slot, 65536, vec![one]);
                let read = rig.run(read);
                assert!(read.status == Status::Ok && read.parts[0].ok, "{mode}: plane {}", part.plane);
                assert!(bytes(&host, MIB + part.offset, part.bytes.into()) == before, "{mode}: plane {}", part.plane);
            }
        }
    });
}

#[test]
fn pages_that_are_written_later_leave_their_neighbours_in_the_sector_alone() {
    in_every_mode(|rig, mode| {
        let host = memory(2 * MIB);
        let all = parts(&host, &[1000, 3000, 77, 4097, 5000, 300], 64, 8192);
        for part in &all {
            fill(&host, part.offset, part.bytes.into(), u64::from(part.plane) + 1);
        }
        let mut crcs = vec![0; all.len()];
        // All in flight at once: those that share sectors must wait for each other.
        for part in &all {
            let mut write = rig.transfer(IoKind::Write, 0, 65536, vec![part.clone()]);
            write.whole = false;
            rig.send(DiskMessage::Transfer(write));
        }
        for _ in &all {
            let wrote = rig.take();
            assert_eq!(wrote.status, Status::Ok, "{mode}");
            crcs[usize::from(wrote.parts[0].plane)] = wrote.parts[0].crc;
        }
        let mut back = all;
        for (part, crc) in back.iter_mut().zip(crcs) {
            part.crc = crc;
        }
        let read = rig.transfer(IoKind::Read, 0, 65536, back);
        let read = rig.run(read);
        assert!(read.status == Status::Ok && read.parts.iter().all(|part| part.ok), "{mode}: {read:?}");
    });
}

#[test]
fn a_checksum_covers_whose_page_it_is() {
    in_every_mode(|rig, mode| {
        let host = memory(MIB);
        fill(&host, 0, 8192, 3);
        let write = rig.transfer(IoKind::Write, 0, 8192, parts(&host, &[4096, 4096], 4096, 4096));
        let wrote = rig.run(write);
        let mut read = rig.transfer(IoKind::Read, 0, 8192, wrote.parts.clone());
        read.key.generation += 1;
        let old = rig.run(read);
        assert!(
            old.status == Status::Ok && old.parts.iter().all(|part| !part.ok),
            "{mode}: old bytes of a reused slot"
        );
        let mut swapped = wrote.parts;
        swapped.swap(0, 1);
        (swapped[0].at, swapped[1].at) = (0, 4096);
        let read = rig.transfer(IoKind::Read, 0, 8192, swapped);
        let swapped = rig.run(read);
        assert!(swapped.parts.iter().all(|part| !part.ok), "{mode}: swapped planes");
        assert_eq!(rig.status().checksum_failures, 4, "{mode}");
    });
}

#[test]
fn many_transfers_at_once_all_come_back_once() {
    in_every_mode(|rig, mode| {
        let host = memory(8 * MIB);
        rig.send(DiskMessage::Register(Arc::clone(&host)));
        let (slots, rounds) = (64u32, 8);
        let page = |slot: u32| Part { offset: u64::from(slot) * 8192, ..parts(&host, &[8192], 4096, 0)[0].clone() };
        let mut crcs = vec![0; slots as usize];
        for slot in 0..slots {
            fill(&host, u64::from(slot) * 8192, 8192, u64::from(slot));
            let write = rig.transfer(IoKind::Write, slot, 8192, vec![page(slot)]);
            rig.send(DiskMessage::Transfer(write));
        }
        for _ in 0..slots {
            let wrote = rig.take();
            assert_eq!(wrote.status, Status::Ok, "{mode}");
            crcs[wrote.key.slot as usize] = wrote.parts[0].crc;
        }
        let mut seen = vec![0; (slots * rounds) as usize];
        let first = rig.next + 1;
        for round in 0..rounds {
            for slot in 0..slots {
                let mut part = page(slot);
                part.offset += 4 * MIB;
                part.crc = crcs[slot as usize];
                let mut read = rig.transfer(IoKind::Read, slot, 8192, vec![part]);
                read.class = [IoClass::Demand, IoClass::Prefetch, IoClass::WriteBack][(round % 3) as usize];
                rig.send(DiskMessage::Transfer(read));
            }
        }
        for _ in 0..slots * rounds {
            let read = rig.take();
            assert!(read.status == Status::Ok && read.parts[0].ok, "{mode}: {read:?}");
            seen[(read.id - first) as usize] += 1;
        }
        assert!(seen.iter().all(|count| *count == 1), "{mode}");
        let status = rig.status();
        assert_eq!((status.at_device, status.classes.map(|c| c.queued + c.at_device)), (0, [0; 3]), "{mode}");
        let reads: u64 = status.classes.iter().map(|class| class.reads.transfers).sum();
        assert_eq!(reads, u64::from(slots * rounds), "{mode}");
    });
}

#[test]
fn what_names_nothing_is_refused() {
    in_every_mode(|rig, mode| {
        let host = memory(MIB);
        let good = |rig: &mut Rig| rig.transfer(IoKind::Read, 0, 8192, parts(&host, &[4096, 4096], 4096, 4096));
        let bad: [fn(&mut Transfer); 8] = [
            |t| t.offset = 0,
            |t| t.offset = u64::MAX - 4095,
            |t| t.offset += 512,
            |t| t.bytes = 4096,
            |t| t.parts.clear(),
            |t| t.parts[1].at = 100,
            |t| t.parts[0].offset = MIB - 100,
            |t| t.parts[0].bytes = 0,
        ];
        for (index, spoil) in bad.into_iter().enumerate() {
            let mut transfer = good(rig);
            spoil(&mut transfer);
            assert_eq!(rig.run(transfer).status, Status::Invalid, "{mode}: {index}");
        }
    });
}

#[test]
fn a_directory_in_memory_works_too() {
    let parent = Path::new("/dev/shm");
    if !parent.is_dir() {
        return; // /dev/shm is not available here
    }
    let dir = Dir::within(parent);
    let mut rig = Rig::start(&dir.settings());
    let mode = rig.status().mode;
    let host = memory(MIB);
    round_trip(&mut rig, &mode, 0, 65536, parts(&host, &[1000, 3000, 77, 4097, 5000], 64, 8192));
    round_trip(&mut rig, &mode, 1, 65536, parts(&host, &[65536], 4096, 65536));
}
