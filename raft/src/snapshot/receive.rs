//! The receiver: builds a fresh database from a stream and hands it over only when it is complete.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use prost::Message;
use tidemark_proto::{
    peer::{SnapshotBlock, SnapshotChunk, SnapshotHeader, SnapshotTrailer, snapshot_chunk::Part},
    record,
};
use tidemark_state_machine::digest::DigestBuilder;
use tidemark_storage::{
    contract::{Batch, Durability},
    tables,
};
use tokio::sync::watch;

use super::{FORMAT_VERSION, block};
use crate::{
    convert,
    database::{Databases, Fresh},
    environment::Environment,
    machine::Progress,
    network::{PeerError, Stream},
    types::{CommittedLeaderId, LogId, Member, NodeId, Vote},
};

/// openraft's name of a state: what is applied and who the members are.
pub(crate) type Meta = openraft::SnapshotMeta<CommittedLeaderId, NodeId, Member>;

/// A database to switch to: complete, verified and on stable storage.
pub struct Received {
    pub(crate) vote: Vote,
    pub(crate) meta: Meta,
    pub(crate) database: Fresh,
}

/// How a stream ended.
pub(crate) enum Reception {
    /// With a database to switch to.
    Complete(Box<Received>),
    /// At its header: this replica has applied everything that the snapshot holds.
    AlreadyApplied {
        /// The sender's vote.
        vote: Vote,
    },
}

/// Receives snapshots for one replica.
pub(crate) struct Receiver {
    databases: Arc<Databases>,
    cluster_id: [u8; 16],
    group_id: u32,
    applied: watch::Receiver<Progress>,
    /// One at a time: there is one directory beside the current one.
    busy: tokio::sync::Mutex<()>,
}

fn refused(why: impl Into<String>) -> PeerError {
    PeerError::Refused(why.into())
}

fn storage(error: tidemark_storage::error::Error) -> PeerError {
    PeerError::Failed(format!("store a received snapshot: {error}"))
}

impl Receiver {
    pub(crate) fn new(
        databases: Arc<Databases>,
        cluster_id: [u8; 16],
        group_id: u32,
        applied: watch::Receiver<Progress>,
    ) -> Self {
        Self { databases, cluster_id, group_id, applied, busy: tokio::sync::Mutex::default() }
    }

    /// Reads a whole stream. A snapshot that is older than this replica, of another cluster, incomplete or
    /// damaged never reaches consensus.
    pub(crate) async fn receive(
        &self,
        environment: &Environment,
        mut chunks: Stream<SnapshotChunk>,
    ) -> Result<Reception, PeerError> {
        let Ok(_busy) = self.busy.try_lock() else {
            return Err(PeerError::Unavailable("another snapshot is being received".to_owned()));
        };
        let Some(Part::Header(header)) = chunks.next().await.and_then(|chunk| chunk.part) else {
            return Err(refused("a snapshot stream that does not begin with a header"));
        };
        let (vote, meta) = self.check(header)?;
        if meta.last_log_id <= self.applied.borrow().log_id {
            return Ok(Reception::AlreadyApplied { vote });
        }
        tracing::info!(last_log_id = ?meta.last_log_id, "receiving a snapshot");
        let databases = Arc::clone(&self.databases);
        let database = environment.blocking(move || databases.create_fresh()).await.map_err(storage)?;
        let mut digest = DigestBuilder::new();
        while let Some(chunk) = chunks.next().await {
            match chunk.part {
                Some(Part::Block(block)) => digest = load(environment, &database, digest, block).await?,
                Some(Part::Trailer(trailer)) => {
                    finish(environment, &database, digest, &trailer, &meta).await?;
                    tracing::info!(rows = trailer.row_count, "received a snapshot");
                    return Ok(Reception::Complete(Box::new(Received { vote, meta, database })));
                }
                Some(Part::Header(_)) | None => return Err(refused("a second header in a snapshot stream")),
            }
        }
        Err(refused("a snapshot stream without a trailer: the sender stopped in the middle"))
    }

    fn check(&self, header: SnapshotHeader) -> Result<(Vote, Meta), PeerError> {
        if header.format_version != FORMAT_VERSION {
            return Err(refused(format!(
                "a snapshot of format {}, this release reads format {FORMAT_VERSION}",
                header.format_version
            )));
        }
        if header.cluster_id.as_ref() != self.cluster_id || header.group_id != self.group_id {
            return Err(refused("a snapshot of another cluster or group"));
        }
        let (Some(vote), Some(membership)) = (header.vote, header.membership) else {
            return Err(refused("a snapshot header without vote or membership"));
        };
        let membership = convert::stored_membership_from_record(&membership)
            .map_err(|error| refused(format!("a snapshot with an invalid membership: {error}")))?;
        let meta = Meta {
            last_log_id: header.last_log_id.as_ref().map(convert::log_id_from_record),
            last_membership: membership,
        };
        Ok((convert::vote_from_record(&vote), meta))
    }
}

async fn load(
    environment: &Environment,
    database: &Fresh,
    mut digest: DigestBuilder,
    block: SnapshotBlock,
) -> Result<DigestBuilder, PeerError> {
    let db = Arc::clone(&database.db);
    environment
        .blocking(move || {
            let rows = block::rows(&block).map_err(|error| refused(error.to_string()))?;
            let mut batch = Batch::new();
            for (key, value) in rows {
                if tables::is_local(&key) {
                    return Err(refused("a row that every replica derives for itself"));
                }
                digest.add(&key, &value);
                batch.put(key, value);
            }
            db.commit(batch, Durability::Buffered).map_err(storage)?;
            Ok(digest)
        })
        .await
}

async fn finish(
    environment: &Environment,
    database: &Fresh,
    digest: DigestBuilder,
    trailer: &SnapshotTrailer,
    meta: &Meta,
) -> Result<(), PeerError> {
    let digest = digest.finish();
    if digest.rows != trailer.row_count || digest.hash.as_slice() != trailer.digest.as_ref() {
        return Err(refused(format!(
            "a snapshot that arrived damaged: {digest}, but the sender had {} rows",
            trailer.row_count
        )));
    }
    let db = Arc::clone(&database.db);
    let applied = environment
        .blocking(move || {
            db.flush()?;
            db.get(&tables::raft_applied_key())
        })
        .await
        .map_err(storage)?;
    // Meta older than the data would make this replica apply entries twice.
    if decode_applied(applied)? != meta.last_log_id {
        return Err(refused("a snapshot whose header names another state than its rows"));
    }
    Ok(())
}

fn decode_applied(row: Option<Bytes>) -> Result<Option<LogId>, PeerError> {
    let decode = |row: Bytes| record::LogId::decode(row).map(|log_id| convert::log_id_from_record(&log_id));
    row.map(decode).transpose().map_err(|_| refused("a snapshot with an unreadable applied log id"))
}
