"""The exporter as a process that an engine starts for itself: it ends after the engine, however that ends.

Takes its options as JSON in its only argument, and answers with one line of JSON on stdout once it is ready.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys

from ..errors import NanolensError
from .endpoint import environment_headers, parse_endpoint
from .exporter_options import Export, ExportOptions, exit_code, log_to_stderr, report, wait_for_run
from .exporter_order import DRAIN_S, LINGER_S, Order, Ready
from .exporter_settings import ExporterSettings


def main(argv: list[str] | None = None) -> int:
    """Export one run; the exit code, as of `nano-trace export`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the engine has ended, who gets the same signals
    order = Order.decode((sys.argv[1:] if argv is None else argv)[0])
    try:
        with log_to_stderr("nanolens exporter: "):
            return _export(order)
    finally:
        if order.temporary:
            shutil.rmtree(order.journal, ignore_errors=True)


def _export(order: Order) -> int:
    try:
        export = Export(_options(order))
    except NanolensError as error:
        _answer(Ready(error=str(error)))
        return 2
    try:
        _answer(Ready(export.metrics_port))
        reader = wait_for_run(order.journal, order.run, lambda: os.getppid() == order.parent)
        if reader is None:
            return 0  # the engine did not come to its first event
        outcome = export.run(reader)
        if exit_code(outcome) and outcome is not None:
            print(f"nanolens exporter: {report(outcome, order.run, not order.temporary)}", file=sys.stderr)
        if outcome is not None and outcome.reason == "gone":  # nobody waits for this process
            with export.handle_signals():
                export.linger()
        return exit_code(outcome)
    except NanolensError as error:
        print(f"nanolens exporter: {error}", file=sys.stderr)
        return 2
    finally:
        export.close()


def _options(order: Order) -> ExportOptions:
    return ExportOptions(
        journal=order.journal,
        run=order.run,
        endpoint=parse_endpoint(order.otlp) if order.otlp is not None else None,
        headers=environment_headers(os.environ),
        metrics_port=order.metrics_port,
        linger_s=LINGER_S,
        settings=ExporterSettings(drop_when_full=order.metrics_port is not None, drain_s=DRAIN_S),
    )


def _answer(ready: Ready) -> None:
    """Tell the engine, once; stdout is not used for anything else, so that whoever waits for its end is not held up."""
    with contextlib.suppress(OSError):
        os.write(1, ready.encode())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
