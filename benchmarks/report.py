"""Tables and pictures of the kept runs: ``python -m benchmarks.report`` writes them.

``docs/performance.md`` gets the pictures and what was aimed at and found, between two marks; the rest of the page is left as
it is. ``benchmarks/results/tables.md`` gets every side of every mode. With ``--docs FOLDER`` all goes into that folder.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks import plots
from benchmarks.aims import table
from benchmarks.jobs import JOBS
from benchmarks.record import RESULTS, Record, read_all
from benchmarks.sides import SIDES
from benchmarks.summary import Summary, data_key, interleaved, processor, summarize

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN, END = "<!-- figures: begin (python -m benchmarks.report) -->", "<!-- figures: end -->"
OURS = ("krishiv", "krishiv_window")
TITLES = {
    "backlog": "Backlog: as fast as it goes",
    "whole": "Whole: a process from nothing to its end, starting included",
    "steady": "Steady: batches of a second",
    "micro": "Micro: batches of one row",
    "open_state": "Open state: the same batch, ever more open keys",
    "bounded": "Bounded: `collect()` in a warm session",
}


def ratio(own: Summary, other: Summary) -> str:
    """How many times the CPU of `own` the other takes for the same work."""
    return f"{other.cpu / own.cpu:.2f} ×" if own.clear and other.clear else "below noise"


def cost(value: float, unit: str) -> str:
    """Events per CPU second, or CPU seconds per batch or second."""
    if value <= 0:
        return "below noise"
    return f"{1 / value:,.0f}" if unit == "event" else f"{value:.3f}"


def spread(s: Summary, unit: str) -> tuple[str, str]:
    """Lowest and highest; events per second are fewest where the cost is highest."""
    low, high = (s.high, s.low) if unit == "event" else (s.low, s.high)
    return cost(low, unit), cost(high, unit)


def rounds(own: Summary | None, s: Summary) -> str:
    """How many count, failed, and had no turn of ours near."""
    near = s.rounds if own is None or own is s else interleaved(own, s)
    apart = f", {near} interleaved" if near < s.rounds else ""
    return f"{s.rounds}{apart}" + (f" ({s.failed} failed)" if s.failed else "")


def section(mode: str, result: Sequence[Summary]) -> list[str]:
    """Heading, note and table of one mode."""
    unit, base = result[0].unit, "in_process" if mode == "whole" else OURS[0]
    what = "events per CPU s" if unit == "event" else f"CPU s per {unit}"
    extras = sorted({name for s in result for name in s.extra})
    head = ["job", "data", "processor", "side", what, "spread", f"wall s per {'million events' if unit == 'event' else unit}"]
    head += ["whole run CPU s", "of it start-up", "peak MB", "rounds", f"CPU against {SIDES[base].title}", *extras]
    lines = ["", f"### {TITLES[mode]}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for s in result:
        own = next((o for o in result if (o.job, o.data, o.processor, o.side) == (s.job, s.data, s.processor, base)), None)
        wall = s.wall * (1e6 if unit == "event" else 1)
        cells = [s.job, s.data, s.processor, s.title, cost(s.cpu, unit), " – ".join(spread(s, unit)), f"{wall:.2f}"]
        cells += [f"{s.whole_s:.1f}", f"{s.start_s:.1f}", f"{s.memory_mb:,.0f}"]
        cells += [rounds(own, s)]
        cells += [ratio(own, s) if own else "", *(f"{s.extra[name]:.3f}" if name in s.extra else "" for name in extras)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def bounded_section(records: Sequence[Record]) -> list[str]:
    """Times of ``collect()`` in a warm session next to those of whole processes."""
    groups: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for kept in records:
        if kept.mode == "bounded" and kept.ok:
            groups[kept.job, kept.data, processor(kept), kept.side].append(kept.seconds)
    lines = [
        "",
        f"### {TITLES['bounded']}",
        "",
        "| job | data | processor | side | seconds | spread | rounds | times DuckDB |",
        "|" + "---|" * 8,
    ]
    order = sorted(groups, key=lambda group: (group[0], data_key(group[1]), *group[2:]))
    for job, data, where, side in order:
        seconds = groups[job, data, where, side]
        limit = groups.get((job, data, where, "duckdb"))
        cells = [
            job,
            data,
            where,
            SIDES[side].title,
            f"{median(seconds):.2f}",
            f"{min(seconds):.2f} – {max(seconds):.2f}",
            str(len(seconds)),
        ]
        lines.append("| " + " | ".join([*cells, f"{median(seconds) / median(limit):.1f} ×" if limit else ""]) + " |")
    return [*lines, "", "krishiv_py: `collect()` in a session warmed by the same call; the others: the whole process."]


NOTHING = "No run is kept yet."


def figures(records: Sequence[Record], images: Path) -> str:
    """The generated text of the page that users read; the pictures go to `images`."""
    result = summarize(records)
    lines = plots.draw(result, images) + table(result)
    return "\n".join([*jobs_note(result), *lines]) if result else NOTHING


def jobs_note(result: Sequence[Summary]) -> list[str]:
    """What the jobs are."""
    return ["Jobs: " + "; ".join(f"{name} {JOBS[name].title}" for name in sorted({s.job for s in result})) + "."]


def tables(records: Sequence[Record]) -> str:
    """Every side of every mode, with the machine and the versions."""
    result = summarize(records)
    if not result:
        return NOTHING
    last = records[-1]
    versions: dict[str, set[str]] = defaultdict(set)
    for name, version in {pair for kept in records for pair in kept.versions.items()}:
        versions[name].add(version)
    given = ", ".join(f"{name} {' or '.join(sorted(numbers))}" for name, numbers in sorted(versions.items()))
    machine, processors = last.machine, " or ".join(sorted({processor(kept) for kept in records}))
    lines = [
        f"Machine: {processors}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}. "
        f"Versions: {given}. "
        f"Runs of {records[0].started[:10]} to {last.started[:10]}, the last at commit {last.commit}, seed {last.seed}; "
        f"load before a run {min(r.machine['load_before'] for r in records):.1f} to "
        f"{max(r.machine['load_before'] for r in records):.1f}.",
        "",
        "CPU is that of the whole process tree, marginal: the whole run less a short one. Medians of rounds, interleaved where "
        "not said otherwise; spread is lowest to highest. "
        "Memory is the peak of the tree, shared pages counted once. The ratio is how many times the CPU of krishiv_py a side "
        "took for the same work: above 1 we win, below 1 we lose.",
    ]
    for mode in TITLES:
        rows = [s for s in result if s.mode == mode]
        if rows and mode == "bounded":
            lines += bounded_section(records)
        elif rows:
            lines += section(mode, rows)
    lines += ["", *jobs_note(result)]
    return "\n".join(lines)


def place(text: str, path: Path) -> None:
    """Put the generated text between the marks of a page; a page without marks gets them at its end."""
    page = path.read_text() if path.exists() else "# Performance\n"
    if BEGIN not in page:
        page = f"{page.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, help="folder of performance.md and its picture (docs)")
    parser.add_argument(
        "--tables", type=Path, help="file of the tables (benchmarks/results/tables.md, or in the folder of --docs)"
    )
    given = parser.parse_args(argv)
    docs: Path = given.docs or DOCS
    settings: Path = given.tables or (RESULTS if given.docs is None else docs) / "tables.md"
    docs.mkdir(parents=True, exist_ok=True)
    records = read_all(given.results)
    place(figures(records, docs / "img"), docs / "performance.md")
    settings.write_text(f"# Results of the benchmarks\n\nWritten by `python -m benchmarks report`.\n\n{tables(records)}\n")
    print(f"written: {docs / 'performance.md'}, {settings}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
