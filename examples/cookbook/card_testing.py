"""Small purchases with a card that test it, and then a big one, with no confirmation in between, within an hour."""

from krishiv_py import MemorySink, Session, col, count, last, step

MINUTE = 60_000
BUYS = [
    *[("a", "buy", 2, 0), ("b", "buy", 3, 1), ("a", "buy", 1, 2), ("b", "confirm", 0, 3), ("a", "look", 0, 4)],
    *[("b", "buy", 900, 5), ("a", "buy", 700, 6), ("c", "buy", 1, 7), ("c", "buy", 800, 68), ("d", "look", 0, 90)],
]

small = step("small", (col("kind") == "buy") & (col("amount") < 5))
big = step("big", (col("kind") == "buy") & (col("amount") > 500))
pattern = small.one_or_more().without(col("kind") == "confirm").followed_by(big)

with Session.in_process() as session:
    cards, sender = session.memory_stream("card string, kind string, amount bigint, at bigint")
    measures = [count("small").alias("tests"), last("big.amount").alias("amount")]
    tried = cards.watermark("at", "1 minute").key_by("card").match(pattern, within="1 hour", measures=measures)
    query = tried.start(MemorySink())
    sender.send([{"card": card, "kind": kind, "amount": amount, "at": at * MINUTE} for card, kind, amount, at in BUYS])
    query.process_all_available()
    rows = query.results().to_pylist()

print(*rows, sep="\n")
assert [(row["card"], row["match_end"] // MINUTE, row["tests"], row["amount"]) for row in rows] == [("a", 6, 2, 700)]
