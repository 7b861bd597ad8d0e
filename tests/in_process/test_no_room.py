"""A disk that takes no more, for real: files of a child process may not grow beyond a limit, which is lifted afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import json, resource, sys
from krishiv_py import ParquetSink, Session, collect_list, count
from krishiv_py.errors import KrishivError

home, limit = sys.argv[1], int(sys.argv[2])
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
said, n, refused = [], 0, 0

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

def opened(session):
    stream, sender = session.memory_stream("user string, at bigint, word string", spool=home + "/sent")
    plan = stream.watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count(), collect_list("word"))
    return plan.start(ParquetSink(home + "/out"), checkpoint=home + "/checkpoint"), sender

with Session.in_process() as session:
    query, sender = opened(session)
    room(limit)
    for at in range(0, 3_000, 125):
        try:
            number = sender.send([{"user": f"u{n % 7}", "at": at, "word": f"{at}-{n}" * 20} for n in range(60)])
            n += 1
        except KrishivError as problem:
            said.append(f"{type(problem).__name__}: {problem}")
            room(hard)
            sender.send([{"user": f"u{n % 7}", "at": at, "word": f"{at}-{n}" * 20} for n in range(60)])
            room(limit)
            n += 1
        try:
            query.process_all_available()
        except KrishivError as problem:
            said.append(f"{type(problem).__name__}: {problem}")
            room(hard)
            query.stop()
            query, _ = opened(session)
            query.process_all_available()
            room(limit)
    room(hard)
    sender.close()
    query.process_all_available()
    query.stop()
import pyarrow.parquet as pq
from pathlib import Path
rows = [r for f in sorted(Path(home, "out").glob("part-*.parquet")) for r in pq.read_table(f).to_pylist()]
print(json.dumps({"said": said, "sent": n * 60, "counted": sum(r["count"] for r in rows), "windows": len(rows)}))
"""


@pytest.mark.parametrize("limit", [3_000])
def test_no_room_is_said_and_the_query_goes_on_when_there_is_room(tmp_path: Path, limit: int) -> None:
    ran = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), str(limit)], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2_000:]
    actual = json.loads(ran.stdout.splitlines()[-1])
    assert actual["counted"] == actual["sent"] == 1_440
    assert actual["windows"] == 21, "each window once"
    assert actual["said"], "the limit was met"
    for text in actual["said"]:
        assert text.startswith(("SpoolError: ", "CheckpointError: ", "OperatorError: ")) and "room" in text, text
