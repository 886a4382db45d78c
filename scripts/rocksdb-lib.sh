#!/usr/bin/env bash
# Compiles RocksDB once per machine as a static library, makes `.rocksdb` in this clone a link to its directory (which
# `.cargo/config.toml` names), and prints that directory. It is keyed by version, features, architecture and compiler; a
# lock makes concurrent clones wait for one build instead of doing two. `--path` only prints the directory.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n 's/^librocksdb-sys = .*"=\([^"]*\)".*/\1/p' "$here/storage/rocksdb-lib/Cargo.toml")
compiler=$("${CXX:-c++}" -dumpfullversion -dumpversion 2>/dev/null || echo none)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/tidemark"
out="$cache/rocksdb-$version-lz4-$(uname -m)-cxx$compiler"
if [ "${1:-}" = "--path" ]; then echo "$out"; exit 0; fi

compile() {
    "$here/scripts/system-packages.sh" rocksdb >&2
    mkdir -p "$cache"
    exec 9>"$cache/rocksdb.lock"
    flock 9
    # Another clone may have been faster.
    [ -f "$out/librocksdb.a" ] && return
    echo "compiling RocksDB $version once for this machine (about 33 CPU-minutes) into $out" >&2
    stage="$out.partial"
    rm -rf "$stage"
    mkdir -p "$stage"
    # ROCKSDB_LIB_DIR would make librocksdb-sys link instead of compile; outside the clone its Cargo configuration,
    # which sets it, is not found.
    (cd "$cache" && env -u ROCKSDB_LIB_DIR -u ROCKSDB_STATIC TIDEMARK_ROCKSDB_LIB_OUT="$stage" \
        CARGO_TARGET_DIR="$cache/rocksdb-build" \
        cargo build --release --locked --manifest-path "$here/storage/rocksdb-lib/Cargo.toml") >&2
    test -s "$stage/librocksdb.a"
    rm -rf "$out"
    mv "$stage" "$out"
    rm -rf "$cache/rocksdb-build"
}

[ -f "$out/librocksdb.a" ] || compile
ln -sfn "$out" "$here/.rocksdb"
echo "$out"
