//! Loading, precedence and rules of configurations.

use super::*;

fn sources(
    file: Option<&str>,
    environment: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> (tempfile::TempDir, Sources) {
    let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let dir = tempfile::tempdir().unwrap();
    let file = file.map(|text| {
        let path = dir.path().join("tidemark.toml");
        std::fs::write(&path, text).unwrap();
        path
    });
    (dir, Sources { file, environment: owned(environment), flags: owned(flags) })
}

fn load(
    file: Option<&str>,
    environment: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> Result<Effective, ConfigError> {
    let (_dir, sources) = sources(file, environment, flags);
    Config::load(&sources)
}

#[track_caller]
fn refused(file: &str) -> String {
    load(Some(file), &[], &[]).expect_err("must be refused").to_string()
}

fn key(path: &str) -> &'static Key {
    KEYS.iter().find(|key| key.path == path).unwrap()
}

#[test]
fn nothing_set_gives_a_single_node_on_loopback() {
    let config = load(None, &[], &[]).unwrap().config;
    assert_eq!(config, Config::default());
    assert_eq!(config.listen.to_string(), "127.0.0.1:7400");
    assert_eq!(config.data_dir, PathBuf::from("./tidemark-data"));
    assert_eq!((config.node_id(), config.peer_address()), (1, None));
}

#[test]
fn flags_beat_the_environment_which_beats_the_file() {
    let file = "[raft]\nheartbeat_ms = 101\nelection_min_ms = 1001\n[sequencer]\nentry_requests = 1\n";
    let environment = [("TIDEMARK_RAFT_HEARTBEAT_MS", "102"), ("TIDEMARK_SEQUENCER_ENTRY_REQUESTS", "2")];
    let effective = load(Some(file), &environment, &[("raft.heartbeat_ms", "103")]).unwrap();
    let config = &effective.config;
    assert_eq!(
        (config.raft.heartbeat_ms, config.sequencer.entry_requests, config.raft.election_min_ms),
        (103, 2, 1001)
    );
    assert_eq!(effective.origin(key("raft.heartbeat_ms")), &Origin::Flag("raft-heartbeat-ms".to_owned()));
    let variable = Origin::Environment("TIDEMARK_SEQUENCER_ENTRY_REQUESTS".to_owned());
    assert_eq!(effective.origin(key("sequencer.entry_requests")), &variable);
    assert!(matches!(effective.origin(key("raft.election_min_ms")), Origin::File(_)));
    assert_eq!(effective.origin(key("raft.election_max_ms")), &Origin::Default);
}

#[test]
fn members_come_from_a_table_a_variable_or_a_flag() {
    let text = "1=127.0.0.1:1,2=127.0.0.1:2";
    let table =
        "[cluster]\nnode_id = 2\n[cluster.initial_members]\n1 = \"127.0.0.1:1\"\n2 = \"127.0.0.1:2\"\n";
    let from_file = load(Some(table), &[], &[]).unwrap().config;
    let environment = [("TIDEMARK_CLUSTER_INITIAL_MEMBERS", text), ("TIDEMARK_CLUSTER_NODE_ID", "2")];
    assert_eq!(load(None, &environment, &[]).unwrap().config, from_file);
    let flags = [("cluster.initial_members", text), ("cluster.node_id", "2")];
    assert_eq!(load(None, &[], &flags).unwrap().config, from_file);
    assert_eq!(from_file.peer_address().unwrap().to_string(), "127.0.0.1:2");
}

#[test]
fn an_unknown_key_is_refused_with_the_one_that_was_meant() {
    assert!(refused("[raft]\nheartbeat = 1\n").ends_with("did you mean raft.heartbeat_ms?"));
    assert!(refused("heartbeat_ms = 1\n").ends_with("did you mean raft.heartbeat_ms?"));
    assert!(refused("data-dir = \"x\"\n").ends_with("did you mean data_dir?"));
    assert!(refused("[rafft]\nheartbeat_ms = 1\n").ends_with("did you mean raft?"));
    assert!(refused("zzz = 1\n").contains("unknown key zzz in file"));
    let error = load(None, &[("TIDEMARK_RAFT_HARTBEAT_MS", "1")], &[]).unwrap_err().to_string();
    assert!(error.ends_with("did you mean TIDEMARK_RAFT_HEARTBEAT_MS?"), "{error}");
}

#[test]
fn variables_of_the_command_and_of_service_links_are_no_keys() {
    let environment = [
        ("TIDEMARK_URL", "x"),
        ("TIDEMARK_SERVICE_HOST", "10.0.0.1"),
        ("TIDEMARK_PORT_7400_TCP", "tcp://10.0.0.1:7400"),
        ("HOME", "/"),
    ];
    assert_eq!(load(None, &environment, &[]).unwrap().config, Config::default());
}

#[test]
fn a_wrong_value_names_its_key_its_place_and_what_is_expected() {
    let error = load(None, &[("TIDEMARK_RAFT_SEGMENT_BYTES", "64 MB")], &[]).unwrap_err().to_string();
    assert!(error.starts_with("raft.segment_bytes in environment TIDEMARK_RAFT_SEGMENT_BYTES is"), "{error}");
    assert!(error.contains("64 MiB"), "{error}");
    assert!(refused("engine = \"oracle\"\n").contains("rocksdb, sqlite or memory"));
    assert!(refused("raft = 1\n").contains("unknown key raft"));
}

#[test]
fn an_address_reachable_from_outside_needs_insecure() {
    assert!(refused("listen = \"0.0.0.0:7400\"\n").contains("--insecure"));
    assert!(refused("peer_listen = \"10.0.0.1:7401\"\n").contains("peer_listen is 10.0.0.1:7401"));
    let members = "[cluster]\nnode_id = 1\ninitial_members = { 1 = \"db1:7401\", 2 = \"db2:7401\" }\n";
    assert!(refused(members).contains("peer_listen is db1:7401"));
    assert!(load(Some(&format!("insecure = true\n{members}")), &[], &[]).is_ok());
    assert!(load(Some("insecure = true\nlisten = \"0.0.0.0:7400\"\n"), &[], &[]).is_ok());
}

#[test]
fn members_must_be_complete_and_distinct() {
    let members =
        |node: &str, list: &str| refused(&format!("[cluster]\n{node}\ninitial_members = {list:?}\n"));
    assert!(members("", "1=127.0.0.1:1").contains("--node-id"));
    assert!(members("node_id = 3", "1=127.0.0.1:1,2=127.0.0.1:2").contains("(1, 2)"));
    assert!(members("node_id = 1", "1=127.0.0.1:1,2=127.0.0.1:1").contains("members 1 and 2"));
    assert!(members("node_id = 1", "1=127.0.0.1:0").contains("has no port"));
}

#[test]
fn values_that_do_not_fit_together_are_refused() {
    assert!(refused("[raft]\nheartbeat_ms = 600\n").contains("raft.election_min_ms is 1000"));
    assert!(refused("[raft]\nelection_max_ms = 1000\n").contains("raft.election_max_ms"));
    assert!(refused("[raft]\nsegment_bytes = \"1 MiB\"\n").contains("raft.segment_bytes"));
    assert!(refused("[limits]\nmax_save_bytes = \"15 MiB\"\n").contains("limits.max_entry_bytes"));
    assert!(refused("[limits]\nmax_event_bytes = \"9 MiB\"\n").contains("limits.max_save_bytes"));
    assert!(refused("[log]\nlevel = \"a=b=c\"\n").contains("log.level"));
}

#[test]
fn a_configuration_made_in_code_is_held_to_the_notation_of_its_keys() {
    let mut config = Config::default();
    config.sequencer.entries_in_flight = 0;
    let error = config.validate().unwrap_err().to_string();
    assert!(error.starts_with("sequencer.entries_in_flight"), "{error}");
}

#[test]
fn an_engine_that_is_not_compiled_in_is_refused() {
    for engine in Engine::ALL {
        let config = Config { engine, ..Config::default() };
        let refused = matches!(config.validate(), Err(ConfigError::EngineMissing(_)));
        assert_eq!(refused, !Engine::available().contains(&engine), "{engine}");
    }
}

#[test]
fn the_printed_configuration_loads_to_the_same_values() {
    let flags = [
        ("raft.heartbeat_ms", "150"),
        ("cluster.initial_members", "1=127.0.0.1:1"),
        ("cluster.node_id", "1"),
    ];
    let effective = load(None, &[("TIDEMARK_LOG_FORMAT", "json")], &flags).unwrap();
    let printed = effective.to_toml();
    assert!(printed.contains("heartbeat_ms = 150  # flag --raft-heartbeat-ms"), "{printed}");
    assert!(printed.contains("format = \"json\"  # environment TIDEMARK_LOG_FORMAT"), "{printed}");
    assert!(printed.contains("election_min_ms = 1000  # default"), "{printed}");
    assert_eq!(load(Some(&printed), &[], &[]).unwrap().config, effective.config);
    assert_eq!(effective.to_json()["raft.heartbeat_ms"]["value"], 150);
}

#[test]
fn flags_and_variables_of_keys_are_unique() {
    let mut names: Vec<String> = KEYS.iter().flat_map(|key| [key.flag(), key.variable()]).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
    assert!(KEYS.iter().all(|key| is_setting(&key.variable())));
}

#[test]
fn the_reference_in_docs_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    assert!(text == reference(), "run `make fix` to regenerate docs/configuration.md");
}
