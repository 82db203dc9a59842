#!/bin/sh
# Whether docs/install.md says how large the packages in target/deb are, and Debian's own judgement of them; called by
# `make deb`.
set -eu

cd "$(dirname "$0")/.."
for deb in target/deb/*.deb; do
    name=$(basename "$deb")
    name=${name%%_*}
    said=$(sed -n "s/.* \([0-9.]*\) MB (\`$name\`).*/\1/p" docs/install.md)
    stat -c %s "$deb" | awk -v name="$name" -v said="$said" '{
        if (said == "" || $1 > said * 1.1e6 || $1 < said * 0.9e6) {
            print "lint-debs: " name " has " $1 " bytes; docs/install.md has to say so, and says " said " MB" > "/dev/stderr"
            exit 1
        }
    }'
done
exec lintian --allow-root --fail-on error,warning target/deb/*.changes
