"""The builder: ``Stream → TimedStream → KeyedStream → WindowedStream → ResultStream``; each stage is one type."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
