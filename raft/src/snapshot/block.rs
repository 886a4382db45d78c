//! One block: rows as (key length, key, value length, value) with LEB128 lengths, compressed with LZ4 and
//! protected by CRC-32C.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding::{decode_varint, encode_varint};
use tidemark_proto::peer;

/// Largest block that is unpacked: the largest row and the overhead of its block.
const UNCOMPRESSED_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// Why a block was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BlockError {
    #[error("the checksum of a block is wrong")]
    Checksum,
    #[error("a block says that it unpacks to {0} bytes, more than allowed")]
    TooLarge(u32),
    #[error("a block does not unpack")]
    Compression,
    #[error("a block ends inside a row")]
    Truncated,
}

#[derive(Default)]
pub(crate) struct BlockBuilder {
    rows: BytesMut,
}

impl BlockBuilder {
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        for part in [key, value] {
            encode_varint(part.len() as u64, &mut self.rows);
            self.rows.put_slice(part);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn finish(self) -> peer::SnapshotBlock {
        let compressed = Bytes::from(lz4_flex::block::compress(&self.rows));
        peer::SnapshotBlock {
            uncompressed_bytes: u32::try_from(self.rows.len()).expect("a block holds less than 4 GiB"),
            crc32c: crc32c::crc32c(&compressed),
            compressed,
        }
    }
}

pub(crate) fn rows(block: &peer::SnapshotBlock) -> Result<Vec<(Bytes, Bytes)>, BlockError> {
    if crc32c::crc32c(&block.compressed) != block.crc32c {
        return Err(BlockError::Checksum);
    }
    if block.uncompressed_bytes > UNCOMPRESSED_BYTES_MAX {
        return Err(BlockError::TooLarge(block.uncompressed_bytes));
    }
    let unpacked = lz4_flex::block::decompress(&block.compressed, block.uncompressed_bytes as usize);
    let mut unpacked = Bytes::from(unpacked.map_err(|_| BlockError::Compression)?);
    let mut rows = Vec::new();
    while unpacked.has_remaining() {
        let key = part(&mut unpacked)?;
        rows.push((key, part(&mut unpacked)?));
    }
    Ok(rows)
}

fn part(unpacked: &mut Bytes) -> Result<Bytes, BlockError> {
    let length = decode_varint(unpacked).map_err(|_| BlockError::Truncated)?;
    let length = usize::try_from(length).map_err(|_| BlockError::Truncated)?;
    if length > unpacked.remaining() {
        return Err(BlockError::Truncated);
    }
    Ok(unpacked.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(rows: &[(&'static [u8], &'static [u8])]) -> peer::SnapshotBlock {
        let mut builder = BlockBuilder::default();
        for (key, value) in rows {
            builder.push(key, value);
        }
        builder.finish()
    }

    #[test]
    fn rows_come_back_as_they_went_in() {
        let input: [(&[u8], &[u8]); 3] = [(b"", b""), (b"a", b""), (b"b", &[0xff; 300])];
        let output = rows(&block(&input)).expect("the block is whole");
        let output: Vec<(&[u8], &[u8])> = output.iter().map(|(k, v)| (k.as_ref(), v.as_ref())).collect();
        assert_eq!(output, input);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_refused() {
        let whole = block(&[(b"key", b"value"), (b"other", b"value")]);
        for bit in 0..whole.compressed.len() * 8 {
            let mut bytes = whole.compressed.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let damaged = peer::SnapshotBlock { compressed: bytes.into(), ..whole.clone() };
            assert_eq!(rows(&damaged), Err(BlockError::Checksum), "bit {bit}");
        }
    }

    #[test]
    fn a_block_that_claims_to_be_huge_is_refused_before_memory_is_taken() {
        let mut huge = block(&[(b"key", b"value")]);
        huge.uncompressed_bytes = u32::MAX;
        assert_eq!(rows(&huge), Err(BlockError::TooLarge(u32::MAX)));
    }
}
