//! Encoding of one input: a kind, numbers as LEB128, hashes, words. A request is stored as its message
//! ([`Request::encode`](crate::api::Request::encode)).

use crate::actions::ActionBuf;
use crate::api::{DiskSlot, Event, Policy, Request, ScoreKind, Status};
use crate::error::Error;
use kvtide_types::{List as RequestList, Message, Op};

/// Maximum count of numbers of an input, before its lists.
const NUMBERS: usize = 13;
/// Maximum bytes of a policy in the encoding of `postcard`.
const POLICY_BYTES: usize = 256;

/// Payload of an input besides its numbers.
#[derive(Clone, Copy, Debug)]
enum List<'a> {
    None,
    Words(&'a [u32]),
    Pairs(&'a [(u32, u16)]),
    Request(RequestList<'a>),
    Policy(Policy),
}

/// One call of the core, flattened. Kinds below 32 are requests: their codes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    kind: u8,
    now_us: u64,
    numbers: [u64; NUMBERS],
    len: usize,
    list: List<'a>,
}

const POLL: u8 = 32;
const ATTACH: u8 = 33;
const JOB_DONE: u8 = 34;
const GRANTED: u8 = 35;
const REFUSED: u8 = 36;
const LOST: u8 = 37;
const EXITED: u8 = 38;
const TICK: u8 = 39;
const DISK_GRANTED: u8 = 40;
const DISK_REFUSED: u8 = 41;
const IO_DONE: u8 = 42;
const RECONFIGURE: u8 = 43;
const DISK_ADOPTED: u8 = 44;
const RESTORED: u8 = 45;
const LOG_DONE: u8 = 46;
const DISK_GONE: u8 = 47;
const SCORES: u8 = 48;
const RECLAIM: u8 = 49;
const FREED: u8 = 50;
const PIN: u8 = 51;
const EVICT: u8 = 52;
const ENDING: u8 = 53;
const _: () = assert!((Op::ALL[Op::ALL.len() - 1] as u16) < POLL as u16, "kinds below POLL are requests");

impl<'a> Input<'a> {
    fn new(kind: u8, now_us: u64, numbers: &[u64], list: List<'a>) -> Input<'a> {
        let mut all = [0; NUMBERS];
        all[..numbers.len()].copy_from_slice(numbers);
        Input { kind, now_us, numbers: all, len: numbers.len(), list }
    }

    pub fn poll(now_us: u64) -> Input<'a> {
        Input::new(POLL, now_us, &[], List::None)
    }

    pub fn event(now_us: u64, event: Event<'a>) -> Input<'a> {
        let new = |kind, numbers: &[u64], list| Input::new(kind, now_us, numbers, list);
        match event {
            Event::Attach { session, shard, lanes, frames } => {
                new(ATTACH, &[session.into(), shard.into(), lanes.into()], List::Words(frames))
            }
            Event::Request { session, channel, tag, timeout_us, request } => {
                let (Message { kind, lane, flags, seq, block, first, count, value, hash }, list) = request.encode();
                let numbers = [
                    session.into(),
                    channel.into(),
                    tag.into(),
                    timeout_us,
                    lane.into(),
                    flags.into(),
                    seq.into(),
                    block.into(),
                    first.into(),
                    count.into(),
                    value,
                    hash as u64,
                    (hash >> 64) as u64,
                ];
                new(kind as u8, &numbers, List::Request(list))
            }
            Event::JobDone { session, job, status } => {
                new(JOB_DONE, &[session.into(), job.into(), status as u64], List::None)
            }
            Event::SlabGranted { class, slab, frames } => {
                new(GRANTED, &[class.into(), slab.into(), frames.into()], List::None)
            }
            Event::SlabRefused { class } => new(REFUSED, &[class.into()], List::None),
            Event::DiskGranted { slab, slots, disk, generation } => {
                new(DISK_GRANTED, &[slab.into(), slots.into(), disk.into(), generation.into()], List::None)
            }
            Event::DiskAdopted { slab, slots, disk, generation } => {
                new(DISK_ADOPTED, &[slab.into(), slots.into(), disk.into(), generation.into()], List::None)
            }
            Event::Restored { at, shard, hash, parent, planes } => {
                let [hash, parent] = [hash, parent].map(|h| [h as u64, (h >> 64) as u64]);
                let at = [at.slab.into(), at.slot.into(), at.generation.into(), shard.into()];
                let numbers = [at[0], at[1], at[2], at[3], hash[0], hash[1], parent[0], parent[1]];
                new(RESTORED, &numbers, List::Words(planes))
            }
            Event::LogDone { id, status } => new(LOG_DONE, &[id.into(), status as u64], List::None),
            Event::DiskGone { slab } => new(DISK_GONE, &[slab.into()], List::None),
            Event::DiskRefused => new(DISK_REFUSED, &[], List::None),
            Event::IoDone { id, status, bad } => new(IO_DONE, &[id.into(), status as u64], List::Words(bad)),
            Event::Scores { session, seq, plane, step, kind, rest, top } => {
                let numbers = [session.into(), seq.into(), plane.into(), step, kind as u64, rest.into()];
                new(SCORES, &numbers, List::Pairs(top))
            }
            Event::SessionLost { session } => new(LOST, &[session.into()], List::None),
            Event::SessionExited { session } => new(EXITED, &[session.into()], List::None),
            Event::Reconfigure { policy, host_bytes_max, nvme_bytes_max } => {
                new(RECONFIGURE, &[host_bytes_max, nvme_bytes_max], List::Policy(policy))
            }
            Event::Tick => new(TICK, &[], List::None),
            Event::Ending => new(ENDING, &[], List::None),
            Event::Pin { hash, pinned } => new(PIN, &[hash as u64, (hash >> 64) as u64, pinned.into()], List::None),
            Event::Evict { hash: None } => new(EVICT, &[], List::None),
            Event::Evict { hash: Some(hash) } => new(EVICT, &[hash as u64, (hash >> 64) as u64, 1], List::None),
            Event::Reclaim { cached } => new(RECLAIM, &[cached.into()], List::None),
            Event::Freed => new(FREED, &[], List::None),
        }
    }

    /// Return the maximum bytes of its encoding.
    pub fn bytes_max(&self) -> usize {
        let list = match self.list {
            List::None => 0,
            List::Words(words) => words.len() * 5,
            List::Pairs(pairs) => pairs.len() * 8,
            List::Request(list) => list.hashes.len() * 16 + list.words.len() * 5,
            List::Policy(_) => 2 * POLICY_BYTES,
        };
        10 * (NUMBERS + 5) + 2 + list
    }

    pub fn encode(&self, buf: &ActionBuf, out: &mut Vec<u8>) {
        out.push(self.kind);
        put(out, self.now_us);
        put(out, buf.room() as u64);
        put(out, buf.words_room() as u64);
        out.push(self.len as u8);
        self.numbers[..self.len].iter().for_each(|&n| put(out, n));
        match self.list {
            List::None => put_lists(out, &[], [].into_iter()),
            List::Words(words) => put_lists(out, &[], words.iter().copied()),
            List::Pairs(pairs) => {
                put(out, 0);
                put(out, 2 * pairs.len() as u64);
                for &(index, share) in pairs {
                    put(out, index.into());
                    put(out, share.into());
                }
            }
            List::Request(list) => put_lists(out, list.hashes, list.words.iter().copied()),
            List::Policy(policy) => {
                let mut bytes = [0; POLICY_BYTES];
                let policy = postcard::to_slice(&policy, &mut bytes).expect("a policy takes at most 256 bytes");
                put_lists(out, &[], policy.iter().map(|&byte| byte.into()));
            }
        }
    }
}

fn put_lists(out: &mut Vec<u8>, hashes: &[u128], words: impl ExactSizeIterator<Item = u32>) {
    put(out, hashes.len() as u64);
    hashes.iter().for_each(|h| out.extend(h.to_le_bytes()));
    put(out, words.len() as u64);
    words.for_each(|w| put(out, w.into()));
}

fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// One decoded input; its lists are in the reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    kind: u8,
    pub now_us: u64,
    pub room: usize,
    pub words_room: usize,
    n: [u64; NUMBERS],
}

/// Decodes a log.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    pub at: usize,
    words: Vec<u32>,
    hashes: Vec<u128>,
    pairs: Vec<(u32, u16)>,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0, words: Vec::new(), hashes: Vec::new(), pairs: Vec::new() }
    }

    pub fn bad<T>(&self, what: &'static str) -> Result<T, Error> {
        Err(Error::Recording { what, at: self.at })
    }

    fn byte(&mut self) -> Result<u8, Error> {
        match self.bytes.get(self.at) {
            Some(&b) => {
                self.at += 1;
                Ok(b)
            }
            None => self.bad("the log ends within an input"),
        }
    }

    fn number(&mut self) -> Result<u64, Error> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            n |= u64::from(b & 0x7f) << shift;
            if b < 0x80 {
                return Ok(n);
            }
        }
        self.bad("a number has more than 64 bits")
    }

    fn hash(&mut self) -> Result<u128, Error> {
        let Some(bytes) = self.bytes.get(self.at..self.at + 16).and_then(|b| b.try_into().ok()) else {
            return self.bad("the log ends within a hash");
        };
        self.at += 16;
        Ok(u128::from_le_bytes(bytes))
    }

    /// Return the next input; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Entry>, Error> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let kind = self.byte()?;
        let (now_us, room, words_room) = (self.number()?, self.number()? as usize, self.number()? as usize);
        let len = usize::from(self.byte()?);
        if len > NUMBERS {
            return self.bad("an input has too many numbers");
        }
        let mut n = [0; NUMBERS];
        for slot in &mut n[..len] {
            *slot = self.number()?;
        }
        self.words.clear();
        self.hashes.clear();
        self.pairs.clear();
        for _ in 0..self.list_len()? {
            let hash = self.hash()?;
            self.hashes.push(hash);
        }
        for _ in 0..self.list_len()? {
            let word = self.number()? as u32;
            self.words.push(word);
        }
        if kind == SCORES {
            if !self.words.len().is_multiple_of(2) {
                return self.bad("scores need pairs of words");
            }
            self.pairs.extend(self.words.as_chunks::<2>().0.iter().map(|&[index, share]| (index, share as u16)));
        }
        Ok(Some(Entry { kind, now_us, room, words_room, n }))
    }

    fn list_len(&mut self) -> Result<u64, Error> {
        let len = self.number()?;
        if len > self.bytes.len() as u64 { self.bad("a list is longer than the log") } else { Ok(len) }
    }

    /// Return the event of an input; `None` for a poll.
    pub fn event(&self, e: &Entry) -> Result<Option<Event<'_>>, Error> {
        let n = &e.n;
        let (session, class) = (n[0] as u16, n[0] as u8);
        let hash = |at: usize| u128::from(n[at]) | u128::from(n[at + 1]) << 64;
        Ok(Some(match e.kind {
            POLL => return Ok(None),
            ATTACH => Event::Attach { session, shard: n[1] as u16, lanes: n[2] as u16, frames: &self.words },
            JOB_DONE => Event::JobDone { session, job: n[1] as u32, status: self.status(n[2])? },
            GRANTED => Event::SlabGranted { class, slab: n[1] as u32, frames: n[2] as u32 },
            REFUSED => Event::SlabRefused { class },
            LOST => Event::SessionLost { session },
            EXITED => Event::SessionExited { session },
            RECONFIGURE => {
                let bytes: Result<Vec<u8>, _> = self.words.iter().map(|&word| u8::try_from(word)).collect();
                let Ok(policy) = bytes.map_err(|_| ()).and_then(|bytes| postcard::from_bytes(&bytes).map_err(|_| ()))
                else {
                    return self.bad("invalid policy");
                };
                Event::Reconfigure { policy, host_bytes_max: n[0], nvme_bytes_max: n[1] }
            }
            TICK => Event::Tick,
            ENDING => Event::Ending,
            PIN => Event::Pin { hash: hash(0), pinned: n[2] != 0 },
            EVICT => Event::Evict { hash: (n[2] != 0).then(|| hash(0)) },
            RECLAIM => Event::Reclaim { cached: n[0] != 0 },
            FREED => Event::Freed,
            DISK_GRANTED | DISK_ADOPTED => {
                let (slab, slots, disk, generation) = (n[0] as u32, n[1] as u32, n[2] as u16, n[3] as u32);
                match e.kind {
                    DISK_GRANTED => Event::DiskGranted { slab, slots, disk, generation },
                    _ => Event::DiskAdopted { slab, slots, disk, generation },
                }
            }
            RESTORED => Event::Restored {
                at: DiskSlot { slab: n[0] as u32, slot: n[1] as u32, generation: n[2] as u32 },
                shard: n[3] as u16,
                hash: hash(4),
                parent: hash(6),
                planes: &self.words,
            },
            LOG_DONE => Event::LogDone { id: n[0] as u32, status: self.status(n[1])? },
            DISK_GONE => Event::DiskGone { slab: n[0] as u32 },
            DISK_REFUSED => Event::DiskRefused,
            IO_DONE => Event::IoDone { id: n[0] as u32, status: self.status(n[1])?, bad: &self.words },
            SCORES => Event::Scores {
                session,
                seq: n[1] as u32,
                plane: n[2] as u16,
                step: n[3],
                kind: match u8::try_from(n[4]).ok().and_then(ScoreKind::from_code) {
                    Some(kind) => kind,
                    None => return self.bad("unknown kind of scores"),
                },
                rest: n[5] as u16,
                top: &self.pairs,
            },
            kind => Event::Request {
                session,
                channel: n[1] as u16,
                tag: n[2] as u16,
                timeout_us: n[3],
                request: self.request(kind, &n[4..])?,
            },
        }))
    }

    fn status(&self, code: u64) -> Result<Status, Error> {
        match i32::try_from(code).ok().and_then(Status::from_code) {
            Some(status) => Ok(status),
            None => self.bad("unknown status"),
        }
    }

    fn request(&self, kind: u8, n: &[u64]) -> Result<Request<'_>, Error> {
        let message = Message {
            kind: kind.into(),
            lane: n[0] as u16,
            flags: n[1] as u16,
            seq: n[2] as u32,
            block: n[3] as u32,
            first: n[4] as u32,
            count: n[5] as u32,
            value: n[6],
            hash: u128::from(n[7]) | u128::from(n[8]) << 64,
        };
        let list = RequestList { hashes: &self.hashes, words: &self.words };
        Request::decode(&message, list).or_else(|_| self.bad("a request that does not decode"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Admission, Attention, Eviction, Retention};

    #[test]
    fn a_policy_comes_back() {
        let policy = Policy {
            clean_low_percent: 1,
            clean_high_percent: 2,
            host_high_percent: 3,
            host_low_percent: 4,
            host_clean_low_percent: 5,
            host_clean_high_percent: 6,
            host_scan_frames: 1 << 31,
            nvme_high_percent: 8,
            nvme_low_percent: 9,
            nvme_admission: Admission::Budget,
            nvme_bytes_per_day: 1 << 50,
            eviction: Eviction::CostAware,
            attention: Attention { sinks: 11, recent: 12, bandwidth_percent: 13 },
            retention: Retention {
                ttl_us: 1 << 40,
                high_share_percent: 99,
                recompute_tokens_per_s: 14,
                attention_doubles_at: 15,
                ending_tokens: 16,
            },
            scan_frames: 1 << 30,
            request_timeout_us: u64::MAX,
            lease_us_max: u64::MAX - 3,
            lease_percent: 14,
        };
        let mut log = Vec::new();
        let event = Event::Reconfigure { policy, host_bytes_max: u64::MAX - 1, nvme_bytes_max: u64::MAX - 2 };
        Input::event(7, event).encode(&ActionBuf::new(1, 1), &mut log);
        let mut reader = Reader::new(&log);
        let entry = reader.next().expect("it decodes").expect("there is one");
        let Ok(Some(Event::Reconfigure { policy: back, host_bytes_max, nvme_bytes_max })) = reader.event(&entry) else {
            panic!("another event")
        };
        assert_eq!((entry.now_us, back), (7, policy));
        assert_eq!((host_bytes_max, nvme_bytes_max), (u64::MAX - 1, u64::MAX - 2));
        assert!(reader.next().expect("it decodes").is_none());
    }
}
