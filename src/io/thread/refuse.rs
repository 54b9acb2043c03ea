//! A disk that does nothing: whatever is sent to it comes back as failed.

use super::DiskLetter;
use crate::io::stats::DiskStatus;
use crate::io::transfer::Transfer;
use crate::mail::{Mailbox, Waited};
use crossbeam::channel::TrySendError;
use kvtide_tiering::api::Status;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long an answer waits that its reader's mailbox did not take.
const OFFER_AGAIN: Duration = Duration::from_millis(1);

/// Until the disk's end.
pub(super) fn all(letters: &Mailbox<DiskLetter>, status: &DiskStatus, errno: i32) {
    letters.awake();
    let mut answers: VecDeque<Box<Transfer>> = VecDeque::new();
    loop {
        for _ in 0..answers.len() {
            let Some(transfer) = answers.pop_front() else { break };
            let reply = transfer.reply.clone();
            if let Err(TrySendError::Full(transfer)) = reply.offer(transfer) {
                answers.push_back(transfer);
            }
        }
        let again = (!answers.is_empty()).then(|| Instant::now() + OFFER_AGAIN);
        match letters.wait_until(again) {
            Waited::Letter(DiskLetter::Transfer(mut transfer)) => {
                (transfer.status, transfer.errno) = (Status::Io, errno);
                answers.push_back(transfer);
            }
            Waited::Letter(DiskLetter::Status(reply)) => drop(reply.try_send(status.clone())),
            Waited::Letter(DiskLetter::End) | Waited::Gone => return,
            Waited::Letter(DiskLetter::Urge { .. } | DiskLetter::Register(_) | DiskLetter::Forget(_)) | Waited::Due => {
            }
        }
    }
}
