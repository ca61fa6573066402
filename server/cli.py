"""`nano-serve`: flags and their help. What they mean is the settings'; what happens then is the lifecycle's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .. import __version__
from ..engine.standard_files import open_standard_files
from ..errors import InvalidConfig, NanolensError
from .options import Option
from .settings import OPTIONS, ServeSettings, load_settings

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2

GROUPS: dict[str, tuple[str, ...]] = {
    "where and for whom": ("host", "port", "served_model_name", "api_key", "api_key_file", "debug_needs_key"),
    "limits of requests": (
        "max_queue", "max_prompts", "max_sequences", "max_body_bytes", "max_timeout_s", "write_timeout_s",
        "drain_seconds", "stall_seconds",
    ),
    "several engines": ("replicas", "max_replicas", "scale_queue_s"),
    "the model and its device": (
        "dtype", "device", "attention", "max_model_len", "gpu_memory_utilization", "enforce_eager", "overlap", "seed",
        "tensor_parallel_size", "rank_timeout_s",
    ),
    "KV blocks": (
        "block_size", "num_blocks", "prefix_cache", "preemption_mode", "host_blocks", "disk_blocks", "swap_path",
        "paused_ttl_s",
    ),
    "scheduling": (
        "max_num_seqs", "max_num_batched_tokens", "max_prefill_chunk", "batching", "policy", "aging_s",
    ),
    "what is recorded": (
        "journal", "journal_cap", "journal_content", "metrics", "metrics_port", "otlp", "recording", "audit",
        "access_log", "log_level",
    ),
}  # fmt: skip
SHORT_FLAGS = {"preemption_mode": "--preemption"}
_METAVARS = {
    "host": "ADDRESS", "port": "PORT", "metrics_port": "PORT", "journal": "DIR", "otlp": "URL", "swap_path": "FILE",
    "api_key_file": "FILE", "api_key": "KEY", "served_model_name": "NAME", "device": "DEVICE",
}  # fmt: skip
_EPILOG = """\
Every setting can also come from an environment variable (--num-blocks: NANOLENS_NUM_BLOCKS) or from the file of
--config (TOML, or JSON where its name ends so: num-blocks = 512). Flags go before variables, variables before the file.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the process is told to end.

    Args:
        argv: arguments without the program's name; None takes the process's own.

    Returns:
        0: it ended in order; 1: it could not start, or its engine had died; 2: wrong usage.
    """
    open_standard_files()
    flags = vars(make_parser().parse_args(argv))
    config = flags.pop("config", None)
    try:
        settings = load_settings(flags, config)
        keys = settings.keys()
    except InvalidConfig as error:
        print(f"nano-serve: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        return EXIT_OK if _run(settings, keys) else EXIT_FAILED
    except NanolensError as error:
        print(f"nano-serve: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("nano-serve: interrupted", file=sys.stderr)
    return EXIT_FAILED


def _run(settings: ServeSettings, keys: Sequence[str]) -> bool:
    """Serve from one engine or from several; this brings the web server, which --help can do without."""
    if settings.replicas is None:
        from .lifecycle import run

        return run(settings, keys)
    from .fleet_lifecycle import run_fleet

    return run_fleet(settings, keys)


def make_parser() -> argparse.ArgumentParser:
    """The parser; a flag that is not given is not in its result."""
    parser = argparse.ArgumentParser(
        prog="nano-serve",
        usage="nano-serve [MODEL] [--config FILE] [flags]",
        description="Serve a model over HTTP, with OpenAI's API.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=_help(OPTIONS["model"]))
    parser.add_argument("--config", metavar="FILE", help="a file with settings; NANOLENS_CONFIG names one too")
    parser.add_argument("--version", action="version", version=f"nanolens {__version__}")
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            _add(group, OPTIONS[name])
    return parser


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    """A flag for an option."""
    names = [option.flag, *filter(None, [SHORT_FLAGS.get(option.name)])]
    if option.kind is bool:
        group.add_argument(*names, dest=option.name, action=argparse.BooleanOptionalAction, help=_help(option))
        return
    action: dict[str, Any] = {"action": "extend"} if option.many else {}
    metavar = _METAVARS.get(option.name) or ("{" + ",".join(option.choices) + "}" if option.choices else "N")
    group.add_argument(
        *names, dest=option.name, type=_converter(option), metavar=metavar, help=_help(option), **action
    )


def _converter(option: Option) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return option.parse(text)
        except InvalidConfig as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _help(option: Option) -> str:
    """The help text of an option, with its default where that says something."""
    default = option.default
    shown = "" if default is None or default == () or option.kind is bool else f" [{default}]"
    if option.kind is bool:
        shown = {True: " [on]", False: " [off]", None: " [auto]"}[default]  # type: ignore[index]
    return (option.help.rstrip(".") + shown).replace("%", "%%")


if __name__ == "__main__":
    sys.exit(main())
