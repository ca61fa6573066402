"""Links from a point of a panel to the traces of its time, as TraceQL in Grafana's Explore. Knows no metric."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

SERVICE = "nanolens"  # the spans' service.name
TRACES = "${traces}"  # the variable that names the Tempo data source
FROM, TO = "${__from}", "${__to}"
_VARIABLE = re.compile(r"\$\{\w+\}")

# TraceQL conditions on attributes of the spans that telemetry/spans.py makes.
FAILED = "status = error"
LATE_FIRST = "span.nanolens.time_to_first_token_seconds > ${ttft_slo}"
LATE_NEXT = "span.nanolens.decode.interval_max_seconds > ${itl_slo}"
QUEUED = "span.nanolens.queued_seconds > 1"
PAUSED = "span.nanolens.paused_seconds > 0"
PREEMPTED = 'span.nanolens.event = "sequence.preempted"'
EVICTING = "span.nanolens.blocks.evicted_count > 0"
SWAPPED = 'span.nanolens.event = "blocks.swapped"'
REUSING = "span.gen_ai.usage.cache_read.input_tokens > 0"


def trace_query(condition: str) -> str:
    """TraceQL for nanolens' traces with a span that meets a condition; "": all of them."""
    service = f'resource.service.name = "{SERVICE}"'
    return f"{{ {service} && {condition} }}" if condition else f"{{ {service} }}"


def trace_link(condition: str) -> dict[str, Any]:
    """A data link to Explore, over the dashboard's time range.

    Everything is percent-encoded but the variables, which Grafana replaces in the text as it stands.
    """
    datasource = {"type": "tempo", "uid": TRACES}
    query = {"refId": "A", "datasource": datasource, "queryType": "traceql", "query": trace_query(condition)}
    pane = {"datasource": TRACES, "queries": [query], "range": {"from": FROM, "to": TO}}
    encoded = quote(json.dumps({"traces": pane}, separators=(",", ":")), safe="")
    for variable in (TRACES, FROM, TO, *_VARIABLE.findall(condition)):
        encoded = encoded.replace(quote(variable, safe=""), variable)
    return {"title": "Traces", "url": f"/explore?schemaVersion=1&orgId=1&panes={encoded}", "targetBlank": True}
