"""Prints a journal's steps, one a line: what each computed and where its time went."""

from __future__ import annotations

import sys

from ..telemetry.events import StepFinished, StepPlanned
from ..telemetry.reader import JournalReader


def main() -> None:
    """Journal directory to lines."""
    planned: dict[int, StepPlanned] = {}
    print("step kind tokens decodes; microseconds to plan, to launch, on the device, to collect, of which waiting")
    hosts: list[int] = []
    for frame in JournalReader(sys.argv[1]).frames():
        for event in frame.events:
            if isinstance(event, StepPlanned):
                planned[event.step] = event
            elif isinstance(event, StepFinished):
                plan = planned.pop(event.step)
                times = (event.plan_ns, event.launch_ns, event.device_ns, event.collect_ns, event.wait_ns)
                if plan.kind == "decode":
                    hosts.append(event.plan_ns + event.launch_ns + event.collect_ns - event.wait_ns)
                numbers = " ".join(f"{ns / 1e3:9.0f}" for ns in times)
                print(f"{event.step:5} {plan.kind:8} {event.num_tokens:6} {plan.decodes:7} {numbers}")
    if hosts:
        p50, p99 = sorted(hosts)[len(hosts) // 2], sorted(hosts)[len(hosts) * 99 // 100]
        print(f"host work of {len(hosts)} decode steps: p50 {p50 / 1e3:.0f} us, p99 {p99 / 1e3:.0f} us")


if __name__ == "__main__":
    main()
