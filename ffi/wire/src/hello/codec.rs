//! Encode and decode message fields, little endian, in sequence: bounded writes, checked reads.

use super::protocol;
use super::{Kind, MAGIC, MESSAGE_MAX, TEXT_BYTES_MAX};
use crate::error::Error;
use crate::layout::OLDEST;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;

/// Return an error for a field with a disallowed value.
pub(super) fn wrong(
    message: &'static str,
    field: &'static str,
    found: impl Display,
    expected: impl Into<String>,
) -> Error {
    Error::Message { message, field, found: format!("{found}"), expected: expected.into() }
}

/// Return an error unless `min ≤ value ≤ max`.
pub(super) fn within(
    message: &'static str,
    field: &'static str,
    value: impl Into<u64>,
    min: u64,
    max: u64,
) -> Result<(), Error> {
    let value = value.into();
    if value < min || value > max {
        return Err(wrong(message, field, value, format!("{min} to {max}")));
    }
    Ok(())
}

pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Start a message: write magic, version and kind. [`Writer::finish`] fills in the length.
    pub(super) fn open(kind: Kind) -> Writer {
        let mut writer = Writer { bytes: Vec::with_capacity(256) };
        writer.u32(MAGIC).u32(OLDEST).u32(kind as u32).u32(0);
        writer
    }

    /// Reserve space for `bytes` more bytes, so that writing them does not move the buffer.
    pub(super) fn reserve(&mut self, bytes: usize) -> &mut Self {
        self.bytes.reserve(bytes);
        self
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// Write length and bytes; a text over the limit is cut at a character boundary.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.text_up_to(text, TEXT_BYTES_MAX)
    }

    /// Write a text with a limit of its own, of at most 65535 bytes.
    pub(super) fn text_up_to(&mut self, text: &str, bytes_max: usize) -> &mut Self {
        let mut end = text.len().min(bytes_max);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.u16(end as u16).raw(&text.as_bytes()[..end])
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[12..16].copy_from_slice(&length.to_le_bytes());
        self.bytes
    }
}

pub(super) struct Reader<'a> {
    message: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Check magic, version and length; return the kind and the body.
    pub(super) fn open(bytes: &'a [u8], message: &'static str) -> Result<(u32, Reader<'a>), Error> {
        let (version, kind, reader) = Reader::open_any(bytes, message)?;
        protocol::check(version, version)?;
        Ok((kind, reader))
    }

    /// Check magic and length; return version, kind and body.
    pub(super) fn open_any(bytes: &'a [u8], message: &'static str) -> Result<(u32, u32, Reader<'a>), Error> {
        let mut reader = Reader { message, rest: bytes };
        let magic = reader.u32("magic")?;
        if magic != MAGIC {
            return Err(wrong(message, "magic", format!("{magic:#010x}"), format!("{MAGIC:#010x}")));
        }
        let version = reader.u32("version")?;
        let kind = reader.u32("kind")?;
        let length = reader.u32("length")?;
        if bytes.len() > MESSAGE_MAX || length as usize != bytes.len() {
            let expected = format!("{} (the datagram's), at most {MESSAGE_MAX}", bytes.len());
            return Err(wrong(message, "length", length, expected));
        }
        Ok((version, kind, reader))
    }

    pub(super) fn raw(&mut self, count: usize, field: &'static str) -> Result<&'a [u8], Error> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => {
                let found = format!("cut off after {} bytes", self.rest.len());
                Err(wrong(self.message, field, found, format!("{count} bytes")))
            }
        }
    }

    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(N, field)?);
        Ok(array)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, Error> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub(super) fn zero(&mut self, field: &'static str) -> Result<(), Error> {
        within(self.message, field, self.u16(field)?, 0, 0)
    }

    pub(super) fn text(&mut self, field: &'static str) -> Result<String, Error> {
        self.text_up_to(field, TEXT_BYTES_MAX)
    }

    pub(super) fn text_up_to(&mut self, field: &'static str, bytes_max: usize) -> Result<String, Error> {
        let length = usize::from(self.u16(field)?);
        within(self.message, field, length as u64, 0, bytes_max as u64)?;
        match core::str::from_utf8(self.raw(length, field)?) {
            Ok(text) => Ok(text.to_owned()),
            Err(e) => Err(wrong(self.message, field, format!("no UTF-8 at byte {}", e.valid_up_to()), "UTF-8")),
        }
    }

    /// Return whether all bytes were read.
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Check that no bytes are left over.
    pub(super) fn end(self) -> Result<(), Error> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(wrong(self.message, "end", format!("{} more bytes", self.rest.len()), "nothing"))
    }
}
