"""`--vs transformers`: the same requests through transformers' own generation, in the same process and in turn.

Its padded `generate` (left padding, SDPA) and its continuous batching (`generate_batch`), greedy, in the same dtype.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..engine.build import build_engine
from ..errors import InvalidConfig
from ..models import resolve_model
from .offline import Offline, base_record, dtype_of
from .report import environment_lines, table
from .runs import WARM_UP, run_jobs
from .stats import median, ratio_of_medians
from .subject import load
from .workload import Job, Workload

if TYPE_CHECKING:
    from ..engine.runner.load import LoadedModel

DEFAULT_ROUNDS = 3
SETTLING_TOKENS = 4  # of a first run that doesn't count
OURS, PADDED, CONTINUOUS = "nanolens", "transformers generate", "transformers continuous"
CB_PAGE = 256  # tokens in a page of transformers' cache

Ids = list[list[int]]


@dataclass
class Side:
    """One way to answer the requests.

    Attributes:
        name: in the table.
        generate: jobs to their output ids.
        rates: output tokens a second of each run.
        ids: of the last run.
        failure: why there are no figures.
    """

    name: str
    generate: Callable[[list[Job]], Ids]
    rates: list[float] = field(default_factory=list)
    ids: Ids = field(default_factory=list)
    failure: str = ""

    def run(self, jobs: list[Job]) -> None:
        """Time one run; a failure ends this side and is kept."""
        if self.failure:
            return
        began = time.perf_counter()
        try:
            self.ids = self.generate(jobs)
        except Exception as error:  # whatever another library raises: the table says it
            self.failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            return
        self.rates.append(sum(job.max_tokens for job in jobs) / (time.perf_counter() - began))

    def settle(self, jobs: list[Job]) -> None:
        """A short run that doesn't count."""
        self.run([Job(job.prompt, min(job.max_tokens, SETTLING_TOKENS)) for job in jobs])
        self.rates.clear()


