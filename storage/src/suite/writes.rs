//! Promises about batches, keys, values and bulk loads.

use std::path::Path;

use bytes::Bytes;

use crate::{
    contract::{Batch, Durability, Engine},
    error::{Error, ErrorKind, Usage},
    tables,
};

use super::{Pairs, contents, put};

pub(super) fn a_batch_applies_in_order(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    db.commit(Batch::new(), Durability::Buffered).expect("an empty batch is no error");
    db.commit(Batch::new(), Durability::Flushed).expect("an empty batch flushes");
    put(db.as_ref(), b"old", b"1");
    let mut batch = Batch::new();
    batch.put("twice", "1");
    batch.put("twice", "2");
    batch.put("gone", "1");
    batch.delete("gone");
    batch.delete("back");
    batch.put("back", "1");
    batch.delete("old");
    batch.delete("never there");
    db.commit(batch, Durability::Buffered).expect("committed");
    let get = |key: &str| db.get(key.as_bytes()).expect("readable");
    assert_eq!(get("twice").as_deref(), Some(&b"2"[..]));
    assert_eq!(get("back").as_deref(), Some(&b"1"[..]));
    assert_eq!((get("gone"), get("old"), get("never there")), (None, None, None));
}

pub(super) fn odd_keys_and_values_are_kept(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    let keys: [&[u8]; 12] = [
        b"",
        b"\0",
        b"\0\0",
        b"\0\xff",
        b"a",
        b"a\0",
        b"a\0\0",
        b"aa",
        b"a\xff",
        b"\xff",
        b"\xff\0",
        b"\xff\xff",
    ];
    let values: [&[u8]; 4] = [b"", b"\0", b"\xff\xff", b"value"];
    for (number, key) in keys.iter().enumerate() {
        put(db.as_ref(), key, values[number % values.len()]);
    }
    let expected = |db: &dyn crate::contract::Db| {
        for (number, key) in keys.iter().enumerate() {
            let value = db.get(key).expect("readable");
            assert_eq!(value.as_deref(), Some(values[number % values.len()]), "{key:?}");
        }
        let mut sorted: Vec<&[u8]> = keys.to_vec();
        let format = tables::format_key();
        sorted.push(&format);
        sorted.sort_unstable();
        let found: Vec<Bytes> = contents(db).into_iter().map(|(key, _)| key).collect();
        assert_eq!(found, sorted);
    };
    expected(db.as_ref());
    db.flush().expect("flushed");
    drop(db);
    let db = engine.open(dir).expect("opened");
    expected(db.as_ref());
    let mut batch = Batch::new();
    keys.iter().for_each(|key| batch.delete(Bytes::copy_from_slice(key)));
    db.commit(batch, Durability::Buffered).expect("committed");
    assert_eq!(contents(db.as_ref()).len(), 1, "only the format row is left");
}

pub(super) fn values_of_16_mib_are_kept(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    let value: Vec<u8> =
        (0..16_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    put(db.as_ref(), b"large", &value);
    put(db.as_ref(), b"next", b"small");
    assert!(db.get(b"large").expect("readable").is_some_and(|found| found == value));
    db.flush().expect("flushed");
    drop(db);
    let db = engine.open(dir).expect("opened");
    let rows = contents(db.as_ref());
    assert!(rows[0] == ("large".into(), value.into()) && rows[2].0 == "next", "large rows scan too");
}

/// Rows of several kinds in key order.
fn sorted_rows(count: u32) -> Pairs {
    (0..count)
        .map(|row| (Bytes::from(format!("e{row:08}")), Bytes::from(vec![row as u8; row as usize % 700])))
        .chain([(tables::format_key(), tables::format_row()), (tables::raft_applied_key(), "7".into())])
        .collect()
}

pub(super) fn a_bulk_load_fills_an_empty_database(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    let rows = sorted_rows(20_000);
    db.bulk_load(&mut rows.iter().cloned().map(Ok)).expect("loaded");
    assert!(contents(db.as_ref()) == rows);
    assert_eq!(db.durable_applied().expect("readable").as_deref(), Some(&b"7"[..]));
    put(db.as_ref(), b"e00000000", b"written afterwards");
    assert_eq!(db.get(b"e00000000").expect("readable").as_deref(), Some(&b"written afterwards"[..]));
    db.flush().expect("flushed");
    db.verify().expect("healthy");
    drop(db);
    let db = engine.open(dir).expect("opened");
    assert_eq!(contents(db.as_ref()).len(), rows.len());
    let empty = engine.create(&dir.with_extension("empty")).expect("created");
    empty.bulk_load(&mut std::iter::empty()).expect("nothing to load is no error");
    assert_eq!(contents(empty.as_ref()).len(), 1);
}

pub(super) fn a_bulk_load_refuses_rows_disorder_and_bad_formats(engine: &dyn Engine, dir: &Path) {
    let load = |name: &str, rows: &[(&str, &[u8])]| {
        let db = engine.create(&dir.with_extension(name)).expect("created");
        let mut pairs = rows
            .iter()
            .map(|(key, value)| Ok((Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value))));
        db.bulk_load(&mut pairs)
    };
    let disorder = load("disorder", &[("a", b"1"), ("c", b"2"), ("b", b"3")]);
    assert!(matches!(disorder, Err(Error::Usage(Usage::LoadUnsorted { index: 2, .. }))), "{disorder:?}");
    let twice = load("twice", &[("a", b"1"), ("a", b"2")]);
    assert!(matches!(twice, Err(Error::Usage(Usage::LoadUnsorted { index: 1, .. }))), "{twice:?}");
    let format = load("format", &[("a", b"1"), ("mformat", b"\0\0\0\x63" as &[u8])]);
    assert!(matches!(format, Err(Error::Unsupported { found: 99, .. })), "{format:?}");

    let db = engine.create(dir).expect("created");
    let broken: [crate::error::Result<_>; 2] = [
        Ok((Bytes::from("a"), Bytes::from("1"))),
        Err(Usage::LoadSource(std::io::Error::other("the peer went away").into()).into()),
    ];
    let error = db.bulk_load(&mut broken.into_iter()).expect_err("the source failed");
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(matches!(error, Error::Usage(Usage::LoadSource(_))), "{error:?}");

    let db = engine.create(&dir.with_extension("rows")).expect("created");
    put(db.as_ref(), b"zzz", b"already there");
    let refused = db.bulk_load(&mut sorted_rows(3).into_iter().map(Ok));
    assert!(matches!(refused, Err(Error::Usage(Usage::LoadIntoRows(_)))), "{refused:?}");
}
