"""Runs plans in this process, without a JVM: sessions of ``Session.in_process()``, and the test driver."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
