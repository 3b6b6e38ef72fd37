#!/bin/sh
# Puts the distribution's driver for the GPU in. What goes wrong is in the log and keeps nobody from using the guest.
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
    # The driver comes with the kernel; the tool is for people.
    modprobe amdgpu
    install rocm-smi
    ;;
esac
exit 0
