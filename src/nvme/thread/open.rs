//! Start and stop of a disk. Nothing is changed on any disk before all disks passed their checks.

use super::refuse;
use super::run::Runner;
use super::{Disk, DiskFigures, DiskMessage, MESSAGES_MAX, STATUS, Tell, check, engine};
use crate::Error;
use crate::code::Keyring;
use crate::engine::Engine;
use crate::error::DiskError;
use crate::health::{Health, errno_text};
use crate::log;
use crate::log::{BoxedStorage, DiskLog, LogFile, LogThread, OpenLog, SharedLogStatus};
use crate::probe::{Mode, probe};
use crate::settings::Settings;
use crate::stats::DiskStatus;
use crate::store::{Found, Store};
use crossbeam::channel::bounded;
use kvtide_format::log::Recovered;
use kvtide_rt::mail::mailbox;
use kvtide_rt::published::published;
use kvtide_wire::os::spin::short_turns;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time slice requested for the thread when its core is contended.
const TURN: Duration = Duration::from_micros(100);

/// A disk that was checked, locked, laid out and read, but has no threads yet; or a missing disk.
pub struct OpenDisk {
    settings: Settings,
    state: State,
}

enum State {
    Open(Box<Opened>),
    /// The error number of the failed open.
    Absent(i32),
}

struct Opened {
    store: Store,
    mode: Mode,
    keyring: Arc<Keyring>,
    log: DiskLog,
    recovered: Recovered,
    log_status: SharedLogStatus,
    /// Regions that have records.
    held: Vec<u32>,
}

/// Wraps an engine.
pub(crate) type Wrap = Box<dyn FnOnce(Box<dyn Engine>) -> Box<dyn Engine> + Send>;

/// Test hooks between a disk and its device, to inject faults.
pub(crate) struct Seams {
    /// Wraps the real engine.
    pub engine: Wrap,
}

/// Open disks, in order. First all are checked; a disk that must not be used fails the call before anything is written to any of
/// them. Then each is laid out and its log is read. `progress` gets reports meanwhile.
///
/// A disk that is missing or broken is taken out of service, if at least one other disk works.
///
/// # Errors
/// A disk must not be used, or no disk works.
pub fn open_all(settings: &[Settings], progress: &mut dyn FnMut(&str)) -> Result<Vec<OpenDisk>, Error> {
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

/// A disk that cannot be used as it is.
#[derive(Debug)]
pub struct Obstacle {
    /// Index of its settings.
    pub index: usize,
    /// The error of [`open_all`].
    pub error: DiskError,
    /// [`open_all`] fails because of it. Otherwise the disk is out of service.
    pub stops: bool,
}

/// Check disks as [`open_all`] does before it changes anything. Nothing is created, changed or locked. `made`: directories that the
/// caller makes before it opens the disks.
#[must_use]
pub fn check_all(settings: &[Settings], made: &[&Path]) -> Vec<Obstacle> {
    let checked = |settings: &Settings| check(settings).and_then(|()| Found::check(settings, made)).err();
    let failed: Vec<_> =
        settings.iter().enumerate().filter_map(|(index, settings)| Some((index, checked(settings)?))).collect();
    let none_works = failed.len() == settings.len() && failed.iter().all(|(_, error)| error.fault().is_some());
    let obstacle = |(index, error): (usize, DiskError)| {
        let stops = none_works || error.fault().is_none();
        Obstacle { index, error, stops }
    };
    failed.into_iter().map(obstacle).collect()
}

/// Convert the error of a missing disk to its error number, and keep the first such error. Other errors are returned.
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

/// Check the disk and read its keys. Nothing is changed.
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
        let file = LogFile::new(&store.file).map_err(|e| DiskError::os("allocate memory for the log of", path, e))?;
        let opened = log::open(settings, &store, &keyring, storage(file), progress)?;
        store.learn(opened.recovered.run).map_err(|e| DiskError::os("write the superblock of", path, e))?;
        let held = opened.recovered.slabs.iter().map(|slab| slab.header.region).collect();
        let OpenLog { log, recovered, log_status } = opened;
        Ok(Opened { store, mode, keyring, log, recovered, log_status, held })
    }
}

impl OpenDisk {
    /// Return the I/O mode, for example `io_uring+direct+fixed`.
    pub fn mode(&self) -> &str {
        match &self.state {
            State::Open(opened) => &opened.mode.text,
            State::Absent(_) => "none",
        }
    }

    /// Return the number of regions.
    pub fn regions(&self) -> u32 {
        match &self.state {
            State::Open(opened) => opened.store.superblock.regions,
            State::Absent(_) => 0,
        }
    }

    /// Take the recovered slabs; empty the second time.
    pub fn take_recovered(&mut self) -> Recovered {
        match &mut self.state {
            State::Open(opened) => std::mem::take(&mut opened.recovered),
            State::Absent(_) => Recovered::default(),
        }
    }

    /// Start its threads.
    pub fn start(self, tell: Tell) -> Result<DiskThread, Error> {
        self.start_with(tell, Seams { engine: Box::new(|engine| engine) })
    }

