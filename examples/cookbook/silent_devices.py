"""Devices that have been silent for five minutes, again every ten, and when they are back."""

from krishiv_py import MemorySink, Session

MINUTE = 60_000
BEATS = [("a", 0), ("b", 0), ("b", 4), ("b", 8), ("b", 12), ("b", 16), ("a", 17), ("b", 20)]

with Session.in_process() as session:
    beats, sender = session.memory_stream("device string, at bigint")
    silent = beats.watermark("at", "1 minute").key_by("device").absent("5 minutes", repeat="10 minutes")
    query = silent.start(MemorySink())
    for device, minute in BEATS:
        sender.send([{"device": device, "at": minute * MINUTE}])
    query.process_all_available()
    rows = query.results().to_pylist()

print(*rows, sep="\n")
assert [(row["device"], row["at"] // MINUTE, row["state"]) for row in rows] == [
    ("a", 5, "absent"),
    ("a", 15, "absent"),
    ("a", 17, "recovered"),
]
