//! Conversion of status codes, both ways.

use kvtide_tiering::api::Status as Core;
use kvtide_wire::status::Status as Wire;

/// Return the code that an engine sees for a status of the core.
#[must_use]
pub const fn to_wire(status: Core) -> Wire {
    match status {
        Core::Ok => Wire::Ok,
        Core::Again => Wire::Again,
        Core::Invalid => Wire::Invalid,
        Core::NotFound => Wire::NotFound,
        Core::Range => Wire::Range,
        Core::NoSpace => Wire::NoSpace,
        Core::TooBig => Wire::TooBig,
        Core::Busy => Wire::Busy,
        Core::TimedOut => Wire::TimedOut,
        Core::Canceled => Wire::Canceled,
        Core::Lost => Wire::Lost,
        Core::Io => Wire::Io,
        Core::NotAdmitted => Wire::NotAdmitted,
        Core::Limit => Wire::Limit,
        Core::State => Wire::State,
        Core::Internal => Wire::Internal,
        Core::Corrupt => Wire::Corrupt,
    }
}

/// Return the core's status for a code; `None` for codes that the core does not use (handshake, dead daemon, fork).
#[must_use]
pub const fn from_wire(status: Wire) -> Option<Core> {
    match status {
        Wire::Ok => Some(Core::Ok),
        Wire::Again => Some(Core::Again),
        Wire::Invalid => Some(Core::Invalid),
        Wire::NotFound => Some(Core::NotFound),
        Wire::Range => Some(Core::Range),
        Wire::NoSpace => Some(Core::NoSpace),
        Wire::TooBig => Some(Core::TooBig),
        Wire::Busy => Some(Core::Busy),
        Wire::TimedOut => Some(Core::TimedOut),
        Wire::Canceled => Some(Core::Canceled),
        Wire::Lost => Some(Core::Lost),
        Wire::Io => Some(Core::Io),
        Wire::NotAdmitted => Some(Core::NotAdmitted),
        Wire::Limit => Some(Core::Limit),
        Wire::State => Some(Core::State),
        Wire::Internal => Some(Core::Internal),
        Wire::Corrupt => Some(Core::Corrupt),
        Wire::Daemon | Wire::Fork | Wire::Version | Wire::Permission | Wire::Protocol | Wire::System | Wire::Device => {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_status_comes_back_from_the_wire() {
        let mut known = 0;
        for wire in Wire::ALL {
            if let Some(core) = from_wire(wire) {
                assert_eq!(to_wire(core), wire);
                known += 1;
            }
        }
        assert_eq!(known, 17);
    }
}
