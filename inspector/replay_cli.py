"""`nano-trace replay`: decide a recorded run again with the real scheduler, and tell whether it comes out the same."""

from __future__ import annotations

import argparse
import json
import shutil
import sys

from .units import printable

DESCRIPTION = """\
Run the engine's scheduler and block manager again on the recorded requests and what came of them, and compare every
decision: admissions, chunks, blocks, evictions, preemptions, waits, moves, and their order. The first one that comes
out otherwise is shown as a bug report: what was recorded, what is decided now, and the state of the queues. The journal
must hold the run's beginning; no model is needed.

With --set or --sweep a what-if: the same requests under other settings, on a clock that moves as the run's own steps
tell. Its figures stand beside the recorded ones, and beside those of the same simulation with nothing changed, which
shows the simulation's own error. For example:
  nano-trace replay JOURNAL --set num_blocks=2x --set policy=sjf
  nano-trace replay JOURNAL --sweep num_blocks=1x..4x --plot pool.svg"""
EXIT_SAME, EXIT_DIVERGED = 0, 1


def add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "replay", help="decide a run again: the same, or the first divergence", description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("journal", metavar="JOURNAL", help="a journal's directory")
    command.add_argument("--run", dest="run_id", metavar="RUN", help="the run to read (default: the newest)")
    command.add_argument("--json", action="store_true", help="print the outcome as an object")
    command.add_argument(
        "--set", dest="changes", metavar="NAME=VALUE", action="append", default=[],
        help="change a setting; 2x stands for twice what it was (may be given more than once)",
    )  # fmt: skip
    command.add_argument(
        "--sweep", metavar="NAME=FROM..TO", action="append", default=[],
        help="try a setting's values between two, or those of a list A,B,C; of one setting",
    )  # fmt: skip
    command.add_argument("--plot", metavar="FILE.svg", help="draw the sweep")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay.

    Returns:
        0: every decision came out the same; 1: one did not.

    Raises:
        JournalError: the journal can't be read, or not replayed.
        InvalidConfig: a setting can't be used.
    """
    from .replay.recording import read_recording
    from .replay.replay import replay
    from .replay.report import as_json, report

    recording = read_recording(arguments.journal, arguments.run_id)
    if arguments.changes or arguments.sweep or arguments.plot is not None:
        from .replay.simulate_cli import run_what_if

        lines = run_what_if(recording, arguments.changes, arguments.sweep, arguments.plot, arguments.json)
        print(*lines, sep="\n")
        return EXIT_SAME
    result = replay(recording)
    arguments.code = EXIT_SAME if result.divergence is None else EXIT_DIVERGED
    if arguments.json:
        json.dump(as_json(recording, result), sys.stdout)
        print()
    else:
        for line in report(recording, result, shutil.get_terminal_size((100, 24)).columns):
            print(printable(line))
    code: int = arguments.code
    return code
