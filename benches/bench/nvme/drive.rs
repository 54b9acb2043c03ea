//! A driver that keeps a number of transfers in flight, as a core thread does: reused boxes, one mailbox, and sleep when idle.

use super::BenchError;
use super::rig::{Kept, Rig};
use super::stop::{LOOK, Stop, failed};
use kvtide_nvme::{DiskMessage, Part, SlotKey, Transfer};
use kvtide_rt::mail::{Address, Mailbox, mailbox};
use kvtide_tiering::api::{IoClass, IoKind, Status};
use kvtide_types::random::Random;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Return the CPU seconds used by the process or by this thread.
pub(super) fn cpu_s(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// One kind of transfers of a run.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Read or write.
    pub(super) kind: IoKind,
    /// Urgency class.
    pub(super) class: IoClass,
    /// Transfers in flight.
    pub(super) depth: u32,
    /// Range of pages to choose from.
    pub(super) pages: Range<u64>,
}

/// Completed transfers of a stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Moved {
    /// Transfers completed in the measured time.
    pub(super) transfers: u64,
    /// Microseconds of each, from the request to the completed box.
    pub(super) us: Vec<u64>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// By stream.
    pub(super) moved: Vec<Moved>,
    /// Duration in seconds.
    pub(super) seconds: f64,
    /// CPU seconds of the whole process, without checksums.
    pub(super) cpu_s: f64,
    /// CPU seconds of this thread, included above.
    pub(super) driver_s: f64,
    /// Seconds spent on checksums.
    pub(super) checksum_s: f64,
}

/// Counters read before and after a run.
struct Meter {
    began: Instant,
    process_s: f64,
    driver_s: f64,
    checksum_ns: u64,
}

impl Meter {
    fn now(rig: &Rig) -> Result<Meter, BenchError> {
        let checksum_ns = rig.status()?.checksum_ns;
        let [process_s, driver_s] = [ClockId::ProcessCPUTime, ClockId::ThreadCPUTime].map(cpu_s);
        Ok(Meter { began: Instant::now(), process_s, driver_s, checksum_ns })
    }

    fn until(&self, now: &Meter, moved: Vec<Moved>) -> Run {
        let checksum_s = (now.checksum_ns - self.checksum_ns) as f64 / 1e9;
        Run {
            moved,
            seconds: (now.began - self.began).as_secs_f64(),
            cpu_s: now.process_s - self.process_s - checksum_s,
            driver_s: now.driver_s - self.driver_s,
            checksum_s,
        }
    }
}

/// The box of an idle transfer, with its stream.
struct Ticket {
    stream: usize,
    sent: Instant,
}

/// The driver.
pub(super) struct Driver {
    boxes: Mailbox<Box<Transfer>>,
    #[expect(clippy::vec_box, reason = "boxes are what travels")]
    idle: Vec<Box<Transfer>>,
    /// By id of the transfer.
    tickets: Vec<Ticket>,
    address: Address<DiskMessage>,
    page: u64,
    pages_a_region: u64,
    random: Random,
}

impl Driver {
    /// Create a driver with a box and a frame for each of `depth` transfers.
    pub(super) fn new(rig: &Rig, depth: u32, page: u32) -> Result<Driver, BenchError> {
        let (reply, boxes) = mailbox(depth as usize).map_err(|e| failed("make a mailbox", std::io::Error::other(e)))?;
        let one = |id: u32| {
            let offset = u64::from(id) * u64::from(page);
            let part = Part {
                plane: 0,
                at: 0,
                bytes: page,
                memory: Arc::clone(&rig.memory),
                offset,
                crc: 0,
                sectors: 0,
                tag: [0; 16],
                digest: None,
                sampled: false,
                ok: false,
            };
            Box::new(Transfer {
                space: 0,
                id,
                kind: IoKind::Read,
                class: IoClass::Demand,
                offset: 0,
                bytes: page.into(),
                whole: true,
                key: SlotKey::default(),
                code: None,
                salt: 0,
                parts: vec![part],
                reply: reply.clone(),
                status: Status::Internal,
                errno: 0,
                waited_us: 0,
                device_us: 0,
            })
        };
        let now = Instant::now();
        let address = rig.disk().address();
        send(&address, DiskMessage::Register(Arc::clone(&rig.memory)))?;
        Ok(Driver {
            boxes,
            idle: (0..depth).map(one).collect(),
            tickets: (0..depth).map(|_| Ticket { stream: 0, sent: now }).collect(),
            address,
            page: page.into(),
            pages_a_region: rig.disk().region_bytes() / u64::from(page),
            random: Random::new(1),
        })
    }

    /// Run the streams for `time`.
    pub(super) fn run(
        &mut self,
        rig: &mut Rig,
        streams: &[Stream],
        time: Duration,
        stop: &Stop,
    ) -> Result<Run, BenchError> {
        let mut moved = vec![Moved::default(); streams.len()];
        let before = Meter::now(rig)?;
        for (number, stream) in streams.iter().enumerate() {
            for _ in 0..stream.depth {
                let transfer = self.idle.pop().ok_or_else(|| BenchError::Odd("more streams than boxes".into()))?;
                let page = self.choose(&stream.pages);
                self.send(rig, number, stream, page, transfer)?;
            }
        }
        while before.began.elapsed() < time {
            while let Some(transfer) = self.boxes.take() {
                let ticket = &self.tickets[transfer.id as usize];
                let (number, us) = (ticket.stream, ticket.sent.elapsed().as_micros() as u64);
                moved[number].transfers += 1;
                moved[number].us.push(us);
                self.note(rig, &transfer)?;
                let page = self.choose(&streams[number].pages);
                self.send(rig, number, &streams[number], page, transfer)?;
            }
            self.sleep(rig)?;
            stop.check()?;
        }
        let run = before.until(&Meter::now(rig)?, moved);
        self.settle(rig)?;
        Ok(run)
    }

