"""HDFS without Java: ``client`` speaks with namenodes, ``system`` is Arrow's file system, ``check`` asks whether they answer.

Imports the settings next to it, and no object store.
"""
