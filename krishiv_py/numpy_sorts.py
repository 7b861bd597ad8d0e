"""Determine which vector instructions NumPy sorts with in the Python processes of Spark.

NumPy's sort for AVX-512 is made of stores that AMD's Zen 4 (family 19h) runs as microcode: there it takes five times as long
as the sort for AVX2, and NumPy takes it all the same. So processes that work for Spark load NumPy without it on such
processors. The user's own process is left as it is; ``NPY_DISABLE_CPU_FEATURES=X86_V4`` does the same there.

Sources: AMD, Software Optimization Guide for the Zen 4 Microarchitecture, 2.11.2; NumPy, "CPU build options"; the JDK leaves
the same family out of its own sort for AVX-512 (JDK-8317976).
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Final

CHOICE: Final = "NPY_DISABLE_CPU_FEATURES"
"""The variable that NumPy reads when it is loaded."""

_FEATURES: Final = "AVX512_SKX X86_V4"  # NumPy before 2.4, and from then on
_OF_SPARK: Final = "PYTHON_WORKER_FACTORY_"
_CPUINFO: Final = Path("/proc/cpuinfo")
_FIRST: Final = 8_192  # as long as what is known of the first processor; of hundreds it takes a while


def load_numpy() -> None:
    """Load NumPy as sorts are fastest, in a process that Spark began and that has not loaded it."""
    if "numpy" in sys.modules or CHOICE in os.environ or not any(name.startswith(_OF_SPARK) for name in os.environ):
        return
    if not is_zen4():
        return
    os.environ[CHOICE] = _FEATURES
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImportWarning)  # one of the two names is unknown
            import numpy  # noqa: F401
    finally:
        del os.environ[CHOICE]  # programs that tasks start choose for themselves


def is_zen4(cpuinfo: Path = _CPUINFO) -> bool:
    """Return whether this is a processor of AMD's family 19h with AVX-512."""
    try:
        with cpuinfo.open("rb") as file:
            lines = file.read(_FIRST).decode("ascii", "replace").partition("\n\n")[0].splitlines()
    except OSError:
        return False  # another system than Linux
    settings = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    amd, family = settings.get("vendor_id") == "AuthenticAMD", settings.get("cpu family")
    return amd and family == "25" and "avx512f" in settings.get("flags", "").split()


load_numpy()
