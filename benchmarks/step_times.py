"""Prints a journal's steps, one a line: what each computed and where its time went."""

from __future__ import annotations

import sys

from ..telemetry.events import StepFinished, StepPlanned
from ..telemetry.reader import JournalReader


def main() -> None:
    """Journal directory to lines."""
    planned: dict[int, StepPlanned] = {}
    print("step kind tokens decodes; microseconds to plan, to launch, on the device, to collect")
    for frame in JournalReader(sys.argv[1]).frames():
        for event in frame.events:
            if isinstance(event, StepPlanned):
                planned[event.step] = event
            elif isinstance(event, StepFinished):
                plan = planned.pop(event.step)
                times = (event.plan_ns, event.launch_ns, event.device_ns, event.collect_ns)
                numbers = " ".join(f"{ns / 1e3:9.0f}" for ns in times)
                print(f"{event.step:5} {plan.kind:8} {event.num_tokens:6} {plan.decodes:7} {numbers}")


if __name__ == "__main__":
    main()
