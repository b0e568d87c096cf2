#!/usr/bin/env bash
# The HTTP figures, then the same work beside the peers: starts servers on scratch directories, runs the
# clients, stops the servers.
set -euo pipefail
bin=$1
row=${TOPICS_BENCH_ROW:-}
mkdir -p "${TOPICS_BENCH_DIR:-target}"
dir=$(mktemp -d "${TOPICS_BENCH_DIR:-target}/http.XXXXXX")
servers=()
stop() {
  for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  servers=()
  rm -rf "${dir:?}"/*
}
trap 'stop; rmdir "$dir"' EXIT

# serve NAME PROGRAM...: starts a server; its process is $server, its HOST:PORT $address.
serve() {
  local name=$1
  shift
  "$@" serve --port 0 --data-dir "$dir/$name" >"$dir/$name.out" 2>&1 &
  server=$!
  servers+=("$server")
  for _ in $(seq 100); do
    address=$(grep -oE 'http://[0-9.]+:[0-9]+' "$dir/$name.out" | head -1 || true)
    address=${address#http://}
    [ -n "$address" ] && return
    sleep 0.1
  done
  cat "$dir/$name.out"
  return 1
}

serve data "$bin/topics"
TOPICS_BENCH_SERVER=$server target/release/bench-http "$address" "$dir" ${row:+"$row"}
if [ -z "$row" ]; then
  columns=("$address" "$server")
  serve busy "$bin/python" benches/busy.py
  target/release/bench-columns "${columns[@]}" "$address" "$server"
  stop
  "$(dirname "$0")/peers/install.sh" target/peers
  # The peers begin with nothing; so does this server.
  serve peers "$bin/topics"
  TOPICS_BENCH_SERVER=$server target/release/bench-peers "$address" target/peers "$dir"
fi
