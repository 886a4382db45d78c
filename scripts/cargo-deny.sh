#!/usr/bin/env bash
# Installs cargo-deny if this machine does not have it: a few minutes, once.
set -euo pipefail
version=0.20.2
if ! cargo deny --version >/dev/null 2>&1; then
    echo "installing cargo-deny $version once for this machine" >&2
    cargo install cargo-deny --version "$version" --locked --no-default-features >&2
fi
