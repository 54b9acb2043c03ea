//! `kvt_pin`: pages pinned in tier 0.

use super::channel::{enter, kvt_channel};
use super::entry::{check_out, entry, write};
use super::error::Fault;
use super::request::{kvt_pin, kvt_range};
use super::space::timeout;
use super::status::kvt_status;
use kvtide_client::Pin;
use kvtide_wire::status::Status;

/// Top byte of a pin's handle; below it the generation and the slot. It tells a pin from a channel or a lane passed by
/// mistake.
const KIND: u64 = b'P' as u64;
/// Bits of a slot; far fewer pins exist at once.
const SLOT_BITS: u32 = 24;

/// Return the handle of a pin.
pub(crate) fn handle(pin: Pin) -> Result<*mut kvt_pin, Fault> {
    let raw = pin.into_raw();
    let (generation, slot) = (raw >> 32, raw & 0xffff_ffff);
    if slot >> SLOT_BITS != 0 {
        return Err(Fault::new(Status::Internal, format!("pin slot {slot} does not fit into {SLOT_BITS} bits")));
    }
    Ok(std::ptr::without_provenance_mut((KIND << 56 | generation << SLOT_BITS | slot) as usize))
}

fn pin(handle: *const kvt_pin) -> Result<Pin, Fault> {
    let bits = handle.addr() as u64;
    if bits == 0 {
        return Err(Fault::new(Status::Invalid, "the kvt_pin is NULL"));
    }
    if bits >> 56 != KIND {
        return Err(Fault::new(Status::Invalid, format!("{handle:p} is not a kvt_pin")));
    }
    let (generation, slot) = (bits >> SLOT_BITS & 0xffff_ffff, bits & ((1 << SLOT_BITS) - 1));
    Ok(Pin::from_raw(generation << 32 | slot))
}

/// Pin a range of pages in tier 0; load missing pages first. Sends no message if all of them are resident.
///
/// @param channel  Channel.
/// @param range  Pages to pin.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @param out  Receives the pin. Release it with `kvt_channel_release`; dropping its sequence releases it too.
/// @return `KVT_OK`; `KVT_ETOOBIG` if the range has more pages than tier 0 can pin; `KVT_ENOSPC` if it does not fit
///     beside the pages that must stay now; `KVT_ERANGE` if it ends beyond the sequence or the planes; `KVT_ELIMIT` if
///     the session has too many pins (at most 1,024); `KVT_ESTATE` if the sequence is parked; `KVT_ELOST` if a page is
///     lost; `KVT_ETIMEDOUT`.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_range range = {.seq = seq, .count = 2, .planes = 32}; kvt_channel_acquire(channel, &range, 0, &pin);`
///
/// # Safety
/// `range` must be valid for a read, `out` for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_channel_acquire(
    channel: *mut kvt_channel,
    range: *const kvt_range,
    timeout_us: u64,
    out: *mut *mut kvt_pin,
) -> kvt_status {
    entry("kvt_channel_acquire", || {
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

/// Release a pin, on the channel that acquired it. Does not wait.
///
/// @param channel  Channel.
/// @param pin  Pin of `kvt_channel_acquire` or `KVT_REQUEST_ACQUIRE`.
/// @return `KVT_OK`; `KVT_ESTATE` if it was already released; `KVT_EINVAL` if it is not a pin; `KVT_ENOTFOUND` if it
///     belongs to another channel.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_release(channel, pin);`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_release(channel: *mut kvt_channel, pin: *mut kvt_pin) -> kvt_status {
    entry("kvt_channel_release", || {
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
