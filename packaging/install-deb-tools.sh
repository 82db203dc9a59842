#!/bin/sh
# Installs what `make deb`, `make deb-test` and `make apt-repo` need from Debian, and nothing that is there already.
set -eu

# "command:package": the package is needed where the command is missing.
wanted="dh:debhelper dpkg-buildpackage:dpkg-dev lintian:lintian mmdebstrap:mmdebstrap apt-ftparchive:apt-utils gpg:gpg"
missing=""
for pair in $wanted; do
    if ! command -v "${pair%%:*}" >/dev/null 2>&1; then
        missing="$missing ${pair#*:}"
    fi
done
if [ -z "$missing" ]; then
    exit 0
fi
# shellcheck disable=SC2086 # The list is meant to be split.
exec "$(dirname "$0")/apt-install.sh" install-deb-tools $missing
