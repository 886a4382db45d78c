//! The golden layout of every table and the check of the format row.

use super::*;
use crate::key::{Bucket, EventId};

fn event() -> EventKey {
    EventKey {
        boundary: BoundaryHash(0x0102_0304_0506_0708),
        bucket: Bucket::new(0x1112).expect("in range"),
        event_id: EventId::new(0x2122).expect("in range"),
    }
}

fn idempotency() -> IdempotencyKey {
    IdempotencyKey { boundary: BoundaryHash(0x0102_0304_0506_0708), key_hash: *b"0123456789abcdef" }
}

#[test]
fn the_layout_is_the_documented_one() {
    let golden: [(Bytes, &[u8]); 13] = [
        (event_key(&event()), b"e\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\x11\x12\0\0\0\0\0\0\x21\x22"),
        (boundary_key(BoundaryHash(0x0102_0304_0506_0708)), b"b\x01\x02\x03\x04\x05\x06\x07\x08"),
        (idempotency_key(&idempotency()), b"d\x01\x02\x03\x04\x05\x06\x07\x080123456789abcdef"),
        (
            expiry_key(0x3132, &Expiring::Event(event())),
            b"x\0\0\0\0\0\0\x31\x32\0\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\x11\x12\0\0\0\0\0\0\x21\x22",
        ),
        (
            expiry_key(0x3132, &Expiring::Idempotency(idempotency())),
            b"x\0\0\0\0\0\0\x31\x32\x01\x01\x02\x03\x04\x05\x06\x07\x080123456789abcdef",
        ),
        (last_id_key(), b"mevent-repo/last-id"),
        (raft_applied_key(), b"mraft/applied"),
        (raft_membership_key(), b"mraft/membership"),
        (clock_key(), b"mclock"),
        (format_key(), b"mformat"),
        (local_key("index/7"), b"mlocal/index/7"),
        (format_row(), b"\0\0\0\x010.1.0"),
        (
            Bytes::from(TABLES.map(|(tag, _)| tag).to_vec()),
            // Tags are never reused and never change.
            b"bdegilmswx",
        ),
    ];
    for (found, expected) in golden {
        assert_eq!(found.as_ref(), expected, "expected {}", expected.escape_ascii());
    }
}

#[test]
fn parsers_read_what_builders_wrote_and_nothing_else() {
    assert_eq!(parse_event_key(&event_key(&event())).expect("well formed"), event());
    let boundary = BoundaryHash(7);
    assert_eq!(parse_boundary_key(&boundary_key(boundary)).expect("well formed"), boundary);
    let key = idempotency_key(&idempotency());
    assert_eq!(parse_idempotency_key(&key).expect("well formed"), idempotency());
    for row in [Expiring::Event(event()), Expiring::Idempotency(idempotency())] {
        let key = expiry_key(u64::MAX, &row);
        assert_eq!(parse_expiry_key(&key).expect("well formed"), (u64::MAX, row));
        assert!(parse_expiry_key(&key[..key.len() - 1]).is_err());
        assert!(parse_event_key(&key).is_err());
    }
    assert!(parse_expiry_key(b"x\0\0\0\0\0\0\0\0\x02").is_err(), "an unknown kind");
    assert!(parse_expiry_key(b"x\0\0\0\0\0\0\0\0").is_err(), "no kind");
    assert!(parse_idempotency_key(&key[..24]).is_err());
    assert!(parse_boundary_key(b"b").is_err());
    assert!(parse_event_key(b"").is_err());
}

#[test]
fn tables_are_disjoint_and_cover_their_keys() {
    for window in TABLES.windows(2) {
        let (earlier, later) = (table_range(window[0].0), table_range(window[1].0));
        assert!(earlier.upper <= later.lower, "{} and {}", window[0].1, window[1].1);
    }
    assert!(table_range(METADATA).contains(&raft_applied_key()));
    assert!(table_range(EVENTS).contains(&event_key(&event())));
    assert!(!table_range(EVENTS).contains(&boundary_key(BoundaryHash(u64::MAX))));
}

#[test]
fn prefix_ranges_hold_exactly_the_keys_with_the_prefix() {
    let keys: [&[u8]; 9] =
        [b"", b"a", b"a\0", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff", b"\xff\xff\0"];
    for prefix in keys {
        for key in keys {
            assert_eq!(prefix_range(prefix).contains(key), key.starts_with(prefix), "{prefix:?} {key:?}");
        }
    }
    assert_eq!(prefix_range(b"\xff\xff").upper, None);
}

#[test]
fn only_index_entries_and_local_rows_are_local() {
    assert!(is_local(&local_key("index/1")));
    assert!(local_range().contains(&local_key("")));
    assert!(is_local(b"i"));
    assert!(!is_local(&raft_applied_key()));
    assert!(!is_local(&event_key(&event())));
    assert!(!is_local(b""));
    assert!(!is_local(b"mlocalx"));
}

#[test]
fn a_row_has_expired_at_its_time() {
    let row = Expiring::Event(event());
    assert!(expired_range(100).contains(&expiry_key(100, &row)));
    assert!(!expired_range(100).contains(&expiry_key(101, &row)));
    assert!(expired_range(u64::MAX).contains(&expiry_key(u64::MAX, &row)));
    assert!(!expired_range(u64::MAX).contains(b"y"));
}

#[test]
fn idempotency_keys_depend_on_boundary_and_key() {
    let key = IdempotencyKey::of(BoundaryHash(1), b"request-1");
    assert_eq!(key, IdempotencyKey::of(BoundaryHash(1), b"request-1"));
    assert_ne!(key, IdempotencyKey::of(BoundaryHash(1), b"request-2"));
    assert_ne!(key, IdempotencyKey::of(BoundaryHash(2), b"request-1"));
    assert_eq!(key.key_hash[..], blake3::hash(b"request-1").as_bytes()[..16]);
}

#[test]
fn only_supported_formats_are_opened() {
    let dir = Path::new("/data/kv");
    check_format(dir, Some(&format_row())).expect("the own format");
    assert!(matches!(check_format(dir, None), Err(Error::Corruption { damage: Damage::NoFormat, .. })));
    for malformed in [&b""[..], b"\0\0\x01", b"\0\0\0\x02\xff\xff"] {
        let checked = check_format(dir, Some(malformed));
        assert!(
            matches!(checked, Err(Error::Corruption { damage: Damage::Row { .. }, .. })),
            "{malformed:?}"
        );
    }
    let newer = check_format(dir, Some(b"\0\0\0\x020.9.0")).expect_err("a newer format");
    let message = newer.to_string();
    assert!(message.contains("format 2") && message.contains("0.9.0"), "{message}");
    assert!(matches!(check_format(dir, Some(b"\0\0\0\0")), Err(Error::Unsupported { found: 0, .. })));
}
