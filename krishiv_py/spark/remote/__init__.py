"""Queries over Spark Connect: what a driver does runs in a process of the server, and what is for the client comes in files."""
