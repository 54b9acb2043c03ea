//! Disks out of service: missing disks, too many errors, panics of threads; and pages that differ from their sampled digest.

use super::faulty::{Fault, Faults};
use super::fixture::*;
use crate::Error;
use crate::{DiskError, DiskEvent, DiskMessage, IoEngine, OpenDisk, Part, Place, Settings, open_all};
use kvtide_types::{IoKind, Status};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const SLOT: u64 = 64 << 10;

fn pages(seed: u64) -> Vec<Part> {
    let host = memory(MIB);
    (0..4).for_each(|page| fill(&host, page * 16384, 16384, page + seed));
    parts(&host, &[16384; 4], 4096, 16384)
}

fn write(rig: &mut Rig, slot: u32, parts: Vec<Part>) -> Box<crate::Transfer> {
    let write = rig.transfer(IoKind::Write, slot, SLOT, parts);
    rig.run(write)
}

fn read(rig: &mut Rig, slot: u32, parts: Vec<Part>) -> Box<crate::Transfer> {
    let read = rig.transfer(IoKind::Read, slot, SLOT, parts);
    rig.run(read)
}

/// Open both disks, the second in `place`.
fn two(dir: &Dir, place: Place) -> Result<Vec<OpenDisk>, Error> {
    open_all(&[dir.settings(), Settings { number: 1, place, ..dir.settings() }], &mut |_| ())
}

#[test]
fn a_disk_that_is_missing_at_start_costs_only_itself() {
    let dir = Dir::new();
    let nowhere = Place::Dir(dir.0.join("not/there"));
    let mut disks = two(&dir, nowhere.clone()).expect("one disk is left");
    let mut missing = Rig::of(disks.pop().unwrap(), |engine| engine).unwrap();
    assert_eq!(missing.until(|_| true), DiskEvent::Failed { disk: 1, errno: libc::ENOENT });
    assert_eq!((missing.disk().regions(), missing.disk().number()), (0, 1));
    missing.send(DiskMessage::Register(memory(MIB)));
    let back = write(&mut missing, 0, pages(0));
    assert_eq!((back.status, back.errno), (Status::Io, libc::ENOENT));
    let status = missing.status();
    assert_eq!((status.out_of_service, status.regions, status.number), (Some(libc::ENOENT), 0, 1));
    missing.end();
    let mut there = Rig::of(disks.pop().unwrap(), |engine| engine).unwrap();
    assert_eq!(write(&mut there, 0, pages(0)).status, Status::Ok);
    assert_eq!(there.status().out_of_service, None);
    there.end();
    let alone = open_all(&[Settings { place: nowhere, ..dir.settings() }], &mut |_| ());
    assert!(matches!(alone.err(), Some(Error::Disk(DiskError::Os { .. }))), "no disk is left");
}

#[test]
fn a_disk_that_must_not_be_used_stops_the_start_before_anything_is_written_anywhere() {
    let (dir, other) = (Dir::new(), Dir::new());
    Rig::start(&dir.settings()).end();
    let before = fs::read(dir.0.join("kvtide.store")).unwrap();
    fs::create_dir(&other.0).unwrap();
    fs::set_permissions(&other.0, fs::Permissions::from_mode(0o700)).unwrap();
    let foreign = other.0.join("kvtide.store");
    fs::write(&foreign, b"somebody's").unwrap();
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o600)).unwrap();
    let refused = two(&dir, Place::Dir(other.0.clone())).err();
    assert!(matches!(refused, Some(Error::Disk(DiskError::Superblock { .. }))), "{refused:?}");
    assert!(fs::read(dir.0.join("kvtide.store")).unwrap() == before, "the first disk was written");
    assert_eq!(fs::read(&foreign).unwrap(), b"somebody's");
    // A new file is not created either.
    let fresh = Dir::new();
    assert!(two(&fresh, Place::Dir(other.0.clone())).is_err());
    assert!(!fresh.0.join("kvtide.store").exists());
}

#[test]
fn too_many_errors_take_a_disk_out_of_service_and_what_it_has_ends() {
    for engine in [IoEngine::Auto, IoEngine::Threads] {
        let dir = Dir::new();
        let faults = Faults::default();
        let settings = Settings { engine, errors_max: 4, ..dir.settings() };
        let mut rig = Rig::with(&settings, faults.wrap()).unwrap();
        let stored = write(&mut rig, 0, pages(1)).parts;
        faults.next(&[(Some(IoKind::Read), Fault::Errno(libc::EIO)); 4]);
        for error in 1..=4 {
            assert_eq!(rig.status().out_of_service, None, "after {} errors", error - 1);
            let back = read(&mut rig, 0, stored.clone());
            assert_eq!((back.status, back.errno), (Status::Io, libc::EIO));
        }
        rig.until(|event| *event == DiskEvent::Failed { disk: 0, errno: libc::EIO });
        let status = rig.status();
        assert_eq!((status.out_of_service, status.errors[&libc::EIO]), (Some(libc::EIO), 4));
        let before = status.written;
        assert_eq!(write(&mut rig, 1, pages(2)).status, Status::Io);
        assert_eq!(rig.status().written, before, "nothing more is written to the disk");
        let back = read(&mut rig, 0, stored);
        assert!(back.status == Status::Ok && back.parts.iter().all(|part| part.ok), "reads still work");
    }
}

