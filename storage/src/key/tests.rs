//! The vectors and the edges of keys and bounds.

use proptest::prelude::*;

use super::*;

#[derive(Debug)]
struct Vector {
    boundary: String,
    width_ms: u64,
    time_ms: u64,
    delay_ms: u64,
    event_id: u64,
    json: serde_json::Value,
}

fn vectors() -> Vec<Vector> {
    let text = include_str!("../../tests/vectors/event-keys.json");
    let json: Vec<serde_json::Value> = serde_json::from_str(text).expect("well formed");
    json.into_iter()
        .map(|json| Vector {
            boundary: json["boundary"].as_str().expect("text").to_owned(),
            width_ms: json["time_bucket_ms"].as_u64().expect("number"),
            time_ms: json["time_ms"].as_u64().expect("number"),
            delay_ms: json["delay_ms"].as_u64().expect("number"),
            event_id: json["event_id"].as_u64().expect("number"),
            json,
        })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The physical key that a vector gives without its tag.
fn tagged(json: &serde_json::Value) -> String {
    format!("65{}", json.as_str().expect("text"))
}

#[test]
fn keys_and_bounds_match_every_vector() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 32);
    for vector in &vectors {
        let boundary = BoundaryHash::of(&vector.boundary);
        let bucket = match vector.delay_ms {
            0 => bucket_now(vector.time_ms, vector.width_ms),
            delay_ms => bucket_due(vector.time_ms + delay_ms, vector.width_ms),
        };
        let event_id = EventId::new(vector.event_id).expect("in range");
        let key = EventKey { boundary, bucket, event_id };
        assert_eq!(hex(&key.encode()), vector.json["key_hex"], "{vector:?}");
        assert_eq!(EventKey::decode(&key.encode()).expect("well formed"), key);
        assert_eq!(key.position().commit_position, vector.json["commit_position"], "{vector:?}");
        assert_eq!(key.position().prepare_position, vector.json["prepare_position"], "{vector:?}");
        assert_eq!(EventKey::at(boundary, key.position()), key);
        assert_eq!(hex(&boundary_lower(boundary)), tagged(&vector.json["boundary_lower_hex"]), "{vector:?}");
        assert_eq!(hex(&boundary_upper(boundary)), tagged(&vector.json["boundary_upper_hex"]), "{vector:?}");
        let now = bucket_now(vector.time_ms, vector.width_ms);
        let due = hex(&due_upper(boundary, now));
        assert_eq!(due, tagged(&vector.json["due_upper_at_time_ms_hex"]), "{vector:?}");
    }
}

#[test]
fn the_largest_boundary_hash_ends_with_its_table() {
    let last = BoundaryHash(u64::MAX);
    assert_eq!(boundary_lower(last).as_ref(), b"e\xff\xff\xff\xff\xff\xff\xff\xff");
    assert_eq!(boundary_upper(last).as_ref(), b"f");
    assert_eq!(due_upper(last, Bucket::MAX).as_ref(), b"f");
    let newest = EventKey { boundary: last, bucket: Bucket::MAX, event_id: EventId::MAX };
    assert!(boundary_range(last).contains(&tables::event_key(&newest)));
    assert!(!boundary_range(last).contains(b"g"));
}

#[test]
fn the_largest_bucket_is_due_until_the_boundary_ends() {
    let boundary = BoundaryHash(5);
    assert_eq!(due_upper(boundary, Bucket::MAX), boundary_upper(boundary));
    let before_last = Bucket::new(Bucket::MAX.get() - 1).expect("in range");
    assert_eq!(due_upper(boundary, before_last), bucket_lower(boundary, Bucket::MAX));
}

