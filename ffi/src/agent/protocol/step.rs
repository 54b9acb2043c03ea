//! A step's reads: what it needs, what is readable, what must be asked for. Pure.

/// A sequence of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSeq {
    /// Its slot.
    pub seq: u32,
    /// Tokens that attention covers at this step, the new ones included.
    pub tokens: u64,
}

/// A page that a boundary hands out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Position of its sequence in the step.
    pub position: u32,
    /// Block index within the sequence.
    pub index: u32,
    /// Frame that shows it.
    pub frame: u32,
}
