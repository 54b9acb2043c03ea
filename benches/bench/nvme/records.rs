//! Blocks written repeatedly with their records, as by spaces. The old record of a slot is erased and the erasure flushed before
//! the next block is written there; each block's record follows its bytes. All bytes written to the device are counted.

use super::drive::{Driver, Stream};
use super::rig::Rig;
use super::stop::{LOOK, Stop, failed};
use super::{BenchError, NvmeArgs};
use kvtide_daemon::output;
use kvtide_format::log::SlabHeader;
use kvtide_nvme::{DiskStatus, LogMessage, LogRequest, LogRequestKind, SlotKey};
use kvtide_rt::mail::{Address, Mailbox, mailbox};
use kvtide_tiering::api::{IoClass, IoKind, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum number of slots waiting for erasure. A space also keeps some slots free in advance.
const ERASES: usize = 1024;
/// Bytes of a plane's page, which determines the checksums of a record, up to `PLANES_MAX`.
const PLANE_BYTES: u32 = 4096;
/// More planes than most models have.
const PLANES_MAX: u32 = 64;
/// Part of the time that is not counted, until slots are written a second time and the log is in a steady state.
const WARM_UP: f64 = 0.3;

/// Results.
#[derive(Clone, Copy, Debug)]
pub(super) struct Records {
    /// Device bytes per byte of pages.
    pub(super) amplification: f64,
    /// Blocks written.
    pub(super) blocks: u64,
    /// Planes of a block.
    pub(super) planes: u32,
    /// Bytes of pages a second.
    pub(super) bytes_per_s: f64,
    /// Bytes appended to the log per block, in whole sectors.
    pub(super) log_bytes: f64,
    /// Bytes written by compactions per block.
    pub(super) compacted_bytes: f64,
    /// Device flushes.
    pub(super) flushes: u64,
}

/// Return the number of planes of a block of `page` bytes.
fn planes(page: u32) -> u32 {
    (page / PLANE_BYTES).clamp(1, PLANES_MAX)
}

/// Return the header of a region with pages of the benchmark in its slots.
fn header(args: &NvmeArgs, region: u32) -> SlabHeader {
    let planes = planes(args.page);
    let page_bytes = vec![args.page / planes; planes as usize];
    SlabHeader::new(region, u64::from(region) + 1, [0xBE; 32], "bench", args.page.into(), page_bytes)
}

/// Slots that cycle through erasure, writing and recording.
struct Churn {
    log_requests: Mailbox<Box<LogRequest>>,
    log: Address<LogMessage>,
    #[expect(clippy::vec_box, reason = "boxes are what travels")]
    idle: Vec<Box<LogRequest>>,
    /// By slot: number of blocks that it has held.
    generations: Vec<u32>,
    /// By slot: it is in flight.
    busy: Vec<bool>,
    /// Slots that can be written.
    clean: VecDeque<u64>,
    erasing: usize,
    erases_max: usize,
    written: VecDeque<u64>,
    slots_a_region: u64,
}

impl Churn {
    fn new(args: &NvmeArgs, rig: &Rig) -> Result<Churn, BenchError> {
        let erases_max = ERASES.min(rig.pages as usize / 4).max(1);
        let boxes = 2 * erases_max + args.depth as usize;
        let (reply, log_requests) = mailbox(boxes).map_err(|e| failed("make a mailbox", std::io::Error::other(e)))?;
        let planes = planes(args.page) as usize;
        let blank = |id| {
            Box::new(LogRequest {
                space: 0,
                id,
                kind: LogRequestKind::Record,
                urgent: false,
                key: SlotKey::default(),
                shard: 0,
                hash: 0,
                parent: 0,
                present: (0..planes.div_ceil(32)).map(|_| u32::MAX).collect(),
                crcs: vec![0; planes],
                sectors: Vec::new(),
                tags: Vec::new(),
                salt: 0,
                reply: reply.clone(),
                status: Status::Internal,
                errno: 0,
            })
        };
        Ok(Churn {
            log_requests,
            log: rig.disk().log(),
            idle: (0..boxes as u32).map(blank).collect(),
            generations: vec![0; rig.pages as usize],
            busy: vec![false; rig.pages as usize],
            clean: VecDeque::new(),
            erasing: 0,
            erases_max,
            written: VecDeque::new(),
            slots_a_region: rig.disk().region_bytes() / u64::from(args.page),
        })
    }

    fn send(
        &mut self,
        kind: LogRequestKind,
        slot: u64,
        mut request: Box<LogRequest>,
        crc: u32,
    ) -> Result<(), BenchError> {
        let generation = self.generations[slot as usize];
        let (region, slot_there) = ((slot / self.slots_a_region) as u32, (slot % self.slots_a_region) as u32);
        request.kind = kind;
        request.key = SlotKey { region, slot: slot_there, generation };
        request.hash = u128::from(slot) << 32 | u128::from(generation);
        request.crcs.fill(crc);
        self.log
            .send(LogMessage::LogRequest(request))
            .map_err(|gone| failed("send a log request", std::io::Error::other(gone)))
    }

    /// Erase the records of as many slots as may wait for it.
    fn erase(&mut self, driver: &mut Driver, rig: &Rig) -> Result<(), BenchError> {
        for _ in 0..self.erases_max {
            if self.erasing + self.clean.len() >= self.erases_max {
                return Ok(());
            }
            let slot = driver.choose(&(0..rig.pages));
            if self.busy[slot as usize] {
                continue;
            }
            let Some(request) = self.idle.pop() else { return Ok(()) };
            self.busy[slot as usize] = true;
            self.erasing += 1;
            self.send(LogRequestKind::Erase, slot, request, 0)?;
        }
        Ok(())
    }

    /// Record written blocks, as far as boxes are idle.
    fn put(&mut self, rig: &Rig) -> Result<(), BenchError> {
        while !self.written.is_empty() {
            let Some(request) = self.idle.pop() else { return Ok(()) };
            let Some(slot) = self.written.pop_front() else { return Ok(()) };
            self.generations[slot as usize] += 1;
            self.send(LogRequestKind::Record, slot, request, rig.kept[slot as usize].crc)?;
        }
        Ok(())
    }

    /// Process replies.
    fn take(&mut self) -> Result<(), BenchError> {
        while let Some(request) = self.log_requests.take() {
            if request.status != Status::Ok {
                let (kind, status, errno) = (request.kind, request.status, request.errno);
                return Err(BenchError::Odd(format!("a log request ({kind:?}) ended with {status:?} (error {errno})")));
            }
            let slot = u64::from(request.key.region) * self.slots_a_region + u64::from(request.key.slot);
            match request.kind {
                LogRequestKind::Erase => {
                    self.erasing -= 1;
                    self.clean.push_back(slot);
                }
                LogRequestKind::Record | LogRequestKind::Flush => self.busy[slot as usize] = false,
            }
            self.idle.push(request);
        }
        Ok(())
    }
}

/// Write for the measured time.
pub(super) fn measure(args: &NvmeArgs, rig: &mut Rig, driver: &mut Driver, stop: &Stop) -> Result<Records, BenchError> {
    output::say(format_args!("kvtide bench: blocks with their records"));
    rig.grant((0..rig.disk().regions()).map(|region| header(args, region)), stop)?;
    let mut churn = Churn::new(args, rig)?;
    let stream = Stream { kind: IoKind::Write, class: IoClass::WriteBack, depth: args.depth, pages: 0..rig.pages };
    let (began, time) = (Instant::now(), Duration::from_secs_f64(args.seconds));
    let mut warm: Option<(Instant, DiskStatus)> = None;
    while began.elapsed() < time {
        stop.check()?;
        if warm.is_none() && began.elapsed() >= time.mul_f64(WARM_UP) {
            warm = Some((Instant::now(), rig.status()?));
        }
        while let Some(slot) = driver.ended(rig)? {
            churn.written.push_back(slot);
        }
        churn.take()?;
        churn.put(rig)?;
        churn.erase(driver, rig)?;
        while let Some(slot) = churn.clean.pop_front() {
            if !driver.begin(rig, &stream, slot)? {
                churn.clean.push_front(slot);
                break;
            }
        }
        sleep(&churn, driver)?;
    }
    let (since, before) = warm.ok_or_else(|| BenchError::Odd("the benchmark was stopped during its warm-up".into()))?;
    let (seconds, after) = (since.elapsed().as_secs_f64(), rig.status()?);
    driver.settle(rig)?;
    records(args, (&before, &after), seconds)
}

/// Sleep until a completion, or for a short time.
fn sleep(churn: &Churn, driver: &Driver) -> Result<(), BenchError> {
    let boxes = driver.boxes();
    if boxes.is_empty() && churn.log_requests.is_empty() {
        boxes.announce();
        churn.log_requests.announce();
        if boxes.is_empty() && churn.log_requests.is_empty() {
            let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
            let mut fds = [PollFd::new(boxes, PollFlags::IN), PollFd::new(&churn.log_requests, PollFlags::IN)];
            match poll(&mut fds, Some(&look)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("wait for the disk", errno)),
            }
            boxes.quiet();
            churn.log_requests.quiet();
        }
        boxes.awake();
        churn.log_requests.awake();
    }
    Ok(())
}

fn records(args: &NvmeArgs, (before, after): (&DiskStatus, &DiskStatus), seconds: f64) -> Result<Records, BenchError> {
    let since = |figure: fn(&DiskStatus) -> u64| figure(after) - figure(before);
    let pages = since(|status| status.written.page_bytes);
    let blocks = pages / u64::from(args.page);
    if blocks == 0 {
        return Err(BenchError::Odd("no block was written with its record: --seconds is too short".into()));
    }
    let (log, compacted) = (since(|status| status.log.appended_bytes), since(|status| status.log.compacted_bytes));
    let all = since(|status| status.written.request_bytes + status.written.superblock_bytes) + log + compacted;
    Ok(Records {
        amplification: all as f64 / pages as f64,
        blocks,
        planes: planes(args.page),
        bytes_per_s: pages as f64 / seconds,
        log_bytes: log as f64 / blocks as f64,
        compacted_bytes: compacted as f64 / blocks as f64,
        flushes: since(|status| status.log.flushes),
    })
}
