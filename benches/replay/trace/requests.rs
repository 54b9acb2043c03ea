//! A request trace in Mooncake's format: one JSON object per line with `timestamp` (milliseconds) and `hash_ids`, the request's
//! prefix blocks of 512 tokens in order; `input_length` (tokens) and `output_length` are optional. Equal ids are equal blocks after
//! equal prefixes. Other fields are ignored.

use super::Broken;
use serde::Deserialize;
use std::collections::HashMap;
use std::io::BufRead;

/// Tokens of a block.
pub const BLOCK_TOKENS: u32 = 512;
/// Maximum requests of a trace.
const REQUESTS_MAX: usize = 50_000_000;
/// Maximum blocks of a request.
const BLOCKS_MAX: usize = 1 << 20;
/// Maximum blocks of all requests together.
const USES_MAX: usize = 1 << 31;
/// Maximum timestamp in milliseconds: a hundred years. Simulated time counts nanoseconds.
const TIME_MAX_MS: u64 = 100 * 366 * 24 * 3600 * 1000;
/// Maximum bytes of a line.
const LINE_MAX: u64 = 64 << 20;
/// No parent.
const NONE: u32 = u32::MAX;

#[derive(Deserialize)]
struct Line {
    timestamp: u64,
    hash_ids: Vec<u64>,
    input_length: Option<u64>,
}

/// A trace: requests in the order of time, with distinct blocks numbered in the order of their first appearance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    times_ms: Vec<u64>,
    /// End of each request's blocks.
    ends: Vec<usize>,
    blocks: Vec<u32>,
    distinct: u32,
    longest: u32,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Arrival time in milliseconds.
    pub time_ms: u64,
    /// Blocks of the request, first to last.
    pub blocks: &'a [u32],
}

impl Requests {
    /// Read a trace.
    pub fn read(mut from: impl BufRead) -> Result<Requests, Broken> {
        let mut reading = Reading::default();
        let (mut line, mut number) = (Vec::new(), 0);
        loop {
            line.clear();
            number += 1;
            let length = std::io::Read::take(&mut from, LINE_MAX + 1).read_until(b'\n', &mut line);
            match length.map_err(|error| Broken::line(number, format!("cannot read: {error}")))? {
                0 => return reading.end(),
                length if length as u64 > LINE_MAX => {
                    return Err(Broken::line(number, format!("longer than {LINE_MAX} bytes")));
                }
                _ if line.trim_ascii().is_empty() => {}
                _ => reading.line(&line).map_err(|why| Broken::line(number, why))?,
            }
        }
    }

    /// Return the number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.times_ms.len()
    }

    /// Return true if there are none. A trace that was read has at least one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.times_ms.is_empty()
    }

    /// Return a request.
    #[must_use]
    pub fn get(&self, request: usize) -> Option<Request<'_>> {
        let begin = if request == 0 { 0 } else { *self.ends.get(request - 1)? };
        let blocks = self.blocks.get(begin..*self.ends.get(request)?)?;
        Some(Request { time_ms: self.times_ms[request], blocks })
    }

    /// Iterate over all requests in the order of time.
    pub fn iter(&self) -> impl Iterator<Item = Request<'_>> {
        (0..self.len()).filter_map(|request| self.get(request))
    }

    /// Return the number of distinct blocks; block numbers are below it.
    #[must_use]
    pub fn distinct(&self) -> u32 {
        self.distinct
    }

    /// Return the blocks of all requests.
    #[must_use]
    pub fn uses(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Return the arrival time of the last request in milliseconds.
    #[must_use]
    pub fn span_ms(&self) -> u64 {
        self.times_ms.last().copied().unwrap_or(0)
    }

    /// Return the blocks of the longest request.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.longest
    }
}

#[derive(Default)]
struct Reading {
    trace: Requests,
    numbers: HashMap<u64, u32>,
    /// Parent of each block.
    parents: Vec<u32>,
}

