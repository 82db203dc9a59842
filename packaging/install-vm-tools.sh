#!/bin/sh
# Installs what booted machines need of this machine (tests/vm), and nothing that is there already. qemu is not among
# it: the tests unpack it into target/vm.
#
# Called by `make test` and `make vm`. Needs root for apt-get only.
set -eu

wanted="mmdebstrap:mmdebstrap mke2fs:e2fsprogs ssh:openssh-client dh:debhelper dpkg-buildpackage:dpkg-dev"
# shellcheck disable=SC2086 # The list is meant to be split.
exec "$(dirname "$0")/apt-install.sh" install-vm-tools $wanted
