"""Exported metrics that no panel shows, each with the reason. A test holds that every other one is on a panel."""

from __future__ import annotations

NOT_SHOWN: dict[str, str] = {}
