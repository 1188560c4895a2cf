#!/usr/bin/env bash
# Puts promtool, which checks the text of /metrics, at the path given: taken out of Debian's package prometheus, which is
# not installed, since it would start a service and bring a web page's fonts and scripts.
set -euo pipefail
target=$1
[ -x "$target" ] && exit 0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# The option: as root, apt would drop its rights and then find that it may not write here.
(cd "$folder" && apt-get -q -o APT::Sandbox::User=root download prometheus)
mkdir -p "$(dirname "$target")"
dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -xO ./usr/bin/promtool >"$folder/promtool"
chmod 755 "$folder/promtool"
"$folder/promtool" --version
mv "$folder/promtool" "$target"
