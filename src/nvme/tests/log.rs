//! The log thread: its guarantees, the recovery at start, and both after device failures.

use super::fixture::*;
use super::stormy::{Storm, Weather};
use crate::{DiskEvent, DiskThread, LogMessage, LogRequest, LogRequestKind, SlotKey};
use kvtide_format::log::{Recovered, SlabHeader};
use kvtide_types::{IoKind, Status};
use std::fs;

const SLOT: u64 = 64 << 10;

fn header(region: u32, grant: u64) -> SlabHeader {
    SlabHeader::new(region, grant, [grant as u8; 32], "someone", SLOT, vec![16384; 4])
}

fn log_request(rig: &mut Rig, kind: LogRequestKind, slot: u32, crcs: Vec<u32>) -> Box<LogRequest> {
    rig.next += 1;
    Box::new(LogRequest {
        space: 1,
        id: rig.next,
        kind,
        urgent: true,
        key: SlotKey { region: 0, slot, generation: 1 },
        shard: 0,
        hash: 100 + u128::from(slot),
        parent: 99 + u128::from(slot),
        present: vec![0b1111],
        crcs,
        sectors: Vec::new(),
        tags: Vec::new(),
        salt: 0,
        reply: rig.log_ended.clone(),
        status: Status::Internal,
        errno: 0,
    })
}

fn run(rig: &mut Rig, kind: LogRequestKind, slot: u32, crcs: &[u32]) -> (Status, i32) {
    let request = log_request(rig, kind, slot, crcs.to_vec());
    let id = request.id;
    rig.log(LogMessage::LogRequest(request));
    let request = rig.log_ended();
    assert_eq!(request.id, id);
    (request.status, request.errno)
}

fn granted(rig: &Rig, region: u32, grant: u64) -> Status {
    rig.log(LogMessage::Grant(header(region, grant)));
    let told = rig.until(|event| matches!(event, DiskEvent::Granted { .. }));
    match told {
        DiskEvent::Granted { disk: 0, region: r, grant: g, status } if (r, g) == (region, grant) => status,
        other => panic!("{other:?}"),
    }
}

/// Start a disk with a slab in region 0.
fn rig(dir: &Dir) -> Rig {
    let rig = Rig::start(&dir.settings());
    assert_eq!(granted(&rig, 0, 1), Status::Ok);
    rig
}

/// Return the slots that the log of a directory's store holds.
fn found(dir: &Dir) -> (Recovered, Vec<u32>) {
    let recovered = DiskThread::open(&dir.settings()).unwrap().take_recovered();
    let mut slots: Vec<u32> = recovered.slabs.iter().flat_map(|slab| slab.blocks.iter().map(|put| put.slot)).collect();
    slots.sort_unstable();
    (recovered, slots)
}

/// Return the slots that a start would find if the daemon were killed now.
fn killed(dir: &Dir) -> (Recovered, Vec<u32>) {
    let copy = Dir::new();
    Rig::start(&copy.settings()).end();
    let file = |dir: &Dir| dir.0.join("kvtide.store");
    fs::copy(file(dir), file(&copy)).unwrap();
    found(&copy)
}

