//! The model passes the suite, and crashes as it says.

use std::path::Path;

use super::*;

fn dir() -> &'static Path {
    Path::new("kv")
}

fn commit(db: &dyn Db, number: u8) {
    let mut batch = Batch::new();
    batch.put(vec![number], vec![number]);
    batch.put(tables::raft_applied_key(), vec![number]);
    db.commit(batch, Durability::Buffered).expect("committed");
}

fn applied(db: &dyn Db) -> Option<u8> {
    db.get(&tables::raft_applied_key()).expect("readable").map(|value| value[0])
}

#[test]
fn the_model_passes_the_contract_suite() {
    crate::suite::run_all(Arc::new(ModelEngine::default()), dir());
}

#[test]
fn a_crash_leaves_what_was_flushed_and_the_chosen_prefix() {
    for surviving in 0..=4 {
        let engine = ModelEngine::new(ModelDisk::new());
        let db = engine.create(dir()).expect("created");
        (1..=2).for_each(|number| commit(db.as_ref(), number));
        db.flush().expect("flushed");
        (3..=5).for_each(|number| commit(db.as_ref(), number));
        assert_eq!(engine.disk().unflushed(dir()), 3);
        engine.disk().crash(|_, unflushed| {
            assert_eq!(unflushed, 3);
            surviving
        });
        let db = engine.open(dir()).expect("opened");
        let expected = 2 + surviving.min(3) as u8;
        assert_eq!(applied(db.as_ref()), Some(expected));
        assert_eq!(db.durable_applied().expect("readable").as_deref(), Some(&[expected][..]));
        assert_eq!(db.get(&[expected]).expect("readable").as_deref(), Some(&[expected][..]));
        assert_eq!(db.get(&[expected + 1]).expect("readable"), None);
        assert_eq!(engine.disk().unflushed(dir()), 0);
    }
}

#[test]
fn a_database_lost_in_a_crash_cannot_touch_its_successor() {
    let engine = ModelEngine::new(ModelDisk::new());
    let old = engine.create(dir()).expect("created");
    commit(old.as_ref(), 1);
    let snapshot = old.snapshot().expect("a snapshot");
    engine.disk().crash(|_, _| 0);
    let new = engine.open(dir()).expect("the crash closed it");
    assert!(matches!(old.get(&[1]), Err(crate::Error::Usage(Usage::Crashed(_)))));
    assert!(old.commit(Batch::new(), Durability::Flushed).is_err());
    assert_eq!(snapshot.get(&[1]).expect("readable").as_deref(), Some(&[1][..]));
    drop(old);
    assert!(engine.open(dir()).is_err(), "the successor is still open");
    assert_eq!(applied(new.as_ref()), None);
}

#[test]
fn closing_flushes_nothing() {
    let engine = ModelEngine::new(ModelDisk::new());
    let db = engine.create(dir()).expect("created");
    commit(db.as_ref(), 1);
    drop(db);
    engine.disk().crash(|_, _| 0);
    assert_eq!(applied(engine.open(dir()).expect("opened").as_ref()), None);
}
