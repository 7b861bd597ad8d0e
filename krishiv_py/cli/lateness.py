"""``krishiv lateness FILE``: which lag of the watermark loses how many rows of a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.json as json
import pyarrow.parquet as pq

from krishiv_py.display.lag import lateness_profile
from krishiv_py.errors import PlanError, SourceError

_READERS = {
    ".parquet": pq.read_table,
    ".csv": csv.read_csv,
    ".json": json.read_json,
    ".jsonl": json.read_json,
    ".arrow": feather.read_table,
    ".feather": feather.read_table,
}


def add_lateness(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("file", type=Path, help=f"a file of rows in order of arrival: {', '.join(_READERS)}")
    parser.add_argument("--time", required=True, help="the column of the event time: a timestamp, or integer milliseconds")
    parser.add_argument("--arrival", help="the column that says when a row arrived; without it the order of the file")
    parser.add_argument("--order", help="a column that says only in which order rows arrived, such as an offset")
    parser.add_argument("--by", help="a column, such as the source, for whose values the lateness is shown")
    parser.add_argument("--batch", help='rows that arrived within this time form a batch: "1 s"; needs --arrival')
    parser.add_argument("--window", help='size of tumbling windows, "1 min": shows what is held and how late results are')
    parser.add_argument("--lag", action="append", metavar="LAG", help='a lag to try, "5 s"; may be given several times')
    parser.add_argument(
        "--loses-at-most", type=float, metavar="SHARE", help="also print the smallest lag that loses at most this share: 0.001"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the tables as a page")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the curve as a picture (.svg, .png); needs matplotlib")


def show_lateness(given: argparse.Namespace) -> None:
    """Print the profile of a file, and draw it where a picture is wanted.

    Raises
    ------
    SourceError
        For a file that cannot be read.
    PlanError
        For a kind of file that is not known, and for arguments that :func:`krishiv_py.lateness_profile` refuses.
    """
    profile = lateness_profile(
        _rows(given.file),
        given.time,
        arrival=given.arrival,
        order=given.order,
        by=given.by,
        batch=given.batch,
        window=given.window,
        lags=given.lag,
    )
    print(profile)
    if given.loses_at_most is not None:
        print(f"\nsmallest lag: {profile.smallest_lag(given.loses_at_most)}")
    if given.html is not None:
        page = f"<!doctype html><meta charset='utf-8'><title>Lateness</title>{profile._repr_html_()}"
        _written(given.html, lambda file: file.write_text(page, encoding="utf-8"))
    if given.plot is not None:
        _written(given.plot, profile.plot().savefig)


def _written(file: Path, write: Callable[[Path], object]) -> None:
    try:
        write(file)
    except (OSError, ValueError) as problem:
        got = f"{file}: {str(problem).splitlines()[0]}"
        raise SourceError(
            "the file cannot be written", got=got, hint="pass a file in a folder that can be written"
        ) from problem
    print(f"\nwritten: {file}")


def _rows(file: Path) -> pa.Table:
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        got, known = file.suffix or "no suffix", ", ".join(_READERS)
        raise PlanError("not a known kind of file", got=got, hint=f"pass a file that ends in {known}")
    try:
        table: pa.Table = reader(file)
    except (OSError, pa.ArrowException) as problem:
        raise SourceError(
            "the file cannot be read", got=f"{file}: {str(problem).splitlines()[0]}", hint="pass another file"
        ) from problem
    return table
