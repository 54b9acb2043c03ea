//! Time added to a decode step when everything is resident: the calls of the lane, and the work they enqueue.

use super::super::engine::{Model, TIMEOUT, trying};
use super::super::report::Target;
use super::super::{BenchError, median};
use super::Place;
use super::figures::Figures;
use crate::private_daemon::{Options as DaemonOptions, PrivateDaemon};
use kvtide_client::client::{Lane, Pass, StepSeq};
use kvtide_client::cuda::Event;
use kvtide_wire::status::Status;
use std::time::Instant;

/// Maximum microseconds.
const TARGET: Target = Target::AtMost(10.0);
const SEQS: u64 = 8;
/// Blocks of each sequence.
const BLOCKS: u64 = 8;
/// Rounds; each has steps of every kind in turn.
const ROUNDS: usize = 20;
const STEPS: usize = 50;

pub(super) fn measure(place: &Place, figures: &mut Figures) -> Result<(), BenchError> {
    let model = Model::of(figures.tiny());
    let rounds = if figures.tiny() { 2 } else { ROUNDS };
    let bytes = model.bytes(SEQS * BLOCKS * 2).next_multiple_of(16 << 20);
    let options = DaemonOptions { host_bytes: Some(bytes), slab_bytes: Some(bytes / 4), ..DaemonOptions::default() };
    let mut daemon = PrivateDaemon::start(&options)?;
    let (mut engine, stream) = place.attach(daemon.socket(), "step", model, SEQS * BLOCKS + 8)?;
    let tokens = BLOCKS * u64::from(model.page_tokens);
    let mut step = vec![];
    for _ in 0..SEQS {
        step.push(StepSeq { seq: engine.prefilled(tokens)?, tokens });
    }
    let done = Event::new(stream.device())?;
    let mut times: [Vec<f64>; Kind::ALL.len()] = Default::default();
    for round in 0..=rounds {
        for (kind, times) in Kind::ALL.into_iter().zip(&mut times) {
            for _ in 0..STEPS {
                let began = Instant::now();
                if !kind.enqueue(&mut engine.lane, &step, model.planes)? {
                    break;
                }
                // All kinds wait for the stream, so that the time includes work enqueued by kvtide.
                stream.record(&done)?;
                if !done.wait_until(Instant::now() + TIMEOUT)? {
                    return Err(BenchError::Odd("the stream did not become idle".into()));
                }
                trying("pass a step", engine.lane.check())?;
                // The first round loads code and warms up.
                if round > 0 {
                    times.push(began.elapsed().as_secs_f64() * 1e6);
                }
            }
        }
    }
    daemon.stop()?;
    let [without, boundaries, gates] = times.map(|times| (!times.is_empty()).then(|| median(&times)));
    let on = format!("{SEQS} sequences, {} planes, all resident", model.planes);
    let added = |with: Option<f64>| Some((with? - without?).max(0.0));
    if let Some(us) = added(boundaries) {
        figures.judged("step_added_us", format!("added time of a step: {on}"), (us, "us"), TARGET);
    }
    if let Some(us) = added(gates) {
        let what = format!("added time of a step with gates, one kernel for each plane: {on}");
        figures.plain("gates_added_us", what, us, "us");
    } else {
        figures.on("gates", "not measured: the device's streams cannot wait for memory words");
    }
    Ok(())
}

/// A step of the measurement, by what kvtide does in it.
#[derive(Clone, Copy)]
enum Kind {
    /// Nothing.
    Without,
    Boundaries,
    /// Gates outside of a graph: a kernel for each plane.
    Gates,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Without, Kind::Boundaries, Kind::Gates];

    /// Return false if the device's streams cannot wait, which gates need.
    fn enqueue(self, lane: &mut Lane, step: &[StepSeq], planes: u16) -> Result<bool, BenchError> {
        if let Kind::Without = self {
            return Ok(true);
        }
        trying("begin a step", lane.begin(step))?;
        if let Kind::Gates = self {
            match lane.open_gates() {
                Err(error) if error.status() == Status::State => {
                    trying("end a step", lane.end())?;
                    return Ok(false);
                }
                opened => trying("open the gates", opened)?,
            }
        }
        for plane in 0..planes {
            if let Kind::Gates = self {
                trying("enqueue a gate", lane.gate(plane))?;
            } else if trying("cross a boundary", lane.boundary(plane))? != Pass::All {
                return Err(BenchError::Odd(format!("missing pages in plane {plane}")));
            }
        }
        trying("end a step", lane.end())?;
        Ok(true)
    }
}
