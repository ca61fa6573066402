"""Times of a journal that can't be as they stand. Knows no meaning of any event."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ..errors import AuditError

MOST_T = 1 << 62  # nanoseconds, well below what 64 bits hold
Struct = TypeVar("Struct", bound=msgspec.Struct)


class TimeOrder:
    """Events that are told of at a time before another's which stands before them: they count as at that time.

    Attributes:
        num_back: how many.
        most_back: nanoseconds that one of them went back at most.
    """

    def __init__(self) -> None:
        self.num_back = self.most_back = 0

    def settle(self, event: Struct, t: int, newest_t: int) -> Struct:
        """The event, its time `t` not before the newest one.

        Raises:
            AuditError: no clock gives such a time.
        """
        if not 0 <= t < MOST_T:
            raise AuditError(f"an event at {t} ns, which no clock gives")
        self.num_back, self.most_back = self.num_back + 1, max(self.most_back, newest_t - t)
        return msgspec.structs.replace(event, t=newest_t)
