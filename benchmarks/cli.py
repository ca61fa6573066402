"""`nano-bench`: one subcommand for each kind of benchmark. Parses flags; torch is loaded after that."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..errors import NanolensError
from . import offline


def main(argv: Sequence[str] | None = None) -> int:
    """Run `nano-bench`.

    Args:
        argv: arguments without the program's name; None takes the command line's.

    Returns:
        0; 1 when runs that had to do the same work did not. Unusable flags exit with status 2, as argparse does.
    """
    parser = argparse.ArgumentParser(prog="nano-bench", description="Benchmarks of the engine.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "offline",
        help="a batch of requests that all arrive at once",
        description=offline.DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    offline.add_flags(command)
    arguments = parser.parse_args(argv)
    try:
        return offline.run(arguments)
    except NanolensError as error:
        command.exit(2, f"{command.prog}: error: {error}\n")
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
