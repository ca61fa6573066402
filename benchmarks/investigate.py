"""A real trace served on a pool that is too small, watched by a real Prometheus: the runs of docs/investigation-p99.md.

Requests come as in the trace, faster or slower as `--speed` says, lengths divided by 32, from users who don't wait for
each other. The alert rules are those of grafana/rules with all times divided by 30: five minutes are ten seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.sampling_params import SamplingParams
from ..errors import InvalidConfig
from .environment import ROOT, environment
from .traces import read_times, read_trace

if TYPE_CHECKING:
    from ..engine.llm import LLM

SETTINGS: dict[str, Any] = {
    "model": "smollm2", "device": "cpu", "num_blocks": 12, "max_num_seqs": 16, "max_num_batched_tokens": 256,
    "max_model_len": 192, "seed": 0,
}  # fmt: skip
SCALE = 1 / 32  # of the trace's lengths
FASTER = 30  # what the rules' times are divided by
PANELS = (("overview", "Time to first token"), ("overview", "KV in use"), ("queue", "Waiting, by reason"))
VARIABLES = {"__rate_interval": "20s", "__range": "60s", "job": "nanolens", "instance": ".*", "replica": ".*"}
_TIME = re.compile(r"(?<![\w.])(\d+)([smhd])(?!\w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def faster(rules: str) -> str:
    """Rules whose windows and waits are divided by FASTER; none gets shorter than five scrapes."""
    return _TIME.sub(lambda found: f"{max(5, int(found[1]) * _SECONDS[found[2]] // FASTER)}s", rules)


def write_config(folder: Path, target: str) -> Path:
    """A Prometheus configuration that scrapes `target` each second, with the project's own rules, faster."""
    rules = folder / "rules"
    rules.mkdir()
    for path in sorted((ROOT / "grafana" / "rules").glob("*.yml")):
        (rules / path.name).write_text(faster(path.read_text(encoding="utf-8")), encoding="utf-8")
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules / "*.yml")],
        "scrape_configs": [{"job_name": "nanolens", "static_configs": [{"targets": [target]}]}],
    }
    path = folder / "prometheus.json"  # YAML reads JSON
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@contextmanager
def prometheus(target: str) -> Iterator[str]:
    """A Prometheus that scrapes `target`; its URL."""
    with tempfile.TemporaryDirectory() as temporary, socket.socket() as probe:
        folder = Path(temporary)
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        process = subprocess.Popen(
            [
                "prometheus", f"--config.file={write_config(folder, target)}", f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}", "--log.level=error",
            ]
        )  # fmt: skip
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait()


def ask(url: str, expr: str, start: float, end: float) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    """(labels, points) of each series of an expression, a point a second."""
    query = urllib.parse.urlencode({"query": expr, "start": start, "end": end, "step": 1})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{query}", timeout=30) as answer:
        found = json.load(answer)["data"]["result"]
    return [(each["metric"], [(float(t), float(value)) for t, value in each["values"]]) for each in found]


def panel_queries(board: str, title: str) -> list[tuple[str, str]]:
    """(legend, expression) of each query of a panel, as Grafana reads it from its dashboard's file."""
    dashboard = json.loads((ROOT / "grafana" / "dashboards" / f"{board}.json").read_text(encoding="utf-8"))
    panels = [inner for outer in dashboard["panels"] for inner in (outer, *outer.get("panels", ()))]
    (targets,) = (panel["targets"] for panel in panels if panel.get("title") == title)
    return [(target["legendFormat"], target["expr"]) for target in targets]


def dashboard_lines(url: str, start: float, end: float) -> Iterator[str]:
    """What the dashboards' panels show: the highest value of each series, and when that was."""
    for board, title in PANELS:
        for legend, query in panel_queries(board, title):
            expr = re.sub(r"\$(\w+)", lambda name: VARIABLES[name[1]], query)
            yield f"{board}, {title!r}, {legend}:  {expr}"
            for labels, points in ask(url, expr, start, end):
                at, most = max(points, key=lambda point: point[1])
                named = ", ".join(f"{k}={v}" for k, v in labels.items())
                yield f"    highest {most:.3f} after {at - start:.0f} s{f'  ({named})' if named else ''}"


def alert_lines(url: str, start: float, end: float) -> Iterator[str]:
    """The alerts that fired, and from when on."""
    for labels, points in ask(url, 'ALERTS{alertstate="firing"}', start, end):
        yield f"{labels['alertname']} ({labels['severity']}) fires after {points[0][0] - start:.0f} s"


def serve(llm: LLM, requests: list[tuple[list[int], int]], times: list[float]) -> None:
    """Step through the requests, each added at its time."""
    began, index, engine = time.monotonic(), 0, llm.engine
    while index < len(requests) or engine.core.has_work:
        now = time.monotonic() - began
        while index < len(requests) and times[index] <= now:
            prompt, num_output = requests[index]
            engine.add_request(prompt, SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_output))
            index += 1
        if engine.core.has_work:
            engine.step()
        else:
            time.sleep(max(0.0, times[index] - (time.monotonic() - began)))


def main(argv: Sequence[str] | None = None) -> None:
    """Make one run. A trace or a setting that can't be had ends the program with a line that says so."""
    parser = argparse.ArgumentParser(prog="python -m nanolens.benchmarks.investigate", description=__doc__)
    parser.add_argument("journal", help="directory of the run's journal")
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE", help="azure2023_conv_first3000.csv")
    parser.add_argument("--requests", type=int, default=240, help="of the trace, from its beginning (default: 240)")
    parser.add_argument("--speed", type=float, default=1.0, help="how much faster they come than in the trace")
    for name in ("num_blocks", "max_num_seqs", "max_num_batched_tokens"):
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=SETTINGS[name], metavar="N")
    parser.add_argument("--policy", default="fcfs", choices=("fcfs", "sjf"))
    args = parser.parse_args(argv)
    try:
        times = [at / args.speed for at in read_times(args.trace, args.requests) or []]
        if not times:
            raise InvalidConfig(f"trace {args.trace}: it holds no times; docs/investigation-p99.md says which to take")
        _make(args, times)
    except InvalidConfig as error:
        parser.error(str(error))


def _make(args: argparse.Namespace, times: list[float]) -> None:
    """Serve the trace's requests at these times, and print what the dashboards showed."""
    import torch

    from ..engine.llm import LLM

    torch.set_num_threads(1)
    own = {name: getattr(args, name) for name in ("num_blocks", "max_num_seqs", "max_num_batched_tokens", "policy")}
    with LLM(**(SETTINGS | own), journal=args.journal, metrics_port=0) as llm, ExitStack() as stack:
        rng, vocab_size = random.Random(0), llm.engine.core.started.vocab_size
        requests, _ = read_trace(args.trace, args.requests, SCALE, (1, 1), rng, vocab_size, lambda messages: [])
        print(environment()["commit"], own, f"{len(requests)} requests in {times[-1]:.0f} s")
        url = ""
        if shutil.which("prometheus"):
            url = stack.enter_context(prometheus(f"127.0.0.1:{llm.metrics_port}"))
            time.sleep(3)  # the first scrapes
        start = time.time()
        serve(llm, requests, times)
        time.sleep(2)  # the last ones
        print(f"served in {time.time() - start - 2:.0f} s")
        if url:
            print(*dashboard_lines(url, start, time.time()), *alert_lines(url, start, time.time()), sep="\n")


if __name__ == "__main__":
    main()
