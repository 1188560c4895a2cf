#!/usr/bin/env bash
# fetch_program.sh PACKAGE PROGRAM TARGET: takes one program out of a Debian package, without installing the package,
# which would start a service on this machine or bring much that nobody needs here. The program must get along with the
# libraries that are there: it is run once.
#
#   fetch_program.sh prometheus ./usr/bin/promtool ~/.cache/kvasir/promtool      checks the text of /metrics
#   fetch_program.sh nginx ./usr/sbin/nginx ~/.cache/kvasir/nginx                the proxy of tests/e2e/test_nginx.py
set -euo pipefail
package=$1 program=$2 target=$3
[ -x "$target" ] && exit 0
mkdir -p "$(dirname "$target")"
folder=$(mktemp -d "$(dirname "$target")/fetch.XXXXXX")
trap 'rm -rf "$folder"' EXIT

# The option: as root, apt would drop its rights and then find that it may not write here.
download() { (cd "$folder" && apt-get -qq -o APT::Sandbox::User=root download "$package"); }
# Lists that are missing or old name no package, or one that is gone.
download || { [ "$(id -u)" -eq 0 ] && apt-get -qq update && download; }
dpkg-deb --fsys-tarfile "$folder/$package"_*.deb | tar -xO "$program" >"$folder/program"
chmod 755 "$folder/program"
version=$({ "$folder/program" --version || "$folder/program" -v; } 2>&1) || { echo "$version" >&2; exit 1; }
tail -1 <<<"$version"
mv "$folder/program" "$target"
