# Every target says what it does in `make help`. The compiler's output goes where CARGO_TARGET_DIR says.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help deps build release demo test bench soak lint fmt clippy doc pure licences man clean

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# Where tests cannot break things they are skipped, loudly; on a build machine that is a failure.
ifeq ($(CI),true)
export OUTLAST_REQUIRE_LAB := 1
endif
# The dependencies as they were when this was tested.
LOCKED := --locked

help: ## Show this
	@echo 'Outlast: TCP services that outlast the link, the process, the machine and the load.'
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## Install the real programs that tests and demo use (Debian packages; only what is missing)
	@./tools/deps.sh

build: ## Build everything, as the tests do
	$(CARGO) build $(LOCKED) --workspace --all-targets

release: ## Build an optimised outlast that needs no libraries, and those that it loads into servers: out/
	@./tools/release.sh

demo: deps ## Break links under transfers, crash servers and machines under load; needs root for all faults (ARGS='--quick' is shorter)
	$(CARGO) build $(LOCKED) -p outlast -p outlast-demo -p outlast-c
	$(CARGO) build $(LOCKED) -p outlast-restart --example tally --example trouble
	$(CARGO) build $(LOCKED) -p outlast-kv -p outlast-kv-plain
	$(TARGET_DIR)/debug/outlast-demo $(ARGS)

test: deps lint ## Check and test everything (ARGS='relay::' is a part of it)
	./tools/test.py $(ARGS)

bench: ## Measure, briefly; the long forms are in `outlast-bench --help`
	$(CARGO) build $(LOCKED) --release -p outlast-bench
	$(TARGET_DIR)/release/outlast-bench all --quick

soak: deps ## Break links and crash servers 100,000 times, and simulate millions of schedules (hours)
	OUTLAST_BREAKAGES=100000 OUTLAST_SCHEDULES=250000 ./tools/test.py --timeout 86400 --jobs 3 \
		outlast-session::breakages outlast-session::simulation
	OUTLAST_SCHEDULES=2000000 ./tools/test.py --timeout 86400 --jobs 1 outlast-replica::simulation outlast-replica::lease
	OUTLAST_CRASHES=50000 OUTLAST_KILLS=20000 OUTLAST_GENERATIONS=100000 ./tools/test.py --timeout 86400 --jobs 2 \
		outlast-restart:: outlast-kv:: outlast-c::
	./tools/deps.sh --soak
	OUTLAST_SERVERS=all OUTLAST_SERVERS_LOAD=100 ./tools/test.py --timeout 7200 --jobs 1 outlast-preload::servers || \
		{ cat $(TARGET_DIR)/servers.txt; exit 1; }
	@cat $(TARGET_DIR)/servers.txt
	OUTLAST_DEATHS=2000 ./tools/test.py --timeout 7200 --jobs 1 outlast::replicate_join
	OUTLAST_FAULTS=1000 ./tools/test.py --timeout 7200 --jobs 1 outlast::replicate_histories outlast::replicate_mysql_histories
	OUTLAST_CROWD=9000 OUTLAST_STRANGERS=9000 ./tools/test.py --timeout 3600 --jobs 1 \
		outlast-session::attacks outlast::strangers

lint: fmt clippy doc pure ## Everything that is checked without running it

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy $(LOCKED) --workspace --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc $(LOCKED) --workspace --no-deps

# The cores have no sockets, clocks or threads: they build without the standard library.
pure:
	$(CARGO) check $(LOCKED) -p outlast-stream --no-default-features
	$(CARGO) check $(LOCKED) -p outlast-session --no-default-features
	$(CARGO) check $(LOCKED) -p outlast-replica --no-default-features

licences: ## Check the licences of all dependencies
	./tools/test.py licences::

man: ## Write manual pages and shell completions to out/
	$(CARGO) build $(LOCKED) -p outlast
	mkdir -p out/man out/completions
	$(TARGET_DIR)/debug/outlast man out/man
	for shell in bash zsh fish; do $(TARGET_DIR)/debug/outlast completions $$shell > out/completions/outlast.$$shell; done

clean: ## Remove what was built
	$(CARGO) clean
	rm -rf out
