"""The three most read pages of every hour: a window that counts, and a second one over its results."""

from krishiv_py import MemorySink, Session, count

HOUR = 3_600_000
VIEWS = {"/": 5, "/tea": 4, "/ink": 2, "/pen": 1}

with Session.in_process() as session:
    views, sender = session.memory_stream("page string, at bigint")
    per_page = views.watermark("at", "1 minute").key_by("page").tumbling_window("1 hour").agg(count().alias("views"))
    top = (
        # No key: the second window sees all pages of an hour. It needs no lag, since no result of the first one is late.
        per_page.tumbling_window("1 hour")
        # Rows with a rank, at most three an hour; .agg(top_k(3, "views", "page")) gives one list instead.
        .top_rows(3, "views", "page")
    )
    query = top.start(MemorySink())
    sender.send([{"page": page, "at": 1_000 * n} for page, times in VIEWS.items() for n in range(times)])
    sender.send([{"page": "/pen", "at": HOUR}])
    sender.close()  # the end of input fires the hour that is still open
    query.process_all_available()
    rows = query.results().to_pylist()

print(*rows, sep="\n")
assert [(row["window_start"], row["page"], row["views"]) for row in rows] == [
    (0, "/", 5),
    (0, "/tea", 4),
    (0, "/ink", 2),
    (HOUR, "/pen", 1),
]
