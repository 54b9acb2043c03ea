//! Tokens of blocks, told by engines over HTTP: bounded, oldest unused first, and kept in a file over restarts of the relay.
//!
//! The file has a magic number, then records. Numbers are little-endian.
//!
//! | bytes of a record | contents |
//! | --- | --- |
//! | 0–3, 4–7 | length and CRC-32C of the rest |
//! | 8–39 | fingerprint of the space |
//! | 40–43, 44–47, 48–51 | number of blocks, tokens of a block, bytes of the adapter's name |
//! | from 52 on | the name; 16 bytes of hash for each block; 4 bytes for each token |
//!
//! Records are appended and not synced: after a power failure the end of the file may be lost, which costs announcements and nothing
//! else. What follows the first invalid record is dropped. The file is rewritten once more than half of it is dead.

use crate::error::Error;
use crc_fast::{CrcAlgorithm, checksum};
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, TryLockError};
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, mem};

/// How long another relay may hold the file while it ends.
const LOCK: Duration = Duration::from_secs(2);
const MAGIC: [u8; 8] = *b"KVTTOK\0\x01";
/// Bytes of a record before the adapter's name.
const FIXED: usize = 52;
/// Maximum bytes of a record: above the HTTP route's limit.
const RECORD_MAX: usize = 64 << 20;
/// Maximum blocks of a record that a rewrite makes.
const REWRITE_BLOCKS: usize = 1024;
/// Bytes of memory of a block beside its tokens: entries of two maps and the tokens' header, estimated.
const BLOCK_BYTES: u64 = 240;
/// Dead bytes that a small file may have.
const DEAD_MIN: u64 = 1 << 20;

/// Fingerprint and hash.
type Key = ([u8; 32], u128);

/// The tokens of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Token ids.
    pub tokens: Arc<[u32]>,
    /// Name of the adapter with which the block was computed.
    pub adapter: Option<Arc<str>>,
}

impl Noted {
    /// Return the bytes of memory.
    fn cost(&self) -> u64 {
        BLOCK_BYTES + 4 * self.tokens.len() as u64 + self.adapter.as_ref().map_or(0, |name| name.len() as u64)
    }

    /// Return the bytes of a record of this block alone.
    fn record(&self) -> u64 {
        (FIXED + 16 + 4 * self.tokens.len() + self.adapter.as_ref().map_or(0, |name| name.len())) as u64
    }
}

/// The tokens of the blocks of all spaces.
#[derive(Debug)]
pub struct Tokens {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: File,
    file_bytes: u64,
    /// Bytes of the records that a rewrite would write, at most.
    live_bytes: u64,
    memory: u64,
    memory_max: u64,
    blocks: HashMap<Key, (Noted, u64)>,
    /// The blocks by the time of their last use.
    used: BTreeMap<u64, Key>,
    uses: u64,
}

