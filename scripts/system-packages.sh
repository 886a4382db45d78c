#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that a build needs and that are missing:
# `system-packages.sh base` for a C compiler (SQLite), `rocksdb` adds C++ and libclang (bindgen).
set -euo pipefail
missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v make >/dev/null || missing+=(make)
if [ "${1:-base}" = rocksdb ]; then
    command -v c++ >/dev/null || missing+=(g++)
    ls /usr/lib/llvm-*/lib/libclang*.so* /usr/lib/*/libclang*.so* >/dev/null 2>&1 || missing+=(libclang-dev)
fi
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null; then
    echo "missing: ${missing[*]} (Debian names); install what your system calls them, then run this again" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "missing system packages; run as root: apt-get install -y ${missing[*]}" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >&2