#[test]
fn what_was_noted_is_found_with_what_its_pages_need_to_be_read() {
    let dir = Dir::new();
    let mut first = rig(&dir);
    let host = memory(MIB);
    (0..4).for_each(|page| fill(&host, page * 16384, 16384, page + 7));
    let write = first.transfer(IoKind::Write, 3, SLOT, parts(&host, &[16384; 4], 4096, 16384));
    let wrote = first.run(write);
    let crcs: Vec<u32> = wrote.parts.iter().map(|part| part.crc).collect();
    assert_eq!(run(&mut first, LogRequestKind::Record, 3, &crcs), (Status::Ok, 0));
    assert_eq!(killed(&dir).1, [3], "a stored block survives a crash");
    assert_eq!(run(&mut first, LogRequestKind::Flush, 0, &[]), (Status::Ok, 0));
    let report = first.status().log;
    assert!(report.puts == 1 && report.blocks == 1 && report.slabs == 1 && report.flushes > 0, "{report:?}");
    first.end();
    let mut open = DiskThread::open(&dir.settings()).unwrap();
    let recovered = open.take_recovered();
    assert_eq!(recovered.slabs.len(), 1);
    let slab = &recovered.slabs[0];
    assert_eq!(slab.header, header(0, 1));
    let put = slab.blocks.get(0);
    assert!(slab.blocks.flushed(0), "a graceful shutdown flushes the log");
    assert_eq!((put.slot, put.generation, put.hash, put.parent, put.crcs), (3, 1, 103, 102, &crcs[..]));
    let mut second = Rig::of(open, |engine| engine).unwrap();
    assert_eq!(second.disk().starts(), 2);
    let recovery = second.status().log.recovery;
    assert_eq!((recovery.blocks, recovery.slabs, recovery.torn, recovery.corrupt), (1, 1, 0, 0));
    let mut back = parts(&memory(MIB), &[16384; 4], 4096, 16384);
    back.iter_mut().zip(put.crcs).for_each(|(part, crc)| part.crc = *crc);
    let read = second.transfer(IoKind::Read, 3, SLOT, back);
    let read = second.run(read);
    assert!(read.status == Status::Ok && read.parts.iter().all(|part| part.ok));
}

#[test]
fn erased_and_regranted_slots_are_gone_and_what_nobody_waits_for_comes_with_the_end() {
    let dir = Dir::new();
    let mut rig = rig(&dir);
    for slot in 0..4 {
        assert_eq!(run(&mut rig, LogRequestKind::Record, slot, &[slot; 4]).0, Status::Ok);
    }
    assert_eq!(run(&mut rig, LogRequestKind::Erase, 1, &[]).0, Status::Ok);
    assert_eq!(killed(&dir).1, [0, 2, 3]);
    // Delayed to be batched with others, but answered in time.
    let mut late = log_request(&mut rig, LogRequestKind::Record, 9, vec![9; 4]);
    late.urgent = false;
    rig.log(LogMessage::LogRequest(late));
    rig.end();
    assert_eq!(found(&dir).1, [0, 2, 3, 9]);
    let rig = Rig::start(&dir.settings());
    assert_eq!(granted(&rig, 0, 2), Status::Ok);
    assert_eq!(killed(&dir).1, [0u32; 0], "a grant invalidates earlier records and is flushed");
    rig.end();
}

#[test]
fn what_makes_no_sense_is_refused_and_the_rest_goes_on() {
    let dir = Dir::new();
    let mut rig = rig(&dir);
    let mut elsewhere = log_request(&mut rig, LogRequestKind::Record, 0, vec![0; 4]);
    elsewhere.key.region = 1;
    rig.log(LogMessage::LogRequest(elsewhere));
    assert_eq!(rig.log_ended().status, Status::NoSpace, "the grant of this region is not recorded");
    assert_eq!(run(&mut rig, LogRequestKind::Record, 1 << 20, &[0; 4]).0, Status::Invalid);
    assert_eq!(run(&mut rig, LogRequestKind::Record, 1, &[0; 3]).0, Status::Invalid);
    assert_eq!(run(&mut rig, LogRequestKind::Erase, 7, &[]).0, Status::Ok, "an empty slot can be erased");
    assert_eq!(run(&mut rig, LogRequestKind::Record, 1, &[0; 4]).0, Status::Ok);
    let report = rig.status().log;
    assert_eq!((report.refused, report.full, report.puts), (2, 1, 1));
}

/// Start a disk with its log on failing storage.
fn stormy(dir: &Dir) -> (Rig, Weather) {
    let weather = Weather::default();
    let its = weather.clone();
    let open = DiskThread::open_with(&dir.settings(), &mut |file| Box::new(Storm::new(Box::new(file), &its))).unwrap();
    let rig = Rig::of(open, |engine| engine).unwrap();
    assert_eq!(granted(&rig, 0, 1), Status::Ok);
    (rig, weather)
}

