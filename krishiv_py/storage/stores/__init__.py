"""Object stores, one file each over what they share (``bucket``); ``options`` reads what a user says of them.

Imports the interface and the settings next to it, and no files.
"""
