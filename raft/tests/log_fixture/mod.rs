//! Builds logs for the tests of the segment log, and a model that says what must survive a crash.

// Each test binary uses a part of this, and a test fails by panicking.
#![allow(dead_code, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use openraft::{
    storage::{IOFlushed, RaftLogReader, RaftLogStorage},
    type_config::TypeConfigExt,
};
use tidemark_raft::{
    TokioRuntime,
    log::{Driver, Error, LogHandle, LogIdentity, Options, SegmentLog},
    types::{CommittedLeaderId, EncodedCommand, Entry, LeaderId, LogId, Payload, Types, Vote},
    vfs::{Access, SimulatedDisk, Vfs, read_whole},
};

pub type Config = Types<TokioRuntime>;

/// Directory of the log on simulated disks.
pub const DIRECTORY: &str = "/data/log";

/// Whose log the tests write.
pub const IDENTITY: LogIdentity = LogIdentity { cluster_id: *b"0123456789abcdef", node_id: 7, group_id: 0 };

pub fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::from(term), index)
}

pub fn vote(term: u64, node_id: u64, committed: bool) -> Vote {
    Vote { leader_id: LeaderId { term, voted_for: node_id }, committed }
}

/// An entry whose payload depends on its id, so that a mix-up shows.
pub fn entry(term: u64, index: u64, bytes: usize) -> Entry {
    let seed = (term * 31 + index * 7) as u8;
    let payload: Vec<u8> = (0..bytes).map(|at| seed.wrapping_add(at as u8)).collect();
    let payload = if bytes == 0 { Payload::Blank } else { Payload::Normal(EncodedCommand(payload.into())) };
    Entry { log_id: log_id(term, index), payload }
}

/// A log on a simulated disk, driven as a task on the current runtime.
pub fn simulated_options(disk: &SimulatedDisk, segment_bytes: u32) -> Options {
    Options {
        segment_bytes,
        driver: Driver::tokio_task(Duration::from_micros(100)),
        blocking: Arc::new(|job| job()),
        clock: Arc::new(|| Duration::ZERO),
        ..Options::new(Arc::new(disk.vfs()), DIRECTORY, IDENTITY)
    }
}

/// Runs a future on one thread with simulated time.
pub fn simulate<F: Future>(future: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can be built")
        .block_on(future)
}

/// Appends and returns a receiver of the completion.
pub async fn submit(
    log: &mut SegmentLog,
    entries: Vec<Entry>,
) -> io::Result<impl Future<Output = io::Result<()>> + Send + 'static> {
    let (sender, receiver) = Config::oneshot();
    RaftLogStorage::<Config>::append(log, entries, IOFlushed::signal(sender)).await?;
    Ok(async move { receiver.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())) })
}

/// Appends and waits until it is durable.
pub async fn append(log: &mut SegmentLog, entries: Vec<Entry>) -> io::Result<()> {
    submit(log, entries).await?.await
}

pub async fn save_vote(log: &mut SegmentLog, vote: Vote) -> io::Result<()> {
    RaftLogStorage::<Config>::save_vote(log, &vote).await
}

pub async fn truncate_after(log: &mut SegmentLog, last: Option<LogId>) -> io::Result<()> {
    RaftLogStorage::<Config>::truncate_after(log, last).await
}

pub async fn purge(log: &mut SegmentLog, upto: LogId) -> io::Result<()> {
    RaftLogStorage::<Config>::purge(log, upto).await
}

pub async fn save_committed(log: &mut SegmentLog, committed: LogId) -> io::Result<()> {
    RaftLogStorage::<Config>::save_committed(log, Some(committed)).await
}

/// Entries of a range, however they are stored.
pub async fn read(log: &SegmentLog, range: std::ops::Range<u64>) -> io::Result<Vec<Entry>> {
    RaftLogReader::<Config>::try_get_log_entries(&mut log.reader(), range).await
}

/// Everything that a log holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content {
    pub entries: BTreeMap<u64, Entry>,
    pub next: u64,
    pub vote: Option<Vote>,
    pub purged: Option<LogId>,
    pub committed: Option<LogId>,
}

impl Content {
    /// Reads all of an open log, and checks that it is consecutive.
    pub async fn of(log: &mut SegmentLog) -> Self {
        let state = RaftLogStorage::<Config>::get_log_state(log).await.unwrap();
        let entries = read(log, 0..u64::MAX).await.unwrap();
        let first = state.last_purged_log_id.map_or(0, |purged| purged.index + 1);
        for (index, entry) in (first..).zip(&entries) {
            assert_eq!(entry.log_id.index, index, "the log is consecutive from where it was purged");
        }
        assert_eq!(state.last_log_id, entries.last().map(|last| last.log_id).or(state.last_purged_log_id));
        Self {
            next: first + entries.len() as u64,
            entries: entries.into_iter().map(|entry| (entry.log_id.index, entry)).collect(),
            vote: RaftLogReader::<Config>::read_vote(&mut log.reader()).await.unwrap(),
            purged: state.last_purged_log_id,
            committed: RaftLogStorage::<Config>::read_committed(log).await.unwrap(),
        }
    }
}

