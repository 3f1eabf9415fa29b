#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Run by DKMS when the module was installed for the kernel $$1, or removed.
set -e

# A module in updates/ comes first. So the kernel's own can stay where its package has it, while DKMS would keep it elsewhere.
for origin in "/var/lib/dkms/btrfs-rust/original_module/$$1/x86_64/"*.origin; do
	if [ -e "$$origin" ]; then
		mv "$${origin%.origin}" "$$(cat "$$origin")"
		rm "$$origin"
	fi
done

# A new kernel has no initramfs yet.
if [ -e "/boot/initrd.img-$$1" ]; then
	depmod "$$1"
	if command -v update-initramfs >/dev/null; then
		update-initramfs -u -k "$$1"
	elif command -v dracut >/dev/null; then
		dracut --force "/boot/initrd.img-$$1" "$$1"
	fi
fi
