"""`nano-inspect`: what to look at, and how, from the command line. What is shown is the app's and once.py's."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from .. import __version__
from ..errors import InspectError, NanolensError
from .choices import find_choices
from .fleet_rows import fleet_json, fleet_text
from .once import as_json, as_text
from .short_pauses import short_pauses
from .sources.fleet import FleetSource
from .sources.http_stream import IsFleet
from .sources.opening import open_source
from .sources.source import Source
from .trace_output import replace_unknown
from .tui.app import BY_SIGNAL, INTERVAL_S, NanoInspectApp
from .view import View
from .web import PORT, serve

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
API_KEY = "NANOLENS_API_KEY"
FIRST_VIEW_S = 30.0  # that --once waits for something to show
RETRY_S = 0.1
FLEET_S = 1.0  # between the two looks at a fleet that --once takes
DEMO_STEPS = 100  # that a demo has done before it is worth a look
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.05, 60.0

_EPILOG = f"""\
TARGET is http://HOST:PORT of a server or a fleet, or a journal's directory, live or not. Without it, servers and
journals of this machine are listed to choose from. An API key can also come from the environment variable {API_KEY}.
In the program, ? shows all keys.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Look at an engine.

    Args:
        argv: arguments without the program's name; None takes the process's own.

    Returns:
        0: it ended in order; 1: there is nothing that can be looked at, in a line on stderr; 2: wrong usage; 128 and
        the number of the signal that ended it.
    """
    parser = make_parser()
    arguments = parser.parse_args(argv)
    problem = _problem(arguments)
    if problem:
        parser.error(problem)
    try:
        return _run(arguments)
    except NanolensError as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        return EXIT_OK


def make_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="nano-inspect",
        description="See every sequence of an engine, stop its time, go back.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", nargs="?", metavar="TARGET", help="a server's URL, or a journal's directory")
    parser.add_argument("--api-key", metavar="KEY", help=f"of the server (better: {API_KEY}, which nobody else sees)")
    parser.add_argument("--run", metavar="RUN", help="of a journal that holds several (default: the one written last)")
    parser.add_argument("--demo", action="store_true", help="start a small engine under load, and look at it")
    parser.add_argument("--once", action="store_true", help="print what there is now as text, and end")
    parser.add_argument("--json", action="store_true", help="print what there is now as JSON, and end")
    parser.add_argument(
        "--interval", type=_interval, default=INTERVAL_S, metavar="S",
        help=f"seconds between two looks (default: {INTERVAL_S})",
    )  # fmt: skip
    parser.add_argument(
        "--web", nargs="?", type=_port, const=PORT, metavar="PORT",
        help=f"serve it to browsers of this machine (default port: {PORT})",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"nano-inspect {__version__}")
    return parser


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not MIN_INTERVAL_S <= seconds <= MAX_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"{text!r}: give {MIN_INTERVAL_S} to {MAX_INTERVAL_S} seconds")
    return seconds


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r}: give a port, 1 to 65535")
    return int(text)


def _problem(arguments: argparse.Namespace) -> str:
    """What is wrong with the flags together; "" if nothing is."""
    prints = arguments.once or arguments.json
    if arguments.demo and (arguments.target or arguments.run):
        return "--demo starts its own engine: give no TARGET and no --run"
    if arguments.web is not None and prints:
        return "--web shows a screen: leave --once and --json out"
    if prints and not arguments.target and not arguments.demo:
        return "--once and --json need a TARGET, or --demo"
    if arguments.run and not arguments.target:
        return "--run needs the directory of its journal as TARGET"
    return ""


def _run(arguments: argparse.Namespace) -> int:
    if arguments.web is not None:
        return _serve(arguments)
    key = _api_key(arguments)
    if arguments.once or arguments.json:
        return _print_once(_source(arguments), arguments.json, DEMO_STEPS if arguments.demo else 0, key)
    if not _has_screen():
        raise InspectError("no terminal here, or a dumb one: --once and --json print, --web serves to a browser")
    if arguments.target or arguments.demo:
        app = NanoInspectApp(
            _source(arguments), arguments.interval, find_fleet=lambda url: FleetSource(url, key)
        )  # fmt: skip
    else:
        app = NanoInspectApp(
            None, arguments.interval, find=find_choices,
            open_choice=lambda choice: open_source(choice.target, key, choice.run),
            find_fleet=lambda url: FleetSource(url, key),
        )  # fmt: skip
    with short_pauses():
        words = app.run()
    if words:
        return _failed(words)
    code = app.return_code or 0
    return code if code > BY_SIGNAL else EXIT_FAILED if code else EXIT_OK


def _has_screen() -> bool:
    """A terminal that can move its cursor; or pipes to textual-serve, in place of one."""
    is_terminal = sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM") != "dumb"
    return is_terminal or "TEXTUAL_DRIVER" in os.environ


def _source(arguments: argparse.Namespace) -> Source:
    if arguments.demo:
        from .sources.demo import DemoSource

        return DemoSource()
    return open_source(arguments.target, _api_key(arguments), arguments.run)


def _api_key(arguments: argparse.Namespace) -> str | None:
    return arguments.api_key or os.environ.get(API_KEY) or None


def _serve(arguments: argparse.Namespace) -> int:
    if arguments.api_key:
        os.environ[API_KEY] = arguments.api_key  # not on a command line, which others see
    passed = [arguments.target] if arguments.target else []
    passed += ["--demo"] if arguments.demo else []
    passed += ["--run", arguments.run] if arguments.run else []
    serve([*passed, "--interval", str(arguments.interval)], arguments.web)
    return EXIT_OK


def _print_once(source: Source, in_json: bool, min_step: int, key: str | None) -> int:
    try:
        source.start()
        view = first_view(source, min_step)
    except IsFleet as found:
        return _print(_fleet_words(FleetSource(found.url, key), in_json))
    finally:
        source.close()
    if in_json:
        text = json.dumps(as_json(view, source.title), indent=1, ensure_ascii=False) + "\n"
    else:
        text = as_text(view, source.title)
    return _print(text)


def _fleet_words(source: FleetSource, in_json: bool) -> str:
    """A fleet, looked at twice: rates need two looks."""
    try:
        source.look()
        time.sleep(FLEET_S)
        fleet = source.look()
    finally:
        source.close()
    return json.dumps(fleet_json(fleet), indent=1, ensure_ascii=False) + "\n" if in_json else fleet_text(fleet)


def _print(text: str) -> int:
    replace_unknown()
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        return _failed(f"the output can't be written ({error.strerror})")
    return EXIT_OK


def _drop_output() -> None:
    """What could not be written must not be tried again by the interpreter at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def first_view(source: Source, min_step: int = 0, wait_s: float = FIRST_VIEW_S) -> View:
    """What a source has now, or as soon as it has something.

    Args:
        source: started.
        min_step: wait for this step as well.
        wait_s: seconds; the step is not waited for any longer.

    Raises:
        InspectError: it has nothing for that long, or never will.
    """
    deadline = time.monotonic() + wait_s
    while True:
        waits = source.status.state in ("connecting", "live") and time.monotonic() < deadline
        try:
            view = source.view()
        except InspectError:
            if not waits:
                raise
        else:
            if view.keyframe.step >= min_step or not waits:
                return view
        time.sleep(RETRY_S)


def _failed(words: str) -> int:
    print(f"nano-inspect: {words}", file=sys.stderr)
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
