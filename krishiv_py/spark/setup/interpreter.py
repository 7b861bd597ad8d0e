"""Which Python an embedded Spark starts its workers with."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pyspark

WORKER: Final = Path(__file__).with_name("python-worker")


def choose_worker_python(*, here: bool = True) -> None:
    """Let workers see the packages this process sees, and PySpark as it is installed rather than Spark's archive of it.

    What the user has chosen, ``PYSPARK_PYTHON``, stays. The archive stays too where it may be another PySpark than the one
    installed, or the script beside this file cannot be run. Machines of a cluster (not `here`) may lack the script: there the
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
