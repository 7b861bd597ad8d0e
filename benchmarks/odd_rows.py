"""CPU time of decoding with odd rows, as a ratio to rows without any: ``python -m benchmarks.odd_rows [kind ...]``.

Rounds of clean rows, of one odd row in a hundred and of odd rows alone take turns, and the least of each is compared, so a busy
machine hardly moves a ratio.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from krishiv_py.connectors.json_lines import JsonLines
from krishiv_py.connectors.kafka.formats.decoding import decode_json
from tests.connectors.odd_texts import ODD, SCHEMA, row

ROWS: Final = 20_000
ROUNDS: Final = 5
KNOWN: Final = tuple(SCHEMA.names)


def messages(texts: Sequence[bytes | None]) -> None:
    """Decode the values of Kafka records."""
    decode_json(SCHEMA, KNOWN, texts)


def lines(texts: Sequence[bytes | None]) -> None:
    """Read a file."""
    for _ in JsonLines(SCHEMA, KNOWN).read(io.BytesIO(b"\n".join(text or b"" for text in texts))):
        pass


def measure(decode: Callable[[Sequence[bytes | None]], None], kind: str) -> str:
    """Return the cost of one kind as text."""
    change: Callable[[bytes], bytes | None] = ODD.get(kind, lambda _: None)
    clean: list[bytes | None] = [row(i) for i in range(ROWS)]
    every = [change(row(i)) for i in range(ROWS)]
    some = [every[i] if i % 100 == 7 else text for i, text in enumerate(clean)]
    best = [float("inf")] * 3
    for _ in range(ROUNDS):
        for i, texts in enumerate((clean, some, every)):
            begin = time.process_time()
            decode(texts)
            best[i] = min(best[i], time.process_time() - begin)
    return f"clean {best[0] / ROWS * 1e6:5.2f} µs, 1 % odd {best[1] / best[0]:5.2f}, all odd {best[2] / best[0]:6.2f}"


def main(kinds: Sequence[str]) -> None:
    """Print a line for each kind and decoder."""
    for kind in kinds or ["tombstone", *ODD]:
        for decode in (messages, lines):
            print(f"{kind:22} {decode.__name__:9} {measure(decode, kind)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
