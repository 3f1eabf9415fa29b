#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# DKMS runs this script after it has installed the module for the kernel $$1, or removed it.
set -e
release=$$1

# DKMS moves the kernel's own module away: move it back to the path that its package has. The module in updates/ has priority.
# A module of somebody else in updates/ stays away until DKMS removes ours.
for origin in "/var/lib/dkms/btrfs-rust/original_module/$$release/x86_64/"*.origin; do
	case "$$(cat "$$origin" 2>/dev/null)" in
	*/kernel/*)
		mv "$${origin%.origin}" "$$(cat "$$origin")"
		rm "$$origin"
		;;
	esac
done

$initramfs
