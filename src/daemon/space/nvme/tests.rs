//! Transfers of a space over a real file.

use super::{Completions, Ended, LogEnded, Nvme, Restore, Wanted};
use crate::space::integrity_sample::IntegritySample;
use crate::space::slabs::Slabs;
use crate::space::{Granted, Region};
use crossbeam::channel::{Receiver, bounded};
use kvtide_format::log::{Blocks, SlabHeader};
use kvtide_nvme::LogMessage;
use kvtide_nvme::{Disk, DiskEvent, DiskThread, FeatureUse, IoEngine, Memory, Place, Reserve, Settings};
use kvtide_tiering::api::{
    DiskSlot, HostFrame, IoClass, IoKind, Limits, Plane, PlaneKind, Policy, SpaceConfig, Status,
};
use kvtide_tiering::node::DiskGrant;
use kvtide_wire::hello::Slab;
use kvtide_wire::os::map::Access;
use kvtide_wire::os::memfd::Memfd;
use kvtide_wire::os::poll::readable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BOUND: Duration = Duration::from_secs(30);
const REGION: u64 = 1 << 20;
/// The second plane is first in a slot, because its pages are whole sectors.
const PAGE_BYTES: [u32; 2] = [1000, 4096];
const STRIDES: [u32; 2] = [1024, 4096];
const AT: DiskSlot = DiskSlot { slab: 2, slot: 7, generation: 1 };
const IOS_MAX: u32 = 2;

/// A disk in a temporary directory, and a space with a slab of host memory for each plane.
struct Rig {
    dir: Rc<TempDir>,
    disk: Option<DiskThread>,
    host: Slabs,
    memory: Vec<OwnedFd>,
    nvme: Nvme,
    sample: IntegritySample,
    /// Recovered from the run before.
    blocks: Option<Blocks>,
}

impl Rig {
    fn new() -> Rig {
        Rig::over(tempfile::tempdir().unwrap().into())
    }

    /// Start the next run over the same file.
    fn again(self) -> Rig {
        let dir = Rc::clone(&self.dir);
        drop(self);
        Rig::over(dir)
    }

    fn over(dir: Rc<TempDir>) -> Rig {
        let settings = Settings {
            place: Place::Dir(dir.path().into()),
            capacity_bytes: 2 * REGION,
            region_bytes: REGION,
            engine: IoEngine::Threads,
            direct: FeatureUse::Off,
            reserve_free: Reserve::Bytes(0),
            ..Settings::default()
        };
        let (tell, told) = bounded(64);
        let mut open = DiskThread::open(&settings).unwrap();
        let blocks = open.take_recovered().slabs.pop().map(|slab| slab.blocks);
        let disk = open.start(Box::new(move |event| tell.send(event).unwrap())).unwrap();
        if blocks.is_none() {
            disk.disk().log().send(LogMessage::Grant(header())).unwrap();
            wait_until(&told, |event| matches!(event, DiskEvent::Granted { region: 1, status: Status::Ok, .. }));
        }
        let planes = PAGE_BYTES.map(|page_bytes| Plane { page_bytes, kind: PlaneKind::Full });
        let mut nvme = Nvme::new(1, &config(&planes), &[Disk::clone(disk.disk())]).unwrap();
        let grant = DiskGrant { slab: AT.slab, disk: 0, region: 1, slots: 100 };
        nvme.add(&Region { grant, generation: 0, code: None, blocks: blocks.clone() });
        let (mut host, mut memory, mut sample) = (Slabs::default(), Vec::new(), IntegritySample::new(1));
        for (class, stride) in (0u16..).zip(STRIDES) {
            let memfd = Memfd::shared("test", 64 << 10).unwrap();
            memory.push(memfd.as_fd().try_clone_to_owned().unwrap());
            let map = Memory::new(memfd.map(Access::ReadWrite).unwrap()).map(Arc::new);
            let slab = Slab { slab: class.into(), class, frames: (64 << 10) / stride, stride, bytes: 64 << 10 };
            sample.granted(slab.slab, slab.frames);
            host.add(Granted { slab, memfd, memory: map }).unwrap();
        }
        Rig { dir, disk: Some(disk), host, memory, nvme, sample, blocks }
    }

    /// Start a transfer of both planes' pages between the slot and the frames `slot` of their slabs.
    fn begin(&mut self, id: u32, kind: IoKind, at: DiskSlot, slot: u32) {
        self.nvme.begin((id, kind, IoClass::Demand), at, &[0, 0, slot, 1, 1, slot], &self.host, &mut self.sample);
    }

