"""Prints how long other requests wait beside streams with a backlog and readers that pipeline:
`stall.py [WATCHERS [READERS]]`, 500 and 40 unless given.

A server of its own gets a topic of 15 MB. The watchers begin at its start and read as fast as they
can; the readers keep 100 reads of 100 records in flight. Beside them one connection requests
`/healthz` and one writes; the maximum and the 99th percentile of both are printed, without and with
the load.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import tempfile
import time
from asyncio import StreamReader, StreamWriter
from pathlib import Path

RECORDS, SIZE = 15_000, 1000
SECONDS = 5.0


def request(method: str, path: str, body: object = None) -> bytes:
    """A request of HTTP/1.1."""
    raw = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
    kind = "Content-Type: application/json\r\n" if raw else ""
    return f"{head}{kind}\r\n".encode() + raw


async def call(reader: StreamReader, writer: StreamWriter, raw: bytes) -> None:
    """Sends a request and reads its answer."""
    writer.write(raw)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    await reader.readexactly(int(length[1]) if length else 0)


async def latencies(port: int, raw: bytes) -> list[float]:
    """The milliseconds of each request of one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took, end = [], time.monotonic() + SECONDS
    while time.monotonic() < end:
        began = time.monotonic()
        await call(reader, writer, raw)
        took.append((time.monotonic() - began) * 1000)
        await asyncio.sleep(0.002)
    writer.close()
    return took


async def row(port: int, name: str) -> None:
    """Measures and prints both requests."""
    write = request("POST", "/v0/topics/other", {"records": [{"data": 1}]})
    both = await asyncio.gather(latencies(port, request("GET", "/healthz")), latencies(port, write))
    for what, took in zip(("/healthz", "write"), both, strict=True):
        took.sort()
        p99 = took[int(len(took) * 0.99)]
        print(f"{name:<12} {what:<10} max {took[-1]:8.1f} ms   p99 {p99:8.1f} ms   n {len(took)}")


async def load(port: int, watchers: int, readers: int) -> None:
    """The load, in a process of its own so that it does not delay what is measured."""

    async def take(raw: bytes, again: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw)
        while data := await reader.read(1 << 18):
            # About as many reads as were answered.
            writer.write(again * data.count(b"HTTP/1.1 200"))
        writer.close()

    watch = request("GET", "/v0/watch?topic=t&from_seq=0")
    read = request("POST", "/v0/topics/t/diff", {"limit": 100})
    streams = [take(watch, b"") for _ in range(watchers)]
    await asyncio.gather(*streams, *[take(read * 100, read) for _ in range(readers)])


async def main(watchers: int, readers: int) -> None:
    """Runs the server, the load, and the measurement."""
    directory = Path(tempfile.mkdtemp(prefix="topics-stall-"))
    topics = Path(sys.executable).with_name("topics")
    server = await asyncio.create_subprocess_exec(
        topics, "serve", "--port", "0", "--data-dir", directory / "data",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    loader: asyncio.subprocess.Process | None = None
    try:
        assert server.stdout is not None
        port = 0
        while not port:
            if found := re.search(rb"http://[\d.]+:(\d+)", await server.stdout.readline()):
                port = int(found[1])
        drain = asyncio.ensure_future(server.stdout.read())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        records = [{"data": "x" * SIZE}] * 500
        for _ in range(RECORDS // 500):
            await call(reader, writer, request("POST", "/v0/topics/t", {"records": records}))
        await row(port, "idle")
        given = ("load", str(port), str(watchers), str(readers))
        loader = await asyncio.create_subprocess_exec(sys.executable, __file__, *given)
        await row(port, "under load")
        drain.cancel()
    finally:
        for process in (loader, server):
            if process is not None and process.returncode is None:
                process.terminate()
                await process.wait()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        asyncio.run(load(*map(int, sys.argv[2:])))
    else:
        asyncio.run(main(*map(int, sys.argv[1:] or ("500", "40"))))
