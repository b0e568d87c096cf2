"""The ways to install the package: a wheel in an empty environment, on a cluster, `--py-files`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pyarrow
import pyspark
import pytest

HOME = Path(__file__).parents[1]
PROGRAM = Path(__file__).with_name("installed.py")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, str(folder), str(HOME)], check=True, timeout=1200)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("env"))


def environment(home: Path) -> Path:
    """The Python of an environment with Spark and nothing of ours; Spark's half a gigabyte is not
    copied."""
    venv.create(home, with_pip=False, symlinks=True)
    (packages,) = (home / "lib").glob("python3*/site-packages")
    # The Spark may lie beside its dependencies, not with them.
    folders = [Path(module.__file__).parents[1] for module in (pyspark, pyarrow)]
    folders.append(Path(pyspark.__file__).parent / "python")
    for name in ("pyspark", "py4j", "pyarrow", "numpy", "numpy.libs", "zoneinfo", "pytz", "six.py"):
        for folder in folders:
            if (folder / name).exists() and not (packages / name).exists():
                (packages / name).symlink_to(folder / name)
    return home / "bin" / "python"


def install(python: Path, wheel: Path) -> Path:
    (packages,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    subprocess.run([*command, "--target", str(packages), str(wheel)], check=True, timeout=1200)
    return packages


def spark_home(folder: Path) -> Path:
    """A home of its own, because the executors of a local cluster write into it."""
    home = folder / "spark-home"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    return home


def run(
    python: Path, topics, topic: str, folder: Path, *settings: str, submit=(), **more: str
) -> dict[str, list[str]]:
    """What the program prints, by its first word; with `submit`, started by `spark-submit` with
    these arguments. `more` are environment variables."""
    folder.mkdir()
    topics.append(topic, list(range(1000)))
    removed = ("PYTHONPATH", "SPARK_HOME", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
    env = {k: v for k, v in os.environ.items() if k not in (*removed, "PYSPARK_SUBMIT_ARGS")}
    home = spark_home(folder)
    env |= {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"SPARK_HOME": str(home), **more}
    command = [str(home / "bin" / "spark-submit"), *submit] if submit else [str(python)]
    command += [str(PROGRAM), topics.url, topic, str(folder), *settings]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for sink in ("batch", "stream"):
        assert sorted(topics.data(f"{topic}.{sink}")) == list(range(1000))
    words = [line.split() for line in done.stdout.splitlines() if line]
    return {first: rest for first, *rest in words}


def test_a_wheel_in_an_empty_environment(topics, topic, wheel, python, tmp_path):
    packages = install(python, wheel)
    found = run(python, topics, topic, tmp_path / "run", "spark.master=local[2]")
    assert found["rows"] == ["1000"]
    assert found["from"] == [str(packages / "pyspark_topics" / "__init__.py")]


def test_a_cluster_with_two_executors(topics, topic, wheel, python, tmp_path):
    packages = install(python, wheel)
    found = run(python, topics, topic, tmp_path / "run", "spark.master=local-cluster[2,1,1024]")
    assert found["rows"] == ["1000"]
    assert found["from"] == [str(packages / "pyspark_topics" / "__init__.py")]
    # Each executor is a process of its own, and has a daemon that starts its workers.
    assert found["daemons"] == ["2"]


def test_py_files_without_an_installation(topics, topic, wheel, tmp_path_factory, tmp_path):
    bare = environment(tmp_path_factory.mktemp("bare"))
    code = "import pyspark, pyarrow, importlib.util as u; print(u.find_spec('pyspark_topics'))"
    # Without the path that other tests gave their Spark.
    command = [str(bare), "-I", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "None", done.stderr
    zipped = shutil.copy(wheel, tmp_path / "pyspark_topics.zip")
    submit = ["--master", "local-cluster[2,1,1024]", "--py-files", zipped]
    # An executor of such a cluster inherits the environment of the driver; a real one does not.
    submit += ["--conf", "spark.executorEnv.PYTHONPATH=/nowhere"]
    found = run(bare, topics, topic, tmp_path / "run", submit=submit, PYTHONPATH=zipped)
    assert found["rows"] == ["1000"]
    # Each executor has a copy of its own, in its working directory, and a daemon.
    assert found["from"] == ["./pyspark_topics.zip/pyspark_topics/__init__.py"]
    assert found["daemons"] == ["2"]
