//! Devices with errors, short transfers, corrupted data, and no response.

use super::faulty::{Fault, Faults};
use super::fixture::*;
use crate::{DiskEvent, DiskMessage, FeatureUse, IoEngine, Memory, Part, Settings};
use kvtide_types::{IoClass, IoKind, Status};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const READ: Option<IoKind> = Some(IoKind::Read);
const WRITE: Option<IoKind> = Some(IoKind::Write);
/// Requests in flight for longer mark the device as stalled.
const SHORT: Duration = Duration::from_millis(200);

fn spoilt(settings: &Settings) -> (Rig, Faults) {
    let faults = Faults::default();
    let rig = Rig::with(settings, faults.wrap()).expect("cannot start the disk");
    (rig, faults)
}

/// Write four pages into a slot; return them for reading.
fn written(rig: &mut Rig, slot: u32) -> Vec<Part> {
    let host = memory(MIB);
    for page in 0..4 {
        fill(&host, page * 16384, 16384, page + 1);
    }
    let write = rig.transfer(IoKind::Write, slot, 65536, parts(&host, &[16384; 4], 4096, 16384));
    let wrote = rig.run(write);
    assert_eq!(wrote.status, Status::Ok);
    wrote.parts
}

#[test]
fn an_error_of_the_device_is_an_error_and_nothing_else_suffers() {
    let dir = Dir::new();
    let (mut rig, faults) = spoilt(&dir.settings());
    let pages = written(&mut rig, 0);
    for (kind, errno, status) in [
        (IoKind::Read, libc::EIO, Status::Io),
        (IoKind::Write, libc::EIO, Status::Io),
        (IoKind::Write, libc::ENOSPC, Status::NoSpace),
    ] {
        faults.next(&[(Some(kind), Fault::Errno(errno))]);
        let transfer = rig.transfer(kind, 1, 65536, pages.clone());
        let back = rig.run(transfer);
        assert_eq!((back.status, back.errno), (status, errno));
        assert_eq!(back.parts.len(), pages.len(), "the box comes back with all pages");
    }
    let read = rig.transfer(IoKind::Read, 0, 65536, pages);
    let read = rig.run(read);
    assert!(read.status == Status::Ok && read.parts.iter().all(|part| part.ok));
    let status = rig.status();
    assert_eq!((status.errors.get(&libc::EIO), status.errors.get(&libc::ENOSPC)), (Some(&2), Some(&1)));
    assert_eq!((status.classes[0].reads.failed, status.classes[2].writes.failed), (1, 2));
}

#[test]
fn a_device_that_went_read_only_is_told_of_once() {
    let dir = Dir::new();
    let (mut rig, faults) = spoilt(&dir.settings());
    let pages = written(&mut rig, 0);
    faults.next(&[(WRITE, Fault::Errno(libc::EROFS)); 2]);
    for _ in 0..2 {
        let write = rig.transfer(IoKind::Write, 1, 65536, pages.clone());
        assert_eq!(rig.run(write).status, Status::Io);
    }
    let failed = rig.until(|event| matches!(event, DiskEvent::Failed { .. }));
    assert_eq!(failed, DiskEvent::Failed { disk: 0, errno: libc::EROFS });
    assert!(rig.events.try_recv().is_err(), "once");
    let read = rig.transfer(IoKind::Read, 0, 65536, pages);
    assert_eq!(rig.run(read).status, Status::Ok, "reads still work");
}

/// Its superblock is never written again, so the thread must not wake up for it: past that time it would never sleep.
#[test]
fn the_thread_of_a_disk_out_of_service_sleeps_without_a_due_time() {
    let dir = Dir::new();
    let (mut rig, faults) = spoilt(&dir.settings());
    let idle = faults.idle();
    let pages = written(&mut rig, 0);
    faults.next(&[(WRITE, Fault::Errno(libc::EROFS))]);
    let write = rig.transfer(IoKind::Write, 1, 65536, pages);
    assert_eq!(rig.run(write).status, Status::Io);
    rig.until(|event| matches!(event, DiskEvent::Failed { .. }));
    idle.recv_timeout(LONG).expect("the thread has a due time that it does not serve");
}

