"""JSON values that begin with the number of a JSON Schema in a registry."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from krishiv_py.connectors.kafka.formats.decoding import NO_VALUE, Decoded, decode_json
from krishiv_py.connectors.kafka.formats.registry import FRAME, number_of, registered
from krishiv_py.connectors.kafka.settings import Connection


def decode_registered_json(
    schema: pa.Schema, known: tuple[str, ...], registry: Connection, values: Sequence[bytes | None]
) -> Decoded:
    """Return values as :func:`decode_json` does, which begin with the number of a schema that the registry has.

    The columns say what a value may be; it is not checked against the schema, so what that refers to is not looked up.
    """
    bad: dict[int, str] = {}
    numbers: dict[int, str] = {}
    plain: list[bytes | None] = []
    for i, value in enumerate(values):
        try:
            if value is None:
                raise ValueError(NO_VALUE)
            number = number_of(value)
            if number not in numbers:
                numbers[number] = _problem(registry, number)
            if numbers[number]:
                raise ValueError(numbers[number])
            plain.append(value[FRAME.size :])
        except ValueError as problem:
            bad[i] = str(problem)
    places = [i for i in range(len(values)) if i not in bad]
    decoded = decode_json(schema, known, plain)
    bad.update((places[i], why) for i, why in decoded.bad)
    return Decoded(decoded.batch, tuple(sorted(bad.items())))


def _problem(registry: Connection, number: int) -> str:
    try:
        registered(registry, number, "JSON")
    except ValueError as problem:
        return str(problem)
    return ""
