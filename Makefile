# The few entry points. Each is short enough to read; what they call does the work.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
PYTHON ?= python3

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: deps vm-tools fmt-check lint doc-links build unit python-test ## All that must pass before a change goes in
	@echo
	@echo "make test: formatting, lints, links, build, tests: all passed."

# How many seeds `make sim` runs, and which comes first.
SEEDS ?= 200
SEED ?= 1

.PHONY: sim
sim: ## Simulate whole fleets from seeds, with all that can go wrong (SEEDS=2000 SEED=1)
	@SEEDS=$(SEEDS) SEED=$(SEED) $(CARGO) test --quiet --workspace --test sim -- \
	    --nocapture the_same_seed nothing_that_must_not

.PHONY: sim-week
sim-week: SEEDS = 20
sim-week: ## Simulate a lab's week of reservations, with all that goes wrong in it (SEEDS=50 SEED=1)
	@SEEDS=$(SEEDS) SEED=$(SEED) $(CARGO) test --quiet --workspace --test sim -- \
	    --nocapture a_lab_week

.PHONY: sim-bugs
sim-bugs: ## Look for each known bug with fresh seeds, at most 500 for each (SEED=1 BUG=name)
	@BUGS=fresh SEED=$(SEED) $(CARGO) test --quiet --workspace --test sim -- \
	    --nocapture each_known_bug_is_found
	@BUGS=1 $(CARGO) run --quiet --release -p fleet-month

# The pictures of docs/lab-month.md are written with PICTURES=docs.
.PHONY: month
month: SEEDS = 2
month: ## A lab's month, judged: shares, waits, useful GPU-hours against FIFO (SEEDS=50 SEED=1 PICTURES=docs)
	@SEEDS=$(SEEDS) SEED=$(SEED) $(CARGO) run --quiet --release -p fleet-month

.PHONY: demo
demo: deps ## A lab's day on a small cluster on this machine, told step by step
	$(CARGO) build --workspace --quiet
	@$(CARGO) run --quiet -p fleet-tests --bin demo

.PHONY: bench
bench: deps ## What fleet costs, beside the bare runtime, Slurm and etcd (BENCH_QUICK=1: only that it works)
	$(CARGO) build --workspace --release --quiet
	@target/release/bench

# CYCLES and SEED are read by tests/it/soak.rs; the figures are its last lines but a few.
CYCLES ?= 200
SEED ?= 1
.PHONY: soak
soak: deps build ## Kill, stop and cut off controllers under load, again and again (CYCLES=200 SEED=1)
	SOAK_CYCLES=$(CYCLES) SOAK_SEED=$(SEED) $(CARGO) test --workspace --test it --quiet -- soak:: --nocapture

# The stories whose name begins so; see tests/frameworks/stories.py.
STORY ?=
.PHONY: frameworks
frameworks: deps ## Train with PyTorch, Transformers and Lightning as jobs, break the GPU, judge the resume (STORY=hf)
	$(CARGO) build --workspace --quiet
	@PYTHON="$(PYTHON)" tests/frameworks/run.sh --only "$(STORY)"

# Cases by name; `node target/web/page.mjs --list` lists them.
CASE ?=
.PHONY: web
web: deps ## The web page in Chromium: two people reserve, race, log out; screenshots (CASE=two-people-race-and-one-wins)
	$(CARGO) build --workspace --quiet
	@tests/web/run.sh $(CASE)

# The commit to upgrade from; without one, that before the newest cluster version.
PREVIOUS ?=
.PHONY: upgrade-test
upgrade-test: deps build ## From this version to one that only tests know, under load and under a job (PREVIOUS=COMMIT: from that)
	CARGO_TARGET_DIR=$(CURDIR)/target/next $(CARGO) build --workspace --features fleet-controller/next-version --quiet
	@[ -z "$(PREVIOUS)" ] || packaging/build-previous.sh $(PREVIOUS)
	$(if $(PREVIOUS),FLEET_PREVIOUS=$(CURDIR)/target/previous/debug) FLEET_NEXT=$(CURDIR)/target/next/debug \
	    $(CARGO) test --workspace --test it --quiet -- upgrade:: --nocapture

