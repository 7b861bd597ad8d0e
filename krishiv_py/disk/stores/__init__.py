"""Object stores: ``s3`` and ``google`` reach them, ``kinds`` tells them apart, ``uploads`` has files that become visible later.

``options`` reads what a user tells of them. Imports the settings beside it, and no files.
"""
