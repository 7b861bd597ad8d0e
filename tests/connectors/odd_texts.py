"""One odd thing in a row of JSON, of each kind, for tests and measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

SCHEMA: Final = pa.schema(
    [("user", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("at", pa.timestamp("us", "UTC")), ("d", pa.date32())]
)


def row(i: int) -> bytes:
    """Return a row without anything odd."""
    return (
        f'{{"user": "u{i % 97}", "n": {i}, "x": {i * 0.25}, "at": "2024-05-01T10:{i // 60 % 60:02d}:{i % 60:02d}.5Z",'
        f' "d": "2024-05-{i % 28 + 1:02d}"}}'
    ).encode()


def _swap(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda text: text.replace(old, new, 1)


def _every(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda text: text.replace(old, new)


def _always(text: bytes) -> Callable[[bytes], bytes]:
    return lambda _: text


ODD: Final[dict[str, Callable[[bytes], bytes]]] = {
    "empty": _always(b""),
    "blank": _always(b"  "),
    "cut": lambda text: text[:-4],
    "junk before": lambda text: b"{" + text,
    "wrong comma": _swap(b",", b";"),
    "comma at the end": _swap(b"}", b",}"),
    "several lines": _every(b", ", b",\n  "),
    "lines of Windows": _every(b", ", b",\r\n  "),
    "line end": lambda text: text + b"\n",
    "blanks around": lambda text: b" \t" + text + b" ",
    "number as text": _swap(b'"user": "u', b'"user": 5, "z": "u'),
    "text as number": _swap(b'"n": ', b'"n": "5", "z": '),
    "fraction": _swap(b'"n": ', b'"n": 1.5, "z": '),
    "huge number": _swap(b'"n": ', b'"n": 99999999999999999999, "z": '),
    "nineteen digits": _swap(b'"n": ', b'"n": 1712345678901234567, "z": '),
    "huge float": _swap(b'"x": ', b'"x": 1e400, "z": '),
    "NaN": _swap(b'"x": ', b'"x": NaN, "z": '),
    "NaN as text": _swap(b'"x": ', b'"x": "NaN", "z": '),
    "boolean": _swap(b'"n": ', b'"n": true, "z": '),
    "name twice": _swap(b'"n": ', b'"n": 1, "n": '),
    "nulls": _always(b'{"user": null, "n": null, "x": null, "at": null, "d": null}'),
    "other columns": _always(b'{"other": 1}'),
    "no object": _always(b"5"),
    "null": _always(b"null"),
    "list": lambda text: b"[" + text + b"]",
    "two": lambda text: text + text,
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "no zone": _swap(b'Z"', b'"'),
    "nanoseconds": _swap(b'.5Z"', b'.512345678Z"'),
    "blank for T": _swap(b"T10", b" 10"),
    "slashes": _swap(b"2024-05-01T", b"2024/05/01 "),
    "30 February": _swap(b"2024-05-01T", b"2024-02-30T"),
    "month 13": _swap(b'"d": "2024-05', b'"d": "2024-13'),
    "29 February": _swap(b'"d": "2024-05-', b'"d": "2024-02-29", "z": "'),
    "far year": _swap(b"2024-05-01T", b"2500-05-01T"),
    "time as number": _swap(b'"at": ', b'"at": 5, "z": '),
    "escaped": _swap(b'"user": "u', b'"user": "\\u00e4\\n\\"'),
    "escaped name": _swap(b'"user"', b'"\\u0075ser"'),
    "half a pair": _swap(b'"user": "u', b'"user": "\\ud800'),
    "not UTF-8": _swap(b'"user": "u', b'"user": "\xff'),
    "long": _swap(b'"user": "u', b'"user": "' + b"x" * 500),
    "unknown field": _swap(b"{", b'{"q": [1, {"a": "x"}], '),
    "deep": _swap(b"{", b'{"q": ' + b"[" * 50 + b"]" * 50 + b", "),
    "deeper than the stack": _swap(b"{", b'{"q": ' + b"[" * 5_000 + b"]" * 5_000 + b", "),
    "object as text": _swap(b'"user": ', b'"user": {"a": [1.0]}, "z": '),
    "other case": _swap(b'"user"', b'"User"'),
}
