"""Files of any place: ``store`` is the one interface, ``files`` knows which path is of which store, ``listing`` what is input.

``local`` is the disk of this machine. ``stores`` are object stores, ``hdfs`` is HDFS.
"""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