    /// Write every page once, in order.
    pub(super) fn fill(&mut self, rig: &mut Rig, stop: &Stop) -> Result<(), BenchError> {
        let stream = Stream { kind: IoKind::Write, class: IoClass::WriteBack, depth: 0, pages: 0..rig.pages };
        for page in 0..rig.pages {
            stop.check()?;
            let transfer = match self.idle.pop() {
                Some(transfer) => transfer,
                None => self.wait(rig)?,
            };
            self.send(rig, 0, &stream, page, transfer)?;
        }
        self.settle(rig)
    }

    /// Return the mailbox to which boxes return.
    pub(super) fn boxes(&self) -> &Mailbox<Box<Transfer>> {
        &self.boxes
    }

    /// Start a transfer with this page. Return false if no box is idle.
    pub(super) fn begin(&mut self, rig: &Rig, stream: &Stream, page: u64) -> Result<bool, BenchError> {
        let Some(transfer) = self.idle.pop() else { return Ok(false) };
        self.send(rig, 0, stream, page, transfer)?;
        Ok(true)
    }

    /// Return the page of the next completed transfer, after checking it.
    pub(super) fn ended(&mut self, rig: &mut Rig) -> Result<Option<u64>, BenchError> {
        let Some(transfer) = self.boxes.take() else { return Ok(None) };
        self.note(rig, &transfer)?;
        let page = u64::from(transfer.key.region) * self.pages_a_region + u64::from(transfer.key.slot);
        self.idle.push(transfer);
        Ok(Some(page))
    }

    /// Wait for all transfers in flight.
    pub(super) fn settle(&mut self, rig: &mut Rig) -> Result<(), BenchError> {
        while self.idle.len() < self.tickets.len() {
            let transfer = self.wait(rig)?;
            self.idle.push(transfer);
        }
        Ok(())
    }

    /// Return the next completed box, after checking it.
    fn wait(&mut self, rig: &mut Rig) -> Result<Box<Transfer>, BenchError> {
        loop {
            if let Some(transfer) = self.boxes.take() {
                self.note(rig, &transfer)?;
                return Ok(transfer);
            }
            self.sleep(rig)?;
        }
    }

    /// Sleep until a box returns, or for a short time.
    fn sleep(&mut self, rig: &Rig) -> Result<(), BenchError> {
        self.boxes.announce();
        if self.boxes.is_empty() {
            let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.boxes, PollFlags::IN)], Some(&look)) {
                Ok(0) if rig.status()?.stalled => return Err(BenchError::Odd("the device does not answer".into())),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => self.boxes.quiet(),
                Err(errno) => return Err(failed("wait for the disk", errno)),
            }
        }
        self.boxes.awake();
        Ok(())
    }

    /// Choose a random page.
    pub(super) fn choose(&mut self, pages: &Range<u64>) -> u64 {
        pages.start + self.random.below(pages.end - pages.start)
    }

    fn send(
        &mut self,
        rig: &Rig,
        number: usize,
        stream: &Stream,
        page: u64,
        mut transfer: Box<Transfer>,
    ) -> Result<(), BenchError> {
        let (region, slot) = ((page / self.pages_a_region) as u32, (page % self.pages_a_region) as u32);
        (transfer.kind, transfer.class) = (stream.kind, stream.class);
        transfer.offset = rig.disk().offset(region, u64::from(slot) * self.page);
        // The content of a page does not matter, but its checksum depends on the page.
        transfer.key = SlotKey { region, slot, generation: 1 };
        let kept = &rig.kept[page as usize];
        transfer.code = rig.code.clone().filter(|_| page >= rig.pages / 2);
        transfer.salt = if stream.kind == IoKind::Read { kept.salt } else { 0 };
        (transfer.parts[0].crc, transfer.parts[0].tag) = (kept.crc, kept.tag);
        self.tickets[transfer.id as usize] = Ticket { stream: number, sent: Instant::now() };
        send(&self.address, DiskMessage::Transfer(transfer))
    }

    /// Check a completed transfer.
    fn note(&self, rig: &mut Rig, transfer: &Transfer) -> Result<(), BenchError> {
        if transfer.status != Status::Ok {
            let (status, errno) = (transfer.status, transfer.errno);
            return Err(BenchError::Odd(format!("a transfer ended with {status:?} (error {errno})")));
        }
        let page = u64::from(transfer.key.region) * self.pages_a_region + u64::from(transfer.key.slot);
        match transfer.kind {
            IoKind::Write => {
                let part = &transfer.parts[0];
                rig.kept[page as usize] = Kept { crc: part.crc, tag: part.tag, salt: transfer.salt };
            }
            IoKind::Read if transfer.parts[0].ok => {}
            IoKind::Read => return Err(BenchError::Odd(format!("checksum mismatch in page {page}"))),
        }
        Ok(())
    }
}

fn send(address: &Address<DiskMessage>, message: DiskMessage) -> Result<(), BenchError> {
    address.send(message).map_err(|gone| failed("send the disk a transfer", std::io::Error::other(gone)))
}
