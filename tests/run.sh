#!/usr/bin/env bash
# Sets up, builds and runs the tests; the last line is "N passed, N failed, N skipped" over everything that ran.
#
#   tests/run.sh         unit, simulation, golden and end-to-end tests (30 minutes from clean on two cores)
#   tests/run.sh --all   also sanitizer builds, a long simulation, large models, containers, format, and what judges a time
set -uo pipefail
cd "$(dirname "$0")/.."
ROOT=$PWD
ALL=no
case ${1:-} in
  "") ;;
  --all) ALL=yes ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit 2 ;;
esac

PATH=$PATH:$HOME/.cargo/bin
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/kvasir
RESULTS=$ROOT/build/test-results
rm -rf "$RESULTS"
mkdir -p "$RESULTS"
TSAN_PROGRAMS="core config kvcache scheduler sim engine server"
# Under TSan a step of SmolLM2 takes minutes, and kernels and readers start no thread. So of runtime only what has threads
# in it runs there: the team, and the executor with tiny models and several workers.
TSAN_RUNTIME_CASES="WorkerTeam:*,CpuExecutor:*,AttentionStep:*,pack_weights:*,Decoder: a tiny model's bits*,Decoder: an int8 model's bits*,Decoder: seeded sampling*"
# Steps of the simulation: a number without a time, so that slow machines test the same.
DEFAULT_SIM_STEPS=1000000
SOAK_SIM_STEPS=10000000

# step NAME COMMAND...: runs it, prints how long it took, returns its status.
step() {
  local name=$1 start=$SECONDS status=0
  shift
  echo "== $name"
  "$@" || status=$?
  echo "== $name: $((SECONDS - start)) s$([ $status -eq 0 ] || echo ", exit code $status")"
  return $status
}

# Records the verdict of something that is one test case by itself.
record() { echo "$1 $2" >>"$RESULTS/${3:-run}.shell"; }

# must NAME COMMAND...: a step without which nothing can be tested.
must() {
  step "$@" && return
  record failed "$1"
  finish
}

finish() {
  local status=0
  python3 tests/support/tally.py "$RESULTS" || status=$?
  exit $status
}

# One Catch2 program. Its failures are printed; its XML is counted at the end.
run_program() {
  local build=$1 name=$2 tag=$3 status=0
  shift 3
  local xml=$RESULTS/$tag-$name.catch.xml
  "$build/tests/kvasir_tests_$name" -r xml "$@" >"$xml" 2>"$RESULTS/$tag-$name.stderr" || status=$?
  # A filter that matches nothing (a case was renamed) must not pass silently.
  if [ $status -eq 0 ] && ! grep -q '<TestCase ' "$xml"; then status=5; fi
  if [ $status -ne 0 ]; then
    echo "$status" >"$RESULTS/$tag-$name.exit"
    tail -40 "$RESULTS/$tag-$name.stderr"
    grep -B12 -A12 '<Expression success="false"\|<Exception\|<FatalErrorCondition' "$xml" | head -120
    echo "repeat it with: $build/tests/kvasir_tests_$name ${*@Q}"
  fi
  return $status
}

