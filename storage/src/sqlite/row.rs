//! The stored form of a value: a checksum of its row, then the value.
//!
//! ```text
//! 0                  4
//! +------------------+---------
//! | CRC-32C, u32 BE  | value …      the checksum covers the key, then the value
//! +------------------+---------
//! ```

use std::path::Path;

use crate::error::{Damage, Error, Result};

const CHECKSUM_LENGTH: usize = 4;

/// Writes the stored form of a row's value into `stored`, whose earlier content is dropped.
pub(super) fn encode(key: &[u8], value: &[u8], stored: &mut Vec<u8>) {
    stored.clear();
    stored.reserve(CHECKSUM_LENGTH + value.len());
    stored.extend_from_slice(&checksum(key, value).to_be_bytes());
    stored.extend_from_slice(value);
}

/// The value in the stored form, if the checksum of the row holds.
pub(super) fn decode<'a>(file: &Path, key: &[u8], stored: &'a [u8]) -> Result<&'a [u8]> {
    match stored.split_first_chunk::<CHECKSUM_LENGTH>() {
        Some((sum, value)) if u32::from_be_bytes(*sum) == checksum(key, value) => Ok(value),
        _ => Err(Error::Corruption {
            damage: Damage::RowChecksum(key.to_vec()),
            path: file.to_path_buf(),
            source: None,
        }),
    }
}

fn checksum(key: &[u8], value: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_row_is_noticed() {
        let (key, value) = (b"key".to_vec(), b"value".to_vec());
        let mut stored = Vec::new();
        encode(&key, &value, &mut stored);
        let file = Path::new("kv");
        assert_eq!(decode(file, &key, &stored).expect("intact"), value);
        for bit in 0..stored.len() * 8 {
            let mut damaged = stored.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(file, &key, &damaged).is_err(), "bit {bit} of the stored value");
        }
        for bit in 0..key.len() * 8 {
            let mut damaged = key.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(file, &damaged, &stored).is_err(), "bit {bit} of the key");
        }
        assert!(decode(file, &key, &stored[..3]).is_err());
    }
}
