"""Create the environment of a peer: ``python -m benchmarks.envs NAME...`` (see ``ENVS``), under ``benchmarks/.envs``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from attrs import field, frozen

ROOT = Path(__file__).resolve().parent / ".envs"


@frozen
class Env:
    """What pip and Maven install for one peer; ``source_ok`` names packages that have no wheel and are built."""

    requirements: tuple[str, ...]
    jars: tuple[str, ...] = field(default=())
    source_ok: tuple[str, ...] = field(default=())


ENVS: dict[str, Env] = {
    "flink": Env(
        ("apache-flink==2.3.0", "setuptools<81"),
        jars=(
            "org.apache.flink:flink-sql-parquet:2.3.0",
            "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2",
            "org.apache.hadoop:hadoop-client-api:3.4.1",
            "org.apache.hadoop:hadoop-client-runtime:3.4.1",
        ),
        source_ok=("apache-flink-libraries", "crcmod", "dill", "hdfs", "docopt"),
    ),
    "bytewax": Env(("bytewax==0.21.1", "pyarrow")),
    "pathway": Env(("pathway==0.33.0", "pyarrow")),
    "quix": Env(("quixstreams==3.28.1", "pyarrow")),
}
OWN = "own"


def python_of(name: str) -> str:
    """Interpreter of environment `name`; the running one for ``"own"``."""
    if name == OWN:
        return sys.executable
    return str(ROOT / name / "bin" / "python")


def installed(name: str) -> bool:
    """Whether environment `name` was created to the end."""
    return name == OWN or (ROOT / name / ".complete").exists()


def create(name: str) -> None:
    """Create (or complete) the environment `name`."""
    env = ENVS[name]
    home = ROOT / name
    if not (home / "bin" / "python").exists():
        venv.create(home, with_pip=True)
    command = [python_of(name), "-m", "pip", "install", "--only-binary", ":all:"]
    if env.source_ok:
        command += ["--no-binary", ",".join(env.source_ok)]
    subprocess.run([*command, *env.requirements], check=True, env={**os.environ, "PYTHONNOUSERSITE": "1"})
    for jar in env.jars:
        subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={jar}", f"-DoutputDirectory={home / 'jars'}"], check=True
        )
    frozen_list = subprocess.run([python_of(name), "-m", "pip", "freeze"], check=True, capture_output=True, text=True)
    (home / ".complete").write_text(frozen_list.stdout)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.envs", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ENVS, []], help="all of them where left out")
    names = parser.parse_args(argv).names or list(ENVS)
    for name in names:
        create(name)
        print(f"{name}: {python_of(name)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
