//! Who a data directory belongs to.
//!
//! `identity` is a text file of `key value` lines and a checksum line. It is written once, before the log. A
//! directory of another cluster or member is refused before anything in it is touched.

use std::path::Path;

use crate::{
    environment::{Random, random_id},
    error::StartError,
    files,
    types::NodeId,
    vfs::Vfs,
};

const FILE: &str = "identity";
const FORMAT: &str = "1";

/// The identity of one member's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// The member.
    pub node_id: NodeId,
    /// Random, made with the directory: a wiped member that comes back under its old id is another store.
    pub store_id: [u8; 16],
}

/// The id of a cluster that starts with these members: the first 16 bytes of BLAKE3 over the token and the
/// members in ascending order, so that every initial member computes the same.
pub fn cluster_id(id_token: &str, members: &[(NodeId, String)]) -> [u8; 16] {
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort();
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(id_token.as_bytes());
    for (node_id, address) in sorted {
        part(&node_id.to_le_bytes());
        part(address.as_bytes());
    }
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    id
}

impl Identity {
    /// Reads the identity of the data directory `dir`, or writes one for `node_id` of `cluster`. Without a `cluster`
    /// a new directory becomes a cluster of its own with a random id, and an old one keeps the cluster that it has.
    ///
    /// # Errors
    ///
    /// [`StartError`] when the directory belongs to somebody else, is damaged, or cannot be read or written.
    pub fn load_or_create(
        vfs: &dyn Vfs,
        random: &dyn Random,
        dir: &Path,
        cluster: Option<[u8; 16]>,
        node_id: NodeId,
    ) -> Result<Self, StartError> {
        files::create_directory(vfs, dir)?;
        let path = dir.join(FILE);
        let Some(content) = files::read(vfs, &path)? else {
            let cluster_id = cluster.unwrap_or_else(|| random_id(random));
            let identity = Self { cluster_id, node_id, store_id: random_id(random) };
            files::replace(vfs, &path, identity.to_text().as_bytes())?;
            return Ok(identity);
        };
        let found = Self::parse(&content).map_err(|why| StartError::Damaged { path, why: why.to_owned() })?;
        if found.node_id != node_id || cluster.is_some_and(|cluster| cluster != found.cluster_id) {
            let wanted = Self { cluster_id: cluster.unwrap_or(found.cluster_id), node_id, ..found };
            return Err(StartError::ForeignDirectory {
                dir: dir.to_owned(),
                found: found.describe(),
                wanted: wanted.describe(),
            });
        }
        Ok(found)
    }

    fn describe(&self) -> String {
        format!("node {} of cluster {}", self.node_id, hex(&self.cluster_id))
    }

    fn lines(&self) -> String {
        format!(
            "format {FORMAT}\ncluster_id {}\nnode_id {}\nstore_id {}\n",
            hex(&self.cluster_id),
            self.node_id,
            hex(&self.store_id)
        )
    }

    fn to_text(self) -> String {
        let lines = self.lines();
        format!("{lines}crc32c {:08x}\n", crc32c::crc32c(lines.as_bytes()))
    }

    fn parse(content: &[u8]) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(content).map_err(|_| "it is not text")?;
        let value = |key: &str| {
            text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).ok_or("a line is missing")
        };
        if value("format")? != FORMAT {
            return Err("its format is unknown; a newer release wrote it");
        }
        let identity = Self {
            cluster_id: unhex(value("cluster_id")?).ok_or("the cluster id is malformed")?,
            node_id: value("node_id")?.parse().map_err(|_| "the node id is malformed")?,
            store_id: unhex(value("store_id")?).ok_or("the store id is malformed")?,
        };
        if identity.to_text() == text { Ok(identity) } else { Err("its checksum is wrong") }
    }
}

fn hex(id: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity { cluster_id: [0xab; 16], node_id: 3, store_id: [1; 16] };

    #[test]
    fn an_identity_comes_back_as_it_was_written() {
        assert_eq!(Identity::parse(IDENTITY.to_text().as_bytes()), Ok(IDENTITY));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_refused() {
        let text = IDENTITY.to_text().into_bytes();
        for bit in 0..text.len() * 8 {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Identity::parse(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_cluster_id_does_not_depend_on_the_order_of_members() {
        let one = (1, "a:1".to_owned());
        let two = (2, "b:1".to_owned());
        let id = cluster_id("token", &[one.clone(), two.clone()]);
        assert_eq!(id, cluster_id("token", &[two.clone(), one.clone()]));
        assert_ne!(id, cluster_id("other", &[one.clone(), two]));
        assert_ne!(id, cluster_id("token", &[one]));
    }
}
