//! A segment file: its name, and the header that says whose it is and where the log stood when it was begun.
//!
//! Header, little-endian, 256 bytes: magic (8), format version `u32`, header length `u32`, cluster id (16), node id
//! `u64`, group id `u32`, reserved `u32`, sequence `u64`, first index `u64`, end of the records in the segment before
//! `u64` (0: none), flags `u32`, reserved `u32`, vote (term `u64`, node `u64`), purged (term, index), committed (term,
//! index), zeros, CRC-32C `u32` over all before it.

use std::path::{Path, PathBuf};

use super::{
    LogIdentity,
    record::{Salt, u32_at, u64_at},
};
use crate::{
    convert,
    types::{LeaderId, LogId, Vote},
};

/// Length of the header.
pub(super) const HEADER_BYTES: u64 = 256;

/// Version that is written and the newest that is read.
pub(super) const FORMAT_VERSION: u32 = 1;

const HEADER_LENGTH: usize = HEADER_BYTES as usize;
const MAGIC: &[u8; 8] = b"TIDELOG\0";
const SUFFIX: &str = ".log";
const CRC_AT: usize = HEADER_LENGTH - 4;

const HAS_VOTE: u32 = 1;
const VOTE_COMMITTED: u32 = 2;
const HAS_PURGED: u32 = 4;
const HAS_COMMITTED: u32 = 8;

/// The parts of the log's state that are not entries; each segment begins with them so that older ones can go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sticky {
    pub vote: Option<Vote>,
    pub purged: Option<LogId>,
    pub committed: Option<LogId>,
}

/// What a segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub identity: LogIdentity,
    /// Number of the segment; they ascend by one.
    pub sequence: u64,
    /// Index that the next entry had when the segment was begun.
    pub first_index: u64,
    /// Where the records of the segment before end; 0 when there was none.
    pub previous_end: u64,
    pub sticky: Sticky,
}

/// Why bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invalid {
    /// Not one, or damaged.
    Damaged,
    /// Of a later version.
    Version(u32),
}

/// File name of a segment; names sort as numbers do.
pub(super) fn file_name(sequence: u64) -> String {
    format!("{sequence:016x}{SUFFIX}")
}

/// The number in a segment's file name; `None` for other files.
pub(super) fn sequence_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let sequence = u64::from_str_radix(digits, 16).ok()?;
    (file_name(sequence) == name).then_some(sequence)
}

/// Path of a segment.
pub(super) fn path(directory: &Path, sequence: u64) -> PathBuf {
    directory.join(file_name(sequence))
}

/// What the checksums of a segment's records cover beside their bytes and offset.
pub(super) fn salt(identity: &LogIdentity, sequence: u64) -> Salt {
    let crc = crc32c::crc32c(&identity.cluster_id);
    let crc = crc32c::crc32c_append(crc, &identity.node_id.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &identity.group_id.to_le_bytes());
    Salt(crc32c::crc32c_append(crc, &sequence.to_le_bytes()))
}

impl Header {
    /// The encoding.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Sticky { vote, purged, committed } = self.sticky;
        let mut flags = 0;
        if let Some(vote) = vote {
            flags |= HAS_VOTE | if vote.committed { VOTE_COMMITTED } else { 0 };
        }
        flags |= if purged.is_some() { HAS_PURGED } else { 0 };
        flags |= if committed.is_some() { HAS_COMMITTED } else { 0 };

        let mut bytes = Vec::with_capacity(HEADER_LENGTH);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&(HEADER_LENGTH as u32).to_le_bytes());
        bytes.extend_from_slice(&self.identity.cluster_id);
        bytes.extend_from_slice(&self.identity.node_id.to_le_bytes());
        bytes.extend_from_slice(&self.identity.group_id.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.first_index.to_le_bytes());
        bytes.extend_from_slice(&self.previous_end.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        let vote = vote.map_or((0, 0), |vote| (vote.leader_id.term, vote.leader_id.voted_for));
        for (first, second) in [vote, term_and_index(purged), term_and_index(committed)] {
            bytes.extend_from_slice(&first.to_le_bytes());
            bytes.extend_from_slice(&second.to_le_bytes());
        }
        bytes.resize(CRC_AT, 0);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The header at the start of `bytes`.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let header = bytes.get(..HEADER_LENGTH).ok_or(Invalid::Damaged)?;
        if &header[..8] != MAGIC || crc32c::crc32c(&header[..CRC_AT]) != u32_at(header, CRC_AT) {
            return Err(Invalid::Damaged);
        }
        match u32_at(header, 8) {
            FORMAT_VERSION => {}
            other => return Err(Invalid::Version(other)),
        }
        let flags = u32_at(header, 72);
        let vote = (flags & HAS_VOTE != 0).then(|| Vote {
            leader_id: LeaderId { term: u64_at(header, 80), voted_for: u64_at(header, 88) },
            committed: flags & VOTE_COMMITTED != 0,
        });
        let log_id = |flag, at| {
            (flags & flag != 0).then(|| convert::log_id(u64_at(header, at), u64_at(header, at + 8)))
        };
        Ok(Self {
            identity: LogIdentity {
                cluster_id: header[16..32].try_into().expect("the slice has sixteen bytes"),
                node_id: u64_at(header, 32),
                group_id: u32_at(header, 40),
            },
            sequence: u64_at(header, 48),
            first_index: u64_at(header, 56),
            previous_end: u64_at(header, 64),
            sticky: Sticky { vote, purged: log_id(HAS_PURGED, 96), committed: log_id(HAS_COMMITTED, 112) },
        })
    }
}

fn term_and_index(log_id: Option<LogId>) -> (u64, u64) {
    log_id.map_or((0, 0), |log_id| (convert::term_of(&log_id), log_id.index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(sticky: Sticky) -> Header {
        let identity = LogIdentity { cluster_id: [7; 16], node_id: 3, group_id: 1 };
        Header { identity, sequence: 12, first_index: 1000, previous_end: 4096, sticky }
    }

    #[test]
    fn headers_survive_the_round_trip() {
        let vote = Vote { leader_id: LeaderId { term: 4, voted_for: 2 }, committed: true };
        let full = Sticky {
            vote: Some(vote),
            purged: Some(convert::log_id(1, 10)),
            committed: Some(convert::log_id(3, 900)),
        };
        for sticky in [Sticky::default(), full] {
            let bytes = header(sticky).encode();
            assert_eq!(bytes.len() as u64, HEADER_BYTES);
            assert_eq!(Header::decode(&bytes), Ok(header(sticky)));
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let mut bytes = header(Sticky::default()).encode();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bytes), Err(Invalid::Damaged), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn only_segments_have_numbers() {
        assert_eq!(sequence_of(&file_name(0x1f)), Some(0x1f));
        for name in ["LOCK", "1f.log", "000000000000001F.log", "000000000000001f.tmp"] {
            assert_eq!(sequence_of(name), None, "{name}");
        }
    }
}
