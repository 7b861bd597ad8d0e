"""Notes with a right checksum that are not what the library writes: fields missing or of another type, and what JSON can be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from krishiv_py.storage.checksums import checksum, sealed

OTHERS: Final[tuple[Any, ...]] = (None, 7, -1, 1.5, 10**30, "text", [], {}, [3], {"a": 3}, True)
"""Values of other types, and numbers that no column holds."""
DEEP: Final = b"[" * 100_000 + b"]" * 100_000
HUGE: Final = b"9" * 10_000
_OF_KERNELS: Final = "meta", "others", "known"
"""What a kernel knows of its tables, which it alone reads: under a right checksum it is what it wrote."""
_OPTIONAL: Final = "rows", "bad", "reads", "wholes", "advanced"
"""What a note has where there is any, or has had from some version on; names of numbers are a stage, source or batch."""
_SEAL: Final = b"krishiv 1 "
_IN_JSON: Final = b'{"crc32": "'


def variants(note: Any) -> Iterator[tuple[str, Any]]:
    """A note without each of its fields, and with values of other types in them."""
    if isinstance(note, dict):
        for name, value in note.items():
            if name in _OF_KERNELS:
                continue
            if name not in _OPTIONAL and not name.isdigit():
                yield f"without {name}", {n: v for n, v in note.items() if n != name}
            for other in OTHERS:
                if type(other) is not type(value):
                    yield f"{name} is {other!r}", {**note, name: other}
            for what, changed in variants(value):
                yield f"{name}: {what}", {**note, name: changed}
    elif isinstance(note, list) and note:
        for place, value in enumerate(note[:6]):
            for other in OTHERS:
                if type(other) is not type(value):
                    yield f"{place} is {other!r}", [*note[:place], other, *note[place + 1 :]]
            for what, changed in variants(value):
                yield f"{place}: {what}", [*note[:place], changed, *note[place + 1 :]]
    for other in OTHERS:
        if type(other) is not type(note):
            yield repr(other), other


def shapes(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Other contents of a file that holds JSON, each with a right checksum where the file has one; none of other files."""
    write: Callable[[bytes], bytes] = sealed
    if data.startswith(_SEAL):
        body = data.partition(b"\n")[2]
        head, line, rest = body.partition(b"\n")
        try:
            note = json.loads(body)
        except ValueError:
            try:  # a piece of state, with a line of JSON before the values
                note, write = json.loads(head), lambda changed: sealed(changed + line + rest)
            except ValueError:
                return
    elif data.startswith(_IN_JSON):
        note, write = json.loads(data)["note"], numbered
    elif data.startswith(b"v1\n"):
        yield from _of_log(data.split(b"\n"))
        return
    else:
        return
    for what, changed in variants(note):
        yield what, write(json.dumps(changed).encode())
    for what, text in {"deep": DEEP, "a huge number": HUGE, "no JSON": b"{", "no text": b'"\xff\xfe"', "nothing": b""}.items():
        yield what, write(text)


def numbered(body: bytes) -> bytes:
    return b'{"crc32": "%08x", "note":\n%s\n}\n' % (checksum(body), body)


def _of_log(lines: list[bytes]) -> Iterator[tuple[str, bytes]]:
    """An entry of Spark's log, whose lines are notes."""
    for place, line in enumerate(lines[1:], 1):
        if line.startswith(b"{"):
            for what, changed in variants(json.loads(line)):
                yield f"line {place}, {what}", b"\n".join([*lines[:place], _compact(changed), *lines[place + 1 :]])
            for text in (DEEP, HUGE, b'"\xff"'):
                yield f"line {place} is {text[:5]!r}", b"\n".join([*lines[:place], text, *lines[place + 1 :]])


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def put(path: Path, data: bytes | None) -> None:
    """Write other bytes in the place of a file, or a folder."""
    path.unlink()
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
