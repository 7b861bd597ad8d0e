"""Windows as values, for ``stream.window(...)``; the methods of a stream that are named after them say more.

``SlidingWindows``, ``TimeIntervalWindowOptions``, ``calendar_window`` and ``WindowAssigner`` are in ``krishiv_py`` itself.
"""

from krishiv_py.plan.windows.count import count_rows
from krishiv_py.plan.windows.fixed import cumulate, hopping, tumbling
from krishiv_py.plan.windows.lookback import lookback
from krishiv_py.plan.windows.session import session

__all__ = ["count_rows", "cumulate", "hopping", "lookback", "session", "tumbling"]


def __dir__() -> list[str]:
    return __all__
