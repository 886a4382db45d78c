//! The encoding of one record: a fixed header, a payload, padding to a multiple of 8, and a CRC-32C over all of it.
//!
//! The checksum also covers where the record stands (cluster, node, group, segment, offset), so that a record's
//! bytes prove nothing anywhere else: neither in a client's data nor in a block left over from another file.
//!
//! Layout, little-endian: length of the payload `u32`, kind `u8`, flags `u8`, reserved `u16` (0), term `u64`,
//! leader `u64`, index `u64`, synced offset `u64`, CRC-32C `u32`, payload, zeros.

/// Bytes before the payload.
pub(super) const HEADER_BYTES: usize = 44;

/// Records start at multiples of this.
pub(super) const ALIGNMENT: usize = 8;

const CRC_AT: usize = 40;

/// Kinds of record. The numbers are on disk and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// An entry without payload.
    Blank = 1,
    /// An entry with an encoded command.
    Command = 2,
    /// An entry with an encoded membership.
    Membership = 3,
    /// A vote: term, leader (whom it is for), flag 1 when committed.
    Vote = 16,
    /// The log was cut after the index; flag 1: before its first entry.
    Truncate = 17,
    /// The log was purged up to term and index.
    Purge = 18,
    /// The log is committed up to term and index; flag 1: nothing is.
    Committed = 19,
    /// Notes the synced offset while nothing else is written.
    Mark = 32,
    /// As a mark, at a clean shutdown, and synced.
    Closing = 33,
}

impl Kind {
    /// The kind with this number.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Blank,
            2 => Self::Command,
            3 => Self::Membership,
            16 => Self::Vote,
            17 => Self::Truncate,
            18 => Self::Purge,
            19 => Self::Committed,
            32 => Self::Mark,
            33 => Self::Closing,
            _ => return None,
        })
    }

    /// Marks say only what is known to be durable; losing one loses nothing.
    pub(super) fn is_marker(self) -> bool {
        matches!(self, Self::Mark | Self::Closing)
    }
}

/// The meaning depends on the kind.
pub(super) const FLAG: u8 = 1;

/// What a record's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// A [`Kind`], or one of a later version.
    pub kind: u8,
    /// [`FLAG`] or 0.
    pub flags: u8,
    pub term: u64,
    /// The node voted for, or the leader of the term in which an entry was appended, as far as known; else 0.
    pub leader: u64,
    pub index: u64,
    /// Offset up to which the segment was known to be durable when this was written.
    pub synced: u64,
}

/// What a record's checksum covers beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Salt(pub u32);

/// A record found in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub header: Header,
    /// Length of the payload, which starts after the header.
    pub payload_bytes: usize,
    /// Length with header and padding.
    pub bytes: usize,
}

/// Length of a record with header and padding.
pub(super) fn size(payload_bytes: usize) -> usize {
    (HEADER_BYTES + payload_bytes).next_multiple_of(ALIGNMENT)
}

/// Appends a record that will stand at `offset` of its segment.
pub(super) fn encode(buffer: &mut Vec<u8>, salt: Salt, offset: u64, header: &Header, payload: &[u8]) {
    let start = buffer.len();
    let length = u32::try_from(payload.len()).expect("entries larger than a segment are refused");
    buffer.reserve(size(payload.len()));
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(&[header.kind, header.flags, 0, 0]);
    buffer.extend_from_slice(&header.term.to_le_bytes());
    buffer.extend_from_slice(&header.leader.to_le_bytes());
    buffer.extend_from_slice(&header.index.to_le_bytes());
    buffer.extend_from_slice(&header.synced.to_le_bytes());
    buffer.extend_from_slice(&[0; 4]);
    buffer.extend_from_slice(payload);
    buffer.resize(start + size(payload.len()), 0);
    let crc = checksum(&buffer[start..], salt, offset);
    buffer[start + CRC_AT..start + HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// The record at the start of `bytes`, which stand at `offset` of their segment; `None` when there is no intact one.
pub(super) fn decode(bytes: &[u8], salt: Salt, offset: u64) -> Option<Found> {
    let found = peek(bytes)?;
    let crc = u32_at(bytes, CRC_AT);
    (checksum(&bytes[..found.bytes], salt, offset) == crc).then_some(found)
}

/// As [`decode`] but without the checksum: what the bytes claim to be.
pub(super) fn peek(bytes: &[u8]) -> Option<Found> {
    // A record without a kind would be the zeros of reserved space.
    if bytes.len() < HEADER_BYTES || bytes[4] == 0 || bytes[6..8] != [0, 0] {
        return None;
    }
    let payload_bytes = u32_at(bytes, 0) as usize;
    let record_bytes = size(payload_bytes);
    if record_bytes > bytes.len() {
        return None;
    }
    let header = Header {
        kind: bytes[4],
        flags: bytes[5],
        term: u64_at(bytes, 8),
        leader: u64_at(bytes, 16),
        index: u64_at(bytes, 24),
        synced: u64_at(bytes, 32),
    };
    Some(Found { header, payload_bytes, bytes: record_bytes })
}

fn checksum(record: &[u8], salt: Salt, offset: u64) -> u32 {
    let crc = crc32c::crc32c_append(salt.0, &offset.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &record[..CRC_AT]);
    crc32c::crc32c_append(crc, &record[HEADER_BYTES..])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("the slice has four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the slice has eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header { kind: 2, flags: 0, term: 3, leader: 1, index: 77, synced: 256 };

    #[test]
    fn a_record_reads_back_at_its_place_only() {
        for payload in [&b""[..], b"x", b"12345678", &[9; 1000]] {
            let mut buffer = vec![0xaa; 3];
            encode(&mut buffer, Salt(5), 512, &HEADER, payload);
            let record = &buffer[3..];
            assert_eq!(record.len() % ALIGNMENT, 0);
            let found = decode(record, Salt(5), 512).unwrap();
            assert_eq!((found.header, found.bytes), (HEADER, record.len()));
            assert_eq!(&record[HEADER_BYTES..HEADER_BYTES + found.payload_bytes], payload);
            assert_eq!(decode(record, Salt(5), 520), None);
            assert_eq!(decode(record, Salt(6), 512), None);
            assert_eq!(decode(&record[..record.len() - 1], Salt(5), 512), None);
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut record = Vec::new();
        encode(&mut record, Salt(5), 512, &HEADER, b"payload");
        for bit in 0..record.len() * 8 {
            record[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&record, Salt(5), 512), None, "bit {bit}");
            record[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn reserved_space_is_not_a_record() {
        assert_eq!(decode(&[0; 4096], Salt(0), 0), None);
    }
}
