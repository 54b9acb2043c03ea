//! Directories and files that must be rejected, and those that can be used again.

use super::fixture::*;
use crate::Error;
use crate::{DiskError, DiskThread, Place, Reserve, Settings};
use kvtide_format::{SUPERBLOCK_BYTES, Superblock};
use kvtide_types::{IoKind, Status};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::PathBuf;

fn refused(settings: &Settings) -> DiskError {
    match DiskThread::open(settings).err() {
        Some(Error::Disk(error)) => error,
        other => panic!("expected an error, got {other:?}"),
    }
}

fn made(dir: &Dir) -> PathBuf {
    fs::create_dir(&dir.0).unwrap();
    fs::set_permissions(&dir.0, Permissions::from_mode(0o700)).unwrap();
    dir.0.join("kvtide.store")
}

fn private(path: &PathBuf, bytes: &[u8]) -> File {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Return the current superblock.
pub fn superblock(dir: &Dir) -> Superblock {
    let file = File::open(dir.0.join("kvtide.store")).unwrap();
    let mut copies = [[0; SUPERBLOCK_BYTES]; 2];
    for (copy, at) in copies.iter_mut().zip([0, SUPERBLOCK_BYTES as u64]) {
        file.read_exact_at(copy, at).unwrap();
    }
    Superblock::newest(&copies[0], &copies[1]).unwrap()
}

#[test]
fn a_directory_or_file_of_another_owner_or_open_to_others_is_refused() {
    let dir = Dir::new();
    let path = made(&dir);
    fs::write(dir.0.join("other"), b"").unwrap();
    fs::set_permissions(&dir.0, Permissions::from_mode(0o750)).unwrap();
    assert!(matches!(refused(&dir.settings()), DiskError::Mode { mode: 0o750, .. }));
    fs::set_permissions(&dir.0, Permissions::from_mode(0o700)).unwrap();
    let file = private(&path, b"mine");
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(refused(&dir.settings()), DiskError::Mode { mode: 0o640, .. }));
    drop(file);
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(65534), None).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(refused(&dir.settings()), DiskError::Owner { owner: 65534, me: 0, .. }));
        chown(&dir.0, Some(65534), None).unwrap();
        let error = refused(&dir.settings());
        assert!(matches!(&error, DiskError::Owner { path, .. } if *path == dir.0), "{error}");
    }
}

#[test]
fn what_is_no_directory_and_no_plain_file_is_refused() {
    let dir = Dir::new();
    fs::write(&dir.0, b"a file").unwrap();
    assert!(matches!(refused(&dir.settings()), DiskError::Kind { expected: "directory", .. }));
    fs::remove_file(&dir.0).unwrap();
    let path = made(&dir);
    let target = dir.0.join("elsewhere");
    private(&target, b"a victim");
    symlink(&target, &path).unwrap();
    assert!(matches!(refused(&dir.settings()), DiskError::Os { .. }), "a symbolic link is not followed");
    fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    assert!(matches!(refused(&dir.settings()), DiskError::Kind { expected: "regular file", .. }));
    assert_eq!(fs::read(&target).unwrap(), b"a victim");
    let nowhere = Settings { place: Place::Dir(dir.0.join("not/there")), ..dir.settings() };
    assert!(matches!(refused(&nowhere), DiskError::Os { .. }));
}

#[test]
fn files_of_others_of_later_versions_and_damaged_ones_are_left_as_they_are() {
    let dir = Dir::new();
    let path = made(&dir);
    let ours = Superblock::new(7, 4 * MIB, 2 * MIB).unwrap().encode();
    let mut later = ours;
    later[8] = 9;
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &later[..SUPERBLOCK_BYTES - 4]) as u32;
    later[SUPERBLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    let mut damaged = ours;
    damaged[30] ^= 4;
    let contents: [(&[u8], &str); 5] = [
        (b"", "not a kvtide store: no superblock"),
        (b"somebody's file", "not a kvtide store: no superblock"),
        (&[0; 100_000], "not a kvtide store: no superblock"),
        (&later, "later version"),
        (&damaged, "damaged"),
    ];
    for (content, why) in contents {
        private(&path, content);
        let error = refused(&dir.settings());
        assert!(matches!(error, DiskError::Superblock { .. }) && error.to_string().contains(why), "{error}");
        assert!(fs::read(&path).unwrap() == content, "{why}: the file was changed");
    }
}

