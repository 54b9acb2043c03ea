//! Launches: what an engine or the agent calls. One file a kernel or family; each checks every shape and alignment that its
//! kernel relies on, says what is wrong in an error, and enqueues on the caller's stream without waiting.
