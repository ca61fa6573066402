"""Commands for live requests and for the engine itself: pause, resume, finish, go on. Validates; the core acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidRequest, NotPaused, UnknownRequest, shown
from ..telemetry.events import Mark, StreamStalled
from .core import EngineCore
from .progress import Progress
from .request_fields import Prompt, as_name, as_token_ids
from .sampling_params import check_token_ids, check_whole
from .sequence import Sequence, SequenceStatus

if TYPE_CHECKING:
    from ..models.tokenizer import AnyTokenizer

MAX_STEPS = 2**31 - 1  # that a paused engine can be granted at once
MAX_NS = 2**63 - 1
MAX_MARK = 2000  # characters of a note in the journal


class Controls:
    """The part of `Engine` that steers what was added before.

    Args:
        core: the step loop and its commands.
        tokenizer: None where only token ids come and go.
        vocab_size: every token id is below it.
    """

    def __init__(self, core: EngineCore, tokenizer: AnyTokenizer | None, vocab_size: int) -> None:
        self.core = core
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size

    @property
    def max_model_len(self) -> int:
        """Longest prompt + output of a sequence."""
        return self.core.max_model_len

    def pause(self, request_id: str, index: int | None = None, reason: str = "operator") -> bool:
        """Pause a request's sequences, or the one of this index; they keep their KV and give up their slot.

        Args:
            request_id: a live request.
            index: which of its n sequences; None: all that run or wait.
            reason: "operator", or "await_input" where the caller is going to append something (a tool's answer).

        Returns:
            Whether a sequence was paused now.

        Raises:
            UnknownRequest: no live request has this id.
            InvalidRequest: naming the argument.
            EngineDead: the engine was closed.
        """
        if reason not in ("operator", "await_input"):
            raise InvalidRequest("reason", f"reason={shown(reason)}: must be 'operator' or 'await_input'")
        return self.core.pause(self._sequences(request_id, index), reason)

    def resume(
        self,
        request_id: str,
        append: Prompt | None = None,
        max_tokens: int | None = None,
        index: int | None = None,
    ) -> None:
        """Let paused sequences go on, where they stopped or behind something new. What is cached is not computed again.

        Args:
            request_id: a live request.
            append: a text or token ids that come after what the sequence has: the next turn of a conversation. They
                are part of neither the prompt nor the output; special tokens are read as such, none are added.
            max_tokens: generated tokens from here on. None: with `append`, the request's own `max_tokens` once more;
                without it, what is left of them.
            index: which of the n sequences; None: all that are paused.

        Raises:
            UnknownRequest: no live request has this id.
            NotPaused: nothing of it is paused, or not the one of this index.
            InvalidRequest: naming the argument; nothing has changed.
            EngineDead: the engine was closed.
        """
        paused = self._paused(request_id, index)
        token_ids = [] if append is None else self._appended(append)
        limits = [self._limit(seq, token_ids, max_tokens) for seq in paused]
        self.core.resume(paused, token_ids, limits)

    def finish(self, request_id: str, index: int | None = None) -> None:
        """End paused sequences in order: what they have generated is their output.

        Raises:
            UnknownRequest: no live request has this id.
            NotPaused: nothing of it is paused, or not the one of this index.
            EngineDead: the engine was closed.
        """
        self.core.finish(self._paused(request_id, index))

    def set_priority(self, request_id: str, priority: int) -> None:
        """Change the priority of a live request; lower is more urgent. It acts under policy="priority".

        Raises:
            UnknownRequest: no live request has this id.
            InvalidRequest: it is no whole number in range.
            EngineDead: the engine was closed.
        """
        self.core.set_priority(self._sequences(request_id, None), check_whole("priority", priority))

    @property
    def engine_paused(self) -> str:
        """Why the engine plans no steps; "" while it does."""
        return self.core.scheduler.paused

    def pause_engine(self, cause: str = "operator") -> None:
        """Plan no more steps; what is in flight is read. Paused sequences don't expire meanwhile.

        Raises:
            EngineDead: the engine was closed.
        """
        self.core.require_open()
        self.core.pause_engine(as_name("cause", cause) or "operator")

    def continue_engine(self, num_steps: int = 0) -> None:
        """Plan on: this many steps, then pause again; 0: until someone pauses it.

        Raises:
            InvalidRequest: num_steps is no whole number in range.
            EngineDead: the engine was closed.
        """
        self.core.require_open()
        if not isinstance(num_steps, int) or isinstance(num_steps, bool) or not 0 <= num_steps <= MAX_STEPS:
            allowed = f"must be a whole number of at least 0 and at most {MAX_STEPS}"
            raise InvalidRequest("num_steps", f"num_steps={shown(num_steps)}: {allowed}")
        self.core.continue_engine(num_steps)

    def add_breakpoint(self, predicate: str, action: str = "engine") -> int:
        """Pause the engine, or the sequence concerned, after the step in which an event meets the predicate.

        Args:
            predicate: as `on=preempted`, `on=status to=PAUSED`, `on=blocks.allocated free<10`, `seq=17`; see
                telemetry/predicate.py.
            action: "engine" or "sequence".

        Returns:
            The breakpoint's number.

        Raises:
            InvalidRequest: it can't be understood, or the engine records nothing.
            EngineDead: the engine was closed.
        """
        self.core.require_open()
        return self.core.watch(predicate, action)

    def remove_breakpoint(self, number: int) -> bool:
        """Remove a breakpoint; False when there is none of this number."""
        return type(number) is int and self.core.unwatch(number)

    @property
    def breakpoints(self) -> dict[int, str]:
        """The breakpoints by number, each in words."""
        return self.core.breakpoints.listed

    @property
    def next_deadline(self) -> int | None:
        """When the next paused sequence expires (a `step` does it), in clock nanoseconds; None: none will."""
        return self.core.next_deadline

    def mark(self, text: str, origin: str = "operator") -> None:
        """Put a note into the journal, between what happened before and after it.

        Args:
            text: 1 to 2,000 characters; it stands there as given, so it should hold nothing of a prompt.
            origin: who says so.

        Raises:
            InvalidRequest: naming the argument.
            EngineDead: the engine was closed.
        """
        self.core.require_open()
        text, origin = as_name("text", text, MAX_MARK), as_name("origin", origin)
        if not text:
            raise InvalidRequest("text", "text='': a note has at least one character")
        self.core.recorder.record(Mark(self.core.clock(), text, origin))
        self.core.flush()

    def note_stall(self, request_id: str, stalled_ns: int, pieces: int, end_t: int = 0) -> None:
        """Have the journal hold that the reader of a request's stream held it up. The request may have ended.

        Args:
            request_id: whose stream.
            stalled_ns: for how long, at least 1.
            pieces: that waited meanwhile.
            end_t: until when, in clock nanoseconds; 0, or a time to come: until now.

        Raises:
            InvalidRequest: naming the argument.
            EngineDead: the engine was closed.
        """
        self.core.require_open()
        request_id = as_name("request_id", request_id)
        for name, value, least in (("stalled_ns", stalled_ns, 1), ("pieces", pieces, 0), ("end_t", end_t, 0)):
            if type(value) is not int or not least <= value <= MAX_NS:
                raise InvalidRequest(name, f"{name}={shown(value)}: must be a whole number from {least} to {MAX_NS}")
        now = self.core.clock()
        self.core.recorder.record(StreamStalled(min(end_t, now) if end_t else now, request_id, stalled_ns, pieces))
        self.core.flush()

    @property
    def progress(self) -> Progress:
        """How far the engine has come. Costs O(live sequences): whoever watches it asks often."""
        scheduler, live = self.core.scheduler, len(self.core.book.live_sequences)
        waiting, running = len(scheduler.waiting), len(scheduler.running)
        return Progress(
            step=scheduler.step, waiting=waiting, running=running, paused=live - waiting - running,
            free_blocks=len(self.core.blocks.free), engine_paused=scheduler.paused,
        )  # fmt: skip

    def locate(self, seq: int) -> tuple[str, int] | None:
        """The request that a live sequence belongs to, and its index there; None where none has this number."""
        for request in self.core.requests.values():
            for index, each in enumerate(request.sequences):
                if each.seq_id == seq and each.is_live:
                    return request.request_id, index
        return None

    def die(self, message: str) -> None:
        """End every open request in ERROR with this message, and the engine: each later call raises EngineDead."""
        self.core.die(message)

    def _sequences(self, request_id: str, index: int | None) -> list[Sequence]:
        self.core.require_open()
        request = self.core.requests.get(request_id) if isinstance(request_id, str) else None
        if request is None:
            raise UnknownRequest(f"no live request has the id {shown(request_id)}")
        if index is None:
            return list(request.sequences)
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(request.sequences):
            last = len(request.sequences) - 1
            raise InvalidRequest("index", f"index={shown(index)}: the request has sequences 0 to {last}")
        return [request.sequences[index]]

    def _paused(self, request_id: str, index: int | None) -> list[Sequence]:
        sequences = self._sequences(request_id, index)
        paused = [seq for seq in sequences if seq.status is SequenceStatus.PAUSED]
        if not paused:
            states = ", ".join(sorted({seq.status.value for seq in sequences if seq.status}))
            raise NotPaused(f"request {request_id} is not paused: {states}")
        return paused

    def _appended(self, append: Prompt) -> list[int]:
        """Token ids to put after those of a sequence."""
        if isinstance(append, str):
            if self.tokenizer is None:
                raise InvalidRequest("append", "this model has no tokenizer: append token ids")
            try:
                token_ids = self.tokenizer.encode(append, add_special_tokens=False)
            except InvalidRequest as error:
                raise InvalidRequest("append", str(error).replace("prompt", "append", 1)) from None
        else:
            token_ids = as_token_ids(append, "append")
        check_token_ids("append", token_ids, self.vocab_size)
        return token_ids

    def _limit(self, seq: Sequence, token_ids: list[int], max_tokens: int | None) -> int:
        """Tokens that a paused sequence may have generated in all when it goes on."""
        total = len(seq.token_ids) + len(token_ids)
        if total >= self.max_model_len:
            raise InvalidRequest(
                "append",
                f"sequence {seq.seq_id} would have {total} tokens: at most {self.max_model_len - 1} leave room for one "
                f"more, since max_model_len={self.max_model_len}",
            )
        done = seq.num_output_tokens
        if max_tokens is not None:
            return done + check_whole("max_tokens", max_tokens)
        if token_ids:
            own = seq.params.max_tokens
            return self.max_model_len if own is None else done + own
        if done >= seq.max_tokens:
            raise InvalidRequest(
                "max_tokens", f"sequence {seq.seq_id} has generated its {done} tokens: give max_tokens for more"
            )
        return seq.max_tokens
