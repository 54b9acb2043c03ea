//! A disk's start, in steps that leave everything as it was until all disks were found fit, and its end.

use super::refuse;
use super::run::Runner;
use super::{Disk, DiskFigures, DiskLetter, LETTERS, STATUS, Tell, check, engine};
use crate::error::Error;
use crate::io::code::Keyring;
use crate::io::engine::Engine;
use crate::io::error::DiskError;
use crate::io::health::{Health, errno_text};
use crate::io::log;
use crate::io::log::{BoxedStorage, Desk, DiskLog, LogFile, LogThread, OpenLog};
use crate::io::probe::{Mode, probe};
use crate::io::settings::Settings;
use crate::io::stats::DiskStatus;
use crate::io::store::{Found, Store};
use crate::mail::mailbox;
use crate::published::published;
use crossbeam::channel::bounded;
use kvtide_tiering::log::Recovered;
use kvtide_wire::os::spin::short_turns;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Its turn on a core that others want too.
const TURN: Duration = Duration::from_micros(100);

/// A disk that was checked, locked, laid out and read, and does nothing yet; or one that is missing.
pub(crate) struct OpenDisk {
    settings: Settings,
    state: State,
}

enum State {
    Open(Box<Opened>),
    /// What its opening came to.
    Absent(i32),
}

struct Opened {
    store: Store,
    mode: Mode,
    keyring: Arc<Keyring>,
    log: DiskLog,
    recovered: Recovered,
    desk: Desk,
    /// Regions of which something is recorded.
    held: Vec<u32>,
}

/// Makes an engine of another one.
pub(in crate::io) type Wrap = Box<dyn FnOnce(Box<dyn Engine>) -> Box<dyn Engine> + Send>;

/// Puts something between a disk and its device: for faults.
pub(in crate::io) struct Seams {
    /// Makes an engine of the real one.
    pub engine: Wrap,
}

/// Opens disks, in order: first all are looked at, and one that must not be used stops it before anything was written anywhere;
/// then each is laid out and its log is read. `progress` is told how far that is.
///
/// A disk that is missing or does not answer is left out of service, as long as another is left.
///
/// # Errors
/// A disk must not be used, or none is left.
pub(crate) fn open_all(settings: &[Settings], progress: &mut dyn FnMut(&str)) -> Result<Vec<OpenDisk>, Error> {
    let mut looked = Vec::new();
    let mut first = None;
    for settings in settings {
        check(settings)?;
        looked.push(or_absent(look(settings), settings, &mut first)?);
    }
    let mut disks = Vec::new();
    for (settings, looked) in settings.iter().zip(looked) {
        let opened = match looked {
            Ok(found) => {
                let opened = Opened::new(settings, found, &mut |file| Box::new(file), progress);
                or_absent(opened, settings, &mut first)?
            }
            Err(errno) => Err(errno),
        };
        let state = opened.map_or_else(State::Absent, |opened| State::Open(Box::new(opened)));
        disks.push(OpenDisk { settings: settings.clone(), state });
    }
    match first {
        Some(error) if disks.iter().all(|disk| matches!(disk.state, State::Absent(_))) => Err(error.into()),
        _ => Ok(disks),
    }
}

/// A disk that is missing is an error number, and the first such error is kept; one that must not be used is an error.
fn or_absent<T>(
    opened: Result<T, DiskError>,
    settings: &Settings,
    first: &mut Option<DiskError>,
) -> Result<Result<T, i32>, DiskError> {
    match opened {
        Ok(opened) => Ok(Ok(opened)),
        Err(error) => match error.fault() {
            Some(errno) => {
                tracing::error!("disk {}: out of service: {error}", settings.number);
                first.get_or_insert(error);
                Ok(Err(errno))
            }
            None => Err(error),
        },
    }
}

/// What is there, and its keys. Nothing is changed.
fn look(settings: &Settings) -> Result<(Found, Arc<Keyring>), DiskError> {
    let found = Found::look(settings)?;
    let keyring = found.keys(settings)?;
    Ok((found, keyring))
}

