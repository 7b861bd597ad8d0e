"""Texts of JSON that are not as Arrow takes them: each is what it is alone, and no other is read slowly for it."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py.connectors import json_lines, json_values
from krishiv_py.connectors.json_lines import JsonLines
from tests.connectors.odd_texts import ODD, SCHEMA, row

KNOWN = tuple(SCHEMA.names)
ROWS = [row(i % 31) for i in range(1_500)]


def plain(batch: pa.RecordBatch) -> list[str]:
    """Return rows as texts, in which NaN is NaN, and years may have five digits."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
    return list(map(repr, pa.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist()))


def alone(lines: JsonLines, texts: list[bytes]) -> tuple[list[str], list[tuple[int, str]]]:
    each = {text: lines.one_by_one([text]) for text in set(texts)}
    alone = {text: (plain(one.batch), one.bad) for text, one in each.items()}
    rows = [values for text in texts for values in alone[text][0]]
    return rows, [(i, why) for i, text in enumerate(texts) for _, why in alone[text][1]]


@pytest.mark.parametrize("share", [100, 2, 1])
@pytest.mark.parametrize("kind", ODD)
def test_a_text_is_what_it_is_alone(kind: str, share: int) -> None:
    texts = [ODD[kind](text) if i % share == 0 else text for i, text in enumerate(ROWS)]
    expected = alone(JsonLines.exact(SCHEMA, KNOWN), texts)
    actual = JsonLines.exact(SCHEMA, KNOWN).rows(texts)
    assert (plain(actual.batch), actual.bad) == expected
    in_bad = {i for i, _ in actual.bad}
    assert actual.places.tolist() == [i for i in range(len(texts)) if i not in in_bad]


@pytest.mark.parametrize("share", [100, 1])
@pytest.mark.parametrize("kind", ODD)
def test_a_line_is_what_it_is_alone(kind: str, share: int) -> None:
    data = b"\n".join([ODD[kind](text) if i % share == 0 else text for i, text in enumerate(ROWS)])
    lines = data.removeprefix(b"\xef\xbb\xbf").splitlines()  # at the very beginning it is of the file, not of a line
    numbered = [(i, line) for i, line in enumerate(lines, 1) if line.strip()]
    rows, bad = alone(JsonLines(SCHEMA, KNOWN), [line for _, line in numbered])
    parsed = list(JsonLines(SCHEMA, KNOWN).read(io.BytesIO(data)))
    assert [each for part in parsed for each in plain(part.batch)] == rows
    assert [(b.line, b.problem) for part in parsed for b in part.bad] == [(numbered[i][0], why) for i, why in bad]


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("file", [False, True], ids=["texts", "file"])
def test_python_reads_the_odd_ones_only(kind: str, file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def counted(raw: bytes, *, lists: bool) -> list[Any]:
        seen.append(raw)
        return json_values.objects_of(raw, lists=lists)

    monkeypatch.setattr(json_lines, "objects_of", counted)
    texts = [ODD[kind](row(i)) if i % 100 == 7 else row(i) for i in range(8_000)]
    if file:
        data = b"\n".join(texts)
        list(JsonLines(SCHEMA, KNOWN).read(io.BytesIO(data)))
        odd = len(data.splitlines()) - len(texts) * 99 // 100
    else:
        JsonLines.exact(SCHEMA, KNOWN).rows(texts)
        odd = len(texts) // 100
    assert len(seen) <= odd + 200, "and so many at the end, for which a pattern is not made"


def test_rows_of_any_shape_are_what_they_are_alone() -> None:
    inner = pa.struct([("x", pa.int64()), ("user", pa.float64())])
    types = [pa.int8(), pa.int32(), pa.float32(), pa.bool_(), pa.list_(pa.int64()), inner, pa.list_(inner), pa.string()]
    types += [pa.map_(pa.string(), pa.int64()), pa.decimal128(10, 2), pa.binary()]
    values = ["1", "-0", "127", "128", "1.5", '"a"', "true", "null", "[1, null]", "[]", '{"x": 1, "user": 2.5}', '{"X": 1}']
    values += ['[{"x": 1}, null]', '{"x": 1, "x": 2}', '{"a": 1}', '"2.50"', '"aGk="', "1e39", "[[1]]", "{}"]
    chance = random.Random(5)
    for _ in range(12):
        schema = pa.schema([(name, chance.choice(types)) for name in chance.sample(["user", "x", "Nä", "k", 'q"'], 3)])
        likely = chance.sample(values, 3)
        texts = []
        for i in range(400):
            names = chance.sample([*schema.names, "K", "USER", "other"], 4)
            pairs = [(name, chance.choice(values if i % 50 == 0 else likely)) for name in names]
            texts.append(("{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in pairs) + "}").encode())
        for lines, again in (
            (JsonLines.exact(schema, tuple(schema.names)), JsonLines.exact(schema, tuple(schema.names))),
            (JsonLines(schema, tuple(schema.names)), JsonLines(schema, tuple(schema.names))),
        ):
            rows, bad = alone(again, texts)
            if lines.as_written:
                actual = lines.rows(texts)
                assert (plain(actual.batch), actual.bad) == (rows, bad)
            else:
                parsed = list(lines.read(io.BytesIO(b"\n".join(texts))))
                assert [each for part in parsed for each in plain(part.batch)] == rows
                assert [(b.line - 1, b.problem) for part in parsed for b in part.bad] == bad
