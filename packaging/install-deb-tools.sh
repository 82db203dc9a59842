#!/bin/sh
# Installs what `make deb`, `make deb-test` and `make apt-repo` need from Debian, and nothing that is there already.
set -eu

wanted="dh:debhelper dpkg-buildpackage:dpkg-dev lintian:lintian mmdebstrap:mmdebstrap apt-ftparchive:apt-utils gpg:gpg objdump:binutils"
# shellcheck disable=SC2086 # The list is meant to be split.
exec "$(dirname "$0")/apt-install.sh" install-deb-tools $wanted
