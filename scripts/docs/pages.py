"""What the site adds to the pages: those at the top of the repository, titles of links, places of numbered rules."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.docs import docstrings, messages, searching
from scripts.docs.drawing import STYLE

_FILE_LINK = re.compile(r"\[(?:docs/)?([\w-]+)\.md\]\(((?:[\w./-]*/)?\1\.md(?:#[\w-]+)?)\)")
_EXAMPLE_LINK = re.compile(r"\[(examples/[\w./-]+)\]\((?:\.\./)+\1\)")
_CELL = re.compile(r"<t[dh]\b[^>]*>.*?</t[dh]>", re.DOTALL)
_CODE = re.compile(r"<code>[^<]*</code>")
_JOINT = re.compile(r"(?<=[\w)][_.(/,])(?=[\w.&])")
_DRAWN = re.compile(r'<img alt="([^"]*)" src="[^"]*img/drawn/([\w-]+)\.svg"\s*/?>')
_BASES = re.compile(r'<p class="doc doc-class-bases">.*?</p>', re.DOTALL)
_BASE = re.compile(r"<code>.*?</code>", re.DOTALL)
_MESSAGES = re.compile(r"<!-- messages of (\w+) -->")
_TAG = re.compile(r"(<[^>]+>)")
_NO_TEXT = re.compile(r"<(/?)(?:a|code|h[1-6]|pre|script|strong|style|svg)\b")
_RULE = re.compile(r"§(\d+(?:\.\d+)?)")
_THOUSANDS = re.compile(r"(?<=\d) (?=\d{3}\b)")
_RULES = re.compile(r"^\*\*(?=((?:§\d+\.\d+(?:, )?)+))", re.MULTILINE)
PAGES = {"CHANGELOG.md": "development/changes.md", "CONTRIBUTING.md": "development/contributing.md"}


def _moved(link: str) -> str:
    """A link of a file at the top of the repository, as seen from its place in the site."""
    target, mark, anchor = link.partition("#")
    if target in PAGES:
        target = PAGES[target].rpartition("/")[2]
    elif target == "README.md":
        target = "../index.md"
    elif target.startswith("docs/"):
        target = "../" + target.removeprefix("docs/")
    return target + mark + anchor


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    root = Path(config.config_file_path).parent
    for name, place in PAGES.items():
        text = (root / name).read_text(encoding="utf-8")
        moved = re.sub(r"\]\(([^)\s:]+)\)", lambda found: f"]({_moved(found[1])})", text)
        files.append(File.generated(config, place, content=moved))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Call links by the title of a page, as the repository calls them by its file; name examples, which are files of the
    repository alone; let rules such as §2.3 be linked to, and the search know what the page answers.
    """
    searching.guide(page, _head(markdown))
    docs = Path(config.docs_dir)
    named = _EXAMPLE_LINK.sub(r"`\1`", markdown)
    titled = _FILE_LINK.sub(lambda found: f"[{_title(docs / f'{found[1]}.md') or found[1]}]({found[2]})", named)
    if page.file.src_uri == "errors.md":
        return _MESSAGES.sub(lambda marker: messages.table(marker[1]), titled)
    if page.file.src_uri != "semantics.md":
        return titled
    return _RULES.sub(lambda found: "".join(map(_place, re.findall(r"[\d.]+", found[1]))) + "**", titled)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put drawn pictures into the page itself, where they take its colours; link rules; say where lines may break."""
    folder = Path(config.docs_dir) / "img" / "drawn"
    drawn = _DRAWN.sub(lambda found: _inline((folder / f"{found[2]}.svg").read_text(encoding="utf-8"), found[1]), html)
    drawn = searching.with_words(drawn, page)
    semantics = files.src_uris["semantics.md"].url_relative_to(page.file)
    return _CELL.sub(lambda cell: _CODE.sub(lambda code: _JOINT.sub("<wbr>", code[0]), cell[0]), _texts(drawn, semantics))


def _texts(html: str, semantics: str) -> str:
    """Link rules such as §2.3 in running text, and keep the digits of a number in one line."""
    places, parts, within = docstrings.rule_places(), _TAG.split(html), 0
    for n, part in enumerate(parts):
        tag = _NO_TEXT.match(part)
        if tag:
            within += -1 if tag[1] else 1
        elif not within and part[:1] != "<":
            linked = _RULE.sub(
                lambda rule: f'<a href="{semantics}#{places[rule[1]]}">{rule[0]}</a>' if rule[1] in places else rule[0], part
            )
            parts[n] = _THOUSANDS.sub("&nbsp;", linked)
    return "".join(parts)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name those bases of a class that readers can look up; the others are how the library is built."""
    return _BASES.sub(lambda line: _public(line[0], _BASE.findall(line[0])), output)


def _public(paragraph: str, bases: list[str]) -> str:
    kept = [base for base in bases if 'title="krishiv_py.' not in base]
    return f'<p class="doc doc-class-bases">Bases: {", ".join(kept)}</p>' if kept else "" if bases else paragraph


def _inline(svg: str, words: str) -> str:
    """An SVG without its own colours of text and lines, with its description; animations stay."""
    return svg.replace(STYLE, "").replace("<style />", "").replace("<svg ", f'<svg role="img" aria-label="{words}" ', 1)


def _title(path: Path) -> str | None:
    return _head(path.read_text(encoding="utf-8")) if path.exists() else None


def _head(markdown: str) -> str:
    return markdown.partition("\n")[0].removeprefix("# ")


def _place(rule: str) -> str:
    return f'<a id="rule-{rule.replace(".", "-")}"></a>'
