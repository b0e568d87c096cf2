#!/usr/bin/env bash
# The HTTP figures, then the same work beside the peers: starts a server on a scratch directory, runs
# the clients, stops the server.
set -euo pipefail
bin=$1
mkdir -p "${TOPICS_BENCH_DIR:-target}"
dir=$(mktemp -d "${TOPICS_BENCH_DIR:-target}/http.XXXXXX")
"$bin/topics" serve --port 0 --data-dir "$dir/data" >"$dir/out" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -rf "$dir"' EXIT
for _ in $(seq 100); do
  url=$(grep -oE 'http://[0-9.]+:[0-9]+' "$dir/out" | head -1 || true)
  [ -n "$url" ] && break
  sleep 0.1
done
target/release/bench-http "${url#http://}" "$dir" ${TOPICS_BENCH_ROW:+"$TOPICS_BENCH_ROW"}
if [ -z "${TOPICS_BENCH_ROW:-}" ]; then
  "$(dirname "$0")/peers/install.sh" target/peers
  target/release/bench-peers "${url#http://}" target/peers "$dir"
fi
