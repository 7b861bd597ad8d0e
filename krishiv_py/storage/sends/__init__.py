"""The memory streams of sessions on disk: the sends of each, in files that say what is whole."""
