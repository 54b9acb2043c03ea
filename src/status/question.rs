//! A question to a thread, asked again only once it was answered: a thread that hangs collects no letters.

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::time::{Duration, Instant};

/// One thread, as the watch knows it.
#[derive(Debug)]
pub(super) struct Question<T> {
    /// Since when an answer is due, and where it will come; `None` inside: the thread's mailbox was full.
    due: Option<(Instant, Option<Receiver<T>>)>,
}

/// What came of a question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer<T> {
    /// How the thread stands now.
    Told(T),
    /// It did not answer within the bound; for so long it has not answered by now.
    Silent(Duration),
    /// It has ended.
    Gone,
}

impl<T> Question<T> {
    /// Nothing asked.
    pub fn new() -> Question<T> {
        Question { due: None }
    }

    /// Asks, unless an answer is due already. `send` is told where to answer and must not block; false if the letter was not
    /// taken.
    pub fn put(&mut self, now: Instant, send: impl FnOnce(Sender<T>) -> bool) {
        if matches!(self.due, Some((_, Some(_)))) {
            return;
        }
        let since = self.due.take().map_or(now, |(since, _)| since);
        let (reply, answer) = bounded(1);
        self.due = Some((since, send(reply).then_some(answer)));
    }

    /// Waits for the answer until `deadline`.
    pub fn answer(&mut self, deadline: Instant) -> Answer<T> {
        let (since, answer) = match &self.due {
            Some((since, Some(answer))) => (*since, answer),
            Some((since, None)) => return Answer::Silent(since.elapsed()),
            None => return Answer::Silent(Duration::ZERO),
        };
        // The thread may have answered long ago, before this deadline was thought of.
        let left = deadline.saturating_duration_since(Instant::now());
        match answer.recv_timeout(left) {
            Ok(told) => {
                self.due = None;
                Answer::Told(told)
            }
            Err(RecvTimeoutError::Timeout) => Answer::Silent(since.elapsed()),
            Err(RecvTimeoutError::Disconnected) => {
                self.due = None;
                Answer::Gone
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(1)
    }

    #[test]
    fn a_silent_thread_gets_one_letter_and_its_late_answer_counts() {
        let mut question = Question::new();
        let (letters, mailbox) = bounded::<Sender<u32>>(4);
        let began = Instant::now();
        for _ in 0..3 {
            question.put(Instant::now(), |reply| letters.try_send(reply).is_ok());
            let Answer::Silent(silence) = question.answer(soon()) else { panic!("nobody answered") };
            assert!(silence <= began.elapsed());
        }
        assert_eq!(mailbox.len(), 1);
        mailbox.recv().unwrap().send(7).unwrap();
        question.put(Instant::now(), |_| panic!("an answer is there"));
        assert_eq!(question.answer(soon()), Answer::Told(7));
    }

    #[test]
    fn a_full_mailbox_is_silence_from_the_first_time_on() {
        let mut question = Question::<u32>::new();
        let long_ago = Instant::now() - Duration::from_secs(9);
        question.put(long_ago, |_| false);
        question.put(Instant::now(), |_| false);
        assert!(matches!(question.answer(soon()), Answer::Silent(silence) if silence >= Duration::from_secs(9)));
        question.put(Instant::now(), |reply| reply.send(1).is_ok());
        assert_eq!(question.answer(soon()), Answer::Told(1));
    }

    #[test]
    fn a_thread_that_ends_with_the_letter_unread_is_gone() {
        let mut question = Question::<u32>::new();
        question.put(Instant::now(), |reply| {
            drop(reply);
            true
        });
        assert_eq!(question.answer(soon()), Answer::Gone);
    }
}
