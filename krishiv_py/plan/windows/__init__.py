"""The window kinds of SEMANTICS §3, one file each, as frozen values."""

from krishiv_py.plan.windows.base import Window
from krishiv_py.plan.windows.fixed import HoppingWindow, TumblingWindow

__all__ = ["HoppingWindow", "TumblingWindow", "Window"]