/// One change of a log, as small as what a crash can keep or lose.
#[derive(Clone, Debug)]
pub enum Change {
    Entry(Entry),
    Vote(Vote),
    Truncate(u64),
    Purge(LogId),
    Committed(LogId),
}

/// All changes requested of a log in order, and how many of them were acknowledged as durable.
#[derive(Clone, Default)]
pub struct History {
    pub changes: Vec<Change>,
    acknowledged: Arc<AtomicUsize>,
}

impl History {
    pub fn acknowledge(&self, changes: usize) {
        self.acknowledged.fetch_max(changes, Ordering::SeqCst);
    }

    pub fn acknowledged(&self) -> usize {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// The log after the first so many changes.
    pub fn content_after(&self, changes: usize) -> Content {
        let mut content = Content::default();
        for change in &self.changes[..changes] {
            match change {
                Change::Entry(entry) => {
                    content.entries.insert(entry.log_id.index, entry.clone());
                    content.next = entry.log_id.index + 1;
                }
                Change::Vote(vote) => content.vote = Some(*vote),
                Change::Truncate(next) => {
                    content.entries.split_off(next);
                    content.next = *next;
                }
                Change::Purge(upto) => {
                    content.entries = content.entries.split_off(&(upto.index + 1));
                    content.purged = Some(*upto);
                    content.next = content.next.max(upto.index + 1);
                }
                Change::Committed(committed) => content.committed = Some(*committed),
            }
        }
        content
    }

    /// What a crash left must be what the log was after some number of changes, and nothing that was acknowledged
    /// may be missing. Returns that number. Commits are noted without a sync and only the latest of a batch is written, so they may lag.
    #[track_caller]
    pub fn check(&self, found: &Content, story: &dyn std::fmt::Debug) -> usize {
        let acknowledged = self.acknowledged();
        let without_committed = |content: &Content| Content { committed: None, ..content.clone() };
        let found_rest = without_committed(found);
        let reached = (acknowledged..=self.changes.len())
            .rev()
            .find(|changes| without_committed(&self.content_after(*changes)) == found_rest);
        let Some(reached) = reached else {
            panic!(
                "{story:?}: what was found is no state after {acknowledged} or more of {} changes\nfound: {:?}\n\
                 acknowledged: {:?}",
                self.changes.len(),
                summary(found),
                summary(&self.content_after(acknowledged)),
            );
        };
        if let Some(committed) = found.committed {
            let noted = |change: &Change| matches!(change, Change::Committed(noted) if *noted >= committed);
            assert!(self.changes.iter().any(noted), "{story:?}: {committed} was never committed");
        }
        assert!(found.committed <= self.content_after(self.changes.len()).committed, "{story:?}");
        let acknowledged_committed = self.content_after(acknowledged).committed;
        assert!(
            found.committed >= acknowledged_committed,
            "{story:?}: commit went back, at change {reached}"
        );
        reached
    }

    /// Size of the payload of a change that is an entry.
    pub fn payload_bytes(&self, change: usize) -> Option<usize> {
        match self.changes.get(change)? {
            Change::Entry(entry) => match &entry.payload {
                Payload::Normal(command) => Some(command.0.len()),
                Payload::Blank | Payload::Membership(_) => Some(0),
            },
            Change::Vote(_) | Change::Truncate(_) | Change::Purge(_) | Change::Committed(_) => None,
        }
    }
}

fn summary(content: &Content) -> String {
    let terms: Vec<_> = content.entries.values().map(|entry| entry.log_id.to_string()).collect();
    let Content { next, vote, purged, committed, .. } = content;
    format!("next {next}, vote {vote:?}, purged {purged:?}, committed {committed:?}, entries {terms:?}")
}

/// A log together with the history that was requested of it.
pub struct Recorder {
    pub log: SegmentLog,
    pub handle: LogHandle,
    pub history: History,
    next: u64,
}

impl Recorder {
    /// A recorder of a new, empty log; purges are not limited.
    pub fn open(options: Options) -> Result<Self, Error> {
        let log = SegmentLog::open(options)?;
        let handle = log.handle();
        handle.set_purge_limit(u64::MAX);
        Ok(Self { log, handle, history: History::default(), next: 0 })
    }

    /// Goes on with the history after the log was opened again.
    pub fn reopen(history: History, options: Options) -> Result<Self, Error> {
        let next = history.content_after(history.changes.len()).next;
        Ok(Self { next, history, ..Self::open(options)? })
    }

