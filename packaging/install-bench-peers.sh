#!/bin/sh
# Installs what `make bench` compares fleet with: Slurm and etcd, from Debian's packages. Nothing is configured or
# started; the bench runs a Slurm and an etcd of its own below a folder of its own.
#
# Called by `make bench-peers`. Needs root for apt-get only. Tested on Debian 12.
set -eu

here=$(dirname "$0")
"$here/apt-install.sh" bench-peers slurm-wlm munge
if [ -x /usr/bin/etcd ]; then
    exit 0
fi
# Its package would start it, and at each boot: masked while it is installed, and disabled afterwards.
as_root=""
[ "$(id -u)" -eq 0 ] || as_root="sudo"
booted=false
[ ! -d /run/systemd/system ] || booted=true
! $booted || $as_root systemctl mask --runtime --quiet etcd.service
"$here/apt-install.sh" bench-peers etcd-server
if $booted; then
    $as_root systemctl unmask --runtime --quiet etcd.service
    $as_root systemctl disable --quiet etcd.service
fi
