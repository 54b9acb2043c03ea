//! Parameters of launches over a session's pages, as the lane and the batch define them, for [`super::Attend`].

use crate::{
    Error, Result,
    client::{Refusal, batch::Batch},
};
use kvtide_kernels::{
    launch,
    params::{AppendParams, AppendPart},
};
use kvtide_wire::status::Status;

/// New rows of a step's tokens in a plane, on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewRows {
    /// Sources and places in a page: keys and values, or one part alone (the other without heads).
    pub parts: [AppendPart; 2],
    /// `i32[rows of the batch + 1]`: rows `starts[s]..starts[s + 1]` belong to row s of the batch; 0: one row each.
    pub starts: u64,
    /// `u32`: counts rows that were not written because their page is in no frame; or 0.
    pub faults: u64,
    /// Number of rows of the sources.
    pub rows: u32,
}

/// Input and output of attention besides the pages; device addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queries {
    /// Queries, `[tokens][heads][key]`, 16-byte aligned.
    pub q: u64,
    /// Output, `[tokens][heads][value]`, 16-byte aligned.
    pub out: u64,
    /// `i32[rows of the batch + 1]`: first query of each row; 0: each row has the number of queries in the configuration.
    pub starts: u64,
    /// Pages of the longest row; 0: the maximum of the configuration. A longer row writes nothing.
    pub pages_longest: u32,
    /// The plane. [`Batch::tables`] has built its block table, as the first of its planes.
    pub plane: u16,
}

impl Batch {
    /// Return the parameters that write `rows` into their pages in `plane`.
    ///
    /// # Errors
    /// `Range`: no such plane.
    pub(super) fn append_params(&self, plane: u16, rows: &NewRows) -> Result<AppendParams> {
        let (client, side, device) = (self.client(), self.side(), self.device());
        let layout = client.layout();
        let place = layout.planes.get(usize::from(plane));
        let none = || {
            let why = format!("the space has {} planes", layout.planes.len());
            Error::refused("write new tokens in plane", u64::from(plane), Refusal::because(Status::Range, why))
        };
        let place = place.ok_or_else(none)?;
        Ok(AppendParams {
            parts: rows.parts,
            table: side.table(),
            block_ids: device.block_ids,
            lengths: device.lengths,
            starts: rows.starts,
            pages: layout.tier0 as u64 + place.offset,
            stride: u64::from(place.stride),
            status: side.status_word(),
            faults: rows.faults,
            rows: rows.rows,
            rows_per_cta: 0,
            seqs: device.seqs,
            max_blocks: device.max_blocks,
            blocks: layout.blocks_max,
            planes: layout.planes.len() as u32,
            plane: u32::from(plane),
            page_tokens: layout.page_tokens,
            first_frame: place.first_frame,
            frames: client.inner.session.tier0.frames(place.class as usize),
        })
    }

    /// Return the attention batch over the block table that was built last.
    ///
    /// # Errors
    /// `Range`: no such plane, or the batch has no tables.
    pub(super) fn attention_batch(&self, queries: &Queries) -> Result<launch::attention::Batch> {
        let (device, layout) = (self.device(), self.client().layout());
        let none = || {
            let why = format!("the space has {} planes, or the batch no tables", layout.planes.len());
            Error::refused("attend in plane", u64::from(queries.plane), Refusal::because(Status::Range, why))
        };
        let place = layout.planes.get(usize::from(queries.plane)).filter(|_| device.block_tables != 0);
        let place = place.ok_or_else(none)?;
        Ok(launch::attention::Batch {
            q: queries.q,
            out: queries.out,
            pages: layout.tier0 as u64 + place.offset,
            page_stride: u64::from(place.stride),
            aliases: if self.is_in_place() { place.aliases } else { 0 },
            frames: place.frames,
            block_table: device.block_tables,
            table_stride: device.max_blocks,
            lengths: device.lengths,
            q_starts: queries.starts,
            status: self.side().status_word(),
            seqs: device.seqs,
            pages_longest: queries.pages_longest,
            ..launch::attention::Batch::default()
        })
    }
}
