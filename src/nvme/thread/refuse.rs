//! Loop of an unusable disk: all transfers fail.

use super::DiskMessage;
use crate::stats::DiskStatus;
use crate::transfer::Transfer;
use crossbeam::channel::TrySendError;
use kvtide_rt::mail::{Mailbox, Waited};
use kvtide_rt::published::Publisher;
use kvtide_types::Status;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Interval for sending answers again that a full mailbox refused.
const OFFER_AGAIN: Duration = Duration::from_millis(1);

/// Run until the disk is stopped. Its stats were published and never change.
pub(super) fn all(messages: &Mailbox<DiskMessage>, figures: &mut Publisher<DiskStatus>, errno: i32) {
    messages.awake();
    let mut answers: VecDeque<Box<Transfer>> = VecDeque::new();
    loop {
        for _ in 0..answers.len() {
            let Some(transfer) = answers.pop_front() else { break };
            let reply = transfer.reply.clone();
            if let Err(TrySendError::Full(transfer)) = reply.offer(transfer) {
                answers.push_back(transfer);
            }
        }
        let again = (!answers.is_empty()).then_some(OFFER_AGAIN);
        figures.sleep_unrung(again);
        let waited = messages.wait_until(again.map(|after| Instant::now() + after));
        figures.round();
        match waited {
            Waited::Message(DiskMessage::Transfer(mut transfer)) => {
                (transfer.status, transfer.errno) = (Status::Io, errno);
                answers.push_back(transfer);
            }
            Waited::Message(DiskMessage::End) | Waited::Gone => return,
            Waited::Message(DiskMessage::Urge { .. } | DiskMessage::Register(_) | DiskMessage::Forget(_))
            | Waited::Due => {}
        }
    }
}
