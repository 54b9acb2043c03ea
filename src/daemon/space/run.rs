//! The core thread: work while there is any, spin a little, then sleep until an engine signals, a message arrives, a session ends
//! or a deadline is due.

use super::clock::Clock;
use super::messages::{Reconfigure, Report, SpaceMessage, Spec};
use super::nvme::Nvme;
use super::serve::{Finish, Space};
use super::sleep::Sleeper;
use super::status::SpaceStatus;
use crate::attach::{Refusal, refuse};
use crate::error::Error;
use kvtide_rt::mail::{Address, Mailbox, mailbox};
use kvtide_rt::published::{Published, Publisher, published};
use kvtide_tiering::Core;
use kvtide_tiering::api::Event;
use kvtide_wire::os::spin::{Spin, Turns, short_turns};
use kvtide_wire::status::Status;
use std::thread::JoinHandle;
use std::time::Duration;

/// Mailbox size of a core thread.
const MESSAGES_MAX: usize = 256;
/// Interval at which a busy thread checks sockets, eventfds and processes.
const LOOK_US: u64 = 1_000;
/// Time slice requested for the thread when its core is contended: engines wait for it, and its rounds take microseconds.
const TURN: Duration = Duration::from_micros(100);
/// Maximum checks of the sockets before idle memory is returned: each check reports a limited number, and there may be more
/// sessions.
const LOOKS: usize = 16;

/// A running core thread.
#[derive(Debug)]
pub(crate) struct SpaceThread {
    /// Address for messages to it.
    pub address: Address<SpaceMessage>,
    /// Its published status.
    pub figures: Published<SpaceStatus>,
    /// The thread.
    pub thread: JoinHandle<()>,
}

impl SpaceThread {
    /// Create the mailbox of a space that [`SpaceThread::spawn`] will start.
    pub fn mailbox() -> Result<(Address<SpaceMessage>, Mailbox<SpaceMessage>), Error> {
        mailbox(MESSAGES_MAX).map_err(|source| Error::Wire { action: "create a space's mailbox", source })
    }

    /// Start the thread.
    pub fn spawn(
        spec: Spec,
        address: Address<SpaceMessage>,
        messages: Mailbox<SpaceMessage>,
    ) -> Result<SpaceThread, Error> {
        let nvme = Nvme::new(spec.number, &spec.config, &spec.disks)?;
        let sleeper = Sleeper::new(&messages, nvme.bell(), nvme.log_bell())?;
        let name = format!("kvtide-space-{}", spec.number);
        let (publisher, figures) = published();
        let ring = address.waker();
        publisher.rung_by(move || ring.wake());
        let thread = std::thread::Builder::new().name(name);
        let thread = thread.spawn(move || begin(spec, &messages, nvme, sleeper, publisher));
        let thread = thread.map_err(|e| Error::system("start a space's core thread", e))?;
        Ok(SpaceThread { address, figures, thread })
    }
}

/// Reports the end of the thread to the control thread, also after a panic.
struct EndReport {
    number: u32,
    control: Address<Report>,
}

impl Drop for EndReport {
    fn drop(&mut self) {
        // On failure the control thread has ended too.
        let _ = self.control.send(Report::Ended { space: self.number });
    }
}

fn begin(spec: Spec, messages: &Mailbox<SpaceMessage>, nvme: Nvme, sleeper: Sleeper, figures: Publisher<SpaceStatus>) {
    let end_report = EndReport { number: spec.number, control: spec.control.clone() };
    let core = match Core::new(spec.config.clone()) {
        Ok(core) => core,
        Err(error) => return refuse_all(messages, &spec, &error.to_string()),
    };
    let (number, node, spin) = (spec.number, spec.node.clone(), spec.spin);
    tracing::info!("space {number} ({}) of domain {} started", spec.name, spec.domain);
    if let Err(error) = short_turns(TURN) {
        tracing::warn!("space {number}: cannot set a short time slice for the core thread: {error}");
    }
    let space = Space::new(spec, core, nvme, figures);
    let mut thread = CoreThread { space, messages, sleeper, clock: Clock::start(), reclaim: None };
    let finish = thread.run(spin);
    thread.space.finish(finish, messages, &node);
    tracing::info!("space {number} stopped");
    drop(thread); // sessions are closed before the control thread gets the report
    drop(end_report);
}

/// Refuse all waiting attach requests and end, because the core rejects the configuration.
fn refuse_all(messages: &Mailbox<SpaceMessage>, spec: &Spec, why: &str) {
    tracing::error!("space {}: cannot start: {why}", spec.number);
    let refusal = Refusal { status: Status::Limit, text: format!("cannot create the space: {why}") };
    // A space is started for an attach request, which follows at once.
    let mut next = messages.wait();
    while let Some(message) = next {
        if let SpaceMessage::Attach(request) = message {
            refuse(&spec.registry, &request.socket, request.peer, &refusal);
        }
        next = messages.take();
    }
}

