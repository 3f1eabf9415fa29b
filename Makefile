# SPDX-License-Identifier: GPL-2.0
#
# The entry point of the project. `make help` lists the targets. They write only to $(BUILD), by default
# `build`, and to $(CACHE); `apply` writes to $(KDIR).

export BUILD CACHE KDIR SIGN_CERT SIGN_KEY TOOLCHAIN

ENV := scripts/env
PYTEST := python3 -m pytest -v --durations=10 --timeout=900 -p no:cacheprovider
# Run two tests at a time: most guests use one processor.
BOTH := -n 2 --dist
UM := um-upstream um-c um-rust um-verify

.PHONY: help demo module deb dkms-deb bench unit quick check check-debug check-stock matrix sweep mutants kernels kunit style apply series shell clean
.DEFAULT_GOAL := help

help:			## Show this list
	@echo 'make TARGET [KDIR=/path/to/linux] [TOOLCHAIN=host] [BUILD=directory] [CACHE=directory]'
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

# Make all that the demo needs, and find out whether KVM works.
PREPARE_DEMO := kernel=$$($(ENV) scripts/bench/demo --prepare) && $(ENV) scripts/vm --probe-kvm "$$kernel"

demo:			## Compare Debian's btrfs and the module in a virtual machine with modelled disks; print one table
	@echo 'demo: build the module for the kernel of Debian 13, and run ten jobs with and without it: 10 to 20 minutes the first time' >&2
	@$(PREPARE_DEMO)
	@$(ENV) scripts/bench/demo

module:			## Build btrfs.ko for a kernel 7.3 of trixie-backports: RELEASE=, or the running one, or the newest
	@$(ENV) scripts/module $(RELEASE)

deb:			## Make a Debian package of that module
	@$(ENV) scripts/package modules $(RELEASE)

dkms-deb:		## Make a Debian package that has DKMS build the module for each supported kernel on a host
	@$(ENV) scripts/package dkms

bench:			## Run all benchmarks in memory and on three modelled disks: hours (FULL=1: with larger sizes, much longer)
	@$(ENV) scripts/build um-upstream um-c um-rust um-c-debug um-rust-debug
	@$(ENV) scripts/bench/run $(if $(filter-out 0,$(FULL)),--full)

unit:			## Run the KUnit tests of the Rust code on the host, without a kernel: seconds
	@$(ENV) sh -c 'cargo test --locked --offline --lib --manifest-path tools/testing/unit/Cargo.toml --target-dir "$$BUILD/unit"'

check:			## Run the tests
	@$(ENV) scripts/build $(UM) um-c-debug um-rust-debug um-debug x86_64-module
	@$(ENV) scripts/vm --probe-kvm x86_64-module
	@$(ENV) $(PYTEST) $(BOTH) loadfile -m 'not long' tests

quick:			## Run the fastest tests: style, and results and reads of the module in Debian's kernel
	@$(PREPARE_DEMO)
	@$(ENV) $(PYTEST) $(BOTH) loadfile tests/test_style.py --deselect tests/test_style.py::test_patches_apply_to_every_supported_tree \
		tests/test_bench.py::test_the_demo_compares_the_module_with_that_of_debian

check-debug:		## Run the debug tests: KASAN, kmemleak, lockdep, injected faults
	@$(ENV) scripts/build $(UM) um-c-debug um-rust-debug um-debug um-debug-verify x86_64-debug
	@$(ENV) $(PYTEST) $(BOTH) loadgroup tests/test_debug.py tests/test_host.py \
		tests/test_build.py::test_each_patch_builds_and_does_its_part tests/test_bench.py::test_the_readahead_is_as_large_and_as_early_as_measured

check-stock:		## Test the module in the stock kernel of Debian 13, and test the packages
	@$(ENV) scripts/build um-upstream x86_64-module
	@$(ENV) scripts/vm --probe-kvm x86_64-module
	@$(ENV) $(PYTEST) tests/test_module.py

matrix:			## Run KUnit, sends and fiemaps with other architectures, compilers and kernels; print a table
	@$(ENV) scripts/build um-upstream x86_64-module
	@$(ENV) scripts/vm --probe-kvm x86_64-module
	-@$(ENV) $(PYTEST) tests/test_matrix.py
	-@SUITE=sid $(ENV) $(PYTEST) tests/test_matrix.py
	@$(ENV) tests/test_matrix.py

sweep:			## Count the waits and reads of sends, fiemaps and walks on filesystems of many shapes; print a table
	@$(ENV) scripts/build um-upstream um-c um-rust
	-@$(ENV) $(PYTEST) $(BOTH) load tests/test_shapes.py
	@$(ENV) tests/test_shapes.py

mutants:		## Put one bug after the other, or those in NAMES=, into the kernel part, scripts or tools; check that a test fails
	@$(ENV) scripts/mutants $(NAMES)

kernels:		## Build the UML kernels: upstream, C, Rust, and Rust compared with C at run time
	@$(ENV) scripts/build $(UM)

kunit:			## Run the KUnit suites on UML
	@$(ENV) $(PYTEST) tests/test_kunit.py -k um

style:			## Check the formatting and the patches
	@$(ENV) $(PYTEST) tests/test_style.py

apply:			## Apply the patches and the Rust files to your own kernel tree, KDIR
	@$(ENV) scripts/tree apply

series:			## Write three patch series for `git am` to $(BUILD)/series
	@$(ENV) scripts/tree series

shell:			## Start a shell in the toolchain root
	@$(ENV) bash

clean:			## Remove all builds and outdated toolchain roots; keep the downloads
	@$(ENV) scripts/build --clean
	@$(ENV) --clean
