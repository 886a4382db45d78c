# Commands for people and for CI. Each installs what it needs; `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test fix chaos kill-loop bench release rocksdb-lib

help: ## Shows this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

# The engine's name is the feature's name. RocksDB is linked from a library that is compiled once per machine.
with_engine = $(if $(filter rocksdb,$(ENGINE)),scripts/with-rocksdb.sh,$(if $(filter sqlite,$(ENGINE)),,$(error ENGINE is $(ENGINE), but must be sqlite or rocksdb)))

demo: ENGINE ?= sqlite
demo: ## Three nodes, real flights, a killed leader, everything checked (ENGINE=sqlite or rocksdb)
	@scripts/system-packages.sh base
	$(with_engine) cargo run --locked -p tidemark-node --features $(ENGINE) -- demo --engine $(ENGINE)

test: ## Everything that CI runs; changes nothing in the working copy
	@scripts/with-rocksdb.sh scripts/test.sh

fix: ## Formats the code and writes the generated files
	@scripts/system-packages.sh base
	cargo fmt --all
	cargo run --locked -p tidemark-node -- server --config-reference > docs/configuration.md.new
	mv docs/configuration.md.new docs/configuration.md

chaos: SEEDS ?= 0..10000
chaos: ## Simulates a cluster, once per seed; takes hours (SEEDS=0..10000)
	@scripts/system-packages.sh base
	cargo run --locked -p tidemark-chaos-tests --bin chaos -- sim --seeds $(SEEDS)

kill-loop: N ?= 50
kill-loop: ENGINE ?= rocksdb
kill-loop: ## Kills servers under load and checks what is left (N=50 ENGINE=rocksdb or sqlite)
	@scripts/system-packages.sh base
	$(with_engine) cargo build --locked -p tidemark-node -p tidemark-chaos-tests --bins --features tidemark-node/$(ENGINE),tidemark-chaos-tests/$(ENGINE)
	$${CARGO_TARGET_DIR:-target}/debug/chaos kill-loop --rounds $(N) --engine $(ENGINE)

bench: ENGINE ?= rocksdb
bench: release ## Saves per second and their latency on this machine (ENGINE=rocksdb or sqlite, ARGS="--nodes 1 …")
	$${CARGO_TARGET_DIR:-target}/release/tidemark bench --engine $(ENGINE) $(ARGS)

release: ## The optimised binary with both engines: target/release/tidemark
	scripts/with-rocksdb.sh cargo build --locked --release -p tidemark-node --features rocksdb

rocksdb-lib: ## Compiles RocksDB once for this machine (about 33 CPU-minutes)
	@scripts/rocksdb-lib.sh
