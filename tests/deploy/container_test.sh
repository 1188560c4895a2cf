#!/usr/bin/env bash
# Builds the image, brings deploy/compose.yaml up with a real engine, asks for a completion and stops it. Verdicts go to
# file descriptor 3; the image is the machine's to keep in the engine's data, which is removed with an engine of our own.
set -uo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/deploy/engine.sh
. tests/deploy/engine.sh

work=$(mktemp -d /tmp/kvasir-engine.XXXXXX)
compose=(docker-compose -p kvasirtest -f deploy/compose.yaml)
# Free ports, as the kernel gives them.
read -r KVASIR_HTTP_PORT KVASIR_GRPC_PORT < <(python3 -c '
import socket
sockets = [socket.socket() for _ in range(2)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))')
export KVASIR_HTTP_PORT KVASIR_GRPC_PORT

cleanup() {
  "${compose[@]}" down -v >/dev/null 2>&1
  engine_stop
  rm -rf "$work"
}
trap cleanup EXIT

check() { # NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  if "$@"; then echo "passed $name" >&3; else echo "failed $name" >&3; return 1; fi
  echo "$name: $((SECONDS - start)) s"
}

healthy() {
  local tries status
  for tries in $(seq 1 120); do
    status=$($DOCKER inspect -f '{{.State.Health.Status}}' kvasirtest_kvasir_1 2>/dev/null)
    [ "$status" = healthy ] && return
    sleep 0.5
  done
  echo "not healthy after $tries tries: $status" >&2
  "${compose[@]}" logs --tail 40 >&2
  return 1
}

# Inside the container's own network as well as through the published port: a sandbox may lack the proxy of the latter.
completes() {
  python3 - "$KVASIR_HTTP_PORT" <<'PY'
import json, sys, urllib.request
body = json.dumps({"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}).encode()
request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/v1/completions", body, {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request, timeout=60))
print(answer["choices"][0]["text"])
assert "Paris" in answer["choices"][0]["text"]
PY
}

hardened() {
  [ "$($DOCKER exec kvasirtest_kvasir_1 id -u)" = 10001 ] && ! $DOCKER exec kvasirtest_kvasir_1 touch /models/x 2>/dev/null &&
    $DOCKER exec kvasirtest_kvasir_1 grep -q 'CapEff:.*0000000000000000' /proc/1/status &&
    $DOCKER logs kvasirtest_kvasir_1 2>&1 | grep -q 'cgroup limit'
}

stops_cleanly() {
  "${compose[@]}" stop >/dev/null 2>&1 && [ "$($DOCKER inspect -f '{{.State.ExitCode}}' kvasirtest_kvasir_1)" = 0 ]
}

if ! engine_start "$work" 2>"$work/reason"; then
  echo "skipped container: $(tail -1 "$work/reason")" >&3
  exit 0
fi
check "the image builds" $DOCKER build -q --network host -t kvasir:latest . || exit 1
check "compose starts it" "${compose[@]}" up -d --no-build || exit 1
check "it becomes healthy" healthy || exit 1
check "a completion comes through the published port" completes
check "it runs without root, rights or a writable root, and sees the memory limit" hardened
check "it stops within its grace time with exit code 0" stops_cleanly
