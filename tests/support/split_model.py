"""A program for tests: one rank of models split between processes, over gloo.

Usage: split_model.py RANK SIZE FOLDER. For each model in FOLDER it computes the logits of a prompt, token by token and
in one piece, in float32 and in bfloat16, and saves all of them, and what was measured, as FOLDER/RANK.pt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.distributed import FileStore

from nanolens.models import load_model
from nanolens.models.collectives import join
from nanolens.models.parallel import Shard
from tiny_models import paged_logits, some_ids


def main() -> None:
    """Join, compute, save, leave."""
    shard, folder = Shard(int(sys.argv[1]), int(sys.argv[2])), Path(sys.argv[3])
    collectives = join(shard, FileStore(str(folder / "store"), shard.size), torch.device("cpu"), timeout_s=60)
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*/config.json")):
        for dtype in ("float32", "bfloat16"):
            model = load_model(str(path.parent), dtype, shard=shard, collectives=collectives)
            for chunk in (None, 1):
                found[f"{path.parent.name} {dtype} {chunk}"] = paged_logits(model, some_ids(9), chunk)
    torch.save({"logits": found, "waited": collectives.waited()}, folder / f"{shard.rank}.pt")
    collectives.close()


if __name__ == "__main__":
    main()