/// Owns when the thread works, looks at its sockets and sleeps; what it does is up to its space.
struct CoreThread<'a> {
    space: Space,
    messages: &'a Mailbox<SpaceMessage>,
    sleeper: Sleeper,
    clock: Clock,
    /// The node requested a slab; true: also one with cached blocks.
    reclaim: Option<bool>,
}

impl CoreThread<'_> {
    fn run(&mut self, spin: Duration) -> Finish {
        let (mut worked_us, mut looked_us) = (0, 0);
        let mut turns = Turns::begin();
        let mut spin = Spin::new(spin);
        loop {
            let now_us = self.clock.now_us();
            let mut worked = self.space.round(now_us);
            while let Some(message) = self.messages.take() {
                worked = true;
                if self.read(now_us, message) {
                    return Finish::Vacant;
                }
            }
            // Checked in every round: an engine that keeps sending requests must not delay the end.
            if let Some(finish) = self.space.drained(now_us) {
                return finish;
            }
            self.space.watch(&mut self.sleeper);
            if let Some(cached) = self.reclaim.take() {
                worked = true;
                self.give_back(now_us, cached);
            }
            self.space.end_round(worked);
            if worked {
                worked_us = now_us;
            }
            if worked || spin.pause(Duration::from_micros(now_us.saturating_sub(worked_us))) {
                if now_us - looked_us >= LOOK_US {
                    looked_us = now_us;
                    self.sleeper.look(Some(Duration::ZERO));
                    self.handle(now_us);
                }
                turns.pass();
                continue;
            }
            self.rest(now_us);
            turns = Turns::begin();
        }
    }

    /// Handle a message. Return true if the thread shall end.
    fn read(&mut self, now_us: u64, message: SpaceMessage) -> bool {
        let space = &mut self.space;
        match message {
            SpaceMessage::Attach(request) => space.attach_or_queue(now_us, *request),
            SpaceMessage::Granted(granted) => space.granted(now_us, granted),
            SpaceMessage::Refused { class } => space.tell(now_us, Event::SlabRefused { class }),
            // Handled later in the round, after the sessions that have left are ended.
            SpaceMessage::Reclaim { cached } => self.reclaim = Some(cached),
            SpaceMessage::Freed => space.tell(now_us, Event::Freed),
            SpaceMessage::DiskGranted(region) => space.disk_granted(now_us, &region),
            SpaceMessage::Adopted { regions, other_identity } => space.adopt(now_us, regions, other_identity),
            SpaceMessage::DiskGone { slab } => space.disk_gone(now_us, slab),
            SpaceMessage::DiskRefused => space.disk_refused(now_us),
            SpaceMessage::Rate { nvme_bytes_per_day } => space.limit_writes(now_us, nvme_bytes_per_day),
            SpaceMessage::Reconfigure(new) => {
                let Reconfigure { policy, host_bytes_max, nvme_bytes_max, done } = *new;
                space.reconfigure(now_us, policy, (host_bytes_max, nvme_bytes_max));
                // The receiver may have stopped waiting.
                let _ = done.try_send(());
            }
            SpaceMessage::Drain { until } => space.drain(now_us, self.clock.of(until)),
            SpaceMessage::Retire => return space.retire(now_us),
            SpaceMessage::Operate(asked) => space.operate(now_us, *asked),
            SpaceMessage::Record(written) => {
                space.record();
                // The receiver may have stopped waiting.
                let _ = written.try_send(());
            }
        }
        false
    }

    /// Sleep, unless work arrives at the last moment.
    fn rest(&mut self, now_us: u64) {
        if self.space.dismiss_relays() {
            return; // the next round ends them
        }
        let timeout = self.space.timeout(now_us);
        self.messages.announce();
        if self.space.announce(timeout) && self.messages.is_empty() {
            self.sleeper.look(timeout);
        }
        self.space.awake();
        self.messages.awake();
        self.messages.quiet();
        self.handle(self.clock.now_us());
    }

    /// Handle the events seen by the sleeper.
    fn handle(&mut self, now_us: u64) {
        while let Some(wake) = self.sleeper.next() {
            self.space.woken(now_us, wake);
        }
    }

    /// Return memory to the node, after all that the sockets report.
    fn give_back(&mut self, now_us: u64, cached: bool) {
        for _ in 0..LOOKS {
            self.sleeper.look(Some(Duration::ZERO));
            if !self.sleeper.has_seen() {
                break;
            }
            self.handle(now_us);
        }
        self.space.give_back(now_us, cached);
    }
}
