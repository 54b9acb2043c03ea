//! Regions over real files: messages to spaces, and blocks that later runs find.

use super::regions::Regions;
use crate::config::{Config, Machine, Overrides};
use crate::space::{Left, Region, SpaceMessage};
use crossbeam::channel::{Receiver, unbounded};
use kvtide_format::log::{Blocks, SlabHeader};
use kvtide_nvme::{
    Disk, DiskEvent, DiskThread, FeatureUse, IoEngine, LogMessage, LogRequest, LogRequestKind, Place, Reserve,
    Settings, SlotKey,
};
use kvtide_rt::mail::mailbox;
use kvtide_tiering::api::Status;
use std::rc::Rc;
use std::time::Duration;
use tempfile::TempDir;

const BOUND: Duration = Duration::from_secs(30);
const REGION: u64 = 1 << 20;
const REGIONS: u32 = 4;

/// The host thread's regions, over one disk in a temporary directory.
struct Rig {
    dir: Rc<TempDir>,
    disk: Option<DiskThread>,
    told: Receiver<DiskEvent>,
    regions: Regions,
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
            capacity_bytes: u64::from(REGIONS) * REGION,
            region_bytes: REGION,
            engine: IoEngine::Threads,
            direct: FeatureUse::Off,
            reserve_free: Reserve::Bytes(0),
            ..Settings::default()
        };
        let text = format!(
            "[tiers.nvme]\nslab = {REGION}\n[[tiers.nvme.disks]]\ndir = \"{}\"\ncapacity = {}\nreserve_free = 0\n",
            dir.path().display(),
            settings.capacity_bytes
        );
        let config = Config::parse("", &text, &Overrides::default(), &Machine::look().unwrap()).unwrap();
        let (tell, told) = unbounded();
        let mut open = DiskThread::open(&settings).unwrap();
        let recovered = vec![open.take_recovered()];
        let disk = open.start(Box::new(move |event| tell.send(event).unwrap_or(()))).unwrap();
        let regions = Regions::new(&config, &[Disk::clone(disk.disk())], recovered);
        Rig { dir, disk: Some(disk), told, regions }
    }

    /// Return the next message for a space; handle disk events meanwhile.
    fn message(&mut self, of: u32) -> SpaceMessage {
        let mut post = std::collections::VecDeque::new();
        loop {
            self.regions.flush();
            post.extend(self.regions.take_post());
            match post.pop_front() {
                Some((space, message)) if space == of => return message,
                Some((space, message)) => panic!("for space {space}: {message:?}"),
                None => match self.regions.due() {
                    // A space that returned a region waits before it gets another.
                    Some(due) => match self.told.recv_deadline(due) {
                        Ok(event) => self.regions.handle(event),
                        Err(_) => self.regions.grant(),
                    },
                    None => self.regions.handle(self.told.recv_timeout(BOUND).unwrap()),
                },
            }
        }
    }

    fn join(&mut self, space: u32, key: u8) -> Vec<Region> {
        self.regions.join(space, 0, slab(key), Vec::new());
        match self.message(space) {
            SpaceMessage::Adopted { regions, .. } => regions,
            other => panic!("{other:?}"),
        }
    }

    /// Request a region for a space; return it if granted.
    fn need(&mut self, space: u32) -> Option<Region> {
        self.regions.need(space, None);
        match self.message(space) {
            SpaceMessage::DiskGranted(region) => Some(region),
            SpaceMessage::DiskRefused => None,
            other => panic!("{other:?}"),
        }
    }

    /// Record a block in the first slot of a region.
    fn record(&self, region: u32) {
        let (reply, answers) = mailbox(1).unwrap();
        let request = LogRequest {
            space: 1,
            id: 1,
            kind: LogRequestKind::Record,
            urgent: true,
            key: SlotKey { region, slot: 0, generation: 5 },
            shard: 0,
            hash: 77,
            parent: 0,
            salt: 0,
            present: vec![1],
            crcs: vec![9],
            sectors: vec![],
            tags: vec![],
            reply,
            status: Status::Ok,
            errno: 0,
        };
        let disk = self.disk.as_ref().unwrap().disk();
        disk.log().send(LogMessage::LogRequest(Box::new(request))).unwrap();
        assert_eq!(answers.wait().unwrap().status, Status::Ok);
    }

    fn unclaimed(&self) -> u32 {
        self.regions.status()[0].unclaimed
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(disk) = self.disk.take() {
            disk.end();
        }
    }
}

