#!/usr/bin/env bash
# Runs a command in a small virtual machine that has RDMA devices:
#
#   scripts/rdma_vm.sh COMMAND [ARGUMENT...]
#
# QEMU boots Debian's kernel, whose rdma_rxe speaks RoCE v2 over any network interface. So real queue pairs are there on
# a host without an RDMA card, without KVM and without root (emulated, hence slow: it proves what is right, not what is
# fast). The guest sees the host's file system, read-only under a layer in memory, so the command finds what is built
# and installed here, and begins in the current folder. Devices and addresses: scripts/rdma_vm/guest.sh.
# What the command prints is printed here, its exit status is the status of this script; 124 after the time limit, 125
# if the machine ended by itself (its console is shown), 69 if it cannot run here (why and what to do is said).
#
#   RDMA_VM_SECONDS  time limit                (600)      RDMA_VM_CPUS    processors of the guest  (2)
#   RDMA_VM_ACCEL    tcg or kvm  (kvm where the processor has it)      RDMA_VM_MEMORY  its memory  (1500M)
#   RDMA_VM_CACHE    folder of the kernel and the initramfs, which are made once (build/rdma-vm of this checkout)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
export RDMA_VM_CACHE=${RDMA_VM_CACHE:-$here/../build/rdma-vm}
[ $# -ge 1 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 64; }

say() { printf '%s\n' "rdma_vm: $*" >&2; }

# A processor that is itself virtual may show /dev/kvm and yet run no common kernel under it.
accelerator() {
  if [ -n "${RDMA_VM_ACCEL:-}" ]; then echo "$RDMA_VM_ACCEL"
  elif [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then echo kvm
  else echo tcg; fi
}

# What the guest's half reads: where to begin, and the command, quoted.
write_command() {
  printf 'export PATH=%q\ncd %q\n' "$PATH" "$PWD"
  printf '%q ' "$@"
  echo
}

boot() {
  local machine=(-accel kvm -cpu host)
  [ "$(accelerator)" = kvm ] || machine=(-accel tcg,thread=multi,tb-size=256 -cpu max)
  # no_timer_check: an emulator short of processor time fails that check of the kernel.
  timeout --foreground -k 5 "${RDMA_VM_SECONDS:-600}" qemu-system-x86_64 \
    -nodefaults -no-user-config -no-reboot -display none \
    "${machine[@]}" -smp "${RDMA_VM_CPUS:-2}" -m "${RDMA_VM_MEMORY:-1500M}" \
    -kernel "$RDMA_VM_CACHE/vmlinuz" -initrd "$RDMA_VM_CACHE/initramfs" \
    -append "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable mitigations=off random.trust_cpu=on" \
    -serial "file:$exchange/console" -serial stdio \
    -fsdev "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap" \
    -device virtio-9p-pci,fsdev=root,mount_tag=root \
    -fsdev "local,id=exchange,path=$exchange,security_model=none" \
    -device virtio-9p-pci,fsdev=exchange,mount_tag=exchange </dev/null
}

bash "$here/rdma_vm/image.sh"
exchange=$(mktemp -d)
trap 'rm -rf "$exchange"' EXIT
cp "$here/rdma_vm/guest.sh" "$exchange/guest.sh"
write_command "$@" >"$exchange/command"
: >"$exchange/console"
status=0
boot || status=$?
if [ -s "$exchange/status" ]; then
  exit "$(cat "$exchange/status")"
fi
if [ "$status" = 124 ]; then
  say "stopped after ${RDMA_VM_SECONDS:-600} s (RDMA_VM_SECONDS); the machine's console ends with:"
else
  say "the machine ended without a result (status $status of QEMU); its console ends with:"
  status=125
fi
tail -n 40 "$exchange/console" >&2
exit "$status"
