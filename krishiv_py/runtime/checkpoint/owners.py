"""Define what the owner of a checkpoint writes of itself, and whether it is still there."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from typing import Any


def is_over(owner: dict[str, Any], over_s: float) -> bool:
    """Return whether an owner is gone: its process on this host; elsewhere one that has not renewed the note for `over_s` s."""
    if owner.get("host") == socket.gethostname():
        return _begun(int(owner.get("pid", 0))) != owner.get("begun")
    return time.time() - float(owner.get("renewed", 0)) > over_s


def me(query: str) -> dict[str, Any]:
    """Return what this process writes of itself and its `query`."""
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return {
        "query": query,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "begun": _begun(os.getpid()),
        "since": since,
        "token": uuid.uuid4().hex,
    }


def _begun(pid: int) -> str | None:
    """Return when a process of this host began, which tells it from a later one of the same number; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[19].decode()
    except FileNotFoundError:
        return None if os.path.isdir("/proc/self") else _alive(pid)


def _alive(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "?"


def parsed(data: bytes | None) -> dict[str, Any]:
    """Return what was written; nothing where it is not there, or not whole."""
    try:
        found = json.loads(data or b"{}")
    except ValueError:  # just being written
        return {}
    return found if isinstance(found, dict) else {}


def named(owner: dict[str, Any]) -> str:
    """An owner, for people."""
    if {"query", "pid", "host", "since"} <= owner.keys():
        return f"query {owner['query']!r} of process {owner['pid']} on {owner['host']}, since {owner['since']}"
    return "another query"
