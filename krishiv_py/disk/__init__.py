"""Files wherever they are: private folders, whole files, checksums; ``stores`` has object stores, ``hdfs`` HDFS.

``folders`` and ``checksums`` are of this machine's disk. ``files`` and ``placing`` take a path of any place, as Spark reads it,
and ask the rooms below. ``settings`` says how this process reaches what is not on its disk.
"""