impl Reading {
    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let line: Line = serde_json::from_slice(line).map_err(said_of_a_line)?;
        let trace = &mut self.trace;
        if trace.times_ms.last().is_some_and(|&before| before > line.timestamp) {
            return Err(format!("timestamp {} is before that of the previous request", line.timestamp));
        }
        if line.timestamp > TIME_MAX_MS {
            return Err(format!("timestamp {} exceeds {TIME_MAX_MS} milliseconds", line.timestamp));
        }
        let count = line.hash_ids.len();
        if count > BLOCKS_MAX || trace.times_ms.len() == REQUESTS_MAX || trace.blocks.len() + count > USES_MAX {
            return Err(format!(
                "more than {BLOCKS_MAX} blocks, {REQUESTS_MAX} requests or {USES_MAX} blocks of all requests"
            ));
        }
        if let Some(tokens) = line.input_length {
            let whole = tokens / u64::from(BLOCK_TOKENS);
            // The last block may be partial, and some traces omit it.
            if !(whole..=tokens.div_ceil(u64::from(BLOCK_TOKENS))).contains(&(count as u64)) {
                return Err(format!("input_length {tokens} does not match {count} blocks of {BLOCK_TOKENS} tokens"));
            }
        }
        let mut parent = NONE;
        for id in line.hash_ids {
            let next = self.parents.len() as u32;
            let block = *self.numbers.entry(id).or_insert(next);
            if block == next {
                self.parents.push(parent);
            } else if self.parents[block as usize] != parent {
                return Err(format!("block {id} has a different prefix than before"));
            }
            trace.blocks.push(block);
            parent = block;
        }
        trace.times_ms.push(line.timestamp);
        trace.ends.push(trace.blocks.len());
        trace.longest = trace.longest.max(count as u32);
        Ok(())
    }

    fn end(mut self) -> Result<Requests, Broken> {
        self.trace.distinct = self.parents.len() as u32;
        if self.trace.blocks.is_empty() {
            return Err(Broken::whole("no request has blocks"));
        }
        Ok(self.trace)
    }
}

/// Return the error of a line without the parser's line number, which is always 1.
fn said_of_a_line(error: serde_json::Error) -> String {
    let (said, column) = (error.to_string(), error.column());
    match said.strip_suffix(&format!(" at line 1 column {column}")) {
        Some(what) => format!("{what} at column {column}"),
        None => said,
    }
}

#[cfg(test)]
mod tests {
    use super::super::At;
    use super::*;

    fn read(text: &str) -> Result<Requests, Broken> {
        Requests::read(text.as_bytes())
    }

    #[test]
    fn a_trace_is_read_line_by_line() {
        let text = "{\"timestamp\": 0, \"input_length\": 513, \"hash_ids\": [900, 7]}\n\n{\"timestamp\": 5, \"hash_ids\": []}\n\
                    {\"timestamp\": 5, \"input_length\": 1100, \"output_length\": 1, \"hash_ids\": [900, 8]}";
        let trace = read(text).expect("well-formed");
        let requests: Vec<_> = trace.iter().map(|r| (r.time_ms, r.blocks)).collect();
        assert_eq!(requests, [(0, &[0, 1][..]), (5, &[]), (5, &[0, 2])]);
        assert_eq!((trace.distinct(), trace.uses(), trace.longest(), trace.len()), (3, 4, 2, 3));
    }

    #[test]
    fn a_line_has_one_number() {
        let said = |text| read(text).expect_err("no trace").why;
        assert_eq!(said("{\"timestamp\": 0, \"has"), "EOF while parsing a string at column 21");
        assert_eq!(said("\n{\"timestamp\": -1}"), "invalid value: integer `-1`, expected u64 at column 16");
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        let good = "{\"timestamp\": 9, \"hash_ids\": [1, 2]}\n";
        let cases = [
            ("", At::Whole),
            ("{\"timestamp\": 0, \"hash_ids\": []}", At::Whole),
            (&format!("{good}nonsense"), At::Line(2)),
            // Truncated.
            (&format!("{good}\n{}", &good[..20]), At::Line(3)),
            ("{\"timestamp\": 0}", At::Line(1)),
            (&format!("{good}{{\"timestamp\": 8, \"hash_ids\": [1]}}"), At::Line(2)),
            ("{\"timestamp\": 0, \"hash_ids\": [-1]}", At::Line(1)),
            // Later than simulated time can represent.
            (&format!("{good}{{\"timestamp\": {}, \"hash_ids\": [1]}}", u64::MAX), At::Line(2)),
            // Too many or too few blocks for its tokens.
            ("{\"timestamp\": 0, \"input_length\": 512, \"hash_ids\": [1, 2]}", At::Line(1)),
            ("{\"timestamp\": 0, \"input_length\": 1024, \"hash_ids\": [1]}", At::Line(1)),
            // One block after two prefixes, in two requests and in one.
            (&format!("{good}{{\"timestamp\": 9, \"hash_ids\": [2]}}"), At::Line(2)),
            ("{\"timestamp\": 0, \"hash_ids\": [1, 1]}", At::Line(1)),
            ("\u{1}\u{2}", At::Line(1)),
        ];
        for (text, at) in cases {
            assert_eq!(read(text).map_err(|broken| broken.at), Err(at), "{text}");
        }
    }
}
