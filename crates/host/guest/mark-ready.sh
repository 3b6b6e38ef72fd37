#!/bin/sh
# The very last step of the first boot. The file says how long it took since the kernel began, in milliseconds.
mkdir -p /var/lib/gpuaas || exit 1
read -r up _ </proc/uptime
printf '%s%s0\n' "${up%.*}" "${up#*.}" >/var/lib/gpuaas/.slice-ready || exit 1
chmod 0644 /var/lib/gpuaas/.slice-ready
exec mv /var/lib/gpuaas/.slice-ready /var/lib/gpuaas/slice-ready
