"""One room for each family of windows. They do not import one another; ``registry.py`` chooses."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