#[test]
fn what_falls_short_is_asked_for_again_and_never_counts_as_success() {
    let dir = Dir::new();
    for engine in [IoEngine::Auto, IoEngine::Threads] {
        for direct in [FeatureUse::Auto, FeatureUse::Off] {
            let (mut rig, faults) = spoilt(&Settings { engine, direct, ..dir.settings() });
            // Split every request in half, in each form: one range, several, staged, and filled before writing.
            faults.always(Some(Fault::Half));
            let host = memory(4 * MIB);
            rig.send(DiskMessage::Register(Arc::clone(&host)));
            let shapes: [(&[u32], u64, u64, bool); 4] = [
                (&[65536], 4096, 65536, true),
                (&[8192; 8], 4096, 65536, true),
                (&[1000, 3000, 77, 4097, 5000, 30000], 64, 65536, true),
                (&[1000, 3000, 77, 4097, 5000, 30000], 64, 65536, false),
            ];
            for (sizes, align, stride, whole) in shapes {
                let all = parts(&host, sizes, align, stride);
                for part in &all {
                    fill(&host, part.offset, part.bytes.into(), u64::from(part.plane) + 5);
                }
                let mut write = rig.transfer(IoKind::Write, 2, 65536, all);
                write.whole = whole;
                let wrote = rig.run(write);
                assert_eq!(wrote.status, Status::Ok);
                let mut back = wrote.parts;
                back.iter_mut().for_each(|part| fill(&part.memory, part.offset, part.bytes.into(), 99));
                let read = rig.transfer(IoKind::Read, 2, 65536, back);
                let read = rig.run(read);
                assert!(read.status == Status::Ok && read.parts.iter().all(|part| part.ok), "{sizes:?} {engine:?}");
            }
            assert!(rig.status().short > 0);
            // Less than a sector is read again and again, and then is an error.
            faults.always(None);
            faults.next(&[(READ, Fault::Short(100)); 3]);
            let pages = written(&mut rig, 3);
            let read = rig.transfer(IoKind::Read, 3, 65536, pages.clone());
            let read = rig.run(read);
            let direct = rig.status().mode.contains("direct");
            if direct {
                // The kernel may or may not accept 100 bytes of direct I/O; both are valid.
                assert!(read.status == Status::Io || read.parts.iter().all(|part| part.ok));
            } else {
                assert!(read.status == Status::Ok && read.parts.iter().all(|part| part.ok));
            }
            faults.forget();
            faults.always(Some(Fault::Nothing));
            for kind in [IoKind::Read, IoKind::Write] {
                let transfer = rig.transfer(kind, 3, 65536, pages.clone());
                let back = rig.run(transfer);
                assert_eq!((back.status, back.errno), (Status::Io, 0), "a transfer of 0 bytes is not a success");
            }
            faults.always(None);
        }
    }
}

#[test]
fn a_busy_kernel_is_asked_again_but_not_for_ever() {
    let dir = Dir::new();
    let (mut rig, faults) = spoilt(&dir.settings());
    let pages = written(&mut rig, 0);
    faults.next(&[(READ, Fault::Errno(libc::EAGAIN)); 3]);
    let read = rig.transfer(IoKind::Read, 0, 65536, pages.clone());
    assert_eq!(rig.run(read).status, Status::Ok);
    faults.always(Some(Fault::Errno(libc::EAGAIN)));
    let read = rig.transfer(IoKind::Read, 0, 65536, pages);
    let read = rig.run(read);
    assert_eq!((read.status, read.errno), (Status::Io, libc::EAGAIN));
}

