//! Raw block devices, using loop devices; needs root.

use super::fixture::*;
use crate::Error;
use crate::{Discard, DiskError, DiskEvent, DiskThread, LogMessage, Place, Settings};
use kvtide_format::log::SlabHeader;
use kvtide_types::{IoKind, Status};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const BYTES: u64 = 16 * MIB;
const REGION: u64 = 2 * MIB;

/// A loop device over a file of random bytes, except for 1 MiB of zeros at each end.
struct Loop {
    dir: Dir,
    device: PathBuf,
}

impl Loop {
    /// Return None, and print a note, if loop devices are not available.
    fn new() -> Option<Loop> {
        let dir = Dir::new();
        fs::create_dir(&dir.0).unwrap();
        fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o700)).unwrap();
        let path = dir.0.join("device");
        let file = File::create(&path).unwrap();
        file.set_len(BYTES).unwrap();
        let noise: Vec<u8> = (0..MIB).map(|at| (at * 7 % 251) as u8 + 1).collect();
        for mib in 1..BYTES / MIB - 1 {
            file.write_all_at(&noise, mib * MIB).unwrap();
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("NOT TRIED: raw block devices: loop devices need root");
            return None;
        }
        let made = Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&path).output();
        match made {
            Ok(made) if made.status.success() => {
                let device = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
                Some(Loop { dir, device })
            }
            other => {
                eprintln!("NOT TRIED: raw block devices: losetup failed: {other:?}");
                None
            }
        }
    }

    fn settings(&self) -> Settings {
        let discard = Discard { bytes_per_s: 1 << 40, idle: Duration::ZERO };
        Settings {
            place: Place::Device(self.device.clone()),
            capacity_bytes: 0,
            region_bytes: REGION,
            discard: Some(discard),
            ..self.dir.settings()
        }
    }

    fn refused(&self) -> DiskError {
        match DiskThread::open(&self.settings()).err() {
            Some(Error::Disk(error)) => error,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    fn set_read_only(&self, flag: &str) {
        assert!(Command::new("blockdev").arg(flag).arg(&self.device).status().unwrap().success());
    }

    fn byte(&self, at: u64) -> u8 {
        let mut byte = [0];
        File::open(self.dir.0.join("device")).unwrap().read_exact_at(&mut byte, at).unwrap();
        byte[0]
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let freed = Command::new("losetup").arg("--detach").arg(&self.device).status();
        assert!(freed.is_ok_and(|status| status.success()) || std::thread::panicking(), "{}", self.device.display());
    }
}

/// A file system of 8 MiB, if mounting is allowed.
struct Small(Dir);

impl Small {
    /// Return None, and print a note, if mounting is not allowed.
    fn new() -> Option<Small> {
        let dir = Dir::new();
        fs::create_dir(&dir.0).unwrap();
        let options = format!("size=8M,mode=0700,uid={}", rustix::process::geteuid().as_raw());
        let made = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(&dir.0).output();
        if made.as_ref().is_ok_and(|made| made.status.success()) {
            return Some(Small(dir));
        }
        eprintln!("NOT TRIED: full file system: mounting needs root: {made:?}");
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let gone = Command::new("umount").arg("--lazy").arg(&self.0.0).status();
        assert!(gone.is_ok_and(|status| status.success()) || std::thread::panicking(), "{}", self.0.0.display());
    }
}

#[test]
fn a_region_that_its_file_system_has_no_room_for_is_granted_to_nobody() {
    let Some(small) = Small::new() else { return };
    let settings = Settings { capacity_bytes: 4 * MIB, region_bytes: MIB, ..small.0.settings() };
    let rig = Rig::start(&settings);
    let granted = |region, status| DiskEvent::Granted { disk: 0, region, grant: 1, status };
    rig.log(LogMessage::Grant(header(0)));
    rig.until(|event| *event == granted(0, Status::Ok));
    // Other files fill it up.
    let other = small.0.0.join("other");
    let filled = std::iter::repeat_n(vec![1; MIB as usize], 16).try_for_each(|mib| {
        std::io::Write::write_all(&mut OpenOptions::new().append(true).create(true).open(&other).unwrap(), &mib)
    });
    assert_eq!(filled.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    rig.log(LogMessage::Grant(header(1)));
    rig.until(|event| *event == granted(1, Status::NoSpace));
    let status = rig.status();
    assert!(status.log.no_room && status.errors[&libc::ENOSPC] == 1, "{status:?}");
    // After space is freed, this is no longer reported, and the next request gets a region.
    fs::remove_file(&other).unwrap();
    let until = Instant::now() + LONG;
    while rig.status().log.no_room {
        assert!(Instant::now() < until, "still reported");
        std::thread::yield_now();
    }
    rig.log(LogMessage::Grant(header(1)));
    rig.until(|event| *event == granted(1, Status::Ok));
    assert_eq!(rig.status().out_of_service, None);
    rig.end();
}

fn header(region: u32) -> SlabHeader {
    SlabHeader::new(region, 1, [1; 32], "someone", 65536, vec![16384; 4])
}

#[test]
fn a_blank_device_serves_is_found_again_and_is_told_of_what_is_free() {
    let Some(device) = Loop::new() else { return };
    let mut rig = Rig::start(&device.settings());
    // 16 MiB: superblocks, keys, log and regions.
    assert_eq!(rig.disk().regions(), 6);
    rig.log(LogMessage::Grant(header(0)));
    rig.until(|event| matches!(event, DiskEvent::Granted { region: 0, status: Status::Ok, .. }));
    let host = memory(MIB);
    (0..4).for_each(|page| fill(&host, page * 16384, 16384, page + 1));
    let write = rig.transfer(IoKind::Write, 0, 65536, parts(&host, &[16384; 4], 4096, 16384));
    let wrote = rig.run(write);
    assert_eq!(wrote.status, Status::Ok);
    let until = Instant::now() + LONG;
    // Region 0 may have been discarded before it was granted, not afterwards.
    while rig.status().log.discarded_bytes < 5 * REGION {
        assert!(Instant::now() < until, "{:?}", rig.status().log);
        std::thread::yield_now();
    }
    assert_eq!(device.byte(rig.disk().offset(3, 77)), 0, "a loop device punches discarded ranges in its file");
    let read = rig.transfer(IoKind::Read, 0, 65536, wrote.parts);
    let read = rig.run(read);
    assert!(read.status == Status::Ok && read.parts.iter().all(|part| part.ok), "granted regions are not discarded");
    let second = DiskThread::open(&device.settings()).err();
    assert!(matches!(second, Some(Error::Disk(DiskError::InUse { .. }))), "{second:?}");
    rig.end();
    let mut open = DiskThread::open(&device.settings()).unwrap();
    assert_eq!(open.take_recovered().slabs.len(), 1);
    let mut rig = Rig::of(open, |engine| engine).unwrap();
    assert_eq!(rig.disk().starts(), 2);
    let read = rig.transfer(IoKind::Read, 0, 65536, read.parts);
    assert!(rig.run(read).parts.iter().all(|part| part.ok));
    let too_large = Settings { capacity_bytes: BYTES, ..device.settings() };
    rig.end();
    let error = DiskThread::open(&too_large).err();
    let wanted = 6 * REGION;
    assert!(
        matches!(error, Some(Error::Disk(DiskError::DeviceTooSmall { most_bytes, .. })) if most_bytes == wanted),
        "{error:?}"
    );
}

#[test]
fn a_device_that_carries_anything_else_is_refused_and_left_as_it_is() {
    let Some(device) = Loop::new() else { return };
    let path = device.dir.0.join("device");
    let before = fs::read(&path).unwrap();
    // Offsets of the signatures of ext4, LVM, GPT and XFS, and at the end of old RAID and the backup GPT.
    for at in [0, 512, 1080, 4086, 65536 + 64, MIB - 1, BYTES - 65536, BYTES - 1] {
        let file = OpenOptions::new().write(true).open(&device.device).unwrap();
        file.write_all_at(&[0x53], at).unwrap();
        file.sync_all().unwrap();
        let error = device.refused();
        assert!(matches!(error, DiskError::Superblock { .. }), "{at}: {error}");
        file.write_all_at(&[0], at).unwrap();
        file.sync_all().unwrap();
        assert!(fs::read(&path).unwrap() == before, "{at}: the device was changed");
    }
    let plain = Settings { place: Place::Device(path), ..device.settings() };
    let error = DiskThread::open(&plain).err();
    assert!(matches!(error, Some(Error::Disk(DiskError::Kind { expected: "block device", .. }))), "{error:?}");
}

#[test]
fn a_device_that_turns_read_only_ends_at_once() {
    let Some(device) = Loop::new() else { return };
    let mut rig = Rig::start(&device.settings());
    let host = memory(MIB);
    device.set_read_only("--setro");
    let write = rig.transfer(IoKind::Write, 0, 65536, parts(&host, &[16384; 4], 4096, 16384));
    let wrote = rig.run(write);
    assert_eq!(wrote.status, Status::Io);
    let failed = rig.until(|event| matches!(event, DiskEvent::Failed { .. }));
    assert_eq!(failed, DiskEvent::Failed { disk: 0, errno: wrote.errno });
    rig.end();
    assert!(matches!(device.refused(), DiskError::ReadOnly { .. }));
    device.set_read_only("--setrw");
    Rig::start(&device.settings()).end();
}
