"""`nano-bench serving-cost`: the same requests through `LLM.generate` and through a nano-serve, in turn, in one run."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.config import EngineConfig
from ..engine.sampling_params import SamplingParams
from ..errors import InvalidConfig, RequestFailed
from .offline import factor, lengths, write_json
from .report import milliseconds, table
from .serve_delay import Delays, Spelling, delays, token_times
from .serve_http import Target
from .serve_load import Client, LoadResult, send_all
from .serve_memory import cpu_seconds, with_children
from .serve_process import ServerProcess
from .serve_requests import Behaviour, Pace, Prompt, Shape, asks
from .settings import add_engine_flags, engine_options
from .stats import Distribution, median, ratio_of_medians
from .workload import Workload, WorkloadSpec, make_workload

if TYPE_CHECKING:
    from ..engine.llm import LLM
    from ..engine.outputs import Delta

DEFAULT_MODEL, DEFAULT_ROUNDS, DEFAULT_REQUESTS, DEFAULT_LENGTHS = "smollm2", 3, 32, (12, 128)
DELAY_STREAMS = 8
SHARED_MEMORY = 0.4  # of a GPU, for each of the two engines
DESCRIPTION = """\
What it costs to serve: the same requests, all at once and greedy, through LLM.generate in this process and, streamed,
through a nano-serve that is started for it; in turn, each side first in every other round. Both keep a journal.

Then, with a few streams open at a time, how much later a client has each token than the engine: from the server's own
journal, on the same clock."""


@dataclass(frozen=True)
class Cost:
    """What the flags came to.

    Attributes:
        model: of both.
        options: of both engines, by name.
        spec: which requests.
        rounds: of each side.
        is_stream: whether the server's answers are streams.
        streams: open at once, in the part that measures delays.
        json_path: where the figures go, or None.
    """

    model: str
    options: dict[str, Any]
    spec: WorkloadSpec
    rounds: int
    is_stream: bool
    streams: int
    json_path: Path | None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    what = parser.add_argument_group("what runs")
    what.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    what.add_argument("--num-requests", type=int, default=DEFAULT_REQUESTS, metavar="N", help="default: 32")
    what.add_argument("--input-len", type=lengths, default=DEFAULT_LENGTHS, metavar="MIN:MAX", help="default: 12:128")
    what.add_argument("--output-len", type=lengths, default=DEFAULT_LENGTHS, metavar="MIN:MAX", help="default: 12:128")
    what.add_argument("--trace", type=Path, metavar="FILE", help="Azure .csv, Mooncake or MT-bench .jsonl")
    what.add_argument("--limit", type=int, metavar="N", help="rows of the trace (default: all)")
    what.add_argument("--scale-lengths", type=factor, default=1.0, metavar="X", help="factor on all lengths")
    what.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws and of the engines (default: 0)")
    how = parser.add_argument_group("how it is measured")
    how.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, metavar="N", help="runs of each side (default: 3)")
    how.add_argument("--no-stream", action="store_true", help="the server's answers come whole in the rounds")
    how.add_argument("--streams", type=int, default=DELAY_STREAMS, metavar="N", help="open where delays are measured")
    how.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    add_engine_flags(parser, frozenset({"model", "recording", "journal", "seed"}))


def plan_from(arguments: argparse.Namespace) -> Cost:
    """Read the flags.

    Raises:
        InvalidConfig: one that can't be used.
    """
    options = engine_options(arguments) | {"seed": arguments.seed}
    options.setdefault("prefix_cache", False)  # a repeated prompt would cost nothing
    for name in ("rounds", "streams"):
        if getattr(arguments, name) < 1:
            raise InvalidConfig(f"{name}={getattr(arguments, name)}: must be at least 1")
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise InvalidConfig(f"json={arguments.json}: its directory does not exist")
    spec = WorkloadSpec(
        num_requests=arguments.num_requests,
        input_len=arguments.input_len,
        output_len=arguments.output_len,
        seed=arguments.seed,
        trace=arguments.trace,
        limit=arguments.limit,
        scale=arguments.scale_lengths,
    )
    EngineConfig.from_options(arguments.model, options)
    return Cost(
        arguments.model, options, spec, arguments.rounds, not arguments.no_stream, arguments.streams, arguments.json
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what the flags say; the exit status.

    Raises:
        NanolensError: flags or a model that can't be used, or a side that failed.
    """
    plan = plan_from(arguments)
    record = run_cost(plan)
    if plan.json_path is not None:
        write_json(plan.json_path, record)
    return 0


def run_cost(plan: Cost) -> dict[str, Any]:
    """Measure and print; the record for JSON."""
    import torch

    from ..engine.llm import LLM
    from ..engine.runner.load import pick_device

    options = dict(plan.options)
    if pick_device(options.get("device", "auto"), torch.cuda.is_available()).startswith("cuda"):
        options.setdefault("gpu_memory_utilization", SHARED_MEMORY)
    print(f"{plan.spec.describe()}; model {plan.model}, temperature 0")
    with tempfile.TemporaryDirectory(prefix="nano-bench-") as directory:
        journal = Path(directory, "server")
        with (
            LLM(plan.model, **options, journal=str(Path(directory, "llm"))) as llm,
            ServerProcess(plan.model, options | {"journal": journal}) as server,
        ):
            workload = make_workload(plan.spec, llm.engine.vocab_size, llm.engine.chat_prompt)
            workload.check_fits(llm.engine.max_model_len)
            known = spell(llm, workload)
            target = Target.parse(server.url)
            load = Load(target, plan.model, workload)
            load.send(plan.is_stream, None)  # the server's first run is not counted; `spell` was the other's
            rounds = _rounds(plan, llm, load, with_children([server.pid]))
            paced = load.send(True, plan.streams)
        found = delays(paced.answers, known, token_times(journal))
    return _report(plan, workload, rounds, paced, found)