#[test]
fn an_empty_directory_is_made_private_and_another_one_is_refused() {
    let dir = Dir::new();
    fs::create_dir_all(&dir.0).unwrap();
    fs::set_permissions(&dir.0, Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.0.join("somebody's"), b"").unwrap();
    assert!(matches!(refused(&dir.settings()), DiskError::Mode { mode: 0o755, .. }));
    fs::remove_file(dir.0.join("somebody's")).unwrap();
    Rig::start(&dir.settings()).end();
    assert_eq!(fs::metadata(&dir.0).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_tier_larger_than_its_disk_is_refused_with_what_would_fit() {
    let dir = Dir::new();
    let huge = Settings { capacity_bytes: 1 << 50, region_bytes: 1 << 30, ..dir.settings() };
    let error = refused(&huge);
    assert!(matches!(error, DiskError::TooLarge { .. }), "{error}");
    let floor = Settings { reserve_free: Reserve::Bytes(1 << 50), ..dir.settings() };
    assert!(matches!(refused(&floor), DiskError::TooLarge { most_bytes: 0, .. }));
    let all = Settings { reserve_free: Reserve::Percent(100), ..dir.settings() };
    assert!(matches!(refused(&all), DiskError::TooLarge { .. }));
    assert!(!dir.0.join("kvtide.store").exists(), "no unusable file is created");
}

#[test]
fn a_store_that_is_there_is_kept_when_its_file_system_has_less_room() {
    let dir = Dir::new();
    Rig::start(&dir.settings()).end();
    let before = fs::read(dir.0.join("kvtide.store")).unwrap();
    let floor = Settings { reserve_free: Reserve::Bytes(1 << 50), ..dir.settings() };
    Rig::start(&floor).end();
    let after = fs::read(dir.0.join("kvtide.store")).unwrap();
    // The same store: its id stands in both copies of the superblock.
    assert_eq!(before[16..32], after[16..32]);
    // A store of another capacity would be a new one.
    let other = Settings { capacity_bytes: floor.capacity_bytes * 2, ..floor };
    assert!(matches!(refused(&other), DiskError::TooLarge { .. }));
}

#[test]
fn a_file_in_use_is_refused_and_its_user_goes_on() {
    let dir = Dir::new();
    let mut rig = Rig::start(&dir.settings());
    let error = refused(&dir.settings());
    assert!(matches!(error, DiskError::InUse { .. }), "{error}");
    let host = memory(MIB);
    let write = rig.transfer(IoKind::Write, 0, 65536, parts(&host, &[65536], 4096, 65536));
    assert_eq!(rig.run(write).status, Status::Ok);
    rig.end();
    Rig::start(&dir.settings()).end();
}

#[test]
fn a_file_that_fits_is_used_again_and_nothing_is_written_ahead() {
    let dir = Dir::new();
    Rig::start(&dir.settings()).end();
    let first = superblock(&dir);
    assert_eq!((first.regions, first.starts), (2, 1));
    assert!(first.written_bytes < MIB, "only some sectors of log and superblock");
    let rig = Rig::start(&dir.settings());
    assert!(rig.status().written_ever_bytes < MIB);
    assert_eq!(rig.disk().starts(), 2);
    rig.end();
    let second = superblock(&dir);
    assert!(second.store == first.store && second.sequence > first.sequence && second.starts == 2);
    // A truncated file gets its size back.
    let file = fs::OpenOptions::new().write(true).open(dir.0.join("kvtide.store")).unwrap();
    file.set_len(first.regions_offset + MIB).unwrap();
    Rig::start(&dir.settings()).end();
    assert_eq!(fs::metadata(dir.0.join("kvtide.store")).unwrap().len(), first.file_bytes());
    // Another layout means another store.
    let other = Settings { capacity_bytes: 6 * MIB, ..dir.settings() };
    Rig::start(&other).end();
    let third = superblock(&dir);
    assert!(third.store != first.store && third.regions == 3);
    assert_eq!(fs::metadata(dir.0.join("kvtide.store")).unwrap().len(), third.file_bytes());
    assert_eq!(fs::metadata(dir.0.join("kvtide.store")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn what_a_killed_start_left_behind_is_removed() {
    let dir = Dir::new();
    made(&dir);
    fs::write(dir.0.join("kvtide.store.new"), b"half").unwrap();
    Rig::start(&dir.settings()).end();
    assert!(!dir.0.join("kvtide.store.new").exists());
}
