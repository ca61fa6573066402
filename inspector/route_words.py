"""Why a fleet's router chose a replica, in words: what it believed, and what was found. Knows what the router records
(`request.arrived`, `route`).
"""

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


def with_found(route: Route | None, hit: int | None, prompt: int, block_size: int) -> Route | None:
    """A route with `found_blocks`, where a replica found less of a prompt in its cache than the router believed.

    Args:
        route: as recorded.
        hit: tokens that were found at the first admission; None: that is not known.
        prompt: tokens.
        block_size: tokens in a block.
    """
    if route is None or hit is None:
        return route
    most = (prompt - 1) // block_size  # the last token is computed in any case
    found = hit // block_size
    return {**route, "found_blocks": found} if found < min(most, _number(route, "matched_blocks")) else route


def _why(route: Route) -> str:
    blocks, best, load = (_number(route, name) for name in ("prompt_blocks", "best_matched_blocks", "load"))
    holds = f"it held {load} request{'' if load == 1 else 's'}, the least loaded {_number(route, 'least_load')}"
    caches, found = f"was believed to cache {_own(route)}", _found(route)
    the_best = f"the one that was believed to cache {best} of the prompt's {blocks} blocks"
    match route.get("reason"):
        case "prefix":
            return f"it {caches}, the most of all{found}; {holds}"
        case "load" if best:
            return f"{the_best} had too much to do{found}; {holds}"
        case "load":
            return f"none was believed to cache any of the prompt's blocks{found}; {holds}"
        case "no_blocks":
            return f"{the_best} had a queue and too few free blocks; this one {caches}{found}, and {holds}"
        case "only":
            again = " that had not failed it before" if _number(route, "attempt") > 1 else ""
            return f"there was no other to choose{again}; it {caches}{found}"
        case "full":
            return f"the first choice took no more calls; this one {caches}{found}, and {holds}"
        case "pinned" if best > _number(route, "matched_blocks"):
            return f"the request names it, or goes on there; it {caches}{found}, another one {best}"
        case "pinned":
            return "the request names it, or goes on there"
    return ""


def _own(route: Route) -> str:
    """How much it was believed to cache, and how old that knowledge was."""
    words = f"{_number(route, 'matched_blocks')} of the prompt's {_number(route, 'prompt_blocks')} blocks"
    return f"{words} (as of {_number(route, 'known_ms')} ms before)" if "known_ms" in route else words


def _found(route: Route) -> str:
    """What was found, where that was less."""
    if "found_blocks" not in route:
        return ""
    found, own = _number(route, "found_blocks"), _number(route, "matched_blocks")
    some = f"only {found}" if found else "none"
    return f", but {some} of these {own} {'was' if found == 1 else 'were'} found there"


def _number(route: Route, name: str) -> int:
    value = route.get(name, 0)
    return value if isinstance(value, int) else 0
