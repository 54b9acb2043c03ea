//! Time added to a decode step when everything is resident: the calls of the lane, and the work they enqueue.

use super::super::BenchError;
use super::super::engine::{TIMEOUT, trying};
use super::super::report::Target;
use super::Place;
use super::figures::Figures;
use super::session::{Model, Session};
use crate::private_daemon::{Options as DaemonOptions, PrivateDaemon};
use kvtide_client::client::{Pass, StepSeq};
use kvtide_client::cuda::Event;
use std::time::Instant;

/// Maximum microseconds.
const TARGET: Target = Target::AtMost(10.0);
const SEQS: u64 = 8;
/// Blocks of each sequence.
const BLOCKS: u64 = 8;
/// Rounds; each has steps with and without kvtide.
const ROUNDS: usize = 20;
const STEPS: usize = 50;

pub(super) fn measure(place: &Place, figures: &mut Figures) -> Result<(), BenchError> {
    let model = Model::of(figures.tiny());
    let rounds = if figures.tiny() { 2 } else { ROUNDS };
    let bytes = model.bytes(SEQS * BLOCKS * 2).next_multiple_of(16 << 20);
    let options = DaemonOptions { host_bytes: Some(bytes), slab_bytes: Some(bytes / 4), ..DaemonOptions::default() };
    let mut daemon = PrivateDaemon::start(&options)?;
    let mut session = Session::attach(daemon.socket(), "step", model, SEQS * BLOCKS + 8, place.engine()?)?;
    let tokens = BLOCKS * u64::from(model.page_tokens);
    let mut step = vec![];
    for _ in 0..SEQS {
        step.push(StepSeq { seq: session.prefilled(tokens)?, tokens });
    }
    let done = Event::new(session.stream.device())?;
    let (mut with, mut without) = (vec![], vec![]);
    for round in 0..=rounds {
        for kvtide in [true, false] {
            for _ in 0..STEPS {
                let began = Instant::now();
                if kvtide {
                    trying("begin a step", session.lane.begin(&step))?;
                    for plane in 0..model.planes {
                        let Pass::All = trying("cross a boundary", session.lane.boundary(plane))? else {
                            return Err(BenchError::Odd(format!("missing pages in plane {plane}")));
                        };
                    }
                    trying("end a step", session.lane.end())?;
                }
                // Both variants wait for the stream, so that the time includes work enqueued by kvtide.
                session.stream.record(&done)?;
                if !done.wait_until(Instant::now() + TIMEOUT)? {
                    return Err(BenchError::Odd("the stream did not become idle".into()));
                }
                // The first round loads code and warms up.
                if round > 0 {
                    if kvtide { &mut with } else { &mut without }.push(began.elapsed().as_secs_f64() * 1e6);
                }
            }
        }
    }
    daemon.stop()?;
    let [with, without] = [&mut with, &mut without].map(|times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    let what = format!("added time of a step: {SEQS} sequences, {} planes, all resident", model.planes);
    figures.judged("step_added_us", what, ((with - without).max(0.0), "us"), TARGET);
    Ok(())
}
