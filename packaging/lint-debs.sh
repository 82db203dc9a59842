#!/bin/sh
# Debian's own judgement of the packages in target/deb; called by `make deb`.
#
# Left out: that the release is called unstable, which Debian Stable's lintian takes for a mistake, and that the
# maintainers have no address on the network yet.
set -eu

cd "$(dirname "$0")/.."
exec lintian --allow-root --fail-on error,warning \
    --suppress-tags bad-distribution-in-changes-file,bogus-mail-host,bogus-mail-host-in-debian-changelog \
    target/deb/*.changes