impl Opened {
    fn new(
        settings: &Settings,
        (found, keyring): (Found, Arc<Keyring>),
        storage: &mut dyn FnMut(LogFile) -> BoxedStorage,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Opened, DiskError> {
        let path = settings.place.path();
        let mut store = found.lay_out(settings)?;
        let mode = probe(settings, &store)?;
        let file = LogFile::new(&store.file).map_err(|e| DiskError::os("take memory for the log of", path, e))?;
        let opened = log::open(settings, &store, &keyring, storage(file), progress)?;
        store.learn(opened.recovered.run).map_err(|e| DiskError::os("write the superblock of", path, e))?;
        let held = opened.recovered.slabs.iter().map(|slab| slab.header.region).collect();
        let OpenLog { log, recovered, desk } = opened;
        Ok(Opened { store, mode, keyring, log, recovered, desk, held })
    }
}

impl OpenDisk {
    /// How its bytes will move, for example `io_uring+direct+fixed`.
    pub fn mode(&self) -> &str {
        match &self.state {
            State::Open(opened) => &opened.mode.text,
            State::Absent(_) => "none",
        }
    }

    /// Its regions.
    pub fn regions(&self) -> u32 {
        match &self.state {
            State::Open(opened) => opened.store.superblock.regions,
            State::Absent(_) => 0,
        }
    }

    /// What its log held; nothing the second time.
    pub fn take_recovered(&mut self) -> Recovered {
        match &mut self.state {
            State::Open(opened) => std::mem::take(&mut opened.recovered),
            State::Absent(_) => Recovered::default(),
        }
    }

    /// Starts its threads.
    pub fn start(self, tell: Tell) -> Result<DiskThread, Error> {
        self.start_with(tell, Seams { engine: Box::new(|engine| engine) })
    }

