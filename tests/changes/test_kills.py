"""Kill a running total that writes PostgreSQL by key, at each place of a batch: the content is equal in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.changes.dying_job import PLACES
from tests.kernels.changes.reference import Content, Rows, grouped
from tests.tables.server import Server

KILLS = int(os.environ.get("KRISHIV_KILLS", "2"))  # `nox -s crash` sets 40
FILES = 12


def write_changes(folder: Path, draw: random.Random) -> Content:
    """Write files of changes, in order of arrival; gives the content of the table."""
    content = Content("id", "seq")
    folder.mkdir(parents=True)
    for number in range(FILES):
        rows: Rows = []
        for place in range(30):
            row = {"op": draw.choice(("+I", "+U", "+U", "-D")), "id": draw.randrange(20), "shop": draw.choice("wxyz")}
            at = 100 * number + place - (draw.randrange(150) if draw.random() < 0.2 else 0)
            rows.append(row | {"amount": draw.randrange(9), "seq": at})
        for row in rows:
            content.apply(row)
        path = folder / f"{number:04d}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_600_000_000 + number,) * 2)
    return content


def run(server: Server, table: str, work: Path, batch: int, place: str) -> int:
    """Run the job to its death, or to its end."""
    command = [sys.executable, "-m", "tests.changes.dying_job", server.address(), table, str(work), str(batch), place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3_000:]
    return done.returncode


def test_the_table_is_the_content_after_kills(server: Server, table: Callable[[], str], tmp_path: Path) -> None:
    draw, name = random.Random(KILLS), f"killed_{table()}"
    content = write_changes(tmp_path / "in", draw)
    points = [(batch, place) for batch in range(FILES) for place in PLACES]
    chosen = sorted(draw.sample(range(len(points)), KILLS))
    killed = sum(run(server, name, tmp_path, *points[point]) != 0 for point in chosen)
    assert run(server, name, tmp_path, -1, "") == 0
    assert killed == KILLS
    wanted = grouped(content.rows, ("shop",), {"n": len, "total": lambda rows: sum(row["amount"] for row in rows)})
    rows = [dict(zip(("shop", "n", "total"), row, strict=True)) for row in server.rows(f"SELECT shop, n, total FROM {name}")]
    assert sorted(map(str, rows)) == sorted(map(str, wanted))
    assert server.rows(f"SELECT batch_id FROM krishiv_batches WHERE target = '{name}'") == [(FILES - 1,)]
