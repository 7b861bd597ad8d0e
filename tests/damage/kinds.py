"""The kinds of file a query leaves on disk, by place; a file of no kind here is one nobody has thought about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_MARKS: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]+-[0-9a-f]{12}(?![0-9a-f])|(?<![a-z])[0-9a-f]{32}|(?<![a-z])[0-9a-f]{8}(?=\.json)|[0-9]+"
)
_USERS: Final = ("in/N.parquet", "codes/", "out/part-", "late/part-")
"""What the user brought and gets; what it holds is not the library's to check."""

ALWAYS: Final = {
    "spool/N.parquet",
    "spool/_krishiv_spool",
    "spool/_krishiv_reader_N.json",
    "cp/metadata",
    "cp/offsets/N",
    "cp/commits/N",
    "cp/sources/N/N",
    "cp/sources/N/N.compact",
    "cp/krishiv/plan.json",
    "cp/krishiv/metrics.json",
    "cp/krishiv/streams.json",
    "cp/krishiv/lock",
    "cp/krishiv/chunks/N/N",
    "cp/state/N/N/N.changelog",
    "cp/state/N/N/N.zip",
    "cp/state/N/N/SSTs/N-N.sst",
    "cp/state/N/_metadata/vN/N",
    "cp/state/N/_stateSchema/default/N_N",
    "out/_krishiv_outputs/N.json",
    "late/_krishiv_outputs/N.json",
    "late/_krishiv_staging/N/N-N.parquet",
}
"""Those every plan of the trial leaves."""
OF_PLAN: Final = {
    "spark": {"cp/krishiv/sources", "out/_krishiv_staging/N/N-N.parquet"},
    "ledger": {
        "cp/krishiv/ledger/N.json",
        "cp/krishiv/controls/N.parquet",
        "cp/krishiv/ranges/N/N.parquet",
        "cp/krishiv/tables/N.arrow",
        "cp/krishiv/tables/_in_use.json",
        "out/_krishiv_staging/N/_SUCCESS",
        "out/_krishiv_staging/N/part-N-N-cN.json",
    },
}
"""Those the one or the other leaves besides."""
IN_PROCESS: Final = {
    "cp/krishiv/closed_keys.json",
    "cp/krishiv/closing/N.json",
    "cp/krishiv/state/N.state",
    "cp/krishiv/state/chunks/N",
    "spool/N.sends",
}
"""Those that a query in process leaves besides."""
ELSEWHERE: Final = {
    "cp/krishiv/lease.json",
    "cp/krishiv/begun.json",
    "cp/krishiv/begun.json.tmp",
    "cp/krishiv/moved.json",
    "cp/krishiv/moved.json.tmp",
    "cp/krishiv/moving.json",
    "cp/krishiv/moving.json.tmp",
    "spool/_N.tmp",
    "cp/krishiv/plan.json.tmp",
    "cp/krishiv/metrics.json.tmp",
    "cp/krishiv/streams.json.tmp",
    "cp/krishiv/ledger/N.json.tmp",
    "cp/krishiv/controls/N.parquet.tmp",
    "cp/krishiv/ranges/N/_next.tmp",
    "cp/krishiv/ranges/N/_spark_metadata/N.compact",
    "cp/krishiv/ranges/N/_spark_metadata/N.compact.tmp",
    "cp/krishiv/files/N/N-N.parquet",
    "cp/krishiv/files/N/N-N.parquet.tmp",
    "cp/krishiv/tables/N.arrow.tmp",
    "cp/krishiv/tables/_in_use.json.tmp",
    "cp/krishiv/handed/_home.json",
    "cp/krishiv/handed/_home.json.tmp",
    "cp/krishiv/handed/batch-N.parquet",
    "cp/krishiv/handed/batch-N.tmp",
    "cp/krishiv/handed/failed-N.parquet",
    "cp/krishiv/handed/failed-N.tmp",
}
"""Names of files of long ago (tests/test_listing.py) and of files that Spark reads, written again at each start
(tests/spark/test_planned_files.py), results for plain Spark (tests/spark/test_frames.py), a note on object stores
(tests/spark/test_lease.py), notes of a move to another engine (tests/in_process/test_move.py), and what a crash leaves of a
file before it has its name."""
CHECKSUM: Final = ".crc"
"""Next to each file of Spark's, and how names of Hadoop's checksum files end."""
KNOWN: Final = ALWAYS | OF_PLAN["spark"] | OF_PLAN["ledger"] | IN_PROCESS | ELSEWHERE


def kind_of(path: Path) -> str | None:
    """A file's path without what is its own; None for the user's."""
    kind = _MARKS.sub("N", str(path))
    return None if kind.startswith(_USERS) else kind


def is_known(kind: str) -> bool:
    """Whether it is a known kind, or the checksum of one."""
    folder, _, name = kind.rpartition("/")
    if name.startswith(".") and name.endswith(CHECKSUM):
        return f"{folder}/{name[1 : -len(CHECKSUM)]}" in KNOWN
    return kind in KNOWN
