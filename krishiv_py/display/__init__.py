"""Define what people look at: plans and queries as text and HTML, plots, progress of long work. No Spark, no pandas."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
