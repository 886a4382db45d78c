//! Group commit: turns queued work into entries, one after another, under one leadership.
//!
//! One task submits all stamped proposals, in stamp order: it alone assigns event ids and time. It drains whatever
//! is queued into one entry, without a timer, and keeps several entries in flight; while they are on their way
//! the queue grows, so batches get larger exactly when they need to.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tidemark_proto::UnknownCause;
use tidemark_raft::{Handle, Leadership, environment::Environment, error::ProposeError, types::LogId};
use tidemark_state_machine::{
    Command, Outcome,
    command::{AppendBatch, AppendRequest, BoundaryDefinition, CreateBoundary, Digest},
};
use tidemark_storage::EventId;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    time::Instant,
};

use super::{
    clock::LeaderClock,
    fair_queue::FairQueue,
    work::{Answer, SubmitError, Work},
};

/// Bounds of the queue and of entries; see `limits` and `sequencer` in the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests that wait.
    pub queue_requests: usize,
    /// Bytes of requests that wait or are in flight.
    pub queue_bytes: usize,
    /// Requests in one entry.
    pub entry_requests: usize,
    /// Events in one entry, unless one request has more.
    pub entry_events: usize,
    /// Bytes in one entry, unless one request has more.
    pub entry_bytes: usize,
    /// Bytes of an encoded entry, in any case.
    pub max_entry_bytes: u64,
    /// How long an entry waits for more requests; zero: not at all.
    pub batch_delay: Duration,
    /// Entries that are proposed and not yet applied.
    pub entries_in_flight: usize,
    /// When the outcome of an entry in flight is reported as unknown.
    pub flush_timeout: Duration,
}

/// Counters of the sequencer, for status and metrics.
#[derive(Debug, Default)]
pub struct SequencerStats {
    /// Entries proposed.
    pub entries: AtomicU64,
    /// Requests in them.
    pub requests: AtomicU64,
    /// Events in them.
    pub events: AtomicU64,
}

type Reply = oneshot::Sender<Result<Answer, SubmitError>>;

struct Submission<W> {
    work: W,
    bytes: usize,
    deadline: Instant,
    reply: Reply,
    /// Holds its part of the byte budget until the answer is there.
    _permit: OwnedSemaphorePermit,
}

/// A cheap, cloneable handle to the sequencer.
#[derive(Clone)]
pub struct Sequencer {
    queue: mpsc::Sender<Submission<Work>>,
    bytes: Arc<Semaphore>,
    options: Arc<Options>,
    stats: Arc<SequencerStats>,
}

fn size(work: &Work) -> usize {
    match work {
        Work::Append(request) => {
            request.events.iter().map(|event| event.stored.len() + 32).sum::<usize>() + 64
        }
        Work::CreateBoundary(definition) => definition.name.len() + definition.description.len() + 64,
        Work::Digest(_) => 16,
    }
}

impl Sequencer {
    /// Starts the sequencer of the group behind `raft`.
    pub fn start(raft: Handle, environment: &Environment, options: Options) -> Self {
        let (queue, inbox) = mpsc::channel(options.queue_requests);
        let options = Arc::new(options);
        let stats = Arc::new(SequencerStats::default());
        let run = Run {
            leadership: raft.leadership(),
            raft,
            environment: environment.clone(),
            options: Arc::clone(&options),
            stats: Arc::clone(&stats),
            inbox,
            appends: FairQueue::new(),
            commands: FairQueue::new(),
            repeats: HashMap::new(),
            in_flight: FuturesUnordered::new(),
            stamp: None,
            pause_until: None,
            oldest: None,
        };
        environment.executor.spawn(Box::pin(run.run()));
        let bytes = Arc::new(Semaphore::new(options.queue_bytes));
        Self { queue, bytes, options, stats }
    }

    /// Counters since the start.
    pub fn stats(&self) -> &SequencerStats {
        &self.stats
    }