#[test]
fn a_flipped_bit_is_found_on_the_way_and_on_the_disk() {
    let dir = Dir::new();
    let (mut rig, faults) = spoilt(&dir.settings());
    let mut pages = written(&mut rig, 0);
    // Frames apart, so that the plan is one request with several ranges; the bit is in the first page.
    pages.iter_mut().for_each(|part| part.offset = u64::from(part.plane) * 65536);
    faults.next(&[(READ, Fault::Flip)]);
    let read = rig.transfer(IoKind::Read, 0, 65536, pages.clone());
    let read = rig.run(read);
    assert_eq!(read.status, Status::Ok);
    assert_eq!(read.parts.iter().map(|part| part.ok).collect::<Vec<_>>(), [false, true, true, true]);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(dir.0.join("kvtide.store")).unwrap();
    let (mut byte, at) = ([0], rig.disk().offset(0, 2 * 16384 + 77));
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    file.sync_all().unwrap();
    let read = rig.transfer(IoKind::Read, 0, 65536, pages);
    let read = rig.run(read);
    assert_eq!(read.parts.iter().map(|part| part.ok).collect::<Vec<_>>(), [true, true, false, true]);
    assert_eq!(rig.status().checksum_failures, 2);
}

#[test]
fn every_bit_of_a_block_counts() {
    let dir = Dir::new();
    // Through the page cache, where flipping a bit is fast.
    let mut rig = Rig::start(&Settings { direct: FeatureUse::Off, ..dir.settings() });
    let host = memory(MIB);
    let pages = parts(&host, &[1000; 4], 64, 8192);
    pages.iter().for_each(|part| fill(&host, part.offset, 1000, u64::from(part.plane) + 1));
    let write = rig.transfer(IoKind::Write, 1, 4096, pages);
    let mut pages = rig.run(write).parts;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(dir.0.join("kvtide.store")).unwrap();
    let (begin, mut slot) = (rig.disk().offset(0, 4096), vec![0; 4096]);
    file.read_exact_at(&mut slot, begin).unwrap();
    for bit in 0..4096 * 8 {
        let (at, mask) = (bit / 8, 1 << (bit % 8));
        file.write_all_at(&[slot[at] ^ mask], begin + at as u64).unwrap();
        let read = rig.transfer(IoKind::Read, 1, 4096, pages);
        let read = rig.run(read);
        assert_eq!(read.status, Status::Ok);
        for part in &read.parts {
            let hit = (part.at..part.at + 1000).contains(&(at as u64));
            assert_eq!(part.ok, !hit, "bit {bit}, plane {}", part.plane);
        }
        pages = read.parts;
        file.write_all_at(&[slot[at]], begin + at as u64).unwrap();
    }
    assert_eq!(rig.status().checksum_failures, 4 * 8000);
}

#[test]
fn bits_that_flip_anywhere_in_a_full_tier_are_found_and_no_others() {
    let dir = Dir::new();
    let mut rig = Rig::start(&dir.settings());
    let host = memory(MIB);
    let slots = 2 * MIB / 65536;
    let mut stored = Vec::new();
    for slot in 0..slots as u32 {
        (0..4).for_each(|page| fill(&host, page * 16384, 16384, page + u64::from(slot) * 4));
        let write = rig.transfer(IoKind::Write, slot, 65536, parts(&host, &[16384; 4], 4096, 16384));
        stored.push(rig.run(write).parts);
    }
    let file = std::fs::OpenOptions::new().read(true).write(true).open(dir.0.join("kvtide.store")).unwrap();
    let (mut random, mut hit) = (7u64, std::collections::BTreeSet::new());
    for _ in 0..40 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (random >> 33) % (2 * MIB);
        // The same bit flipped twice would restore a page.
        if hit.insert(at / 16384) {
            let (mut byte, place) = ([0], rig.disk().offset(0, at));
            file.read_exact_at(&mut byte, place).unwrap();
            file.write_all_at(&[byte[0] ^ 1 << (random & 7)], place).unwrap();
        }
    }
    file.sync_all().unwrap();
    for (slot, pages) in (0u64..).zip(stored) {
        let read = rig.transfer(IoKind::Read, slot as u32, 65536, pages);
        for part in &rig.run(read).parts {
            assert_eq!(
                part.ok,
                !hit.contains(&(slot * 4 + u64::from(part.plane))),
                "slot {slot}, plane {}",
                part.plane
            );
        }
    }
}

