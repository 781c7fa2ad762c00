# Portway. `make demo` shows it at work, `make test` proves it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# What each target needs from Debian, as package:command.
DEMO_NEEDS  := nftables:nft iptables:iptables-save iproute2:ip gcc:cc
TEST_NEEDS  := $(DEMO_NEEDS) conntrack:conntrack iptables:iptables-nft iptables:iptables-legacy ipset:ipset \
               ipvsadm:ipvsadm kmod:modprobe user-mode-linux:linux.uml iputils-ping:ping
BENCH_NEEDS := $(TEST_NEEDS) haproxy:haproxy

.PHONY: help demo test bench lint fuzz clean

help:
	@echo "make demo    build, and show a two-node lab at work (about a minute after the build)"
	@echo "make test    run every test: units, kernel, lab, battery, agent; ipvs in user-mode Linux if need be"
	@echo "make bench   measure, beside yardsticks in the same run; BENCH='--services 2000' for other sizes"
	@echo "make lint    rustfmt, clippy, rustdoc, cargo-deny"
	@echo "make fuzz    run every fuzz target for a minute (needs a nightly toolchain and cargo-fuzz)"

# $(call need,packages): installs what is missing as root, else says what to install.
define need
	@missing=""; for pair in $(1); do \
		command -v "$${pair#*:}" >/dev/null 2>&1 || [ -x "/usr/sbin/$${pair#*:}" ] || missing="$$missing $${pair%%:*}"; \
	done; \
	if [ -n "$$missing" ]; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "installing:$$missing"; \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
		else \
			echo "missing:$$missing"; echo "as root: apt-get install$$missing"; exit 1; \
		fi; \
	fi; \
	command -v cargo >/dev/null || { echo "missing: a Rust toolchain (see rust-toolchain.toml for its version)"; exit 1; }
endef

export PATH := $(PATH):/usr/sbin:/sbin

demo:
	$(call need,$(DEMO_NEEDS))
	cargo build --release -p portway --bin portway --example demo
	target/release/examples/demo

# nextest runs each test in a process of its own and sums up; cargo's own runner does where it is not installed.
test:
	$(call need,$(TEST_NEEDS))
	@if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run --workspace --no-fail-fast; \
	else \
		cargo test --workspace --no-fail-fast; \
	fi

bench:
	$(call need,$(BENCH_NEEDS))
	cargo bench --quiet -p portway --bench bench -- $(BENCH)

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --all-features check; \
	else echo "missing: cargo-deny (cargo install cargo-deny)"; exit 1; fi

fuzz:
	@cd fuzz && for target in $$(cargo +nightly fuzz list); do cargo +nightly fuzz run $$target -- -max_total_time=60; done

clean:
	cargo clean
