# Portway. `make demo` shows it at work, `make test` proves it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# What each target needs from Debian, as package:command. libc6-dev and binutils are what gcc links with.
BUILD_NEEDS := gcc:cc libc6-dev:/usr/include/stdlib.h binutils:objcopy
DEMO_NEEDS  := $(BUILD_NEEDS) nftables:nft iptables:iptables-save iproute2:ip
TEST_NEEDS  := $(DEMO_NEEDS) conntrack:conntrack iptables:iptables-nft iptables:iptables-legacy ipset:ipset \
               ipvsadm:ipvsadm kmod:modprobe mount:mount user-mode-linux:linux.uml iputils-ping:ping
BENCH_NEEDS := $(TEST_NEEDS) haproxy:haproxy
FRESH_NEEDS := debootstrap:debootstrap git:git

# Minutes that `make soak` begins new rounds.
MINUTES ?= 60

.PHONY: help demo test check soak fresh release bench lint deny fuzz clean

help:
	@echo "make demo     build, and show a two-node lab at work (seconds, after the build)"
	@echo "make test     run every test: units, kernel, lab, battery, agent; ipvs in user-mode Linux if need be"
	@echo "make check    rustfmt, clippy, rustdoc, unit and golden tests: the inner loop, without packets"
	@echo "make soak     the long runs, round after round; MINUTES=60 unless said otherwise"
	@echo "make fresh    README's commands on clean Debian roots; FRESH='--release trixie --as user' for some of them"
	@echo "make release  target/release/portway without debug information, which is in portway.debug"
	@echo "make bench    measure, with yardsticks in the same run; BENCH='--services 2000' for other sizes,"
	@echo "              BENCH='--peer /path/to/kube-proxy' to compare with kube-proxy"
	@echo "make lint     rustfmt, clippy, rustdoc"
	@echo "make deny     licences, advisories and duplicates of dependencies (cargo install cargo-deny)"
	@echo "make fuzz     run every fuzz target for a minute (needs a nightly toolchain and cargo-fuzz)"

# $(call need,packages): installs what is missing as root, else says what to install. A name with a slash is a file.
define need
	@missing=""; for pair in $(1); do \
		name="$${pair#*:}"; \
		command -v "$$name" >/dev/null 2>&1 || [ -e "$$name" ] || [ -x "/usr/sbin/$$name" ] || missing="$$missing $${pair%%:*}"; \
	done; \
	missing=$$(echo $$missing | tr ' ' '\n' | sort -u | tr '\n' ' '); missing=$${missing% }; \
	if [ -n "$$missing" ]; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "installing: $$missing"; \
			apt-get update -qq || exit 1; \
			DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null || exit 1; \
		else \
			echo "missing: $$missing"; \
			echo "as root: apt-get update && apt-get install -y --no-install-recommends $$missing"; exit 1; \
		fi; \
	fi; \
	command -v cargo >/dev/null || { echo "missing: a Rust toolchain (see rust-toolchain.toml for its version)"; exit 1; }
endef

export PATH := $(PATH):/usr/sbin:/sbin

# The same profile as the tests', so that both commands share one build.
demo:
	$(call need,$(DEMO_NEEDS))
	cargo build --workspace --bin portway --example demo
	$${CARGO_TARGET_DIR:-target}/debug/examples/demo

# nextest runs each test in a process of its own and sums up; cargo's own runner does where it is not installed.
# Where user-mode Linux cannot boot, one line says so, the tests that need it are left out, and the run fails.
test:
	$(call need,$(TEST_NEEDS))
	@scripts/test

check: lint
	@scripts/check

soak:
	$(call need,$(TEST_NEEDS))
	@scripts/soak $(MINUTES)

fresh:
	$(call need,$(FRESH_NEEDS))
	@scripts/fresh $(FRESH)

# gdb, perf and backtraces find portway.debug by the link in the binary.
release:
	$(call need,$(BUILD_NEEDS))
	cargo build --release --bin portway
	cd $${CARGO_TARGET_DIR:-target}/release && objcopy --only-keep-debug portway portway.debug && \
		objcopy --strip-unneeded --remove-section=.gnu_debuglink --add-gnu-debuglink=portway.debug portway portway.stripped && \
		mv portway.stripped portway
	@ls -l $${CARGO_TARGET_DIR:-target}/release/portway $${CARGO_TARGET_DIR:-target}/release/portway.debug

bench:
	$(call need,$(BENCH_NEEDS))
	cargo bench --quiet -p portway --bench bench -- $(BENCH)

lint:
	$(call need,$(BUILD_NEEDS))
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

deny:
	@cargo deny --version >/dev/null 2>&1 || { echo "missing: cargo-deny (cargo install cargo-deny)"; exit 1; }
	cargo deny --all-features check

fuzz:
	@cd fuzz && for target in $$(cargo +nightly fuzz list); do cargo +nightly fuzz run $$target -- -max_total_time=60; done

clean:
	cargo clean
