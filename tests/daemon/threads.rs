//! Stops one thread of a child process while its others run, to simulate a thread that hangs.
//!
//! Uses ptrace, because a signal would stop all threads.

use std::fs;
use std::marker::PhantomData;

/// A stopped thread; it continues on drop. Only the thread that stopped it may continue it, so this is not `Send`.
pub struct Stopped {
    tid: i32,
    _not_send: PhantomData<*const ()>,
}

impl Stopped {
    /// Stop the thread with this name of a child process.
    pub fn new(pid: u32, name: &str) -> Stopped {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let named = |tid: &i32| fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap().trim_end() == name;
        let mut tids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap().parse().unwrap());
        let tid: i32 = tids.find(named).unwrap_or_else(|| panic!("no thread {name}"));
        ptrace(libc::PTRACE_SEIZE, tid);
        ptrace(libc::PTRACE_INTERRUPT, tid);
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
        assert!(waited == tid && libc::WIFSTOPPED(status), "{name} did not stop: {waited} {status:#x}");
        Stopped { tid, _not_send: PhantomData }
    }

    /// Let the thread continue.
    pub fn go_on(self) {}
}

impl Drop for Stopped {
    fn drop(&mut self) {
        ptrace(libc::PTRACE_DETACH, self.tid);
    }
}

fn ptrace(request: libc::c_uint, tid: i32) {
    // SAFETY: these requests read and write no memory of this process.
    let done = unsafe { libc::ptrace(request, tid, 0, 0) };
    assert_eq!(done, 0, "ptrace {request}: {}", std::io::Error::last_os_error());
}
