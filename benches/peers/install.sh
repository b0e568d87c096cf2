#!/usr/bin/env bash
# Puts the peers that can be had here into the folder given: redis-server (Debian), nats-server (the Go
# proxy), Kafka's jars (Maven Central). What cannot be had is left out with a line that says so.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && dir=$(cd "$1" && pwd)

without() { echo "peers: no $1: $2" >&2; }

if ! command -v redis-server >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # The package starts a server of its own, which nobody asked for.
    { apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq redis-server; } >"$dir/redis.log" 2>&1 ||
      without Redis "see $dir/redis.log"
    service redis-server stop >/dev/null 2>&1
  else
    without Redis "install redis-server first"
  fi
fi
if [ ! -x "$dir/nats-server" ]; then
  if command -v go >/dev/null; then
    GOBIN="$dir" go install github.com/nats-io/nats-server/v2@v2.15.2 >"$dir/nats.log" 2>&1 ||
      without NATS "see $dir/nats.log"
  else
    without NATS "it is built with Go"
  fi
fi
if [ ! -d "$dir/kafka" ]; then
  if command -v mvn >/dev/null && command -v java >/dev/null; then
    mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$dir/kafka" \
      >"$dir/kafka.log" 2>&1 || { rm -rf "$dir/kafka"; without Kafka "see $dir/kafka.log"; }
  else
    without Kafka "it needs Java and Maven"
  fi
fi
exit 0
