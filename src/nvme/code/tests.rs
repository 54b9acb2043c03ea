//! Stored pages, encrypted or coded, are readable only with their own key, at their own place, and unchanged.

use super::keys::{KeySource, MasterKey, nonces};
use super::work::{Page, Work, WorkerScratch};
use super::*;
use crate::memory::Memory;
use crate::transfer::SlotKey;
use kvtide_format::log::{Salt, SlabHeader, Storage};
use kvtide_format::{KEY_SECTORS, KEYS_OFFSET, PageKey};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

const STORE: u128 = 0xFEED;
const PAGE: usize = 12 << 10;

/// A key area in memory.
struct Area {
    bytes: Vec<u8>,
    flushed: bool,
    fails: bool,
}

impl Area {
    fn new() -> Area {
        Area { bytes: vec![0; usize::from(KEY_SECTORS) * 4096], flushed: true, fails: false }
    }
}

impl Storage for Area {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let at = (offset - KEYS_OFFSET) as usize;
        into.copy_from_slice(&self.bytes[at..at + into.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.fails {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let at = (offset - KEYS_OFFSET) as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.flushed = false;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushed = true;
        Ok(())
    }
}

fn encryption(source: KeySource) -> Encryption {
    Encryption { source, new_slabs: true }
}

fn with_file() -> Encryption {
    encryption(KeySource::File("/the/key".into()))
}

fn open(area: &Area, master: u8) -> Result<Arc<Keyring>, KeyError> {
    Keyring::open(STORE, &with_file(), Some(&MasterKey::of(master)), &area.bytes).map(Arc::new)
}

fn slab(domain: &str, region: u32, codec: Codec, encrypted: bool) -> SlabHeader {
    SlabHeader {
        codec: codec.code(),
        encrypted,
        ..SlabHeader::new(region, u64::from(region) + 1, [3; 32], domain, 1 << 20, vec![PAGE as u32; 4])
    }
}

/// Start a disk's keyring; also return a slab's code.
fn started(area: &mut Area, run: u32, salts: &[Salt], slab: &SlabHeader) -> (Arc<Keyring>, Arc<SlabCode>) {
    let keyring = open(area, 1).unwrap();
    let mut cipher = keyring.cipher();
    salts.iter().for_each(|salt| cipher.learn(salt));
    keyring.begin(run).unwrap();
    let code = keyring.grant(slab, area).unwrap().unwrap();
    assert!(area.flushed, "a key is flushed before it encrypts anything");
    (keyring, code)
}

fn salts(keyring: &Keyring) -> Vec<Salt> {
    std::iter::from_fn(|| keyring.unrecorded()).collect()
}

/// Return content that is compressible and different for every seed.
fn content(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| if at % 2 == 0 { (at / 7) as u8 ^ seed } else { seed }).collect()
}

/// Fields of a page in an index record.
#[derive(Clone)]
struct Kept {
    salt: u32,
    number: u32,
    sectors: u16,
    tag: [u8; 16],
    stored: Vec<u8>,
}

fn page_key(key: SlotKey, plane: u16) -> PageKey {
    PageKey { store: STORE, region: key.region, slot: key.slot, generation: key.generation, plane }
}

/// Store pages of a slot, planes from 0, as the pool does.
fn store(scratch: &mut WorkerScratch, code: &SlabCode, key: SlotKey, pages: &[Vec<u8>]) -> Vec<Kept> {
    let (subkey, salt, first) = match code.take(pages.len() as u32, 0) {
        Ok((subkey, salt, first)) => (Some(subkey), salt, first),
        Err(_) => (None, 0, 0),
    };
    assert_eq!(subkey.is_some(), code.is_encrypted());
    let frames = Arc::clone(Arena::new(pages.len() as u64 * PAGE as u64).unwrap().memory());
    let mut arena = Arena::new(pages.len() as u64 * PAGE as u64).unwrap();
    let extent = arena.take(pages.len() as u64 * PAGE as u64).unwrap().unwrap();
    let mut work = Work::default();
    work.task.set(0, false, code, subkey, key);
    for (plane, page) in (0..).zip(pages) {
        let offset = u64::from(plane) * PAGE as u64;
        put(&frames, offset, page);
        work.pages.push(Page {
            part: plane.into(),
            plane,
            bytes: page.len() as u32,
            memory: Arc::clone(&frames),
            offset,
            stored: Some((extent.clone(), offset)),
            crc: first + u32::from(plane),
            sectors: 9,
            tag: [0; 16],
            digest: None,
            sampled: false,
            ok: false,
            strange: false,
        });
    }
    work.carry_out(scratch);
    let kept = work.pages.iter().map(|page| {
        assert!(page.ok);
        let stored =
            get(&extent.memory, page.stored.as_ref().unwrap().1, stored_bytes(page.bytes, page.sectors) as usize);
        Kept { salt, number: page.crc, sectors: page.sectors, tag: page.tag, stored }
    });
    kept.collect()
}

fn put(memory: &Memory, at: u64, bytes: &[u8]) {
    assert!(memory.holds(at, bytes.len() as u64));
    // SAFETY: the range was checked; the test's memory has no other user.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.at(at), bytes.len()) }
}

fn get(memory: &Memory, at: u64, bytes: usize) -> Vec<u8> {
    assert!(memory.holds(at, bytes as u64));
    // SAFETY: as in `put`.
    unsafe { std::slice::from_raw_parts(memory.at(at), bytes) }.to_vec()
}

fn is_good(checker: &mut Checker, code: &SlabCode, key: &PageKey, kept: &Kept) -> bool {
    let mut stored = kept.stored.clone();
    checker.is_good(code, key, (kept.salt, kept.number, kept.sectors, &kept.tag), PAGE as u32, &mut stored)
}

const HERE: SlotKey = SlotKey { region: 5, slot: 6, generation: 7 };

#[test]
fn every_flipped_bit_of_a_stored_page_is_seen() {
    let (mut area, mut scratch, mut checker) = (Area::new(), WorkerScratch::new().unwrap(), Checker::new().unwrap());
    for (codec, encrypted) in
        [(Codec::Lz4, false), (Codec::PlanesZstd, false), (Codec::None, true), (Codec::PlanesZstd, true)]
    {
        let (_keyring, code) = started(&mut area, 1, &[], &slab("a", HERE.region, codec, encrypted));
        let mut kept = store(&mut scratch, &code, HERE, &[content(1, PAGE)]).remove(0);
        let key = page_key(HERE, 0);
        assert!(is_good(&mut checker, &code, &key, &kept), "{codec:?}");
        assert_eq!(kept.sectors > 0, codec != Codec::None, "{codec:?}");
        for bit in 0..kept.stored.len() * 8 {
            kept.stored[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_good(&mut checker, &code, &key, &kept), "{codec:?} {encrypted}: bit {bit}");
            kept.stored[bit / 8] ^= 1 << (bit % 8);
        }
        for bit in 0..32 {
            let flipped = Kept { number: kept.number ^ 1 << bit, ..kept.clone() };
            assert!(
                !is_good(&mut checker, &code, &key, &flipped),
                "{codec:?} {encrypted}: checksum or number, bit {bit}"
            );
        }
        for bit in 0..128 {
            let mut flipped = kept.clone();
            flipped.tag[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(is_good(&mut checker, &code, &key, &flipped), !encrypted, "{codec:?}: tag, bit {bit}");
        }
    }
}

#[test]
fn a_page_is_good_in_its_own_place_alone() {
    let (mut area, mut scratch, mut checker) = (Area::new(), WorkerScratch::new().unwrap(), Checker::new().unwrap());
    for (codec, encrypted) in [(Codec::PlanesZstd, false), (Codec::None, true), (Codec::PlanesZstd, true)] {
        let (keyring, code) = started(&mut area, 1, &[], &slab("a", HERE.region, codec, encrypted));
        // The same content everywhere, so that pages differ only by place.
        let kept = store(&mut scratch, &code, HERE, &[content(1, PAGE), content(1, PAGE)]);
        let key = page_key(HERE, 0);
        for other in [
            PageKey { plane: 1, ..key },
            PageKey { slot: 5, ..key },
            PageKey { slot: HERE.slot | 1 << 24, ..key },
            PageKey { region: 4, ..key },
            PageKey { region: HERE.region | 1 << 24, ..key },
            PageKey { generation: 8, ..key },
            PageKey { store: STORE + 1, ..key },
        ] {
            assert!(!is_good(&mut checker, &code, &other, &kept[0]), "{codec:?} {encrypted}: {other:?}");
        }
        assert!(is_good(&mut checker, &code, &key, &kept[0]));
        let later = store(&mut scratch, &code, SlotKey { generation: 8, ..HERE }, &[content(1, PAGE)]).remove(0);
        let mixed = Kept { stored: later.stored.clone(), ..kept[0].clone() };
        assert_eq!(
            is_good(&mut checker, &code, &key, &mixed),
            !encrypted,
            "same content: only encryption detects the swap"
        );
        if encrypted {
            let tenant = keyring.grant(&slab("b", HERE.region, codec, true), &mut area).unwrap().unwrap();
            assert!(!is_good(&mut checker, &tenant, &key, &kept[0]), "another tenant's key");
            let other = if codec == Codec::None { Codec::Lz4 } else { Codec::None };
            let other = keyring.code(&slab("a", HERE.region, other, true)).unwrap().unwrap();
            assert!(!is_good(&mut checker, &other, &key, &kept[0]), "another codec");
            assert!(
                !kept[0].stored.windows(16).any(|window| window == &content(1, PAGE)[..16]),
                "the content is not stored in plain"
            );
        }
    }
}

#[test]
fn the_same_key_reads_back_after_a_restart_and_another_is_refused() {
    let (mut area, mut scratch, mut checker) = (Area::new(), WorkerScratch::new().unwrap(), Checker::new().unwrap());
    let header = slab("a", 5, Codec::PlanesZstd, true);
    let (keyring, code) = started(&mut area, 1, &[], &header);
    let kept = store(&mut scratch, &code, HERE, &[content(1, PAGE)]).remove(0);
    let learnt = salts(&keyring);
    assert_eq!(learnt.iter().map(|salt| salt.number).collect::<Vec<_>>(), [kept.salt]);
    drop((keyring, code));
    // Key area and log are all that a restart reads.
    let before = area.bytes.clone();
    assert!(matches!(open(&area, 2), Err(KeyError::Wrong { .. })));
    for source in [KeySource::Off, KeySource::Ephemeral] {
        let found = Keyring::open(STORE, &encryption(source), None, &area.bytes);
        assert!(matches!(found, Err(KeyError::Missing { .. })), "{found:?}");
    }
    assert_eq!(area.bytes, before, "the key area is unchanged");
    let (keyring, code) = started(&mut area, 2, &learnt, &header);
    assert_eq!(area.bytes, before, "the key already exists");
    assert!(is_good(&mut checker, &code, &page_key(HERE, 0), &kept));
    let later = store(&mut scratch, &code, HERE, &[content(1, PAGE)]).remove(0);
    assert!(later.salt != kept.salt && later.stored != kept.stored, "a new start uses a new salt");
    let forgotten = started(&mut area, 3, &[], &header).1;
    assert!(!is_good(&mut checker, &forgotten, &page_key(HERE, 0), &kept), "the salt is missing in the log");
    drop(keyring);
    // Encryption off for new slabs, with the key still configured.
    let off = Encryption { new_slabs: false, ..with_file() };
    let keyring = Arc::new(Keyring::open(STORE, &off, Some(&MasterKey::of(1)), &area.bytes).unwrap());
    keyring.cipher().learn(&learnt[0]);
    assert!(
        !keyring.encrypts()
            && is_good(&mut checker, &keyring.code(&header).unwrap().unwrap(), &page_key(HERE, 0), &kept)
    );
}

#[test]
fn slabs_that_are_neither_coded_nor_encrypted_never_come_in_here() {
    let mut area = Area::new();
    let plain = slab("a", 1, Codec::None, false);
    let keyring = open(&area, 1).unwrap();
    assert!(keyring.grant(&plain, &mut area).unwrap().is_none() && area.bytes.iter().all(|byte| *byte == 0));
    let coded = SlabHeader { codec: Codec::Lz4.code(), ..plain.clone() };
    let code = Keyring::open(STORE, &Encryption::default(), None, &area.bytes).unwrap().code(&coded).unwrap().unwrap();
    assert!(code.is_coded() && !code.is_encrypted() && code.take(1, 0).is_err());
    let later = SlabHeader { codec: 77, ..plain };
    assert!(matches!(keyring.code(&later), Err(KeyError::Codec { region: 1, codec: 77 })));
}

#[test]
fn what_was_stored_under_a_key_that_was_forgotten_is_gone() {
    let (mut area, mut scratch, mut checker) = (Area::new(), WorkerScratch::new().unwrap(), Checker::new().unwrap());
    let ephemeral = encryption(KeySource::Ephemeral);
    let header = slab("a", 5, Codec::None, true);
    let keyring = Arc::new(Keyring::open(STORE, &ephemeral, None, &area.bytes).unwrap());
    keyring.begin(1).unwrap();
    let code = keyring.grant(&header, &mut area).unwrap().unwrap();
    let kept = store(&mut scratch, &code, HERE, &[content(1, PAGE)]).remove(0);
    assert!(is_good(&mut checker, &code, &page_key(HERE, 0), &kept));
    assert!(area.bytes.iter().all(|byte| *byte == 0), "no key on the disk");
    let again = Arc::new(Keyring::open(STORE, &ephemeral, None, &area.bytes).unwrap());
    salts(&keyring).iter().for_each(|salt| again.cipher().learn(salt));
    again.begin(2).unwrap();
    assert!(matches!(again.code(&header), Err(KeyError::Forgotten { .. })), "its records are dropped");
    let new = again.grant(&header, &mut area).unwrap().unwrap();
    assert!(!is_good(&mut checker, &new, &page_key(HERE, 0), &kept));
}

#[test]
fn a_purged_tenants_pages_and_records_are_noise() {
    let (mut area, mut scratch, mut checker) = (Area::new(), WorkerScratch::new().unwrap(), Checker::new().unwrap());
    let (header, other) = (slab("a", 5, Codec::None, true), slab("b", 6, Codec::None, true));
    let (keyring, code) = started(&mut area, 1, &[], &header);
    let spared = keyring.grant(&other, &mut area).unwrap().unwrap();
    let kept = store(&mut scratch, &code, HERE, &[content(1, PAGE)]).remove(0);
    let theirs = store(&mut scratch, &spared, SlotKey { region: 6, ..HERE }, &[content(2, PAGE)]).remove(0);
    let mut cipher = keyring.cipher();
    let mut body = *b"which prompts were seen";
    let tag = cipher.seal(&header, kept.salt, &[1; 12], b"head", &mut body).unwrap();
    let learnt = salts(&keyring);
    drop((keyring, code, cipher));
    let before = area.bytes.clone();
    let tenants = ["a", "b"].map(String::from).into();
    assert_eq!(erase_sectors(STORE, "c", &mut area).unwrap(), (Vec::new(), tenants));
    assert_eq!(erase_sectors(STORE + 1, "a", &mut area).unwrap(), (Vec::new(), BTreeSet::new()), "another store's");
    assert_eq!(area.bytes, before);
    let (erased, _) = erase_sectors(STORE, "a", &mut area).unwrap();
    assert!(erased.len() == 1 && area.bytes[erased[0] as usize * 4096..][..4096].iter().all(|byte| *byte == 0));
    let gone = open(&area, 1).unwrap().code(&header);
    assert!(matches!(gone, Err(KeyError::Unknown { .. })), "its records are dropped: {gone:?}");
    // After a restart, and under the tenant's new key.
    let (again, new) = started(&mut area, 2, &learnt, &header);
    assert!(again.cipher().open(&header, kept.salt, &[1; 12], b"head", &mut body, &tag).is_err());
    assert!(!is_good(&mut checker, &new, &page_key(HERE, 0), &kept));
    let spared = again.code(&other).unwrap().unwrap();
    assert!(is_good(&mut checker, &spared, &page_key(SlotKey { region: 6, ..HERE }, 0), &theirs));
}

#[test]
fn a_key_area_that_is_full_or_damaged_says_so_and_nothing_is_overwritten() {
    let mut area = Area::new();
    let keyring = open(&area, 1).unwrap();
    keyring.begin(1).unwrap();
    let sectors = area.bytes.len() / 4096;
    area.fails = true;
    let failed = keyring.grant(&slab("first", 0, Codec::None, true), &mut area);
    assert!(matches!(failed, Err(KeyError::Io { tried: "write", offset: KEYS_OFFSET, .. })), "{failed:?}");
    let none = keyring.code(&slab("first", 0, Codec::None, true));
    assert!(matches!(none, Err(KeyError::Unknown { .. })), "a key that is not on the disk encrypts nothing");
    area.fails = false;
    for number in 0..sectors {
        keyring.grant(&slab(&format!("tenant {number}"), 0, Codec::None, true), &mut area).unwrap();
    }
    let before = area.bytes.clone();
    let full = keyring.grant(&slab("one more", 0, Codec::None, true), &mut area);
    assert!(matches!(full, Err(KeyError::Full { tenants, .. }) if tenants == sectors), "{full:?}");
    let long = keyring.grant(&slab(&"x".repeat(65), 0, Codec::None, true), &mut area);
    assert!(matches!(long, Err(KeyError::Name { .. })), "{long:?}");
    assert_eq!(area.bytes, before);
    area.bytes[4096 * 3 + 150] ^= 1;
    let again = open(&area, 1).unwrap();
    assert!(again.code(&slab("tenant 4", 0, Codec::None, true)).is_ok());
    let lost = again.code(&slab("tenant 3", 0, Codec::None, true));
    assert!(matches!(lost, Err(KeyError::Unknown { .. })), "{lost:?}");
    let full = again.grant(&slab("tenant 3", 0, Codec::None, true), &mut area);
    assert!(matches!(full, Err(KeyError::Full { .. })), "a damaged sector is not overwritten: {full:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Rewrites of a slot under the same and other generations, by several tenants; records; new salts; restarts, also after the
    /// disk lost a start: every nonce of every key is used once.
    #[test]
    fn no_nonce_is_used_twice(steps in prop::collection::vec((0u32..12, 0u32..3, 0u32..2, 1usize..4), 1..60)) {
        nonces::collect();
        let (mut area, mut scratch) = (Area::new(), WorkerScratch::new().unwrap());
        let header = |domain: u32| slab(["a", "b"][domain as usize], domain, Codec::None, true);
        let (mut run, mut recorded, mut sealed) = (1, Vec::new(), 0u64);
        let mut running = started(&mut area, run, &[], &header(0)).0;
        for (what, slot, domain, pages) in steps {
            match what {
                0 => {
                    recorded.extend(salts(&running));
                    run += 1;
                    running = started(&mut area, run, &recorded, &header(domain)).0;
                }
                // The superblock and the log of the last start were lost.
                1 => running = started(&mut area, run, &recorded, &header(domain)).0,
                2 => running.leave(2),
                3 => {
                    let mut nonce = [0; 12];
                    // As the log creates it.
                    nonce[..4].copy_from_slice(&run.to_le_bytes());
                    nonce[4..].copy_from_slice(&sealed.to_le_bytes());
                    sealed += 1;
                    running.grant(&header(domain), &mut area).unwrap();
                    running.cipher().seal(&header(domain), running.current(), &nonce, b"", &mut [0; 40]).unwrap();
                }
                _ => {
                    let code = running.grant(&header(domain), &mut area).unwrap().unwrap();
                    let key = SlotKey { region: domain, slot, generation: 1 + slot % 2 };
                    store(&mut scratch, &code, key, &vec![content(1, 4096); pages]);
                }
            }
        }
        prop_assert!(nonces::count() < 1000);
    }
}
