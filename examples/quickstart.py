"""The README's quickstart: sensor readings out of order, one-minute windows, late rows in an output of their own."""

from krishiv_py import MemorySink, Session, SideOutputLateEventHandler, avg, count

with Session.embedded() as session:
    readings, sender = session.memory_stream("sensor string, at bigint, celsius double")
    per_minute = (
        readings.watermark("at", "10 seconds")
        .key_by("sensor")
        .tumbling_window("1 minute")
        .agg(count(), avg("celsius").alias("mean"))
        .with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
    )
    query = per_minute.start(MemorySink())
    sender.send([{"sensor": "a", "at": 1_000, "celsius": 20.0}, {"sensor": "a", "at": 59_000, "celsius": 22.0}])
    sender.send([{"sensor": "a", "at": 75_000, "celsius": 23.0}, {"sensor": "b", "at": 50_000, "celsius": 18.0}])
    sender.send([{"sensor": "b", "at": 20_000, "celsius": 99.0}])  # the watermark is at 65 s by now
    sender.close()  # end of input: every open window fires
    query.process_all_available()
    results, late = query.results().to_pylist(), query.late_rows().to_pylist()
    query.stop()

expected = [("a", 0, 60_000, 2, 21.0), ("a", 60_000, 120_000, 1, 23.0), ("b", 0, 60_000, 1, 18.0)]
assert sorted(tuple(row.values()) for row in results) == expected, results
assert [(row["sensor"], row["at"], row["reason"]) for row in late] == [("b", 20_000, "late")], late
for row in results:
    print(row)
print("late:", *late)
print("quickstart: the answer is right")
