"""The Python that Spark starts its workers with, and modules that it cannot import."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Final

import pyspark
from pyspark import cloudpickle

WORKER: Final = Path(__file__).with_name("python-worker")


def choose_worker_python(*, here: bool = True) -> None:
    """Let workers see the packages this process sees, and PySpark as it is installed rather than Spark's archive of it.

    What the user has chosen, ``PYSPARK_PYTHON``, stays. The archive stays too where it may be another PySpark than the one
    installed, or the script next to this file cannot be run. Machines of a cluster (not `here`) may lack the script: there the
    path of this interpreter is asked for, as ``spark-submit`` would its own.
    """
    if "PYSPARK_PYTHON" in os.environ:
        return
    if here and _is_installed() and os.access(WORKER, os.X_OK):
        os.environ["KRISHIV_WORKER_PYTHON"] = sys.executable
        os.environ["PYSPARK_PYTHON"] = str(WORKER)
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _is_installed() -> bool:
    """Return whether Spark is the one in the installed PySpark, which any process of this Python finds by itself."""
    package = Path(pyspark.__file__).parent
    home = os.environ.get("SPARK_HOME")
    return package.parent in {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")} and (
        home is None or Path(home).resolve() == package.resolve()
    )


def send_whole(module: ModuleType) -> None:
    """Send functions and classes of a module as they are: workers do not find the file of a job on their path."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
