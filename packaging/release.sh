#!/bin/sh
# Makes a release of the commit that is checked out: release.sh KEY [OUT], called by `make release KEY=…`.
#
# OUT (default: target/release-VERSION) gets the packages as a signed repository, the source, lists of the crates in the
# programs (SBOM), the release notes, and checksums with a signature. Everything is built from the commit alone, in a
# folder beside OUT, so that no other file of the tree gets in. With --unsigned instead of KEY nothing is signed: this is
# how check-release.sh builds it again. docs/release.md says what differs between two builds. It must never publish, and
# never change the tree. Needs root, git and Debian's packages.
set -eu
umask 022

fail() {
    echo "release: $*" >&2
    exit 1
}

cd "$(dirname "$0")/.."
tree=$PWD
key=${1:-}
if [ -z "$key" ]; then
    fail "which key signs the release? Type: make release KEY=NAME-OR-FINGERPRINT
    gpg --list-secret-keys                      lists your keys
    gpg --quick-generate-key you@lab.example    makes one"
fi
changed=$(git status --porcelain --untracked-files=all)
if [ -n "$changed" ]; then
    fail "these files are not as in the last commit. Commit them, or remove them:
$changed"
fi
if [ "$(id -u)" -ne 0 ]; then
    fail "root is needed to make a Debian 11 to build in"
fi
packaging/install-deb-tools.sh
if [ "$key" != --unsigned ]; then
    # The fingerprint of a primary key is the first one below its line `sec`.
    keys=$(gpg --batch --with-colons --list-secret-keys "$key" 2>/dev/null |
        awk -F : '$1 == "sec" { first = 1 } $1 == "fpr" && first { print $10; first = 0 }')
    case $(echo "$keys" | wc -w) in
        0) fail "gpg has no secret key \"$key\". gpg --list-secret-keys lists yours" ;;
        1) key=$keys ;;
        *) fail "several keys match \"$key\". Give the fingerprint of one of them:
$keys" ;;
    esac
    # An expired key, or a passphrase that nobody types, would show only after the build.
    echo test | gpg --quiet --batch --local-user "$key" --detach-sign >/dev/null ||
        fail "gpg cannot sign with $key, see above"
fi
version=$(dpkg-parsechangelog -l packaging/debian/changelog -S Version)
case $version in
    *"~"*)
        section=Unreleased
        echo "release: $version is not a version to publish: this is a rehearsal"
        ;;
    *)
        section=$version
        git tag --points-at HEAD | grep -q -x -F "v$version" ||
            fail "this commit has no tag v$version. Type: git tag -s v$version -m \"fleet $version\""
        ;;
esac
notes=$(awk -v name="$section" '/^## / { inside = ($2 == name) } inside' CHANGELOG.md)
[ -n "$notes" ] || fail "CHANGELOG.md has no heading \"## $section\""
wanted=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
found=$(rustc --version | cut -d ' ' -f 2)
[ "$found" = "$wanted" ] || fail "this is Rust $found, and rust-toolchain.toml names $wanted: install it with rustup"

tools=$(packaging/install-release-tools.sh)

out=$(realpath -m "${2:-target/release-$version}")
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
LC_ALL=C.UTF-8
TZ=UTC
export SOURCE_DATE_EPOCH LC_ALL TZ

# --- Build ---------------------------------------------------------------------------------------

work=$out.work
new=$work/release
source=$work/source
rm -rf "$work"
mkdir -p "$new/sbom" "$source/target" "$tree/target/tools"
archive() { git -c tar.umask=0022 -c core.autocrlf=false archive --format=tar --prefix="$1" "$commit"; }
archive "" | tar --extract --directory "$source"
archive "fleet-$version/" | gzip -9n > "$new/fleet-$version.tar.gz"
# The Debian 11 and the tools are made once.
ln -s "$tree/target/tools" "$source/target/tools"
cd "$source"

packaging/build-programs.sh
packaging/build-debs.sh target/debian-11/release
packaging/lint-debs.sh
packaging/apt-repo.sh "$key" "$new/apt" >/dev/null

# --- What is in it -------------------------------------------------------------------------------

target=$(rustc -vV | sed -n 's/^host: //p')
PATH=$tools/bin:$PATH "${CARGO:-cargo}" cyclonedx --quiet --manifest-path Cargo.toml --format json --spec-version 1.5 \
    --target "$target" --override-filename sbom
for program in fleet:cli fleet-agent:agent fleet-shim:agent/shim fleet-controller:controller; do
    # It names our own crates by the folder that they were in.
    sed "s|file://$source|file:///fleet|g" "${program#*:}/sbom.json" > "$new/sbom/${program%%:*}.cdx.json"
done
printf '%s\n' "$notes" > "$new/RELEASE-NOTES.md"
{
    echo "commit $commit"
    echo "SOURCE_DATE_EPOCH $SOURCE_DATE_EPOCH"
    echo
    echo "# Rust"
    rustc -vV
    basename "$tools"
    echo
    echo "# Debian 11, in which the programs were built"
    dpkg-query --admindir=target/tools/bullseye-1/var/lib/dpkg --show --showformat='${db:Status-Abbrev}${Package}\t${Version}\n' |
        sed -n 's/^ii *//p' | grep -E '^(gcc|cpp|binutils|libc6|libc-dev|libgcc|linux-libc)' | sort
    echo
    echo "# The machine that packed them"
    echo "debian $(cat /etc/debian_version)"
    dpkg-query --show dpkg dpkg-dev debhelper libdebhelper-perl binutils liblzma5 gzip tar git apt-utils | sort
} > "$new/built-with.txt"

# --- Checksums -----------------------------------------------------------------------------------

cd "$new"
# Signatures, and what holds them, are checked by gpg. They differ each time.
find . -type f ! -name InRelease ! -name '*.gpg' -printf '%P\n' | LC_ALL=C sort | xargs sha256sum > "$work/SHA256SUMS"
mv "$work/SHA256SUMS" .
if [ "$key" != --unsigned ]; then
    gpg --quiet --batch --yes --local-user "$key" --armor --detach-sign --output SHA256SUMS.asc SHA256SUMS
    gpg --quiet --verify SHA256SUMS.asc SHA256SUMS 2>/dev/null || fail "the signature of SHA256SUMS does not verify"
fi
find . -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
cd "$tree"
rm -rf "$out"
mv "$new" "$out"
rm -rf "$work"
echo "release: $out is ready, from commit $commit"
(cd "$out" && find . -type f -printf '%9s %P\n' | sort -k 2)
