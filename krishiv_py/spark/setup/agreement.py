"""Checks that the parts of a Spark fit together: PySpark here, Spark there, and the Python of Spark's workers."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from krishiv_py.errors import EnvironmentSetupError, cut, users_line
from krishiv_py.spark.setup.config import is_connect
from krishiv_py.spark.setup.workers import WORKER

_PROBE_S: Final = 60
_PROBE: Final = """
import importlib.util, json, sys
lacks = []
for name, module in {modules!r}:
    try:
        found = importlib.util.find_spec(module) is not None
    except ImportError:
        found = False
    if not found:
        lacks.append(name)
old = ""
if "protobuf" not in lacks:
    try:
        import pyspark.sql.streaming.proto.StateMessage_pb2
    except ImportError:
        pass
    except Exception as problem:
        import google.protobuf
        old = google.protobuf.__version__
print(json.dumps([list(sys.version_info[:2]), lacks, old]))
"""
_MODULES: Final = (
    ("krishiv_py", "krishiv_py"),
    ("attrs", "attr"),
    ("numpy", "numpy"),
    ("pandas", "pandas"),
    ("protobuf", "google.protobuf"),
    ("pyarrow", "pyarrow"),
    ("sqlglot", "sqlglot"),
)
"""What tasks import, by the names that pip knows."""


def check_agreement(spark: SparkSession, *, given: bool) -> None:
    """Refuse a session of which the parts do not fit together; `given` says that somebody else made it.

    Raises
    ------
    EnvironmentSetupError
        When PySpark here and the Spark that runs are of different versions, or the workers' Python lacks packages.
    """
    check_versions(pyspark.__version__, str(spark.version), connect=is_connect(spark))
    if not is_connect(spark):
        check_worker_python(str(spark.sparkContext.pythonExec), given=given)


def check_versions(here: str, there: str, *, connect: bool) -> None:
    """Compare the version of PySpark `here` with that of the Spark `there`, which are one release where all is well.

    A Spark Connect server that is newer than its client may work, and is a warning.

    Raises
    ------
    EnvironmentSetupError
        When they differ, and cannot work together.
    """
    mine, theirs = _release(here), _release(there)
    if mine == theirs or None in (mine, theirs):
        return
    wanted = f'pip install "pyspark=={_text(theirs)}.*"'
    if connect and mine is not None and theirs is not None and theirs > mine:
        warnings.warn(
            f"the Spark Connect server is Spark {there}, and PySpark here is {here}: calls may fail. Hint: {wanted}",
            RuntimeWarning,
            stacklevel=users_line(),
        )
        return
    raise EnvironmentSetupError(
        "PySpark and the Spark that runs are of different versions",
        got=f"PySpark {here} in this Python ({Path(pyspark.__file__).parent}), and "
        f"{'the Spark Connect server' if connect else 'the Spark'} is {there}",
        then="calls between them would fail, some of them in the middle of a query",
        hint=f"use one version: {wanted}; where a platform brings its own PySpark, uninstall this one, and install the library "
        "without it (docs/deployment.md, Managed Spark)",
    )


def _release(version: str) -> tuple[int, int] | None:
    """Return the major and minor number of a version; None where it has none."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _text(release: tuple[int, int] | None) -> str:
    return "" if release is None else f"{release[0]}.{release[1]}"


def check_worker_python(python: str, *, given: bool) -> None:
    """Look on this machine whether the Python of Spark's workers has what tasks import.

    The driver starts a worker too. The interpreter of this process is not looked at.

    Raises
    ------
    EnvironmentSetupError
        When it is not there, is another Python, or lacks packages.
    """
    if python in (str(WORKER), sys.executable):
        return
    path = shutil.which(python)
    if path is not None and os.path.abspath(path) == os.path.abspath(sys.executable):
        return
    problem = "there is no such program here" if path is None else _problem_of(path)
    if not problem:
        return
    late = "make the SparkSession after that" if given else "set it before the session is made"
    raise EnvironmentSetupError(
        "the Python that Spark starts its workers with cannot run the library",
        got=f"{python}{'' if path in (None, python) else f' ({path})'}: {problem}",
        then="every query would fail with a worker that ends without a word",
        hint=f'write os.environ["PYSPARK_PYTHON"] = sys.executable, and {late}: Spark keeps the Python that it began with. '
        f"This program runs in {sys.executable}",
    )


@functools.lru_cache(maxsize=8)
def _problem_of(path: str) -> str:
    """Return what another Python lacks; empty if nothing is missing."""
    zips = sorted(Path(pyspark.__file__).parent.glob("python/lib/*.zip"))
    home = os.environ.get("SPARK_HOME")
    if home:
        zips += sorted(Path(home).glob("python/lib/*.zip"))
    among = os.pathsep.join([*map(str, zips), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        answer = subprocess.run(
            [path, "-c", _PROBE.format(modules=_MODULES)],
            capture_output=True,
            timeout=_PROBE_S,
            env={**os.environ, "PYTHONPATH": among},
            check=False,
        )
        version, lacks, old = json.loads(answer.stdout.decode().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as problem:
        return cut(f"it cannot be run: {problem}", 200)
    except (ValueError, IndexError):
        said = answer.stderr.decode(errors="replace").strip().partition("\n")[0]
        return cut(f"it cannot be run: {said or 'it printed nothing'}", 200)
    if tuple(version) != sys.version_info[:2]:
        return f"it is Python {version[0]}.{version[1]}, and this is {sys.version_info[0]}.{sys.version_info[1]}"
    if lacks:
        return f"it lacks {', '.join(lacks)}"
    return f"its protobuf {old} is too old for this Spark" if old else ""
