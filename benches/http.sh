#!/usr/bin/env bash
# The HTTP figures, then the same work beside the peers: for each starts a server on a scratch
# directory, runs the clients, stops the server.
set -euo pipefail
bin=$1
mkdir -p "${TOPICS_BENCH_DIR:-target}"
dir=$(mktemp -d "${TOPICS_BENCH_DIR:-target}/http.XXXXXX")
server=
stop() {
  [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; } || true
  server=
}
trap 'stop; rm -rf "$dir"' EXIT

# serve NAME: starts a server on a new directory and sets $address.
serve() {
  "$bin/topics" serve --port 0 --data-dir "$dir/$1" >"$dir/$1.out" 2>&1 &
  server=$!
  export TOPICS_BENCH_SERVER=$server
  for _ in $(seq 100); do
    address=$(grep -oE 'http://[0-9.]+:[0-9]+' "$dir/$1.out" | head -1 || true)
    [ -n "$address" ] && break
    sleep 0.1
  done
  address=${address#http://}
}

serve http
target/release/bench-http "$address" "$dir" ${TOPICS_BENCH_ROW:+"$TOPICS_BENCH_ROW"}
if [ -z "${TOPICS_BENCH_ROW:-}" ]; then
  "$(dirname "$0")/peers/install.sh" target/peers
  # The peers begin with nothing; so does this server.
  stop
  rm -rf "$dir/http"
  serve peers
  target/release/bench-peers "$address" target/peers "$dir"
fi
