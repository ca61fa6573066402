"""What spans, their attributes, links and notes are called, and what each means: the docs are made from this.

An attribute that ends in `_count` gives the length of the list of the same name, which may be cut.
"""

from __future__ import annotations

from .span_draft import MAX_EVENTS, MAX_LINKS, MAX_LISTED

SPANS: dict[str, str] = {
    "text_completion {model}": "A request, from its arrival to the end of its last sequence, as request_seconds; kind "
    "SERVER, under the caller's span if its traceparent is valid. One that was refused has no length and nothing under "
    "it.",
    "WAITING": "A status, from the transition into it to the next one; under the request.",
    "RUNNING": "A status, from the transition into it to the next one; under the request.",
    "PAUSED": "A status, from the transition into it to the next one; under the request.",
    "FINISHED": "A final status: without length, at the end of a sequence; under the request.",
    "ERROR": "A final status: without length, at the end of a sequence; under the request.",
    "blocks.allocated": "Blocks that joined a sequence's table; under its status, without length.",
    "blocks.swapped": "A move of blocks to or from the swap space, until its data has arrived; under the status, or "
    "under the request where it outlasts that.",
    "block.copied": "Copy on write of a sibling's partly filled block; under the status, without length.",
    "preempted": "A running sequence loses its place; under the status that this ends, without length.",
    "prefill": "One chunk, from the plan of its step until the step was read; under the status.",
    "decode": "The tokens that a sequence got one a step in one stay in RUNNING, from the plan of the first step until "
    "the last token; under the status.",
}

LINKS: dict[str, str] = {
    "preemptor": "From a preemption to the state, at that time, of the sequence that gets the blocks.",
    "victim": "Back: from that state to the preemption.",
    "filled_by": "From an allocation or copy to the state in which another sequence computed what is shared.",
}

NOTES: dict[str, str] = {
    "sequence.priority": "On a status: its priority was set.",
    "breakpoint.hit": "On a status: an event of the sequence met a breakpoint.",
    "callback.failed": "On a request: a callback of the user raised.",
    "stream.stalled": "On a request: until then the reader of its stream held it up; one that has ended gets no more.",
}