.PHONY: pictures
pictures: deps ## The pictures in README.md: what `fleet status` and `fleet ps` print for 10 nodes and 40 GPUs
	$(CARGO) build --workspace --quiet
	@$(PYTHON) -B docs/pictures/make.py target/debug

.PHONY: bench-peers
bench-peers: ## Install what `make bench` compares with, from Debian's packages
	@packaging/install-bench-peers.sh

# All cases, or those that are named; they use the packages of `make deb`.
VM_CASES ?= all
.PHONY: vm
vm: vm-tools deb build ## Booted machines with fleet from its packages: systemd, dpkg, ssh (VM_CASES=smoke,power)
	VM_REQUIRED=1 VM_CASES=$(VM_CASES) VM_DEBS=target/deb $(CARGO) test --workspace --test vm --quiet -- fleet_on --nocapture

.PHONY: deb
deb: deps ## Debian packages for controller, nodes and users, in target/deb
	@packaging/install-deb-tools.sh
	@CARGO="$(CARGO)" packaging/build-programs.sh
	@packaging/build-debs.sh target/debian-11/release
	@packaging/lint-debs.sh

.PHONY: deb-test
deb-test: deb ## Install, upgrade, remove and purge them in fresh Debians, 11 to 13; and from a signed repository
	@for suite in bullseye bookworm trixie; do \
	    packaging/test-debs.sh $$suite && packaging/test-apt-repo.sh $$suite || exit 1; \
	done

.PHONY: apt-repo
apt-repo: deb ## A signed repository of them in target/apt: make apt-repo KEY=NAME
	@packaging/apt-repo.sh "$(KEY)"

.PHONY: release
release: deps ## All that is published of the last commit, in target/release-VERSION: make release KEY=NAME
	@CARGO="$(CARGO)" packaging/release.sh "$(KEY)"

# The SHA256SUMS of a published release; without it, two builds are compared.
SUMS ?=
.PHONY: release-check
release-check: deps ## Build the release again and compare the bytes (SUMS=FILE: with a published SHA256SUMS)
	@CARGO="$(CARGO)" packaging/check-release.sh $(SUMS)

.PHONY: check
check: fmt-check lint doc-links tidy deny ## The quick part of it: formatting, lints, links in comments, house rules
	@echo
	@echo "make check: all passed."

.PHONY: fix
fix: ## Format, and let clippy repair what it can (the only target that edits)
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged

# --- Steps ---------------------------------------------------------------------------------------

.PHONY: deps vm-tools fmt-check lint doc-links build unit python-test tidy deny

deps:
	@packaging/install-deps.sh

# Without them the tests say SKIPPED where they would boot a machine.
vm-tools:
	@packaging/install-vm-tools.sh || echo "SKIPPED: packages that booted machines need"

fmt-check:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

# A comment may link to what is private: those who read it have the source. What it names must be there.
DOC_LINTS := broken_intra_doc_links invalid_html_tags bare_urls
doc-links:
	RUSTDOCFLAGS="$(DOC_LINTS:%=-D rustdoc::%) -A rustdoc::private_intra_doc_links" \
	    $(CARGO) doc --workspace --exclude fleet-tests --no-deps --document-private-items --quiet

# All binaries, the shim and the fake NVML library: the tests start them as they are.
build:
	$(CARGO) build --workspace --all-targets --quiet

# nextest gives every test its own process and its own deadline; without it the tests run all the same.
unit:
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
	    $(CARGO) nextest run --workspace --profile whole --test-threads $$((2 * $$(nproc))); \
	else \
	    echo "cargo-nextest is not installed: running cargo test"; \
	    $(CARGO) test --workspace --lib --bins --tests; \
	fi
	$(CARGO) test --workspace --doc --quiet

python-test:
	$(PYTHON) -B -m unittest discover -s tests/demo

tidy:
	$(CARGO) test --quiet -p fleet-tests --test tidy

deny:
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
	    $(CARGO) deny --locked check bans licenses sources; \
	    if $(CARGO) deny fetch db >/dev/null 2>&1; then \
	        $(CARGO) deny --locked check advisories; \
	    else \
	        echo "SKIPPED: cargo deny check advisories (their list cannot be fetched)"; \
	    fi; \
	else \
	    echo "SKIPPED: cargo deny (not installed: cargo install --locked cargo-deny)"; \
	fi
