//! Storage of the log: the trait through which all I/O goes.

use std::io;

/// Persistent bytes: a file, a device, or a test's memory.
///
/// Offsets are offsets in the store file (`format::Superblock`). Offsets and lengths are multiples of 4096 bytes. A call transfers
/// all bytes or fails.
pub trait Storage {
    /// Read `into.len()` bytes. Bytes that were never written have undefined contents.
    ///
    /// # Errors
    /// The error of the device.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Write all of `bytes`. After the call they survive the end of the process; until a flush, a power failure may lose any of
    /// their sectors.
    ///
    /// # Errors
    /// The error of the device.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Make all earlier writes durable: they survive a power failure after the call.
    ///
    /// # Errors
    /// The error of the device. Writes since the last successful flush may be lost.
    fn flush(&mut self) -> io::Result<()>;

    /// Reserve space for a range, so that writes to it do not fail for lack of space. Called before the first write to the range; a
    /// range may be reserved again. Storage with fixed space need not do anything.
    ///
    /// # Errors
    /// There is no space, or the error of the device.
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
