"""A Kafka broker from the jars that `benches/peers/install.sh` has downloaded."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PEERS = Path(__file__).resolve().parents[2] / "target" / "peers"
INSTALL = PEERS.parents[1] / "benches" / "peers" / "install.sh"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
READY_WITHIN = 60.0

_CONFIG = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{control}
listeners=PLAINTEXT://{address},CONTROLLER://{control}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={logs}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def install() -> str | None:
    """Installs the broker and Spark's connector if they are available; otherwise returns the
    reason."""
    subprocess.run(["bash", str(INSTALL), str(PEERS), "kafka", "spark-kafka"], check=True)
    for part in ("kafka", "spark-kafka"):
        if not (PEERS / part).is_dir():
            return f"no {part} in {PEERS}: see {part}.log there"
    return None


def connector() -> str:
    """The version of Spark's connector."""
    (jar,) = (PEERS / "spark-kafka").glob("spark-sql-kafka-*.jar")
    found = re.search(r"_[\d.]+-(.+)\.jar$", jar.name)
    assert found is not None, jar
    return found[1]


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Runs a broker on a temporary directory; yields its address."""
    folder.mkdir(parents=True)
    address, control = (f"127.0.0.1:{port}" for port in _free_ports(2))
    config = folder / "server.properties"
    config.write_text(_CONFIG.format(address=address, control=control, logs=folder / "logs"))
    java = ["java", "-Xmx1g", "-cp", f"{PEERS / 'kafka'}/*"]
    tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(config)]
    subprocess.run([*java, *tool], check=True, stdout=subprocess.DEVNULL)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(config)], stdout=log, stderr=log)
    try:
        _await(process, address)
        yield address
    finally:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _await(process: subprocess.Popen[bytes], address: str) -> None:
    host, port = address.split(":")
    until = time.monotonic() + READY_WITHIN
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"Kafka did not come up: {process.poll()}")
