"""Every program of the cookbook runs and checks its own answer, and docs/cookbook.md shows each of them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import nbformat
import pyarrow.parquet as pq
import pytest
from nbclient import NotebookClient
from pyspark.sql import SparkSession

from examples.cookbook import migration
from krishiv_py import Session

ROOT = Path(__file__).parents[2]
COOKBOOK = ROOT / "examples" / "cookbook"
IN_PROCESS = [
    *("json_folder", "sessions_table", "top_pages", "enrich_and_join", "fraud_features", "orders_table", "stuck_source"),
    *("unpaid_orders", "silent_devices", "card_testing"),
]
ELSEWHERE = ["kafka_counts", "change_data_capture", "unit_test", "migration", "choose_the_lag"]
"""Run by a test of their own: the first two in tests/kafka and tests/changes, where there is a broker."""


def test_the_page_shows_every_program() -> None:
    page = (ROOT / "docs" / "cookbook.md").read_text(encoding="utf-8")
    names = {file.stem for file in COOKBOOK.iterdir() if file.suffix in (".py", ".ipynb")} - {"__init__"}
    assert names == {*IN_PROCESS, *ELSEWHERE}
    shown = set(re.findall(r'--8<-- "examples/cookbook/(\w+)\.py"', page))
    assert shown == names - {"choose_the_lag"}
    assert set(re.findall(r"\[examples/cookbook/(\w+)\.(?:py|ipynb)\]", page)) == names


@pytest.mark.parametrize("name", IN_PROCESS)
def test_it_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(COOKBOOK / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out


def test_the_json_lines_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## From JSON lines")[2]
    program = text.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name, moments in (("1", (1_000, 59_000, 75_000)), ("2", (80_000, 20_000, 140_000))):
        lines = "".join(f'{{"user": "ann", "at": {at}}}\n' for at in moments)
        (tmp_path / "in" / f"{name}.json").write_text(lines + "no object\n" * (name == "2"))
        exec(compile(program, "README.md", "exec"), {})
    assert [row["count"] for row in pq.read_table("out").sort_by("window_start").to_pylist()] == [2, 2]
    late = pq.read_table("late").to_pylist()
    assert sorted((row["reason"], row["at"], row["malformed_line"]) for row in late) == [
        ("late", 20_000, None),
        ("malformed", None, 4),
    ]


def test_the_unit_tests_pass() -> None:
    tests = {k: v for k, v in runpy.run_path(str(COOKBOOK / "unit_test.py")).items() if k.startswith("test_")}
    assert len(tests) == 3
    for test in tests.values():
        test()


def test_the_notebook_runs() -> None:
    notebook = nbformat.read(COOKBOOK / "choose_the_lag.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    assert "every reading is in one place" in str(notebook.cells[-1].outputs)


def test_the_migration_gives_the_same(session: Session, tmp_path: Path) -> None:
    spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    before = str(spark.conf.get("spark.sql.shuffle.partitions"))
    try:
        assert len(migration.compared(session, tmp_path)) == 2
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
