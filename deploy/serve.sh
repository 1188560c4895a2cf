#!/usr/bin/env bash
# Sets up what is missing, then serves the default model; arguments go through to `kvasir serve` (a model named by
# --model, KVASIR_MODEL or the configuration file wins). The second run starts at once.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/deploy/setup.sh" >&2
exec "$root/build/release/bin/kvasir" serve "$@"
