#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Load the btrfs module $1, or the kernel's own one if $1 is "stock". Print its load message, and run the command in the other arguments.
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
