"""Values of records as columns, one file a format. Imports the settings and the client next to it."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
