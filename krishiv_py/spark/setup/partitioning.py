"""Bucket numbers that Spark's hash partitioning spreads evenly: one bucket per partition, or a fixed number per partition."""

from __future__ import annotations


def _rotate(x: int, by: int) -> int:
    return ((x << by) | (x >> (32 - by))) & 0xFFFFFFFF


def murmur3_int(value: int, seed: int = 42) -> int:
    """Spark's hash of an ``int`` column (Murmur3_x86_32), as a signed 32-bit number."""
    k = _rotate((value & 0xFFFFFFFF) * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    h = (_rotate(seed ^ k, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= 4
    h = (h ^ (h >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
    h ^= h >> 16
    return h - (1 << 32) if h >= 1 << 31 else h


def bucket_ids(partitions: int, per_partition: int = 1) -> tuple[int, ...]:
    """Bucket numbers of which every partition gets exactly `per_partition`."""
    room = [per_partition] * partitions
    ids: list[int] = []
    candidate = 0
    while len(ids) < partitions * per_partition:
        partition = murmur3_int(candidate) % partitions
        if room[partition]:
            room[partition] -= 1
            ids.append(candidate)
        candidate += 1
    return tuple(ids)
