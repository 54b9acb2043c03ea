//! A sequence whose tier 0 is a device's memory: pages in half precision, and our kernels over the page table.

use std::time::Duration;

use kvtide_client::Stats;
use kvtide_client::cuda::{self, Attend, AttendOptions};

use super::sequence::{Sequence, SessionSpec, TIMEOUT};
use super::{Kv, Rows, TieredError};
use crate::demo::attention::{GROUP, HEAD_DIM, KV_HEADS, PAGE_TOKENS, Partials};
use crate::demo::sizes::CHUNK;

/// Bytes of a page: keys and values of all KV heads, as 16-bit numbers.
pub const PAGE_BYTES: usize = 2 * 2 * KV_HEADS * PAGE_TOKENS * HEAD_DIM;
/// Longest wait for a plane's result. Kernels take microseconds on a GPU, and seconds where a CPU stands in for one.
const RESULT: Duration = Duration::from_secs(50);

/// One sequence in one session.
pub struct OnDevice {
    /// Before the session whose memory it uses.
    attend: Attend,
    sequence: Sequence,
    name: String,
}

impl OnDevice {
    /// Attaches, binds the session's lane to a stream, loads the kernels. `pages`: the most that the sequence will have in a plane.
    ///
    /// # Errors
    /// As [`Sequence::attach`], or the device refuses the kernels.
    pub fn attach(spec: SessionSpec, pages: usize) -> Result<OnDevice, TieredError> {
        let mut sequence = Sequence::attach(spec)?;
        let client = sequence.client().clone();
        let options = AttendOptions {
            element: cuda::reference::Element::F16,
            head_dim: HEAD_DIM,
            kv_heads: KV_HEADS as u32,
            group: GROUP as u32,
            tokens: CHUNK as u32,
            pages: pages as u32,
            // Queries come scaled.
            scale: 1.0,
            timeout: RESULT.max(TIMEOUT),
        };
        let attend = Attend::new(&client, &mut sequence.lane, options)?;
        Ok(OnDevice { name: attend.device_name(), attend, sequence })
    }

    /// What the driver calls the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the session counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.sequence.stats()
    }

    /// Time spent so far waiting for room for new tokens.
    #[must_use]
    pub fn waited_for_room(&self) -> Duration {
        self.sequence.waited_for_room()
    }
}

impl Kv for OnDevice {
    type Error = TieredError;

    fn open(&mut self, tokens: usize) -> Result<(), TieredError> {
        let step = self.sequence.prepare(tokens)?;
        Ok(self.attend.begin(&mut self.sequence.lane, step)?)
    }

    fn attend(&mut self, plane: usize, rows: Rows<'_>, _: &mut Partials, out: &mut [f32]) -> Result<(), TieredError> {
        let Rows { q, k, v, .. } = rows;
        Ok(self.attend.attend(&mut self.sequence.lane, plane as u16, cuda::Rows { q, k, v }, out)?)
    }

    fn close(&mut self) -> Result<(), TieredError> {
        self.sequence.end()
    }
}
