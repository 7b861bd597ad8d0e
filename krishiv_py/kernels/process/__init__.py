"""Process functions: the operator and its calls of a user's function."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