    fn end(&mut self) -> Ended {
        loop {
            self.nvme.flush();
            if let Some(ended) = self.nvme.next_ended(&mut self.sample) {
                return ended;
            }
            assert_ne!(readable(&[self.nvme.bell().as_fd()], BOUND).unwrap(), 0, "no transfer ended");
            self.nvme.bell().quiet();
        }
    }

    fn log_ended(&mut self) -> LogEnded {
        loop {
            self.nvme.flush();
            if let Some(log_ended) = self.nvme.next_log_ended() {
                return log_ended;
            }
            assert_ne!(readable(&[self.nvme.log_bell().as_fd()], BOUND).unwrap(), 0, "no log request ended");
            self.nvme.log_bell().quiet();
        }
    }

    /// Record a slot with both pages under a hash.
    fn record(&mut self, id: u32, at: DiskSlot, hash: u32) -> LogEnded {
        let list = [hash, 0, 0, 1, 7, 0, 0, 0, 0b11];
        self.nvme.submit_log_request(id, true, Wanted::Record(at, 3, &list));
        self.log_ended()
    }

    fn frame(&self, plane: usize, slot: u64) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_BYTES[plane] as usize];
        rustix::io::pread(&self.memory[plane], &mut bytes, slot * u64::from(STRIDES[plane])).unwrap();
        bytes
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(disk) = self.disk.take() {
            disk.end();
        }
    }
}

fn wait_until(told: &Receiver<DiskEvent>, wanted: impl Fn(&DiskEvent) -> bool) {
    while !wanted(&told.recv_timeout(BOUND).unwrap()) {}
}

fn header() -> SlabHeader {
    SlabHeader { shards: 4, ..SlabHeader::new(1, 1, [9; 32], "test", 8192, PAGE_BYTES.to_vec()) }
}

fn config(planes: &[Plane]) -> SpaceConfig {
    SpaceConfig {
        page_tokens: 16,
        planes: planes.to_vec(),
        shards: 1,
        limits: Limits {
            sessions_max: 1,
            blocks_max: 8,
            seqs_max: 1,
            seq_blocks_max: 8,
            lanes_max: 1,
            jobs_max: 8,
            requests_max: 8,
            host_bytes_max: 1 << 20,
            nvme_bytes_max: 1 << 20,
            ios_max: IOS_MAX,
            entries_max: 8,
            log_requests_max: 16,
        },
        policy: Policy {
            clean_low_percent: 10,
            clean_high_percent: 20,
            host_low_percent: 90,
            host_scan_frames: 2,
            request_timeout_us: 1_000_000,
            ..Policy::plain()
        },
    }
}

#[test]
fn pages_go_down_and_come_back_and_those_of_other_content_are_named() {
    let mut rig = Rig::new();
    for (fd, fill) in rig.memory.iter().zip([3u8, 5]) {
        rustix::io::pwrite(fd, &[fill; 4096], 0).unwrap();
    }
    rig.begin(1, IoKind::Write, AT, 0);
    assert_eq!(rig.nvme.in_flight(), 1);
    assert_eq!((rig.end(), rig.nvme.in_flight()), (Ended { id: 1, status: Status::Ok }, 0));
    rig.begin(2, IoKind::Read, AT, 3);
    assert_eq!(rig.end(), Ended { id: 2, status: Status::Ok });
    assert_eq!(rig.nvme.bad(), [0u32; 0]);
    assert_eq!((rig.frame(0, 3), rig.frame(1, 3)), (vec![3; 1000], vec![5; 4096]));
    // Another generation of the slot does not match, whatever its bytes are.
    rig.begin(3, IoKind::Read, DiskSlot { generation: 2, ..AT }, 4);
    assert_eq!(rig.end(), Ended { id: 3, status: Status::Ok });
    assert_eq!(rig.nvme.bad(), [0, 1], "ascending, although they are in reverse order in the slot");
}

#[test]
fn the_end_of_a_read_waits_for_one_write_at_most_and_writes_have_every_other_turn() {
    let mut rig = Rig::new();
    let mut completions = Completions::new(2);
    let (mut write, mut read) = (rig.nvme.idle.pop().unwrap(), rig.nvme.idle.pop().unwrap());
    (write.kind, read.kind) = (IoKind::Write, IoKind::Read);
    completions.put(write);
    completions.put(read);
    let read = completions.next().unwrap();
    assert_eq!(read.kind, IoKind::Read, "reads come before older writes");
    completions.put(read);
    assert_eq!(completions.next().map(|next| next.kind), Some(IoKind::Write), "reads and writes alternate");
    assert_eq!(completions.next().map(|next| next.kind), Some(IoKind::Read));
    assert!(completions.next().is_none() && completions.is_empty());
}

