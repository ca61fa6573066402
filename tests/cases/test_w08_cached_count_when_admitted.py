"""W08: the cached prefix is counted when a request comes, and used later, after its blocks were evicted."""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine, solo
from nanolens.telemetry.events import BlocksAllocated, PrefixMatched, RequestFinished, StatusChanged

PREFIX = list(range(8))


@pytest.mark.parametrize("overlap", [False, True])
def test_the_cached_prefix_is_that_of_the_step_of_admission(overlap: bool) -> None:
    engine = FakeEngine(num_blocks=6, block_size=4, max_num_seqs=1, overlap=overlap)
    engine.add(PREFIX, 2)
    engine.run()
    flood = engine.add(list(range(500, 521)), 3)  # holds all six blocks at its end
    engine.step()
    late = engine.add([*PREFIX, 9], 5)
    engine.run()
    evicted = [block for event in engine.of(BlocksAllocated) if event.seq == 1 for block in event.evicted]
    assert len(evicted) == 2
    admitted = next(e for e in engine.of(StatusChanged) if e.seq == 2 and e.new == "RUNNING")
    matched = engine.of(PrefixMatched)[-1]
    assert (matched.seq, matched.step, matched.hit, matched.evicted) == (2, admitted.step, 0, 8)
    assert engine.of(RequestFinished)[-1].num_cached_tokens == 0
    assert engine.ids(late) == solo([*PREFIX, 9], 5)
    assert engine.ids(flood) == solo(list(range(500, 521)), 3)
