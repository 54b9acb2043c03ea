//! Tests of `kvtide fsck` on real files.
#![allow(clippy::unwrap_used)]

use kvtide_format::log::{Cipher, CipherError, Log, NONCE_BYTES, Put, Salt, SlabHeader, Storage, TAG_BYTES};
use kvtide_format::{PageKey, Superblock};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

const PAGE: usize = 2048;
const PLANES: usize = 4;
const SLOT: u64 = 8192;

/// A directory with a disk, removed on drop.
struct Place {
    dir: tempfile::TempDir,
    superblock: Superblock,
}

struct Disk(File);

impl Storage for Disk {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, offset)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Inverts bits. Its strength does not matter: fsck has no key for it.
struct Toy;

impl Cipher for Toy {
    fn learn(&mut self, _: &Salt) {}

    fn seal(
        &mut self,
        _: &SlabHeader,
        _: u32,
        _: &[u8; NONCE_BYTES],
        _: &[u8],
        body: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], CipherError> {
        body.iter_mut().for_each(|byte| *byte = !*byte);
        Ok([0; TAG_BYTES])
    }

    fn open(
        &mut self,
        _: &SlabHeader,
        _: u32,
        _: &[u8; NONCE_BYTES],
        _: &[u8],
        body: &mut [u8],
        _: &[u8; TAG_BYTES],
    ) -> Result<(), CipherError> {
        body.iter_mut().for_each(|byte| *byte = !*byte);
        Ok(())
    }
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let superblock = Superblock::new(0xABCD_EF01, 4 << 20, 1 << 20).unwrap();
        let superblock = Superblock { starts: 1, sequence: 1, ..superblock };
        let place = Place { dir, superblock };
        let file = File::create_new(place.file()).unwrap();
        file.set_len(superblock.file_bytes()).unwrap();
        file.write_all_at(&superblock.encode(), superblock.place()).unwrap();
        place
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("kvtide.store")
    }

    fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.file()).unwrap()
    }

    fn slot_at(&self, region: u32, slot: u32) -> u64 {
        self.superblock.regions_offset + u64::from(region) * self.superblock.region_bytes + u64::from(slot) * SLOT
    }

    /// Write a chain of blocks in region 0, all flushed except the last.
    fn fill(&self, blocks: u32) {
        let cipher: Option<Box<dyn Cipher>> = Some(Box::new(Toy));
        let (mut log, _) = Log::open(Disk(self.open()), &self.superblock, cipher, &mut |_| {}).unwrap();
        log.grant(&slab(0, 1, false)).unwrap();
        log.grant(&slab(1, 2, true)).unwrap();
        log.salt(&Salt { number: 1, bytes: [1; 32] }).unwrap();
        for slot in 0..blocks {
            let mut crcs = [0; PLANES];
            let mut pages = vec![0; SLOT as usize];
            for plane in 0..PLANES {
                let page = &mut pages[plane * PAGE..(plane + 1) * PAGE];
                page.fill((slot as u8) << 2 | plane as u8);
                let (store, generation) = (self.superblock.store, 1 << 16);
                crcs[plane] = PageKey { store, region: 0, slot, generation, plane: plane as u16 }.checksum(page);
            }
            log.storage().write(self.slot_at(0, slot), &pages).unwrap();
            let hash = u128::from(slot) + 1;
            let put = Put {
                region: 0,
                slot,
                generation: 1 << 16,
                shard: 0,
                salt: 0,
                hash,
                parent: hash - 1,
                present: &[15],
                crcs: &crcs,
                sectors: &[],
                tags: &[],
            };
            if slot + 1 == blocks {
                log.put(&Put { region: 1, salt: 1, tags: &[[0; 16]; PLANES], ..put }).unwrap();
                // The flush mark of a batch is in the following batch.
                log.flush().unwrap();
            }
            log.put(&put).unwrap();
        }
        log.write().unwrap();
    }

    fn flip(&self, at: u64) {
        let (file, mut byte) = (self.open(), [0]);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    }

    fn fsck(&self, flags: &[&str]) -> (i32, serde_json::Value) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
        let output = command.arg("fsck").arg(self.dir.path()).arg("--json").args(flags).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let status = output.status.code().unwrap();
        let json = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {status}\n{text}\n{}", String::from_utf8_lossy(&output.stderr)));
        (status, json)
    }
}

fn slab(region: u32, grant: u64, encrypted: bool) -> SlabHeader {
    SlabHeader { encrypted, ..SlabHeader::new(region, grant, [9; 32], "research", SLOT, vec![PAGE as u32; PLANES]) }
}

fn number(json: &serde_json::Value, pointer: &str) -> u64 {
    json.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("{pointer} in {json:#}"))
}

