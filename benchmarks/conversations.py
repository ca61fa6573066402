"""`nano-bench conversations`: pausing between turns beside finishing each turn, with a prefix cache and without one."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.build import build_engine
from ..engine.config import EngineConfig
from ..errors import InvalidConfig
from .offline import write_json
from .report import environment_lines, table
from .settings import add_engine_flags, engine_options
from .stats import median
from .talks import MODES, Ids, Mode, TalkResult, Talks, TalkSpec, draw, run_talks

if TYPE_CHECKING:
    from ..engine.runner.load import LoadedModel

DEFAULT_RUNS = 3
DEFAULT_MODES = ("pause_swap", "prefix_cache", "no_cache")
DESCRIPTION = """\
Hold conversations of several turns over a KV pool that is too small for all of them: all take their first turn, then
all their second, in an order drawn for each. Modes run in turn, each on a fresh engine on the same weights, greedy and
with fixed lengths, so that all compute the same answers:

""" + "\n".join(f"  {name:16} {mode.about}" for name, mode in MODES.items())
# Settings that the benchmark makes itself.
OWN_SETTINGS = frozenset({
    "model", "seed", "num_blocks", "host_blocks", "disk_blocks", "swap_path", "paused_ttl_s", "prefix_cache",
    "recording", "journal",
})  # fmt: skip


@dataclass(frozen=True)
class Conversations:
    """What the flags came to.

    Attributes:
        config: the engine's settings that all modes share.
        spec: the conversations.
        modes: names in MODES.
        runs: of each mode.
        json_path: where the figures go, or None.
    """

    config: EngineConfig
    spec: TalkSpec
    modes: tuple[str, ...]
    runs: int
    json_path: Path | None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    default = TalkSpec()
    what = parser.add_argument_group("what runs")
    what.add_argument("--model", default="smollm2", help="directory, hub name, smollm2 or dummy:NAME")
    for name, about in (
        ("conversations", "how many"),
        ("turns", "of each"),
        ("first_len", "tokens that its first turn says"),
        ("next_len", "tokens that each later turn adds"),
        ("output_len", "tokens answered in each turn"),
        ("resident", "whole conversations that the KV pool holds"),
        ("seed", "of the draws and of the engine"),
    ):
        value = getattr(default, name)
        flag = "--" + name.replace("_", "-")
        what.add_argument(flag, type=int, default=value, metavar="N", help=f"{about} (default: {value})")
    how = parser.add_argument_group("how it is measured")
    how.add_argument("--modes", nargs="+", choices=tuple(MODES), default=DEFAULT_MODES, metavar="MODE",
                     help=f"of {', '.join(MODES)} (default: {', '.join(DEFAULT_MODES)})")  # fmt: skip
    how.add_argument("--runs", type=int, default=DEFAULT_RUNS, metavar="N", help="of each mode (default: 3)")
    how.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    add_engine_flags(parser, OWN_SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    """Do what the flags say; the exit status.

    Raises:
        NanolensError: flags or a model that can't be used.
    """
    plan = plan_from(arguments)
    record = run_conversations(plan)
    if plan.json_path is not None:
        write_json(plan.json_path, record)
    return 0 if record["same_answers"] or record["dtype"] != "float32" else 1


def plan_from(arguments: argparse.Namespace) -> Conversations:
    """Put the flags together.

    Raises:
        InvalidConfig: a value that can't be used.
    """
    spec = TalkSpec(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(TalkSpec)})
    if arguments.runs < 1:
        raise InvalidConfig(f"runs={arguments.runs}: must be at least 1")
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise InvalidConfig(f"json={arguments.json}: its directory does not exist")
    options = engine_options(arguments) | {"seed": spec.seed, "paused_ttl_s": None}
    # Admitting more than the pool can hold to their ends would measure preemption in every mode.
    options.setdefault("max_num_seqs", spec.resident)
    config = EngineConfig.from_options(arguments.model, options)
    config = dataclasses.replace(config, num_blocks=spec.resident * spec.blocks_each(config.block_size))
    return Conversations(config, spec, tuple(dict.fromkeys(arguments.modes)), arguments.runs, arguments.json)


def run_conversations(plan: Conversations, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run the modes in turn and print them; the record for JSON.

    Every other run goes through the modes in reverse. `same_answers` tells whether all runs gave the same ids; they
    have to in float32, while rounding may turn a close choice in a smaller dtype, where batches differ.
    """
    from ..engine.runner.load import load_parts

    say(f"{plan.spec.describe()}; model {plan.config.model}, greedy")
    parts = load_parts(plan.config)
    talks = draw(plan.spec, min(parts.tokenizer.vocab_size, parts.model.config.vocab_size))
    record = _base_record(plan, parts)
    for line in environment_lines(record):
        say(line)
    results: dict[str, list[TalkResult]] = {name: [] for name in plan.modes}
    answers: list[tuple[str, list[Ids]]] = []
    for number in range(plan.runs):
        for name in plan.modes if number % 2 == 0 else reversed(plan.modes):
            result, given = run_once(plan, parts, talks, MODES[name])
            results[name].append(result)
            answers.append((name, given))
    for line in _result_lines(plan, results):
        say(line)
    differing = {name: _differing(answers[0][1], given) for name, given in answers if given != answers[0][1]}
    for name, count in differing.items():
        say(f"{name} answered {count} of {plan.spec.conversations} conversations otherwise than {answers[0][0]}")
    record["results"] = {name: [dataclasses.asdict(each) for each in runs] for name, runs in results.items()}
    record["same_answers"] = not differing
    record["differing_conversations"] = differing
    return record