#[test]
fn a_write_that_fails_once_is_tried_again_and_one_that_goes_on_failing_ends_the_disk() {
    let dir = Dir::new();
    let (mut rig, weather) = stormy(&dir);
    weather.writes(&[Some(libc::EIO), None]);
    assert_eq!(run(&mut rig, LogRequestKind::Record, 0, &[1; 4]), (Status::Ok, 0));
    assert_eq!(rig.status().errors.get(&libc::EIO), Some(&1));
    weather.writes(&[Some(libc::EIO); 3]);
    assert_eq!(run(&mut rig, LogRequestKind::Record, 1, &[1; 4]), (Status::Io, libc::EIO));
    rig.until(|event| *event == DiskEvent::Failed { disk: 0, errno: libc::EIO });
    assert_eq!(rig.status().out_of_service, Some(libc::EIO));
    // The storage works again, but the disk stays out of service.
    for kind in [LogRequestKind::Record, LogRequestKind::Erase, LogRequestKind::Flush] {
        assert_eq!(run(&mut rig, kind, 2, &[1; 4]), (Status::Io, libc::EIO));
    }
    assert_eq!(granted(&rig, 1, 2), Status::Io);
    let host = memory(MIB);
    let write = rig.transfer(IoKind::Write, 0, SLOT, parts(&host, &[16384; 4], 4096, 16384));
    assert_eq!(rig.run(write).status, Status::Io, "the I/O thread refuses transfers");
    rig.end();
    assert_eq!(found(&dir).1, [0]);
}

#[test]
fn a_flush_that_fails_ends_the_disk_at_once_and_promises_nothing() {
    for errno in [libc::EIO, libc::ENOSPC, libc::EROFS] {
        let dir = Dir::new();
        let (mut rig, weather) = stormy(&dir);
        weather.flushes(&[Some(errno)]);
        let stored = log_request(&mut rig, LogRequestKind::Record, 0, vec![1; 4]);
        let durable = log_request(&mut rig, LogRequestKind::Flush, 0, Vec::new());
        rig.log(LogMessage::LogRequest(stored));
        rig.log(LogMessage::LogRequest(durable));
        let statuses = [rig.log_ended(), rig.log_ended()].map(|request| (request.kind, request.status));
        assert!(statuses.contains(&(LogRequestKind::Flush, Status::Io)), "{statuses:?}");
        rig.until(|event| *event == DiskEvent::Failed { disk: 0, errno });
    }
}

#[test]
fn a_log_that_is_stuck_holds_up_its_requests_alone() {
    let dir = Dir::new();
    let (mut rig, weather) = stormy(&dir);
    weather.hold();
    let stuck = log_request(&mut rig, LogRequestKind::Record, 0, vec![1; 4]);
    rig.log(LogMessage::LogRequest(stuck));
    weather.until_held();
    let host = memory(MIB);
    let write = rig.transfer(IoKind::Write, 0, SLOT, parts(&host, &[16384; 4], 4096, 16384));
    assert_eq!(rig.run(write).status, Status::Ok, "the I/O thread still works");
    assert!(rig.status().log.inside_us > 0, "the status shows the blocked thread");
    weather.release();
    assert_eq!(rig.log_ended().status, Status::Ok);
}

#[test]
fn a_log_thread_that_panics_ends_what_it_holds_and_the_disk() {
    let dir = Dir::new();
    let (mut rig, weather) = stormy(&dir);
    weather.panic();
    for slot in 0..3 {
        let kind = if slot == 2 { LogRequestKind::Erase } else { LogRequestKind::Record };
        let mut request = log_request(&mut rig, kind, slot, vec![1; 4]);
        request.urgent = slot == 1;
        rig.log(LogMessage::LogRequest(request));
    }
    for _ in 0..3 {
        assert_eq!(rig.log_ended().status, Status::Io);
    }
    rig.until(|event| *event == DiskEvent::Failed { disk: 0, errno: libc::EOWNERDEAD });
    assert_eq!(run(&mut rig, LogRequestKind::Flush, 0, &[]).0, Status::Io);
    rig.end();
    assert_eq!(found(&dir).1, [0u32; 0]);
}
