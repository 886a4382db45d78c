#!/usr/bin/env bash
# Runs a command that builds with the feature `rocksdb`, linking the library that is compiled once per machine:
# `with-rocksdb.sh cargo build --features rocksdb`. Afterwards a plain `cargo build --features rocksdb` works too.
set -euo pipefail
scripts=$(cd "$(dirname "$0")" && pwd)
"$scripts/system-packages.sh" rocksdb >&2
"$scripts/rocksdb-lib.sh" >/dev/null
exec "$@"
