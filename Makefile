# SPDX-License-Identifier: GPL-2.0
#
# The one entry point; `make help` lists the targets. Nothing here builds in the source tree: all that
# is downloaded or built is in $(BUILD), `build` unless set.

export BUILD CACHE KDIR SIGN_CERT SIGN_KEY TOOLCHAIN

ENV := scripts/env
PYTEST := python3 -m pytest -v --durations=10 -p no:cacheprovider
# A guest mostly has one processor.
BOTH := -n 2 --dist
UM := um-upstream um-c um-rust um-verify

.PHONY: help demo module deb dkms-deb bench check check-debug check-stock matrix kernels kunit style apply series shell clean
.DEFAULT_GOAL := help

help:			## Show this list
	@echo 'make TARGET [KDIR=/path/to/linux] [TOOLCHAIN=host] [BUILD=directory] [CACHE=directory]'
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo:			## Run the jobs with the C and the Rust kernel and compare
	@$(ENV) scripts/build um-upstream um-c um-rust
	@$(ENV) scripts/bench/run --kind comparison --device ram --rounds 6

module:			## Build btrfs.ko for a kernel of Debian 13, the running one or RELEASE=
	@$(ENV) scripts/module $(RELEASE)

deb:			## Make a package of it
	@$(ENV) scripts/package modules $(RELEASE)

dkms-deb:		## Make a package that builds the module for each kernel that is installed
	@$(ENV) scripts/package dkms

bench:			## Run all benchmarks on three kinds of disk (FULL=1: the seeds' sizes)
	@$(ENV) scripts/build um-upstream um-c um-rust um-c-debug um-rust-debug
	@$(ENV) scripts/bench/run $(if $(filter-out 0,$(FULL)),--full)

check:			## Run the tests
	@$(ENV) scripts/build $(UM) um-debug x86_64-module
	@$(ENV) scripts/vm --probe-kvm x86_64-module
	@$(ENV) $(PYTEST) $(BOTH) loadfile -m 'not long' tests

check-debug:		## Run tests in kernels with KASAN, kmemleak, lockdep and injected faults
	@$(ENV) scripts/build $(UM) um-debug um-debug-verify x86_64-debug
	@$(ENV) $(PYTEST) $(BOTH) load tests/test_debug.py tests/test_host.py \
		tests/test_build.py::test_each_patch_builds

check-stock:		## Run tests with the module in the stock kernel of Debian 13, and of the packages
	@$(ENV) scripts/build um-upstream x86_64-module
	@$(ENV) scripts/vm --probe-kvm x86_64-module
	@$(ENV) $(PYTEST) tests/test_module.py

matrix:			## Run KUnit and a send with other architectures, compilers and kernels; print a table
	@$(ENV) scripts/build um-upstream x86_64-module
	@$(ENV) scripts/vm --probe-kvm x86_64-module
	-@$(ENV) $(PYTEST) tests/test_matrix.py
	-@SUITE=sid $(ENV) $(PYTEST) tests/test_matrix.py
	@$(ENV) tests/test_matrix.py

kernels:		## Build the UML kernels: C, Rust, and both compared with each other
	@$(ENV) scripts/build $(UM)

kunit:			## Run the KUnit suites on UML
	@$(ENV) $(PYTEST) tests/test_kunit.py -k um

style:			## Check the formatting and the patches
	@$(ENV) $(PYTEST) tests/test_style.py

apply:			## Put the overlay and the patches into your own tree, KDIR
	@$(ENV) scripts/tree apply

series:			## Write a series for `git am` to $(BUILD)/series
	@$(ENV) scripts/tree series

shell:			## Enter the toolchain root
	@$(ENV) bash

clean:			## Remove all that was built and toolchain roots of older versions, but not the downloads
	@$(ENV) scripts/build --clean
	@$(ENV) --clean
