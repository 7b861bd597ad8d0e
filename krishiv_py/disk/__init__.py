"""What the library keeps on disk: private folders, whole files, and checksums."""