#[test]
fn what_the_core_should_not_have_asked_for_ends_as_failed() {
    let mut rig = Rig::new();
    for at in [DiskSlot { slab: 0, ..AT }, DiskSlot { slot: 100, ..AT }] {
        rig.begin(1, IoKind::Read, at, 0);
        assert_eq!((rig.end(), rig.nvme.in_flight()), (Ended { id: 1, status: Status::Io }, 0));
    }
    rig.nvme.begin((2, IoKind::Read, IoClass::Demand), AT, &[0, 9, 0], &rig.host, &mut rig.sample);
    assert_eq!(rig.end(), Ended { id: 2, status: Status::Io }, "no such host slab");
    rig.nvme.begin((3, IoKind::Read, IoClass::Demand), AT, &[2, 0, 0], &rig.host, &mut rig.sample);
    assert_eq!(rig.end(), Ended { id: 3, status: Status::Io }, "no such plane");
    (0..=IOS_MAX).for_each(|id| rig.begin(id, IoKind::Write, DiskSlot { slot: id, ..AT }, 0));
    let mut ended: Vec<_> = (0..=IOS_MAX).map(|_| rig.end()).map(|ended| (ended.id, ended.status)).collect();
    ended.sort_by_key(|(id, _)| *id);
    assert_eq!(ended, [(0, Status::Ok), (1, Status::Ok), (2, Status::Io)], "one more than the number of boxes");
    assert_eq!(rig.nvme.in_flight(), 0);
}

#[test]
fn the_end_of_a_space_waits_for_what_is_on_its_way() {
    let mut rig = Rig::new();
    rig.begin(1, IoKind::Write, AT, 0);
    rig.begin(2, IoKind::Write, DiskSlot { slot: 1, ..AT }, 0);
    assert_eq!(rig.nvme.in_flight(), 2);
    assert!(rig.nvme.settle(Instant::now() + BOUND, &mut rig.sample));
    assert_eq!(rig.nvme.in_flight(), 0);
    rig.begin(3, IoKind::Write, AT, 0);
    assert!(
        !rig.nvme.settle(Instant::now(), &mut rig.sample) || rig.nvme.in_flight() == 0,
        "it waits only until its deadline"
    );
}

#[test]
fn a_disk_whose_thread_has_ended_fails_what_it_is_sent() {
    let mut rig = Rig::new();
    if let Some(disk) = rig.disk.take() {
        disk.end();
    }
    rig.begin(1, IoKind::Read, AT, 0);
    assert_eq!((rig.end(), rig.nvme.in_flight()), (Ended { id: 1, status: Status::Io }, 0));
}

#[test]
fn what_was_recorded_is_read_in_the_next_run_and_what_was_erased_is_not_known() {
    let mut rig = Rig::new();
    for (fd, fill) in rig.memory.iter().zip([3u8, 5]) {
        rustix::io::pwrite(fd, &[fill; 4096], 0).unwrap();
    }
    let gone = DiskSlot { slot: 8, ..AT };
    for at in [AT, gone] {
        rig.begin(1, IoKind::Write, at, 0);
        assert_eq!(rig.end().status, Status::Ok);
    }
    assert_eq!(rig.record(5, AT, 0xAB), LogEnded { id: 5, status: Status::Ok });
    assert_eq!(rig.record(6, gone, 0xCD), LogEnded { id: 6, status: Status::Ok });
    rig.nvme.submit_log_request(7, false, Wanted::Erase(gone));
    assert_eq!((rig.nvme.log_requests_in_flight(), rig.log_ended()), (1, LogEnded { id: 7, status: Status::Ok }));
    rig.nvme.flush_disks(8);
    assert_eq!(rig.log_ended(), LogEnded { id: 8, status: Status::Ok });
    assert_eq!(rig.nvme.log_requests_in_flight(), 0);
    let mut rig = rig.again();
    let grant = DiskGrant { slab: AT.slab, disk: 0, region: 1, slots: 100 };
    let blocks = rig.blocks.clone();
    let mut restore = Restore::new(vec![Region { grant, generation: 0, code: None, blocks }]);
    let (at, put) = restore.next().unwrap();
    assert_eq!((at, put.shard, put.hash, put.parent), (AT, 3, 1 << 96 | 0xAB, 7));
    assert_eq!(put.present, [0b11]);
    assert!(restore.next().is_none());
    rig.begin(2, IoKind::Read, AT, 3);
    assert_eq!((rig.end().status, rig.nvme.bad().len()), (Status::Ok, 0));
    assert_eq!((rig.frame(0, 3), rig.frame(1, 3)), (vec![3; 1000], vec![5; 4096]));
    rig.begin(3, IoKind::Read, gone, 4);
    assert_eq!((rig.end().status, rig.nvme.bad()), (Status::Ok, &[0, 1][..]), "the slot is unknown");
}

