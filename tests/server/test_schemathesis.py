"""schemathesis against the server's own OpenAPI description: no answer is a 500, or one that is not described."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from nanolens.telemetry.events import RequestArrived
from serve import Server

CHECKS = ",".join([
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "negative_data_rejection", "unsupported_method",
])  # fmt: skip
LEFT_OUT = "^/debug/(engine|breakpoints|journal$)"  # they stop the engine on purpose, or never end
PUBLIC = {
    "/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/detokenize", "/health", "/ready",
    "/version", "/metrics",
}  # fmt: skip


def test_every_public_endpoint_is_described(tiny_server: Server) -> None:
    description = tiny_server.get("/openapi.json").json
    assert description["paths"].keys() >= PUBLIC
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            assert any(status.startswith("2") for status in operation["responses"]), (method, path)


@pytest.mark.slow
def test_no_answer_is_a_500_or_undescribed(tmp_path: Path, lacks: Callable[[str], NoReturn]) -> None:
    program = Path(sysconfig.get_path("scripts"), "schemathesis")
    if not program.exists():
        lacks("schemathesis")
    with Server(tmp_path, max_model_len=64) as server:
        ran = subprocess.run(
            [
                str(program), "run", f"{server.url}/openapi.json", "--checks", CHECKS, "--max-examples", "6",
                "--seed", "1", "--phases", "coverage,fuzzing", "--request-timeout", "10", "--no-color",
                "--max-failures", "10", "--generation-database", "none",
                "--exclude-path-regex", LEFT_OUT,
            ],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, env=os.environ | {"PYTHONSAFEPATH": "1"},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
        assert sum(isinstance(event, RequestArrived) for event in server.events()) > 20
        server.abort_all()
        server.wait_idle()
        assert server.get("/health").status == 200
