#!/usr/bin/env bash
# install.sh DIR [PEER...]: puts the peers that can be had here into the folder, all of them or those
# named: redis-server (Debian), nats (the Go proxy), kafka and spark-kafka, Spark's connector to it (Maven
# Central). What cannot be had is left out with a line that says so.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && dir=$(cd "$1" && pwd)
shift

without() { echo "peers: no $1: $2" >&2; }

redis() {
  command -v redis-server >/dev/null && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # The package starts its own server, which the benchmark does not use.
    { apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq redis-server; } >"$dir/redis.log" 2>&1 ||
      without Redis "see $dir/redis.log"
    service redis-server stop >/dev/null 2>&1
  else
    without Redis "install redis-server first"
  fi
}

nats() {
  [ -x "$dir/nats-server" ] && return
  if command -v go >/dev/null; then
    GOBIN="$dir" go install github.com/nats-io/nats-server/v2@v2.15.2 >"$dir/nats.log" 2>&1 ||
      without NATS "see $dir/nats.log"
  else
    without NATS "it is built with Go"
  fi
}

# jars NAME POM [MAVEN-ARGUMENT...]: all or none of what the file names.
jars() {
  local name=$1 pom=$2
  shift 2
  mvn -q -B -f "$here/$pom" "$@" dependency:copy-dependencies -DoutputDirectory="$dir/$name" \
    >>"$dir/$name.log" 2>&1 || { rm -rf "${dir:?}/$name"; return 1; }
}

maven() { command -v mvn >/dev/null && command -v java >/dev/null; }

kafka() {
  [ -d "$dir/kafka" ] && return
  maven || { without Kafka "it needs Java and Maven"; return; }
  jars kafka pom.xml || without Kafka "see $dir/kafka.log"
}

# The connector of the Spark that is used. Central may not have it yet: then the last one that fits.
spark-kafka() {
  [ -d "$dir/spark-kafka" ] && return
  maven || { without "Spark's connector to Kafka" "it needs Java and Maven"; return; }
  local spark
  spark=$(sed -n 's/^ *"pyspark==\(.*\)",$/\1/p' "$here/../../pyproject.toml")
  jars spark-kafka spark-kafka.xml -Dconnector.version="$spark" -Dprovider.version="$spark" ||
    jars spark-kafka spark-kafka.xml -Dconnector.version=4.2.0 -Dprovider.version=4.0.0 ||
    without "Spark's connector to Kafka" "see $dir/spark-kafka.log"
}

[ $# -gt 0 ] || set -- redis nats kafka
for peer; do "$peer"; done
exit 0
