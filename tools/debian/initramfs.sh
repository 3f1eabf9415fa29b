# SPDX-License-Identifier: GPL-2.0
#
# Part of scripts in both packages. It runs after the module for the kernel $release was installed or removed.
if [ -e "/usr/lib/modules/$release/modules.builtin" ]; then
	depmod "$release"
	# Skip a new kernel, which has no initramfs yet.
	if [ ! -e "/boot/initrd.img-$release" ]; then
		:
	elif command -v update-initramfs >/dev/null; then
		update-initramfs -u -k "$release"
	elif command -v dracut >/dev/null; then
		dracut --force "/boot/initrd.img-$release" "$release"
	fi
fi
