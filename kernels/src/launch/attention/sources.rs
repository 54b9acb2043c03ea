//! PTX sources by layout: one text each, so that a driver compiles only those in use.

use crate::reference::attention::Layout;
use crate::{Error, Result, Source};

macro_rules! source {
    ($name:literal) => {
        Source { name: $name, ptx: include_str!(concat!("../../../ptx/", $name, ".ptx")) }
    };
}

static D32: Source = source!("attention_d32");
static D64: Source = source!("attention_d64");
static D128: Source = source!("attention_d128");
static D256: Source = source!("attention_d256");
static MLA: Source = source!("attention_mla");
pub(super) static MASS: Source = source!("attention_mass");

pub(super) fn of(layout: Layout) -> Result<&'static Source> {
    match layout {
        Layout::Heads { head_dim: 32 } => Ok(&D32),
        Layout::Heads { head_dim: 64 } => Ok(&D64),
        Layout::Heads { head_dim: 128 } => Ok(&D128),
        Layout::Heads { head_dim: 256 } => Ok(&D256),
        Layout::Latent { latent: 512, rope: 64 } => Ok(&MLA),
        layout => Err(Error::invalid("layout", format!("there is no kernel for {layout:?}"))),
    }
}
