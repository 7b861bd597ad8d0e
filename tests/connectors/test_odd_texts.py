"""Texts of JSON that are not as Arrow takes them: each is what it is alone, and no other is read slowly for it."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.connectors import json_lines, json_values
from krishiv_py.connectors.json_lines import JsonLines, JsonRows
from krishiv_py.connectors.json_values import LEVELS
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


@pytest.mark.one_in(5)
@pytest.mark.parametrize("share", [100, 2, 1])
@pytest.mark.parametrize("kind", ODD)
def test_a_text_is_what_it_is_alone(kind: str, share: int) -> None:
    texts = [ODD[kind](text) if i % share == 0 else text for i, text in enumerate(ROWS)]
    expected = alone(JsonLines.exact(SCHEMA, KNOWN), texts)
    actual = JsonLines.exact(SCHEMA, KNOWN).rows(texts)
    assert (plain(actual.batch), actual.bad) == expected
    in_bad = {i for i, _ in actual.bad}
    assert actual.places.tolist() == [i for i in range(len(texts)) if i not in in_bad]


@pytest.mark.one_in(5)
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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("file", [False, True], ids=["texts", "file"])
def test_python_reads_the_odd_ones_only(kind: str, file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def counted(lines: JsonLines, texts: Sequence[bytes]) -> JsonRows:
        seen.extend(texts)
        return one_by_one(lines, texts)

    one_by_one = JsonLines.one_by_one
    monkeypatch.setattr(JsonLines, "one_by_one", counted)
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


_NAMES = st.sampled_from(["user", "n", "x", "at", "d", "User", "other", "\\u0075ser", "\\u0078", 'a\\"n'])
_STRINGS = ["a", "", "NaN", "-Infinity", "5", "\\u0041", "\\ud800", "\\ud83d\\ude00", '\\"n\\": 1', "2024-05-01", "2000-02-29"]
_STRINGS += [
    "0999-12-31",
    "2024-02-30",
    "2024-05-01T10:00:00Z",
    "2024-05-01 10",
    "2024-05-01T10:00:00.1234567",
    "2024-05-01\\n",
]
_WRITTEN = [f'"{text}"' for text in _STRINGS] + ["null", "true", "false", "NaN", "Infinity", "-Infinity", "{}", "[]", "", "+1"]
_WRITTEN += ["0", "-0", "1.5", "1e5", "1e400", "-1e999", "1E-400", "9223372036854775807", "9223372036854775808", "9" * 30, "01"]
_WRITTEN += ['{"user": 1, "user": [1.0, null, "\\u00e4"]}', "[" * 30 + "]" * 30]
_PAIRS = st.tuples(_NAMES, st.sampled_from([":", " :", ": "]), st.sampled_from(_WRITTEN)).map(lambda p: f'"{p[0]}"{p[1]}{p[2]}')
_OBJECTS = st.lists(_PAIRS, max_size=6).map(lambda pairs: "{" + ",".join(pairs) + "}")
_AROUND = st.sampled_from(["", "", "", " ", "\n", "}", "{", ",", "x", "\ufeff", "[", "]"])
_TEXTS = st.tuples(_AROUND, _OBJECTS, _AROUND).map("".join).map(str.encode) | st.sampled_from(
    [b"", b"5", b'"a"', b"\xff", b"{\xff}"]
)


@given(st.lists(_TEXTS, min_size=1, max_size=12), st.booleans(), st.sampled_from([0, 250]), st.sampled_from([1, 3, 256]))
def test_texts_that_are_read_together_are_what_they_are_alone(
    texts: list[bytes], as_written: bool, few: int, objects: int
) -> None:
    lines = JsonLines.exact(SCHEMA, KNOWN) if as_written else JsonLines(SCHEMA, KNOWN)
    expected = alone(lines, texts)
    with patch.object(json_values, "_FEW", few), patch.object(json_lines, "_OBJECTS", objects):
        actual = lines.one_by_one(texts)
    assert (plain(actual.batch), [(i, why) for i, why in actual.bad]) == expected


@pytest.mark.parametrize("few", [0, 250])
@pytest.mark.parametrize("depth", [50, LEVELS - 1, LEVELS, 700, 5_000])
def test_a_text_that_is_deep_takes_no_other_with_it(depth: int, few: int) -> None:
    """It may be too deep to be read, or to be written again."""
    deep = b'{"user": ' + b"[" * depth + b"]" * depth + b"}"
    texts = [b'{"user": [1.0, {"a": null}]}', deep, b'{"user": "a", "n": 1}', deep, b'{"user": 5}']
    with patch.object(json_values, "_FEW", few):
        actual = JsonLines.exact(SCHEMA, KNOWN).one_by_one(texts)
    rows, bad = alone(JsonLines.exact(SCHEMA, KNOWN), texts)
    assert (plain(actual.batch), actual.bad) == (rows, bad)
    assert bad == ([] if depth < LEVELS else [(1, "nested too deeply"), (3, "nested too deeply")])
    assert actual.batch["user"].to_pylist()[:: len(rows) - 1] == ['[1.0,{"a":null}]', "5"]


@given(st.lists(st.sampled_from(["[", "{", "]", "}", '"', "\\", "x"]), max_size=30).map("".join), st.integers(0, 4))
def test_depth_is_that_of_brackets_outside_of_texts(text: str, limit: int) -> None:
    depth = deepest = 0
    within = escaped = False
    for character in text:
        if within:
            within = escaped or character != '"'
            escaped = not escaped and character == "\\"
        elif character == '"':
            within = True
        elif character in "[]{}":
            depth += 1 if character in "[{" else -1
            deepest = max(deepest, depth)
    with patch.object(json_values, "LEVELS", limit):
        assert json_values.is_too_deep(text.encode()) == (deepest > limit)


@pytest.mark.parametrize("around", [b'"a": "%s", ' % (b"x" * 5_000), b""])
@pytest.mark.parametrize("neighbour", [b"", b"5"])
def test_a_text_is_too_deep_whatever_is_next_to_it(around: bytes, neighbour: bytes) -> None:
    """Arrow alone would take more levels than Python, and one version of Python more than another."""
    for depth, good in ((LEVELS - 1, True), (LEVELS, False), (900, False)):
        deep = b'{"n": 1, ' + around + b'"q": ' + b"[" * depth + b"]" * depth + b"}"
        many = b'{"n": 2, "q": [' + b",".join([b"[1]"] * 2_000) + b"]}"
        rows = JsonLines.exact(SCHEMA, KNOWN).rows([deep, many, *([neighbour] if neighbour else [])])
        assert rows.batch["n"].to_pylist() == ([1, 2] if good else [2])
        assert rows.bad[:1] == ([] if good else [(0, "nested too deeply")]) or (good and rows.bad[0][0] == 2)


@given(st.lists(st.sampled_from(["a", "b", "A", "c"]), max_size=7), st.booleans())
def test_a_row_has_each_name_once(names: list[str], as_written: bool) -> None:
    """A name in the case of the column comes before one in another case."""
    schema = pa.schema([(name, pa.int64()) for name in ("a", "b")])
    lines = JsonLines.exact(schema, ("a", "b", "c")) if as_written else JsonLines(schema, ("a", "b", "c"))
    rows = lines.one_by_one([("{" + ",".join(f'"{name}": {i}' for i, name in enumerate(names)) + "}").encode()])
    spelt = "a" if as_written or "a" in names else "A"
    twice = [name for name, own in (("a", spelt), ("b", "b")) if names.count(own) > 1]
    if not {"a", "b", "c"} & {name if as_written else name.lower() for name in names}:
        has = ", ".join(dict.fromkeys(names)) or "nothing"
        assert rows.bad == [(0, f"none of the columns a, b, c; it has: {has}")]
    elif twice:
        assert rows.bad == [(0, f"column {twice[0]!r} appears twice")]
    else:
        at = {name: names.index(own) if own in names else None for name, own in (("a", spelt), ("b", "b"))}
        assert (rows.bad, rows.batch.to_pylist()) == ([], [at])


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", '"NaN"', '"sNaN"', "1e999999999", '"x"'])
def test_what_is_no_decimal_is_no_row(text: str) -> None:
    schema = pa.schema([("price", pa.decimal128(10, 2))])
    rows = JsonLines.exact(schema, ("price",)).rows([b'{"price": 1.5}', f'{{"price": {text}}}'.encode()])
    kind = "a text" if text.startswith('"') else "a number"
    assert rows.batch.num_rows == 1
    assert rows.bad == [(1, f"column 'price': {kind} is not a decimal(10, 2)")]
