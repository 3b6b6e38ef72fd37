#!/bin/sh
# The last step of the first boot. The file contains the time since the start of the kernel, in milliseconds.
mkdir -p /var/lib/gpuaas || exit 1
read -r up _ </proc/uptime
printf '%s%s0\n' "${up%.*}" "${up#*.}" >/var/lib/gpuaas/.slice-ready || exit 1
chmod 0644 /var/lib/gpuaas/.slice-ready
exec mv /var/lib/gpuaas/.slice-ready /var/lib/gpuaas/slice-ready
