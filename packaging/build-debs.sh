#!/bin/sh
# Puts ready-built programs into Debian packages: build-debs.sh FOLDER-OF-PROGRAMS [OUT], called by `make deb` and by
# the tests on booted machines (with DEB_COMPRESSION=none).
#
# The packages come to OUT (default: target/deb), which is emptied first. The script works in a folder of its own there and
# changes nothing else. Manual pages and completions are made by the programs themselves. Needs Debian's debhelper
# (packaging/install-deb-tools.sh).
set -eu

programs=$(realpath "$1")
out=$(realpath -m "${2:-$(dirname "$0")/../target/deb}")
cd "$(dirname "$0")/.."
work=$out/work

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
packaged=$(dpkg-parsechangelog -l packaging/debian/changelog -S Version)
case $packaged in
    "$version" | "$version~"* | "$version+"*) ;;
    *)
        echo "build-debs: packaging/debian/changelog says $packaged, Cargo.toml says $version: write an entry for $version" >&2
        exit 1
        ;;
esac

rm -rf "$out"
mkdir -p "$work/built/bin" "$work/built/man" "$work/built/completion"
for program in fleet fleet-agent fleet-shim fleet-init fleet-controller; do
    install -m 755 "$programs/$program" "$work/built/bin/"
done
for program in fleet fleet-agent fleet-controller; do
    "$programs/$program" manual "$work/built/man"
    "$programs/$program" completion bash > "$work/built/completion/$program"
    "$programs/$program" completion zsh > "$work/built/completion/_$program"
    "$programs/$program" completion fish > "$work/built/completion/$program.fish"
done

cp -r systemd "$work/"
# The pages keep their folders, so that their links lead somewhere. The licence has a fixed name in a package.
mkdir -p "$work/packaging" "$work/pages"
grep -v '^#' packaging/pages | xargs cp -r --parents -t "$work/pages"
find "$work/pages/docs" -name '*.py' -delete
sed -i 's|(LICENSE)|(copyright)|' "$work/pages/README.md"
cp -r packaging/etc packaging/profile.d packaging/grafana "$work/packaging/"
cp -r packaging/debian "$work/debian"
# Debhelper looks for these beside its own files; the one copy is where other distributions find it too.
for package in fleet-agent fleet-controller; do
    cp "systemd/$package.service" "$work/debian/$package.service"
    cp systemd/fleet.conf "$work/debian/$package.tmpfiles"
done
# Files in a package are no newer than this.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(dpkg-parsechangelog -l packaging/debian/changelog -S Timestamp)}
# The programs are built without debug information: there is nothing to put into packages of their own.
DEB_BUILD_OPTIONS=noautodbgsym
export SOURCE_DATE_EPOCH DEB_BUILD_OPTIONS
DEB_COMPRESSION=${DEB_COMPRESSION:-xz}
# What they were linked with decides, not what this machine has: dh_shlibdeps would ask the latter's packages.
GLIBC=$(packaging/glibc-wanted.sh "$work"/built/bin/*)
export DEB_COMPRESSION GLIBC
(cd "$work" && dpkg-buildpackage --build=binary --no-sign -d > ../build.log 2>&1) || {
    tail -n 40 "$out/build.log" >&2
    echo "build-debs: the packages could not be built; all of it is in $out/build.log" >&2
    exit 1
}
rm -rf "$work"
ls -1s --block-size=K "$out"/*.deb
