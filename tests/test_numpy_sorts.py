"""NumPy's sort in Spark's Python processes, by processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from krishiv_py.numpy_sorts import CHOICE, is_zen4

ZEN4 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nflags\t\t: fpu avx2 avx512f avx512dq\n"
OTHERS = {
    "Zen 3": ZEN4.replace("avx512f avx512dq", ""),
    "Zen 5": ZEN4.replace(": 25", ": 26"),
    "Intel": ZEN4.replace("AuthenticAMD", "GenuineIntel"),
    "ARM": "processor\t: 0\nCPU architecture: 8\nFeatures\t: asimd\n",
    "nothing": "",
    "no text": "\xff\x00:::",
}


def test_zen4_is_known(tmp_path: Path) -> None:
    given = tmp_path / "cpuinfo"
    given.write_text(f"{ZEN4}\n" * 500)
    assert is_zen4(given)


@pytest.mark.parametrize("name", OTHERS)
def test_other_processors_are_left_alone(name: str, tmp_path: Path) -> None:
    given = tmp_path / "cpuinfo"
    given.write_text(OTHERS[name], "latin-1")
    assert not is_zen4(given)


def test_without_linux_nothing_is_known(tmp_path: Path) -> None:
    assert not is_zen4(tmp_path / "missing")


LOADS = """
import os, pathlib, sys
listed = pathlib.Path(sys.argv[1])
opened = pathlib.Path.open
pathlib.Path.open = lambda path, *more: opened(listed if str(path) == "/proc/cpuinfo" else path, *more)
asked = []
class CustomTrigger:
    def find_spec(self, name, *more):
        if name == "numpy":
            asked.append(os.environ.get("NPY_DISABLE_CPU_FEATURES"))
sys.meta_path.insert(0, CustomTrigger())
import krishiv_py.arrays.sorting as sorting
print(asked, os.environ.get("NPY_DISABLE_CPU_FEATURES"), sorting.sorted_unique(sorting.np.arange(100) % 7).tolist())
"""


@pytest.mark.parametrize(
    ("processor", "given", "seen"),
    [
        (ZEN4, {"PYTHON_WORKER_FACTORY_SECRET": "x"}, "['AVX512_SKX X86_V4'] None"),
        (ZEN4, {"PYTHON_WORKER_FACTORY_SECRET": "x", "PYTHONWARNINGS": "error"}, "['AVX512_SKX X86_V4'] None"),
        (ZEN4, {"PYTHON_WORKER_FACTORY_SOCK_DIR": "x", CHOICE: "AVX512_SPR"}, "['AVX512_SPR'] AVX512_SPR"),
        (ZEN4, {}, "[None] None"),
        (OTHERS["Intel"], {"PYTHON_WORKER_FACTORY_SECRET": "x"}, "[None] None"),
    ],
    ids=["a worker", "a worker that takes warnings for errors", "the user chose", "the user's process", "another processor"],
)
def test_numpy_is_reported_in_workers_alone(processor: str, given: dict[str, str], seen: str, tmp_path: Path) -> None:
    settings = tmp_path / "cpuinfo"
    settings.write_text(processor)
    env = {k: v for k, v in os.environ.items() if k != CHOICE and not k.startswith("PYTHON_WORKER")} | given
    ran = subprocess.run([sys.executable, "-c", LOADS, str(settings)], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == f"{seen} [0, 1, 2, 3, 4, 5, 6]"
