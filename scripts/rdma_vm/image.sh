#!/usr/bin/env bash
# Makes what scripts/rdma_vm.sh boots, in the folder RDMA_VM_CACHE: `vmlinuz`, Debian's kernel, and `initramfs`: busybox,
# the modules in the order of loading, and init. Does nothing when they are there; the kernel's package (70 MB) is
# fetched once by apt-get and never installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
cache=$RDMA_VM_CACHE
modules=(virtio_pci 9pnet_virtio 9p overlay veth sch_netem crc32_generic ib_uverbs rdma_ucm rdma_rxe)

cannot() {
  printf '%s\n' "rdma_vm: cannot run here: $1" "rdma_vm: $2" >&2
  exit 69
}

check_tools() {
  local missing=() tool
  [ "$(uname -m)" = x86_64 ] || cannot "only x86_64 has been set up, this is $(uname -m)" "use an x86_64 machine"
  for tool in qemu-system-x86_64 busybox modprobe cpio ip rdma tc apt-get dpkg-deb; do
    PATH=$PATH:/sbin:/usr/sbin command -v "$tool" >/dev/null || missing+=("$tool")
  done
  [ ${#missing[@]} -eq 0 ] || cannot "no ${missing[*]}" "bash scripts/setup.sh rdma installs what is missing (Debian)"
  ! ldd "$(command -v busybox)" >/dev/null 2>&1 || cannot "busybox is not linked statically" "install busybox-static"
}

# The package that linux-image-amd64 stands for: not the kernel for clouds, which has no RDMA.
fetch_kernel() {
  local package
  compgen -G "$cache/linux-image-*.deb" >/dev/null && return
  package=$(kernel_package)
  if [ -z "$package" ] && [ "$(id -u)" -eq 0 ]; then
    apt-get update -qq
    package=$(kernel_package)
  fi
  [ -n "$package" ] || cannot "apt-get knows no linux-image-amd64" "run apt-get update (Debian's package sources are needed)"
  (cd "$cache" && apt-get -qq -o APT::Sandbox::User=root download "$package") ||
    cannot "$package could not be fetched" "see what apt-get said above"
}

kernel_package() { apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}'; }

# Numbered in the order of loading. A module that this kernel has built in, or no longer has, is left out.
copy_modules() {
  local root=$1 into=$2 version=$3 module path number=100
  for module in "${modules[@]}"; do
    modprobe -d "$root" -S "$version" --show-depends "$module" 2>/dev/null || true
  done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r path; do
    case $path in
      *.xz) xz -dc "$path" >"$into/$number-$(basename "$path" .xz)" ;;
      *) cp "$path" "$into/$number-$(basename "$path")" ;;
    esac
    number=$((number + 1))
  done
}

make_image() {
  local root=$work/kernel files=$work/initramfs version
  mkdir -p "$root" "$files"/{bin,dev,proc,sys,modules,host,layer,new}
  dpkg-deb -x "$cache"/linux-image-*.deb "$root"
  version=$(basename "$root"/lib/modules/*)
  depmod -b "$root" "$version"
  cp "$(command -v busybox)" "$files/bin/busybox"
  cp "$here/init" "$files/init"
  chmod +x "$files/init"
  copy_modules "$root" "$files/modules" "$version"
  (cd "$files" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/image"
  mv "$root/boot/vmlinuz-$version" "$cache/vmlinuz"
  mv "$work/image" "$cache/initramfs"
}

PATH=$PATH:/sbin:/usr/sbin
check_tools
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
stamp=$(cat "$here/image.sh" "$here/init" | sha256sum)
[ "$(cat "$cache/stamp" 2>/dev/null || true)" != "$stamp" ] || exit 0
fetch_kernel
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make_image
echo "$stamp" >"$cache/stamp"
