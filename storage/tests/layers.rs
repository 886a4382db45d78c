//! The layering of the workspace: which crate may know what.
//!
//! `cargo metadata` says what each member declares. What it reaches in the end is asked of `cargo tree`, member by
//! member: the resolve in the metadata joins the features that all members want, so that `tonic` would show up
//! below `state-machine` because `raft` turns it on in `proto`.
//!
//! The test stands in `storage` because nothing else has to be built for it there.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    path::PathBuf,
    process::Command,
};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// What one member may know. A name also stands for every package whose name continues it after a dash: `openraft`
/// for `openraft-rt`.
struct Layer {
    member: &'static str,
    /// Features to resolve with, each set by itself and without the default ones.
    feature_sets: &'static [&'static str],
    /// The members that may be named, hence also be reached.
    members: &'static [&'static str],
    /// Must not be reached, neither directly nor through others.
    out_of_reach: &'static [&'static str],
    /// Must not be named in the member's own manifest; may be reached.
    not_named: &'static [&'static str],
}

const ENGINES: &str = "rocksdb,sqlite";

const STORAGE: &str = "tidemark-storage";
const STATE_MACHINE: &str = "tidemark-state-machine";
const PROTO: &str = "tidemark-proto";
const RAFT: &str = "tidemark-raft";
const NODE: &str = "tidemark-node";
const CLIENT: &str = "tidemark-client";
const CHAOS_TESTS: &str = "tidemark-chaos-tests";

const LAYERS: &[Layer] = &[
    Layer {
        member: STORAGE,
        feature_sets: &["", "sqlite", "rocksdb", ENGINES],
        members: &[],
        out_of_reach: &["openraft", "tonic", "tokio", "async-nats"],
        not_named: &[],
    },
    Layer {
        member: STATE_MACHINE,
        feature_sets: &[""],
        members: &[STORAGE, PROTO],
        // Engines would make its tests slow to build; clocks and random numbers would make replicas differ.
        out_of_reach: &[
            "openraft",
            "tokio",
            "tonic",
            "async-nats",
            "rocksdb",
            "librocksdb-sys",
            "rusqlite",
            "libsqlite3-sys",
            "chrono",
            "time",
            "rand",
            "getrandom",
            "fastrand",
            "uuid",
        ],
        not_named: &[],
    },
    Layer {
        member: PROTO,
        feature_sets: &["", "grpc"],
        members: &[],
        out_of_reach: &["rocksdb", "librocksdb-sys", "rusqlite", "libsqlite3-sys", "openraft"],
        not_named: &[],
    },
    Layer {
        member: RAFT,
        feature_sets: &[""],
        members: &[STORAGE, STATE_MACHINE, PROTO],
        out_of_reach: &["rocksdb", "librocksdb-sys", "rusqlite", "libsqlite3-sys", "async-nats"],
        not_named: &[],
    },
    Layer {
        member: NODE,
        feature_sets: &["sqlite", "rocksdb", ENGINES],
        members: &[STORAGE, STATE_MACHINE, PROTO, RAFT, CLIENT],
        out_of_reach: &[],
        not_named: &["openraft", "rocksdb", "rusqlite"],
    },
    Layer {
        member: CLIENT,
        feature_sets: &[""],
        members: &[PROTO],
        out_of_reach: &["openraft", "rocksdb", "librocksdb-sys", "rusqlite", "libsqlite3-sys", "async-nats"],
        not_named: &[],
    },
    Layer {
        member: CHAOS_TESTS,
        feature_sets: &["sqlite", "rocksdb", ENGINES],
        members: &[STORAGE, STATE_MACHINE, PROTO, RAFT, NODE, CLIENT],
        out_of_reach: &[],
        not_named: &["rocksdb", "rusqlite"],
    },
];

/// All that `proto` may name when no feature is on.
const PROTO_ALONE: [&str; 2] = ["bytes", "prost"];

fn is_one_of(package: &str, names: &[&str]) -> bool {
    names
        .iter()
        .any(|name| package.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')))
}

fn is_member(package: &str) -> bool {
    package.starts_with("tidemark-")
}

/// Packages and what they directly depend on.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Reads lines of depth and package, as `cargo tree --prefix depth` prints them.
fn parse_tree(text: &str) -> Graph {
    let mut graph = Graph::new();
    let mut path: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let digits = line.bytes().take_while(u8::is_ascii_digit).count();
        let depth: usize = line[..digits].parse().expect("each line starts with its depth");
        let package = line[digits..].split_whitespace().next().expect("the depth is followed by a package");
        path.truncate(depth);
        graph.entry(package.to_owned()).or_default();
        if let Some(parent) = path.last() {
            graph.entry(parent.clone()).or_default().insert(package.to_owned());
        }
        path.push(package.to_owned());
    }
    graph
}

/// A way from a member to something that it must not reach.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    path: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path.join(" -> "))
    }
}

/// The shortest way to each package that `layer` must not reach. The search does not go on behind such a package.
fn violations(layer: &Layer, graph: &Graph) -> Vec<Violation> {
    let mut seen = BTreeSet::from([layer.member]);
    let mut queue = VecDeque::from([vec![layer.member]]);
    let mut found = Vec::new();
    while let Some(path) = queue.pop_front() {
        let last = path.last().expect("a path starts at its member");
        for next in graph.get(*last).into_iter().flatten() {
            if !seen.insert(next) {
                continue;
            }
            let mut path = path.clone();
            path.push(next);
            let foreign_member = is_member(next) && !layer.members.contains(&next.as_str());
            if foreign_member || is_one_of(next, layer.out_of_reach) {
                found.push(Violation { path: path.into_iter().map(str::to_owned).collect() });
            } else {
                queue.push_back(path);
            }
        }
    }
    found
}

