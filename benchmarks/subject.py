"""What a run of the offline benchmark is of: a model, loaded here or by its ranks, and its workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .ranks import shape_of
from .workload import Workload, make_workload

if TYPE_CHECKING:
    import torch

    from ..engine.runner.load import LoadedModel
    from ..models.config import ModelConfig
    from .offline import Offline


@dataclass(frozen=True)
class Subject:
    """What one run is of.

    Attributes:
        parts: the model, where it is loaded in this process; None where ranks load it.
        shape: the whole model's, with the dtype that it runs in.
        device: where it runs; with several ranks, the kind of it.
        workload: the requests.
    """

    parts: LoadedModel | None
    shape: ModelConfig
    device: torch.device
    workload: Workload


def load(plan: Offline, say: Callable[[str], None] = print) -> tuple[LoadedModel, Workload]:
    """Say what runs, load the model and make the workload.

    Raises:
        NanolensError: a model or trace that can't be used.
    """
    from ..engine.runner.load import load_parts

    say(f"{plan.spec.describe()}; model {plan.config.model}, temperature {plan.temperature:g}")
    parts = load_parts(plan.config)
    vocab_size = min(parts.tokenizer.vocab_size, parts.model.config.vocab_size)
    return parts, make_workload(plan.spec, vocab_size, parts.tokenizer.apply_chat_template)


def prepare(plan: Offline, say: Callable[[str], None] = print) -> Subject:
    """`load`, or, where ranks load the model, only what this process must know of it.

    Raises:
        NanolensError: a model or trace that can't be used.
    """
    size = plan.config.tensor_parallel_size
    if size == 1:
        parts, workload = load(plan, say)
        return Subject(parts, parts.model.config, parts.device, workload)
    import torch

    from ..engine.runner.load import pick_device
    from ..models import load_tokenizer

    say(f"{plan.spec.describe()}; model {plan.config.model} on {size} ranks, temperature {plan.temperature:g}")
    device = torch.device(pick_device(plan.config.device, torch.cuda.is_available()))
    shape, tokenizer = shape_of(plan.config, device), load_tokenizer(plan.config.model)
    vocab_size = min(tokenizer.vocab_size, shape.vocab_size)
    return Subject(None, shape, device, make_workload(plan.spec, vocab_size, tokenizer.apply_chat_template))
