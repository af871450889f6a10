//! Threads that end with the run that has started them.

use std::thread::ScopedJoinHandle;

/// Waits for a thread's result; its panic goes on in who waits.
pub fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
