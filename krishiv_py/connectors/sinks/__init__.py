"""The sinks of the library, one file each, and what engines ask of all of them. Imports the interfaces next to it."""