impl Tokens {
    /// Open the file in a directory, or make both. Return the tokens and the bytes that were invalid and are dropped.
    ///
    /// # Errors
    /// The directory or the file cannot be made or read, or another relay uses it.
    pub fn open(dir: &Path, bytes_max: u64) -> Result<(Tokens, u64), Error> {
        let path = dir.join("tokens");
        let failed = |action| {
            let path = path.clone();
            move |source| Error::File { action, path, source }
        };
        std::fs::create_dir_all(dir).map_err(failed("make the directory of"))?;
        let file = open_file(&path).map_err(failed("open"))?;
        let until = Instant::now() + LOCK;
        let locked = loop {
            match file.try_lock() {
                // PACE: the relay before this one may be about to end.
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOCK / 100),
                locked => break locked,
            }
        };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let source = io::Error::other("another relay uses it; set another tokens_dir in [domains.events]");
                return Err(failed("lock")(source));
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        let mut inner = Inner {
            path: path.clone(),
            file,
            file_bytes: 0,
            live_bytes: 0,
            memory: 0,
            memory_max: bytes_max,
            blocks: HashMap::new(),
            used: BTreeMap::new(),
            uses: 0,
        };
        let dropped = inner.read().map_err(failed("read"))?;
        inner.rewrite_if_dead().map_err(failed("rewrite"))?;
        Ok((Tokens { inner: Mutex::new(inner) }, dropped))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keep the tokens of blocks, the same number for each.
    ///
    /// # Errors
    /// `InvalidInput`: the numbers do not fit, and nothing is kept. Otherwise the file cannot be written, and the tokens are known until the
    /// relay ends.
    pub fn note(&self, space: &[u8; 32], hashes: &[u128], tokens: &[u32], adapter: Option<&str>) -> io::Result<()> {
        if hashes.is_empty() || tokens.is_empty() || !tokens.len().is_multiple_of(hashes.len()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not the same number of tokens, 1 or more, for each hash",
            ));
        }
        let mut inner = self.inner();
        let (mut new_hashes, mut new_tokens) = (Vec::new(), Vec::new());
        for (&hash, tokens) in hashes.iter().zip(tokens.chunks(tokens.len() / hashes.len())) {
            let same = |noted: &Noted| *noted.tokens == *tokens && noted.adapter.as_deref() == adapter;
            if !inner.touch((*space, hash)).is_some_and(|noted| same(&noted)) {
                new_hashes.push(hash);
                new_tokens.extend_from_slice(tokens);
            }
        }
        if new_hashes.is_empty() {
            return Ok(());
        }
        inner.insert_all(space, &new_hashes, &new_tokens, adapter);
        inner.append(&record(space, &new_hashes, &new_tokens, adapter))?;
        inner.rewrite_if_dead()
    }

    /// Return the tokens of a block. This counts as a use.
    pub fn get(&self, space: &[u8; 32], hash: u128) -> Option<Noted> {
        self.inner().touch((*space, hash))
    }

    /// Return the number of blocks.
    pub fn len(&self) -> usize {
        self.inner().blocks.len()
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    // Tokens are the words of users.
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

impl Inner {
    fn touch(&mut self, key: Key) -> Option<Noted> {
        let (noted, use_) = self.blocks.get_mut(&key)?;
        self.used.remove(use_);
        self.uses += 1;
        *use_ = self.uses;
        self.used.insert(self.uses, key);
        Some(noted.clone())
    }

    fn insert_all(&mut self, space: &[u8; 32], hashes: &[u128], tokens: &[u32], adapter: Option<&str>) {
        let adapter: Option<Arc<str>> = adapter.map(Into::into);
        for (&hash, tokens) in hashes.iter().zip(tokens.chunks(tokens.len() / hashes.len())) {
            self.remove((*space, hash));
            let noted = Noted { tokens: tokens.into(), adapter: adapter.clone() };
            self.memory += noted.cost();
            self.live_bytes += noted.record();
            self.uses += 1;
            self.used.insert(self.uses, (*space, hash));
            self.blocks.insert((*space, hash), (noted, self.uses));
        }
        while self.memory > self.memory_max
            && let Some((_, &oldest)) = self.used.first_key_value()
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, key: Key) {
        let Some((noted, use_)) = self.blocks.remove(&key) else { return };
        self.used.remove(&use_);
        self.memory -= noted.cost();
        self.live_bytes -= noted.record();
    }

    /// Read the file, and cut off what is invalid. Return its bytes.
    fn read(&mut self) -> io::Result<u64> {
        let end = self.file.seek(SeekFrom::End(0))?;
        self.file.rewind()?;
        let mut reader = BufReader::new(self.file.try_clone()?);
        let (mut magic, mut valid) = ([0; MAGIC.len()], 0);
        if end >= MAGIC.len() as u64 {
            reader.read_exact(&mut magic)?;
        }
        if magic == MAGIC {
            valid = MAGIC.len() as u64;
            while let Some(body) = next_record(&mut reader, end - valid)? {
                let Some((space, hashes, tokens, adapter)) = parse(&body) else { break };
                self.insert_all(&space, &hashes, &tokens, adapter);
                valid += 8 + body.len() as u64;
            }
        }
        self.file.set_len(valid)?;
        self.file.seek(SeekFrom::End(0))?;
        self.file_bytes = valid;
        if valid == 0 {
            self.append(&MAGIC)?;
        }
        Ok(end - valid)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(bytes);
        match &written {
            Ok(()) => self.file_bytes += bytes.len() as u64,
            // Part of the record may be there. If this fails as well, the next start drops it.
            Err(_) => self.file.set_len(self.file_bytes).and_then(|()| self.file.seek(SeekFrom::End(0)).map(drop))?,
        }
        written
    }

    fn rewrite_if_dead(&mut self) -> io::Result<()> {
        if self.file_bytes <= 2 * self.live_bytes + DEAD_MIN {
            return Ok(());
        }
        let new = self.path.with_extension("new");
        let file = open_file(&new)?;
        file.set_len(0)?;
        file.lock()?;
        let mut writer = BufWriter::new(file);
        writer.write_all(&MAGIC)?;
        let mut bytes = MAGIC.len() as u64;
        let (mut hashes, mut tokens): (Vec<u128>, Vec<u32>) = Default::default();
        let mut blocks = self.used.values().map(|key| (key, &self.blocks[key].0)).peekable();
        while let Some((key, noted)) = blocks.next() {
            hashes.push(key.1);
            tokens.extend_from_slice(&noted.tokens);
            let joins = |(other, next): &(&Key, &Noted)| {
                other.0 == key.0 && next.adapter == noted.adapter && next.tokens.len() == noted.tokens.len()
            };
            if hashes.len() < REWRITE_BLOCKS && blocks.peek().is_some_and(joins) {
                continue;
            }
            let record = record(&key.0, &mem::take(&mut hashes), &mem::take(&mut tokens), noted.adapter.as_deref());
            writer.write_all(&record)?;
            bytes += record.len() as u64;
        }
        let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_data()?;
        std::fs::rename(&new, &self.path)?;
        (self.file, self.file_bytes) = (file, bytes);
        Ok(())
    }
}

/// Return the bytes of a record.
fn record(space: &[u8; 32], hashes: &[u128], tokens: &[u32], adapter: Option<&str>) -> Vec<u8> {
    let name = adapter.unwrap_or("").as_bytes();
    let mut out = vec![0; 8];
    out.extend_from_slice(space);
    for number in [hashes.len(), tokens.len() / hashes.len(), name.len()] {
        out.extend_from_slice(&(number as u32).to_le_bytes());
    }
    out.extend_from_slice(name);
    hashes.iter().for_each(|hash| out.extend_from_slice(&hash.to_le_bytes()));
    tokens.iter().for_each(|token| out.extend_from_slice(&token.to_le_bytes()));
    let (length, crc) = ((out.len() - 8) as u32, crc(&out[8..]));
    out[..4].copy_from_slice(&length.to_le_bytes());
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out
}

fn crc(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Read the rest of a record; `None` at the end of the file, or if it is invalid.
fn next_record(reader: &mut impl Read, left: u64) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 8];
    if left < head.len() as u64 {
        return Ok(None);
    }
    reader.read_exact(&mut head)?;
    let [length, expected] = [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    if length as usize > RECORD_MAX || u64::from(length) > left - 8 {
        return Ok(None);
    }
    let mut body = vec![0; length as usize];
    reader.read_exact(&mut body)?;
    Ok((crc(&body) == expected).then_some(body))
}

type Parsed<'a> = ([u8; 32], Vec<u128>, Vec<u32>, Option<&'a str>);

