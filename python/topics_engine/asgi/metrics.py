"""Metrics of the server: requests, the process, the disk and the build; the core's come first.

They are about no topic: a key that sees the metrics of only some topics sees all of these.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from .route import Route
from .routes import ROUTES

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of durations, in seconds."""
BOUNDS_NS = tuple(round(bound * 1e9) for bound in BOUNDS)

NativeCounts = Callable[[], Iterable[tuple[str, int, int, list[int]]]]
"""Requests that the native protocol answered: verb, status, nanoseconds, a count a bucket."""


class Family(NamedTuple):
    """A metric family: its kind, its meaning, its key in the JSON form, and its samples."""

    name: str
    kind: str
    meaning: str
    key: str
    labels: tuple[str, ...] = ()


FAMILIES = (
    Family("topics_http_requests_total", "counter",
           "Requests by method, route and status; a stream counts when it ends", "http_requests",
           ("method", "route", "status")),
    Family("topics_http_request_seconds", "histogram",
           "Time from the headers of a request to its answer, without streams", "http_request",
           ("method", "route")),
    Family("topics_http_streams", "gauge", "Open event streams and sockets", "http_streams"),
    Family("topics_http_unsent_bytes", "gauge",
           "Bytes of answers and events that clients have not taken yet", "http_unsent_bytes"),
    Family("topics_disk_size_bytes", "gauge", "Size of the data directory's file system",
           "disk_size_bytes"),
    Family("topics_disk_free_bytes", "gauge", "Free bytes of the data directory's file system",
           "disk_free_bytes"),
    Family("topics_build_info", "gauge", "1; the labels are the versions", "build_info",
           ("version", "python")),
    Family("process_cpu_seconds_total", "counter", "Processor time, user and system",
           "process_cpu_seconds"),
    Family("process_resident_memory_bytes", "gauge", "Resident memory",
           "process_resident_memory_bytes"),
    Family("process_virtual_memory_bytes", "gauge", "Virtual memory",
           "process_virtual_memory_bytes"),
    Family("process_open_fds", "gauge", "Open file descriptors", "process_open_fds"),
    Family("process_max_fds", "gauge", "Limit of open file descriptors", "process_max_fds"),
    Family("process_start_time_seconds", "gauge", "Start of the process, seconds since 1970",
           "process_start_time_seconds"),
)  # fmt: skip
"""All families of the server, in their order."""

_STARTED = time.time()


class _Requests:
    """The requests of one method and route: by status, and by duration."""

    __slots__ = ("buckets", "statuses", "total")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.total = 0.0


