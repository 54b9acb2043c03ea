//! Structures that can grow: their first member is the size of the caller's version.
//!
//! The rule is that of Linux's `clone3`. A shorter structure from an older program is completed with zeroes, which mean
//! "as before". In a longer structure from a newer program, the part that this library does not know must be zero.
//! Otherwise the call fails, because the program relies on a feature that does not exist here.

use super::entry::check_pointer;
use super::error::Fault;
use kvtide_wire::status::Status;
use std::mem::MaybeUninit;

/// Structure with the first member `struct_size: u32`.
///
/// # Safety
/// `repr(C)`, first member `u32`, all-zero bytes are a valid value, and so are any bytes at all.
pub(crate) unsafe trait Sized32: Copy {
    /// Bytes of its first version.
    const BYTES_MIN: usize;
}

/// Read a structure that the caller filled.
///
/// # Safety
/// `pointer` is NULL or valid for reads of as many bytes as its `struct_size` says (at least 4), all initialised.
pub(crate) unsafe fn read<T: Sized32>(name: &'static str, pointer: *const T) -> Result<T, Fault> {
    // SAFETY: this function's own contract.
    let size = unsafe { claimed_size(name, pointer) }?;
    let bytes: *const u8 = pointer.cast();
    for i in size_of::<T>()..size {
        // SAFETY: below `size`, which the caller guarantees.
        if unsafe { *bytes.add(i) } != 0 {
            return Err(Fault::new(
                Status::Version,
                format!("`{name}` uses byte {i}; this library knows only {} bytes of it", size_of::<T>()),
            ));
        }
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both sides are valid for the smaller of the two sizes, and a fresh local overlaps nothing.
    unsafe { std::ptr::copy_nonoverlapping(bytes, value.as_mut_ptr().cast::<u8>(), size.min(size_of::<T>())) };
    // SAFETY: any bytes are a valid T (contract of the trait).
    Ok(unsafe { value.assume_init() })
}

/// Fill a structure of the caller, up to the size of the caller's version. `struct_size` keeps its value; the part that
/// this library does not know becomes zero.
///
/// # Safety
/// `pointer` is NULL or valid for reads and writes of as many bytes as its `struct_size` says (at least 4).
pub(crate) unsafe fn fill<T: Sized32>(name: &'static str, pointer: *mut T, value: &T) -> Result<(), Fault> {
    // SAFETY: this function's own contract.
    let size = unsafe { claimed_size(name, pointer) }?;
    let known = size.min(size_of::<T>());
    let bytes: *mut u8 = pointer.cast();
    // SAFETY: the caller guarantees `size` bytes; `known` is within both; the first four bytes stay.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>().add(4), bytes.add(4), known - 4);
        bytes.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// Return the size in `struct_size`, checked.
///
/// # Safety
/// `pointer` is NULL or valid for a read of 4 bytes.
unsafe fn claimed_size<T: Sized32>(name: &'static str, pointer: *const T) -> Result<usize, Fault> {
    /// Larger than any version will be, and small enough for a loop over it.
    const BYTES_MAX: usize = 4096;
    check_pointer(name, pointer)?;
    // SAFETY: not NULL and aligned; the first member is a u32 (contract of the trait).
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    if size < T::BYTES_MIN || size > BYTES_MAX {
        return Err(Fault::new(
            Status::Invalid,
            format!("`{name}->struct_size` is {size}; set it to sizeof, {} to {BYTES_MAX} bytes", T::BYTES_MIN),
        ));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second version of a structure; the first had 8 bytes.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Grown {
        struct_size: u32,
        first: u32,
        second: u64,
    }

    // SAFETY: repr(C), `struct_size` first, integers only.
    unsafe impl Sized32 for Grown {
        const BYTES_MIN: usize = 8;
    }

    /// A structure of a version after this library's.
    #[repr(C)]
    struct Newer {
        known: Grown,
        third: u64,
    }

    #[test]
    fn an_older_structure_is_completed_with_zeroes() {
        let mut older = Grown { struct_size: 8, first: 7, second: u64::MAX };
        // SAFETY: 8 bytes and more are valid.
        let read = unsafe { read("grown", &raw const older) }.expect("the first version is valid");
        assert_eq!(read, Grown { struct_size: 8, first: 7, second: 0 });
        let value = Grown { struct_size: 0, first: 1, second: 2 };
        // SAFETY: as above.
        unsafe { fill("grown", &raw mut older, &value) }.expect("the first version is valid");
        assert_eq!(older, Grown { struct_size: 8, first: 1, second: u64::MAX });
    }

    #[test]
    fn a_newer_structure_must_not_use_what_is_unknown() {
        let size = size_of::<Newer>() as u32;
        let mut newer = Newer { known: Grown { struct_size: size, first: 7, second: 9 }, third: 0 };
        let known = newer.known;
        // SAFETY: `size` bytes are valid.
        assert_eq!(unsafe { read("newer", (&raw const newer).cast::<Grown>()) }.expect("nothing is unknown"), known);
        newer.third = 1;
        // SAFETY: as above.
        let fault = unsafe { read("newer", (&raw const newer).cast::<Grown>()) }.expect_err("`third` is unknown");
        assert_eq!(fault.status(), Status::Version);
        // SAFETY: as above.
        unsafe { fill("newer", (&raw mut newer).cast::<Grown>(), &known) }.expect("the size is valid");
        assert_eq!(newer.third, 0);
    }
}