#[test]
fn a_file_that_is_truncated_under_the_daemon_is_errors_and_then_the_end() {
    for engine in [IoEngine::Auto, IoEngine::Threads] {
        let dir = Dir::new();
        let mut rig = Rig::start(&Settings { engine, errors_max: 3, ..dir.settings() });
        let stored = write(&mut rig, 1, pages(1)).parts;
        let file = fs::OpenOptions::new().write(true).open(dir.0.join("kvtide.store")).unwrap();
        // In the middle of the slot: reads of the rest are short.
        file.set_len(rig.disk().offset(0, SLOT + 20000)).unwrap();
        for _ in 0..3 {
            assert_eq!(read(&mut rig, 1, stored.clone()).status, Status::Io);
        }
        rig.until(|event| *event == DiskEvent::Failed { disk: 0, errno: 0 });
        assert_eq!(rig.status().errors[&0], 3);
    }
}

#[test]
fn an_io_thread_that_panics_ends_what_it_holds_when_the_device_lets_go_of_it() {
    let dir = Dir::new();
    let faults = Faults::default();
    let mut rig = Rig::with(&dir.settings(), faults.wrap()).unwrap();
    let stored = write(&mut rig, 0, pages(1)).parts;
    faults.next(&[(Some(IoKind::Read), Fault::Stuck)]);
    let stuck = rig.transfer(IoKind::Read, 0, SLOT, stored.clone());
    let (id, frames) = (stuck.id, stuck.parts[0].memory.clone());
    rig.send(DiskMessage::Transfer(stuck));
    assert_eq!(read(&mut rig, 0, pages(9)).status, Status::Ok, "the first read works");
    faults.panic();
    let other = read(&mut rig, 0, pages(9));
    assert!(other.id != id && other.status == Status::Io, "{other:?}");
    rig.until(|event| *event == DiskEvent::Failed { disk: 0, errno: libc::EOWNERDEAD });
    assert_eq!(write(&mut rig, 1, pages(2)).status, Status::Io);
    assert_eq!(rig.status().out_of_service, Some(libc::EOWNERDEAD), "the status is still available");
    assert!(rig.boxes.is_empty() && std::sync::Arc::strong_count(&frames) > 5, "the device may still write to them");
    faults.release();
    let late = rig.take();
    assert!(late.id == id && late.status == Status::Io);
}

#[test]
fn a_page_that_is_not_what_was_stored_is_not_written() {
    let dir = Dir::new();
    let mut rig = Rig::start(&dir.settings());
    let digest = |part: &Part| {
        let page = bytes(&part.memory, part.offset, part.bytes.into());
        crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &page) as u32
    };
    let mut good = pages(1);
    good[1].digest = Some(digest(&good[1]));
    good[3].digest = Some(digest(&good[3]));
    let wrote = write(&mut rig, 0, good.clone());
    assert!(wrote.status == Status::Ok && wrote.parts.iter().all(|part| part.ok));
    // Flip a bit in host memory.
    let spoilt = &good[3];
    let byte = bytes(&spoilt.memory, spoilt.offset + 77, 1)[0];
    // SAFETY: inside the memory; no transfer is in flight.
    unsafe { spoilt.memory.at(spoilt.offset + 77).write(byte ^ 2) };
    let back = write(&mut rig, 0, good.clone());
    assert_eq!(back.status, Status::Corrupt);
    assert_eq!(back.parts.iter().map(|part| part.ok).collect::<Vec<_>>(), [true, true, true, false]);
    let status = rig.status();
    assert_eq!((status.sample_checked, status.sample_failed), (4, 1));
    let mut wanted = wrote.parts;
    wanted.iter_mut().for_each(|part| (part.digest, part.sampled) = (None, part.plane != 2));
    let read = read(&mut rig, 0, wanted);
    assert!(read.status == Status::Ok && read.parts.iter().all(|part| part.ok), "the slot is unchanged");
    for part in &read.parts {
        assert_eq!(part.digest, (part.plane != 2).then(|| digest(part)), "plane {}", part.plane);
    }
}
