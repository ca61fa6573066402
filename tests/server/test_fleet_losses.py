"""Which replicas of a fleet count as lost: those that died or gave no answers, each once, and no other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nanolens.server.fleet_losses import MAX_RECENT, Loss, Losses
from nanolens.server.fleet_messages import Report
from nanolens.server.fleet_metrics import RouterMetrics
from nanolens.server.fleet_view import FleetView


def fleet(*names: str) -> FleetView:
    made = FleetView()
    made.update(names)
    return made


def lost(view: FleetView) -> list[tuple[str, Loss]]:
    return [(each.replica, each.how) for each in view.losses.recent]


@pytest.mark.parametrize(("is_gone", "how"), [(True, Loss.ENGINE_GONE), (False, Loss.ENGINE_SILENT)])
def test_a_replica_that_leaves_in_trouble_is_lost(is_gone: bool, how: Loss) -> None:
    view = fleet("a", "b")
    view.take(Report("a", trouble="why", is_engine_gone=is_gone))
    assert lost(view) == []  # it may answer again
    view.update(["b", "c"])
    assert lost(view) == [("a", how)] and view.losses.counts[how] == 1


def test_a_replica_that_is_taken_out_is_not_lost() -> None:
    view = fleet("a", "b")
    view.take(Report("a", trouble="no step for 30 s"))
    view.take(Report("a"))
    view.update(["b"])
    view.update([])
    assert lost(view) == [] and not any(view.losses.counts.values())


def test_a_replica_whose_process_died_is_lost_once_however_often_it_is_said() -> None:
    view = fleet("a", "b")
    view.died("a")
    view.update(["a", "b"])  # a list that had been on its way
    view.update(["b"])
    view.died("a")
    assert lost(view) == [("a", Loss.PROCESS_GONE)] and view.losses.counts[Loss.PROCESS_GONE] == 1
    assert view.replicas == ("b",)


def test_a_process_that_dies_with_its_engine_gone_was_lost_by_the_engine() -> None:
    view = fleet("a")
    view.take(Report("a", trouble="the engine has stopped", is_engine_gone=True))
    view.died("a")
    assert lost(view) == [("a", Loss.ENGINE_GONE)]


def test_the_last_ones_are_known_by_name_and_all_are_counted() -> None:
    losses = Losses(lambda: 5.0)
    for number in range(MAX_RECENT + 3):
        losses.died(Report(f"r{number}"))
    assert losses.counts[Loss.PROCESS_GONE] == MAX_RECENT + 3
    assert [each.replica for each in losses.recent] == [f"r{number}" for number in range(3, MAX_RECENT + 3)]
    assert losses.recent[0].t_s == 5.0


def test_the_count_is_scraped_from_0_on_and_outlasts_the_replicas_series() -> None:
    view = fleet("a", "b")
    metrics = RouterMetrics(view, 2)
    before = metrics.joined({}, False).decode()
    assert all(f'nanolens_router_lost_replicas_total{{reason="{how}"}} 0.0' in before for how in Loss)
    assert "nanolens_router_replicas 2.0" in before and "timestamp_seconds{" not in before
    view.take(Report("a", trouble="the engine has stopped", is_engine_gone=True))
    assert "nanolens_router_replicas 1.0" in metrics.joined({}, False).decode()
    view.update(["b"])
    after = metrics.joined({}, False).decode()
    assert 'nanolens_router_lost_replicas_total{reason="engine_gone"} 1.0' in after
    assert 'nanolens_router_lost_replica_timestamp_seconds{reason="engine_gone",replica="a"} ' in after
    assert "nanolens_router_wanted_replicas 2.0" in after and 'in_flight{replica="a"}' not in after


@pytest.mark.parametrize(("has_died", "count"), [(True, 1), (False, 0)])
def test_a_replica_that_ray_took_off_the_list_is_asked_whether_it_lives(
    monkeypatch: pytest.MonkeyPatch, has_died: bool, count: int
) -> None:
    exceptions = pytest.importorskip("ray.exceptions", reason="ray is not installed")
    from ray.serve.request_router import RequestRouter

    from nanolens.server.ray_router import PrefixRouter

    class Gone:
        replica_id = SimpleNamespace(unique_id="a")

        async def get_queue_len(self, deadline_s: float) -> int:
            if has_died:
                raise exceptions.ActorDiedError()
            return 0

    monkeypatch.setattr(RequestRouter, "curr_replicas", {"a": Gone()})
    monkeypatch.setattr(RequestRouter, "update_replicas", lambda self, replicas: None)
    router: Any = PrefixRouter.__new__(PrefixRouter)

    async def leave() -> FleetView:
        router.initialize_state("test-losses", 4)
        view: FleetView = router._fleet
        view.losses = Losses()
        view.update(["a"])
        router.update_replicas([])
        await asyncio.gather(*router._leaving)
        return view

    assert len(asyncio.run(leave()).losses.recent) == count