def spell(llm: LLM, workload: Workload) -> list[Spelling]:
    """The answer to each prompt, with the characters that each token completes."""
    pieces: list[list[Delta]] = [[] for _ in workload.jobs]
    for job, own in zip(workload.jobs, pieces, strict=True):
        llm.engine.add_request(job.prompt, _params(job.max_tokens), on_output=own.append)
    while llm.engine.step():
        pass
    return [_spelling(own) for own in pieces]


def _spelling(pieces: Sequence[Delta]) -> Spelling:
    text, ends = "", []
    for piece in pieces:
        ends += [len(text)] * (len(piece.token_ids) - 1)
        text += piece.text
        ends += [len(text)] if piece.token_ids else []
    if ends:
        ends[-1] = len(text)  # text that was held back comes with the end
    return Spelling(text, ends)


def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


@dataclass(frozen=True)
class Load:
    """A workload as a server gets it."""

    target: Target
    model: str
    workload: Workload

    def send(self, is_stream: bool, max_concurrency: int | None) -> LoadResult:
        """Send all of it, at once or so many at a time.

        Raises:
            RequestFailed: an answer was not whole.
        """
        prompts = [Prompt(job.prompt, job.max_tokens) for job in self.workload.jobs]
        shape = Shape(self.model, is_stream=is_stream)
        many = list(asks(prompts, Pace(), shape, Behaviour(), 0, len(prompts)))
        gc.collect()
        result = asyncio.run(send_all(Client(self.target, max_concurrency=max_concurrency), many))
        for answer in result.answers:
            if not answer.is_complete:
                raise RequestFailed(f"{answer.request_id}: {answer.outcome}: {answer.message}")
        return result


def _rounds(plan: Cost, llm: LLM, load: Load, pids: list[int]) -> list[dict[str, float]]:
    """Output tokens a second of both sides in each round, and CPU milliseconds a token.

    CPU time is that of this process and of the server's: in a server's run this one is its client.
    """
    print("\n       tokens/s               server/  CPU ms a token")
    print("round       LLM      server      LLM       LLM   server")
    tokens, found = load.workload.num_output_tokens, []
    for number in range(plan.rounds):
        speeds: dict[str, float] = {}
        for side in ("llm", "server") if number % 2 == 0 else ("server", "llm"):
            before = sum(map(cpu_seconds, (os.getpid(), *pids)))
            seconds = _generate(llm, load.workload) if side == "llm" else load.send(plan.is_stream, None).elapsed_s
            speeds[side] = tokens / seconds
            speeds[f"{side}_cpu_ms"] = (sum(map(cpu_seconds, (os.getpid(), *pids))) - before) * 1e3 / tokens
        found.append(speeds)
        print(_row(str(number + 1), speeds))
    return found


def _generate(llm: LLM, workload: Workload) -> float:
    """Seconds of `LLM.generate`."""
    prompts = [job.prompt for job in workload.jobs]
    params = [_params(job.max_tokens) for job in workload.jobs]
    gc.collect()
    began = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - began


def _row(name: str, values: dict[str, float]) -> str:
    llm, server = values["llm"], values["server"]
    cpu = f"{values['llm_cpu_ms']:10.3f}{values['server_cpu_ms']:9.3f}"
    return f"{name:6}{llm:9,.1f}{server:12,.1f}{server / llm:9.4f}{cpu}"


def _report(
    plan: Cost, workload: Workload, rounds: list[dict[str, float]], paced: LoadResult, found: Delays
) -> dict[str, Any]:
    """Print what was found; the record."""
    from .environment import environment

    columns = {name: [speeds[name] for speeds in rounds] for name in rounds[0]}
    ratio = ratio_of_medians(columns["server"], columns["llm"])
    cpu_ratio = ratio_of_medians(columns["llm_cpu_ms"], columns["server_cpu_ms"])
    added = Distribution.of(found.added_ms)
    itl = Distribution.of([itl for answer in paced.answers for itl in answer.itls_ms])
    print(_row("median", {name: median(values) for name, values in columns.items()}))
    print(f"ratio of medians, server over LLM.generate: {ratio:.4f}; by CPU time a token: {cpu_ratio:.4f}")
    print(f"\n{plan.streams} streams open at a time, {added.count:,} pieces of {found.num_compared} answers:")
    print(table(["", "p50", "p90", "p99", "mean", "max"], [_cells("added ms per token", added), _cells("itl ms", itl)]))
    if found.num_others:
        print(f"{found.num_others} answers are left out: another text than LLM.generate's, or not in the journal")
    return {
        "what": "serving-cost",
        "model": plan.model,
        "stream": plan.is_stream,
        "options": plan.options,
        "workload": plan.spec.as_record()
        | {"prompt_tokens": workload.num_prompt_tokens, "output_tokens": workload.num_output_tokens},
        "rounds": rounds,
        "ratio_of_medians": ratio,
        "ratio_by_cpu_time": cpu_ratio,
        "delay_streams": plan.streams,
        "added_ms": vars(added),
        "itl_ms": vars(itl),
        "other_answers": found.num_others,
        "environment": environment(),
    }


def _cells(name: str, values: Distribution) -> list[str]:
    return [name, *map(milliseconds, (values.p50, values.p90, values.p99, values.mean, values.max))]
