//! One `SaveEventsStream` to one node, shared by all saves of a client.
//!
//! A save costs one queue entry, one place in a table and one message: no task and no HTTP/2 stream of its own. The
//! transport takes queued saves from [`Requests`] and packs whatever is there into one buffer; a reader task hands
//! the answers out. A save knows one of three things at the end: its answer, that it never left, or that it left
//! and no answer came.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::{FutureExt, Stream};
use parking_lot::Mutex;
use tidemark_proto::v1::save_events_stream_response::Result as Outcome;
use tidemark_proto::v1::{SaveEventsStreamResponse, WriteResult};
use tidemark_proto::{ApiError, Retry};
use tokio::sync::{SetOnce, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::retry::Failure;

const PATH: &str = "/tidemark.v1.EventStore/SaveEventsStream";

/// `tidemark.v1.SaveEventsStreamRequest` with a `SaveEventsRequest` that is encoded already, so that a save is
/// encoded once for all of its attempts.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EncodedSave {
    #[prost(uint64, tag = "1")]
    request_id: u64,
    #[prost(bytes = "bytes", tag = "2")]
    save: Bytes,
    #[prost(uint32, tag = "3")]
    timeout_ms: u32,
}

type Answer = Result<WriteResult, Failure>;

struct Queued {
    message: EncodedSave,
    answer: oneshot::Sender<Answer>,
}

/// The sending half, shared by all saves.
pub(crate) struct SaveStream {
    queue: mpsc::UnboundedSender<Queued>,
    next_id: AtomicU64,
    shared: Arc<Shared>,
}

struct Shared {
    sent: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    /// What saves that were not sent are told. Set before the sent ones are told.
    ended: SetOnce<Failure>,
}

impl SaveStream {
    /// Opens a stream in the background. The number of queued saves is bounded by whoever lets them in.
    pub(crate) fn open(channel: Channel, max_message_bytes: usize) -> Self {
        let (queue, queued) = mpsc::unbounded_channel();
        let (running, stop) = oneshot::channel();
        let shared = Arc::new(Shared { sent: Mutex::new(HashMap::new()), ended: SetOnce::new() });
        let requests = Requests { queued, stop, shared: shared.clone() };
        tokio::spawn(run(channel, max_message_bytes, requests, shared.clone(), running));
        Self { queue, next_id: AtomicU64::new(1), shared }
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.queue.is_closed() && !self.shared.ended.initialized()
    }

    /// The node does not know the stream: saves must go one by one.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.shared.ended.get().is_some_and(|failure| failure.error().code() == Code::Unimplemented)
    }

    /// Sends one save and waits for its answer, the end of the stream or the deadline. Dropping the future takes the
    /// save back if it is still queued.
    pub(crate) async fn save(&self, save: Bytes, deadline: Instant) -> Answer {
        let request_id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let timeout = deadline.saturating_duration_since(Instant::now());
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        let message = EncodedSave { request_id, save, timeout_ms };
        let (sender, receiver) = oneshot::channel();
        let mut pending = Pending { request_id, receiver, shared: &self.shared };
        // When the queue is closed, the sender comes back in the error and is dropped: the receiver sees it.
        drop(self.queue.send(Queued { message, answer: sender }));
        let answered = timeout_at(deadline, async {
            match (&mut pending.receiver).await {
                Ok(answer) => answer,
                Err(_dropped_in_the_queue) => Err(self.shared.ended.wait().await.clone()),
            }
        });
        match answered.await {
            Ok(answer) => answer,
            Err(_elapsed) => pending.give_up(),
        }
    }
}

/// Gives the place in the table back when its save is not waited for any more.
struct Pending<'a> {
    request_id: u64,
    receiver: oneshot::Receiver<Answer>,
    shared: &'a Shared,
}

impl Pending<'_> {
    /// The time is up. Whether the save was sent, is still queued or was answered just now is decided under the
    /// lock, which everything that moves a save on holds.
    fn give_up(mut self) -> Answer {
        let mut sent = self.shared.sent.lock();
        if sent.remove(&self.request_id).is_some() {
            return Err(Failure::Lost(no_answer()));
        }
        let answered = self.receiver.try_recv();
        // From here on the queue drops the save.
        self.receiver.close();
        drop(sent);
        answered.unwrap_or_else(|_not_answered| Err(Failure::NotSent(no_answer())))
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.receiver.is_terminated() {
            return;
        }
        // Closed first: a save that is taken from the queue after this is dropped there.
        self.receiver.close();
        self.shared.sent.lock().remove(&self.request_id);
    }
}

/// What the transport sends.
struct Requests {
    queued: mpsc::UnboundedReceiver<Queued>,
    /// Fires when the reader ends, so that nothing waits in a queue that nobody empties.
    stop: oneshot::Receiver<()>,
    shared: Arc<Shared>,
}

