//! The messages of `tidemark.peer.v1` to and from openraft's types.

use openraft::{
    AsyncRuntime,
    raft::{
        AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderError,
        TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use tidemark_proto::{peer, record};

use crate::{
    convert,
    types::{EncodedCommand, Entry, LogId, Payload, Types, Vote},
};

/// A message that lacks what its type demands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message of a member: {what}")]
pub struct Malformed {
    what: &'static str,
}

impl Malformed {
    const fn new(what: &'static str) -> Self {
        Self { what }
    }
}

/// The log ids before the first and of the last entry of an append.
pub(crate) type Range = (Option<LogId>, Option<LogId>);

fn log_id(message: Option<record::LogId>) -> Option<LogId> {
    message.as_ref().map(convert::log_id_from_record)
}

fn vote(message: Option<record::Vote>) -> Result<Vote, Malformed> {
    message.as_ref().map(convert::vote_from_record).ok_or(Malformed::new("no vote"))
}

pub(crate) fn append_request<RT: AsyncRuntime>(
    request: AppendEntriesRequest<Types<RT>>,
    client_address: String,
) -> peer::AppendEntriesRequest {
    peer::AppendEntriesRequest {
        vote: Some(convert::vote_to_record(&request.vote)),
        prev_log_id: request.prev_log_id.as_ref().map(convert::log_id_to_record),
        entries: request.entries.into_iter().map(entry).collect(),
        leader_commit: request.leader_commit.as_ref().map(convert::log_id_to_record),
        client_address,
    }
}

fn entry(entry: Entry) -> peer::Entry {
    let payload = match entry.payload {
        Payload::Blank => peer::entry::Payload::Blank(peer::Blank {}),
        Payload::Normal(command) => peer::entry::Payload::Command(command.0),
        Payload::Membership(membership) => {
            peer::entry::Payload::Membership(convert::membership_to_record(&membership))
        }
    };
    peer::Entry { log_id: Some(convert::log_id_to_record(&entry.log_id)), payload: Some(payload) }
}

pub(crate) fn append_request_from<RT: AsyncRuntime>(
    message: peer::AppendEntriesRequest,
) -> Result<AppendEntriesRequest<Types<RT>>, Malformed> {
    Ok(AppendEntriesRequest {
        vote: vote(message.vote)?,
        prev_log_id: log_id(message.prev_log_id),
        entries: message.entries.into_iter().map(entry_from).collect::<Result<_, _>>()?,
        leader_commit: log_id(message.leader_commit),
    })
}

fn entry_from(message: peer::Entry) -> Result<Entry, Malformed> {
    let id = log_id(message.log_id).ok_or(Malformed::new("an entry without log id"))?;
    let payload = match message.payload.ok_or(Malformed::new("an entry without payload"))? {
        peer::entry::Payload::Blank(peer::Blank {}) => Payload::Blank,
        peer::entry::Payload::Command(command) => Payload::Normal(EncodedCommand(command)),
        peer::entry::Payload::Membership(membership) => Payload::Membership(
            convert::membership_from_record(&membership)
                .map_err(|_| Malformed::new("an invalid membership"))?,
        ),
    };
    Ok(Entry { log_id: id, payload })
}

/// What an answer to a request of these entries must confirm.
pub(crate) fn previous_and_last(message: &peer::AppendEntriesRequest) -> Range {
    let previous = log_id(message.prev_log_id);
    let last = message.entries.last().map_or(previous, |entry| log_id(entry.log_id));
    (previous, last)
}

pub(crate) fn append_answer<RT: AsyncRuntime>(
    result: StreamAppendResult<Types<RT>>,
    client_address: String,
) -> peer::AppendEntriesResponse {
    use peer::append_entries_response::Result as Answer;
    let answer = match result {
        Ok(flushed) => {
            Answer::Flushed(peer::Flushed { log_id: flushed.as_ref().map(convert::log_id_to_record) })
        }
        Err(StreamAppendError::Conflict(at)) => Answer::Conflict(convert::log_id_to_record(&at)),
        Err(StreamAppendError::HigherVote(vote)) => Answer::HigherVote(convert::vote_to_record(&vote)),
    };
    peer::AppendEntriesResponse { result: Some(answer), client_address }
}

/// Reads the answer to a request of `range`; an answer that confirms more than was sent is malformed, because
/// the leader would count entries that it does not know.
pub(crate) fn append_result<RT: AsyncRuntime>(
    message: peer::AppendEntriesResponse,
    range: Option<Range>,
) -> Result<StreamAppendResult<Types<RT>>, Malformed> {
    use peer::append_entries_response::Result as Answer;
    let (_, last) = range.ok_or(Malformed::new("an answer that nothing was asked for"))?;
    match message.result.ok_or(Malformed::new("an empty answer to an append"))? {
        Answer::Flushed(flushed) => {
            let flushed = log_id(flushed.log_id);
            if flushed > last {
                return Err(Malformed::new("an answer that confirms more than was sent"));
            }
            Ok(Ok(flushed))
        }
        Answer::Conflict(at) => Ok(Err(StreamAppendError::Conflict(convert::log_id_from_record(&at)))),
        Answer::HigherVote(vote) => Ok(Err(StreamAppendError::HigherVote(convert::vote_from_record(&vote)))),
    }
}

pub(crate) fn vote_request<RT: AsyncRuntime>(request: VoteRequest<Types<RT>>) -> peer::VoteRequest {
    peer::VoteRequest {
        vote: Some(convert::vote_to_record(&request.vote)),
        last_log_id: request.last_log_id.as_ref().map(convert::log_id_to_record),
        leadership_transfer: request.leadership_transfer,
    }
}

pub(crate) fn vote_request_from<RT: AsyncRuntime>(
    message: peer::VoteRequest,
) -> Result<VoteRequest<Types<RT>>, Malformed> {
    let mut request = VoteRequest::new(vote(message.vote)?, log_id(message.last_log_id));
    request.leadership_transfer = message.leadership_transfer;
    Ok(request)
}

pub(crate) fn vote_answer<RT: AsyncRuntime>(answer: VoteResponse<Types<RT>>) -> peer::VoteResponse {
    peer::VoteResponse {
        vote: Some(convert::vote_to_record(&answer.vote)),
        granted: answer.vote_granted,
        last_log_id: answer.last_log_id.as_ref().map(convert::log_id_to_record),
    }
}

pub(crate) fn vote_result<RT: AsyncRuntime>(
    message: peer::VoteResponse,
) -> Result<VoteResponse<Types<RT>>, Malformed> {
    Ok(VoteResponse {
        vote: vote(message.vote)?,
        vote_granted: message.granted,
        last_log_id: log_id(message.last_log_id),
    })
}

pub(crate) fn transfer_request<RT: AsyncRuntime>(
    request: &TransferLeaderRequest<Types<RT>>,
) -> peer::TransferLeaderRequest {
    peer::TransferLeaderRequest {
        from_leader: Some(convert::vote_to_record(request.from_leader())),
        to_node_id: *request.to_node_id(),
        last_log_id: request.last_log_id().map(convert::log_id_to_record),
    }
}

pub(crate) fn transfer_request_from<RT: AsyncRuntime>(
    message: peer::TransferLeaderRequest,
) -> Result<TransferLeaderRequest<Types<RT>>, Malformed> {
    let from = vote(message.from_leader)?;
    Ok(TransferLeaderRequest::new(from, message.to_node_id, log_id(message.last_log_id)))
}

pub(crate) fn transfer_answer<RT: AsyncRuntime>(
    answer: TransferLeaderResponse<Types<RT>>,
) -> peer::TransferLeaderResponse {
    use peer::transfer_leader_response::Result as Answer;
    let result = match answer {
        Ok(()) => Answer::Accepted(peer::Accepted {}),
        Err(TransferLeaderError::VoteChanged { expected, actual }) => {
            Answer::VoteChanged(peer::VoteChanged {
                expected: Some(convert::vote_to_record(&expected)),
                actual: Some(convert::vote_to_record(&actual)),
            })
        }
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
            Answer::LogNotFlushed(peer::LogNotFlushed {
                expected: expected.as_ref().map(convert::log_id_to_record),
                actual: actual.as_ref().map(convert::log_id_to_record),
            })
        }
    };
    peer::TransferLeaderResponse { result: Some(result) }
}

pub(crate) fn transfer_result<RT: AsyncRuntime>(
    message: peer::TransferLeaderResponse,
) -> Result<TransferLeaderResponse<Types<RT>>, Malformed> {
    use peer::transfer_leader_response::Result as Answer;
    Ok(match message.result.ok_or(Malformed::new("an empty answer to a transfer"))? {
        Answer::Accepted(peer::Accepted {}) => Ok(()),
        Answer::VoteChanged(changed) => Err(TransferLeaderError::VoteChanged {
            expected: vote(changed.expected)?,
            actual: vote(changed.actual)?,
        }),
        Answer::LogNotFlushed(behind) => Err(TransferLeaderError::LogNotFlushed {
            expected: log_id(behind.expected),
            actual: log_id(behind.actual),
        }),
    })
}
