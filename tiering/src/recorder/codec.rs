//! Encoding of one input: a kind, numbers as LEB128, and at most one list of words or hashes.

use crate::actions::ActionBuf;
use crate::api::{
    Admission, Advice, Attention, Contract, DiskSlot, Event, Eviction, Level, NONE, Policy, Request, Retention,
    ScoreKind, Scoring, Status,
};
use crate::error::Error;

/// Maximum count of numbers of an input, before its list.
const NUMBERS: usize = 28;

/// Payload of an input besides its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum List<'a> {
    None,
    Words(&'a [u32]),
    Pairs(&'a [(u32, u16)]),
    Hashes(&'a [u128]),
    Blocks(&'a [u128], &'a [u32]),
}

/// One call of the core, flattened. Kinds below 32 are requests, in the order of [`Request`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    kind: u8,
    now_us: u64,
    numbers: [u64; NUMBERS],
    len: usize,
    hash: u128,
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

impl<'a> Input<'a> {
    fn new(kind: u8, now_us: u64, numbers: &[u64], list: List<'a>) -> Input<'a> {
        let mut all = [0; NUMBERS];
        all[..numbers.len()].copy_from_slice(numbers);
        Input { kind, now_us, numbers: all, len: numbers.len(), hash: 0, list }
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
                let mut input = request_input(now_us, request);
                input.numbers.copy_within(..input.len, 4);
                input.numbers[..4].copy_from_slice(&[session.into(), channel.into(), tag.into(), timeout_us]);
                input.len += 4;
                input
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
                new(RECONFIGURE, &policy_numbers(&policy, host_bytes_max, nvme_bytes_max), List::None)
            }
            Event::Tick => new(TICK, &[], List::None),
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
            List::Hashes(hashes) => hashes.len() * 16,
            List::Blocks(hashes, blocks) => 5 + hashes.len() * 16 + blocks.len() * 5,
        };
        10 * (NUMBERS + 4) + 32 + list
    }

    pub fn encode(&self, buf: &ActionBuf, out: &mut Vec<u8>) {
        out.push(self.kind);
        put(out, self.now_us);
        put(out, buf.room() as u64);
        put(out, buf.words_room() as u64);
        out.push(self.len as u8);
        self.numbers[..self.len].iter().for_each(|&n| put(out, n));
        match self.list {
            List::None => put(out, 0),
            List::Words(words) => {
                put(out, words.len() as u64);
                words.iter().for_each(|&w| put(out, w.into()));
            }
            List::Pairs(pairs) => {
                put(out, pairs.len() as u64);
                for &(index, share) in pairs {
                    put(out, index.into());
                    put(out, share.into());
                }
            }
            List::Hashes(hashes) => {
                put(out, hashes.len() as u64);
                hashes.iter().for_each(|h| out.extend(h.to_le_bytes()));
            }
            List::Blocks(hashes, blocks) => {
                put(out, hashes.len() as u64);
                hashes.iter().for_each(|h| out.extend(h.to_le_bytes()));
                put(out, blocks.len() as u64);
                blocks.iter().for_each(|&block| put(out, block.into()));
            }
        }
        if has_hash(self.kind) {
            out.extend(self.hash.to_le_bytes());
        }
    }
}

fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Kinds with a list of hashes; the first of them has one more hash.
const PUBLISH: u8 = 8;
const MAP: u8 = 9;
const LOOKUP: u8 = 22;
/// Kind with one hash and no list.
const LEASE: u8 = 23;
/// Kind with one hash more, and a list of words after its list of hashes.
const STORE: u8 = 25;

fn has_hash(kind: u8) -> bool {
    matches!(kind, PUBLISH | LEASE | STORE)
}

fn policy_numbers(p: &Policy, host_bytes_max: u64, nvme_bytes_max: u64) -> [u64; NUMBERS] {
    [
        p.clean_low_percent.into(),
        p.clean_high_percent.into(),
        p.host_high_percent.into(),
        p.host_low_percent.into(),
        p.host_clean_low_percent.into(),
        p.host_clean_high_percent.into(),
        p.host_scan_frames.into(),
        p.nvme_high_percent.into(),
        p.nvme_low_percent.into(),
        p.scan_frames.into(),
        p.request_timeout_us,
        p.nvme_admission as u64,
        p.nvme_bytes_per_day,
        host_bytes_max,
        nvme_bytes_max,
        p.eviction as u64,
        p.attention.policy as u64,
        p.attention.drop.into(),
        p.attention.sinks.into(),
        p.attention.recent.into(),
        p.attention.bandwidth_percent.into(),
        p.retention.ttl_us,
        p.retention.high_share_percent.into(),
        p.retention.recompute_tokens_per_s.into(),
        p.retention.attention_doubles_at.into(),
        p.retention.ending_tokens.into(),
        p.lease_us_max,
        p.lease_percent.into(),
    ]
}

fn policy_of(n: &[u64; NUMBERS]) -> Option<Policy> {
    Some(Policy {
        clean_low_percent: n[0] as u8,
        clean_high_percent: n[1] as u8,
        host_high_percent: n[2] as u8,
        host_low_percent: n[3] as u8,
        host_clean_low_percent: n[4] as u8,
        host_clean_high_percent: n[5] as u8,
        host_scan_frames: n[6] as u32,
        nvme_high_percent: n[7] as u8,
        nvme_low_percent: n[8] as u8,
        scan_frames: n[9] as u32,
        request_timeout_us: n[10],
        nvme_admission: match n[11] {
            0 => Admission::All,
            1 => Admission::SecondTouch,
            2 => Admission::Budget,
            _ => return None,
        },
        nvme_bytes_per_day: n[12],
        eviction: match n[15] {
            0 => Eviction::Lru,
            1 => Eviction::S3Fifo,
            2 => Eviction::Arc,
            3 => Eviction::CostAware,
            4 => Eviction::Auto,
            _ => return None,
        },
        attention: Attention {
            policy: Scoring::ALL.into_iter().find(|&policy| policy as u64 == n[16])?,
            drop: n[17] != 0,
            sinks: n[18] as u16,
            recent: n[19] as u16,
            bandwidth_percent: n[20] as u8,
        },
        retention: Retention {
            ttl_us: n[21],
            high_share_percent: n[22] as u8,
            recompute_tokens_per_s: n[23] as u32,
            attention_doubles_at: n[24] as u32,
            ending_tokens: n[25] as u32,
        },
        lease_us_max: n[26],
        lease_percent: n[27] as u8,
    })
}

fn request_input(now_us: u64, request: Request<'_>) -> Input<'_> {
    let new = |kind, numbers: &[u64], list| Input::new(kind, now_us, numbers, list);
    let none = List::None;
    match request {
        Request::Nop => new(0, &[], none),
        Request::SeqCreate { seq } => new(1, &[seq.into()], none),
        Request::SeqDrop { seq } => new(2, &[seq.into()], none),
        Request::Reserve { seq, count } => {
            new(3, &[u64::from(seq.is_some()), seq.unwrap_or(NONE).into(), count.into()], none)
        }
        Request::Bind { seq, block } => new(4, &[seq.into(), block.into()], none),
        Request::Commit { seq, tokens } => new(5, &[seq.into(), tokens], none),
        Request::Fork { parent, child } => new(6, &[parent.into(), child.into()], none),
        Request::Truncate { seq, tokens } => new(7, &[seq.into(), tokens], none),
        Request::Publish { seq, first, parent, hashes, level } => {
            let numbers = [seq.into(), first.into(), level as u64];
            Input { hash: parent, ..new(PUBLISH, &numbers, List::Hashes(hashes)) }
        }
        Request::Map { seq, hashes } => new(MAP, &[seq.into()], List::Hashes(hashes)),
        Request::Park { seq, due_us } => new(10, &[seq.into(), due_us], none),
        Request::Resume { seq } => new(11, &[seq.into()], none),
        Request::Advise { seq, first, count, advice } => {
            let (advice, value) = match advice {
                Advice::WillNeed => (0, 0),
                Advice::DontNeed => (1, 0),
                Advice::Sequential => (2, 0),
                Advice::Cold => (3, 0),
                Advice::Priority(p) => (4, p.into()),
                Advice::Remaining(tokens) => (5, tokens),
            };
            new(12, &[seq.into(), first.into(), count.into(), advice, value.into()], none)
        }
        Request::Acquire { seq, plane, planes, first, count } => {
            new(13, &[seq.into(), plane.into(), planes.into(), first.into(), count.into()], none)
        }
        Request::Release { seq, plane, planes, first, count } => {
            new(14, &[seq.into(), plane.into(), planes.into(), first.into(), count.into()], none)
        }
        Request::Step { lane, step, seqs } => new(15, &[lane.into(), step], List::Words(seqs)),
        Request::StepEnd { lane, step } => new(16, &[lane.into(), step], none),
        Request::Fault { lane, use_pos, seq, index, plane } => {
            new(17, &[lane.into(), use_pos, seq.into(), index.into(), plane.into()], none)
        }
        Request::Cancel { tag } => new(18, &[tag.into()], none),
        Request::Declare { seq, index, tokens, frames } => {
            new(19, &[seq.into(), index.into(), tokens], List::Words(frames))
        }
        Request::Tier0Resize { class, frames } => new(20, &[class.into(), frames.into()], none),
        Request::Contract { seq, contract } => {
            let (kind, value) = match contract {
                Contract::Exact => (0, 0),
                Contract::Approx { permille } => (1, u64::from(permille)),
                Contract::Bounded { ppm } => (2, u64::from(ppm)),
            };
            new(21, &[seq.into(), kind, value], none)
        }
        Request::Lookup { hashes } => new(LOOKUP, &[], List::Hashes(hashes)),
        Request::Lease { seq, hash, count, lease_us } => {
            Input { hash, ..new(LEASE, &[seq.into(), count.into(), lease_us], none) }
        }
        Request::LoadBlocks { seq, first, engine } => new(24, &[seq.into(), first.into()], List::Words(engine)),
        Request::StoreBlocks { first, parent, hashes, engine, level } => {
            let numbers = [first.into(), level as u64];
            Input { hash: parent, ..new(STORE, &numbers, List::Blocks(hashes, engine)) }
        }
        Request::FetchBlocks { seq, first, count } => new(26, &[seq.into(), first.into(), count.into()], none),
    }
}

/// One decoded input; its lists are in the reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    kind: u8,
    pub now_us: u64,
    pub room: usize,
    pub words_room: usize,
    n: [u64; NUMBERS],
    hash: u128,
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
        let list = self.number()?;
        if list > self.bytes.len() as u64 {
            return self.bad("a list is longer than the log");
        }
        self.words.clear();
        self.hashes.clear();
        self.pairs.clear();
        for _ in 0..list {
            if kind == SCORES {
                let (index, share) = (self.number()? as u32, self.number()? as u16);
                self.pairs.push((index, share));
            } else if matches!(kind, PUBLISH | MAP | LOOKUP | STORE) {
                let hash = self.hash()?;
                self.hashes.push(hash);
            } else {
                let word = self.number()? as u32;
                self.words.push(word);
            }
        }
        if kind == STORE {
            for _ in 0..self.number()? {
                let word = self.number()? as u32;
                self.words.push(word);
            }
        }
        let hash = if has_hash(kind) { self.hash()? } else { 0 };
        Ok(Some(Entry { kind, now_us, room, words_room, n, hash }))
    }

    /// Return the event of an input; `None` for a poll.
    pub fn event(&self, e: &Entry) -> Result<Option<Event<'_>>, Error> {
        let n = &e.n;
        let (session, class) = (n[0] as u16, n[0] as u8);
        Ok(Some(match e.kind {
            POLL => return Ok(None),
            ATTACH => Event::Attach { session, shard: n[1] as u16, lanes: n[2] as u16, frames: &self.words },
            JOB_DONE => Event::JobDone { session, job: n[1] as u32, status: self.status(n[2])? },
            GRANTED => Event::SlabGranted { class, slab: n[1] as u32, frames: n[2] as u32 },
            REFUSED => Event::SlabRefused { class },
            LOST => Event::SessionLost { session },
            EXITED => Event::SessionExited { session },
            RECONFIGURE => {
                let Some(policy) = policy_of(n) else { return self.bad("invalid policy") };
                Event::Reconfigure { policy, host_bytes_max: n[13], nvme_bytes_max: n[14] }
            }
            TICK => Event::Tick,
            RECLAIM => Event::Reclaim { cached: n[0] != 0 },
            FREED => Event::Freed,
            DISK_GRANTED | DISK_ADOPTED => {
                let (slab, slots, disk, generation) = (n[0] as u32, n[1] as u32, n[2] as u16, n[3] as u32);
                match e.kind {
                    DISK_GRANTED => Event::DiskGranted { slab, slots, disk, generation },
                    _ => Event::DiskAdopted { slab, slots, disk, generation },
                }
            }
            RESTORED => {
                let hash = |at: usize| u128::from(n[at]) | u128::from(n[at + 1]) << 64;
                Event::Restored {
                    at: DiskSlot { slab: n[0] as u32, slot: n[1] as u32, generation: n[2] as u32 },
                    shard: n[3] as u16,
                    hash: hash(4),
                    parent: hash(6),
                    planes: &self.words,
                }
            }
            LOG_DONE => Event::LogDone { id: n[0] as u32, status: self.status(n[1])? },
            DISK_GONE => Event::DiskGone { slab: n[0] as u32 },
            DISK_REFUSED => Event::DiskRefused,
            IO_DONE => Event::IoDone { id: n[0] as u32, status: self.status(n[1])?, bad: &self.words },
            SCORES => Event::Scores {
                session,
                seq: n[1] as u32,
                plane: n[2] as u16,
                step: n[3],
                kind: match n[4] {
                    0 => ScoreKind::Mass,
                    1 => ScoreKind::Query,
                    2 => ScoreKind::Ahead,
                    _ => return self.bad("unknown kind of scores"),
                },
                rest: n[5] as u16,
                top: &self.pairs,
            },
            kind => Event::Request {
                session,
                channel: n[1] as u16,
                tag: n[2] as u16,
                timeout_us: n[3],
                request: self.request(kind, &n[4..], e.hash)?,
            },
        }))
    }

    fn status(&self, code: u64) -> Result<Status, Error> {
        use Status::*;
        const ALL: [Status; 17] = [
            Ok,
            Again,
            Invalid,
            NotFound,
            Range,
            NoSpace,
            TooBig,
            Busy,
            TimedOut,
            Canceled,
            Lost,
            Io,
            NotAdmitted,
            Limit,
            State,
            Internal,
            Corrupt,
        ];
        match ALL.iter().find(|&&s| s as u64 == code) {
            Some(&status) => Result::Ok(status),
            None => self.bad("unknown status"),
        }
    }

    fn level(&self, code: u64) -> Result<Level, Error> {
        match code {
            0 => Ok(Level::Published),
            1 => Ok(Level::Stored),
            2 => Ok(Level::Durable),
            _ => self.bad("unknown level"),
        }
    }

    fn request(&self, kind: u8, n: &[u64], hash: u128) -> Result<Request<'_>, Error> {
        let (seq, lane) = (n[0] as u32, n[0] as u16);
        let range = |i: usize| (n[i] as u16, n[i + 1] as u16, n[i + 2] as u32, n[i + 3] as u32);
        Ok(match kind {
            0 => Request::Nop,
            1 => Request::SeqCreate { seq },
            2 => Request::SeqDrop { seq },
            3 => Request::Reserve { seq: (n[0] != 0).then_some(n[1] as u32), count: n[2] as u32 },
            4 => Request::Bind { seq, block: n[1] as u32 },
            5 => Request::Commit { seq, tokens: n[1] },
            6 => Request::Fork { parent: seq, child: n[1] as u32 },
            7 => Request::Truncate { seq, tokens: n[1] },
            PUBLISH => {
                let level = self.level(n[2])?;
                Request::Publish { seq, first: n[1] as u32, parent: hash, hashes: &self.hashes, level }
            }
            MAP => Request::Map { seq, hashes: &self.hashes },
            10 => Request::Park { seq, due_us: n[1] },
            11 => Request::Resume { seq },
            12 => {
                let advice = match n[3] {
                    0 => Advice::WillNeed,
                    1 => Advice::DontNeed,
                    2 => Advice::Sequential,
                    3 => Advice::Cold,
                    4 => Advice::Priority(n[4] as u8),
                    5 => Advice::Remaining(n[4] as u32),
                    _ => return self.bad("unknown advice"),
                };
                Request::Advise { seq, first: n[1] as u32, count: n[2] as u32, advice }
            }
            13 => {
                let (plane, planes, first, count) = range(1);
                Request::Acquire { seq, plane, planes, first, count }
            }
            14 => {
                let (plane, planes, first, count) = range(1);
                Request::Release { seq, plane, planes, first, count }
            }
            15 => Request::Step { lane, step: n[1], seqs: &self.words },
            16 => Request::StepEnd { lane, step: n[1] },
            17 => Request::Fault { lane, use_pos: n[1], seq: n[2] as u32, index: n[3] as u32, plane: n[4] as u16 },
            18 => Request::Cancel { tag: n[0] as u16 },
            19 => Request::Declare { seq, index: n[1] as u32, tokens: n[2], frames: &self.words },
            20 => Request::Tier0Resize { class: n[0] as u8, frames: n[1] as u32 },
            21 => {
                let contract = match n[1] {
                    0 => Contract::Exact,
                    1 => Contract::Approx { permille: n[2] as u16 },
                    2 => Contract::Bounded { ppm: n[2] as u32 },
                    _ => return self.bad("unknown contract"),
                };
                Request::Contract { seq, contract }
            }
            LOOKUP => Request::Lookup { hashes: &self.hashes },
            LEASE => Request::Lease { seq, hash, count: n[1] as u32, lease_us: n[2] },
            24 => Request::LoadBlocks { seq, first: n[1] as u32, engine: &self.words },
            STORE => Request::StoreBlocks {
                first: n[0] as u32,
                parent: hash,
                hashes: &self.hashes,
                engine: &self.words,
                level: self.level(n[1])?,
            },
            26 => Request::FetchBlocks { seq, first: n[1] as u32, count: n[2] as u32 },
            _ => return self.bad("unknown input"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_comes_back_number_by_number() {
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
            attention: Attention { policy: Scoring::Quest, drop: true, sinks: 11, recent: 12, bandwidth_percent: 13 },
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
