//! What the log stands on.

use std::io;

/// Bytes that survive a restart: a file, a device, or a test's memory. Offsets are those of the file (`format::Superblock`);
/// offsets and lengths are whole sectors of 4096 bytes. A call moves all bytes or fails.
pub trait Storage {
    /// Reads `into.len()` bytes. Bytes that were never written, a hole, are zero or anything.
    ///
    /// # Errors
    /// The device's.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes`. When it returns they survive the death of the process; until a flush a power cut may lose any
    /// sectors of them.
    ///
    /// # Errors
    /// The device's.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Everything written before survives a power cut when it returns.
    ///
    /// # Errors
    /// The device's. What was written since the last flush that succeeded may be lost.
    fn flush(&mut self) -> io::Result<()>;

    /// Makes sure that writes to this range will not fail for want of room. Said before the first write to it; a range may be
    /// said again. Storage whose room is all there need not do anything.
    ///
    /// # Errors
    /// There is no room, or the device's.
    fn reserve(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        let _ = (offset, bytes);
        Ok(())
    }
}

impl<S: Storage + ?Sized> Storage for &mut S {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        (**self).read(offset, into)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write(offset, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (**self).flush()
    }

    fn reserve(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        (**self).reserve(offset, bytes)
    }
}

impl<S: Storage + ?Sized> Storage for Box<S> {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        (**self).read(offset, into)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write(offset, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (**self).flush()
    }

    fn reserve(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        (**self).reserve(offset, bytes)
    }
}
