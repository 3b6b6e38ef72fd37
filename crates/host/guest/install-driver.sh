#!/bin/sh
# Installs the distribution's GPU driver. A failure is logged and does not block the guest.
exec >>/var/log/gpuaas-driver.log 2>&1
DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND

has() {
    command -v "$1" >/dev/null 2>&1
}

install() {
    if has apt-get; then
        apt-get install -y -q "$@"
    elif has dnf; then
        dnf install -y -q "$@"
    else
        echo "no package manager that we know"
        return 1
    fi
}

[ -e /etc/debian_version ] && apt-get update -q
case "$1" in
nvidia)
    if has ubuntu-drivers; then
        ubuntu-drivers install --gpgpu
    else
        install nvidia-driver
    fi
    modprobe nvidia
    ;;
amd)
    # The driver is part of the kernel; the tool is for users.
    modprobe amdgpu
    install rocm-smi
    ;;
esac
exit 0
