"""As many kills as are asked for, in runs of a few; each run is compared with what it must give.

``python -m tests.kills.campaign --kills 25 --kind delta --seed 3`` runs some by hand.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path

import attrs

from krishiv_py.testing.broker import Broker
from krishiv_py.testing.broker import running as brokers
from tests.kills.events import PARTITIONS, expected, fill, make_topics
from tests.kills.job import KINDS, Places
from tests.kills.killing import WHAT, Killer, Tally
from tests.kills.targets import differences
from tests.tables.server import Server
from tests.tables.server import running as servers

A_RUN = 7
"""Kills of one run: the topic is long enough for them."""


def one_run(kind: str, kills: list[str], seed: int, broker: Broker, server: Server, folder: Path) -> tuple[int, Tally]:
    """One job to its end with some kills; how many there was time for, and what came of them."""
    prefix = f"t{uuid.uuid4().hex[:8]}"
    places = Places(kind, broker.address, server.address(), f"{prefix}_events", prefix, str(folder / prefix))
    fill(broker.address, places.topic, seed, portions=6 + 7 * len(kills))
    make_topics(broker.address, {f"{prefix}_{name}": PARTITIONS for name in ("log", "table", "late")})
    must = expected(broker.address, places.topic)
    work, given = Path(places.work), Path(places.work, "places.json")
    work.mkdir(parents=True)
    given.write_text(json.dumps(attrs.asdict(places)))
    command = [sys.executable, "-m", "tests.kills.job", str(given)]
    killer = Killer(work, command, broker, server, random.Random(f"{kind} {seed}"))
    try:
        done = killer.run(kills)
        wrong = differences(places, must, broker, server)
    finally:
        killer.end()
    assert not wrong, f"{kind}, seed {seed}, killed {killer.tally.kills}: {wrong}\n{killer.log()}"
    return done, killer.tally


def campaign(kind: str, kills: int, seed: int, broker: Broker, server: Server, folder: Path, upto_s: float = 1e9) -> int:
    """So many kills, unless time is over before; what is killed is drawn from what the kind needs. How many there were."""
    killed, number, began = 0, 0, time.monotonic()
    possible = [what for what in WHAT if what != "database" or kind in ("all", "postgres")]
    while killed < kills and time.monotonic() - began < upto_s:
        own = seed * 1_000 + number
        seeded = random.Random(f"{kind} {own} what")
        wanted = [seeded.choice(possible) for _ in range(min(A_RUN, kills - killed))]
        moment = time.monotonic()
        done, tally = one_run(kind, wanted, own, broker, server, folder)
        print(f"{kind}, seed {own}: {time.monotonic() - moment:.0f} s, {tally}", flush=True)
        killed, number = killed + done, number + 1
        assert number < kills + 3, "the job ends before it can be killed"
    return killed


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills.campaign", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kind", choices=KINDS, default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--upto", type=float, default=1e9, help="begin no other run after so many seconds")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that broker and database end
    with brokers() as broker, servers() as server, tempfile.TemporaryDirectory(prefix="krishiv-kills-") as folder:
        killed = campaign(given.kind, given.kills, given.seed, broker, server, Path(folder), given.upto)
    print(f"{killed} kills of {given.kind}, and nothing lost or doubled")


if __name__ == "__main__":
    main()
