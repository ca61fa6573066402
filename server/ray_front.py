"""The front of a fleet: the HTTP that clients see, in front of the replicas that answer. It runs in Ray Serve."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .. import __version__
from .asgi_calls import call_of
from .auth import ApiKeys, AuthMiddleware
from .body_limit import BodyLimit
from .calls import ClientGone, unless_gone
from .engine_process import start_logging
from .errors import ApiError, as_api_error, json_response
from .fleet_ids import FleetIds, Names
from .fleet_messages import Ask, HttpCall
from .fleet_metrics import RouterMetrics
from .fleet_paths import OF_ONE, is_own, split_replica
from .fleet_prefixes import GENERATING, PromptHashes, resumed
from .fleet_relay import Attempt, Elsewhere, Relay
from .fleet_retiring import END_S, HEARD_S, Word
from .fleet_silence import Silence, health
from .fleet_spans import RouterSpan, RouterSpans
from .fleet_view import fleet_of
from .front_answer import FrontAnswer, known_error
from .ray_lookout import ASK_S, LOOK_S, Lookout
from .request_ids import HEADER, RequestIds, goes_by, new_id, request_id_of
from .settings import ServeSettings
from .startup import load_tokenizer_alone

MAX_CHOICES = 512  # that /debug/fleet shows
TRACEPARENT = b"traceparent"
_NAME = HEADER.encode()
_OPENMETRICS = "application/openmetrics-text"

logger = logging.getLogger("nanolens.server")


class Front:
    """What Ray's HTTP proxy calls.

    Args:
        replicas: handle of the deployment of replicas.
        fleet: name of the view that its router shares with this process.
        settings: of the servers.
        keys: API keys.
        block_key: of the block hashes, the replicas' own.
    """

    def __init__(
        self, replicas: Any, fleet: str, settings: ServeSettings, keys: Sequence[str], block_key: bytes
    ) -> None:
        start_logging(settings.log_level)
        self._replicas, self._settings = replicas, settings
        self._fleet = fleet_of(fleet)
        tokenizer = load_tokenizer_alone(settings.engine.model)
        self._hashes = PromptHashes(tokenizer, settings.engine.block_size, block_key)
        self._spans = RouterSpans.to(settings.model_names[0], settings.engine.otlp)
        self._metrics = RouterMetrics(self._fleet, settings.replicas or 1)
        self._ids, self._silence = FleetIds(), Silence(self._fleet)
        self._lookout = Lookout(replicas, self._fleet, self._silence)
        self._choices: deque[dict[str, object]] = deque(maxlen=MAX_CHOICES)
        self._watch: asyncio.Task[None] | None = None
        self._open = 0  # requests that are being answered
        self._stopping, self._word = False, Word.GO_ON
        limited = BodyLimit(self._answer, settings.max_body_bytes)
        self._app: ASGIApp = RequestIds(AuthMiddleware(limited, ApiKeys(keys), settings.debug_needs_key))

    async def record_replica_metadata(self) -> dict[str, str]:
        """Called by Ray once, before any request: waits for a replica, and begins to look at all of them."""
        await self._replicas.options(method_name="report").remote(Ask(""))  # of any; this makes the router
        self._watch = asyncio.get_running_loop().create_task(self._lookout.run())
        return {}

    async def __call__(self, request: Request) -> Response:
        """Handle a request."""
        return FrontAnswer(self._app)

    async def drain(self) -> int:
        """Let nobody in from here on: how many answers that generate have not ended.

        A replica that stands still while it is being replaced would be waited for, in vain: it is killed.
        """
        self._stopping = True
        await self._lookout.kill_left()
        return self._num_open()

    async def end(self) -> int:
        """Have every replica end what it runs, and wait for it: how many answers have not ended all the same."""
        self._word = Word.END
        await asyncio.sleep(HEARD_S)  # those that are being replaced are not known here, and ask all the same
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                while self._num_open():
                    await asyncio.sleep(LOOK_S / 5)
        return self._num_open()

    async def kill_silent(self) -> int:
        """Have Ray kill the replicas that give no sign of life, which would hold up the end: how many."""
        return await self._lookout.kill_silent()

    def _num_open(self) -> int:
        """Answers that have not ended: of this front, or else of the one that it has replaced."""
        reports = [report for report, _, _ in self._fleet.reports()]
        known = [each for each in reports if not each.trouble and self._silence.is_fresh(each.replica)]
        return self._open or sum(each.running + each.waiting for each in known)

    async def word(self, replica: str) -> Word:
        """What a replica that asks is told; by asking, one that left before this front came makes itself known."""
        self._silence.hear(replica)
        known = self._fleet.replicas
        return Word.LEFT_OUT if known and replica not in known and self._word is Word.GO_ON else self._word

    async def __del__(self) -> None:
        """Called by Ray at the end."""
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.to_thread(self._spans.close)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, of whoever may ask."""
        try:
            body = await Request(scope, receive).body()
            call = call_of(scope, body)
            response = await self._own(call)
            if response is not None:
                await response(scope, receive, send)
                return
            await unless_gone(receive, self._pass_on(call, scope, send))
        except ClientGone:
            return
        except Exception as error:
            await as_api_error(known_error(error)).response()(scope, receive, send)

    async def _own(self, call: HttpCall) -> Response | None:
        """The answer to a request for the fleet as a whole; None for those that a replica answers."""
        call.pinned, call.path = split_replica(call.path)
        known = self._fleet.replicas
        if call.pinned:
            if call.pinned not in known:
                raise ApiError(404, f"there is no replica {call.pinned[:100]!r} now; there are {_listed(known)}",
                               code="replica_gone")  # fmt: skip
            return None
        if is_own(call.method, call.path):
            match call.path:
                case "/metrics":
                    return await self._scrape(call, [name for name in known if name not in self._fleet.silent])
                case "/debug/fleet":
                    return json_response(self._shown())
                case "/version":
                    return json_response({"version": __version__, "model": self._settings.model_names[0],
                                          "replicas": list(known)})  # fmt: skip
            return self._health(call.path == "/ready")
        if call.path.startswith(OF_ONE):
            raise ApiError(404, f"{call.path[:200]} is of one replica: ask for /replicas/ID{call.path[:200]}, where ID "
                           f"is one of {_listed(known)}", code="not_found")  # fmt: skip
        call.pinned = self._ids.of_path(call.path)
        return None

    async def _pass_on(self, call: HttpCall, scope: Scope, send: Send) -> None:
        """Have a replica answer, within a span of the router."""
        self._silence.check(call.pinned)
        goes_on = resumed(call.path)
        call.generates = call.method == "POST" and (call.path in GENERATING or bool(goes_on))
        if call.generates:
            if self._stopping:
                raise ApiError(503, "the fleet is stopping; send the request again, to another one or later",
                               code="stopping", headers={"Retry-After": "1"})  # fmt: skip
            self._open += 1
        headers = {key: value for key, value in call.headers}
        span = RouterSpan.begin(headers.get(TRACEPARENT, b"").decode("latin-1") or None, "")
        names = Names(request_id_of(scope))

        def ask(each: HttpCall) -> Attempt:
            names.call = each
            return self._ask(each)

        def on_head(request: str) -> None:
            if call.generates and not goes_on and request != names.name:  # its replica gave it another one
                self._ids.rename(names, request)

        relay = Relay(ask, send, self._has_others, self._metrics, span, on_head)
        try:
            if call.generates and not goes_on:
                await self._prepare(call, names)
                goes_by(scope, names.name)
            call.headers = [(key, value) for key, value in call.headers if key not in (TRACEPARENT, _NAME)]
            call.headers += [(TRACEPARENT, span.traceparent.encode()), (_NAME, names.name.encode())]
            await relay.run(call)
        except asyncio.CancelledError:  # once an answer is complete, its client has gone, too
            span.error = span.error or ("" if relay.has_ended else "the client is gone")
            raise
        except BaseException as error:
            span.error = span.error or f"{type(error).__name__}: {error}"[:300]
            raise
        finally:
            if call.generates:
                self._open -= 1
                self._ids.drop(names, relay.has_ended)
                span.attributes["nanolens.request"] = goes_on or names.name
                self._choices.append({"trace_id": f"{span.trace_id:032x}", "error": span.error, **span.attributes})
                self._spans.end(span)

    async def _prepare(self, call: HttpCall, names: Names) -> None:
        """Read a call's body, and take ids for it that no request of the fleet has."""
        asked = await asyncio.to_thread(self._hashes.read, call.path, call.body)
        call.hashes, names.may_pause = asked.hashes, asked.may_pause
        names.count = asked.count if asked.count <= self._settings.max_prompts else 1  # more are refused
        self._ids.take(names, call.path)
        for replica, ids in self._ids.doubtful(names, self._fleet.replicas).items():
            if await self._holds(replica, ids):
                self._ids.rename(names, new_id(call.path))
                return

    async def _holds(self, replica: str, ids: Sequence[str]) -> bool:
        """Whether a replica has a request that goes by one of these ids; one that does not say so may."""
        try:
            async with asyncio.timeout(ASK_S):
                return bool(await self._replicas.options(method_name="holds").remote(Ask(replica), ids))
        except TimeoutError:
            return True
        except (RayError, RayServeException):
            return False  # it is gone, and its requests with it

    def _has_others(self, tried: frozenset[str]) -> bool:
        """Whether there are replicas beside these."""
        return bool(set(self._fleet.replicas) - tried)

    def _ask(self, call: HttpCall) -> Attempt:
        """Begin a call of a replica."""
        if call.generates:
            call.number = self._fleet.open()
        response = self._replicas.options(method_name="handle", stream=True).remote(call)

        async def messages() -> AsyncIterator[list[dict[str, Any]]]:
            try:
                async for each in response:
                    yield each
            except RayTaskError as error:
                raise ApiError(500, "an error of a replica; its log has it", code="internal_error") from error
            except (RayError, RayServeException) as error:
                logger.warning("a replica is gone: %s", error)
                raise Elsewhere("gone") from error

        return Attempt(self._silence.read(call, messages()), response.cancel, lambda: self._fleet.end(call.number))

    def _health(self, is_ready: bool) -> Response:
        """The answer of /ready, or else of /health."""
        reports = [report for report, _, _ in self._fleet.reports()]
        return health(reports, "the fleet is stopping" if is_ready and self._stopping else "", is_ready)

    def _shown(self) -> dict[str, object]:
        """The fleet, for people and tools."""
        replicas = [
            {
                "id": report.replica, "url": f"/replicas/{report.replica}", "run": report.run, "pid": report.pid,
                "engine_pid": report.engine_pid, "journal": report.journal, "waiting": report.waiting,
                "running": report.running, "in_flight": in_flight, "free_blocks": report.free_blocks,
                "num_blocks": report.num_blocks, "cached_blocks": cached, "queue_age_s": report.queue_age_s,
                "trouble": report.trouble,
                "queried_tokens": report.queried_tokens, "hit_tokens": report.hit_tokens,
            }
            for report, in_flight, cached in self._fleet.reports()
        ]  # fmt: skip
        routed = [
            {"replica": replica, "reason": reason, "count": count}
            for (replica, reason), count in sorted(self._metrics.routed.items())
        ]
        return {"version": 1, "replicas": replicas, "routed": routed, "retried": dict(self._metrics.retried),
                "broken": dict(self._metrics.broken), "lost": self._lost(), "choices": list(self._choices)}  # fmt: skip

    def _lost(self) -> list[dict[str, object]]:
        return [{"id": each.replica, "reason": each.how, "t_s": each.t_s} for each in self._fleet.losses.recent]

    async def _scrape(self, call: HttpCall, known: Sequence[str]) -> Response:
        """The metrics of all replicas as one scrape; of one that does not answer there are none."""
        # Each in a context of its own: Ray takes calls of one request that are routed at once for one and the same.
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._scrape_one(call, name), context=contextvars.Context()) for name in known]
        found = await asyncio.gather(*tasks)
        kinds = [kind for kind, _ in found if kind]
        kind = kinds[0] if kinds else "text/plain; charset=utf-8"
        scrapes = {name: body for name, (each, body) in zip(known, found, strict=True) if each == kind}
        body = self._metrics.joined(scrapes, kind.startswith(_OPENMETRICS))
        return Response(body, headers={"Content-Type": kind, "Vary": "Accept"})

    async def _scrape_one(self, call: HttpCall, name: str) -> tuple[str, bytes]:
        """Content type and body of a replica's scrape; "" where there is none."""
        own = call.again(frozenset())
        own.pinned = name
        attempt, kind, body = self._ask(own), "", b""
        try:
            async with asyncio.timeout(ASK_S):
                async for message in (each async for several in attempt.messages for each in several):
                    if message["type"] == "http.response.start" and message["status"] == 200:
                        kind = dict(message["headers"]).get(b"content-type", b"").decode("latin-1")
                    body += message.get("body", b"")
        except (Elsewhere, TimeoutError, ApiError):
            return "", b""
        finally:
            attempt.cancel()
        return kind, body


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