def run_versus(plan: Offline, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run all sides in turn and print the table; the record for JSON.

    Raises:
        InvalidConfig: a dummy model, or requests of unequal output lengths.
    """
    directory = resolve_model(plan.config.model)
    if not isinstance(directory, Path):
        raise InvalidConfig(f"--vs transformers needs files, not {plan.config.model}: give --model smollm2")
    parts, workload = load(plan, say)
    if len({job.max_tokens for job in workload.jobs}) > 1:
        raise InvalidConfig("--vs transformers needs one output length for all requests: give --output-len N")
    record = base_record("versus transformers", plan, parts, workload)
    for line in environment_lines(record):
        say(line)
    engine = build_engine(plan.config, parts)
    try:
        workload.check_fits(engine.max_model_len)
        run_jobs(engine, [WARM_UP], 0.0)
        ours = Side(OURS, lambda jobs: [output.outputs[0].token_ids for output in run_jobs(engine, jobs, 0.0)])
        sides = [ours, *transformers_sides(directory, parts)]
        compare(sides, workload, plan.rounds or DEFAULT_ROUNDS, say)
    finally:
        engine.close()
    if ours.failure:
        raise InvalidConfig(f"nanolens itself could not run these requests: {ours.failure}")
    say("")
    say(side_table(sides))
    record["sides"] = {
        side.name: {
            "output_tokens_per_s": side.rates,
            "median": median(side.rates) if side.rates else None,
            "ratio_of_medians": ratio_of_medians(ours.rates, side.rates) if side.rates else None,
            "rows_that_agree": rows_that_agree(ours.ids, side.ids) if side.rates else None,
            "failure": side.failure or None,
        }
        for side in sides
    }
    return record


def compare(sides: list[Side], workload: Workload, rounds: int, say: Callable[[str], None]) -> None:
    """Let each side settle, then run all of them in turn and say each figure; each round begins with the next side."""
    for side in sides:
        side.settle(workload.jobs)
    for number in range(rounds):
        first = number % len(sides)
        for side in sides[first:] + sides[:first]:
            side.run(workload.jobs)
            figure = "failed" if side.failure else f"{side.rates[-1]:,.1f} tokens/s"
            say(f"run {number + 1}: {side.name} {figure}")


def side_table(sides: list[Side]) -> str:
    """Rates, medians, and how many times as fast the first side is as each; failures below."""
    ours = sides[0]
    rows = []
    for side in sides:
        if side.failure:
            rows.append([side.name, "failed", "-", "-", "-"])
            continue
        agree = f"{rows_that_agree(ours.ids, side.ids)} of {len(ours.ids)}"
        ratio = f"{ratio_of_medians(ours.rates, side.rates):.2f}"
        runs = " ".join(f"{rate:,.1f}" for rate in side.rates)
        rows.append([side.name, f"{median(side.rates):,.1f}", ratio, agree, runs])
    head = ["", "output tokens/s, median", f"{ours.name} / it", "rows that agree", "runs"]
    failures = [f"\n{side.name}: {side.failure}" for side in sides if side.failure]
    return table(head, rows) + "".join(failures)


def rows_that_agree(ours: Ids, theirs: Ids) -> int:
    """Requests with the same output ids."""
    return sum(a == b for a, b in zip(ours, theirs, strict=False))


def transformers_sides(directory: Path, parts: LoadedModel) -> list[Side]:
    """Both ways of transformers, on one model of theirs."""
    import transformers

    quiet_transformers()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype_of(parts), attn_implementation="sdpa", local_files_only=True
    )
    model = model.to(parts.device).eval()
    return [
        Side(PADDED, lambda jobs: padded_generate(model, jobs, parts.device)),
        Side(CONTINUOUS, lambda jobs: continuous_generate(model, jobs)),
    ]


def quiet_transformers() -> None:
    """No progress bars and log lines between the figures; what fails is in the table."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"transformers\.")


def greedy_config(max_tokens: int) -> Any:
    """Greedy generation to the full length: no end of sequence."""
    from transformers import GenerationConfig

    return GenerationConfig(do_sample=False, max_new_tokens=max_tokens, eos_token_id=None, pad_token_id=0)


@torch.inference_mode()
def padded_generate(model: Any, jobs: list[Job], device: torch.device) -> Ids:
    """One batch, padded on the left."""
    model.set_attn_implementation("sdpa")  # continuous batching may have left another
    width = max(len(job.prompt) for job in jobs)
    ids = torch.tensor([[0] * (width - len(job.prompt)) + job.prompt for job in jobs], device=device)
    mask = torch.tensor([[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in jobs], device=device)
    config = greedy_config(jobs[0].max_tokens)
    output = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    found: Ids = output[:, width:].tolist()
    return found


def continuous_generate(model: Any, jobs: list[Job]) -> Ids:
    """Transformers' continuous batching with a cache of the size that these requests need.

    Left to itself it takes all memory on a CPU, and filling that takes longer than the requests.
    """
    from transformers import ContinuousBatchingConfig

    pages = sum(-(-(len(job.prompt) + job.max_tokens) // CB_PAGE) for job in jobs) + 1
    cache = ContinuousBatchingConfig(num_blocks=pages, max_batch_tokens=sum(len(job.prompt) for job in jobs))
    results = model.generate_batch(
        inputs=[job.prompt for job in jobs],
        generation_config=greedy_config(jobs[0].max_tokens),
        continuous_batching_config=cache,
    )
    found = [list(result.generated_tokens) for result in results.values()]
    short = [result for result in results.values() if len(result.generated_tokens) < jobs[0].max_tokens]
    if len(found) < len(jobs) or short:
        reason = next((str(result.error) for result in results.values() if result.error), "no reason given")
        raise RuntimeError(f"{len(found) - len(short)} of {len(jobs)} requests came back whole: {reason}")
    return found
