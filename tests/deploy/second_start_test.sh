#!/usr/bin/env bash
# deploy/serve.sh a second time: ready in under 2 s, with nothing rebuilt and nothing fetched. Verdicts go to file
# descriptor 3. (It judges a time, so it is not in the default tier.)
set -uo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

deploy/setup.sh || { echo "failed set-up" >&3; exit 1; }
before=$(stat -c %Y build/release/bin/kvasir)
# An index that nobody answers at: fetching anything would fail.
start=$(date +%s%N)
PIP_INDEX_URL=http://127.0.0.1:9/ CARGO_NET_OFFLINE=true \
  deploy/serve.sh --http-port 0 --grpc-port 0 --kv-budget 64MiB --ready-file "$work/ready" 2>"$work/log" &
pid=$!
until [ -f "$work/ready" ] || ! kill -0 $pid 2>/dev/null; do sleep 0.01; done
milliseconds=$((($(date +%s%N) - start) / 1000000))
if [ ! -f "$work/ready" ]; then
  cat "$work/log"
  echo "failed the second start serves" >&3
  exit 1
fi
kill -TERM $pid
wait $pid || echo "failed it stops with exit code 0" >&3
echo "ready after $milliseconds ms"
verdict() { if "${@:2}"; then echo "passed $1" >&3; else echo "failed $1" >&3; fi; }
verdict "the second start is ready in under 2 s ($milliseconds ms)" [ $milliseconds -lt 2000 ]
verdict "the second start builds nothing" [ "$(stat -c %Y build/release/bin/kvasir)" = "$before" ]
