"""What every store must give: queries with input, checkpoint and outputs in a bucket, and the same on this machine's disk."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from krishiv_py import ParquetSink, SideOutputLateEventHandler
from krishiv_py.testing import Driver, stream_of
from tests.crash import killing
from tests.crash.job import SCHEMA, plan
from tests.crash.killing import counted, rows, write_input
from tests.gcs.store import Google
from tests.objectstore.store import Store
from tests.store_rules import file_system

KILLS = int(os.environ.get("KRISHIV_KILLS", "1"))


def command(store: Store | Google, *given: str) -> list[str]:
    """A job."""
    return [sys.executable, "-m", "tests.objectstore.job", *store.arguments, *given]


def files(folder: Path, seed: int, number: int) -> list[Path]:
    """Input, as the tests that kill have it."""
    write_input(folder, seed, number)
    return sorted(folder.iterdir())


def upload(store: Store | Google, paths: list[Path]) -> None:
    """Let them be the input in the bucket."""
    for path in paths:
        store.put(f"in/{path.name}", path.read_bytes())


def empty(store: Store | Google) -> None:
    """Remove what another test left."""
    for key in list(store.keys("")):
        store.remove(key)


def there(store: Store | Google, folder: str) -> Counter[tuple[str, ...]]:
    """Every row of an output in the bucket, as any reader finds it, and how often."""
    system, root = file_system(store.url(folder))
    return counted(ds.dataset(root, filesystem=system).to_table().to_pylist())


@pytest.fixture(scope="module")
def done(store: Store | Google, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Path]]:
    """What the job wrote, and the folder of what it did on this machine."""
    folder = tmp_path_factory.mktemp("local")
    every = files(folder / "in", 5, 2)
    upload(store, every[:1])
    (folder / "more").mkdir()
    for path in every[1:]:
        os.link(path, folder / "more" / path.name)
    run = subprocess.run(command(store, "whole", "w", str(folder)), capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stderr[-6_000:]
    print(run.stderr)
    given = json.loads((folder / "written.json").read_text())
    yield {**given, "said": run.stdout + run.stderr}, folder
    empty(store)


class Whole:
    """One session runs a query of each kind, the second time from its checkpoint."""

    @pytest.mark.parametrize("output", ["out", "late"])
    def test_the_same_rows(self, done: tuple[dict[str, Any], Path], used: Store | Google, output: str) -> None:
        """The tumbling query read a half, and the other one from its checkpoint, while a session query ran."""
        for kind in ("tumbling", "session"):
            plain = rows(done[1] / kind / output)
            assert sum(plain.values()) > 20
            assert there(used, f"w/{kind}/{output}") == plain

    def test_large_chunks_are_objects(self, done: tuple[dict[str, Any], Path], used: Store | Google) -> None:
        for work in ("tumbling", "session"):
            assert used.keys(f"w/{work}/checkpoint/krishiv/chunks/0")

    def test_nothing_is_left_half_done(self, done: tuple[dict[str, Any], Path], used: Store | Google) -> None:
        assert [key for key in used.uploads() if key.startswith("w/")] == []
        left = [key for key in used.keys("w/") if ".tmp" in key or ("_krishiv_staging" in key and not key.endswith("/"))]
        assert left == []
        assert not [key for key in used.keys("w/") if key.endswith("lease.json")]

    def test_a_memory_stream_and_json(self, done: tuple[dict[str, Any], Path], used: Store | Google) -> None:
        given = [used.read(key) for key in used.keys("w/sent/out/part")]
        actual = [json.loads(line) for text in given for line in text.decode().splitlines()]
        sums = Counter((row["user"], row["window_start"], row["count"], row["sum_amount"]) for row in actual)
        amounts = {user: range(user, 300, 7) for user in range(7)}
        assert sums == Counter((u, 1_000 * i, len(a), sum(a)) for u, a in amounts.items() for i in range(4))

    def test_a_bounded_run(self, done: tuple[dict[str, Any], Path], used: Store | Google) -> None:
        given, folder = done
        assert given["bounded"] > 50
        assert there(used, "w/bounded-late") == rows(folder / "tumbling" / "late")

    def test_what_is_refused_at_start(self, done: tuple[dict[str, Any], Path], used: Store | Google) -> None:
        given = done[0]["refused"]
        for what in ("checkpoint", "sink", "source"):
            assert (
                given[what].startswith(f"EnvironmentSetupError: {used.scheme}://nowhere/")
                and "there is no such bucket" in given[what]
            )
        assert given["scheme"].startswith("PlanError: Spark reads and writes ") and f" as {used.scheme}://" in given["scheme"]
        assert given["spool"].startswith("PlanError: the spool of a memory stream needs a file system")


class Halves:
    """A query goes on from its checkpoint in the bucket; each of the files is a micro-batch."""

    def test_a_query_in_two_runs_and_the_driver(self, used: Store | Google, tmp_path: Path) -> None:
        every = files(tmp_path / "in", 7, 2)
        late = SideOutputLateEventHandler(ParquetSink(str(tmp_path / "late")))
        driver = Driver(plan(lambda: stream_of(SCHEMA), "tumbling", late), sink=ParquetSink(str(tmp_path / "out")))
        for path in every:
            driver.send(pq.read_table(path))
        driver.close()
        (tmp_path / "more").mkdir()
        every[1].rename(tmp_path / "more" / every[1].name)
        upload(used, every[:1])
        job = subprocess.run(command(used, "halves", "h", str(tmp_path / "more")), capture_output=True, text=True, timeout=200)
        assert job.returncode == 0, job.stderr[-6_000:]
        print(job.stderr)
        for output in ("out", "late"):
            plain = rows(tmp_path / output)
            assert sum(plain.values()) > 20
            assert there(used, f"h/{output}") == plain
        assert not [
            key for key in used.keys("h/") if ("_staging" in key and not key.endswith("/")) or key.endswith("lease.json")
        ]
        self.look(job.stdout + job.stderr, used)
        empty(used)

    def look(self, said: str, used: Store | Google) -> None:
        """Check what the job said, and what is in the bucket."""


def killed(used: Store | Google, tmp_path: Path) -> None:
    """The process tree dies at a random moment; what it left is replaced, and readers see each row once."""
    seeded = random.Random(int(os.environ.get("KRISHIV_SEED", "11")))
    upload(used, files(tmp_path / "in", 6, 3))
    killing.run("tumbling", tmp_path / "in", tmp_path / "plain")
    began = time.monotonic()
    subprocess.run(command(used, "kill", "timed"), check=True, stderr=subprocess.DEVNULL, timeout=400)
    kills = killing.killed_until_done(
        lambda: subprocess.Popen(command(used, "kill", "killed"), start_new_session=True, stderr=subprocess.DEVNULL),
        lambda: "killed/done" in used.keys("killed/"),
        KILLS,
        seeded,
        time.monotonic() - began,
    )
    print(f"{kills} kills")
    assert kills
    for output in ("out", "late"):
        assert there(used, f"killed/{output}") == killing.rows(tmp_path / "plain" / output)
    assert [key for key in used.uploads() if key.startswith("killed/")] == []
    empty(used)
