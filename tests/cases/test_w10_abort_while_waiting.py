"""W10: the abort of a request that still waits, and so holds no blocks, raises."""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine, solo
from nanolens.telemetry.events import StatusChanged


@pytest.mark.parametrize("overlap", [False, True])
def test_a_waiting_request_can_be_aborted_once_and_nobody_else_notices(overlap: bool) -> None:
    engine = FakeEngine(max_num_seqs=1, overlap=overlap)
    a, b = engine.add(list(range(6)), 8), engine.add(list(range(20, 26)), 8)
    engine.step()
    engine.step()
    free = engine.core.blocks.num_free
    assert len(engine.snapshot().waiting) == 1
    assert engine.abort(b) is True
    assert len(engine.snapshot().waiting) == 0
    changes = len(engine.of(StatusChanged))
    assert engine.abort(b) is False
    assert engine.abort("nobody") is False
    assert engine.core.blocks.num_free == free and len(engine.of(StatusChanged)) == changes
    assert engine.outputs[b].outputs[0].finish_reason == "abort" and engine.ids(b) == []
    engine.run()
    assert engine.ids(a) == solo(list(range(6)), 8)
