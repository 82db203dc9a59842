#!/bin/sh
# Installs what `make bench` compares fleet with: Slurm, from Debian's packages. Nothing is configured or started;
# the bench runs a Slurm of its own below a folder of its own.
#
# Called by `make bench-peers`. Needs root for apt-get only. Tested on Debian 12.
set -eu

exec "$(dirname "$0")/apt-install.sh" bench-peers slurm-wlm munge