fn slab(key: u8) -> SlabHeader {
    SlabHeader::new(0, 0, [key; 32], "default", 4096, vec![4096])
}

/// Return a region without blocks in memory; its records are only in the log.
fn left(slab: u32) -> Left {
    Left { slab, blocks: Blocks::empty(0, 1, false, false), generation: 0 }
}

#[test]
fn an_unclaimed_region_is_adopted_by_its_space_alone() {
    let mut rig = Rig::new();
    assert!(rig.join(1, 1).is_empty());
    let region = rig.need(1).unwrap();
    assert!(region.blocks.is_none());
    rig.record(region.grant.region);
    // The daemon stops: the record stays.
    rig.regions.add_unclaimed(1, left(region.grant.slab));
    rig.regions.leave(1);
    assert_eq!(rig.regions.status()[0].lost, 0);
    let mut rig = rig.again();
    assert_eq!(rig.unclaimed(), 1);
    assert!(rig.join(1, 2).is_empty(), "the region belongs to another space");
    assert_eq!(rig.unclaimed(), 1);
    let mine = rig.join(2, 1);
    assert_eq!((mine.len(), rig.unclaimed()), (1, 0));
    let blocks = mine[0].blocks.as_ref().unwrap();
    assert_eq!((blocks.len(), blocks.get(0).hash, mine[0].grant.region), (1, 77, region.grant.region));
    assert!(mine[0].generation >= 2 << 16, "generation of the second start: {}", mine[0].generation);
    // After a return, no record of the region is valid.
    rig.regions.take_back(2, mine[0].grant.slab);
    let rig = rig.again();
    assert_eq!(rig.unclaimed(), 0);
}

#[test]
fn what_nobody_comes_for_goes_when_there_is_no_other_room() {
    let mut rig = Rig::new();
    rig.join(1, 1);
    let old = rig.need(1).unwrap();
    rig.record(old.grant.region);
    rig.regions.add_unclaimed(1, left(old.grant.slab));
    let mut rig = rig.again();
    rig.join(2, 2);
    let others: Vec<u32> = (1..REGIONS).map(|_| rig.need(2).unwrap().grant.region).collect();
    assert!(!others.contains(&old.grant.region) && rig.unclaimed() == 1, "{others:?}");
    assert_eq!(rig.need(2).unwrap().grant.region, old.grant.region);
    assert_eq!(rig.unclaimed(), 0);
    assert!(rig.need(2).is_none(), "all regions are granted");
    // A space that ended without a message may still write: its regions, also those it had requested, stay unused.
    rig.regions.leave(2);
    assert_eq!(rig.regions.status()[0].lost, REGIONS);
    let mut rig = rig.again();
    assert!(rig.join(3, 1).is_empty(), "its record is invalid");
}

#[test]
fn a_failed_disk_is_told_to_those_who_hold_slabs_there_and_grants_nothing() {
    let mut rig = Rig::new();
    rig.join(1, 1);
    let region = rig.need(1).unwrap();
    rig.regions.handle(DiskEvent::Failed { disk: 0, errno: 5 });
    assert!(matches!(rig.message(1), SpaceMessage::DiskGone { slab } if slab == region.grant.slab));
    assert!(rig.need(1).is_none());
    rig.regions.take_back(1, region.grant.slab);
    assert!(rig.need(1).is_none());
    assert_eq!((rig.regions.status()[0].granted, rig.regions.status()[0].failed), (0, true));
}