/// Names in a manifest that `layer` does not allow.
fn forbidden_names<'a>(layer: &Layer, declared: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let allowed = |name: &&str| {
        let member_allowed = !is_member(name) || layer.members.contains(name);
        member_allowed && !is_one_of(name, layer.out_of_reach) && !is_one_of(name, layer.not_named)
    };
    declared.into_iter().filter(|name| !allowed(name)).collect()
}

fn workspace_manifest() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
}

/// The members and the normal dependencies that each declares, optional ones included.
fn declared() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace_manifest())
        .no_deps()
        .exec()
        .expect("cargo describes the workspace");
    let normal = |package: &cargo_metadata::Package| -> BTreeSet<String> {
        let dependencies = package.dependencies.iter();
        dependencies
            .filter(|dependency| dependency.kind == DependencyKind::Normal)
            .map(|dependency| dependency.name.clone())
            .collect()
    };
    metadata.workspace_packages().iter().map(|package| (package.name.to_string(), normal(package))).collect()
}

/// The normal dependencies of `member`, resolved for it alone. Procedural macros run in the compiler only.
fn resolved(member: &str, features: &str) -> Graph {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "depth", "--format", "{p}"])
        .args(["--no-default-features", "--features", features, "--package", member, "--manifest-path"])
        .arg(workspace_manifest())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let graph = parse_tree(&String::from_utf8(output.stdout).expect("package names are text"));
    assert!(graph.contains_key(member), "the tree of {member} starts with it");
    graph
}

#[test]
fn every_member_has_a_layer_and_declares_only_what_it_allows() {
    let declared = declared();
    let members: BTreeSet<&str> = declared.keys().map(String::as_str).collect();
    let layers: BTreeSet<&str> = LAYERS.iter().map(|layer| layer.member).collect();
    assert_eq!(members, layers, "each member has one layer");
    for layer in LAYERS {
        let names = declared[layer.member].iter().map(String::as_str);
        let forbidden = forbidden_names(layer, names);
        assert!(forbidden.is_empty(), "{} must not name {}", layer.member, forbidden.join(", "));
    }
}

#[test]
fn no_member_reaches_what_its_layer_excludes() {
    for layer in LAYERS {
        for features in layer.feature_sets {
            let found = violations(layer, &resolved(layer.member, features));
            let found: Vec<String> = found.iter().map(Violation::to_string).collect();
            assert!(found.is_empty(), "with features {features:?}:\n{}", found.join("\n"));
        }
    }
}

#[test]
fn messages_without_services_need_nothing_but_prost_and_bytes() {
    let graph = resolved(PROTO, "");
    let direct: Vec<&str> = graph[PROTO].iter().map(String::as_str).collect();
    assert_eq!(direct, PROTO_ALONE);
}

fn layer(member: &str) -> &'static Layer {
    LAYERS.iter().find(|layer| layer.member == member).expect("the member has a layer")
}

#[track_caller]
fn found(member: &str, tree: &str) -> Vec<String> {
    violations(layer(member), &parse_tree(tree)).iter().map(Violation::to_string).collect()
}

#[test]
fn a_direct_edge_to_something_excluded_is_found() {
    let tree = "0tidemark-storage v0.1.0 (/x)\n1bytes v1.12.2\n1tokio v1.54.0\n";
    assert_eq!(found(STORAGE, tree), ["tidemark-storage -> tokio"]);
}

#[test]
fn an_indirect_edge_is_found_with_the_way_to_it() {
    let tree = "0tidemark-state-machine v0.1.0 (/x)\n1bytes v1.12.2\n1tidemark-storage v0.1.0 (/y)\n\
                2innocent v1.0.0\n3bytes v1.12.2\n3rusqlite v0.43.0\n4libsqlite3-sys v0.36.0\n1prost v0.14.6\n";
    assert_eq!(
        found(STATE_MACHINE, tree),
        ["tidemark-state-machine -> tidemark-storage -> innocent -> rusqlite"]
    );
}

#[test]
fn an_edge_is_found_where_the_tree_shows_its_subtree_only_once() {
    // The subtree of a repeated package stands where it was printed first.
    let tree = "0tidemark-raft v0.1.0 (/x)\n1b v1.0.0\n2a v1.0.0\n3async-nats v0.40.0\n1a v1.0.0 (*)\n";
    assert_eq!(found(RAFT, tree), ["tidemark-raft -> a -> async-nats"]);
}

#[test]
fn an_edge_to_a_member_above_is_found() {
    let tree = "0tidemark-client v0.1.0 (/x)\n1tidemark-proto v0.1.0 (/y)\n1tidemark-raft v0.1.0 (/z)\n";
    assert_eq!(found(CLIENT, tree), ["tidemark-client -> tidemark-raft"]);
}

#[test]
fn a_name_stands_for_its_family_and_not_for_look_alikes() {
    assert!(is_one_of("openraft", &["openraft"]) && is_one_of("openraft-rt-tokio", &["openraft"]));
    assert!(!is_one_of("openrafts", &["openraft"]) && !is_one_of("my-openraft", &["openraft"]));
}

#[test]
fn a_forbidden_name_in_a_manifest_is_found() {
    let names = ["bytes", "openraft-rt", "tidemark-raft", "tidemark-chaos-tests"];
    assert_eq!(forbidden_names(layer(NODE), names), ["openraft-rt", "tidemark-chaos-tests"]);
    assert_eq!(forbidden_names(layer(RAFT), names), ["tidemark-raft", "tidemark-chaos-tests"]);
}
