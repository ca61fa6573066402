"""PromQL as the dashboards use it: every selector narrowed by the dashboard's variables, every ratio safe at zero.

Knows the grammar of the expressions it writes, and no metric by name.
"""

from __future__ import annotations

INTERVAL = "$__rate_interval"
RANGE = "$__range"  # the time range that the dashboard shows
OF_ADDRESS = ('job=~"$job"', 'instance=~"$instance"')
SCOPE = (*OF_ADDRESS, 'replica=~"$replica"')  # series without that label, as those of one server, match where all do
ENGINE = ("instance", "replica")  # what tells one engine from the others
ENGINE_NAME = "{{instance}} {{replica}}"  # the same as a legend


def series(name: str, *matchers: str) -> str:
    """A selector: `name` of the engines that the variables choose, and `matchers` such as `status="RUNNING"`."""
    return f"{name}{{{','.join((*SCOPE, *matchers))}}}"


def of_address(name: str, *matchers: str) -> str:
    """A selector of what is known of an address that is scraped, however many replicas answer behind it."""
    return f"{name}{{{','.join((*OF_ADDRESS, *matchers))}}}"


def total(expr: str, *by: str) -> str:
    """The sum of an expression over all engines, for each value of the labels `by`."""
    return f"sum by ({', '.join(by)}) ({expr})" if by else f"sum({expr})"


def gauge(name: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """The sum of a gauge."""
    return total(series(name, *matchers), *by)


def most(name: str, *matchers: str, by: tuple[str, ...] = ENGINE) -> str:
    """The highest value of a gauge."""
    return f"max by ({', '.join(by)}) ({series(name, *matchers)})"


def rate(name: str, *matchers: str, by: tuple[str, ...] = (), over: str = INTERVAL) -> str:
    """Growth of a counter per second."""
    return total(f"rate({series(name, *matchers)}[{over}])", *by)


def increase(name: str, *matchers: str, by: tuple[str, ...] = (), over: str = RANGE) -> str:
    """How much a counter grew over the time shown."""
    return total(f"increase({series(name, *matchers)}[{over}])", *by)


def ratio(part: str, whole: str) -> str:
    """`part / whole` where there is a whole: no series, not NaN, where nothing happened."""
    return f"{part} / ({whole} > 0)"


def mean(histogram: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """Mean of what a histogram observed."""
    return ratio(rate(histogram + "_sum", *matchers, by=by), rate(histogram + "_count", *matchers, by=by))


def quantile(q: float, histogram: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """An estimated quantile of what a histogram observed; no series where it observed nothing."""
    within = rate(histogram + "_bucket", *matchers, by=("le", *by))
    observed = rate(histogram + "_count", *matchers, by=by)
    return f"histogram_quantile({q}, {within}) and ({observed} > 0)"


def buckets(histogram: str, *matchers: str) -> str:
    """Observations per second in each bucket, for a heatmap."""
    return rate(histogram + "_bucket", *matchers, by=("le",))


def share_within(histogram: str, bound: str, *matchers: str, over: str = INTERVAL) -> str:
    """Share of observations up to `bound`: a bucket's bound as its `le` label has it, or a variable that holds one."""
    part = rate(histogram + "_bucket", *matchers, f'le="{bound}"', over=over)
    return ratio(part, rate(histogram + "_count", *matchers, over=over))