    /// Start its threads with a wrapped engine, for tests.
    pub(crate) fn start_with(self, tell: Tell, seams: Seams) -> Result<DiskThread, Error> {
        let OpenDisk { settings, state } = self;
        let health = Arc::new(Health::new(&settings, tell));
        match state {
            State::Open(opened) => start(settings, *opened, health, seams),
            State::Absent(errno) => absent(&settings, health, errno),
        }
    }
}

fn start(settings: Settings, opened: Opened, health: Arc<Health>, seams: Seams) -> Result<DiskThread, Error> {
    let Opened { store, mode, keyring, log, recovered: _, log_status, held } = opened;
    let wire = |source| Error::Wire { action: "create a disk's mailbox", source };
    let (address, mailbox) = mailbox(MESSAGES_MAX).map_err(wire)?;
    let (block, log_status) = (store.superblock, Arc::new(log_status));
    let log = LogThread::start(&settings, (log, Arc::clone(&keyring)), &store, &held, &health, &log_status)?;
    let disk = Disk {
        number: settings.number,
        address,
        log: log.address(),
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
    let (waker, ring) = (disk.address.waker(), disk.address.waker());
    publisher.rung_by(move || ring.wake());
    let figures = DiskFigures { published, log_status: Some(Arc::clone(&log_status)), health: Arc::clone(&health) };
    let its_health = Arc::clone(&health);
    let thread = builder.spawn(move || {
        // Its rounds are short, and core threads wait for it.
        if let Err(error) = short_turns(TURN) {
            tracing::warn!("disk {}: cannot set a short time slice for the I/O thread: {error}", settings.number);
        }
        // A ring belongs to the thread that creates it.
        let runner = engine(&settings, &store, &mode, &mailbox).and_then(|engine| {
            Runner::new(
                (seams.engine)(engine),
                &settings,
                store,
                mode,
                mailbox,
                (its_health, log_status),
                (waker, publisher),
            )
        });
        let (mut runner, told) = match runner {
            Ok(runner) => (Some(runner), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // The starter of the thread waits for this.
        let _ = started.send(told);
        if let Some(runner) = &mut runner
            && catch_unwind(AssertUnwindSafe(|| runner.run())).is_err()
        {
            runner.fail_for_good(libc::EOWNERDEAD, "the I/O thread panicked");
            runner.refuse_all(libc::EOWNERDEAD);
        }
    });
    let thread = thread.map_err(|e| Error::System { action: "start a disk's thread", source: e })?;
    let told = start.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended during its start")));
    told.map_err(|e| DiskError::os("start the I/O of", &path, e))?;
    Ok(DiskThread { disk, thread, log: Some(log), health, figures })
}

/// Start the thread of a missing disk, which refuses all transfers.
fn absent(settings: &Settings, health: Arc<Health>, errno: i32) -> Result<DiskThread, Error> {
    let wire = |source| Error::Wire { action: "create a disk's mailbox", source };
    let (address, inbox) = mailbox(MESSAGES_MAX).map_err(wire)?;
    // It has no regions, so no log requests are sent.
    let (log, _) = mailbox(1).map_err(wire)?;
    let number = settings.number;
    let disk = Disk {
        number,
        address,
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
    let thread = thread.map_err(|e| Error::System { action: "start a disk's thread", source: e })?;
    let figures = DiskFigures { published, log_status: None, health: Arc::clone(&health) };
    Ok(DiskThread { disk, thread, log: None, health, figures })
}

/// Running threads of a disk.
#[derive(Debug)]
pub struct DiskThread {
    disk: Disk,
    thread: JoinHandle<()>,
    log: Option<LogThread>,
    health: Arc<Health>,
    figures: DiskFigures,
}

impl DiskThread {
    /// Check, lock and lay out the disk's file, read its log, and probe the I/O features. No thread is started; a rejected file is
    /// not changed.
    pub fn open(settings: &Settings) -> Result<OpenDisk, Error> {
        DiskThread::open_with(settings, &mut |file| Box::new(file))
    }

    /// The same with wrapped log storage, for tests.
    pub(crate) fn open_with(
        settings: &Settings,
        storage: &mut dyn FnMut(LogFile) -> BoxedStorage,
    ) -> Result<OpenDisk, Error> {
        check(settings)?;
        let opened = Opened::new(settings, look(settings)?, storage, &mut |_| ())?;
        Ok(OpenDisk { settings: settings.clone(), state: State::Open(Box::new(opened)) })
    }

    /// Return the disk's handle, for senders of transfers and log requests.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Return the published stats.
    pub fn figures(&self) -> &DiskFigures {
        &self.figures
    }

    /// Return the current status; None if its thread hangs. It should answer within microseconds, whatever the device does.
    pub fn status(&self) -> Option<DiskStatus> {
        let ticket = self.figures.request();
        let reading = self.figures.read(ticket, Instant::now() + STATUS)?;
        reading.snapshot.filter(|_| reading.age.is_zero()).map(Arc::unwrap_or_clone)
    }

    /// Stop the threads; all senders of transfers and log requests must have stopped. Waits for the device within a bound.
    pub fn end(self) {
        if let Some(log) = self.log {
            log.end(&self.health);
        }
        if self.disk.address.send(DiskMessage::End).is_err() || self.thread.join().is_err() {
            tracing::error!("{}: the I/O thread had already ended", self.health.name());
        }
    }
}
