"""A missing optional package is told by the name of its extra, not by the import that failed."""

from __future__ import annotations

import subprocess
import sys
import textwrap

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
    assert "install the extra krishiv_py[connect]" in last


KAFKA = """
    import sys
    sys.modules["confluent_kafka"] = None
    from krishiv_py.connectors import kafka_source
    kafka_source("events", bootstrap_servers="nowhere:1", schema="n bigint")
"""


def test_kafka_without_its_extra_names_it() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KAFKA)], capture_output=True, text=True, timeout=120)
    last = done.stderr.splitlines()[-1]
    assert "MissingExtraError: confluent_kafka (Kafka) is not installed" in last
    assert "install the extra krishiv_py[kafka]" in last