class ServerMetrics:
    """Counts requests, and writes the families of the server.

    Args:
        version: of the package.
        streams: the number of open streams.
        unsent: bytes that clients have not taken yet.
    """

    def __init__(self, version: str, streams: Callable[[], int], unsent: Callable[[], int]) -> None:
        self._version = version
        self._streams = streams
        self._unsent = unsent
        self._requests: dict[tuple[str, str], _Requests] = {}
        self.native: NativeCounts = tuple
        """The counts of the native protocol, which answers without the application."""

    def count(self, route: Route | None, method: str, status: int, seconds: float) -> None:
        """Counts a request that was answered; without a route if no route has its path."""
        # Any other method is the client's own text.
        method = method if route is not None or method in _METHODS else "other"
        found = _of(self._requests, method, route.path if route else "none")
        found.statuses[status] = found.statuses.get(status, 0) + 1
        if route is None or not route.endless:
            found.total += seconds
            found.buckets[bisect_left(BOUNDS, seconds)] += 1

    def _all_requests(self) -> dict[tuple[str, str], _Requests]:
        """A copy of the counts, with those of the native protocol."""
        merged: dict[tuple[str, str], _Requests] = {}
        for key, mine in self._requests.items():
            into = _of(merged, *key)
            into.statuses |= mine.statuses
            into.buckets = list(mine.buckets)
            into.total = mine.total
        for verb, status, total_ns, buckets in self.native():
            into = _of(merged, *_ROUTE_OF[verb])
            into.statuses[status] = into.statuses.get(status, 0) + sum(buckets)
            into.buckets = [a + b for a, b in zip(into.buckets, buckets, strict=True)]
            into.total += total_ns / 1e9
        return merged

    def values(self, data_dir: str | None) -> dict[str, float]:
        """The values of families without labels; one that the system does not tell is absent."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        values: dict[str, float] = {
            "topics_http_streams": self._streams(),
            "topics_http_unsent_bytes": self._unsent(),
            "process_cpu_seconds_total": used.ru_utime + used.ru_stime,
            "process_start_time_seconds": _STARTED,
        }
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        values["process_max_fds"] = sys.maxsize if limit == resource.RLIM_INFINITY else limit
        try:
            with open("/proc/self/statm", "rb") as file:
                size, resident, *_ = map(int, file.read().split())
            page = resource.getpagesize()
            values["process_virtual_memory_bytes"] = size * page
            values["process_resident_memory_bytes"] = resident * page
            # One of them is the listing's own.
            values["process_open_fds"] = len(os.listdir("/proc/self/fd")) - 1
        except OSError:
            # Only Linux has these.
            pass
        try:
            disk = os.statvfs(data_dir) if data_dir else None
        except OSError:
            disk = None
        if disk is not None:
            values["topics_disk_size_bytes"] = disk.f_blocks * disk.f_frsize
            values["topics_disk_free_bytes"] = disk.f_bavail * disk.f_frsize
        return values

    @property
    def _build(self) -> dict[str, str]:
        return {"version": self._version, "python": platform.python_version()}

    def text(self, data_dir: str | None) -> bytes:
        """The families as Prometheus text."""
        requests, values = self._all_requests(), self.values(data_dir)
        lines: list[str] = []
        for family in FAMILIES:
            samples = list(self._samples(family, requests, values))
            if samples:
                lines.append(f"# HELP {family.name} {family.meaning}.")
                lines.append(f"# TYPE {family.name} {family.kind}")
                lines += samples
        return "\n".join([*lines, ""]).encode()

    def _samples(
        self,
        family: Family,
        requests: dict[tuple[str, str], _Requests],
        values: dict[str, float],
    ) -> Iterator[str]:
        if family.name == "topics_http_requests_total":
            for (method, route), found in sorted(requests.items()):
                for status, count in sorted(found.statuses.items()):
                    labels = _labels(method=method, route=route, status=str(status))
                    yield f"{family.name}{labels} {count}"
        elif family.kind == "histogram":
            for (method, route), found in sorted(requests.items()):
                yield from _histogram(family.name, method, route, found)
        elif family.name == "topics_build_info":
            yield f"{family.name}{_labels(**self._build)} 1"
        elif family.name in values:
            yield f"{family.name} {_number(values[family.name])}"

    def json(self, data_dir: str | None) -> dict[str, Any]:
        """The families as fields of the JSON form."""
        values = self.values(data_dir)
        fields: dict[str, Any] = {f.key: values[f.name] for f in FAMILIES if f.name in values}
        fields["build_info"] = self._build
        fields["http_requests"] = [
            {"method": method, "route": route, "count": sum(found.statuses.values()),
             "statuses": {str(s): n for s, n in sorted(found.statuses.items())},
             "seconds": found.total}
            for (method, route), found in sorted(self._all_requests().items())
        ]  # fmt: skip
        return fields

    def appended(self, answer: bytes, data_dir: str | None, *, as_json: bool) -> bytes:
        """The core's answer with the families of the server."""
        if not as_json:
            return answer + self.text(data_dir)
        fields = json.dumps(self.json(data_dir), separators=(",", ":")).encode()
        return answer[:-1] + b"," + fields[1:]


def _of(requests: dict[tuple[str, str], _Requests], method: str, route: str) -> _Requests:
    found = requests.get((method, route))
    if found is None:
        found = requests[method, route] = _Requests()
    return found


def _histogram(name: str, method: str, route: str, found: _Requests) -> Iterator[str]:
    below = 0
    for bound, count in zip([*map(_number, BOUNDS), "+Inf"], found.buckets, strict=True):
        below += count
        yield f"{name}_bucket{_labels(method=method, route=route, le=bound)} {below}"
    labels = _labels(method=method, route=route)
    yield f"{name}_sum{labels} {_number(found.total)}"
    yield f"{name}_count{labels} {below}"


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.9g}"


_METHODS = frozenset(route.method for route in ROUTES) | {"HEAD", "OPTIONS", "PATCH"}
_ROUTE_OF = {route.verb: (route.method, route.path) for route in reversed(ROUTES)}