#[test]
fn buckets_round_down_now_and_up_when_scheduled() {
    for (time_ms, width_ms, now, due) in [
        (0, 1, 0, 0),
        (0, 1000, 0, 0),
        (1, 1000, 0, 1),
        (999, 1000, 0, 1),
        (1000, 1000, 1, 1),
        (1001, 1000, 1, 2),
    ] {
        assert_eq!(bucket_now(time_ms, width_ms).get(), now, "{time_ms} by {width_ms}");
        assert_eq!(bucket_due(time_ms, width_ms).get(), due, "{time_ms} by {width_ms}");
    }
    assert_eq!(bucket_now(17, 0), bucket_now(17, 1));
    assert_eq!(bucket_due(17, 0), bucket_due(17, 1));
    assert_eq!(bucket_now(u64::MAX, 0), Bucket::MAX);
    assert_eq!(bucket_due(u64::MAX, 0), Bucket::MAX);
    assert_eq!(bucket_due(u64::MAX, u64::MAX).get(), 1);
}

#[test]
fn malformed_keys_are_refused() {
    for length in [0, 8, 16, 23, 25, 32] {
        assert!(EventKey::decode(&vec![0; length]).is_err(), "{length} bytes");
    }
    let mut key = [0; EVENT_KEY_LENGTH];
    key[8] = 0x80;
    assert!(EventKey::decode(&key).is_err(), "a bucket above i64::MAX");
    let mut key = [0; EVENT_KEY_LENGTH];
    key[16] = 0x80;
    assert!(EventKey::decode(&key).is_err(), "an event id above i64::MAX");
}

#[test]
fn numbers_stay_within_i64() {
    assert!(EventId::new(1 << 63).is_err());
    assert_eq!(EventId::new((1 << 63) - 1).expect("in range"), EventId::MAX);
    assert_eq!(EventId::MAX.checked_add(1), None);
    assert_eq!(EventId::MAX.checked_add(u64::MAX), None);
    assert_eq!(Bucket::ZERO.checked_add(3).map(Bucket::get), Some(3));
    assert_eq!(EventId::MAX.position_part(), i64::MAX);
}

#[test]
fn nothing_matched_sorts_before_the_start() {
    let boundary = BoundaryHash(9);
    assert!(Position::NONE < Position::START);
    assert_eq!(position_upper(boundary, Position::NONE), boundary_lower(boundary));
    assert!(position_lower(boundary, Position::NONE) <= position_upper(boundary, Position::START));
}

fn positions() -> impl Strategy<Value = (u64, Bucket, EventId)> {
    let part = prop_oneof![0..4_u64, any::<u64>().prop_map(|part| part >> 1), Just(i64::MAX as u64)];
    (prop_oneof![0..3_u64, Just(u64::MAX)], part.clone(), part)
        .prop_map(|(hash, bucket, id)| (hash, Bucket(bucket), EventId(id)))
}

proptest! {
    #[test]
    fn position_order_is_key_order((hash, bucket_a, id_a) in positions(), (_, bucket_b, id_b) in positions()) {
        let a = EventKey { boundary: BoundaryHash(hash), bucket: bucket_a, event_id: id_a };
        let b = EventKey { boundary: BoundaryHash(hash), bucket: bucket_b, event_id: id_b };
        prop_assert_eq!(a.position().cmp(&b.position()), a.encode().cmp(&b.encode()));
    }

    #[test]
    fn bounds_divide_events_as_positions_do((hash, bucket, id) in positions(), (other, at, now) in positions()) {
        let event = EventKey { boundary: BoundaryHash(hash), bucket, event_id: id };
        let key = tables::event_key(&event);
        let boundary = BoundaryHash(other);
        prop_assert_eq!(boundary_range(boundary).contains(&key), hash == other);
        prop_assert_eq!(due_range(boundary, at).contains(&key), hash == other && bucket <= at);
        let cursor = Position::new(at, now);
        let same = event.boundary;
        prop_assert_eq!(key >= position_lower(same, cursor), event.position() >= cursor);
        prop_assert_eq!(key >= position_upper(same, cursor), event.position() > cursor);
    }

    #[test]
    fn a_scheduled_event_is_never_early_and_at_most_one_bucket_late(
        fire_at_ms in 0..=i64::MAX as u64, width_ms in 0..100_000_u64,
    ) {
        let width = width_ms.max(1);
        let starts = u128::from(bucket_due(fire_at_ms, width_ms).get()) * u128::from(width);
        prop_assert!(starts >= u128::from(fire_at_ms));
        prop_assert!(starts < u128::from(fire_at_ms) + u128::from(width));
    }
}
