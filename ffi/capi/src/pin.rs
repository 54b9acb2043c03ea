//! `kvt_pin`: pages held in tier 0.

use super::channel::{enter, kvt_channel};
use super::entry::{check_out, entry, write};
use super::error::Fault;
use super::space::timeout;
use super::status::kvt_status;
use kvtide_client::{PageRange, Pin};
use kvtide_wire::status::Status;

/// Pages held in tier 0. It is a number that its session knows, not an address; a pin that was released is recognised.
pub struct kvt_pin {
    _opaque: [u8; 0],
}

/// A range of pages of one sequence: blocks `first` to `first + count - 1` in planes `plane` to `plane + planes - 1`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct kvt_range {
    /// Sequence.
    pub seq: u32,
    /// First block index.
    pub first: u32,
    /// Blocks.
    pub count: u32,
    /// First plane.
    pub plane: u16,
    /// Planes.
    pub planes: u16,
}

impl kvt_range {
    pub(crate) fn pages(self) -> PageRange {
        PageRange { seq: self.seq, first: self.first, count: self.count, plane: self.plane, planes: self.planes }
    }
}

/// A pin's handle: this byte at the top (a channel or a lane passed by mistake is no pin), the generation, the slot.
const KIND: u64 = b'P' as u64;
/// Bits of a slot; more pins than this are never held at once.
const SLOT_BITS: u32 = 24;

/// The handle of a pin.
pub(crate) fn handle(pin: Pin) -> Result<*mut kvt_pin, Fault> {
    let raw = pin.into_raw();
    let (generation, slot) = (raw >> 32, raw & 0xffff_ffff);
    if slot >> SLOT_BITS != 0 {
        return Err(Fault::new(Status::Internal, format!("pin slot {slot} leaves no room for the handle's kind")));
    }
    Ok(std::ptr::without_provenance_mut((KIND << 56 | generation << SLOT_BITS | slot) as usize))
}

fn pin(handle: *const kvt_pin) -> Result<Pin, Fault> {
    let bits = handle.addr() as u64;
    if bits == 0 {
        return Err(Fault::new(Status::Invalid, "the kvt_pin is NULL"));
    }
    if bits >> 56 != KIND {
        return Err(Fault::new(Status::Invalid, format!("{handle:p} is no kvt_pin")));
    }
    let (generation, slot) = (bits >> SLOT_BITS & 0xffff_ffff, bits & ((1 << SLOT_BITS) - 1));
    Ok(Pin::from_raw(generation << 32 | slot))
}

/// Pins a range in tier 0, after loading what is missing. Costs no message when all of it is resident.
///
/// `KVT_ETOOBIG`: more pages than tier 0 can pin. `KVT_ERANGE`, `KVT_ELIMIT`, `KVT_ETIMEDOUT`, `KVT_ELOST`.
///
/// # Safety
/// `range` is valid for a read, `out` for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_acquire(
    channel: *mut kvt_channel,
    range: *const kvt_range,
    timeout_us: u64,
    out: *mut *mut kvt_pin,
) -> kvt_status {
    entry("kvt_acquire", || {
        check_out("out", out)?;
        // SAFETY: the caller's contract.
        let range = unsafe { super::entry::array("range", range, 1) }?[0];
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        let pin = c.channel.acquire(range.pages(), timeout)?;
        // SAFETY: the caller's contract.
        unsafe { write("out", out, handle(pin)?) }
    })
}

/// Unpins, on the channel that acquired. `KVT_ESTATE`: released before. `KVT_EINVAL`: no pin at all.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_release(channel: *mut kvt_channel, pin: *mut kvt_pin) -> kvt_status {
    entry("kvt_release", || {
        let mut c = enter(channel)?;
        Ok(c.channel.release(self::pin(pin)?)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pin_has_a_handle_and_comes_back() {
        for raw in [0, 1, 1023, 7 << 32 | 5, u64::from(u32::MAX) << 32 | 0xff_ffff] {
            assert_eq!(pin(handle(Pin::from_raw(raw)).unwrap()).unwrap().into_raw(), raw, "{raw:#x}");
        }
        assert_eq!(handle(Pin::from_raw(1 << 24)).unwrap_err().status(), Status::Internal);
        assert_eq!(pin(std::ptr::null()).unwrap_err().status(), Status::Invalid);
        assert_eq!(pin(std::ptr::without_provenance(64)).unwrap_err().status(), Status::Invalid);
    }
}
