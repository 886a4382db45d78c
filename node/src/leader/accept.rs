//! The leader's side of forwarding: submits what other nodes send to the local sequencer.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use prost::Message;
use tidemark_proto::{
    ApiError,
    peer::{AppendResult, ForwardRequest, ForwardResponse, forward_request, forward_response},
    record, v1,
};
use tidemark_raft::network::{PeerError, Stream};
use tidemark_state_machine::{
    AppendOutcome, CreateBoundaryOutcome,
    command::{AppendRequest, BoundaryDefinition},
    outcome::WrittenEvents,
};
use tokio::time::Instant;

use super::{
    router::api_error,
    sequencer::Sequencer,
    work::{Answer, Work},
};
use crate::api::outcome;

/// Forwarded requests of one stream that are in the sequencer at once.
const IN_FLIGHT: usize = 8_192;

/// Answers forwarded requests as they complete. A node that does not lead says so and forwards nothing further.
pub fn accept(
    sequencer: Sequencer,
    requests: Stream<ForwardRequest>,
) -> Stream<Result<ForwardResponse, PeerError>> {
    let answers = requests.map(move |request| {
        let sequencer = sequencer.clone();
        async move { Ok(answer(&sequencer, request).await) }
    });
    answers.buffer_unordered(IN_FLIGHT).boxed()
}

async fn answer(sequencer: &Sequencer, request: ForwardRequest) -> ForwardResponse {
    let deadline = Instant::now() + Duration::from_millis(request.timeout_ms.into());
    let result = match decode(request.kind) {
        Ok(work) => sequencer.submit(work, deadline).await.map_err(api_error).and_then(encode),
        Err(error) => Err(error),
    };
    let result = result.unwrap_or_else(|error| {
        forward_response::Result::Error(Bytes::from(v1::Error::from(error).encode_to_vec()))
    });
    ForwardResponse { request_id: request.request_id, result: Some(result) }
}

fn decode(kind: Option<forward_request::Kind>) -> Result<Work, ApiError> {
    let malformed = |what: String| ApiError::Internal { what: format!("read a forwarded request: {what}") };
    match kind.ok_or_else(|| malformed("it is of no kind that this release knows".to_owned()))? {
        forward_request::Kind::Append(request) => AppendRequest::from_record(request)
            .map(Work::Append)
            .map_err(|error| malformed(error.to_string())),
        forward_request::Kind::CreateBoundary(create) => {
            Ok(Work::CreateBoundary(BoundaryDefinition::from_record(create)))
        }
        forward_request::Kind::Digest(digest) => Ok(Work::Digest(digest.digest_id)),
    }
}

fn encode(answer: Answer) -> Result<forward_response::Result, ApiError> {
    match answer {
        Answer::Append(AppendOutcome::Written(written)) => Ok(append_result(written, false)),
        Answer::Append(AppendOutcome::AlreadyApplied(written)) => Ok(append_result(written, true)),
        // The node that asked knows the boundary's name and fills it in.
        Answer::Append(AppendOutcome::Rejected(rejection)) => Err(outcome::append_rejection(rejection, "")),
        Answer::CreateBoundary(
            CreateBoundaryOutcome::Created(boundary) | CreateBoundaryOutcome::AlreadyExists(boundary),
        ) => Ok(forward_response::Result::Boundary(outcome::boundary_row(&boundary))),
        Answer::CreateBoundary(CreateBoundaryOutcome::Rejected(rejection)) => {
            Err(outcome::create_rejection(rejection, ""))
        }
        Answer::Digest(log_id) => {
            Ok(forward_response::Result::DigestAt(tidemark_raft::log_id_to_record(&log_id)))
        }
        Answer::Refused(error) => Err(error),
    }
}

fn append_result(written: WrittenEvents, already_applied: bool) -> forward_response::Result {
    let position = |position: tidemark_storage::Position| record::Position {
        commit_position: position.commit_position,
        prepare_position: position.prepare_position,
    };
    forward_response::Result::Append(AppendResult {
        first: Some(position(written.first)),
        last: Some(position(written.last)),
        already_applied,
    })
}
