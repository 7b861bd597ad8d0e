"""Words that readers search for, by the page that answers them; pages that the search leaves out, or puts last.

The words, and the title of a page, are its tags: they rank it before pages that only have a word somewhere. The words are also
a line below the title that is not shown: the search finds only what is there.
"""

from __future__ import annotations

from typing import Final

from mkdocs.structure.pages import Page

WORDS: Final = {
    "debugging.md": (
        "no results",
        "no output",
        "nothing happens",
        "stuck",
        "hangs",
        "window does not fire",
        "empty",
        "join gives nothing",
    ),
    "late-events.md": ("late data", "late rows", "late", "dropped rows", "lost rows", "out of order", "side output"),
    "sql.md": ("top n", "top-n", "topn", "rank", "row_number", "sql"),
    "kafka.md": ("kafka", "tombstone", "consumer", "offsets", "schema registry"),
    "history.md": ("backfill", "bootstrap", "reprocessing", "history", "archive", "catch up"),
    "event-time.md": ("silence", "silent source", "idle", "watermark", "event time", "lag"),
    "rules.md": ("rules", "semantics", "basics"),
    "speed.md": ("performance", "speed", "slow", "benchmark", "tuning"),
    "deduplication.md": ("duplicates", "dedup", "distinct", "deduplication"),
    "savepoints.md": ("savepoint", "upgrade", "migration", "changed plan", "blue green"),
    "upgrading.md": ("change a plan", "new version", "rollout"),
    "state.md": ("checkpoint", "restart", "recovery", "state", "ttl"),
    "change-data-capture.md": ("debezium", "cdc", "change data capture"),
    "changelogs.md": ("changelog", "running total"),
    "results-that-change.md": ("results", "retractions", "updates", "upsert", "early results"),
    "joins.md": ("join", "enrichment", "lookup", "temporal join", "interval join", "broadcast"),
    "windows.md": ("window", "tumbling", "hopping", "sliding", "session window", "rolling"),
    "tables.md": ("delta", "iceberg", "postgres", "postgresql", "database", "jdbc"),
    "sources.md": ("read", "csv", "json", "parquet", "files", "source"),
    "process.md": ("timer", "process function", "flatmap", "custom logic"),
    "patterns.md": ("cep", "match_recognize", "sequence of events", "pattern"),
    "absence.md": ("dead man", "heartbeat", "silent device", "no data"),
    "outputs.md": ("write", "sink", "foreachbatch", "outputs", "exactly once", "idempotent", "crash"),
    "web-service.md": ("fastapi", "web service", "rest", "http", "serve"),
    "running.md": ("run", "stop", "schedule", "cron", "systemd"),
    "deployment.md": ("kubernetes", "docker", "cluster", "yarn", "deploy"),
    "metrics.md": ("prometheus", "grafana", "opentelemetry", "monitoring", "alert"),
    "testing.md": ("test", "unit test", "pytest", "mock"),
    "expressions.md": ("udf", "null", "case when"),
    "coming-from.md": ("flink", "bytewax", "kafka streams", "quix", "pathway"),
    "features.md": ("feature store", "training", "fraud"),
    "capture.md": ("replay", "reproduce", "incident"),
    "costs.md": ("memory", "limits", "out of memory"),
}
"""Words that a page answers, besides those of its titles."""
LEFT_OUT: Final = ("systems/", "development/changes.md")
"""Places that are there to look things up: the five texts, and notes of changes."""
LAST: Final = ("performance.md", "semantics.md", "development/", "architecture.md")
"""Pages with most of the words of the others."""
LESS: Final = ("changelogs.md", "change-data-capture.md")
"""Pages that are full of a word of other titles."""


def with_words(html: str, page: Page) -> str:
    """Return the content of a page with the words that it answers, below its title."""
    words = WORDS.get(page.file.src_uri)
    return html if words is None else html.replace("</h1>", f'</h1>\n<p class="searched">{", ".join(words)}</p>', 1)


def guide(page: Page, title: str) -> None:
    """Say to the search what a page with this title answers."""
    place = page.file.src_uri
    if place.startswith(LEFT_OUT):
        page.meta["search"] = {"exclude": True}
    elif place.startswith(LAST):
        page.meta["search"] = {"boost": 0.1}
    elif "/" not in place:
        page.meta["tags"] = [title, *WORDS.get(place, ())]
        page.meta["search"] = {"boost": 0.6 if place in LESS else 2}
