"""Arguments in any order: flags may stand between the positional ones. Knows no flag."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class FreeOrderParser(argparse.ArgumentParser):
    """A subcommand's parser. argparse offers this for whole programs alone: a subcommand is parsed by the other way."""

    _is_inside = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[Any, list[str]]:
        """Flags first, then what is left as the positional arguments."""
        if self._is_inside:
            return super().parse_known_args(args, namespace)
        self._is_inside = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_inside = False
