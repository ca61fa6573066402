"""Two keyframes compared field by field, in words: the engine's own against what the events before it say."""

from __future__ import annotations

from collections.abc import Mapping

from .events import Keyframe, SequenceSnapshot
from .pool_state import HASH_BYTES

_SEQUENCE_FIELDS = SequenceSnapshot.__struct_fields__


def keyframe_differences(given: Keyframe, expected: Keyframe) -> list[str]:
    """Where `given` is not `expected`; empty when they agree.

    `t` is not compared, nor the order of sequences, of cached blocks and of `running`; the orders of `waiting` and of
    the free list are. A total that one of them does not name is 0 there: an older journal has fewer.
    """
    found: list[str] = []

    def compare(name: str, one: object, other: object) -> None:
        if one != other:
            found.append(f"{name}: {one} given, {other} expected")

    compare("step", given.step, expected.step)
    compare("started", given.started, expected.started)
    _compare_sequences(given, expected, found)
    compare("waiting", given.waiting, expected.waiting)
    compare("running", sorted(given.running), sorted(expected.running))
    _compare_maps("cached block", _cached(given), _cached(expected), None, found)
    compare("free_blocks", given.free_blocks, expected.free_blocks)
    compare("engine_paused", given.engine_paused, expected.engine_paused)
    _compare_maps("total", given.totals, expected.totals, 0, found)
    return found


def _compare_sequences(given: Keyframe, expected: Keyframe, found: list[str]) -> None:
    ours = {seq.seq: seq for seq in given.sequences}
    theirs = {seq.seq: seq for seq in expected.sequences}
    for seq_id in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(seq_id), theirs.get(seq_id)
        if one is None or other is None:
            found.append(f"sequence {seq_id}: {'not given' if one is None else 'not expected'}")
        elif one != other:
            for name in _SEQUENCE_FIELDS:
                a, b = getattr(one, name), getattr(other, name)
                if a != b:
                    found.append(f"sequence {seq_id}, {name}: {a!r} given, {b!r} expected")


def _compare_maps(
    name: str, given: Mapping[str, object], expected: Mapping[str, object], absent: object, found: list[str]
) -> None:
    for key in sorted(given.keys() | expected.keys()):
        one, other = given.get(key, absent), expected.get(key, absent)
        if one != other:
            found.append(f"{name} {key}: {one} given, {other} expected")


def _cached(keyframe: Keyframe) -> dict[str, str]:
    hashes = keyframe.cached_hashes
    return {
        str(block): f"{hashes[i * HASH_BYTES : (i + 1) * HASH_BYTES].hex()} by {keyframe.cached_by[i]}"
        for i, block in enumerate(keyframe.cached_blocks)
    }