    /// Submits `work` and waits for its answer. Only a leader takes work.
    ///
    /// # Errors
    ///
    /// [`SubmitError`]; anything but `Unknown` means that nothing was written.
    pub async fn submit(&self, work: Work, deadline: Instant) -> Result<Answer, SubmitError> {
        let bytes = size(&work);
        // A request larger than the whole budget may still pass, alone.
        let budget = u32::try_from(bytes.min(self.options.queue_bytes)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.bytes).acquire_many_owned(budget);
        let permit = match tokio::time::timeout_at(deadline, permit).await {
            Ok(permit) => permit.map_err(|_| SubmitError::Stopping)?,
            Err(_) => return Err(self.full("queue_bytes", self.options.queue_bytes, bytes)),
        };
        let (reply, answer) = oneshot::channel();
        let submission = Submission { work, bytes, deadline, reply, _permit: permit };
        match tokio::time::timeout_at(deadline, self.queue.send(submission)).await {
            Ok(sent) => sent.map_err(|_| SubmitError::Stopping)?,
            Err(_) => return Err(self.full("queue_requests", self.options.queue_requests, 1)),
        }
        // The queue answers at the deadline; an entry in flight answers late or never.
        match tokio::time::timeout_at(deadline + QUEUE_ANSWERS_WITHIN, answer).await {
            Ok(answer) => answer.unwrap_or(Err(SubmitError::Unknown(UnknownCause::Stopping))),
            Err(_) => Err(SubmitError::Unknown(UnknownCause::Deadline)),
        }
    }

    fn full(&self, limit: &'static str, maximum: usize, more: usize) -> SubmitError {
        SubmitError::QueueFull { limit, maximum: maximum as u64, actual: (maximum + more) as u64 }
    }
}

/// Queued work that is past its deadline is answered at least this often.
const QUEUE_ANSWERS_WITHIN: Duration = Duration::from_millis(100);

/// Longest sleep of an idle sequencer.
const IDLE: Duration = Duration::from_secs(3600);

/// An entry that consensus refused, for it could not know whether it still leads, is proposed again after this
/// long.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);

type IdempotencyKey = (u64, [u8; 16]);

fn idempotency_key(request: &AppendRequest) -> Option<IdempotencyKey> {
    request.idempotency.map(|idempotency| (request.boundary.0, idempotency.key_hash))
}

/// Work that takes an entry of its own.
enum Single {
    CreateBoundary(BoundaryDefinition),
    Digest(u64),
}

/// What a leadership stamps with.
struct Stamp {
    term: u64,
    next_id: EventId,
    clock: LeaderClock,
}

enum Cargo {
    Appends(Vec<Submission<AppendRequest>>),
    Command(Submission<Single>),
}

struct Landed {
    term: u64,
    cargo: Cargo,
    result: Result<(LogId, Outcome), ProposeError>,
}

struct Run {
    raft: Handle,
    environment: Environment,
    options: Arc<Options>,
    stats: Arc<SequencerStats>,
    leadership: watch::Receiver<Leadership>,
    inbox: mpsc::Receiver<Submission<Work>>,
    appends: FairQueue<Submission<AppendRequest>>,
    commands: FairQueue<Submission<Single>>,
    /// For every idempotency key that is queued or in flight: its repeats, which wait for that attempt.
    repeats: HashMap<IdempotencyKey, Vec<Submission<AppendRequest>>>,
    in_flight: FuturesUnordered<BoxFuture<'static, Landed>>,
    /// Present while this node leads and may stamp.
    stamp: Option<Stamp>,
    pause_until: Option<Instant>,
    /// When the oldest queued append came, for `batch_delay`.
    oldest: Option<Instant>,
}

