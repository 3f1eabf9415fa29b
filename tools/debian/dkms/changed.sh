#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Run by DKMS when the module was installed for the kernel $$1, or removed.
set -e
release=$$1

# A module in updates/ comes first. So the kernel's own can stay where its package has it, while DKMS would keep it elsewhere.
for origin in "/var/lib/dkms/btrfs-rust/original_module/$$release/x86_64/"*.origin; do
	if [ -e "$$origin" ]; then
		mv "$${origin%.origin}" "$$(cat "$$origin")"
		rm "$$origin"
	fi
done

$initramfs