    /// Does one step; the error means that the log has ended.
    pub async fn step(&mut self, step: &Step) -> io::Result<()> {
        match *step {
            Step::Append { term, entries, bytes } => {
                let done = self.submit(term, entries, bytes).await?;
                done.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
            }
            Step::Submit { term, entries, bytes } => self.submit(term, entries, bytes).await.map(drop),
            Step::Vote { term, committed } => {
                let vote = vote(term, term % 3 + 1, committed);
                self.history.changes.push(Change::Vote(vote));
                let upto = self.history.changes.len();
                save_vote(&mut self.log, vote).await?;
                self.history.acknowledge(upto);
                Ok(())
            }
            Step::Truncate { entries } => {
                let content = self.history.content_after(self.history.changes.len());
                let floor = content.committed.max(content.purged).map_or(0, |floor| floor.index + 1);
                let next = self.next.saturating_sub(entries).max(floor);
                if next >= self.next {
                    return Ok(());
                }
                self.history.changes.push(Change::Truncate(next));
                self.next = next;
                let last = content.entries.get(&next.wrapping_sub(1)).map(|entry| entry.log_id);
                truncate_after(&mut self.log, last.or(content.purged)).await
            }
            Step::Commit { behind } => {
                let Some(upto) = self.id_behind(behind) else { return Ok(()) };
                self.history.changes.push(Change::Committed(upto));
                save_committed(&mut self.log, upto).await
            }
            Step::Purge { behind } => {
                let Some(upto) = self.id_behind(behind) else { return Ok(()) };
                self.history.changes.push(Change::Purge(upto));
                purge(&mut self.log, upto).await
            }
            Step::Install { term, ahead } => {
                let upto = log_id(term, self.next + ahead);
                self.history.changes.push(Change::Purge(upto));
                self.next = upto.index + 1;
                purge(&mut self.log, upto).await
            }
            Step::Flush => {
                let upto = self.history.changes.len();
                self.handle.flush().await.map_err(io::Error::other)?;
                self.history.acknowledge(upto);
                Ok(())
            }
            Step::Quiet => {
                tokio::time::sleep(Duration::from_millis(250)).await;
                Ok(())
            }
        }
    }

    async fn submit(
        &mut self,
        term: u64,
        entries: u64,
        bytes: usize,
    ) -> io::Result<tokio::task::JoinHandle<io::Result<()>>> {
        let entries: Vec<_> =
            (self.next..self.next + entries).map(|index| entry(term, index, bytes)).collect();
        self.next += entries.len() as u64;
        self.history.changes.extend(entries.iter().cloned().map(Change::Entry));
        let upto = self.history.changes.len();
        let done = submit(&mut self.log, entries).await?;
        let history = self.history.clone();
        Ok(tokio::spawn(async move {
            done.await?;
            history.acknowledge(upto);
            Ok(())
        }))
    }

    /// An entry that the log holds, so far before its end, but after what was purged.
    fn id_behind(&self, behind: u64) -> Option<LogId> {
        let content = self.history.content_after(self.history.changes.len());
        let last = content.entries.keys().next_back()?;
        let index = last.saturating_sub(behind);
        let committed = content.committed.map_or(0, |committed| committed.index);
        content.entries.get(&index.max(committed)).map(|entry| entry.log_id)
    }
}

/// One step of a workload. Requests do not wait for each other unless they say so.
#[derive(Clone, Debug)]
pub enum Step {
    /// Appends and waits.
    Append { term: u64, entries: u64, bytes: usize },
    /// Appends without waiting.
    Submit { term: u64, entries: u64, bytes: usize },
    /// Saves a vote, which waits.
    Vote { term: u64, committed: bool },
    /// Cuts off so many entries, as far as they are not committed.
    Truncate { entries: u64 },
    /// Commits all but so many entries.
    Commit { behind: u64 },
    /// Purges all but so many entries.
    Purge { behind: u64 },
    /// Purges beyond the end, as after the install of a snapshot.
    Install { term: u64, ahead: u64 },
    /// Waits for everything.
    Flush,
    /// Lets time pass, so that a mark is written.
    Quiet,
}

/// The bytes of every segment on a simulated disk.
pub fn segment_files(disk: &SimulatedDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    files_in(&disk.vfs(), Path::new(DIRECTORY))
}

/// The bytes of every segment in a directory.
pub fn files_in(vfs: &dyn Vfs, directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for name in vfs.list(directory).unwrap().into_iter().filter(|name| name.ends_with(".log")) {
        let path = directory.join(name);
        let mut bytes = Vec::new();
        read_whole(&*vfs.open(&path, Access::Read).unwrap(), &mut bytes).unwrap();
        files.insert(path, bytes);
    }
    files
}

/// A disk that holds these files, durably.
pub fn disk_with(files: &BTreeMap<PathBuf, Vec<u8>>) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    let vfs = disk.vfs();
    vfs.create_directory(Path::new(DIRECTORY)).unwrap();
    for (path, bytes) in files {
        let file = vfs.create(path).unwrap();
        file.write_at(0, bytes).unwrap();
        file.sync_all().unwrap();
    }
    vfs.sync_directory(Path::new(DIRECTORY)).unwrap();
    disk
}
