"""One sequence's life: where its time went and what it held. Knows no events."""

from __future__ import annotations

from dataclasses import dataclass, field

FINAL = ("FINISHED", "ERROR")


@dataclass(slots=True)
class Life:
    """One sequence. Times are clock nanoseconds; 0 for what has not happened.

    `queued_ns + prefill_ns + decode_ns + preempted_ns + paused_ns` is the time from `since_t` to `until_t`, exactly.

    Attributes:
        seq: its id.
        request: the request it belongs to.
        since_t: its arrival; the keyframe's time for one that was joined in the middle of its life.
        until_t: its end, or the last event that concerned it.
        status: as in its last transition.
        reason: of its last transition.
        num_prompt_tokens: of its prompt.
        num_output_tokens: sampled, read and kept.
        num_cached_tokens: of the prompt, found in the prefix cache at the first admission.
        num_preemptions: how often it lost its place to another.
        num_pauses: how often it entered PAUSED, since `since_t`.
        num_blocks: blocks on the device that it holds.
        peak_blocks: the most that it held at once, shared ones included.
        queued_ns: WAITING, for the first admission or after a pause.
        prefill_ns: RUNNING, from an admission to the next token read: a recomputation counts here too.
        decode_ns: RUNNING, after that.
        preempted_ns: WAITING after a preemption.
        paused_ns: PAUSED.
        first_token_t: when its first token was read.
        last_token_t: when its newest one was.
        intervals_ns: times between its tokens, where the projection keeps them.
    """

    seq: int
    request: str
    since_t: int
    num_prompt_tokens: int
    until_t: int = 0
    status: str = ""
    reason: str = ""
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_pauses: int = 0
    num_blocks: int = 0
    peak_blocks: int = 0
    queued_ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    preempted_ns: int = 0
    paused_ns: int = 0
    first_token_t: int = 0
    last_token_t: int = 0
    intervals_ns: list[int] = field(default_factory=list)
    part: str = "queued"  # the part of its life that it is in; "" once it has ended
    computed: int = 0  # tokens that planned steps compute
    target: int = 0  # tokens that it had at its last admission: computed, they end the prefill
    num_appended_tokens: int = 0  # put in by `resume`
    interval_ns: int = 0  # between tokens, without the times across a pause
    num_intervals: int = 0
    rested: bool = False  # it was PAUSED since its newest token

    @property
    def lifetime_ns(self) -> int:
        """The sum of the parts."""
        return self.until_t - self.since_t

    @property
    def ended(self) -> bool:
        """Whether it is FINISHED or in ERROR."""
        return self.status in FINAL

    @property
    def decodes(self) -> bool:
        """Whether it is RUNNING and its prefill is planned to the end."""
        return self.status == "RUNNING" and self.computed >= self.target

    def enter(self, part: str, t: int) -> None:
        """End the current part of its life at `t` and begin another."""
        self.advance(t)
        self.part = part

    def advance(self, t: int) -> None:
        """Count the time up to `t` to the part that it is in."""
        if self.part:
            name = self.part + "_ns"
            setattr(self, name, getattr(self, name) + t - self.until_t)
            self.until_t = t
