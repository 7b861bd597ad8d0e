"""What is kept of a run, with machine, versions and seed, and no path of the machine.

A new run is a JSON file in ``results/raw``, which git ignores. ``python -m benchmarks summarise`` moves these into
``results/summary.jsonl``, one line per run. Whoever reads the runs reads both.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen

from benchmarks.check import Verdict
from benchmarks.envs import OWN
from benchmarks.envs import ROOT as ENVS_ROOT
from benchmarks.measure import Measurement
from benchmarks.sides import Side

RESULTS = Path(__file__).resolve().parent / "results"
RAW, SUMMARY = "raw", "summary.jsonl"
GENERATION = {"family": "cpu family", "model": "model"}


@frozen
class Record:
    """One interleaved pair of runs of a side: the whole input, and a short one that tells start-up apart."""

    mode: str
    job: str
    data: str
    side: str
    round: int
    seed: int
    unit: str
    long_units: float
    long: dict[str, Any]
    short_units: float = 0.0
    short: dict[str, Any] | None = None
    files_per_batch: int = 0
    """Of the parquet parts; 0 in records from before it was kept."""
    verdict: dict[str, Any] | None = None
    extra: dict[str, float] = field(factory=dict)
    started: str = ""
    commit: str = ""
    machine: dict[str, Any] = field(factory=dict)
    versions: dict[str, str] = field(factory=dict)

    @property
    def ok(self) -> bool:
        """Whether its times count: it ended well and its result was checked."""
        ended = all(leg["exit_code"] == 0 and not leg["timed_out"] for leg in (self.long, self.short) if leg)
        return ended and self.verdict is not None and bool(self.verdict["ok"])

    @property
    def seconds(self) -> float:
        """Wall-clock of the whole run; of ``collect()``, that of a call in a warm session."""
        return float(self.extra.get("warm_s", self.long["wall_s"]))

    def marginal(self, what: str) -> float:
        """``cpu_s`` or ``wall_s`` per unit, start-up subtracted."""
        if self.short is None:
            return float(self.long[what]) / self.long_units
        return float(self.long[what] - self.short[what]) / (self.long_units - self.short_units)


def leg(measured: Measurement) -> dict[str, Any]:
    """A measurement without its command, which holds paths."""
    return {name: value for name, value in asdict(measured).items() if name != "command"}


def verdict_of(verdict: Verdict) -> dict[str, Any]:
    """A verdict as it is kept."""
    return asdict(verdict)


def now() -> str:
    """Time of day, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def run_text(*command: str) -> str:
    """What a command prints, standard error included; nothing if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    except OSError:
        return ""
    return (done.stdout + done.stderr).strip()


def named(said: Mapping[str, str]) -> str:
    """Return the name of a processor with its family and model: of some virtual machines all generations have one name."""
    parts = [said.get("model name", ""), *(f"{part} {said[key]}" for part, key in GENERATION.items() if key in said)]
    return ", ".join(part for part in parts if part)


def machine() -> dict[str, Any]:
    """Processor, memory and load of this machine."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in cpuinfo)}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": named(said),
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],
    }


def versions(side: Side) -> dict[str, str]:
    """Versions of what `side` runs on."""
    java = run_text("java", "-version").splitlines()
    result = {"python": platform.python_version(), "java": java[0] if java else ""}
    if side.env == OWN:
        for package in ("krishiv_py", "pyspark", "pyarrow", "numpy", "duckdb", "polars"):
            try:
                result[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                result[package] = "source tree"
    else:
        for line in (ENVS_ROOT / side.env / ".complete").read_text().splitlines():
            name, _, version = line.partition("==")
            if name in (side.package, "pyarrow"):
                result[name] = version
    return result


def commit() -> str:
    """Commit of this repository, with a plus sign where files differ from it."""
    head = run_text("git", "rev-parse", "--short", "HEAD")
    if head.startswith("fatal"):
        return ""
    changed = run_text("git", "status", "--porcelain", "--untracked-files=no", "--", "../krishiv_py", ".")
    return head + ("+" if changed else "")


def name_of(record: Record) -> str:
    """Name of a run, unlike that of any other."""
    stamp = record.started.replace(":", "").replace("-", "")[:15]
    return f"{record.mode}-{record.job}-{record.data}-{record.side}-{stamp}-{record.round}"


def write(record: Record, folder: Path = RESULTS) -> Path:
    """Write the JSON of a run."""
    raw = folder / RAW
    raw.mkdir(parents=True, exist_ok=True)
    path = raw / f"{name_of(record)}.json"
    path.write_text(json.dumps(asdict(record), indent=1) + "\n")
    return path


def read_all(folder: Path = RESULTS) -> list[Record]:
    """All runs of the summary and the raw files, oldest first; a raw file replaces a line of the same run."""
    summary = folder / SUMMARY
    texts = summary.read_text().splitlines() if summary.exists() else []
    texts += [path.read_text() for path in (folder / RAW).glob("*.json")]
    runs = {name_of(run): run for run in (Record(**json.loads(text)) for text in texts)}
    return [runs[name] for name in sorted(runs, key=lambda name: (runs[name].started, name))]


def summarise(folder: Path = RESULTS) -> int:
    """Move the raw files into the summary, a line per run in order of time; returns how many there were.

    The raw files are removed once the new summary is in place of the old one.
    """
    moved = list((folder / RAW).glob("*.json"))
    if not moved:
        return 0
    lines = [json.dumps(asdict(run), separators=(",", ":")) + "\n" for run in read_all(folder)]
    fresh = folder / f"{SUMMARY}.new"
    fresh.write_text("".join(lines))
    fresh.replace(folder / SUMMARY)
    for path in moved:
        path.unlink()
    return len(moved)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of ``python -m benchmarks summarise``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks summarise", description="Move the raw files into the summary.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    moved = summarise(given.results)
    print(f"moved: {moved} runs into {SUMMARY}")
    return 0