# run_programs BUILD TAG [FILTER]: all of them; the filter is for runtime.
run_programs() {
  local build=$1 tag=$2 filter=${3:-} status=0 program name
  for program in "$build"/tests/kvasir_tests_*; do
    [ -x "$program" ] || continue
    name=${program##*kvasir_tests_}
    local arguments=()
    if [ "$name" = runtime ] && [ -n "$filter" ]; then arguments=("$filter"); fi
    step "$tag: $(basename "$program")" run_program "$build" "$name" "$tag" "${arguments[@]}" || status=1
  done
  return $status
}

# make_venv NAME REQUIREMENTS CONSTRAINTS: a virtual environment in the cache, made again when a list or the Python
# changes; its path is left in MADE_VENV. The mark of a complete one is written last, and two runs at once take turns.
make_venv() {
  local key
  key=$(cat "$2" "$3" <(python3 --version) | sha256sum | cut -c1-16)
  MADE_VENV=$CACHE/$1-$key
  [ -f "$MADE_VENV/complete" ] && return
  mkdir -p "$CACHE"
  (
    flock 9
    [ -f "$MADE_VENV/complete" ] && exit
    rm -rf "$MADE_VENV"
    python3 -m venv "$MADE_VENV" && "$MADE_VENV/bin/pip" install -q --disable-pip-version-check -r "$2" -c "$3" &&
      touch "$MADE_VENV/complete"
  ) 9>"$CACHE/$1.lock"
}

make_client_venv() {
  make_venv venv tests/e2e/requirements.txt tests/e2e/constraints.txt && VENV=$MADE_VENV
}

make_lm_eval_venv() {
  make_venv lm-eval tests/e2e/requirements-all.txt tests/e2e/constraints-all.txt &&
    export KVASIR_LM_EVAL=$MADE_VENV/bin/lm_eval
}

run_pytest() {
  local tag=$1 status=0
  shift
  "$VENV/bin/python" -m pytest -q --junitxml "$RESULTS/$tag.junit.xml" "$@" || status=$?
  # 5: nothing was selected. A run that died before writing its results must not pass silently.
  [ -s "$RESULTS/$tag.junit.xml" ] || record failed "pytest $tag wrote no results"
  return $status
}

# A shell test prints "passed|failed|skipped NAME" lines on file descriptor 3.
run_shell_test() {
  local name
  name=$(basename "$1" .sh)
  local status=0
  "$1" 3>"$RESULTS/$name.shell" || status=$?
  if [ $status -ne 0 ] && ! grep -q '^failed' "$RESULTS/$name.shell"; then
    echo "failed exit code $status" >>"$RESULTS/$name.shell"
  fi
  return $status
}

build_preset() { deploy/setup.sh build "$1" "${@:2}"; }

fetch_gemma() {
  local file=$CACHE/models/gemma3-270m.gguf
  [ -f "$file" ] || python3 tests/support/fetch_gemma.py "$file"
}

default_tier() {
  must "set-up: packages" deploy/setup.sh packages
  must "set-up: build" build_preset release kvasir kvasir_tests
  must "set-up: model" deploy/setup.sh model
  must "set-up: clients" make_client_venv
  # Without one of these the tests that want it are skipped, and say so.
  step "set-up: promtool" tests/support/fetch_program.sh prometheus ./usr/bin/promtool "$CACHE/promtool"
  PATH=$PATH:/usr/sbin command -v nginx >/dev/null ||
    step "set-up: nginx" tests/support/fetch_program.sh nginx ./usr/sbin/nginx "$CACHE/nginx"
  export KVASIR_SIM_STEPS=${KVASIR_SIM_STEPS:-$DEFAULT_SIM_STEPS}
  run_programs build/release release
  step "tidy" run_pytest tidy tests/tidy
  step "bench tools" run_pytest bench bench/peers
  step "command line" run_pytest cli tests/cli
  step "end to end" run_pytest e2e tests/e2e
}

check_format() {
  if ! command -v clang-format-16 >/dev/null; then
    record "skipped" "clang-format: clang-format-16 is not installed" format
    return
  fi
  if git ls-files '*.h' '*.cpp' | xargs clang-format-16 --dry-run -Werror 2>"$RESULTS/format.stderr"; then
    record passed clang-format format
  else
    grep -c 'error:' "$RESULTS/format.stderr" | sed 's/$/ places differ from clang-format-16/'
    record failed clang-format format
  fi
}

all_tier() {
  step "format" check_format
  if step "Gemma's model" fetch_gemma; then
    export KVASIR_TEST_GEMMA=$CACHE/models/gemma3-270m.gguf
  fi
  export KVASIR_TEST_LONG=1
  step "all: text" run_program build/release text all
  step "all: runtime" run_program build/release runtime all
  unset KVASIR_TEST_LONG
  KVASIR_SIM_STEPS=$SOAK_SIM_STEPS step "soak" run_program build/release sim soak
  step "set-up: clients in Go" tests/support/build_go_tools.sh "$CACHE/go-tools"
  step "set-up: lm-eval" make_lm_eval_venv
  step "end to end, slow" run_pytest e2e-all -m all tests/e2e
  # Debian's gRPC and Protobuf are not instrumented, and keep what they allocate once until the end.
  export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1
  if step "build with ASan and UBSan" build_preset dev kvasir kvasir_tests; then
    # Instrumented kernels take half a minute for what takes a second: there the tiny models stand for SmolLM2, which
    # the end-to-end tests below run with kernels that are not instrumented.
    run_programs build/dev asan '~[smollm2]~[gemma]'
    KVASIR_BIN=$ROOT/build/dev/bin/kvasir step "command line with ASan and UBSan" run_pytest cli-asan tests/cli
    KVASIR_BIN=$ROOT/build/dev/bin/kvasir step "end to end with ASan and UBSan" run_pytest e2e-asan tests/e2e
  else
    record failed "build with ASan and UBSan"
  fi
  export TSAN_OPTIONS=halt_on_error=0:second_deadlock_stack=1
  if step "build with TSan" build_preset tsan kvasir_tests; then
    local name
    for name in $TSAN_PROGRAMS; do
      [ -x build/tsan/tests/kvasir_tests_"$name" ] || continue
      step "tsan: $name" run_program build/tsan "$name" tsan
    done
    step "tsan: runtime, its threads" run_program build/tsan runtime tsan "$TSAN_RUNTIME_CASES"
  else
    record failed "build with TSan"
  fi
  step "fuzzers" run_shell_test tests/fuzz/fuzz_test.sh
  local test
  for test in tests/deploy/*_test.sh; do
    [ -x "$test" ] && step "$(basename "$test")" run_shell_test "$test"
  done
}

default_tier
if [ $ALL = yes ]; then all_tier; fi
echo "== $SECONDS s in all"
finish
