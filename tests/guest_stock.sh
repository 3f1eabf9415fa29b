#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Load btrfs, the kernel's own or the module $1, say which it is, and run what follows.
set -euo pipefail

module=$1
shift
if [ "$module" = stock ]; then
	modprobe btrfs
else
	modprobe --all libblake2b raid6_pq xor
	insmod "$module"
fi
dmesg | grep --only-matching 'Btrfs loaded.*'
"$@"
