# SPDX-License-Identifier: GPL-2.0
#
# Part of scripts in both packages. It runs after the module for the kernel $release was installed or removed.
if [ -e "/usr/lib/modules/$release/modules.builtin" ]; then
	# At the removal of a package, other packages may be gone.
	if command -v depmod >/dev/null; then
		depmod "$release"
	fi
	image=/boot/initrd.img-$release
	before=$(stat -c %i.%z "$image" 2>/dev/null || :)
	failed=
	if [ ! -e "$image" ]; then
		:
	elif command -v update-initramfs >/dev/null; then
		update-initramfs -u -k "$release" || failed=1
	elif command -v dracut >/dev/null; then
		# dracut removes an image that it cannot write to its end.
		if dracut --force "$image.new" "$release"; then
			mv "$image.new" "$image"
			# update-initramfs runs these itself, for instance to copy the initramfs to the EFI system partition.
			if [ -d /etc/initramfs/post-update.d ]; then
				run-parts --arg="$release" --arg="$image" /etc/initramfs/post-update.d || failed=1
			fi
		else
			rm -f "$image.new"
			failed=1
		fi
	fi
	# The hooks of a new kernel run before there is an initramfs. Their environment has DEB_MAINT_PARAMS.
	if [ -n "$failed" ] || { [ "$before" = "$(stat -c %i.%z "$image" 2>/dev/null || :)" ] && [ -z "$DEB_MAINT_PARAMS" ]; }; then
		echo "btrfs-rust: $image was not made anew. If this host boots with an initramfs, it still loads the btrfs from before." >&2
		# A removal goes on: the initramfs can be made later. DKMS ignores the status.
		[ -z "$failed" ] || [ "$1" = remove ] || exit 1
	fi
	# Say which btrfs the next boot loads.
	if [ -z "$DEB_MAINT_PARAMS" ] && command -v btrfs-readahead >/dev/null; then
		btrfs-readahead status --kernel "$release" || :
	fi
fi
