"""KV cache and prefix cache: who holds the blocks, what the cache saves, and what it loses too early."""

from __future__ import annotations

from .board_overview import quantiles
from .dashboard import Dashboard, Row
from .panels import BAD, GOOD, WARN, Panel, Query
from .promql import ENGINE, ENGINE_NAME, buckets, gauge, rate, ratio, series
from .trace_links import EVICTING, REUSING, SWAPPED

HITS, QUERIED = "nanolens_prefix_cache_hit_tokens_total", "nanolens_prefix_cache_queried_tokens_total"
AGES = 3600.0  # seconds that a block may live or lie in a sane run
BLOCKS_MAX = 1e7

MEMORY = Row(
    "Device memory",
    (
        Panel(
            "timeseries", "Blocks by state",
            "used blocks stand in a block table; cached ones in none, but can be hit or evicted; free ones hold "
            "nothing. An allocation takes what is free or cached.",
            "none", (Query(gauge("nanolens_kv_blocks", by=("state",)), "{{state}}", high=BLOCKS_MAX),), stack=True,
        ),
        Panel(
            "timeseries", "In use",
            "Share of each engine's pool that sequences hold.",
            "percentunit",
            (
                Query(
                    ratio(gauge("nanolens_kv_blocks", 'state="used"', by=ENGINE),
                          gauge("nanolens_kv_blocks_capacity", by=ENGINE)),
                    ENGINE_NAME, high=1,
                ),
            ),
            steps=((None, GOOD), (0.85, WARN), (0.95, BAD)), highest=1,
        ),
        Panel(
            "timeseries", "Fill of used blocks",
            "Share of the token slots in used blocks that hold a computed token. What is missing is the unfilled tail "
            "of each sequence, or blocks taken for a prefill that goes on.",
            "percentunit",
            (Query(f"avg by (instance, replica) ({series('nanolens_kv_token_fill_ratio')})", ENGINE_NAME, high=1),),
            highest=1,
        ),
    ),
)  # fmt: skip

PREFIXES = Row(
    "Prefix cache",
    (
        Panel(
            "timeseries", "Hit ratio",
            "Share of the prompt tokens looked up at first admissions that were found. Recomputation after a "
            "preemption never counts here.",
            "percentunit", (Query(ratio(rate(HITS), rate(QUERIED)), "hits", high=1),), highest=1,
            traces=REUSING,
        ),
        Panel(
            "timeseries", "Tokens looked up and missed",
            "Prompt tokens per second by what the look-up found. evicted could have been hits with more blocks; "
            "sub_block can't be, as they fill no whole block.",
            "short",
            (
                Query(rate(HITS), "hit", high=1e7),
                Query(rate("nanolens_prefix_cache_misses_total", by=("reason",)), "{{reason}}", high=1e7),
            ),
            stack=True,
        ),
        Panel(
            "timeseries", "Blocks taken",
            "Blocks per second: taken for new content, shared by a hit, and those that lost cached content to an "
            "allocation.",
            "ops",
            (
                Query(rate("nanolens_block_allocations_total"), "allocated", high=BLOCKS_MAX),
                Query(rate("nanolens_block_shares_total"), "shared", high=BLOCKS_MAX),
                Query(rate("nanolens_block_evictions_total"), "evicted", high=BLOCKS_MAX),
            ),
            traces=EVICTING,
        ),
        Panel(
            "timeseries", "Lifetime of blocks",
            "From a block being taken to its last reference given up.",
            "s", quantiles("nanolens_block_lifetime_seconds", AGES, exemplars=False),
        ),
        Panel(
            "timeseries", "Idle before eviction",
            "How long cached content lay unused before it was lost. Compare with the gap between uses: if eviction "
            "comes sooner, more blocks would give hits.",
            "s", quantiles("nanolens_block_idle_before_eviction_seconds", AGES, exemplars=False),
            traces=EVICTING,
        ),
        Panel(
            "timeseries", "Gap between uses",
            "Time between two sequences taking the same cached block. No data: no block was shared over the time "
            "shown, as where prompts have no whole block in common.",
            "s", quantiles("nanolens_block_reuse_gap_seconds", AGES, exemplars=False),
        ),
        Panel(
            "heatmap", "Lifetime of blocks, all of it",
            "Blocks given up per second by how long they were held.",
            "s", (Query(buckets("nanolens_block_lifetime_seconds"), "{{le}}", high=BLOCKS_MAX),), width=12,
        ),
        Panel(
            "heatmap", "Gap between uses, all of it",
            "Hits on cached blocks per second by how long nobody had taken them. Empty where prompts have no whole "
            "block in common.",
            "s", (Query(buckets("nanolens_block_reuse_gap_seconds"), "{{le}}", high=BLOCKS_MAX),), width=12,
        ),
    ),
)  # fmt: skip

SWAP = Row(
    "Swap space",
    (
        Panel(
            "timeseries", "Slots",
            "Slots of the swap space in host memory and in the swap file. All at 0: there is none.",
            "none",
            (
                Query(gauge("nanolens_host_kv_blocks", by=("state",)), "host {{state}}", high=BLOCKS_MAX),
                Query(gauge("nanolens_disk_kv_blocks", by=("state",)), "disk {{state}}", high=BLOCKS_MAX),
            ),
        ),
        Panel(
            "timeseries", "Blocks moved",
            "Blocks per second out of the device, in to it, and down from host memory to the file.",
            "ops",
            (Query(rate("nanolens_swapped_blocks_total", by=("direction",)), "{{direction}}", high=BLOCKS_MAX),),
            traces=SWAPPED,
        ),
        Panel(
            "timeseries", "Moves that failed",
            "Moves per second that failed: the KV is dropped and computed again. Look at the disk and its free space.",
            "ops", (Query(rate("nanolens_swap_failures_total"), "failed", high=1e4),),
            steps=((None, GOOD), (1e-9, BAD)), traces=SWAPPED,
        ),
    ),
)  # fmt: skip

BOARD = Dashboard(
    "kv-cache", "KV cache and prefix cache", "Who holds the blocks, and what does sharing them save?",
    (MEMORY, PREFIXES, SWAP),
)  # fmt: skip
