"""Ranks that share a model, as the Steps view, --json, exports and a Perfetto trace show them; nothing on one rank."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from made_views import keyframe, made_view, sequence, step_row
from nanolens.inspector.history.step_log import StepLog
from nanolens.inspector.once import as_json
from nanolens.inspector.step_rows import step_lines, step_table
from nanolens.inspector.trace_cli import main
from nanolens.inspector.tui.rank_columns import rank_words
from nanolens.inspector.tui.steps_view import StepsView
from nanolens.inspector.view import StepRow, View
from nanolens.telemetry.events import AnyEvent, StepFinished, StepPlanned, StepRanks
from perfetto_checks import ON_TRACKS, check_trace
from planted_causes import written
from skewed_ranks import EXCHANGE, skewed_engine
from view_apps import ViewApp, screen_text

MS = 1_000_000


def finished(step: int) -> StepFinished:
    return StepFinished(0, step, MS, MS, 10 * MS, 3 * MS, 3, 3, [], wait_ns=2 * MS)


def rows(told: Sequence[StepRanks | None]) -> list[StepRow]:
    return [
        step_row(step, decodes=3, finished=finished(step), interval_ns=14 * MS, gap_ns=MS, ranks=ranks)
        for step, ranks in enumerate(told, 1)
    ]  # fmt: skip


def view_of(*told: StepRanks | None) -> View:
    return made_view(keyframe([sequence(1)], step=len(told)), rows(told))


SKEWED = view_of(
    StepRanks(1, [10 * MS] * 2, [4 * MS, MS]),  # rank 1 computes 3 ms longer
    StepRanks(2, [10 * MS] * 2, [MS, MS + 40_000]),  # rank 0, 0.04 ms
    StepRanks(3, [10 * MS] * 2, [MS, MS]),
    None,  # its ranks tell with the next step
)
SILENT = view_of(None, None)


def drive(view: View, script: Callable[[ViewApp, Any], Awaitable[None]]) -> None:
    async def run() -> None:
        app = ViewApp(StepsView(), view)
        async with app.run_test(size=(170, 20)) as pilot:
            await pilot.pause()
            await script(app, pilot)

    asyncio.run(run())


def test_what_ranks_tell_one_step_late_belongs_to_their_own_step() -> None:
    log, ranks = StepLog(), StepRanks(1, [5, 5], [0, 2])
    for step in (1, 2):
        log.apply(StepPlanned(10 * step, step, "decode", [], 1, [], 0, 1, 9))
        log.apply(finished(step))
    before = log.rows()
    log.apply_all([ranks, StepRanks(77, [5, 5], [0, 2])])
    assert [row.ranks for row in log.rows()] == [ranks, None]
    assert log.rows() == [replace(before[0], ranks=ranks), before[1]]


def test_what_ranks_tell_before_their_step_was_read_stays() -> None:
    log, ranks = StepLog(), StepRanks(1, [5, 5], [0, 2])
    log.apply_all([StepPlanned(10, 1, "decode", [], 1, [], 0, 1, 9), ranks, finished(1)])
    (row,) = log.rows()
    assert row.ranks == ranks and row.finished is not None


def test_a_step_tells_its_skew_and_its_straggler() -> None:
    found = [(line.skew_ns, line.straggler) for line in step_lines(SKEWED)]
    assert found == [(3 * MS, 1), (40_000, 0), (0, 0), (0, -1)]


def test_the_steps_view_has_columns_for_ranks_once_a_step_tells_of_them() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        lines = screen_text(app).splitlines()
        assert "skew straggler split" in " ".join(lines[3].split())
        shown = [line.split()[7:10] for line in lines[4:8]]
        assert shown[0] == ["3.00", "rank", "1"] and shown[1] == ["0.04", "rank", "0"]
        assert shown[2][:2] == ["0.00", "-"] and shown[3][:2] == ["-", "-"]

    drive(SKEWED, script)


def test_the_line_of_a_step_tells_what_each_rank_computed() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        assert "ranks" not in screen_text(app).splitlines()[16]
        await pilot.press("home")
        assert screen_text(app).splitlines()[16].endswith(", ranks 6.00 9.00 ms each beside collectives")

    drive(SKEWED, script)


def test_where_lateness_is_known_the_words_and_the_json_tell_it_beside_the_rank_that_it_names() -> None:
    view = view_of(StepRanks(1, [10 * MS] * 2, [4 * MS, MS], [2 * MS, 0]))  # rank 1 computed longer, rank 0 came later
    (row,) = view.steps
    assert rank_words(row) == ", ranks 2.00 0.00 ms late at collectives"
    assert [(line.skew_ns, line.straggler) for line in step_lines(view)] == [(2 * MS, 0)]
    told = as_json(view, "")["steps"][0]["ranks"]
    assert (told["late_s"], told["skew_s"], told["straggler"]) == ([0.002, 0.0], 0.002, 0)


def test_a_model_on_one_rank_has_neither_columns_nor_words() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        shown = screen_text(app)
        assert not any(word in shown for word in ("skew", "straggler", "ranks"))

    drive(SILENT, script)


def test_a_table_that_is_sorted_stays_so_when_the_columns_come() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        table = app.widget._table
        names = [column.name for column in table.columns]
        table.sort_by(names.index("tokens"), reverse=True)
        app.widget.show(SKEWED)
        await pilot.pause()
        assert table.columns[table.sort].name == "tokens"
        app.widget.show(SILENT)
        await pilot.pause()
        assert [column.name for column in table.columns] == names and table.columns[table.sort].name == "tokens"

    drive(SILENT, script)


def test_steps_can_be_filtered_by_skew_and_straggler() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        for text, expected in (("skew>1ms", [1]), ("straggler:0", [2]), ("straggler:1 skew>1ms", [1])):
            assert app.widget.apply_filter(text) == ""
            assert [line.step for line in app.widget._table.rows] == expected

    drive(SKEWED, script)


def test_an_export_of_steps_has_their_columns_only_where_ranks_are() -> None:
    named = [name for name in step_table(step_lines(SKEWED), SKEWED).columns if "skew" in name or name == "straggler"]
    assert len(named) == 2
    table = step_table(step_lines(SILENT), SILENT)
    assert not any("skew" in name or name == "straggler" for name in table.columns)
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_json_of_a_view_tells_them_for_each_step() -> None:
    steps = as_json(SKEWED, "")["steps"]
    assert steps[0]["ranks"] == {
        "device_s": [0.01, 0.01], "collective_s": [0.004, 0.001], "late_s": [], "skew_s": 0.003, "straggler": 1,
    }  # fmt: skip
    assert "ranks" not in steps[3] and not any("ranks" in step for step in as_json(SILENT, "")["steps"])


# A whole run


def skewed_run(silent: bool = False) -> list[AnyEvent]:
    engine, _ = skewed_engine(lambda plan: [0, 5 * MS if plan.step == 3 else 0])
    engine.add([1] * 8, max_tokens=6)
    engine.run()
    engine.close()
    return [event for event in engine.events if not (silent and isinstance(event, StepRanks))]


def test_each_rank_has_a_track_with_its_own_work_and_its_collectives(
    require: Callable[[str], str], tmp_path: Path
) -> None:
    events = skewed_run()
    read = {e.step: e for e in events if isinstance(e, StepFinished)}
    with check_trace(require("node"), events, tmp_path) as processor:
        slices = processor.rows(ON_TRACKS + " where t.name glob 'Rank *' order by s.ts, s.dur desc")
        tree = "select c.name, p.name from track c join track p on p.id = c.parent_id where c.name glob 'Rank*'"
        assert sorted(processor.rows(tree)) == [("Rank 0", "Ranks"), ("Rank 1", "Ranks"), ("Ranks", "Engine")]
    told = [e for e in events if isinstance(e, StepRanks)]
    expected = []
    for e in told:
        for rank, waited in enumerate(e.collective_ns):
            begin, end = read[e.step].t - e.device_ns[rank], read[e.step].t
            name = f"Rank {rank}"
            expected += [
                (name, "step", begin, end - begin), (name, "own work", begin, end - waited - begin),
                (name, "collectives", end - waited, waited),
            ]  # fmt: skip
    assert sorted(slices) == sorted(expected)
    waits = [dur for name, what, _, dur in slices if (name, what) == ("Rank 0", "collectives")]
    assert sorted(waits)[-1] == EXCHANGE + 5 * MS and set(sorted(waits)[:-1]) == {EXCHANGE}


def test_a_trace_of_one_rank_has_no_such_track(require: Callable[[str], str], tmp_path: Path) -> None:
    with check_trace(require("node"), skewed_run(silent=True), tmp_path) as processor:
        assert processor.rows("select name from track where name glob 'Rank*'") == []


def test_explain_and_top_name_the_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine, _ = skewed_engine(lambda plan: [0, 30 * MS if plan.step == 15 else 0])
    for number in range(3):  # six steps each
        engine.add([number] * 8, max_tokens=6)
        engine.run()
    engine.close()
    journal = str(written(engine, tmp_path / "journal"))
    assert main(["explain", journal, "req-2"]) == 0
    told = capsys.readouterr().out
    assert "waiting for the slowest rank: rank 1" in " ".join(told.split())
    assert any(line.startswith("rank_skew") for line in told.splitlines())
    assert main(["top", journal]) == 0
    assert "rank_skew 100% rank 1: the most in step 15: 30.0 ms" in " ".join(capsys.readouterr().out.split())


def test_a_row_of_the_csv_has_the_part_only_where_ranks_are(tmp_path: Path) -> None:
    engine, _ = skewed_engine(lambda plan: [0, 30 * MS if plan.step == 3 else 0])
    engine.add([1] * 8, max_tokens=6)
    engine.run()
    engine.close()
    journal, out = written(engine, tmp_path / "journal"), tmp_path / "out.csv"
    assert main(["export", str(journal), "--csv", str(out)]) == 0
    names, values = (line.split(",") for line in out.read_text().splitlines())
    assert abs(int(values[names.index("rank_skew_ns")]) - 30 * MS) <= 1
