"""The broker of the tests; ``python -m krishiv_py broker --fetch`` fills its cache."""

from __future__ import annotations

from krishiv_py.testing.broker import Broker as Broker
from krishiv_py.testing.broker import running as running