#[test]
fn a_disk_that_is_as_it_was_written_is_clean_and_not_changed() {
    let place = Place::new();
    place.fill(10);
    let before = fs::read(place.file()).unwrap();
    let (status, json) = place.fsck(&[]);
    assert_eq!((status, json["verdict"].as_str()), (0, Some("clean")), "{json:#}");
    let blocks = "/disks/0/blocks";
    let of = |name: &str| number(&json, &format!("{blocks}/{name}"));
    assert_eq!((of("recorded"), of("good"), of("sealed"), of("pages_checked")), (11, 10, 1, 40));
    assert_eq!((of("corrupt"), of("lost_unflushed"), of("unreachable")), (0, 0, 0));
    assert_eq!(place.fsck(&["--repair", "--yes"]).0, 0, "there is nothing to repair");
    assert!(fs::read(place.file()).unwrap() == before, "nothing was changed");
    // Text output.
    let output = Command::new(env!("CARGO_BIN_EXE_kvtide")).arg("fsck").arg(place.file()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("clean") && text.contains("no --key") && text.contains("domain \"research\""), "{text}");
}

#[test]
fn bad_pages_are_found_named_and_dropped() {
    let place = Place::new();
    place.fill(10);
    place.flip(place.slot_at(0, 3) + 2 * PAGE as u64 + 5);
    // The last block was never flushed, so this can be the effect of a power cut.
    place.flip(place.slot_at(0, 9));
    let before = fs::read(place.file()).unwrap();
    let (status, json) = place.fsck(&[]);
    assert_eq!((status, json["verdict"].as_str()), (4, Some("damaged")));
    assert_eq!(number(&json, "/disks/0/blocks/corrupt"), 1);
    assert_eq!(number(&json, "/disks/0/blocks/lost_unflushed"), 1);
    assert_eq!(number(&json, "/disks/0/blocks/unreachable"), 5, "blocks 4 to 8 are descendants of the bad one");
    assert_eq!(number(&json, "/disks/0/bad_pages/0/slot"), 3);
    assert_eq!(number(&json, "/disks/0/bad_pages/0/plane"), 2);
    assert!(fs::read(place.file()).unwrap() == before, "nothing was changed");
    let (status, json) = place.fsck(&["--repair", "--yes"]);
    assert_eq!((status, json["verdict"].as_str(), number(&json, "/disks/0/erased")), (1, Some("repaired"), 2));
    let (status, json) = place.fsck(&[]);
    assert_eq!((status, number(&json, "/disks/0/blocks/good"), number(&json, "/disks/0/blocks/sealed")), (0, 8, 1));
}

#[test]
fn a_damaged_index_and_superblock_are_found_and_written_anew() {
    let place = Place::new();
    place.fill(10);
    // Damage the hash of the fourth block: behind the checkpoint's mark, a header, two slabs of 152 bytes, a salt, and three blocks
    // of 88. Also damage the superblock copy that is not in use.
    let at = place.superblock.log_offset + 4096 + 64 + 2 * 152 + 48 + 3 * 88 + 40;
    place.flip(at);
    place.open().write_all_at(b"kvtstore", 0).unwrap();
    let (status, json) = place.fsck(&[]);
    assert_eq!(status, 4, "{json:#}");
    assert_eq!(number(&json, "/disks/0/log/corrupt"), 1);
    assert!(json.pointer("/disks/0/store/superblock/0").unwrap().as_str().unwrap().contains("copy 0"));
    let left = number(&json, "/disks/0/blocks/good");
    assert_eq!(left, 9, "the rest of the batch is valid");
    assert_eq!(place.fsck(&["--repair", "--yes"]).0, 1);
    let (status, json) = place.fsck(&[]);
    assert_eq!((status, number(&json, "/disks/0/blocks/good")), (0, left), "{json:#}");
}

#[test]
fn what_is_in_use_foreign_or_later_is_refused_and_not_changed() {
    let place = Place::new();
    place.fill(2);
    let refused = |flags: &[&str], why: &str| {
        let before = fs::read(place.file()).unwrap();
        let (status, json) = place.fsck(flags);
        let error = json.pointer("/disks/0/error").unwrap().as_str().unwrap().to_owned();
        assert_eq!((status, json["verdict"].as_str()), (8, Some("refused")));
        assert!(error.contains(why), "{error}");
        assert!(fs::read(place.file()).unwrap() == before, "nothing was changed");
    };
    let holder = place.open();
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    refused(&["--repair", "--yes"], "in use");
    drop(holder);
    refused(&["--repair", "--yes", "--key", "/nonexistent/key"], "/nonexistent/key");
    let mut later = place.superblock.encode();
    later[8] = 9;
    let crc = crc32c(&later[..4092]);
    later[4092..].copy_from_slice(&crc.to_le_bytes());
    place.open().write_all_at(&later, 0).unwrap();
    refused(&["--repair", "--yes"], "later version");
    place.open().write_all_at(&[7; 8192], 0).unwrap();
    refused(&["--repair", "--yes"], "not a kvtide store: no superblock");
    fs::remove_file(place.file()).unwrap();
    assert_eq!(place.fsck(&[]).0, 8);
    assert!(!place.file().exists(), "none was made");
}

/// Compute CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let fold = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 })
    };
    !bytes.iter().fold(!0, fold)
}
