"""CPU time of decoding with odd rows, as a ratio to rows without any: ``python -m benchmarks.odd_rows [decoder or kind ...]``.

Decoders are ``messages`` (JSON of Kafka), ``lines`` (a JSON file), ``csv``, ``avro``, ``sent`` (rows that are sent as Python
objects), ``times`` (texts that are cast to times) and ``fit`` (records of Avro that do not fit the columns). Rounds of clean
rows, of one odd row in a hundred and of odd rows alone take turns, and the least of each is compared, so a busy machine hardly
moves a ratio. A text of several lines is as many rows of a file, and texts that are much longer than clean ones are compared
with clean ones of their length.
"""

from __future__ import annotations

import gc
import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from krishiv_py.connectors.csv import CsvOptions
from krishiv_py.connectors.json_lines import JsonLines
from krishiv_py.connectors.kafka.formats.avro import decode_avro
from krishiv_py.connectors.kafka.formats.decoding import decode_json
from krishiv_py.connectors.values import column
from krishiv_py.functions.computing.text import times
from krishiv_py.runtime.reading import CsvReader, Rules
from tests.connectors.odd_records import (
    AVRO,
    AVRO_SCHEMA,
    AVRO_TEXT,
    CSV,
    FIT_SCHEMA,
    FIT_TEXT,
    SENT,
    SENT_TYPES,
    TIMES,
    avro_row,
    csv_row,
    fit_row,
    sent_row,
    time_text,
)
from tests.connectors.odd_records import FIT as MISFITS
from tests.connectors.odd_texts import ODD, SCHEMA, row

ROWS: Final = 10_000
ROUNDS: Final = 7
KNOWN: Final = tuple(SCHEMA.names)
Kinds = Mapping[str, Callable[[Any], Any]]


def messages(texts: Sequence[bytes | None]) -> None:
    """Decode the values of Kafka records."""
    decode_json(SCHEMA, KNOWN, texts)


def lines(texts: Sequence[bytes | None]) -> None:
    """Read a file of JSON."""
    for _ in JsonLines(SCHEMA, KNOWN).read(io.BytesIO(b"\n".join(text or b"" for text in texts))):
        pass


def csv(texts: Sequence[bytes]) -> None:
    """Read a file of CSV."""
    reader = CsvReader(SCHEMA, Rules(True, False, False), CsvOptions(), SCHEMA)
    for _ in reader.scanned(io.BytesIO(b"\n".join(texts)), "file:/f.csv"):
        pass


def avro(values: Sequence[bytes | None]) -> None:
    """Decode the values of Kafka records in Avro."""
    decode_avro(AVRO_SCHEMA, None, AVRO_TEXT, values)


def sent(rows: Sequence[Mapping[str, Any]]) -> None:
    """Take rows as Python objects."""
    for name, type_ in SENT_TYPES.items():
        column([one[name] for one in rows], type_)


def times_of(texts: Sequence[str]) -> None:
    """Cast texts to times."""
    times(pa.array(texts, pa.string()), pa.timestamp("us", "UTC"))


def fit(values: Sequence[bytes | None]) -> None:
    """Decode records of Avro, those that do not fit the columns set aside."""
    decode_avro(FIT_SCHEMA, None, FIT_TEXT, values)


DECODERS: Final[dict[str, tuple[Callable[[Any], None], Callable[[int], Any], Kinds]]] = {
    "messages": (messages, row, {"tombstone": lambda _: None} | ODD),
    "lines": (lines, row, ODD),
    "csv": (csv, csv_row, CSV),
    "avro": (avro, avro_row, AVRO),
    "sent": (sent, sent_row, SENT),
    "times": (times_of, time_text, TIMES),
    "fit": (fit, fit_row, MISFITS),
}


def measure(decoder: str, kind: str) -> str:
    """Return the cost of one kind as text."""
    decode, clean_row, kinds = DECODERS[decoder]
    clean = [clean_row(i) for i in range(ROWS)]
    every = [kinds[kind](clean_row(i)) if kind != "mix" else _mixed(kinds, i)(clean_row(i)) for i in range(ROWS)]
    if decoder in ("messages", "lines"):
        longer = max(map(len, filter(None, every)), default=0) - max(map(len, clean)) if kind != "mix" else 0
        if longer > len(clean[0]):
            clean = [text.replace(b"{", b'{"q": "%s", ' % (b"x" * longer), 1) for text in clean]
    some = [every[i] if i % 100 == 7 else one for i, one in enumerate(clean)]
    best = [float("inf")] * 3
    gc.disable()
    for _ in range(ROUNDS):
        for i, rows in enumerate((clean, some, every)):
            begin = time.process_time()
            decode(rows)
            best[i] = min(best[i], time.process_time() - begin)
        gc.collect()
    by_line = sum(max(text.count(b"\n"), 1) for text in every) / ROWS if decoder == "lines" else 1
    return f"clean {best[0] / ROWS * 1e6:5.2f} µs, 1 % odd {best[1] / best[0]:5.2f}, all odd {best[2] / best[0] / by_line:6.2f}"


def _mixed(kinds: Kinds, number: int) -> Callable[[Any], Any]:
    small = [change for kind, change in kinds.items() if kind not in ("deeper than the stack", "deep", "long")]
    return small[number // 100 % len(small)] if number % 100 == 7 else small[number % len(small)]


def main(words: Sequence[str]) -> None:
    """Print a line for each decoder and kind."""
    wanted = [word for word in words if word in DECODERS] or list(DECODERS)
    only = [word for word in words if word not in DECODERS]
    for decoder in wanted:
        kinds = list(DECODERS[decoder][2])
        for kind in [*kinds, "mix"]:
            if not only or kind in only:
                print(f"{kind:22} {decoder:9} {measure(decoder, kind)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
