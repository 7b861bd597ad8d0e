"""Checkpoints whose names hold blanks and the like, for the parts of Spark that look for them under other names."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from krishiv_py.errors import PlanError
from krishiv_py.runtime.storage.folders import new_folder
from krishiv_py.storage.files import is_local_path, store_at

_PLAIN: Final = re.compile(r"[\w/.:=-]+", re.ASCII)


@contextmanager
def plain_name(checkpoint: str) -> Iterator[str]:
    """A path under which Spark's readers of state find a checkpoint: for a local one with an odd name, a link to it.

    Raises
    ------
    PlanError
        For one with an odd name elsewhere, where there are no links.
    """
    if _PLAIN.fullmatch(checkpoint):
        yield checkpoint
        return
    if not is_local_path(checkpoint):
        raise PlanError(
            "the state of a checkpoint of this name cannot be read",
            got=checkpoint,
            then="Spark looks for it under another name; queries run from it all the same",
            hint="give checkpoints in HDFS and in buckets names of letters, digits and . = - _",
        )
    folder = new_folder("link")
    try:
        link = f"{folder}/checkpoint"
        os.symlink(store_at(checkpoint)[1], link)
        yield link
    finally:
        shutil.rmtree(folder, ignore_errors=True)
