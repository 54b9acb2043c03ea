//! What the service manager (systemd) is told: that the daemon is ready, reloads, ends, and that it is alive.
//!
//! Without `NOTIFY_SOCKET` in the environment nobody is told anything. A message that cannot be sent is logged: the service
//! manager then acts as its unit says.

use sd_notify::NotifyState;
use std::time::Duration;

/// How long a step of the start may take before the service manager gives it up, beyond what its unit allows.
const STEP: Duration = Duration::from_secs(60);

/// Engines can attach.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The configuration is being read again; [`ready`] says that this is over.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("the service manager is not told of the reload: no clock: {error}"),
    }
}

/// The start goes on, and takes its time: so far, in words.
pub(crate) fn starting(status: &str) {
    tell(&[NotifyState::ExtendTimeoutUsec(STEP.as_micros() as u32), NotifyState::Status(status)]);
}

/// The daemon ends.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Everything was healthy just now.
pub(crate) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// What an operator reads in `systemctl status`.
pub(crate) fn say(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// Within what time the service manager wants to hear of us again and again, if it does.
pub(crate) fn watchdog() -> Option<Duration> {
    let mut usec = 0;
    sd_notify::watchdog_enabled(false, &mut usec).then(|| Duration::from_micros(usec))
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, state) {
        let what: Vec<_> = state.iter().map(ToString::to_string).collect();
        tracing::warn!("the service manager could not be told {}: {error}", what.join(", "));
    }
}
