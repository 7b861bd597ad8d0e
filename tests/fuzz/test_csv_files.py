"""CSV lines damaged at random: Spark reads them, and each is a row or malformed, once, as its text says (docs/sources.md)."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import settings

import krishiv_py as kv
from krishiv_py import MemorySink, Session, SideOutputLateEventHandler, collect_list
from tests.fuzz.test_damaged_files import Choose

FILES: Final = 30
ROUNDS: Final = max(2, (settings.default.max_examples if settings.default else 40) // 200)
DDL: Final = "id bigint, user string, at bigint, x double"
TOKENS: Final = (
    b",",
    b"\n",
    b"\r\n",
    b" ",
    b"-",
    b"+",
    b"x",
    b"7",
    b"9" * 20,
    b"\xff",
    b"\xe4",
    b"\\",
    b"#",
    b"\x00",
    b"'",
    b"\t",
)
WHOLE: Final = re.compile(r"[+-]?[0-9]+")


def lines_of(draw: Choose, count: int) -> list[bytes]:
    """Lines of four fields, about half of them damaged; no quotes, so that a line is a record."""
    out = []
    for n in range(count):
        user, x = draw.choice(["a", "bä", "", "c d"]), draw.choice(["0.5", "-1e300", "3", ""])
        line = f"{n},{user},{n * 100},{x}".encode()
        for _ in range(draw.choice([0, 0, 1, 2])):
            i = draw.randrange(len(line) + 1)
            end = min(len(line), i + draw.choice([0, 1, 3]))
            line = line[:i] + draw.choice((b"", *TOKENS)) + line[end:]
        out.append(line)
    return out


def expected_fate(line: bytes) -> tuple[str, int | None] | None:
    """What surely holds of a line: ``row`` with its id, ``malformed``, or None where that hangs on Spark's rules of numbers."""
    fields = line.split(b",")
    if len(fields) != 4:
        return "malformed", None
    try:
        number, time = fields[0].decode(), fields[2].decode()
        line.decode()
    except UnicodeDecodeError:
        return "malformed", None
    for text in (number, time):
        if text and (not WHOLE.fullmatch(text) or not -(2**63) <= int(text) < 2**63):
            return "malformed", None
    if fields[3] not in (b"0.5", b"-1e300", b"3", b""):
        return None
    return "row", int(number) if number else None


def read(session: Session, home: Path) -> Any:
    """Counts and ids of all rows in a folder, and late rows."""
    stream = session.read_csv(home / "in", DDL, on_malformed="side_output").watermark("at", 0)
    ids = collect_list(kv.func("coalesce", kv.col("id"), kv.lit(-1))).alias("ids")
    handled = stream.with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
    return handled.key_by("user").tumbling_window(1_000).agg(kv.count(), ids).run()


def as_found(table: pa.Table) -> list[str]:
    """Rows in any order, with what is collected in any order, but for why a line is malformed."""
    rows = [{n: sorted(v) if isinstance(v, list) else v for n, v in row.items()} for row in table.to_pylist()]
    return sorted(repr({n: v for n, v in row.items() if n != "malformed_problem"}) for row in rows)


@pytest.mark.one_in(2)
@pytest.mark.spark
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_every_line_is_a_row_or_malformed(session: Session, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    written: dict[str, list[bytes]] = {}
    for n in range(FILES):
        data = b"\n".join(lines_of(draw, 20)) + draw.choice([b"", b"\n"])
        path = tmp_path / "in" / f"{n}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        written[str(path)] = [line for line in data.splitlines() if line]
    run = read(session, tmp_path)
    with Session.in_process() as without_spark:
        here = read(without_spark, tmp_path)
    assert as_found(here.table) == as_found(run.table)
    assert as_found(here.late.drop(["malformed_line"])) == as_found(
        run.late.drop(["malformed_line"])
    )  # of equal ones the first
    malformed = [r for r in run.late.to_pylist() if r["reason"] == "malformed"]
    rows = [i for ids in run.table["ids"].to_pylist() for i in ids]
    rows += [-1 if r["id"] is None else r["id"] for r in run.late.to_pylist() if r["reason"] != "malformed"]
    everything = [line for lines in written.values() for line in lines]
    assert len(rows) + len(malformed) == len(everything)
    verdicts = [expected_fate(line) for line in everything]
    sure = sorted(-1 if v[1] is None else v[1] for v in verdicts if v is not None and v[0] == "row")
    left = sorted(rows)
    for n in sure:
        left.remove(n)  # every line that is surely a row came, with its id
    assert len(left) <= verdicts.count(None)
    for r in malformed:
        line = written[r["malformed_file"]]
        assert r["malformed_text"] in {text.decode("utf-8", "backslashreplace") for text in line}
    assert len(malformed) >= verdicts.count(("malformed", None))
    assert run.counters["malformed"] == len(malformed)
