"""What made a Spark job fail, as an error of the library's own where it is one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from krishiv_py import errors
from krishiv_py.errors import KrishivError, SourceError, message
from krishiv_py.spark.malformed import gone, shown_path

_OWN = re.compile(r"krishiv_py\.errors\.(\w+): ([^\n]+)")
_GONE = re.compile(r"FAILED_READ_FILE\.FILE_NOT_EXIST\] .*?reading file (\S.*?)\. File does not exist")
_HEADER = re.compile(r"CSV header does not conform to the schema\.(.*?)CSV file: ([^\n]+)", re.S)


def own_error(problem: BaseException) -> KrishivError | None:
    """The error of ours in a Spark stack trace, or the one that says the same; None for others."""
    text = str(problem)
    for kind, said in reversed(_OWN.findall(text)):
        found = getattr(errors, kind, None)
        if isinstance(found, type) and issubclass(found, KrishivError):
            return found(said)
    vanished = _GONE.search(text)
    if vanished:
        return gone(shown_path(unquote(vanished[1])))
    header = _HEADER.search(text)
    if header:
        return SourceError(message(f"{shown_path(unquote(header[2]))}: the header names other columns than the schema",
                                   " ".join(header[1].split()), "values would come under wrong names",
                                   "pass a schema with the columns of the header, in its order"))  # fmt: skip
    return None


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise what tasks raised as it was raised."""
    try:
        yield
    except (PySparkException, Py4JError) as problem:
        found = own_error(problem)
        if found is None:
            raise
        raise found from problem