ATTRIBUTES: dict[str, str] = {
    # OpenTelemetry's conventions
    "gen_ai.operation.name": "text_completion.",
    "gen_ai.provider.name": "nanolens.",
    "gen_ai.request.model": "The model as the engine was given it.",
    "gen_ai.request.max_tokens": "Tokens that it may generate.",
    "gen_ai.request.temperature": "Of the request; 0 is greedy, and is there too.",
    "gen_ai.request.top_p": "Of the request.",
    "gen_ai.request.top_k": "Of the request.",
    "gen_ai.request.frequency_penalty": "Of the request.",
    "gen_ai.request.presence_penalty": "Of the request.",
    "gen_ai.request.seed": "Of the request, or the one that it was given.",
    "gen_ai.request.choice.count": "Sequences of the request, where it has several.",
    "gen_ai.response.model": "The model, once it has answered.",
    "gen_ai.response.finish_reasons": "stop, length, abort or error of each sequence.",
    "gen_ai.usage.input_tokens": "Tokens of the prompt.",
    "gen_ai.usage.output_tokens": "Tokens generated, over all its sequences.",
    "gen_ai.usage.cache_read.input_tokens": "Tokens of the prompt found in the prefix cache at the first admission.",
    "error.type": "error, aborted, expired; for a refused request the kind of refusal; engine where the engine ended.",
    # Requests
    "nanolens.run": "Id of the run.",
    "nanolens.request": "Id of the request.",
    "nanolens.seqs": "Its sequences.",
    "nanolens.seqs_count": "How many there are.",
    "nanolens.priority": "Lower is more urgent: as it arrived, or as it was set.",
    "nanolens.params.*": "The other sampling parameters.",
    "nanolens.replica": "Of a fleet: the replica that got it.",
    "nanolens.route.*": "What the fleet's router decided on, as in request.arrived: reason, matched_blocks, load, ...",
    "nanolens.finish_reason": "Of the request: error, abort, length or stop, the first that a sequence has.",
    "nanolens.queued_seconds": "WAITING to be admitted or after a pause; over all sequences, as are the next four.",
    "nanolens.prefill_seconds": "RUNNING, from an admission to the next token.",
    "nanolens.decode_seconds": "RUNNING, after that.",
    "nanolens.preempted_seconds": "WAITING after a preemption.",
    "nanolens.paused_seconds": "PAUSED.",
    "nanolens.preemptions": "How often its sequences lost their place.",
    "nanolens.pauses": "How often its sequences paused.",
    "nanolens.peak_blocks": "The most blocks that one of its sequences held at once.",
    "nanolens.time_to_first_token_seconds": "From arrival until its first token was read.",
    "nanolens.refused.field": "The parameter at fault.",
    "nanolens.refused.reason": "The kind of refusal.",
    "nanolens.message": "What a callback raised.",
    "nanolens.stalled_seconds": "How long a stream was held up by its reader since the note before.",
    "nanolens.pieces": "The most pieces that waited for a reader meanwhile.",
    # Any span
    "nanolens.event": "The event of the journal that the span stands for, one for one.",
    "nanolens.seq": "The sequence; on a link, that of the other end.",
    "nanolens.step": "The engine's step.",
    "nanolens.partial": "The journal does not hold all of it: reading began, or went on after a gap, in its midst.",
    "nanolens.unfinished": "Cut: its status, its request or the journal ended first.",
    "nanolens.truncated": f"Something was cut: a list at {MAX_LISTED}, links at {MAX_LINKS}, notes at {MAX_EVENTS}.",
    # Statuses
    "nanolens.from": "The status before; empty on arrival.",
    "nanolens.to": "The status.",
    "nanolens.reason": "Of the transition.",
    "nanolens.cause_seq": "The sibling whose error ended this sequence.",
    "nanolens.wait.*_seconds": "WAITING for this reason.",
    "nanolens.resume.appended_tokens": "Tokens that the caller put behind what it had.",
    "nanolens.resume.max_tokens": "Tokens that it may have generated in all from here on.",
    "nanolens.prefix.queried": "Tokens that the look-up of this admission asked for.",
    "nanolens.prefix.hit": "Of these, found in the prefix cache.",
    "nanolens.prefix.never_seen": "Of these, in blocks that were never computed.",
    "nanolens.prefix.evicted": "Of these, in blocks that were cached and reused since.",
    "nanolens.prefix.sub_block": "Of these, in a block that is not full.",
    "nanolens.prefix.recompute": "Not the first admission: hits are the sequence's own work found again.",
    "nanolens.breakpoint": "Number of the breakpoint.",
    "nanolens.predicate": "What it waits for.",
    "nanolens.action": "Who pauses: engine or sequence.",
    # Blocks
    "nanolens.blocks": "On a link: how many blocks it is about.",
    "nanolens.blocks.cached": "Blocks shared by reference.",
    "nanolens.blocks.cached_count": "How many there are.",
    "nanolens.blocks.new": "Blocks taken from the free list.",
    "nanolens.blocks.new_count": "How many there are.",
    "nanolens.blocks.evicted": "Of the blocks taken, those whose cached content is lost.",
    "nanolens.blocks.evicted_count": "How many there are.",
    "nanolens.blocks.filled_by_seq": "The sequences that computed what the shared blocks hold.",
    "nanolens.blocks.filled_by_seq_count": "How many there are.",
    "nanolens.blocks.free_before": "Free blocks on the device before.",
    "nanolens.blocks.free_after": "Free blocks on the device after.",
    "nanolens.swap.kind": "out (to host memory or disk), in (to the device), down (host memory to disk).",
    "nanolens.swap.move": "Number of the move; 0: all was still cached on the device.",
    "nanolens.swap.sources": "Places moved from: blocks, and slots of the swap space as -1 - slot.",
    "nanolens.swap.sources_count": "How many there are.",
    "nanolens.swap.targets": "Places moved to.",
    "nanolens.swap.targets_count": "How many there are.",
    "nanolens.swap.bytes": "Moved.",
    "nanolens.swap.copy_seconds": "That copying took.",
    "nanolens.copy.source_seq": "The sibling.",
    "nanolens.copy.source": "Its block.",
    "nanolens.copy.target": "The block copied to.",
    "nanolens.copy.tokens": "Tokens that count as computed with it.",
    # Preemptions
    "nanolens.link": "What a link means.",
    "nanolens.preemption.by_seq": "The sequence that gets the blocks; the victim itself when it was the last.",
    "nanolens.preemption.by_request": "Its request.",
    "nanolens.preemption.cause": "no_blocks, priority, swap_failed.",
    "nanolens.preemption.mode": "recompute or swap.",
    "nanolens.preemption.blocks": "Blocks that the victim held.",
    "nanolens.tokens.lost": "Computed tokens lost.",
    "nanolens.tokens.kept": "Computed tokens whose KV is kept.",
    # Steps
    "nanolens.step.kind": "decode, prefill or mixed.",
    "nanolens.prefill.start": "Position of the chunk's first token.",
    "nanolens.prefill.tokens": "Tokens of the chunk.",
    "nanolens.decode.first_step": "Step of the first token.",
    "nanolens.decode.last_step": "Step of the last one.",
    "nanolens.decode.tokens": "Tokens.",
    "nanolens.decode.skipped_steps": "Steps in between that gave it none.",
    "nanolens.decode.interval_min_seconds": "The shortest time between two tokens, the one before the first included.",
    "nanolens.decode.interval_mean_seconds": "Their mean.",
    "nanolens.decode.interval_max_seconds": "The longest one.",
}


def pattern_of(attribute: str) -> str:
    """The name under which ATTRIBUTES has an attribute: some stand for many."""
    if attribute.startswith("nanolens.wait."):
        return "nanolens.wait.*_seconds"
    for family in ("nanolens.params.", "nanolens.route."):
        if attribute.startswith(family):
            return family + "*"
    return attribute
