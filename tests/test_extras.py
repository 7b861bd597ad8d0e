"""A missing optional package is named with its extra, not by the import that failed."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXTRA = re.compile(
    r'(?:(?:missing|require)_extra\((?:"[^"]*"|\w+), (?:\([^)]*\), |\w+, )?|from_extra\(f?"[^"]*", "[^"]*", )"(\w+)"'
)

PROGRAM = """
    import sys
    sys.modules["grpc_status"] = None
    from krishiv_py import Session
    Session.connect("sc://nowhere:1")
"""


def test_connect_without_its_extra_names_it() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=120)
    last = done.stderr.splitlines()[-1]
    assert "MissingExtraError: grpc" in last and "is not installed" in last
    assert 'install the extra connect: pip install ".[connect]"' in last


CALLS = {
    "spark": ("pyspark", "from krishiv_py import Session; Session.embedded()"),
    "kafka sink": ("confluent_kafka", 'from krishiv_py import KafkaSink; KafkaSink("a", bootstrap_servers="b:1")'),
    "kafka": (
        "confluent_kafka",
        'from krishiv_py.connectors import kafka_source; kafka_source("a", bootstrap_servers="b:1", schema="n int")',
    ),
    "delta": ("deltalake", 'from krishiv_py import DeltaSink; DeltaSink("table")'),
    "iceberg": (
        "pyiceberg",
        'from krishiv_py import IcebergSink; IcebergSink("db.table", catalog={"type": "sql", "uri": "sqlite://"})',
    ),
    "postgres without libpq": ("psycopg.pq", 'from krishiv_py import PostgresSink; PostgresSink("host=nowhere", "table")'),
    "postgres": ("psycopg", 'from krishiv_py import PostgresSink; PostgresSink("table", "postgresql://nowhere/db")'),
    "hdfs": ("hdfs_native", 'from krishiv_py.storage.files import store_at; store_at("hdfs://host/folder")[0].arrow'),
    "s3": ("pyarrow._s3fs", 'from krishiv_py.storage.files import store_at; store_at("s3a://bucket/folder")[0].arrow'),
    "gcs": ("pyarrow._gcsfs", 'from krishiv_py.storage.files import store_at; store_at("gs://bucket/folder")[0].arrow'),
    "azure": (
        "pyarrow._azurefs",
        'from krishiv_py.storage.files import store_at; store_at("abfss://c@account/folder")[0].arrow',
    ),
    "azure client": (
        "obstore",
        'from krishiv_py.storage.files import store_at; store_at("abfss://c@account/folder")[0].version("c/folder")',
    ),
    "gcs client": (
        "google.cloud",
        'from krishiv_py.storage.files import check_reachable; check_reachable(["gs://bucket/folder"])',
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("what", CALLS)
def test_what_is_missing_names_its_extra(what: str) -> None:
    module, call = CALLS[what]
    extra = what.split()[0]
    program = f"import sys; sys.modules[{module!r}] = None; {call}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    last = done.stderr.splitlines()[-1]
    missing = "libpq" if "libpq" in what else module.partition(".")[0]
    assert f"MissingExtraError: {missing}" in last and "is not installed" in last
    assert f'install the extra {extra}: pip install ".[{extra}]"' in last


def test_the_extras_that_errors_name_can_be_installed() -> None:
    project = Path(__file__).parents[1]
    section = (project / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = re.findall(r"^(\w+) = \[", section, re.M)
    (everything,) = re.findall(r'^all = \["krishiv_py\[(.*?)\]"\]$', section, re.M)
    assert sorted([*everything.split(","), "all", "bench", "docs", "test"]) == sorted(extras)
    named = {actual for file in (project / "krishiv_py").rglob("*.py") for actual in EXTRA.findall(file.read_text())}
    assert named - set(extras) == set()
    assert named >= {*(what.split()[0] for what in CALLS), "connect", "metrics", "plot", "progress"}


FROM_AN_EXTRA = {"nox": "test", "pytest": "test", "mkdocs": "docs", "uv": "test"}


def test_a_page_installs_the_programs_that_it_tells_to_type() -> None:
    """A page that only names a session of nox says where its set-up is."""
    project, wrong = Path(__file__).parents[1], []
    for page in [project / "README.md", *(project / "docs").rglob("*.md")]:
        text = page.read_text()
        shells = "\n".join(re.findall(r"```(?:bash|console)\n(.*?)```", text, re.S))
        typed = re.findall(r"^(?:\$ )?(?:python -m )?(\w+)\b", shells, re.M) + re.findall(
            r"`(?:python -m )?(\w+) [^`\n]+`", text
        )
        for program in sorted(FROM_AN_EXTRA.keys() & set(typed)):
            if f".[{FROM_AN_EXTRA[program]}]" not in text and "CONTRIBUTING.md" not in text:
                wrong.append(f"{page.name}: {program}")
    assert wrong == []


def test_only_frames_of_pandas_need_pandas() -> None:
    """Arrow imports pandas for its ``to_pandas_dtype``, of numbers too, up to version 23."""
    package = Path(__file__).parents[1] / "krishiv_py"
    assert [file.name for file in package.rglob("*.py") if ".to_pandas_dtype(" in file.read_text()] == []


def test_no_text_installs_the_library_from_an_index() -> None:
    project = Path(__file__).parents[1]
    texts = [project / "README.md", project / "deploy" / "Containerfile"]
    texts += [*(project / "docs").rglob("*.md"), *(project / "krishiv_py").rglob("*.py")]
    actual = [
        f"{file.name}: {line.strip()}"
        for file in texts
        for line in file.read_text().splitlines()
        if re.search(r'pip install.*[ "/]krishiv_py(\[|"|`|$)', line)
    ]
    assert actual == []
