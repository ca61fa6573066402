"""What an engine and the exporter process that it starts say to each other. Loads nothing of the exporter."""

from __future__ import annotations

import msgspec

ORDER_MODULE = "nanolens.telemetry.exporter_process"
DRAIN_S = 5.0  # for the spans that are left when the engine has ended
LINGER_S = 60.0  # in which the metrics of an engine that is gone are still served: a few scrapes


class Order(msgspec.Struct, frozen=True):
    """What the engine asks for.

    Attributes:
        journal: the journal's directory.
        run: the run that is about to begin there.
        parent: the process that starts the exporter.
        otlp: an endpoint's URL, or None.
        metrics_port: or None.
        temporary: whether the journal is removed at the end.
    """

    journal: str
    run: str
    parent: int
    otlp: str | None
    metrics_port: int | None
    temporary: bool

    def encode(self) -> str:
        """As the process's argument."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> Order:
        """From the process's argument."""
        return msgspec.json.decode(text, type=cls)


class Ready(msgspec.Struct, frozen=True):
    """The answer: the port of the metrics, or what is wrong."""

    metrics_port: int | None = None
    error: str = ""

    def encode(self) -> bytes:
        """As a line."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Ready | None:
        """From a line; None where it is none."""
        try:
            return msgspec.json.decode(line, type=cls)
        except msgspec.DecodeError:
            return None
