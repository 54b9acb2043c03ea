//! Transfers of a space over a real file.

use super::{Ended, Nvme, Slabs};
use crate::io::{Choice, Disk, DiskEvent, DiskThread, EngineChoice, Memory, Place, Settings};
use crate::space::Granted;
use crossbeam::channel::{Receiver, bounded};
use kvtide_tiering::api::{
    Admission, DiskSlot, IoClass, IoKind, Limits, Plane, PlaneKind, Policy, SpaceConfig, Status,
};
use kvtide_tiering::node::DiskGrant;
use kvtide_wire::hello::Slab;
use kvtide_wire::os::map::Access;
use kvtide_wire::os::memfd::Memfd;
use kvtide_wire::os::poll::readable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const BOUND: Duration = Duration::from_secs(30);
const REGION: u64 = 1 << 20;
/// The second stands first in a slot, because it is whole sectors.
const PAGE_BYTES: [u32; 2] = [1000, 4096];
const STRIDES: [u32; 2] = [1024, 4096];
const AT: DiskSlot = DiskSlot { slab: 2, slot: 7, generation: 1 };
const IOS_MAX: u32 = 2;

/// A disk in a directory of its own, and a space with a slab of host memory for each plane.
struct Rig {
    dir: PathBuf,
    disk: Option<DiskThread>,
    host: Slabs,
    memory: Vec<OwnedFd>,
    nvme: Nvme,
}

impl Rig {
    fn new(name: &str) -> Rig {
        let dir = std::env::temp_dir().join(format!("kvtide-space-{}-{name}", std::process::id()));
        let settings = Settings {
            place: Place::Dir(dir.clone()),
            capacity_bytes: 2 * REGION,
            region_bytes: REGION,
            engine: EngineChoice::Threads,
            direct: Choice::Off,
            ..Settings::default()
        };
        let (tell, told) = bounded(64);
        let open = DiskThread::open(&settings).unwrap();
        let disk = open.start(Box::new(move |event| tell.send(event).unwrap())).unwrap();
        wait_until_written(&told, 2);
        let planes = PAGE_BYTES.map(|page_bytes| Plane { page_bytes, kind: PlaneKind::Full });
        let mut nvme = Nvme::new(1, &config(&planes), &[Disk::clone(disk.disk())]).unwrap();
        nvme.add(DiskGrant { slab: AT.slab, disk: 0, region: 1, slots: 100 });
        let (mut host, mut memory) = (Slabs::default(), Vec::new());
        for (class, stride) in (0u16..).zip(STRIDES) {
            let memfd = Memfd::shared("test", 64 << 10).unwrap();
            memory.push(memfd.as_fd().try_clone_to_owned().unwrap());
            let map = Memory::new(memfd.map(Access::ReadWrite).unwrap()).map(Arc::new);
            let slab = Slab { slab: class.into(), class, frames: (64 << 10) / stride, stride, bytes: 64 << 10 };
            host.add(Granted { slab, memfd, memory: map }).unwrap();
        }
        Rig { dir, disk: Some(disk), host, memory, nvme }
    }

    /// Both planes' pages between the slot and the frames `slot` of their slabs.
    fn begin(&mut self, id: u32, kind: IoKind, at: DiskSlot, slot: u32) {
        self.nvme.begin(id, kind, IoClass::Demand, at, &[0, 0, slot, 1, 1, slot], &self.host);
    }

    fn end(&mut self) -> Ended {
        loop {
            self.nvme.flush();
            if let Some(ended) = self.nvme.next_ended() {
                return ended;
            }
            assert_ne!(readable(&[self.nvme.bell().as_fd()], BOUND).unwrap(), 0, "no transfer ended");
            self.nvme.bell().quiet();
        }
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
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn wait_until_written(told: &Receiver<DiskEvent>, wanted: u32) {
    loop {
        match told.recv_timeout(BOUND).unwrap() {
            DiskEvent::Ready { regions, .. } if regions == wanted => return,
            DiskEvent::Ready { .. } => {}
            other => panic!("{other:?}"),
        }
    }
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
            contents_max: 8,
            notes_max: 16,
        },
        policy: Policy {
            clean_low_percent: 10,
            clean_high_percent: 20,
            host_high_percent: 95,
            host_low_percent: 90,
            host_clean_low_percent: 10,
            host_clean_high_percent: 20,
            host_scan_frames: 2,
            nvme_high_percent: 95,
            nvme_low_percent: 90,
            nvme_admission: Admission::All,
            nvme_bytes_per_day: 0,
            scan_frames: 2,
            request_timeout_us: 1_000_000,
        },
    }
}

#[test]
fn pages_go_down_and_come_back_and_those_of_other_content_are_named() {
    let mut rig = Rig::new("pages");
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
    // Another generation of the slot is other content, whatever its bytes are.
    rig.begin(3, IoKind::Read, DiskSlot { generation: 2, ..AT }, 4);
    assert_eq!(rig.end(), Ended { id: 3, status: Status::Ok });
    assert_eq!(rig.nvme.bad(), [0, 1], "ascending, though they stand in the slot the other way round");
}

#[test]
fn what_the_core_should_not_have_asked_for_ends_as_failed() {
    let mut rig = Rig::new("refused");
    for at in [DiskSlot { slab: 0, ..AT }, DiskSlot { slot: 100, ..AT }] {
        rig.begin(1, IoKind::Read, at, 0);
        assert_eq!((rig.end(), rig.nvme.in_flight()), (Ended { id: 1, status: Status::Io }, 0));
    }
    rig.nvme.begin(2, IoKind::Read, IoClass::Demand, AT, &[0, 9, 0], &rig.host);
    assert_eq!(rig.end(), Ended { id: 2, status: Status::Io }, "no such host slab");
    rig.nvme.begin(3, IoKind::Read, IoClass::Demand, AT, &[2, 0, 0], &rig.host);
    assert_eq!(rig.end(), Ended { id: 3, status: Status::Io }, "no such plane");
    (0..=IOS_MAX).for_each(|id| rig.begin(id, IoKind::Write, DiskSlot { slot: id, ..AT }, 0));
    let mut ended: Vec<_> = (0..=IOS_MAX).map(|_| rig.end()).map(|ended| (ended.id, ended.status)).collect();
    ended.sort_by_key(|(id, _)| *id);
    assert_eq!(ended, [(0, Status::Ok), (1, Status::Ok), (2, Status::Io)], "one more than there are boxes for");
    assert_eq!(rig.nvme.in_flight(), 0);
}

#[test]
fn a_disk_whose_thread_has_ended_fails_what_it_is_sent() {
    let mut rig = Rig::new("gone");
    if let Some(disk) = rig.disk.take() {
        disk.end();
    }
    rig.begin(1, IoKind::Read, AT, 0);
    assert_eq!((rig.end(), rig.nvme.in_flight()), (Ended { id: 1, status: Status::Io }, 0));
}

#[test]
fn without_disks_nothing_rings_and_the_thread_may_sleep() {
    let planes = PAGE_BYTES.map(|page_bytes| Plane { page_bytes, kind: PlaneKind::Full });
    let nvme = Nvme::new(1, &config(&planes), &[]).unwrap();
    let mut fds = [PollFd::new(nvme.bell(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(0), "{:?}", fds[0].revents());
    assert!(nvme.is_quiet() && nvme.in_flight() == 0);
}