#[test]
fn a_stuck_request_stalls_the_disk_and_nobody_else() {
    let dir = Dir::new();
    let (mut rig, faults) = spoilt(&Settings { timeout: SHORT, ..dir.settings() });
    let pages = written(&mut rig, 0);
    let frames = Arc::clone(&pages[0].memory);
    faults.next(&[(READ, Fault::Stuck)]);
    let stuck = rig.transfer(IoKind::Read, 0, 65536, pages.clone());
    let id = stuck.id;
    rig.send(DiskMessage::Transfer(stuck));
    rig.until(|event| *event == DiskEvent::Stalled { disk: 0, stalled: true });
    let read = rig.transfer(IoKind::Read, 0, 65536, pages);
    let other = rig.run(read);
    assert!(other.id != id && other.status == Status::Ok, "other transfers continue");
    drop(other);
    let status = rig.status();
    assert!(status.stalled && status.stalled_requests == 1 && status.oldest_us >= SHORT.as_micros() as u64);
    assert!(Arc::strong_count(&frames) > 1, "the device may still write it");
    faults.release();
    let late = rig.take();
    assert!(late.id == id && late.status == Status::Ok && late.parts.iter().all(|part| part.ok));
    rig.until(|event| *event == DiskEvent::Stalled { disk: 0, stalled: false });
    drop(late);
    assert_eq!(Arc::strong_count(&frames), 1);
}

#[test]
fn a_write_waits_for_one_that_reads_the_sector_that_they_share() {
    let dir = Dir::new();
    let (mut rig, faults) = spoilt(&Settings { timeout: SHORT, ..dir.settings() });
    if !rig.status().mode.contains("direct") {
        return; // with the page cache nothing is read before a write
    }
    let host = memory(MIB);
    let mut pages = parts(&host, &[1000, 1000], 8, 8192);
    pages.iter().for_each(|part| fill(&host, part.offset, part.bytes.into(), u64::from(part.plane) + 1));
    faults.next(&[(READ, Fault::Stuck)]);
    for (index, page) in pages.iter().enumerate() {
        let mut write = rig.transfer(IoKind::Write, 0, 4096, vec![page.clone()]);
        write.whole = false;
        rig.send(DiskMessage::Transfer(write));
        if index == 0 {
            rig.until(|event| *event == DiskEvent::Stalled { disk: 0, stalled: true });
        }
    }
    // Its message may be handled in the same round as the status request, before it is started.
    let until = Instant::now() + LONG;
    while rig.status().filled < 2 {
        assert!(Instant::now() < until, "the second write did not start");
    }
    let status = rig.status();
    assert_eq!(status.at_device, 1, "the second must not read what the first will write: {status:?}");
    assert!(rig.boxes.is_empty());
    faults.release();
    for _ in 0..2 {
        let wrote = rig.take();
        assert_eq!(wrote.status, Status::Ok);
        let part = &wrote.parts[0];
        pages[usize::from(part.plane)].crc = part.crc;
    }
    let read = rig.transfer(IoKind::Read, 0, 4096, pages);
    let read = rig.run(read);
    assert!(read.status == Status::Ok && read.parts.iter().all(|part| part.ok), "{read:?}");
}

#[test]
fn what_waits_too_long_is_never_begun() {
    let dir = Dir::new();
    let (mut rig, faults) = spoilt(&Settings { timeout: SHORT, depth: 1, ..dir.settings() });
    let pages = written(&mut rig, 0);
    faults.next(&[(READ, Fault::Stuck)]);
    let stuck = rig.transfer(IoKind::Read, 0, 65536, pages.clone());
    let id = stuck.id;
    rig.send(DiskMessage::Transfer(stuck));
    for _ in 0..3 {
        let read = rig.transfer(IoKind::Read, 0, 65536, pages.clone());
        rig.send(DiskMessage::Transfer(read));
    }
    for _ in 0..3 {
        let late = rig.take();
        assert!(late.id != id && late.status == Status::TimedOut && late.waited_us >= SHORT.as_micros() as u32);
    }
    assert_eq!(rig.status().classes[0].reads.timed_out, 3);
    faults.release();
    assert_eq!((rig.take().id, rig.boxes.is_empty()), (id, true));
}