#[test]
fn the_sample_learns_what_is_read_and_what_is_written_must_be_what_it_knows() {
    let mut rig = Rig::new();
    for (fd, fill) in rig.memory.iter().zip([3u8, 5]) {
        rustix::io::pwrite(fd, &[fill; 4096], 0).unwrap();
    }
    rig.begin(1, IoKind::Write, AT, 0);
    assert_eq!((rig.end().status, rig.sample.stats().written_checked), (Status::Ok, 0), "no digest is known yet");
    rig.begin(2, IoKind::Read, AT, 3);
    assert_eq!(rig.sample.known(HostFrame { slab: 1, slot: 3 }), None);
    assert_eq!(rig.end().status, Status::Ok);
    let digest = |bytes: &[u8]| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    assert_eq!(rig.sample.known(HostFrame { slab: 0, slot: 3 }), Some(digest(&[3; 1000])));
    assert_eq!(rig.sample.known(HostFrame { slab: 1, slot: 3 }), Some(digest(&[5; 4096])));
    let next = DiskSlot { slot: 9, ..AT };
    rig.begin(3, IoKind::Write, next, 3);
    assert_eq!(
        (rig.end().status, rig.sample.stats().written_checked, rig.sample.stats().written_failed),
        (Status::Ok, 2, 0)
    );
    rustix::io::pwrite(&rig.memory[1], &[4], 3 * 4096 + 77).unwrap();
    rig.begin(4, IoKind::Write, next, 3);
    assert_eq!((rig.end().status, rig.nvme.bad()), (Status::Corrupt, &[1][..]));
    assert_eq!((rig.sample.stats().written_checked, rig.sample.stats().written_failed), (3, 1));
}

#[test]
fn log_requests_that_cannot_be_sent_end_as_failed_and_flushes_are_answered_in_rounds() {
    let mut rig = Rig::new();
    rig.nvme.submit_log_request(1, true, Wanted::Erase(DiskSlot { slab: 0, ..AT }));
    assert_eq!(rig.log_ended(), LogEnded { id: 1, status: Status::Io }, "no such slab");
    rig.nvme.submit_log_request(2, true, Wanted::Record(AT, 0, &[1, 2, 3]));
    assert_eq!(rig.log_ended(), LogEnded { id: 2, status: Status::Io }, "no hashes");
    // More flush requests than a disk takes at once: the second and the third share a round.
    (1..=3).for_each(|id| rig.nvme.flush_disks(id));
    assert_eq!(rig.nvme.log_requests_in_flight(), 3);
    let mut ended: Vec<LogEnded> = (0..3).map(|_| rig.log_ended()).collect();
    ended.sort_by_key(|log_ended| log_ended.id);
    assert_eq!(ended, [1, 2, 3].map(|id| LogEnded { id, status: Status::Ok }));
    // Without a slab, nothing needs to be flushed.
    rig.nvme.remove(AT.slab);
    rig.nvme.flush_disks(4);
    assert_eq!(rig.nvme.next_log_ended(), Some(LogEnded { id: 4, status: Status::Ok }));
}

#[test]
fn a_slab_of_a_lost_disk_is_held_until_what_is_under_way_has_ended() {
    let mut rig = Rig::new();
    rig.begin(1, IoKind::Write, AT, 0);
    assert!(rig.nvme.lose(AT.slab) && !rig.nvme.lose(AT.slab) && !rig.nvme.lose(0));
    assert_eq!(rig.nvme.next_lost(), None);
    rig.end();
    assert_eq!((rig.nvme.next_lost(), rig.nvme.next_lost()), (Some(AT.slab), None));
    assert_eq!(rig.nvme.slabs(), 0);
}

#[test]
fn without_disks_nothing_rings_and_the_thread_may_sleep() {
    let planes = PAGE_BYTES.map(|page_bytes| Plane { page_bytes, kind: PlaneKind::Full });
    let nvme = Nvme::new(1, &config(&planes), &[]).unwrap();
    let mut fds = [PollFd::new(nvme.bell(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(0), "{:?}", fds[0].revents());
    assert!(nvme.is_quiet() && nvme.in_flight() == 0);
}
