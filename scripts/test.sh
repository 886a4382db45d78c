#!/usr/bin/env bash
# Everything that CI checks. Reads the working copy and changes nothing in it; ends at the first check that fails.
#
# One set of features serves all steps, so that everything is compiled once; only the builds with a single engine
# have sets of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

both=tidemark-storage/rocksdb,tidemark-node/rocksdb,tidemark-chaos-tests/rocksdb
target=${CARGO_TARGET_DIR:-target}
# Flags from outside would replace those of .cargo/config.toml and compile everything anew.
unset RUSTFLAGS RUSTDOCFLAGS
export CARGO_TERM_PROGRESS_WHEN=never
# Copies of what was built: another cargo in this clone may meanwhile replace it by a build with other features.
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT

summary=()
step() {
    local title=$1 began=$SECONDS
    shift
    printf '\n=== %s\n' "$title"
    if ! "$@"; then
        printf '\n=== FAILED after %d s: %s\n' $((SECONDS - began)) "$title" >&2
        exit 1
    fi
    summary+=("$(printf '%5d s  %s' $((SECONDS - began)) "$title")")
}

# Functions that `step` runs as a condition are not left by `set -e`: their parts are joined with `&&`.
format() { cargo fmt --all --check; }
lints() { cargo clippy --locked --workspace --all-targets --features "$both" -- -D warnings; }
# With the tests, because their features of third parties would otherwise be compiled a second time.
binaries() {
    cargo build --locked --workspace --bins --tests --features "$both" &&
        cp "$target/debug/tidemark" "$target/debug/chaos" "$built"
}
generated() {
    diff -u docs/configuration.md <("$built/tidemark" server --config-reference) ||
        { echo "docs/configuration.md is out of date: run make fix" >&2; return 1; }
}
tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --locked --workspace --features "$both"
    else
        cargo test --locked --workspace --features "$both" --lib --bins --tests
    fi
}
doc_tests() { cargo test --locked --workspace --features "$both" --doc; }
docs() { RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --features "$both"; }
one_engine() {
    local features=tidemark-storage/$1,tidemark-node/$1
    cargo check --locked -p tidemark-storage -p tidemark-node --all-targets --no-default-features --features "$features"
}
dependencies() {
    scripts/cargo-deny.sh && cargo fetch --locked && cargo deny --offline check bans licenses sources
}
# Times are enforced by `make kill-loop`, on a machine that does nothing else.
kills() { "$built/chaos" kill-loop --rounds 3 --engine "$1" --time-limits report; }
demo() { "$built/tidemark" demo --engine "$1"; }

step "format" format
step "lints: clippy with warnings as errors" lints
step "binaries and tests compile" binaries
step "generated files are up to date" generated
step "tests: units, contracts, layers, simulation seeds" tests
step "doc tests" doc_tests
step "documentation without warnings" docs
step "SQLite alone" one_engine sqlite
step "RocksDB alone" one_engine rocksdb
step "dependencies: bans, licences, sources" dependencies
step "three kills on SQLite" kills sqlite
step "three kills on RocksDB" kills rocksdb
step "demo on SQLite" demo sqlite
step "demo on RocksDB" demo rocksdb

printf '\n=== all checks hold\n'
printf '%s\n' "${summary[@]}"
printf '%5d s  in all\n' "$SECONDS"
