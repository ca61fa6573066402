"""Links from a point of a panel to the traces of its time, as TraceQL in Grafana's Explore. Knows no metric."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

SERVICE = "nanolens"
TRACES = "${traces}"  # the variable that names the Tempo data source
FROM, TO = "${__from}", "${__to}"
_VARIABLES = (TRACES, FROM, TO)


def trace_query(traces: str) -> str:
    """TraceQL for nanolens' traces with a span that meets the given condition, `{}` for all of them."""
    condition = traces.strip().removeprefix("{").removesuffix("}").strip()
    service = f'resource.service.name = "{SERVICE}"'
    return f"{{ {service} && {condition} }}" if condition else f"{{ {service} }}"


def trace_link(traces: str) -> dict[str, Any]:
    """A data link to Explore, over the dashboard's time range.

    Everything is percent-encoded but the variables, which Grafana replaces in the text as it stands.
    """
    datasource = {"type": "tempo", "uid": TRACES}
    query = {"refId": "A", "datasource": datasource, "queryType": "traceql", "query": trace_query(traces), "limit": 50}
    pane = {"datasource": TRACES, "queries": [query], "range": {"from": FROM, "to": TO}}
    encoded = quote(json.dumps({"traces": pane}, separators=(",", ":")), safe="")
    for variable in _VARIABLES:
        encoded = encoded.replace(quote(variable, safe=""), variable)
    return {"title": "Traces", "url": f"/explore?schemaVersion=1&orgId=1&panes={encoded}", "targetBlank": True}
