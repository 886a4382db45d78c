#!/usr/bin/env bash
# Runs a command that builds with the feature `rocksdb`, linking the library that is compiled once per machine:
# `with-rocksdb.sh cargo build --features rocksdb`.
set -euo pipefail
scripts=$(cd "$(dirname "$0")" && pwd)
"$scripts/system-packages.sh" rocksdb >&2
ROCKSDB_LIB_DIR=$("$scripts/rocksdb-lib.sh")
export ROCKSDB_LIB_DIR ROCKSDB_STATIC=1
exec "$@"
