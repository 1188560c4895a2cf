#!/usr/bin/env bash
# A bare Debian 12 below a chroot, a clean clone and an empty cache: deploy/serve.sh must come up and answer. Needs root
# and debootstrap; verdicts go to file descriptor 3. With TESTS=yes in the environment the default tests run there too.
set -uo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/deploy/engine.sh
. tests/deploy/engine.sh

skip() { echo "skipped bare Debian 12: $*" >&3; exit 0; }
[ "$(id -u)" -eq 0 ] || skip "not root"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
git rev-parse --git-dir >/dev/null 2>&1 || skip "not a git clone"

root=$(mktemp -d "${BARE_ROOT_PARENT:-/tmp}/kvasir-bare.XXXXXX")
cleanup() {
  [ -f "$root/src/ready" ] && kill -TERM "$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["pid"])' "$root/src/ready")"
  local place
  for place in dev/pts dev proc sys; do umount -l "$root/$place" 2>/dev/null; done
  rm -rf --one-file-system "$root" "$root".*
}
trap cleanup EXIT

start=$SECONDS
debian_root "$root" 2>"$root.reason" || skip "$(tail -1 "$root.reason")"
cp /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null
for place in proc sys dev; do mkdir -p "$root/$place" && mount --rbind "/$place" "$root/$place" && mount --make-rslave "$root/$place"; done
git clone -q . "$root/src"
echo "bare root: $((SECONDS - start)) s"

inside() {
  chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb "$@"
}
start=$SECONDS
inside bash -c 'cd /src && exec deploy/serve.sh --http-port 0 --grpc-port 0 --kv-budget 256MiB --ready-file /src/ready' \
  >"$root.serve" 2>&1 &
pid=$!
until [ -f "$root/src/ready" ] || ! kill -0 $pid 2>/dev/null; do sleep 1; done
if [ ! -f "$root/src/ready" ]; then
  tail -30 "$root.serve"
  echo "failed deploy/serve.sh comes up in a bare Debian 12" >&3
  exit 1
fi
echo "passed deploy/serve.sh comes up in a bare Debian 12" >&3
echo "deploy/serve.sh from clean: $((SECONDS - start)) s"
if python3 - "$root/src/ready" <<'PY'
import json, sys, urllib.request
port = json.load(open(sys.argv[1]))["http_port"]
body = json.dumps({"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}).encode()
request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
assert "Paris" in json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["text"]
PY
then echo "passed it answers there" >&3; else echo "failed it answers there" >&3; fi
kill -TERM "$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["pid"])' "$root/src/ready")"
wait $pid

if [ "${TESTS:-no}" = yes ]; then
  start=$SECONDS
  if inside bash -c 'cd /src && rm -rf build && tests/run.sh'; then
    echo "passed tests/run.sh in a bare Debian 12" >&3
  else
    echo "failed tests/run.sh in a bare Debian 12" >&3
  fi
  echo "tests/run.sh from clean: $((SECONDS - start)) s"
fi
