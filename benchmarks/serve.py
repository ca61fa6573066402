"""`nano-bench serve`: flags to a load on a running server, what it prints while it runs, and its figures."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidConfig
from .offline import CHAT_PROMPTS, factor, lengths, write_json
from .serve_check import Finding, check_memory, check_server, check_streams
from .serve_figures import Goals, figure_lines, figures
from .serve_http import Broken, Target, fetch
from .serve_load import Client, LoadResult, Progress, send_all
from .serve_memory import MemoryWatch, pids_listening, with_children
from .serve_requests import Behaviour, Pace, Prompt, Shape, asks, prompts, trace_pace
from .workload import MAX_DRAWN_ID, WorkloadSpec

DEFAULT_REQUESTS, DEFAULT_LENGTHS = 200, (16, 64)
CHECKED_PROMPTS = 16  # distinct prompts of a check, so that equal ones meet
DESCRIPTION = """\
Send requests to a server with OpenAI's API, and time its answers as a client sees them.

Requests come at a rate of their own, whatever the server does (--request-rate, a trace's times), or as others end
(--max-concurrency). The names in the JSON file are those of vLLM's serving benchmark. Clients can misbehave on purpose,
and --check looks at nano-serve afterwards: streams, gauges, blocks, memory. The exit status is 1 when something that
should not have happened did."""


@dataclass(frozen=True)
class Serve:
    """What the flags came to, before the server was asked anything.

    Attributes:
        client: how requests are sent.
        spec: which prompts.
        pace: when.
        behaviour: how clients behave.
        goals: service levels.
        total: how many requests; None: by time, or all of a trace.
        check: whether to look at the server afterwards.
    """

    client: Client
    spec: WorkloadSpec
    pace: Pace
    behaviour: Behaviour
    goals: Goals
    total: int | None
    check: bool


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("url", metavar="URL", help="of the server: http://HOST:PORT")
    what = parser.add_argument_group("what is sent")
    what.add_argument("--model", help="its name at the server (default: the first that it lists)")
    what.add_argument("--num-requests", type=int, metavar="N", help=f"default: {DEFAULT_REQUESTS}, or a whole trace")
    what.add_argument("--duration", type=float, metavar="S", help="send for so long instead, the prompts in turn")
    what.add_argument("--input-len", type=lengths, metavar="MIN:MAX", help="prompt tokens, random ids (default: 16:64)")
    what.add_argument("--output-len", type=lengths, metavar="MIN:MAX", help="output tokens (default: 16:64)")
    what.add_argument("--text", action="store_true", help="real questions to the chat endpoint instead of random ids")
    what.add_argument("--trace", type=Path, metavar="FILE", help="Azure .csv, Mooncake or MT-bench .jsonl")
    what.add_argument("--limit", type=int, metavar="N", help="rows of the trace (default: all)")
    what.add_argument("--scale-lengths", type=factor, default=1.0, metavar="X", help="factor on all lengths")
    what.add_argument("--shared-prefix", type=float, default=0.0, metavar="SHARE", help="of each prompt, in all")
    what.add_argument("--distinct", type=int, metavar="N", help="prompts that are drawn, sent in turn (default: all)")
    what.add_argument("--vocab-size", type=int, metavar="N", help="drawn ids stay below it")
    what.add_argument("--temperature", type=float, default=0.0, metavar="X", help="default: 0")
    what.add_argument("--stop-at-eos", action="store_true", help="answers may end before their length")
    what.add_argument("--no-stream", action="store_true", help="answers come whole")
    what.add_argument("--seed", type=int, default=0, metavar="N", help="of all draws (default: 0)")
    when = parser.add_argument_group("when")
    when.add_argument("--request-rate", type=float, metavar="X", help="requests a second (default: inf)")
    when.add_argument("--burstiness", type=float, default=1.0, metavar="X", help="1: Poisson; below: in bursts")
    when.add_argument("--scale-times", type=factor, default=1.0, metavar="X", help="factor on a trace's times")
    when.add_argument("--max-concurrency", type=int, metavar="N", help="requests that are open at once")
    who = parser.add_argument_group("clients that misbehave, as shares of the requests")
    who.add_argument("--early-close", type=float, default=0.0, metavar="P", help="go away amid the answer")
    who.add_argument("--bad-requests", type=float, default=0.0, metavar="P", help="ask for what must be refused")
    who.add_argument("--slow-readers", type=float, default=0.0, metavar="P", help="sleep between two reads")
    who.add_argument("--slow-pause", type=float, default=1.0, metavar="S", help="how long (default: 1 second)")
    how = parser.add_argument_group("what comes of it")
    how.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS", help="goals: ttft:200 tpot:50 e2el:2000")
    how.add_argument("--check", action="store_true", help="look at the streams and at the server afterwards")
    how.add_argument("--timeout", type=float, default=600.0, metavar="S", help="of each request (default: 600)")
    how.add_argument("--api-key", metavar="KEY", help="default: what OPENAI_API_KEY holds")
    how.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")


def plan_from(arguments: argparse.Namespace) -> Serve:
    """Read the flags.

    Raises:
        InvalidConfig: one that can't be used, or several that say nothing together.
    """
    _check_flags(arguments)
    trace = CHAT_PROMPTS if arguments.text else arguments.trace
    total = arguments.num_requests
    if total is None and arguments.duration is None and trace is None:
        total = DEFAULT_REQUESTS
    spec = WorkloadSpec(
        num_requests=_distinct(arguments, total),
        input_len=arguments.input_len or DEFAULT_LENGTHS,
        output_len=arguments.output_len or DEFAULT_LENGTHS,
        seed=arguments.seed,
        trace=trace,
        limit=arguments.limit,
        scale=arguments.scale_lengths,
        shared_prefix=arguments.shared_prefix,
    )
    rate = math.inf if arguments.request_rate is None else arguments.request_rate
    pace = Pace(rate, arguments.burstiness)
    if arguments.request_rate is None:
        pace = trace_pace(spec, arguments.scale_times) or pace
    api_key = arguments.api_key or os.environ.get("OPENAI_API_KEY") or None
    return Serve(
        client=Client(
            target=Target.parse(arguments.url, api_key),
            timeout_s=arguments.timeout,
            slow_pause_s=arguments.slow_pause,
            max_concurrency=arguments.max_concurrency,
            duration_s=arguments.duration,
        ),
        spec=spec,
        pace=pace,
        behaviour=Behaviour(arguments.early_close, arguments.bad_requests, arguments.slow_readers),
        goals=Goals.parse(arguments.goodput),
        total=total,
        check=arguments.check,
    )


def _distinct(arguments: argparse.Namespace, total: int | None) -> int:
    if arguments.distinct is not None:
        return int(arguments.distinct)
    if arguments.check:
        return min(CHECKED_PROMPTS, total or CHECKED_PROMPTS)
    return total or DEFAULT_REQUESTS


def _check_flags(arguments: argparse.Namespace) -> None:
    """Refuse what can't be used."""
    trace = arguments.trace
    for flag, wrong, hint in (
        ("--text", arguments.text and trace is not None, "and --trace both name prompts; give one"),
        ("--limit", arguments.limit is not None and trace is None, "counts rows of a trace"),
        ("--input-len", arguments.input_len and (trace or arguments.text), "draws prompts; these have their lengths"),
        ("--distinct", arguments.distinct is not None and (trace or arguments.text), "counts drawn prompts"),
        ("--duration", arguments.duration is not None and arguments.num_requests is not None,
         "and --num-requests both end the load; give one"),
        ("--scale-times", arguments.scale_times != 1.0 and (trace is None or arguments.request_rate is not None),
         "scales a trace's own times"),
        ("--early-close", arguments.early_close and arguments.no_stream, "takes streams"),
        ("--duration", arguments.duration is not None and arguments.max_concurrency is None
         and arguments.request_rate is None and trace is None, "needs --request-rate or --max-concurrency"),
    ):  # fmt: skip
        if wrong:
            raise InvalidConfig(f"{flag} {hint}")
    for name, least in (("num_requests", 1), ("max_concurrency", 1), ("distinct", 1), ("vocab_size", 2)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise InvalidConfig(f"{name}={value}: must be at least {least}")
    for name in ("duration", "timeout", "slow_pause"):
        value = getattr(arguments, name)
        if value is not None and not 0.0 < value < math.inf:
            raise InvalidConfig(f"{name}={value}: must be above 0, in seconds")
    if not 0.0 <= arguments.temperature <= 2.0:
        raise InvalidConfig(f"temperature={arguments.temperature}: must be from 0 to 2")
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise InvalidConfig(f"json={arguments.json}: its directory does not exist")


def run(arguments: argparse.Namespace) -> int:
    """Do what the flags say; the exit status.

    Raises:
        NanolensError: flags that can't be used, or a server that can't be reached.
    """
    plan = plan_from(arguments)
    model, vocab_size = asyncio.run(_served(plan.client.target, arguments.model))
    shape = Shape(model, arguments.temperature, arguments.stop_at_eos, not arguments.no_stream)
    drawn = prompts(plan.spec, arguments.vocab_size or vocab_size or MAX_DRAWN_ID + 1)
    print(f"{describe(plan, drawn)}; model {model}, temperature {shape.temperature:g}")
    result, findings = asyncio.run(measure(plan, drawn, shape))
    record = record_of(plan, shape, len(result.answers), drawn[0].is_chat) | figures(result, plan.goals)
    for line in figure_lines(record):
        print(line)
    if findings:
        print("", *(finding.line() for finding in findings), sep="\n")
        record["check"] = [vars(finding) for finding in findings]
    if arguments.json is not None:
        from .environment import environment

        write_json(arguments.json, record | {"environment": environment()})
    return int(record["failed"] > 0 or any(finding.holds is False for finding in findings))


async def _served(target: Target, model: str | None) -> tuple[str, int | None]:
    """The name to ask for, and the vocabulary's size if the server tells it.

    Raises:
        InvalidConfig: the server can't be reached, or doesn't have the model.
    """
    try:
        status, body = await fetch(target, "/v1/models")
        found = {each["id"]: each.get("vocab_size") for each in json.loads(body)["data"]} if status == 200 else {}
    except (Broken, ValueError, KeyError, TypeError) as error:
        raise InvalidConfig(f"{target.host}:{target.port}: no server with OpenAI's API: {error}") from error
    if model is None and not found:
        raise InvalidConfig(f"/v1/models gives status {status}: name the model with --model, a key with --api-key")
    name = next(iter(found)) if model is None else model
    return name, found.get(name)


def describe(plan: Serve, drawn: list[Prompt]) -> str:
    """One line: what is sent, when, and by whom."""
    many = f"{plan.total} requests" if plan.total is not None else f"{len(drawn)} requests"
    if plan.client.duration_s is not None:
        many = f"requests for {plan.client.duration_s:g} s"
    source = f"of {plan.spec.trace.name}" if plan.spec.trace is not None else f"of {len(drawn)} prompts"
    if plan.pace.trace_times is not None:
        when = "at the trace's times"
    elif math.isfinite(plan.pace.rate):
        when = f"{plan.pace.rate:g} a second"
    else:
        when = "all at once" if plan.client.max_concurrency is None else "as others end"
    most = f", at most {plan.client.max_concurrency} open" if plan.client.max_concurrency is not None else ""
    shares = vars(plan.behaviour).items()
    behaviour = "".join(f", {share:.0%} {name.replace('_', ' ')}" for name, share in shares if share)
    return f"{many} {source} to {plan.client.target.host}:{plan.client.target.port}, {when}{most}{behaviour}"


async def measure(plan: Serve, drawn: list[Prompt], shape: Shape) -> tuple[LoadResult, list[Finding]]:
    """Send the load, and check what is to be checked.

    Raises:
        InvalidConfig: the server is gone.
    """
    total = plan.total
    if total is None and plan.client.duration_s is None:
        total = len(drawn)
    load = asks(drawn, plan.pace, shape, plan.behaviour, plan.spec.seed, total)
    target = plan.client.target
    pids = with_children(pids_listening(target.port)) if plan.check and target.is_local else []
    watch = MemoryWatch(pids)
    watcher = asyncio.create_task(watch.watch()) if pids else None
    client = Client(**(vars(plan.client) | {"tell": teller()}))
    try:
        result = await send_all(client, load)
    finally:
        if sys.stderr.isatty():
            print(file=sys.stderr)
        if watcher is not None:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
    if not plan.check:
        return result, []
    findings = check_streams(result.answers, shape.temperature == 0.0)
    return result, [*findings, *await check_server(target), check_memory(watch)]


def teller(every_s: float = 10.0) -> Callable[[Progress], None]:
    """Shows progress on stderr: in one line of a terminal, else now and then."""
    last = time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        line = progress.line(time.monotonic_ns())
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif now - last >= every_s:
            last = now
            print(line, file=sys.stderr, flush=True)

    return tell


def record_of(plan: Serve, shape: Shape, sent: int, is_chat: bool) -> dict[str, Any]:
    """What the JSON file holds beside the figures: names of vLLM's serving benchmark first, then our own."""
    rate = plan.pace.rate
    endpoint = "openai-chat" if is_chat else "openai"
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": endpoint,
        "backend": endpoint,
        "label": None,
        "model_id": shape.model,
        "tokenizer_id": shape.model,
        "num_prompts": sent,
        "request_rate": rate if math.isfinite(rate) else "inf",
        "burstiness": plan.pace.burstiness,
        "max_concurrency": plan.client.max_concurrency,
        "what": "serve",
        "workload": plan.spec.as_record(),
        "trace_times": plan.pace.trace_times is not None,
        "temperature": shape.temperature,
        "stream": shape.is_stream,
        "behaviour": vars(plan.behaviour),
        "goodput_goals_ms": vars(plan.goals),
    }
