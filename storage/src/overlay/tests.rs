//! The overlay against a plain map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{
    contract::{Durability, Engine},
    model::{ModelDisk, ModelEngine},
};

type Rows = BTreeMap<Bytes, Bytes>;

fn keys() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(0xff)], 0..3).prop_map(Bytes::from)
}

/// A key with its new value; `None` deletes it.
fn changes() -> impl Strategy<Value = Vec<(Bytes, Option<Bytes>)>> {
    let value = prop::option::weighted(0.7, any::<u8>().prop_map(|byte| Bytes::from(vec![byte])));
    prop::collection::vec((keys(), value), 0..12)
}

fn change(rows: &mut Rows, (key, value): &(Bytes, Option<Bytes>)) {
    match value {
        Some(value) => rows.insert(key.clone(), value.clone()),
        None => rows.remove(key),
    };
}

fn write(overlay: &mut Overlay<'_>, (key, value): &(Bytes, Option<Bytes>)) {
    match value {
        Some(value) => overlay.put(key.clone(), value.clone()),
        None => overlay.delete(key.clone()),
    }
}

fn scan(read: &dyn Read, range: &KeyRange, direction: Direction, limit: usize) -> Vec<(Bytes, Bytes)> {
    let mut rows = Vec::new();
    let visited = read.scan(range, direction, &mut |key, value| {
        rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        if rows.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    visited.expect("the scan succeeds");
    rows
}

proptest! {
    #[test]
    fn reads_see_the_base_under_the_earlier_writes(
        base in changes(), lower_writes in changes(), upper_writes in changes(),
        bounds in (prop::option::of(keys()), prop::option::of(keys())), limit in 1..9_usize,
    ) {
        let db = ModelEngine::new(ModelDisk::new()).create("kv".as_ref()).expect("created");
        let mut rows: Rows = [(crate::tables::format_key(), crate::tables::format_row())].into();
        let mut first = Overlay::new(&db);
        for next in &base {
            write(&mut first, next);
            change(&mut rows, next);
        }
        let batch = first.into_batch();
        db.commit(batch, Durability::Buffered).expect("committed");

        let mut lower = Overlay::new(&db);
        lower_writes.iter().for_each(|next| { write(&mut lower, next); change(&mut rows, next); });
        let mut upper = Overlay::new(&lower);
        upper_writes.iter().for_each(|next| { write(&mut upper, next); change(&mut rows, next); });

        for (key, _) in base.iter().chain(&lower_writes).chain(&upper_writes) {
            prop_assert_eq!(upper.get(key).expect("readable"), rows.get(key).cloned());
        }
        let range = KeyRange { lower: bounds.0, upper: bounds.1 };
        let mut expected: Vec<_> = rows.into_iter().filter(|(key, _)| range.contains(key)).collect();
        for direction in [Direction::Ascending, Direction::Descending] {
            prop_assert_eq!(&scan(&upper, &range, direction, usize::MAX), &expected);
            let cut = &expected[..limit.min(expected.len())];
            prop_assert_eq!(&scan(&upper, &range, direction, limit), cut);
            expected.reverse();
        }
    }

    #[test]
    fn the_batch_has_the_same_effect_as_the_writes(base in changes(), writes in changes()) {
        let db = ModelEngine::new(ModelDisk::new()).create("kv".as_ref()).expect("created");
        let mut rows = Rows::new();
        for (next, last) in [(base, false), (writes, true)] {
            let mut overlay = Overlay::new(&db);
            next.iter().for_each(|next| { write(&mut overlay, next); change(&mut rows, next); });
            prop_assert_eq!(overlay.is_empty(), next.is_empty());
            let batch = overlay.into_batch();
            let sorted = batch.writes().windows(2).all(|pair| pair[0].key() < pair[1].key());
            prop_assert!(sorted, "one write per key, in key order");
            db.commit(batch, Durability::Buffered).expect("committed");
            if last {
                rows.insert(crate::tables::format_key(), crate::tables::format_row());
                let found = scan(&db, &KeyRange::ALL, Direction::Ascending, usize::MAX);
                prop_assert_eq!(found, rows.clone().into_iter().collect::<Vec<_>>());
            }
        }
    }
}
