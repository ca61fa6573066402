"""The span of a whole request: what it says when it begins, and when it ends.

Names follow OpenTelemetry's semantic conventions for generative AI where these have one.
"""

from __future__ import annotations

from collections.abc import Iterable

from .events import EngineStarted, RequestArrived, RequestFinished, RequestRefused
from .lives import Life
from .span_draft import Draft, Value
from .span_ids import SpanIds, parse_traceparent
from .span_open import OpenRequest
from .tail_rules import Outcome

OPERATION = "text_completion"  # a chat is text, too, once it has come to the engine
PROVIDER = "nanolens"
REQUEST_PARAMS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}
KNOWN_ELSEWHERE = ("n", "max_tokens", "priority")  # parameters that the event itself or another attribute tells
REAL = ("temperature", "top_p", "frequency_penalty", "presence_penalty")  # kept as such also where given as integers


def root_name(model: str) -> str:
    """The name of a request's span."""
    return f"{OPERATION} {model}"


def open_arrived(ids: SpanIds, run: EngineStarted, e: RequestArrived) -> OpenRequest:
    """The open request of an arrival."""
    attributes = _common(run, e.request)
    attributes["gen_ai.request.max_tokens"] = e.max_tokens
    for name, value in e.params.items():
        if value is None or name in KNOWN_ELSEWHERE:
            continue
        attributes[REQUEST_PARAMS.get(name, f"nanolens.params.{name}")] = float(value) if name in REAL else value
    if len(e.seqs) > 1:
        attributes["gen_ai.request.choice.count"] = len(e.seqs)
    attributes["gen_ai.usage.input_tokens"] = e.num_prompt_tokens
    attributes["nanolens.priority"] = e.priority
    for name, told in (e.route or {}).items():
        attributes["nanolens.replica" if name == "replica" else f"nanolens.route.{name}"] = told
    caller = parse_traceparent(e.traceparent)
    root_id, parent_id = ids.root_id(e.request, e.t), caller.span_id if caller is not None else 0
    root = Draft(root_name(run.model), root_id, parent_id, e.t, -1, attributes)
    root.list_ids("nanolens.seqs", e.seqs)
    return OpenRequest(e.request, e.t, ids.trace_id(e.request, e.t, caller), root, caller)


def open_joined(ids: SpanIds, run: EngineStarted, request: str, arrived_t: int) -> OpenRequest:
    """The open request of a keyframe, which doesn't tell its parameters nor its caller."""
    attributes = _common(run, request)
    attributes["nanolens.partial"] = True
    root = Draft(root_name(run.model), ids.root_id(request, arrived_t), 0, arrived_t, -1, attributes)
    return OpenRequest(request, arrived_t, ids.trace_id(request, arrived_t), root)


def refused(ids: SpanIds, run: EngineStarted, e: RequestRefused) -> OpenRequest:
    """A request that was refused: it has a root, without length, and nothing else."""
    attributes = _common(run, e.request)
    attributes["error.type"] = e.reason
    attributes["nanolens.refused.field"] = e.field
    attributes["nanolens.refused.reason"] = e.reason
    caller = parse_traceparent(e.traceparent)
    root_id, parent_id = ids.refused_id(e.request, e.t), caller.span_id if caller is not None else 0
    root = Draft(root_name(run.model), root_id, parent_id, e.t, e.t, attributes)
    root.error = f"refused: {e.field or 'request'} ({e.reason})"
    return OpenRequest(e.request, e.t, ids.trace_id(e.request, e.t, caller), root, caller)


def _common(run: EngineStarted, request: str) -> dict[str, Value]:
    return {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": run.model,
        "nanolens.run": run.run_id,
        "nanolens.request": request,
    }


def finish_root(request: OpenRequest, e: RequestFinished) -> None:
    """Note how a request ended."""
    attributes = request.root.attributes
    attributes["gen_ai.usage.input_tokens"] = e.num_prompt_tokens
    attributes["gen_ai.usage.output_tokens"] = e.num_output_tokens
    attributes["gen_ai.usage.cache_read.input_tokens"] = e.num_cached_tokens
    attributes["gen_ai.response.model"] = attributes["gen_ai.request.model"]
    attributes["gen_ai.response.finish_reasons"] = tuple(seq.ended for seq in request.seqs if seq.ended)
    attributes["nanolens.finish_reason"] = e.finish_reason
    if e.finish_reason == "error":
        fail_root(request, "error", e.error or "error")
        for seq in request.seqs:
            if seq.ended == "error":
                seq.state.error = e.error or "error"
    elif e.finish_reason == "abort":
        expired = any(seq.state.error == "expired" for seq in request.seqs)
        fail_root(request, "expired" if expired else "aborted", "expired" if expired else "aborted")


def fail_root(request: OpenRequest, kind: str, message: str) -> None:
    """Give a request's span the status ERROR."""
    request.root.attributes["error.type"] = kind
    request.root.error = message


def note_lives(request: OpenRequest, lives: Iterable[Life]) -> None:
    """Note where the time of a request's sequences went; of several, the sum."""
    attributes = request.root.attributes
    known = list(lives)
    if not known:
        return
    for part in ("queued", "prefill", "decode", "preempted", "paused"):
        attributes[f"nanolens.{part}_seconds"] = sum(getattr(life, part + "_ns") for life in known) / 1e9
    attributes["nanolens.preemptions"] = sum(life.num_preemptions for life in known)
    attributes["nanolens.pauses"] = sum(life.num_pauses for life in known)
    attributes["nanolens.peak_blocks"] = max(life.peak_blocks for life in known)
    first_t = min((life.first_token_t for life in known if life.first_token_t), default=0)
    if first_t:
        attributes["nanolens.time_to_first_token_seconds"] = (first_t - request.arrived_t) / 1e9


def outcome_of(request: OpenRequest, finish_reason: str) -> Outcome:
    """What the tail rules ask of a request that has ended; its finish reason is "" where its end was not seen."""
    root = request.root
    ttft_s = root.attributes.get("nanolens.time_to_first_token_seconds")
    return Outcome(
        trace_id=request.trace_id,
        request_s=(root.end_t - root.start_t) / 1e9,
        ttft_s=ttft_s if isinstance(ttft_s, float) else None,
        failed=root.error is not None and finish_reason != "abort",
        aborted=finish_reason == "abort",
        preempted=request.preempts,
        parent_sampled=request.caller.sampled if request.caller is not None else None,
    )
