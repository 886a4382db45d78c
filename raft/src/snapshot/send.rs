//! The sender: reads a view block by block, as fast as the receiver takes them and the rate allows.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use tidemark_proto::peer;
use tidemark_state_machine::digest::DigestBuilder;
use tidemark_storage::{
    contract::{Direction, KeyRange, Snapshot},
    tables,
};
use tokio::time::Instant;

use super::{FORMAT_VERSION, Header, Options, Source, block::BlockBuilder};
use crate::{convert, environment::Environment, network::Stream};

/// What is still to be sent.
enum Stage {
    Header(peer::SnapshotHeader),
    Rows(Box<Cursor>),
    End,
}

struct Cursor {
    snapshot: Arc<dyn Snapshot>,
    /// First key that was not sent.
    next: Bytes,
    digest: DigestBuilder,
    due: Instant,
}

/// The next rows of a view.
struct Block {
    /// `None`: there are no more.
    message: Option<peer::SnapshotBlock>,
    cursor: Cursor,
}

/// The stream of chunks that `source` consists of. A failing read ends the stream without a trailer, so that the
/// receiver refuses it.
pub(crate) fn send(
    environment: Environment,
    source: Source,
    header: Header,
    options: &Options,
) -> Stream<peer::SnapshotChunk> {
    let header = peer::SnapshotHeader {
        format_version: FORMAT_VERSION,
        // The transport names cluster and group in every call; they are repeated for the receiver's own check.
        cluster_id: Bytes::copy_from_slice(&header.cluster_id),
        group_id: header.group_id,
        vote: Some(convert::vote_to_record(&header.vote)),
        last_log_id: header.meta_log_id.as_ref().map(convert::log_id_to_record),
        membership: Some(convert::stored_membership_to_record(&header.membership)),
    };
    let options = options.clone();
    let state = (Stage::Header(header), Some(source), environment, options);
    futures::stream::unfold(state, |(stage, source, environment, options)| async move {
        match stage {
            Stage::Header(header) => {
                let cursor = Cursor {
                    snapshot: source?.snapshot,
                    next: Bytes::new(),
                    digest: DigestBuilder::new(),
                    due: Instant::now(),
                };
                let chunk = chunk(peer::snapshot_chunk::Part::Header(header));
                Some((chunk, (Stage::Rows(Box::new(cursor)), None, environment, options)))
            }
            Stage::Rows(cursor) => rows(*cursor, environment, options).await,
            Stage::End => None,
        }
    })
    .boxed()
}

type State = (Stage, Option<Source>, Environment, Options);

async fn rows(
    cursor: Cursor,
    environment: Environment,
    options: Options,
) -> Option<(peer::SnapshotChunk, State)> {
    tokio::time::sleep_until(cursor.due).await;
    let block_bytes = options.block_bytes;
    let block = environment.blocking(move || read_block(cursor, block_bytes)).await;
    let mut block = block
        .inspect_err(|error| tracing::error!(%error, "gave up sending a snapshot: a row cannot be read"))
        .ok()?;
    let Some(message) = block.message else {
        let digest = block.cursor.digest.finish();
        let trailer =
            peer::SnapshotTrailer { row_count: digest.rows, digest: Bytes::copy_from_slice(&digest.hash) };
        return Some((
            chunk(peer::snapshot_chunk::Part::Trailer(trailer)),
            (Stage::End, None, environment, options),
        ));
    };
    block.cursor.due += transfer_time(message.compressed.len(), options.bytes_per_second);
    // A receiver that was slow is not owed a burst.
    block.cursor.due = block.cursor.due.max(Instant::now());
    let chunk = chunk(peer::snapshot_chunk::Part::Block(message));
    Some((chunk, (Stage::Rows(Box::new(block.cursor)), None, environment, options)))
}

fn chunk(part: peer::snapshot_chunk::Part) -> peer::SnapshotChunk {
    peer::SnapshotChunk { part: Some(part) }
}

fn transfer_time(bytes: usize, bytes_per_second: u64) -> Duration {
    Duration::from_micros((bytes as u64).saturating_mul(1_000_000) / bytes_per_second.max(1))
}

fn read_block(mut cursor: Cursor, block_bytes: usize) -> Result<Block, tidemark_storage::error::Error> {
    let mut builder = BlockBuilder::default();
    let range = KeyRange { lower: Some(cursor.next.clone()), upper: None };
    let mut last = None;
    cursor.snapshot.scan(&range, Direction::Ascending, &mut |key, value| {
        last = Some(Bytes::copy_from_slice(key));
        if !tables::is_local(key) {
            builder.push(key, value);
            cursor.digest.add(key, value);
        }
        if builder.bytes() < block_bytes {
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(())
    })?;
    if let Some(last) = last {
        cursor.next = successor(&last);
    }
    let message = (builder.bytes() > 0).then(|| builder.finish());
    Ok(Block { message, cursor })
}

/// The smallest key behind `key`.
fn successor(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}
