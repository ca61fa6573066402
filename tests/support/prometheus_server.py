"""A real Prometheus on a free port of this machine, and its query API."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

READY_S = 30.0


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PrometheusServer:
    """Runs from `with` to its end, on the project's own configuration with other targets and intervals of a second.

    Args:
        program: path of the program.
        grafana: folder of prometheus.yml and rules/.
        target: what to scrape, host:port.
        folder: for its configuration, its data and its log.
    """

    def __init__(self, program: str, grafana: Path, target: str, folder: Path) -> None:
        config = yaml.safe_load((grafana / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(grafana / pattern) for pattern in config["rule_files"]]
        (job,) = config["scrape_configs"]
        job["static_configs"] = [{"targets": [target]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        self._log = folder / "prometheus.log"
        self.url = f"http://127.0.0.1:{free_port()}"
        self._command = [
            program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}", "--enable-feature=exemplar-storage",
            "--storage.tsdb.retention.time=1h", "--log.level=warn",
        ]  # fmt: skip

    def __enter__(self) -> PrometheusServer:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        try:
            self.wait_for(self._is_ready, "to be ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def log(self) -> str:
        """What it has to complain about."""
        return self._log.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], object], what: str, most_s: float = READY_S) -> None:
        """Wait until a condition holds; fails with the log where it does not come."""
        deadline = time.monotonic() + most_s
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"waited for Prometheus {what}, in vain:\n{self.log}")
            time.sleep(0.05)

    def get(self, path: str, **parameters: str | float) -> Any:
        """The data of an API call; `match` stands for the parameter `match[]`.

        Raises:
            AssertionError: Prometheus refuses it, with its reason.
        """
        named = {"match[]" if name == "match" else name: value for name, value in parameters.items()}
        query = urllib.parse.urlencode(named)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode(errors='replace')}") from error
        assert found["status"] == "success" and not found.get("warnings"), found
        return found["data"]

    def values(self, expr: str, start: float, end: float, step: float = 1.0) -> dict[str, list[float]]:
        """Points of each series of an expression over a time, by the series' labels."""
        data = self.get("query_range", query=expr, start=start, end=end, step=step)
        return {json.dumps(series["metric"]): [float(v) for _, v in series["values"]] for series in data["result"]}

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
