"""`caFile`: certificates of a private authority, in sources and sinks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark_topics.client import Client
from pyspark_topics.errors import InvalidOption
from pyspark_topics.options import Connection, read_options, write_options

from support.tls import TlsServer, certificate


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A server whose certificate no system trusts, with ten records in a topic."""
    folder = tmp_path_factory.mktemp("tls")
    files = certificate(folder)
    with TlsServer(folder / "data", env=files) as server:
        url = f"https://localhost:{int(server.port)}"
        to = Connection(url, None, None, 60.0, ca_file=files["TOPICS_TLS_CERT"])
        records = [{"data": n} for n in range(10)]
        Client(to).call("POST", "/v0/topics/in", {"records": records})
        yield to


def given(to: Connection) -> dict[str, Any]:
    return {"url": to.url, "caFile": to.ca_file}


def test_a_source_and_a_sink_trust_the_file(spark, private, tmp_path):
    rows = spark.read.format("topics").load(subscribe="in", **given(private))
    assert rows.count() == 10
    rows.select("data").write.format("topics").mode("append").save(topic="batch", **given(private))
    frame = spark.readStream.format("topics").load(subscribe="in", **given(private))
    writer = frame.select("data").writeStream.format("topics").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path))
    writer.start(topic="stream", **given(private)).awaitTermination()
    client = Client(private)
    for topic in ("batch", "stream"):
        assert client.call("GET", f"/v0/topics/{topic}")["count"] == 10


def test_without_the_file_the_error_names_it(spark, private):
    with pytest.raises(PySparkException, match=r"certificate is not accepted: .*caFile"):
        spark.read.format("topics").load(url=private.url, subscribe="in").count()


def test_a_certificate_that_is_renewed_in_place_is_read_again(private, tmp_path):
    assert private.ca_file is not None
    file = tmp_path / "ca.pem"
    shutil.copy(certificate(tmp_path)["TOPICS_TLS_CERT"], file)
    client = Client(Connection(private.url, None, None, 60.0, ca_file=str(file)))
    with pytest.raises(InvalidOption, match="not accepted"):
        client.call("GET", "/v0/health")
    file.write_bytes(Path(private.ca_file).read_bytes())
    assert client.call("GET", "/v0/health")


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_file_that_holds_no_certificate_is_refused_at_once(private, tmp_path, text):
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    client = Client(Connection(private.url, None, None, 3600.0, ca_file=str(file)))
    with pytest.raises(InvalidOption, match=f"\"caFile\" '{file}' on .*: "):
        client.call("GET", "/v0/health")


@pytest.mark.parametrize("place", [{"url": "http://h:1"}, {"path": "/data"}])
def test_it_goes_with_tls(place: dict[str, str]):
    options = CaseInsensitiveDict({"subscribe": "a", "caFile": "/ca.pem", **place})
    with pytest.raises(InvalidOption, match='"caFile" goes with'):
        read_options(options)
    if "url" in place:
        with pytest.raises(InvalidOption, match='"caFile" goes with'):
            write_options(options)
