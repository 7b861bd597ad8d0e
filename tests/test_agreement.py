"""PySpark, the Spark that runs and the Python of its workers: what does not fit together is named at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest

from krishiv_py import Session
from krishiv_py.errors import EnvironmentSetupError
from krishiv_py.spark import runtime
from krishiv_py.spark.setup import agreement
from krishiv_py.spark.setup.agreement import check_versions, check_worker_python
from krishiv_py.spark.setup.workers import WORKER

PROJECT = Path(__file__).parents[1]


@pytest.mark.parametrize("there", ["4.3.0", "4.3.1", "4.3.0-SNAPSHOT", "4.3", "", "unknown", "4.x"])
@pytest.mark.parametrize("connect", [False, True])
def test_one_release_is_no_problem(there: str, connect: bool) -> None:
    check_versions("4.3.0", there, connect=connect)


@pytest.mark.parametrize(
    ("here", "there", "connect"), [("4.3.0", "4.1.2", False), ("4.1.2", "4.3.0", False), ("4.3.0", "4.2.1", True)]
)
def test_other_releases_are_named(here: str, there: str, connect: bool) -> None:
    with pytest.raises(EnvironmentSetupError) as error:
        check_versions(here, there, connect=connect)
    assert here in str(error.value) and there in str(error.value)
    assert f'pip install "pyspark=={there[:3]}.*"' in str(error.value)
    assert ("Spark Connect server" in str(error.value)) is connect


def test_a_newer_connect_server_is_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match=r"Spark 4\.10\.0, and PySpark here is 4\.3\.0"):
        check_versions("4.3.0", "4.10.0", connect=True)


def test_the_warning_names_the_line_that_made_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "is_connect", lambda spark: True)
    monkeypatch.setattr(
        runtime.SparkRunner, "__init__", lambda self, spark, profile, owned: agreement.check_agreement(spark, given=True)
    )
    with pytest.warns(RuntimeWarning, match="calls may fail") as caught:
        Session.from_spark(Mock(version="99.1.0"))
    assert caught[0].filename == __file__, "calls of the public API pass a frame that checks them"


def program(folder: Path, text: str) -> str:
    """A Python that does something else."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def problem_of(python: str, *, given: bool = True) -> str:
    agreement._problem_of.cache_clear()
    with pytest.raises(EnvironmentSetupError, match="starts its workers with cannot run the library") as error:
        check_worker_python(python, given=given)
    assert 'os.environ["PYSPARK_PYTHON"] = sys.executable' in str(error.value)
    assert sys.executable in str(error.value)
    return str(error.value)


def test_the_python_of_this_process_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    check_worker_python(sys.executable, given=True)
    check_worker_python(str(WORKER), given=False)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    check_worker_python(os.path.basename(sys.executable), given=True)


def test_another_way_to_the_same_packages_is_fine(tmp_path: Path) -> None:
    agreement._problem_of.cache_clear()
    check_worker_python(program(tmp_path, f'exec {sys.executable} "$@"'), given=True)


def test_what_a_python_lacks_is_named(tmp_path: Path) -> None:
    bare = program(tmp_path, f'exec {sys.executable} -S "$@"')  # without site-packages
    assert "it lacks attrs, numpy, pandas, protobuf, pyarrow, sqlglot" in problem_of(bare)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("exit 3", "it cannot be run: it printed nothing"),
        ("echo not here >&2; exit 127", "it cannot be run: not here"),
        ("echo '[[3, 9], [], \"\"]'", "it is Python 3.9, and this is 3."),
        (f"echo '[[{sys.version_info[0]}, {sys.version_info[1]}], [], \"5.29.0\"]'", "its protobuf 5.29.0 is too old"),
    ],
    ids=["silent", "speaks", "other-version", "old-protobuf"],
)
def test_a_python_that_cannot_be_used_says_why(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in problem_of(program(tmp_path, text))


@pytest.mark.parametrize(("python", "given"), [("no-such-python", True), ("./env/bin/python", False)])
def test_a_python_that_is_not_there_is_named(python: str, given: bool) -> None:
    settings = problem_of(python, given=given)
    assert f"{python}: there is no such program here" in settings
    assert ("make the SparkSession after that" if given else "before the session is made") in settings


PROGRAM = """
import os
os.environ["PYSPARK_PYTHON"] = {python!r}
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
from krishiv_py import Session
try:
    Session.from_spark(spark)
finally:
    spark.stop()
"""


@pytest.mark.slow  # it starts another Spark
@pytest.mark.spark
def test_a_session_of_the_users_own_is_refused_at_once(tmp_path: Path) -> None:
    bare = program(tmp_path, f'exec {sys.executable} -S "$@"')
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(python=bare)], capture_output=True, text=True, timeout=120)
    assert "EnvironmentSetupError: the Python that Spark starts its workers with" in done.stderr.splitlines()[-1]


def test_the_requirements_without_an_extra_are_those_of_the_package() -> None:
    listed = (PROJECT / "pyproject.toml").read_text().partition("\ndependencies = [")[2].partition("\n]")[0]
    wanted = re.findall(r'^ +"([^"]+)"', listed, re.M)
    lines = (PROJECT / "deploy" / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == wanted


def test_no_other_list_of_requirements_is_kept() -> None:
    texts = [PROJECT / "deploy" / "Containerfile", *(PROJECT / "docs").rglob("*.md"), PROJECT / "README.md"]
    assert [text.name for text in texts if "sqlglot>=" in text.read_text()] == []


def test_equal_versions_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_versions("4.3.0", "4.3.9", connect=True)
