"""`nano-bench offline`: flags to a workload and settings, the plain run, and what it prints."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.build import build_engine
from ..engine.config import EngineConfig
from ..errors import InvalidConfig
from .report import environment_lines, result_lines
from .runs import measure
from .settings import add_engine_flags, engine_options
from .subject import prepare
from .traces import Lengths
from .workload import REFERENCE_MAX_MODEL_LEN, Workload, WorkloadSpec

if TYPE_CHECKING:
    import torch

    from ..engine.runner.load import LoadedModel
    from ..models.config import ModelConfig

REFERENCE_MODEL, CPU_MODEL = "dummy:qwen3-0.6b", "smollm2"
CPU_REQUESTS, CPU_LENGTHS = 32, (12, 128)  # the reference's lengths divided by eight
CHAT_PROMPTS = Path(__file__).with_name("prompts.jsonl")
CHAT_OUTPUT_TOKENS = 48
DESCRIPTION = f"""\
Time a batch of requests that all arrive at once, each generating exactly its number of tokens.

On a GPU the default is the reference workload (256 requests of 100 to 1024 prompt and output ids) on {REFERENCE_MODEL};
without one it is {CPU_REQUESTS} requests an eighth as long on {CPU_MODEL}. The first line printed says what runs."""


@dataclass(frozen=True)
class Offline:
    """What the flags came to.

    Attributes:
        config: the engine's settings.
        spec: the workload.
        temperature: of all requests.
        recording: "on", "off" or "pair".
        exporter: whether the side with recording also sends spans and serves metrics.
        rounds: runs of each side in a comparison; None takes that comparison's default.
        json_path: where the figures go, or None.
    """

    config: EngineConfig
    spec: WorkloadSpec
    temperature: float
    recording: str
    rounds: int | None
    json_path: Path | None
    exporter: bool = False


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    what = parser.add_argument_group("what runs")
    what.add_argument("--model", help="directory, hub name, smollm2 or dummy:NAME")
    what.add_argument("--num-requests", type=int, metavar="N", help="requests to draw")
    what.add_argument("--input-len", type=lengths, metavar="MIN:MAX", help="prompt tokens (N means N:N)")
    what.add_argument("--output-len", type=lengths, metavar="MIN:MAX", help="output tokens (N means N:N)")
    what.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws and of the engine (default: 0)")
    what.add_argument("--temperature", type=float, metavar="X", help="default: 0.6; 0 in comparisons")
    what.add_argument("--trace", type=Path, metavar="FILE", help="Azure .csv, Mooncake or MT-bench .jsonl")
    what.add_argument("--limit", type=int, metavar="N", help="rows of the trace (default: all)")
    what.add_argument("--scale-lengths", type=factor, metavar="X", help="factor on all lengths, such as 1/32")
    what.add_argument("--shared-prefix", type=float, metavar="SHARE", help="share of each prompt common to all")
    how = parser.add_argument_group("how it is measured")
    how.add_argument("--recording", choices=("on", "off", "pair"), default="on", help="pair: on and off in turn")
    how.add_argument("--exporter", action="store_true", help="with --recording pair: on has spans and metrics too")
    how.add_argument("--vs", choices=("transformers",), help="the same requests through another engine, in turn")
    how.add_argument("--pairs", type=int, metavar="N", help="runs of each side (default: 5, with --vs 3)")
    how.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    add_engine_flags(parser, frozenset({"model", "recording", "seed"}))


def run(arguments: argparse.Namespace) -> int:
    """Do what the flags say; the exit status.

    Raises:
        NanolensError: flags, model or trace that can't be used.
    """
    _check_flags(arguments)
    plan = plan_from(arguments)
    if arguments.vs:
        from .versus import run_versus

        record = run_versus(plan)
    elif plan.recording == "pair":
        from .pair import run_pair

        record = run_pair(plan)
    else:
        record = run_plain(plan)
    if plan.json_path is not None:
        write_json(plan.json_path, record)
    return 0 if record.get("same_work", True) else 1


def plan_from(arguments: argparse.Namespace) -> Offline:
    """Fill in what the flags leave open; what runs depends on whether there is a GPU.

    Raises:
        InvalidConfig: a value that can't be used.
    """
    import torch

    from ..engine.runner.load import pick_device

    options = engine_options(arguments) | {"seed": arguments.seed}
    on_gpu = pick_device(options.get("device", "auto"), torch.cuda.is_available()).startswith("cuda")
    spec = _spec(arguments, on_gpu and not arguments.vs)
    if spec.is_reference:
        options.setdefault("max_model_len", REFERENCE_MAX_MODEL_LEN)
    if arguments.vs:
        options.setdefault("prefix_cache", False)  # a repeated prompt would cost one side nothing
    recording = arguments.recording
    options["recording"] = recording != "off"  # the flag's "on", "off" and "pair" are not the setting's values
    compared = bool(arguments.vs) or recording == "pair"
    fitting = REFERENCE_MODEL if on_gpu and not arguments.vs else CPU_MODEL
    model = fitting if arguments.model is None else arguments.model
    temperature = arguments.temperature if arguments.temperature is not None else 0.0 if compared else 0.6
    if not 0.0 <= temperature <= 1e6:
        raise InvalidConfig(f"temperature={temperature}: must be at least 0")
    if arguments.pairs is not None and arguments.pairs < 1:
        raise InvalidConfig(f"pairs={arguments.pairs}: must be at least 1")
    if compared and options.get("tensor_parallel_size", 1) != 1:
        raise InvalidConfig(
            f"tensor_parallel_size={options['tensor_parallel_size']}: must be 1 in comparisons, whose runs share one "
            "model in this process; leave --recording pair and --vs out"
        )
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise InvalidConfig(f"json={arguments.json}: its directory does not exist")
    config = EngineConfig.from_options(model, options)
    return Offline(config, spec, temperature, recording, arguments.pairs, arguments.json, arguments.exporter)


def _check_flags(arguments: argparse.Namespace) -> None:
    """Refuse flags that say nothing together."""
    trace = arguments.trace
    for flag, wrong, hint in (
        ("--limit", arguments.limit is not None and trace is None, "counts rows of a trace; --num-requests draws"),
        ("--num-requests", arguments.num_requests is not None and trace, "draws requests; --limit cuts a trace"),
        ("--input-len", arguments.input_len is not None and trace, "draws requests; --scale-lengths scales a trace"),
        ("--pairs", arguments.pairs is not None and not arguments.vs and arguments.recording != "pair",
         "counts runs of a comparison; give --recording pair or --vs"),
        ("--vs", arguments.vs and arguments.recording == "pair", "and --recording pair are two comparisons; give one"),
        ("--temperature", arguments.vs and arguments.temperature, "must be 0 with --vs: ids are compared"),
        ("--journal", arguments.recording == "pair" and hasattr(arguments, "journal"),
         "is chosen by --recording pair itself, in a temporary directory"),
        ("--exporter", arguments.exporter and arguments.recording != "pair", "belongs to --recording pair; --otlp and "
         "--metrics-port start one in a plain run"),
        ("--otlp", arguments.recording == "pair" and {"otlp", "metrics_port"} & vars(arguments).keys(),
         "and --metrics-port are chosen by --recording pair --exporter itself"),
    ):  # fmt: skip
        if wrong:
            raise InvalidConfig(f"{flag} {hint}")


def _spec(arguments: argparse.Namespace, large: bool) -> WorkloadSpec:
    given: dict[str, Any] = {
        "num_requests": arguments.num_requests,
        "input_len": arguments.input_len,
        "output_len": arguments.output_len,
        "seed": arguments.seed,
        "trace": arguments.trace,
        "limit": arguments.limit,
        "scale": arguments.scale_lengths,
        "shared_prefix": arguments.shared_prefix,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if arguments.vs and not {"trace", "num_requests", "input_len"} & given.keys():
        given["trace"] = CHAT_PROMPTS
    if arguments.vs:
        given.setdefault("output_len", (CHAT_OUTPUT_TOKENS, CHAT_OUTPUT_TOKENS))
    if not large:
        given = {"num_requests": CPU_REQUESTS, "input_len": CPU_LENGTHS, "output_len": CPU_LENGTHS} | given
    return WorkloadSpec(**given)


def run_plain(plan: Offline, say: Callable[[str], None] = print) -> dict[str, Any]:
    """One timed run, printed; the record for JSON."""
    import torch

    from .floor import workload_floor

    subject = prepare(plan, say)
    workload, shape = subject.workload, subject.shape
    record = _record("offline", plan, shape, subject.device, workload)
    for line in environment_lines(record):
        say(line)
    engine = build_engine(plan.config, subject.parts)
    try:
        workload.check_fits(engine.max_model_len)
        record["num_blocks"] = engine.core.blocks.num_blocks
        result = measure(engine, workload.jobs, plan.temperature, progress=True)
        # Before the pool is given back: a driver that clears what was freed takes an eighth of the read rate meanwhile.
        floor = workload_floor(
            workload.jobs, result.work.num_cached_tokens, shape, getattr(torch, shape.dtype or "float32"),
            subject.device, plan.config.tensor_parallel_size,
        )  # fmt: skip
    finally:
        engine.close()
    for line in result_lines(result, floor):
        say(line)
    record["result"] = result.as_record()
    record["floor"] = dataclasses.asdict(floor) | {"ratio": floor.seconds / result.elapsed_s}
    return record


def dtype_of(parts: LoadedModel) -> Any:
    """The torch dtype that a loaded model runs in."""
    import torch

    return getattr(torch, parts.model.config.dtype or "float32")


def base_record(what: str, plan: Offline, parts: LoadedModel, workload: Workload) -> dict[str, Any]:
    """What every JSON file holds beside its figures."""
    return _record(what, plan, parts.model.config, parts.device, workload)


def _record(what: str, plan: Offline, shape: ModelConfig, device: torch.device, workload: Workload) -> dict[str, Any]:
    from .environment import environment

    return {
        "what": what,
        "model": plan.config.model,
        "dtype": shape.dtype,
        "device": str(device),
        "temperature": plan.temperature,
        "workload": plan.spec.as_record()
        | {
            "requests": len(workload.jobs),
            "prompt_tokens": workload.num_prompt_tokens,
            "output_tokens": workload.num_output_tokens,
        },
        "config": plan.config.as_record(),
        "environment": environment(),
    }


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a record.

    Raises:
        InvalidConfig: the file can't be written.
    """
    try:
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidConfig(f"json={path}: can't be written: {error}") from error


def lengths(text: str) -> Lengths:
    """`MIN:MAX` or `N`, as argparse reads it."""
    low, _, high = text.partition(":")
    try:
        found = int(low), int(high or low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be MIN:MAX or N, in whole numbers") from None
    if not 1 <= found[0] <= found[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: must be MIN:MAX with 1 <= MIN <= MAX")
    return found


def factor(text: str) -> float:
    """A number or a fraction such as 1/32, as argparse reads it."""
    over, _, under = text.partition("/")
    try:
        return float(over) / float(under or "1")
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number, or a fraction such as 1/32") from None
