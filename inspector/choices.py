"""What there is to look at on this machine, as the picker lists it."""

from __future__ import annotations

import time
from datetime import datetime

from .sources.discover import FoundJournal, FoundServer, find_journals, find_servers
from .tui.picker_screen import Choice
from .units import duration


def find_choices() -> list[Choice]:
    """Servers, then journals. A journal that a server writes is listed as well: it can be read when that is gone."""
    return [*map(of_server, find_servers()), *map(of_journal, find_journals())]


def of_server(found: FoundServer) -> Choice:
    """A server that runs."""
    up = duration(round(max(0.0, time.time() - found.since) * 1e9))
    return Choice(found.url, None, "server", "live", found.model, f"up {up}, pid {found.pid}")


def of_journal(found: FoundJournal) -> Choice:
    """A run's journal."""
    written = datetime.fromtimestamp(found.written).strftime("%m-%d %H:%M")
    run = found.run.rpartition("-")[2][:12]
    size = f"{found.num_bytes / (1 << 20):.1f} MiB"
    return Choice(found.path, found.run, "journal", found.state, found.model, f"{written}, {size}, {run}")
