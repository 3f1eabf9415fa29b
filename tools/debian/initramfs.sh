# SPDX-License-Identifier: GPL-2.0
#
# Part of scripts in both packages. It runs after the module for the kernel $release was installed or removed.
if [ -e "/usr/lib/modules/$release/modules.builtin" ]; then
	# At the removal of a package, other packages may be gone.
	if command -v depmod >/dev/null; then
		depmod "$release"
	fi
	# Skip a new kernel, which has no initramfs yet.
	if [ ! -e "/boot/initrd.img-$release" ]; then
		:
	elif command -v update-initramfs >/dev/null; then
		update-initramfs -u -k "$release"
	elif command -v dracut >/dev/null; then
		dracut --force "/boot/initrd.img-$release" "$release"
		# update-initramfs runs these itself, for instance to copy the initramfs to the EFI system partition.
		if [ -d /etc/initramfs/post-update.d ]; then
			run-parts --arg="$release" --arg="/boot/initrd.img-$release" /etc/initramfs/post-update.d
		fi
	fi
fi
