"""`nano-bench`: one subcommand for each kind of benchmark. Parses flags; torch is loaded after that."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..errors import NanolensError
from . import conversations, exporter, kernels, offline, serve, serving_cost


def main(argv: Sequence[str] | None = None) -> int:
    """Run `nano-bench`.

    Args:
        argv: arguments without the program's name; None takes the command line's.

    Returns:
        0; 1 when runs that had to do the same work did not. Unusable flags exit with status 2, as argparse does.
    """
    parser = argparse.ArgumentParser(prog="nano-bench", description="Benchmarks of the engine.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module, name, summary in (
        (offline, "offline", "a batch of requests that all arrive at once"),
        (conversations, "conversations", "many turns over a small pool: paused between them, or sent again"),
        (serve, "serve", "a running server, as its clients see it"),
        (serving_cost, "serving-cost", "what HTTP costs: LLM.generate against a server of its own"),
        (exporter, "exporter", "spans a second of the exporter on one core"),
        (kernels, "kernels", "each kernel's time beside its limit, torch and flash-attn"),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_flags(command)
        command.set_defaults(run=module.run, parser=command)
    arguments = parser.parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        return status
    except NanolensError as error:
        print(f"{arguments.parser.prog}: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
