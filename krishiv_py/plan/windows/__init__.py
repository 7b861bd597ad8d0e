"""The window kinds of SEMANTICS §3, one file each, as frozen values."""

from krishiv_py.plan.windows.fixed import HoppingWindow, TumblingWindow
from krishiv_py.plan.windows.lookback import DistinctWindows, LookBackWindow
from krishiv_py.plan.windows.window import WindowOperation

__all__ = ["DistinctWindows", "HoppingWindow", "LookBackWindow", "TumblingWindow", "WindowOperation"]
