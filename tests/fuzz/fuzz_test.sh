#!/usr/bin/env bash
# Builds the fuzzers and runs each for a while from the same seeds; what breaks one is kept and named. For tests/run.sh,
# which reads "passed|failed|skipped NAME" from file descriptor 3.
#
#   tests/fuzz/fuzz_test.sh [SECONDS [TARGET...]]    60 seconds of each by default
#   tests/fuzz/fuzz_test.sh 3600 gguf                an hour of one; FUZZ_SEED=N for another order
set -uo pipefail
cd "$(dirname "$0")/../.."

FUZZ_SECONDS=${1:-60}
shift || true
TARGETS=("$@")
[ ${#TARGETS[@]} -gt 0 ] || TARGETS=(gguf http grpc template stops)
FUZZ_SEED=${FUZZ_SEED:-1}
WORK=build/fuzz-work
# Without descriptor 3 the verdicts are shown.
{ true >&3; } 2>/dev/null || exec 3>&1
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1

if ! command -v clang++-16 >/dev/null && ! deploy/setup.sh fuzz-packages; then
  echo "skipped fuzz: clang-16 cannot be installed" >&3
  exit 0
fi
if ! deploy/setup.sh build fuzz kvasir_fuzzers; then
  echo "failed fuzz: the build" >&3
  exit 1
fi

# What earlier runs found goes on being used; the seeds are made again.
mkdir -p "$WORK/seeds" "$WORK/crashes"
python3 tests/fuzz/make_corpus.py "$WORK/seeds"

status=0
for target in "${TARGETS[@]}"; do
  mkdir -p "$WORK/$target" "$WORK/seeds/$target"
  log=$WORK/$target.log
  arguments=(-seed="$FUZZ_SEED" -max_total_time="$FUZZ_SECONDS" -timeout=30 -rss_limit_mb=2560 -print_final_stats=1
    -artifact_prefix="$WORK/crashes/$target-" "$WORK/$target" "$WORK/seeds/$target")
  [ ! -d "tests/fuzz/corpus/$target" ] || arguments+=("tests/fuzz/corpus/$target")
  [ ! -f "tests/fuzz/dictionaries/$target.dict" ] || arguments+=("-dict=tests/fuzz/dictionaries/$target.dict")
  if "build/fuzz/fuzz/kvasir_fuzz_$target" "${arguments[@]}" >"$log" 2>&1; then
    echo "passed fuzz: $target, seed $FUZZ_SEED" >&3
    grep -E '^stat::(number_of_executed_units|new_units_added)' "$log" | sed "s/^stat::/$target: /"
  else
    echo "failed fuzz: $target, seed $FUZZ_SEED (the input is in $WORK/crashes, the log is $log)" >&3
    grep -vE '^(#|NEW_FUNC)' "$log" | tail -40
    status=1
  fi
done
exit $status
