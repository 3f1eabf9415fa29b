#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Twice: load btrfs from the modules in $1, use it, and unload it.
set -euo pipefail

for turn in 1 2; do
	dmesg -C
	modprobe -d "$1" btrfs
	echo suites passed: $(dmesg | sed -n 's/.*\] *ok [0-9]* \(btrfs_[a-z_]*\)$/\1/p' | sort)
	truncate -s 200M /tmp/disk
	mkfs.btrfs -q -f /tmp/disk
	mkdir -p /tmp/fs
	mount -o loop /tmp/disk /tmp/fs
	for number in {1..50}; do echo "$number" >"/tmp/fs/file$number"; done
	btrfs -q subvolume snapshot -r /tmp/fs /tmp/fs/snap
	echo "sent $(btrfs -q send /tmp/fs/snap | wc -c) bytes"
	umount /tmp/fs
	modprobe -d "$1" -r btrfs
done