impl Run {
    async fn run(mut self) {
        self.follow_leadership();
        let mut received = Vec::new();
        loop {
            self.propose_what_fits().await;
            let room = self.options.queue_requests.saturating_sub(self.queued());
            let wake = self.next_wake();
            tokio::select! {
                Some(landed) = self.in_flight.next() => self.land(landed),
                count = self.inbox.recv_many(&mut received, room.max(1)), if room > 0 => {
                    if count == 0 {
                        return;
                    }
                    received.drain(..).for_each(|submission| self.enqueue(submission));
                }
                changed = self.leadership.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.follow_leadership();
                }
                () = tokio::time::sleep_until(wake) => {}
            }
            // Everything that landed meanwhile makes room for larger batches.
            while let Some(Some(landed)) = futures::FutureExt::now_or_never(self.in_flight.next()) {
                self.land(landed);
            }
            self.drop_expired();
        }
    }

    fn queued(&self) -> usize {
        self.appends.len() + self.commands.len()
    }

    fn next_wake(&self) -> Instant {
        // With nothing queued there is nothing to expire: sleep until something happens.
        let idle = if self.queued() == 0 { IDLE } else { QUEUE_ANSWERS_WITHIN / 2 };
        let idle = Instant::now() + idle;
        let delayed = self.oldest.filter(|_| !self.options.batch_delay.is_zero());
        let wakes = [self.pause_until, delayed.map(|oldest| oldest + self.options.batch_delay)];
        wakes.into_iter().flatten().fold(idle, Instant::min)
    }

    fn follow_leadership(&mut self) {
        let leadership = *self.leadership.borrow_and_update();
        match leadership {
            Leadership::Ready { term } => {
                if self.stamp.as_ref().is_some_and(|stamp| stamp.term == term) {
                    return;
                }
                // The blank entry of this term is applied: nothing of earlier leaders can come after it.
                let progress = *self.raft.progress().borrow();
                let last_id = EventId::new(progress.last_event_id).unwrap_or(EventId::MAX);
                let next_id = last_id.checked_add(1).unwrap_or(EventId::MAX);
                let clock = LeaderClock::start(Arc::clone(&self.environment.clock), progress.clock_ms);
                tracing::info!(term, next_event_id = next_id.get(), "leading");
                self.stamp = Some(Stamp { term, next_id, clock });
                self.pause_until = None;
            }
            Leadership::Preparing => self.stamp = None,
            Leadership::Following { .. } | Leadership::Unknown => {
                self.stamp = None;
                self.turn_away();
            }
        }
    }

    fn turn_away(&mut self) {
        while let Some(submission) = self.appends.pop() {
            self.release(&submission.work);
            // The caller may have gone away, here and below.
            let _ = submission.reply.send(Err(SubmitError::NotLeader));
        }
        while let Some(submission) = self.commands.pop() {
            let _ = submission.reply.send(Err(SubmitError::NotLeader));
        }
        self.oldest = None;
    }

    fn enqueue(&mut self, submission: Submission<Work>) {
        let leads = !matches!(*self.leadership.borrow(), Leadership::Following { .. } | Leadership::Unknown);
        if !leads {
            let _ = submission.reply.send(Err(SubmitError::NotLeader));
            return;
        }
        let Submission { work, bytes, deadline, reply, _permit } = submission;
        match work {
            Work::Append(work) => self.enqueue_append(Submission { work, bytes, deadline, reply, _permit }),
            Work::CreateBoundary(definition) => {
                let work = Single::CreateBoundary(definition);
                self.commands.push_back(0, Submission { work, bytes, deadline, reply, _permit });
            }
            Work::Digest(id) => {
                let work = Single::Digest(id);
                self.commands.push_back(0, Submission { work, bytes, deadline, reply, _permit });
            }
        }
    }

    fn enqueue_append(&mut self, submission: Submission<AppendRequest>) {
        if let Some(key) = idempotency_key(&submission.work) {
            if let Some(waiting) = self.repeats.get_mut(&key) {
                waiting.push(submission);
                return;
            }
            self.repeats.insert(key, Vec::new());
        }
        self.oldest.get_or_insert_with(Instant::now);
        self.appends.push_back(submission.work.boundary.0, submission);
    }

    /// An attempt is over: its repeats take their turn, and apply tells them what it wrote.
    fn release(&mut self, work: &AppendRequest) {
        let Some(key) = idempotency_key(work) else { return };
        for repeat in self.repeats.remove(&key).unwrap_or_default() {
            self.enqueue_append(repeat);
        }
    }

    fn drop_expired(&mut self) {
        let now = Instant::now();
        // The oldest request is in front of its lane; deadlines differ little, so looking at fronts suffices to
        // answer all of them within a turn of the queue.
        while self.appends.peek().is_some_and(|front| front.deadline <= now || front.reply.is_closed()) {
            let submission = self.appends.pop().expect("it was just looked at");
            self.release(&submission.work);
            let _ = submission.reply.send(Err(SubmitError::Expired));
        }
        while self.commands.peek().is_some_and(|front| front.deadline <= now || front.reply.is_closed()) {
            let submission = self.commands.pop().expect("it was just looked at");
            let _ = submission.reply.send(Err(SubmitError::Expired));
        }
        if self.appends.is_empty() {
            self.oldest = None;
        }
    }

    async fn propose_what_fits(&mut self) {
        if self.pause_until.is_some_and(|until| until > Instant::now()) {
            return;
        }
        self.pause_until = None;
        while self.in_flight.len() < self.options.entries_in_flight {
            let Some(mut stamp) = self.stamp.take() else { return };
            let proposed = match self.next_command(&mut stamp) {
                Some((command, cargo)) => {
                    self.propose(&stamp, command, cargo).await;
                    true
                }
                None => false,
            };
            self.stamp = Some(stamp);
            if !proposed {
                return;
            }
        }
    }

    fn next_command(&mut self, stamp: &mut Stamp) -> Option<(Command, Cargo)> {
        if let Some(submission) = self.commands.pop() {
            let command = match &submission.work {
                Single::Digest(digest_id) => Command::Digest(Digest { digest_id: *digest_id }),
                Single::CreateBoundary(definition) => Command::CreateBoundary(CreateBoundary {
                    time_ms: stamp.clock.stamp(),
                    event_id: take_ids(stamp, 1),
                    definition: definition.clone(),
                }),
            };
            return Some((command, Cargo::Command(submission)));
        }
        let waits = self.options.batch_delay;
        let full = self.appends.len() >= self.options.entry_requests;
        if !full && self.oldest.is_some_and(|oldest| oldest.elapsed() < waits) {
            return None;
        }
        let (requests, submissions) = self.next_batch()?;
        let events = requests.iter().map(|request| request.events.len() as u64).sum();
        self.stats.requests.fetch_add(requests.len() as u64, Ordering::Relaxed);
        self.stats.events.fetch_add(events, Ordering::Relaxed);
        let time_ms = stamp.clock.stamp();
        let command =
            Command::AppendBatch(AppendBatch { time_ms, first_event_id: take_ids(stamp, events), requests });
        Some((command, Cargo::Appends(submissions)))
    }

    fn next_batch(&mut self) -> Option<(Vec<AppendRequest>, Vec<Submission<AppendRequest>>)> {
        let now = Instant::now();
        let (mut requests, mut submissions, mut events, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
        while let Some(next) = self.appends.peek() {
            let dead = next.deadline <= now || next.reply.is_closed();
            let over = events + next.work.events.len() > self.options.entry_events
                || bytes + next.bytes > self.options.entry_bytes;
            // A request that is larger than an entry may be has one of its own.
            if !dead && !requests.is_empty() && (over || requests.len() >= self.options.entry_requests) {
                break;
            }
            let submission = self.appends.pop().expect("it was just looked at");
            if dead {
                self.release(&submission.work);
                let _ = submission.reply.send(Err(SubmitError::Expired));
                continue;
            }
            events += submission.work.events.len();
            bytes += submission.bytes;
            // Reference counts of payloads, not payloads.
            requests.push(submission.work.clone());
            submissions.push(submission);
        }
        if self.appends.is_empty() {
            self.oldest = None;
        }
        (!requests.is_empty()).then_some((requests, submissions))
    }

    async fn propose(&mut self, stamp: &Stamp, command: Command, cargo: Cargo) {
        self.stats.entries.fetch_add(1, Ordering::Relaxed);
        let term = stamp.term;
        let encoded = command.encode(self.raft.group_id());
        let (maximum, actual) = (self.options.max_entry_bytes, encoded.len() as u64);
        if actual > maximum {
            // The log would refuse it, and a log that fails stops the node.
            self.refuse(cargo, &SubmitError::TooLarge { limit: "max_entry_bytes", maximum, actual });
            return;
        }
        match self.raft.propose(encoded, term).await {
            Ok(proposal) => {
                let limit = self.options.flush_timeout;
                self.in_flight.push(Box::pin(async move {
                    let result = tokio::time::timeout(limit, proposal).await;
                    Landed { term, cargo, result: result.unwrap_or(Err(ProposeError::Unknown)) }
                }));
            }
            Err(error) => self.land(Landed { term, cargo, result: Err(error) }),
        }
    }

    fn land(&mut self, landed: Landed) {
        let Landed { term, cargo, result } = landed;
        match result {
            Ok((_, Outcome::StaleBatch { last_id })) => {
                if let Some(stamp) = &mut self.stamp {
                    stamp.next_id = stamp.next_id.max(last_id.checked_add(1).unwrap_or(EventId::MAX));
                }
                self.put_back(cargo);
            }
            Ok((log_id, outcome)) => self.answer(cargo, log_id, outcome),
            Err(ProposeError::NotProposed { .. }) => {
                if self.stamp.as_ref().is_some_and(|stamp| stamp.term == term) {
                    self.pause_until = Some(Instant::now() + REFUSED_PAUSE);
                }
                self.put_back(cargo);
            }
            Err(ProposeError::Unknown) => self.give_up(cargo),
        }
    }

    fn put_back(&mut self, cargo: Cargo) {
        match cargo {
            Cargo::Appends(submissions) => {
                for submission in submissions.into_iter().rev() {
                    self.appends.push_front(submission.work.boundary.0, submission);
                }
            }
            Cargo::Command(submission) => self.commands.push_front(0, submission),
        }
        if matches!(*self.leadership.borrow(), Leadership::Following { .. } | Leadership::Unknown) {
            self.turn_away();
        }
    }

    fn answer(&mut self, cargo: Cargo, log_id: LogId, outcome: Outcome) {
        match (cargo, outcome) {
            (Cargo::Appends(submissions), Outcome::AppendBatch(outcomes)) => {
                assert_eq!(submissions.len(), outcomes.len(), "apply answers every request of a batch");
                for (submission, outcome) in submissions.into_iter().zip(outcomes) {
                    self.release(&submission.work);
                    let _ = submission.reply.send(Ok(Answer::Append(outcome)));
                }
            }
            (Cargo::Command(submission), Outcome::CreateBoundary(outcome)) => {
                let _ = submission.reply.send(Ok(Answer::CreateBoundary(outcome)));
            }
            (Cargo::Command(submission), Outcome::Digest { .. }) => {
                let _ = submission.reply.send(Ok(Answer::Digest(log_id)));
            }
            (cargo, outcome) => {
                tracing::error!(?outcome, %log_id, "the outcome is not of the command that was proposed");
                self.give_up(cargo);
            }
        }
    }

    fn give_up(&mut self, cargo: Cargo) {
        self.refuse(cargo, &SubmitError::Unknown(UnknownCause::LeadershipLost));
    }

    fn refuse(&mut self, cargo: Cargo, error: &SubmitError) {
        match cargo {
            Cargo::Appends(submissions) => {
                for submission in submissions {
                    self.release(&submission.work);
                    let _ = submission.reply.send(Err(error.clone()));
                }
            }
            Cargo::Command(submission) => {
                let _ = submission.reply.send(Err(error.clone()));
            }
        }
    }
}

fn take_ids(stamp: &mut Stamp, count: u64) -> EventId {
    let first = stamp.next_id;
    stamp.next_id = first.checked_add(count).unwrap_or(EventId::MAX);
    first
}
