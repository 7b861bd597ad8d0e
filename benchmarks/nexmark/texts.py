"""Columns of random text, made as whole Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
A, Z = ord("a"), ord("z")


def letters(rng: np.random.Generator, lengths: Ints, gap: str = "") -> pa.Array:
    """Texts of so many random letters each; with `gap`, one letter of 13 is that character."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    text = rng.integers(A, Z + 1, int(offsets[-1]), dtype=np.uint8)
    if gap:
        text[rng.random(len(text)) < 1 / 13] = ord(gap)
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(text))


def texts(rng: np.random.Generator, rows: int, most: int, gap: str = " ") -> pa.Array:
    """Texts of three letters and more, fewer than `most`, with gaps in between but not at the ends."""
    result = letters(rng, rng.integers(3, most, rows), gap)
    return pc.utf8_trim(result, gap)


def filling(rng: np.random.Generator, rows: int, spare: int) -> pa.Array:
    """The column ``extra``: letters that bring a row to about its size, `spare` bytes more or a fifth less."""
    apart = round(spare * 0.2)
    return letters(rng, spare - apart + rng.integers(0, 2 * apart, rows))


def chosen(rng: np.random.Generator, words: Sequence[str], rows: int) -> pa.Array:
    """One of `words` a row, each as likely."""
    return pa.array(words).take(pa.array(rng.integers(0, len(words), rows)))


def digits(rng: np.random.Generator, rows: int) -> pa.Array:
    """Numbers of a credit card: four groups of four digits."""
    groups = [pa.array(np.char.zfill(rng.integers(0, 10_000, rows).astype("U4"), 4)) for _ in range(4)]
    return pc.binary_join_element_wise(*groups, " ")
