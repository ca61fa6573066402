"""Why a fleet's router chose a replica, in words. Knows what the router records (`request.arrived`, `route`)."""

from __future__ import annotations

from collections.abc import Mapping

Route = Mapping[str, str | int]


def route_words(route: Route) -> str:
    """In a few words: where it went, why, and at which attempt where that was not the first."""
    attempt = _number(route, "attempt")
    tried = f", attempt {attempt}" if attempt > 1 else ""
    return f"routed to {route.get('replica', '?')} ({route.get('reason') or 'no reason given'}{tried})"


def route_sentence(route: Route) -> str:
    """In one sentence, with the figures that decided."""
    reason, why = str(route.get("reason", "")), _why(route)
    head = f"The router chose replica {route.get('replica', '?')}" + (f" ({reason})" if reason else "")
    attempt = _number(route, "attempt")
    left = f", after {' and '.join(str(route['left']).split())}" if route.get("left") else ""
    tried = f"; this was attempt {attempt}{left}" if attempt > 1 else ""
    return f"{head}: {why}{tried}." if why else f"{head}{tried}."


def _why(route: Route) -> str:
    blocks, own = _number(route, "prompt_blocks"), _number(route, "matched_blocks")
    best, load = _number(route, "best_matched_blocks"), _number(route, "load")
    holds = f"it held {load} request{'' if load == 1 else 's'}, the least loaded {_number(route, 'least_load')}"
    caches = f"{own} of the prompt's {blocks} blocks"
    match route.get("reason"):
        case "prefix":
            return f"it caches {caches}, the most of all; {holds}"
        case "load" if best:
            return f"the one that caches {best} of the prompt's {blocks} blocks had too much to do; {holds}"
        case "load":
            return f"none caches any of the prompt's blocks; {holds}"
        case "no_blocks":
            most = f"the one that caches {best} of the prompt's {blocks} blocks"
            return f"{most} had a queue and too few free blocks; this one caches {own}, and {holds}"
        case "only":
            return f"there was no other to choose; it caches {caches}"
        case "full":
            return f"the first choice took no more calls; this one caches {caches}, and {holds}"
        case "pinned":
            return "the request names it, or goes on there"
    return ""


def _number(route: Route, name: str) -> int:
    value = route.get(name, 0)
    return value if isinstance(value, int) else 0
