# Sourced by the container test: finds a Docker engine, or starts one of its own with a base image made by debootstrap,
# for machines that reach Debian's packages but no container registry. Nothing of the machine's own engine is touched.
# shellcheck shell=bash

# engine_start FOLDER: sets DOCKER_HOST if an engine had to be started. Returns 1, with the reason on stderr, when none can run.
engine_start() {
  ENGINE_FOLDER=$1
  ENGINE_PID=
  DOCKER=docker
  if docker info >/dev/null 2>&1 && docker pull -q debian:bookworm-slim >/dev/null 2>&1; then return 0; fi
  [ "$(id -u)" -eq 0 ] || { echo "no Docker engine that can pull, and not root" >&2; return 1; }
  local missing=()
  [ -x /usr/sbin/dockerd ] || missing+=(docker.io)
  command -v docker-compose >/dev/null || missing+=(docker-compose)
  command -v debootstrap >/dev/null || missing+=(debootstrap)
  if [ ${#missing[@]} -gt 0 ]; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
      >"$ENGINE_FOLDER/apt.log" 2>&1 || { echo "cannot install ${missing[*]}" >&2; return 1; }
  fi
  DOCKER=/usr/bin/docker
  # An engine without rules, bridges or forwarding of its own; limits no higher than ours, which a sandbox may not raise.
  local files
  files=$(ulimit -Hn)
  [ "$files" = unlimited ] && files=1048576
  cat >"$ENGINE_FOLDER/daemon.json" <<JSON
{"data-root": "$ENGINE_FOLDER/data", "exec-root": "$ENGINE_FOLDER/exec", "pidfile": "$ENGINE_FOLDER/pid",
 "hosts": ["unix://$ENGINE_FOLDER/sock"], "iptables": false, "ip6tables": false, "ip-forward": false, "bridge": "none",
 "default-ulimits": {"nofile": {"Name": "nofile", "Soft": $files, "Hard": $files}}}
JSON
  export DOCKER_HOST=unix://$ENGINE_FOLDER/sock
  PATH=$PATH:/usr/sbin:/sbin dockerd --config-file "$ENGINE_FOLDER/daemon.json" >"$ENGINE_FOLDER/dockerd.log" 2>&1 &
  ENGINE_PID=$!
  local tries
  for tries in $(seq 1 120); do
    $DOCKER version >/dev/null 2>&1 && break
    kill -0 "$ENGINE_PID" 2>/dev/null || { tail -3 "$ENGINE_FOLDER/dockerd.log" >&2; return 1; }
    [ "$tries" -lt 120 ] || { echo "dockerd did not answer" >&2; return 1; }
    sleep 0.5
  done
  engine_base_image
}

# A minimal Debian 12 with this machine's package sources and certificates, as debian:bookworm-slim.
engine_base_image() {
  debian_root "$ENGINE_FOLDER/root" || return 1
  tar -C "$ENGINE_FOLDER/root" -c . | $DOCKER import - debian:bookworm-slim >/dev/null
  rm -rf "$ENGINE_FOLDER/root"
}

# debian_root FOLDER: a bare Debian 12 there. KVASIR_TEST_DEBIAN_TAR names a file to unpack, or to keep it in for the next time.
debian_root() {
  local root=$1 tar=${KVASIR_TEST_DEBIAN_TAR:-} mirror
  mkdir -p "$root"
  if [ -n "$tar" ] && [ -f "$tar" ]; then tar -C "$root" -xf "$tar"; return; fi
  mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE)' "Created-By: Packages" | awk '$2 == "bookworm" {print $1; exit}')
  debootstrap --variant=minbase bookworm "$root" ${mirror:+"$mirror"} >"$root.log" 2>&1 || { tail -3 "$root.log" >&2; return 1; }
  debian_sources_into "$root"
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root/etc/resolv.conf" "$root/etc/hostname"
  if [ -n "$tar" ]; then tar -C "$root" -cf "$tar.part" . && mv "$tar.part" "$tar"; fi
}

# Copies what a root below $1 needs to reach packages as this machine does: Debian's sources and extra certificates.
debian_sources_into() {
  local root=$1
  if [ -f /etc/apt/sources.list.d/debian.sources ]; then
    rm -f "$root/etc/apt/sources.list"
    cp /etc/apt/sources.list.d/debian.sources "$root/etc/apt/sources.list.d/"
  fi
  mkdir -p "$root/usr/local/share/ca-certificates"
  cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
}

engine_stop() {
  [ -n "${ENGINE_PID:-}" ] || return 0
  kill "$ENGINE_PID" 2>/dev/null
  wait "$ENGINE_PID" 2>/dev/null
}
