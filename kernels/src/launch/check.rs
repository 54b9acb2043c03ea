//! Checks of launch arguments.

use crate::{Error, Result};

/// Maximum blocks of a grid in x.
const GRID_MAX: u64 = (1 << 31) - 1;

/// Check that an address is not 0 and is a multiple of `alignment` bytes.
pub(super) fn address(what: &'static str, address: u64, alignment: u64) -> Result<()> {
    if address == 0 {
        return Err(Error::invalid(what, "its address is 0"));
    }
    aligned(what, address, alignment)
}

/// Check that an address, stride or length is a multiple of `alignment` bytes; 0 is allowed.
pub(super) fn aligned(what: &'static str, value: u64, alignment: u64) -> Result<()> {
    if value.is_multiple_of(alignment) {
        return Ok(());
    }
    Err(Error::invalid(what, format!("{value:#x} is not a multiple of {alignment} bytes")))
}

/// Check that a number is within bounds.
pub(super) fn within(what: &'static str, value: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(what, format!("{value} is not within {min} and {max}")))
}

/// Return the blocks of a grid, checked.
pub(super) fn grid(what: &'static str, blocks: u64) -> Result<u32> {
    within(what, blocks, 0, GRID_MAX)?;
    Ok(blocks as u32)
}

/// Check a table of `blocks` × `planes` entries: page ids are u32.
pub(super) fn table(address_: u64, blocks: u32, planes: u32, plane: u32, plane_count: u32) -> Result<()> {
    address("page table", address_, 4)?;
    within("entries of the page table", u64::from(blocks) * u64::from(planes), 1, u64::from(u32::MAX))?;
    within("plane", u64::from(plane) + u64::from(plane_count), 1, u64::from(planes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_what_and_why() {
        assert_eq!(address("lengths", 0, 4).unwrap_err().to_string(), "lengths: its address is 0");
        assert_eq!(address("lengths", 6, 4).unwrap_err().to_string(), "lengths: 0x6 is not a multiple of 4 bytes");
        assert_eq!(within("tokens", 0, 1, 128).unwrap_err().to_string(), "tokens: 0 is not within 1 and 128");
        assert!(address("lengths", 8, 4).is_ok() && aligned("stride", 0, 16).is_ok() && grid("rows", 7).is_ok());
        assert!(grid("rows", 1 << 31).is_err());
        assert!(table(4, 1 << 20, 1 << 12, 0, 1).is_err(), "page ids would not fit");
        assert!(table(4, 10, 4, 3, 2).is_err() && table(4, 10, 4, 2, 2).is_ok());
    }
}
