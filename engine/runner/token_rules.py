"""What a sequence's parameters add to or forbid in its logits: logit_bias, min_tokens, bad_words. Host side."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..sequence import Sequence


@dataclass(slots=True)
class StepRules:
    """The rules that act in one step, as flat parallel lists over (logits row, token id)."""

    bias_rows: list[int] = field(default_factory=list)
    bias_ids: list[int] = field(default_factory=list)
    bias_values: list[float] = field(default_factory=list)
    mask_rows: list[int] = field(default_factory=list)
    mask_ids: list[int] = field(default_factory=list)
    # forbidden only if the sequence's last token, which the device alone knows, is `after_last`
    after_rows: list[int] = field(default_factory=list)
    after_ids: list[int] = field(default_factory=list)
    after_last: list[int] = field(default_factory=list)


class TokenRules:
    """Rules of one sequence, compiled when it is admitted.

    Args:
        seq: the sequence.
        num_tokens: ids at or above it can't be sampled and need no rule.
    """

    __slots__ = ("bias_ids", "bias_values", "min_tokens", "ends", "bad_words")

    def __init__(self, seq: Sequence, num_tokens: int) -> None:
        params = seq.params
        bias = {token: value for token, value in (params.logit_bias or {}).items() if token < num_tokens}
        self.bias_ids, self.bias_values = list(bias), [float(value) for value in bias.values()]
        self.ends = sorted(token for token in seq.stop_token_ids if token < num_tokens)
        self.min_tokens = params.min_tokens if self.ends else 0
        self.bad_words = [word for word in seq.bad_words_ids if word and word[-1] < num_tokens]

    def __bool__(self) -> bool:
        return bool(self.bias_ids or self.min_tokens or self.bad_words)

    def collect(self, into: StepRules, logits_row: int, seq: Sequence, position: int) -> None:
        """Add what holds for the token at `position` (which `logits_row` of the step will sample)."""
        if self.bias_ids:
            into.bias_rows += [logits_row] * len(self.bias_ids)
            into.bias_ids += self.bias_ids
            into.bias_values += self.bias_values
        if position - seq.num_prompt_tokens - seq.num_appended_tokens < self.min_tokens:
            into.mask_rows += [logits_row] * len(self.ends)
            into.mask_ids += self.ends
        if self.bad_words:
            self._collect_bad_words(into, logits_row, seq, position)

    def _collect_bad_words(self, into: StepRules, logits_row: int, seq: Sequence, position: int) -> None:
        """A word's last token is forbidden where the output ends with the word's other tokens.

        What was generated before tokens were appended is no part of that: the text begins anew behind them.
        """
        on_device = position - len(seq.token_ids)  # 0 or 1: the step before has not been read yet
        num_output = position - seq.output_start
        for word in self.bad_words:
            before = len(word) - 1
            if before > num_output:
                continue
            on_host = max(0, before - on_device)
            end = len(seq.token_ids)
            if seq.token_ids[end - on_host : end] != word[:on_host]:
                continue
            if on_host == before:
                into.mask_rows.append(logits_row)
                into.mask_ids.append(word[-1])
            else:
                into.after_rows.append(logits_row)
                into.after_ids.append(word[-1])
                into.after_last.append(word[-2])