#[test]
fn an_end_with_a_stuck_request_is_bounded_and_frees_nothing_that_the_device_has() {
    let dir = Dir::new();
    let (mut rig, faults) = spoilt(&Settings { timeout: SHORT, ..dir.settings() });
    let pages = written(&mut rig, 0);
    let frames = Arc::clone(&pages[0].memory);
    faults.next(&[(READ, Fault::Stuck)]);
    let stuck = rig.transfer(IoKind::Read, 0, 65536, pages);
    rig.send(DiskMessage::Transfer(stuck));
    rig.until(|event| *event == DiskEvent::Stalled { disk: 0, stalled: true });
    let began = Instant::now();
    rig.end();
    assert!(began.elapsed() < LONG);
    assert!(Arc::strong_count(&frames) > 1, "the device may still write it");
}

/// Slot size of the merge tests: one page.
const SMALL: u64 = 16384;

/// Start a disk that runs one request at a time, with one stuck request, and queue transfers of these slots in order.
fn crowded(dir: &Dir, slots: &[u32]) -> (Rig, Faults, Arc<Memory>) {
    let (mut rig, faults) = spoilt(&Settings { depth: 1, ..dir.settings() });
    let host = memory(4 * MIB);
    faults.next(&[(WRITE, Fault::Stuck)]);
    for (index, slot) in [&[100], slots].concat().into_iter().enumerate() {
        let page = Part { offset: u64::from(slot) * SMALL, ..parts(&host, &[SMALL as u32], 4096, SMALL).remove(0) };
        fill(&host, page.offset, SMALL, u64::from(slot) + 1);
        let write = rig.transfer(IoKind::Write, slot, SMALL, vec![page]);
        rig.send(DiskMessage::Transfer(write));
        let until = Instant::now() + LONG;
        while index == 0 && rig.status().at_device == 0 {
            assert!(Instant::now() < until, "the first write did not start");
        }
    }
    let until = Instant::now() + LONG;
    while rig.status().classes[IoClass::WriteBack as usize].queued < slots.len() as u64 {
        assert!(Instant::now() < until, "not all transfers are queued: {:?}", rig.status());
    }
    (rig, faults, host)
}

#[test]
fn writes_of_neighbouring_slots_go_in_one_request() {
    let dir = Dir::new();
    // Ascending, descending, and one separate slot.
    let slots = [0, 1, 2, 3, 4, 5, 19, 18, 17, 16, 40];
    let (mut rig, faults, _host) = crowded(&dir, &slots);
    faults.release();
    let wrote: Vec<_> = (0..=slots.len()).map(|_| rig.take()).collect();
    assert!(wrote.iter().all(|wrote| wrote.status == Status::Ok));
    assert_eq!(rig.status().requests, 4, "one stuck, six ascending slots, four descending, one separate");
    for wrote in wrote {
        let mut read = rig.transfer(IoKind::Read, wrote.key.slot, SMALL, wrote.parts);
        read.key = wrote.key;
        let read = rig.run(read);
        assert!(read.status == Status::Ok && read.parts[0].ok, "{read:?}");
        let part = &read.parts[0];
        let other = memory(MIB);
        fill(&other, 0, SMALL, u64::from(wrote.key.slot) + 1);
        assert_eq!(bytes(&part.memory, part.offset, SMALL), bytes(&other, 0, SMALL));
    }
}

#[test]
fn of_writes_that_fail_together_only_those_fail_that_fail_alone() {
    let dir = Dir::new();
    let (rig, faults, _host) = crowded(&dir, &[0, 1, 2, 3]);
    // Together, then one by one: the second fails.
    let bad = (WRITE, Fault::Errno(libc::EIO));
    faults.next(&[bad, (WRITE, Fault::None), bad]);
    faults.release();
    let wrote: Vec<_> = (0..5).map(|_| rig.take()).collect();
    let failed: Vec<u32> =
        wrote.iter().filter(|wrote| wrote.status == Status::Io).map(|wrote| wrote.key.slot).collect();
    assert_eq!(failed, [1], "{wrote:?}");
    assert_eq!(rig.status().requests, 6);
}
