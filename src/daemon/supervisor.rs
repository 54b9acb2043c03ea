//! Notifications to the service manager (systemd): ready, reloading, stopping, watchdog.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing is sent. A send failure is logged; the service manager then acts by its
//! unit's timeouts.

use sd_notify::NotifyState;
use std::time::Duration;

/// Start-up time requested from the service manager with each progress report, beyond its configured timeout.
const STEP: Duration = Duration::from_secs(60);

/// Report that engines can attach.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Report that the configuration is being reloaded; [`ready`] reports the end.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("cannot notify the service manager of the reload: no clock: {error}"),
    }
}

/// Report start-up progress and extend the start timeout.
pub(crate) fn starting(status: &str) {
    tell(&[NotifyState::ExtendTimeoutUsec(STEP.as_micros() as u32), NotifyState::Status(status)]);
}

/// Report that the daemon is shutting down.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Send a watchdog ping: all threads were healthy just now.
pub(crate) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// Set the status line of `systemctl status`.
pub(crate) fn say(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// Return the watchdog interval, if the service manager set one.
pub(crate) fn watchdog() -> Option<Duration> {
    let mut usec = 0;
    sd_notify::watchdog_enabled(false, &mut usec).then(|| Duration::from_micros(usec))
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, state) {
        let what: Vec<_> = state.iter().map(ToString::to_string).collect();
        tracing::warn!("cannot notify the service manager of {}: {error}", what.join(", "));
    }
}
