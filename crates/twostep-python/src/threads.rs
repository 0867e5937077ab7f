//! The threads that do the work of this process: a pool of its own, since that of a process which was forked has no threads in
//! the copy, and work would wait for them forever.

use crate::errors::last_panic;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// The process that made the pool, and the pool.
static POOL: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

/// The pool of this process; where there is none, one with so many threads, of which 0 is one for each core.
fn pool(threads: usize) -> Result<(Arc<ThreadPool>, bool), ThreadPoolBuildError> {
    let mut kept = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some((_, pool)) = kept.as_ref().filter(|(owner, _)| *owner == process) {
        return Ok((pool.clone(), false));
    }
    let pool = Arc::new(ThreadPoolBuilder::new().num_threads(threads).build()?);
    // To end the pool of another process would wait for locks that nobody here lets go.
    std::mem::forget(kept.replace((process, pool.clone())));
    Ok((pool, true))
}

/// Lets the work of this process use so many threads; false where work has begun with others.
pub(crate) fn set(threads: usize) -> bool {
    pool(threads).is_ok_and(|(_, is_new)| is_new)
}

/// Does `work` with the threads of this process; the words of a panic within it.
pub(crate) fn within<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    let caught = || catch_unwind(AssertUnwindSafe(work)).map_err(|_| last_panic());
    match pool(0) {
        Ok((pool, _)) => pool.install(caught),
        // The system gives no more threads: the calling one has to do.
        Err(_) => caught(),
    }
}