    /// Starts its threads over an engine that is made of the real one: the seam for faults.
    pub(in crate::io) fn start_with(self, tell: Tell, seams: Seams) -> Result<DiskThread, Error> {
        let OpenDisk { settings, state } = self;
        let health = Arc::new(Health::new(&settings, tell));
        match state {
            State::Open(opened) => start(settings, *opened, health, seams),
            State::Absent(errno) => absent(&settings, health, errno),
        }
    }
}

fn start(settings: Settings, opened: Opened, health: Arc<Health>, seams: Seams) -> Result<DiskThread, Error> {
    let Opened { store, mode, keyring, log, recovered: _, desk, held } = opened;
    let wire = |source| Error::Wire { action: "make a disk's mailbox", source };
    let (letters, mailbox) = mailbox(LETTERS).map_err(wire)?;
    let (block, desk) = (store.superblock, Arc::new(desk));
    let log = LogThread::start(&settings, (log, Arc::clone(&keyring)), &store, &held, &health, &desk)?;
    let disk = Disk {
        number: settings.number,
        letters,
        log: log.letters(),
        region_bytes: block.region_bytes,
        regions: block.regions,
        begin: block.regions_offset,
        starts: block.starts,
        codec: settings.codec,
        keyring: Some(keyring),
    };
    let (started, start) = bounded(1);
    let path = settings.place.path().to_owned();
    let builder = std::thread::Builder::new().name(format!("kvtide-disk-{}", settings.number));
    let (publisher, published) = published();
    let (nudge, ring) = (disk.letters.nudge(), disk.letters.nudge());
    publisher.rung_by(move || ring.nudge());
    let figures = DiskFigures { published, desk: Some(Arc::clone(&desk)), health: Arc::clone(&health) };
    let its_health = Arc::clone(&health);
    let thread = builder.spawn(move || {
        // Its rounds are short, and core threads wait for it.
        if let Err(error) = short_turns(TURN) {
            tracing::warn!("disk {}: its thread waits its turn like any other: {error}", settings.number);
        }
        // A ring belongs to the thread that makes it.
        let runner = engine(&settings, &store, &mode, &mailbox).and_then(|engine| {
            Runner::new((seams.engine)(engine), &settings, store, mode, mailbox, (its_health, desk), (nudge, publisher))
        });
        let (mut runner, told) = match runner {
            Ok(runner) => (Some(runner), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // Whoever started the thread waits for this.
        let _ = started.send(told);
        if let Some(runner) = &mut runner
            && catch_unwind(AssertUnwindSafe(|| runner.run())).is_err()
        {
            runner.fail_for_good(libc::EOWNERDEAD, "its I/O thread panicked");
            runner.refuse_all(libc::EOWNERDEAD);
        }
    });
    let thread = thread.map_err(|e| Error::system("start a disk's thread", e))?;
    let told = start.recv().unwrap_or_else(|_| Err(io::Error::other("its thread ended at once")));
    told.map_err(|e| DiskError::os("start the I/O of", &path, e))?;
    Ok(DiskThread { disk, thread, log: Some(log), health, figures })
}

/// The thread of a disk that is missing: whoever writes to it is told so.
fn absent(settings: &Settings, health: Arc<Health>, errno: i32) -> Result<DiskThread, Error> {
    let wire = |source| Error::Wire { action: "make a disk's mailbox", source };
    let (letters, inbox) = mailbox(LETTERS).map_err(wire)?;
    // It has no region, so nobody has a note for it.
    let (log, _) = mailbox(1).map_err(wire)?;
    let number = settings.number;
    let disk = Disk {
        number,
        letters,
        log,
        region_bytes: settings.region_bytes,
        regions: 0,
        begin: 0,
        starts: 0,
        codec: settings.codec,
        keyring: None,
    };
    health.give_up(errno, format!("it cannot be opened: {}", errno_text(errno)));
    let status = DiskStatus {
        number,
        dir: settings.place.path().to_owned(),
        mode: "none".into(),
        region_bytes: settings.region_bytes,
        out_of_service: Some(errno),
        why_out: health.why().to_owned(),
        ..DiskStatus::default()
    };
    let builder = std::thread::Builder::new().name(format!("kvtide-disk-{number}"));
    let (mut publisher, published) = published();
    let thread = builder.spawn(move || {
        publisher.publish(status);
        refuse::all(&inbox, &mut publisher, errno);
    });
    let thread = thread.map_err(|e| Error::system("start a disk's thread", e))?;
    let figures = DiskFigures { published, desk: None, health: Arc::clone(&health) };
    Ok(DiskThread { disk, thread, log: None, health, figures })
}

/// A disk's running threads.
#[derive(Debug)]
pub(crate) struct DiskThread {
    disk: Disk,
    thread: JoinHandle<()>,
    log: Option<LogThread>,
    health: Arc<Health>,
    figures: DiskFigures,
}

impl DiskThread {
    /// Checks, locks and lays out the disk's file, reads its log, and finds out what works there. Nothing is started, and a file
    /// that is refused is not changed.
    pub fn open(settings: &Settings) -> Result<OpenDisk, Error> {
        DiskThread::open_with(settings, &mut |file| Box::new(file))
    }

    /// The same over a storage for the log that is made of the real one: the seam for faults.
    pub(in crate::io) fn open_with(
        settings: &Settings,
        storage: &mut dyn FnMut(LogFile) -> BoxedStorage,
    ) -> Result<OpenDisk, Error> {
        check(settings)?;
        let opened = Opened::new(settings, look(settings)?, storage, &mut |_| ())?;
        Ok(OpenDisk { settings: settings.clone(), state: State::Open(Box::new(opened)) })
    }

    /// The disk, for those who send it transfers and notes.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Its figures, for who reads them later.
    pub fn figures(&self) -> &DiskFigures {
        &self.figures
    }

    /// How it stands now; nothing if its thread does not go round, which it should within microseconds whatever the device does.
    pub fn status(&self) -> Option<DiskStatus> {
        let ticket = self.figures.request();
        let reading = self.figures.read(ticket, Instant::now() + STATUS)?;
        reading.snapshot.filter(|_| reading.age.is_zero()).map(Arc::unwrap_or_clone)
    }

    /// Ends the threads, after all who send them transfers and notes; waits for the device within a bound.
    pub fn end(self) {
        if let Some(log) = self.log {
            log.end(&self.health);
        }
        if self.disk.letters.send(DiskLetter::End).is_err() || self.thread.join().is_err() {
            tracing::error!("{}: its thread had ended before", self.health.name());
        }
    }
}
