//! Requests on their way to the writer, in the order in which they take effect.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::{Error, QUEUE_BYTES_MAX};
use crate::{
    convert,
    types::{Entry, LogId, Vote},
};

/// Called once when a request is durable, or with why it never will be.
pub(super) type Completion = Box<dyn FnOnce(Result<(), Arc<Error>>) + Send>;

/// One request to the writer.
pub(super) enum Request {
    /// Entries that continue the log.
    Append { entries: Vec<Entry>, done: Completion },
    /// A vote to be durable before it is acted upon (Raft, section 5.2).
    Vote { vote: Vote, done: Completion },
    /// Cut the log, so that `next` is the next index.
    Truncate { next: u64 },
    /// Forget entries up to here.
    Purge { upto: LogId },
    /// Note what is committed.
    Committed(Option<LogId>),
    /// Complete when everything before is durable.
    Flush { done: Completion },
    /// Write the closing record and end.
    Close { done: Completion },
}

impl Request {
    fn bytes(&self) -> u64 {
        match self {
            Self::Append { entries, .. } => entries.iter().map(convert::entry_bytes).sum(),
            _ => 64,
        }
    }

    /// The completion, for a request that fails before it was written.
    pub(super) fn into_completion(self) -> Option<Completion> {
        match self {
            Self::Append { done, .. }
            | Self::Vote { done, .. }
            | Self::Flush { done }
            | Self::Close { done } => Some(done),
            Self::Truncate { .. } | Self::Purge { .. } | Self::Committed(_) => None,
        }
    }
}

/// Why a waiting writer was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// There are requests.
    Requests,
    /// Nothing came for the given time.
    Quiet,
    /// Nobody can send requests any more, or the log has ended.
    Abandoned,
}

/// The queue. Both kinds of driver wait on it: a thread on the condition variable, a task on the notification.
pub(super) struct Queue {
    inner: Mutex<Inner>,
    arrived: Condvar,
    arrived_async: Notify,
    space: Notify,
}

#[derive(Default)]
struct Inner {
    requests: VecDeque<Request>,
    bytes: u64,
    ended: Option<Arc<Error>>,
    abandoned: bool,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            inner: Mutex::default(),
            arrived: Condvar::new(),
            arrived_async: Notify::new(),
            space: Notify::new(),
        }
    }

    /// Waits until the queue takes another request; the limit keeps a slow disk from filling the memory.
    pub(super) async fn ready(&self) -> Result<(), Arc<Error>> {
        loop {
            let mut space = std::pin::pin!(self.space.notified());
            // Registered before the check, so that no wake-up in between is missed.
            space.as_mut().enable();
            {
                let inner = self.inner.lock();
                if let Some(error) = &inner.ended {
                    return Err(error.clone());
                }
                if inner.bytes < QUEUE_BYTES_MAX {
                    return Ok(());
                }
            }
            space.await;
        }
    }

    /// Hands a request over; fails, dropping it, when the log has ended.
    pub(super) fn push(&self, request: Request) -> Result<(), Arc<Error>> {
        let mut inner = self.inner.lock();
        if let Some(error) = &inner.ended {
            return Err(error.clone());
        }
        inner.bytes += request.bytes();
        inner.requests.push_back(request);
        drop(inner);
        self.wake();
        Ok(())
    }

    /// Takes requests up to `bytes_max`, at least one if there is any. A close comes alone.
    pub(super) fn take(&self, bytes_max: u64) -> Vec<Request> {
        let mut inner = self.inner.lock();
        let mut taken = Vec::new();
        let mut bytes = 0;
        while let Some(request) = inner.requests.front() {
            let alone = matches!(request, Request::Close { .. });
            let more = request.bytes();
            if !taken.is_empty() && (alone || bytes + more > bytes_max) {
                break;
            }
            bytes += more;
            inner.bytes -= more;
            taken.extend(inner.requests.pop_front());
            if alone {
                break;
            }
        }
        drop(inner);
        if bytes > 0 {
            self.space.notify_waiters();
        }
        taken
    }

    /// Refuses requests from now on, and returns those that wait together with what they fail with: the first
    /// error stays.
    pub(super) fn end(&self, error: Arc<Error>) -> (Vec<Request>, Arc<Error>) {
        let mut inner = self.inner.lock();
        let error = inner.ended.get_or_insert(error).clone();
        inner.bytes = 0;
        let requests = inner.requests.drain(..).collect();
        drop(inner);
        self.space.notify_waiters();
        self.wake();
        (requests, error)
    }

    /// Nobody can send requests any more.
    pub(super) fn abandon(&self) {
        self.inner.lock().abandoned = true;
        self.wake();
    }

    /// Blocks until there is something to do, or for at most `quiet`.
    pub(super) fn wait(&self, quiet: Option<Duration>) -> Woken {
        let mut inner = self.inner.lock();
        loop {
            if let Some(woken) = inner.woken() {
                return woken;
            }
            match quiet {
                None => self.arrived.wait(&mut inner),
                Some(quiet) => {
                    if self.arrived.wait_for(&mut inner, quiet).timed_out() {
                        return inner.woken().unwrap_or(Woken::Quiet);
                    }
                }
            }
        }
    }

    /// As [`Queue::wait`], without blocking a thread; cancel it to stop waiting.
    pub(super) async fn wait_async(&self) -> Woken {
        loop {
            if let Some(woken) = self.inner.lock().woken() {
                return woken;
            }
            // A wake-up since the check left a permit.
            self.arrived_async.notified().await;
        }
    }

    fn wake(&self) {
        self.arrived.notify_one();
        self.arrived_async.notify_one();
    }
}

impl Inner {
    fn woken(&self) -> Option<Woken> {
        if self.ended.is_some() {
            Some(Woken::Abandoned)
        } else if !self.requests.is_empty() {
            Some(Woken::Requests)
        } else if self.abandoned {
            Some(Woken::Abandoned)
        } else {
            None
        }
    }
}
