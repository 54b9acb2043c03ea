//! Encrypted disks over restarts: readable with the same key, rejected with another, lost after a purge or with an ephemeral key.

use super::fixture::*;
use crate::Error;
use crate::{
    Codec, DiskError, DiskEvent, DiskThread, Encryption, EraseKeys, KeyError, KeySource, LogMessage, LogRequest,
    LogRequestKind, Part, Settings, SlabCode, SlotKey, purge,
};
use crossbeam::channel::bounded;
use kvtide_format::log::SlabHeader;
use kvtide_types::{IoKind, Status};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

const SLOT: u64 = 64 << 10;

/// Make a key file beside the disk's directory.
fn key(dir: &Dir, seed: u8) -> PathBuf {
    let path = dir.1.path().join(format!("key{seed}"));
    fs::write(&path, [seed, 2].repeat(16)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

/// Hash of the block in region 0: sixteen bytes that do not occur by chance.
const HASH: u128 = 0x9e0c_52d3_7ab1_46f8_b35d_e917_c264_8fa0;

fn settings(dir: &Dir, source: KeySource) -> Settings {
    Settings { codec: Codec::PlanesZstd, encryption: Encryption { source, new_slabs: true }, ..dir.settings() }
}

fn header(region: u32, domain: &str, encrypted: bool) -> SlabHeader {
    SlabHeader {
        codec: Codec::PlanesZstd.code(),
        encrypted,
        ..SlabHeader::new(region, u64::from(region) + 1, [region as u8; 32], domain, SLOT, vec![16384; 4])
    }
}

/// Grant a slab, write its first slot, and record the block.
fn stored(rig: &mut Rig, slab: &SlabHeader) {
    rig.log(LogMessage::Grant(slab.clone()));
    let told = rig.until(|event| matches!(event, DiskEvent::Granted { .. }));
    assert!(matches!(told, DiskEvent::Granted { status: Status::Ok, .. }), "{told:?}");
    let code = rig.disk().code(slab).unwrap();
    let host = memory(MIB);
    for page in 0..4 {
        fill(&host, page * 16384, 8192, page + 1);
    }
    let mut write = rig.transfer(IoKind::Write, 0, SLOT, parts(&host, &[16384; 4], 4096, 16384));
    write.key.region = slab.region;
    write.offset = rig.disk().offset(slab.region, 0);
    write.code = code;
    let wrote = rig.run(write);
    assert_eq!(wrote.status, Status::Ok);
    let of = |part: fn(&Part) -> u32| wrote.parts.iter().map(part).collect::<Vec<u32>>();
    let tags = wrote.parts.iter().map(|part| part.tag);
    let request = LogRequest {
        space: 1,
        id: 1,
        kind: LogRequestKind::Record,
        urgent: true,
        key: SlotKey { region: slab.region, slot: 0, generation: 1 },
        shard: 0,
        hash: HASH + u128::from(slab.region),
        parent: 0,
        present: vec![0b1111],
        crcs: of(|part| part.crc),
        sectors: wrote.parts.iter().map(|part| part.sectors).collect(),
        tags: if slab.encrypted { tags.collect() } else { Vec::new() },
        salt: wrote.salt,
        reply: rig.log_ended.clone(),
        status: Status::Internal,
        errno: 0,
    };
    rig.log(LogMessage::LogRequest(Box::new(request)));
    assert_eq!(rig.log_ended().status, Status::Ok);
}

/// Start the disk again; return the regions with a first slot that was recovered and reads back correctly.
fn restarted(settings: &Settings) -> (Vec<u32>, Rig) {
    let mut open = DiskThread::open(settings).unwrap();
    let recovered = open.take_recovered();
    let mut rig = Rig::of(open, |engine| engine).unwrap();
    let host = memory(MIB);
    let mut good = Vec::new();
    for slab in &recovered.slabs {
        let Ok(code) = rig.disk().code(&slab.header) else { panic!("a slab without a key was recovered") };
        for put in slab.blocks.iter() {
            assert_eq!((put.hash, put.slot, put.present), (HASH + u128::from(put.region), 0, &[0b1111][..]));
            let mut pages = parts(&host, &[16384; 4], 4096, 16384);
            for (plane, part) in pages.iter_mut().enumerate() {
                (part.crc, part.sectors) = (put.crcs[plane], put.sectors[plane]);
                part.tag = put.tags.get(plane).copied().unwrap_or_default();
            }
            let mut read = rig.transfer(IoKind::Read, 0, SLOT, pages);
            read.key = SlotKey { region: put.region, slot: put.slot, generation: put.generation };
            read.offset = rig.disk().offset(put.region, 0);
            (read.code, read.salt) = (code.clone(), put.salt);
            let read = rig.run(read);
            let expected = memory(MIB);
            for page in 0..4 {
                fill(&expected, page * 16384, 8192, page + 1);
            }
            let same = bytes(&host, 0, 65536) == bytes(&expected, 0, 65536);
            if read.status == Status::Ok && read.parts.iter().all(|part| part.ok) && same {
                good.push(put.region);
            }
        }
    }
    (good, rig)
}

fn is_encrypted(code: Option<Arc<SlabCode>>) -> bool {
    code.is_some_and(|code| code.is_encrypted())
}

fn refused(settings: &Settings) -> KeyError {
    match DiskThread::open(settings).map(|_| ()) {
        Err(Error::Disk(DiskError::Keys { source, .. })) => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_same_key_reads_back_and_a_wrong_one_touches_nothing() {
    let dir = Dir::new();
    let (right, wrong) = (key(&dir, 1), key(&dir, 7));
    let with = |key: &PathBuf| settings(&dir, KeySource::File(key.clone()));
    let mut rig = Rig::start(&with(&right));
    stored(&mut rig, &header(0, "a", true));
    assert!(is_encrypted(rig.disk().code(&header(0, "a", true)).unwrap()));
    rig.end();
    let file = dir.0.join("kvtide.store");
    let before = fs::read(&file).unwrap();
    assert!(!before.windows(16).any(|w| w == HASH.to_le_bytes()), "the hash of a known prompt is not on the disk");
    assert!(matches!(refused(&with(&wrong)), KeyError::Wrong { .. }));
    assert!(matches!(refused(&settings(&dir, KeySource::Off)), KeyError::Missing { .. }));
    assert!(matches!(refused(&settings(&dir, KeySource::Ephemeral)), KeyError::Missing { .. }));
    let smaller = Settings { capacity_bytes: 2 * MIB, ..with(&wrong) };
    assert!(matches!(refused(&smaller), KeyError::Wrong { .. }), "also if it would be laid out again");
    fs::set_permissions(&right, Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(refused(&with(&right)), KeyError::Refused { .. }));
    fs::set_permissions(&right, Permissions::from_mode(0o600)).unwrap();
    assert!(fs::read(&file).unwrap() == before, "the disk was not changed");
    for _ in 0..2 {
        let (good, rig) = restarted(&with(&right));
        assert_eq!(good, [0]);
        rig.end();
    }
}

#[test]
fn encryption_can_be_turned_on_and_off() {
    let dir = Dir::new();
    let off = settings(&dir, KeySource::Off);
    let mut rig = Rig::start(&off);
    stored(&mut rig, &header(0, "a", false));
    rig.end();
    let on = settings(&dir, KeySource::File(key(&dir, 1)));
    let (good, mut rig) = restarted(&on);
    assert_eq!((good, rig.disk().coding()), (vec![0], (Codec::PlanesZstd.code(), true)));
    stored(&mut rig, &header(1, "a", true));
    rig.end();
    let encryption = Encryption { new_slabs: false, ..on.encryption.clone() };
    let (mut good, rig) = restarted(&Settings { encryption, codec: Codec::None, ..on });
    good.sort_unstable();
    assert_eq!((good, rig.disk().coding()), (vec![0, 1], (Codec::None.code(), false)));
}

#[test]
fn what_an_ephemeral_key_encrypted_is_gone_with_it() {
    let dir = Dir::new();
    let ephemeral = settings(&dir, KeySource::Ephemeral);
    let mut rig = Rig::start(&ephemeral);
    stored(&mut rig, &header(0, "a", true));
    stored(&mut rig, &header(1, "b", false));
    rig.end();
    for _ in 0..2 {
        let (good, rig) = restarted(&ephemeral);
        assert_eq!(good, [1], "unencrypted blocks stay");
        rig.end();
    }
    let (good, rig) = restarted(&settings(&dir, KeySource::Off));
    assert_eq!(good, [1]);
    rig.end();
}

#[test]
fn a_tenant_purged_while_the_disk_serves_is_gone_and_comes_back_with_another_key() {
    let dir = Dir::new();
    let on = settings(&dir, KeySource::File(key(&dir, 1)));
    let mut rig = Rig::start(&on);
    for (region, domain) in [(0, "a"), (1, "b")] {
        stored(&mut rig, &header(region, domain, true));
    }
    let erase = |rig: &Rig, domain: &str| {
        let (answer, answered) = bounded(1);
        let answer = Box::new(move |erased| answer.send(erased).unwrap());
        rig.log(LogMessage::EraseKeys(EraseKeys { domain: domain.into(), answer }));
        answered.recv_timeout(LONG).unwrap()
    };
    let before = rig.disk().code(&header(0, "a", true)).unwrap().unwrap();
    rig.log(LogMessage::Free { region: 0, grant: 1 });
    assert_eq!(["unknown", "a", "a"].map(|tenant| erase(&rig, tenant).unwrap()), [0, 1, 0]);
    assert!(matches!(rig.disk().code(&header(0, "a", true)), Err(KeyError::Unknown { .. })));
    // The tenant returns with a new key.
    stored(&mut rig, &SlabHeader { grant: 9, ..header(0, "a", true) });
    assert!(!Arc::ptr_eq(&before, &rig.disk().code(&header(0, "a", true)).unwrap().unwrap()));
    assert_eq!(erase(&rig, "a").unwrap(), 1);
    rig.end();
    let (good, rig) = restarted(&on);
    assert_eq!(good, [1], "b stays");
    rig.end();
    // A disk out of service returns an error.
    let rig = Rig::start(&on);
    fs::remove_file(dir.0.join("kvtide.store")).unwrap();
    rig.until(|event| matches!(event, DiskEvent::Failed { .. }));
    assert!(matches!(erase(&rig, "b"), Err(KeyError::OutOfService)));
    rig.end();
}

#[test]
fn a_purged_tenant_is_gone_and_others_stay() {
    let dir = Dir::new();
    let on = settings(&dir, KeySource::File(key(&dir, 1)));
    let mut rig = Rig::start(&on);
    stored(&mut rig, &header(0, "a", true));
    stored(&mut rig, &header(1, "b", true));
    assert!(matches!(purge(&dir.0, "a"), Err(DiskError::InUse { .. })), "not while a daemon runs");
    rig.end();
    let before = fs::read(dir.0.join("kvtide.store")).unwrap();
    let nobody = purge(&dir.0, "nobody").unwrap();
    assert!((nobody.keys, nobody.encrypted_slabs) == (0, 0) && fs::read(dir.0.join("kvtide.store")).unwrap() == before);
    assert_eq!(nobody.tenants, ["a", "b"].map(String::from).into());
    let purged = purge(&dir.0, "a").unwrap();
    assert_eq!((purged.keys, purged.encrypted_slabs, purged.plain_slabs), (1, 1, 0));
    assert!(purge(&dir.0, "a").unwrap().tenants.contains("a"), "a second purge still knows the tenant");
    let (good, mut rig) = restarted(&on);
    assert_eq!(good, [1]);
    // The tenant returns with a new key and finds none of its old blocks.
    stored(&mut rig, &SlabHeader { grant: 9, ..header(0, "a", true) });
    rig.end();
    let (mut good, rig) = restarted(&on);
    good.sort_unstable();
    assert_eq!(good, [0, 1]);
    rig.end();
    // Unencrypted slabs are counted, not erased.
    let (_, mut rig) = restarted(&on);
    stored(&mut rig, &SlabHeader { grant: 10, ..header(0, "a", false) });
    rig.end();
    let purged = purge(&dir.0, "a").unwrap();
    assert_eq!((purged.keys, purged.encrypted_slabs, purged.plain_slabs), (1, 0, 1));
}
