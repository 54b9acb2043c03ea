//! Steps in which everything is resident: page table lookups, and the agent's work per plane.

use super::{BenchError, Engine, PAGE_TOKENS, percentile, trying};
use kvtide_client::client::{Pass, StepSeq};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const PLANES: u16 = 32;
const SEQS: u32 = 4;
const BLOCKS: u64 = 16;
const STEPS: usize = 2_000;
const WARM_UP: usize = 200;

pub(super) struct Resident {
    /// Nanoseconds of the engine's lookup of one page, p50 over steps.
    pub(super) lookup_ns: f64,
    /// Nanoseconds of begin, boundaries and end, per plane, p50 over steps.
    pub(super) plane_ns: f64,
    /// Messages sent before or in all these steps.
    pub(super) messages: u64,
}

pub(super) fn measure(socket: &Path) -> Result<Resident, BenchError> {
    let pages = u64::from(SEQS) * BLOCKS * u64::from(PLANES);
    let mut engine = Engine::attach(socket, "resident", PLANES, 2 * pages as u32, SEQS)?;
    let (mut step, mut blocks) = (Vec::new(), Vec::new());
    for _ in 0..SEQS {
        let seq = engine.sealed(BLOCKS)?;
        step.push(StepSeq { seq, tokens: BLOCKS * PAGE_TOKENS });
        blocks.extend(trying("list a sequence's blocks", engine.client.seq_blocks(seq))?);
    }
    let (mut lookups, mut planes) = (Vec::with_capacity(STEPS), Vec::with_capacity(STEPS));
    let mut before = engine.client.stats();
    for round in 0..WARM_UP + STEPS {
        if round == WARM_UP {
            before = engine.client.stats();
        }
        let lane = &mut engine.lane;
        let began = Instant::now();
        trying("begin a step", lane.begin(&step))?;
        for plane in 0..PLANES {
            match lane.boundary(plane) {
                Ok(Pass::All) => {}
                other => {
                    let pass = trying("cross a boundary", other)?;
                    return Err(BenchError::Odd(format!("missing pages in plane {plane}: {pass:?}")));
                }
            }
        }
        let looking = Instant::now();
        let found = (0..PLANES)
            .flat_map(|plane| blocks.iter().map(move |block| (*block, plane)))
            .filter(|(block, plane)| black_box(lane.pte(*block, *plane)).is_some())
            .count() as u64;
        let looked = looking.elapsed().as_nanos() as u64;
        let ending = Instant::now();
        trying("end a step", lane.end())?;
        let work = (looking.duration_since(began) + ending.elapsed()).as_nanos() as u64;
        if found != pages {
            return Err(BenchError::Odd(format!("the page table has {found} of {pages} resident pages")));
        }
        if round >= WARM_UP {
            lookups.push(looked);
            planes.push(work);
        }
    }
    let after = engine.client.stats();
    let messages = after.messages_before_steps - before.messages_before_steps + after.requests - before.requests;
    Ok(Resident {
        lookup_ns: percentile(&mut lookups, 50) as f64 / pages as f64,
        plane_ns: percentile(&mut planes, 50) as f64 / f64::from(PLANES),
        messages,
    })
}
