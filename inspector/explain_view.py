"""An explained request as lines for a terminal: sentences, the waterfall, parts and culprits. Reads nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ..telemetry.culprit import Culprit
from ..telemetry.life_pieces import LifePiece
from .explained import Explained
from .route_words import route_sentence
from .trace_text import BOLD, DIM, GREEN, RED, YELLOW, Paint, bar, fold, safe, time
from .units import share

ROWS = 24  # of the waterfall
CULPRITS = 3  # of each part
SMALL = 0.01  # parts below this share of the time are told in one line
_COLOURS = {"waiting": YELLOW, "preempted": RED, "swap": RED, "prefill": GREEN, "decode": GREEN, "running": GREEN}


def explained_lines(explained: Explained, paint: Paint, columns: int) -> list[str]:
    """All of it.

    Args:
        explained: the request.
        paint: colours.
        columns: of the terminal, at least 80.
    """
    lines = [paint(line, BOLD) for line in fold(_inert(explained.headline), columns).splitlines()]
    if explained.uses > 1:
        lines += fold(f"Its id was used {explained.uses} times; this is use {explained.use} (--use N shows another).",
                      columns, "  ").splitlines()  # fmt: skip
    for sentence in _sentences(explained):
        lines += fold(_inert(sentence), columns, "  ").splitlines()
    if explained.route is not None:
        lines += fold(_inert(route_sentence(explained.route)), columns, "  ").splitlines()
    lines += ["", *_waterfall(explained, paint, columns), "", *_parts(explained, paint, columns)]
    return lines


def _sentences(explained: Explained) -> list[str]:
    """How it ended stands first where that was no end of its own."""
    ending, others = explained.ending, list(explained.sentences)
    if not ending.sentence or (ending.how == "aborted" and ending.verb in explained.headline):
        return others
    return [*others, ending.sentence] if ending.is_usual else [ending.sentence, *others]


def _inert(text: str) -> str:
    return safe(text, 10_000)


def _waterfall(explained: Explained, paint: Paint, columns: int) -> list[str]:
    shown = _longest(explained.pieces)
    what = min(44, max((len(piece.words) for piece in shown), default=4), columns - 50)
    room = columns - what - 36
    lines = [paint(f"{'after':>7} {'for':>6}  {'what':<{what}} {'steps':>11} {'blocks':>6}", DIM)]
    for piece in shown:
        text = piece.words if len(piece.words) <= what else piece.words[: what - 1] + "…"
        steps = "-" if piece.first_step < 0 else _steps(piece)
        after = time(piece.begin_t - explained.begin_t)
        head = f"{after:>7} {time(piece.end_t - piece.begin_t):>6}  {text:<{what}} {steps:>11} {piece.blocks:>6} "
        lines.append((head + paint(_placed(piece, explained, room), _COLOURS.get(piece.kind, DIM))).rstrip())
    left = len(explained.pieces) - len(shown)
    if left:
        kept = sum(piece.end_t - piece.begin_t for piece in shown)
        whole = sum(piece.end_t - piece.begin_t for piece in explained.pieces)
        lines.append(paint(f"{'':>15} and {left} shorter ones, {time(whole - kept)} in all", DIM))
    return lines


def _longest(pieces: Sequence[LifePiece]) -> list[LifePiece]:
    if len(pieces) <= ROWS:
        return list(pieces)
    kept = sorted(pieces, key=lambda piece: piece.begin_t - piece.end_t)[:ROWS]
    return sorted(kept, key=lambda piece: piece.begin_t)


def _steps(piece: LifePiece) -> str:
    return str(piece.first_step) if piece.first_step == piece.last_step else f"{piece.first_step}-{piece.last_step}"


def _placed(piece: LifePiece, explained: Explained, room: int) -> str:
    """A bar that stands where the piece lies in the whole."""
    total = max(1, explained.total_ns)
    before = min(room - 1, (piece.begin_t - explained.begin_t) * room // total)
    length = (piece.end_t - piece.begin_t) / total * room
    return " " * before + (bar(length, room, room) if length >= 1 else "▏")


def _parts(explained: Explained, paint: Paint, columns: int) -> list[str]:
    total, lines, small = explained.total_ns, [], 0
    name = max((len(part) for part in explained.parts), default=4)
    for part, ns in sorted(explained.parts.items(), key=lambda item: -item[1]):
        if ns < SMALL * total:
            small += ns
            continue
        drawn = bar(ns, total, columns - name - 15)
        lines.append(f"{part:<{name}} {time(ns):>7} {share(ns, total):>4}  {drawn}".rstrip())
        found = explained.culprits.get(part, [])
        lines += [paint(line, DIM) for culprit in _shown(found)
                  for line in _culprit(culprit, _whose(culprit, explained), ns, columns)]  # fmt: skip
        hidden = len(found) - len(_shown(found))
        if hidden:
            lines.append(paint(f"    and {hidden} more", DIM))
    if small:
        lines.append(f"{'all others':<{name}} {time(small):>7} {share(small, total):>4}")
    return lines


def _shown(culprits: Sequence[Culprit]) -> list[Culprit]:
    """The heaviest; of those who stood at the head of the queue the one that stood there longest."""
    heads = [culprit for culprit in culprits if culprit.kind == "head"]
    others = [culprit for culprit in culprits if culprit.kind != "head"]
    return others[:CULPRITS] + heads[:1]


def _whose(culprit: Culprit, explained: Explained) -> str:
    """Whom it is named by: its request, unless that is the explained one."""
    if culprit.request != explained.request or culprit.seq in (-1, explained.seq):
        return safe(culprit.request)
    if culprit.kind == "sibling":
        return f"seq {culprit.seq}:"
    return f"its sibling seq {culprit.seq}" if culprit.kind == "head" else "its siblings"


def _culprit(culprit: Culprit, whose: str, ns: int, columns: int) -> list[str]:
    whom = f"{whose} " if whose else ""
    lines = fold(f"{whom}{_inert(culprit.words)}", columns - 9).splitlines()
    return [f"{share(culprit.weight_ns, ns) if index == 0 else '':>8} {line}" for index, line in enumerate(lines)]
