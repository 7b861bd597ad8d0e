"""Checksums over notes: every change is found, and named with a way out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py.errors import CheckpointError
from krishiv_py.storage.checksums import check_parquet, sealed, sealed_parquet, unsealed

BODY = b'{"buckets": 2, "outputs": "0a1b2c3d"}'


def test_a_note_comes_back() -> None:
    for body in (b"", b"\n", BODY, bytes(range(256))):
        assert unsealed(sealed(body), "note", "way") == body


def test_every_change_to_a_note_is_found() -> None:
    whole = sealed(BODY)
    changes = [whole[:i] for i in range(len(whole))] + [whole + b"\n", BODY, b"\0" * len(whole)]
    changes += [whole[:i] + bytes([whole[i] ^ 1 << bit]) + whole[i + 1 :] for i in range(len(whole)) for bit in range(8)]
    for changed in changes:
        with pytest.raises(CheckpointError, match=r"x/plan\.json is damaged .*Hint: look elsewhere"):
            unsealed(changed, "x/plan.json", "look elsewhere")


@pytest.mark.parametrize("rows", [0, 1, 70_000])
def test_a_sealed_parquet_file_is_an_ordinary_one(tmp_path: Path, rows: int) -> None:
    held = pa.BufferOutputStream()
    table = pa.table({"n": list(range(rows)), "s": ["x"] * rows}, schema=pa.schema([("n", pa.int64()), ("s", pa.string())]))
    pq.write_table(table, held, compression="lz4")
    (tmp_path / "f.parquet").write_bytes(b"".join(sealed_parquet(held.getvalue())))
    check_parquet(pa.py_buffer((tmp_path / "f.parquet").read_bytes()), "f", "way")
    assert pq.read_table(tmp_path / "f.parquet") == table