/// Return the contents of a record's rest.
fn parse(body: &[u8]) -> Option<Parsed<'_>> {
    let (space, rest) = body.split_first_chunk::<32>()?;
    let (numbers, rest) = rest.split_first_chunk::<12>()?;
    let number =
        |at: usize| u32::from_le_bytes([numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]]) as usize;
    let (count, each, name) = (number(0), number(4), number(8));
    let expected = count.checked_mul(16)?.checked_add(count.checked_mul(each)?.checked_mul(4)?)?.checked_add(name)?;
    if count == 0 || each == 0 || rest.len() != expected {
        return None;
    }
    let (name, rest) = rest.split_at(name);
    let (hashes, tokens) = rest.split_at(16 * count);
    let hashes = hashes.as_chunks::<16>().0.iter().map(|bytes| u128::from_le_bytes(*bytes)).collect();
    let tokens = tokens.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let name = str::from_utf8(name).ok()?;
    Some((*space, hashes, tokens, (!name.is_empty()).then_some(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const SPACE: [u8; 32] = [9; 32];

    fn open(dir: &Path, max: u64) -> (Tokens, u64) {
        Tokens::open(dir, max).unwrap()
    }

    /// Tokens of a block, which depend on its hash.
    fn tokens_of(hash: u128) -> [u32; 4] {
        [1, 2, 3, 4].map(|i| hash as u32 * 10 + i)
    }

    fn note(tokens: &Tokens, hashes: &[u128], adapter: Option<&str>) {
        let all: Vec<u32> = hashes.iter().flat_map(|hash| tokens_of(*hash)).collect();
        tokens.note(&SPACE, hashes, &all, adapter).unwrap();
    }

    fn known(tokens: &Tokens, hash: u128) -> bool {
        let noted = tokens.get(&SPACE, hash);
        noted.as_ref().inspect(|noted| assert_eq!(*noted.tokens, tokens_of(hash))).is_some()
    }

    #[test]
    fn tokens_that_do_not_fit_the_hashes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (tokens, _) = open(dir.path(), 1 << 20);
        for (hashes, wrong) in [(&[1, 2][..], &[][..]), (&[1, 2], &[1]), (&[], &[1]), (&[], &[])] {
            let refused = tokens.note(&SPACE, hashes, wrong, None).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{hashes:?} {wrong:?}");
        }
        assert_eq!(tokens.len(), 0);
    }

    #[test]
    fn tokens_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (tokens, _) = open(dir.path(), 1 << 20);
        note(&tokens, &[1, 2, 3], None);
        note(&tokens, &[4], Some("an adapter"));
        note(&tokens, &[1, 2, 3], None);
        let bytes = std::fs::metadata(dir.path().join("tokens")).unwrap().len();
        assert!(Tokens::open(dir.path(), 1 << 20).unwrap_err().to_string().contains("another relay"), "one at a time");
        drop(tokens);
        let mode = std::fs::metadata(dir.path().join("tokens")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "prompts are nobody else's business");
        let (tokens, dropped) = open(dir.path(), 1 << 20);
        assert_eq!((dropped, tokens.len(), bytes), (0, 4, 8 + (52 + 3 * 32) + (52 + 10 + 32)));
        assert!((1..=4).all(|hash| known(&tokens, hash)) && !known(&tokens, 5));
        assert_eq!(tokens.get(&SPACE, 4).unwrap().adapter.as_deref(), Some("an adapter"));
        assert_eq!((tokens.get(&SPACE, 3).unwrap().adapter, tokens.get(&[8; 32], 3)), (None, None));
        assert!(tokens.note(&SPACE, &[7, 8], &[1, 2, 3], None).is_err());
    }

    #[test]
    fn a_torn_or_damaged_file_keeps_what_is_before_the_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        let (tokens, _) = open(dir.path(), 1 << 20);
        let mut ends = vec![8];
        for hash in 1..=5 {
            note(&tokens, &[hash], (hash == 3).then_some("a"));
            ends.push(std::fs::metadata(&path).unwrap().len());
        }
        drop(tokens);
        let whole = std::fs::read(&path).unwrap();
        let check = |bytes: &[u8], intact: u64| {
            std::fs::write(&path, bytes).unwrap();
            let (tokens, dropped) = open(dir.path(), 1 << 20);
            let before = ends.iter().filter(|end| **end <= intact).count();
            let blocks = before.saturating_sub(1);
            assert_eq!(
                (tokens.len(), dropped),
                (blocks, bytes.len() as u64 - if before == 0 { 0 } else { ends[blocks] })
            );
            assert!((1..=blocks as u128).all(|hash| known(&tokens, hash)));
            note(&tokens, &[99], None);
            drop(tokens);
            assert!(known(&open(dir.path(), 1 << 20).0, 99), "what is written behind the damage is read");
        };
        for at in 0..whole.len() {
            check(&whole[..at], at as u64);
            let mut damaged = whole.clone();
            damaged[at] ^= 0x41;
            check(&damaged, at as u64);
        }
    }

    #[test]
    fn the_oldest_unused_go_first_and_the_file_stays_small() {
        let dir = tempfile::tempdir().unwrap();
        let max = 100 * (BLOCK_BYTES + 16);
        let (tokens, _) = open(dir.path(), max);
        (1..=100).for_each(|hash| note(&tokens, &[hash], None));
        assert!(known(&tokens, 1));
        note(&tokens, &[101, 102], None);
        let there = |tokens: &Tokens, hash| tokens.inner().blocks.contains_key(&(SPACE, hash));
        assert_eq!([1, 2, 3, 4, 101, 102].map(|hash| there(&tokens, hash)), [true, false, false, true, true, true]);
        (1000..60_000).for_each(|hash| note(&tokens, &[hash], None));
        assert_eq!(tokens.len(), 100);
        let bytes = || std::fs::metadata(dir.path().join("tokens")).unwrap().len();
        assert!(bytes() <= DEAD_MIN + 2 * 100 * 84 + 84, "{}", bytes());
        drop(tokens);
        let (tokens, dropped) = open(dir.path(), max / 2);
        assert_eq!((tokens.len(), dropped), (50, 0));
        assert!((59_950..60_000).all(|hash| known(&tokens, hash)), "the newest ones");
    }
}
