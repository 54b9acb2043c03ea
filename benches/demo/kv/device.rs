//! A sequence with tier 0 in a device's memory: pages in half precision, read by kvtide's kernels through the page table.

use std::time::Duration;

use kvtide_client::cuda::{self, Attend, AttendOptions};
use kvtide_client::{Contract, Element, KeyLayout};

use super::audit::Audit;
use super::sequence::{Sequence, SessionSpec, TIMEOUT};
use super::{Kv, Omitted, Rows, TieredError};
use crate::demo::attention::{GROUP, HEAD_DIM, KV_HEADS, PAGE_TOKENS, Partials};
use crate::demo::sizes::CHUNK;

/// Bytes of a page: keys and values of all KV heads, as 16-bit numbers.
pub const PAGE_BYTES: usize = 2 * 2 * KV_HEADS * PAGE_TOKENS * HEAD_DIM;
/// Maximum wait for a plane's result. Kernels take microseconds on a GPU, and seconds on the CPU stand-in.
const RESULT: Duration = Duration::from_secs(50);

/// Return the layout of keys in such a page.
#[must_use]
pub fn key_layout() -> KeyLayout {
    let row = (HEAD_DIM * size_of::<u16>()) as u32;
    KeyLayout {
        element: Element::F16,
        heads: KV_HEADS as u16,
        channels: HEAD_DIM as u16,
        tile_tokens: PAGE_TOKENS as u16,
        offset: 0,
        head_stride: PAGE_TOKENS as u32 * row,
        tile_stride: 0,
        token_stride: row,
        channel_stride: size_of::<u16>() as u32,
    }
}

/// One sequence in one session.
pub struct OnDevice {
    /// It uses the session's memory. Declared before the session, so that it is dropped first.
    attend: Attend,
    pub(super) sequence: Sequence,
    name: String,
    /// Contract for decoding, with its audit; `None`: exact.
    inexact: Option<(Contract, Audit)>,
    /// Decoding has begun, so the contract is in force.
    in_force: bool,
}

impl OnDevice {
    /// Attach, bind the session's lane to a stream, and load the kernels. `pages`: maximum of the sequence per plane; decoding uses
    /// `contract`.
    ///
    /// # Errors
    /// As of [`Sequence::attach`], or the device rejects the kernels.
    pub fn attach(spec: SessionSpec, pages: usize, contract: Contract) -> Result<OnDevice, TieredError> {
        let audit = || Audit::new(spec.planes, pages).map_err(TieredError::Shadow);
        let inexact = (contract != Contract::Exact).then(|| Ok::<_, TieredError>((contract, audit()?))).transpose()?;
        let mut sequence = Sequence::attach(spec)?;
        let client = sequence.client().clone();
        let options = AttendOptions {
            element: cuda::reference::Element::F16,
            head_dim: HEAD_DIM,
            kv_heads: KV_HEADS as u32,
            group: GROUP as u32,
            tokens: CHUNK as u32,
            pages: pages as u32,
            // Queries are already scaled.
            scale: 1.0,
            timeout: RESULT.max(TIMEOUT),
            approx: inexact.is_some(),
        };
        let attend = Attend::new(&client, &mut sequence.lane, options)?;
        Ok(OnDevice { name: attend.device_name(), attend, sequence, inexact, in_force: false })
    }

    /// Return the driver's name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Return the totals of skipped attention; `None` with the contract exact.
    #[must_use]
    pub fn omitted(&self) -> Omitted {
        self.inexact.as_ref().map_or_else(Omitted::default, |(_, audit)| audit.omitted())
    }
}

impl Kv for OnDevice {
    type Error = TieredError;

    fn open(&mut self, tokens: usize) -> Result<(), TieredError> {
        let before = self.sequence.tokens();
        if let Some((contract, audit)) = &mut self.inexact {
            if !self.in_force && before > 0 && tokens == before + 1 {
                self.sequence.contract(*contract)?;
                self.in_force = true;
            }
            audit.begin(tokens);
        }
        let step = self.sequence.prepare(tokens)?;
        Ok(self.attend.begin(&mut self.sequence.lane, step)?)
    }

    fn wants_ahead(&mut self) -> Result<bool, TieredError> {
        Ok(self.in_force && self.sequence.lane.wants_ahead(self.sequence.id())?)
    }

    fn ahead(&mut self, plane: usize, queries: &[f32]) -> Result<(), TieredError> {
        Ok(self.sequence.lane.ahead(self.sequence.id(), plane as u16, queries)?)
    }

    fn attend(&mut self, plane: usize, rows: Rows<'_>, _: &mut Partials, out: &mut [f32]) -> Result<(), TieredError> {
        let Rows { q, k, v, .. } = rows;
        let seq = self.sequence.id();
        self.attend.attend(&mut self.sequence.lane, plane as u16, cuda::Rows { q, k, v }, out)?;
        if let Some((_, audit)) = &mut self.inexact {
            audit.write(plane, &rows);
            if self.in_force {
                let said = self.sequence.lane.omission(seq, plane as u16).unwrap_or_default();
                audit.read(plane, &rows, self.attend.read(), said);
                // Used by the next step.
                self.sequence.lane.query(seq, plane as u16, q)?;
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), TieredError> {
        self.sequence.end()
    }

    fn apart(&self) -> Duration {
        self.inexact.as_ref().map_or(Duration::ZERO, |(_, audit)| audit.spent())
    }
}