def run_once(plan: Conversations, parts: LoadedModel, talks: Talks, mode: Mode) -> tuple[TalkResult, list[Ids]]:
    """One run of a mode, on an engine of its own.

    Raises:
        InvalidConfig: a conversation that the engine can't hold.
        RequestFailed: one ended before its length.
    """
    spec = plan.spec
    host_blocks = spec.conversations * spec.blocks_each(plan.config.block_size) if mode.swaps else 0
    config = dataclasses.replace(plan.config, host_blocks=host_blocks, **mode.settings)
    engine = build_engine(config, parts)
    try:
        return run_talks(engine, spec, talks, mode)
    finally:
        engine.close()


def _differing(these: list[Ids], those: list[Ids]) -> int:
    """Conversations with other answers."""
    return sum(one != other for one, other in zip(these, those, strict=True))


def _result_lines(plan: Conversations, results: dict[str, list[TalkResult]]) -> list[str]:
    """The medians of each mode."""
    least = plan.spec.least_computed
    rows = []
    for name, runs in results.items():
        counts = [
            median([getattr(result, field.name) for result in runs])
            for field in dataclasses.fields(TalkResult)
            if field.name != "seconds"
        ]
        seconds = median([result.seconds for result in runs])
        rows.append([name, f"{seconds:,.2f}", *(f"{count:,.0f}" for count in counts)])
    runs_of = f"medians of {plan.runs} runs; " if plan.runs > 1 else ""
    head = ["", "seconds", "computed", "recomputed", "preempted", "blocks out", "blocks in", "steps"]
    return [
        "",
        table(head, rows),
        "",
        f"{runs_of}recomputed: tokens computed beyond the {least:,} that no engine is spared",
    ]


def _base_record(plan: Conversations, parts: LoadedModel) -> dict[str, Any]:
    """What the JSON file holds beside its figures."""
    from .environment import environment

    spec = plan.spec
    return {
        "what": "conversations",
        "model": plan.config.model,
        "dtype": parts.model.config.dtype or "float32",
        "device": str(parts.device),
        "temperature": 0.0,
        "workload": dataclasses.asdict(spec)
        | {
            "requests": spec.conversations * spec.turns,
            "prompt_tokens": spec.prompt_tokens,
            "output_tokens": spec.output_tokens,
            "least_computed_tokens": spec.least_computed,
        },
        "modes": {name: MODES[name].about for name in plan.modes},
        "config": plan.config.as_record(),
        "environment": environment(),
    }