impl Stream for Requests {
    type Item = EncodedSave;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match self.queued.poll_recv(cx) {
                Poll::Ready(Some(Queued { message, answer })) => {
                    let mut sent = self.shared.sent.lock();
                    // Looked at under the lock: the end empties the table once, and nothing may come in after.
                    if self.shared.ended.initialized() {
                        return Poll::Ready(None);
                    }
                    if answer.is_closed() {
                        continue;
                    }
                    sent.insert(message.request_id, answer);
                    return Poll::Ready(Some(message));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    if self.stop.poll_unpin(cx).is_ready() {
                        self.queued.close();
                        while self.queued.try_recv().is_ok() {}
                        return Poll::Ready(None);
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}

/// Owns the receiving half until the stream ends. `_running` stops the sending half when this returns.
async fn run(
    channel: Channel,
    max_message_bytes: usize,
    requests: Requests,
    shared: Arc<Shared>,
    _running: oneshot::Sender<()>,
) {
    match open(channel, max_message_bytes, requests).await {
        Ok(mut answers) => {
            let error = loop {
                match answers.message().await {
                    Ok(Some(answer)) => shared.answer(answer),
                    Ok(None) => break closed_by_node(),
                    Err(status) => break ApiError::from(status),
                }
            };
            shared.end(Failure::NotSent(error.clone()), Failure::Lost(error));
        }
        Err(status) => {
            let error = ApiError::from(status);
            let queued = match error.retryable() {
                Retry::Never if error.code() == Code::Unimplemented => Failure::NotSent(error.clone()),
                Retry::Never => Failure::Refused(error.clone()),
                Retry::AtOnce | Retry::AfterBackoff | Retry::WithIdempotencyKey => {
                    Failure::NotSent(error.clone())
                }
            };
            let sent = match error.retryable() {
                // A node that refuses the stream as such has not looked at any save in it.
                Retry::Never | Retry::AtOnce | Retry::AfterBackoff => queued.clone(),
                Retry::WithIdempotencyKey => Failure::Lost(error),
            };
            shared.end(queued, sent);
        }
    }
}

async fn open(
    channel: Channel,
    max_message_bytes: usize,
    requests: Requests,
) -> Result<Streaming<SaveEventsStreamResponse>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(max_message_bytes);
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    let codec = ProstCodec::<EncodedSave, SaveEventsStreamResponse>::default();
    let answers = grpc.streaming(Request::new(requests), PathAndQuery::from_static(PATH), codec).await?;
    Ok(answers.into_inner())
}

fn closed_by_node() -> ApiError {
    ApiError::Transport { code: Code::Unavailable, message: "the node closed the stream".to_owned() }
}

impl Shared {
    /// An answer to nothing that is waited for is a repeat or comes too late.
    fn answer(&self, answer: SaveEventsStreamResponse) {
        let result = match answer.result {
            Some(Outcome::Written(written)) => Ok(written),
            Some(Outcome::Error(error)) => Err(Failure::Refused(error.into())),
            // A kind of answer that this release does not know: it says nothing about the save.
            None => Err(Failure::Lost(ApiError::Transport {
                code: Code::Unknown,
                message: "the node sent an answer without a result".to_owned(),
            })),
        };
        let mut sent = self.sent.lock();
        if let Some(waiting) = sent.remove(&answer.request_id) {
            // Fails if nobody waits any more.
            let _ = waiting.send(result);
        }
    }

    fn end(&self, queued: Failure, failure: Failure) {
        tracing::debug!(error = %failure.error(), "save stream ended");
        let mut sent = self.sent.lock();
        // Set here only, and once per stream.
        let _ = self.ended.set(queued);
        for (_, waiting) in sent.drain() {
            let _ = waiting.send(Err(failure.clone()));
        }
    }
}

/// Stands for the answer that did not come.
pub(crate) fn no_answer() -> ApiError {
    ApiError::Transport {
        code: Code::DeadlineExceeded,
        message: "the node did not answer in time".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use tidemark_proto::v1::{SaveEventsRequest, SaveEventsStreamRequest};

    use super::*;

    #[test]
    fn an_encoded_save_reads_as_the_public_message() {
        let save = SaveEventsRequest { boundary: "b".to_owned(), ..Default::default() };
        let encoded =
            EncodedSave { request_id: 7, save: save.encode_to_vec().into(), timeout_ms: 9 }.encode_to_vec();
        let decoded = SaveEventsStreamRequest::decode(encoded.as_slice()).expect("it was just encoded");
        assert_eq!(decoded, SaveEventsStreamRequest { request_id: 7, save: Some(save), timeout_ms: 9 });
    }
}
