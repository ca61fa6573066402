"""What `nano-bench kernels` can be asked for: shapes of a layer and of batches, and one operation to be timed."""

from __future__ import annotations

from dataclasses import dataclass

from .timing import Call


@dataclass(frozen=True)
class Scale:
    """Shapes of a layer and of the batches.

    Attributes:
        few_rows: tokens of the products of a few rows.
        products: tokens of a layer's products.
        decodes: (batch, context) of decode attention.
        prefill: (batch, tokens) of prefill attention.
        elementwise: tokens of the kernels between the products.
        batch: rows of sampling and of a decode step.
    """

    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    few_rows: tuple[int, ...]
    products: tuple[int, ...]
    decodes: tuple[tuple[int, int], ...]
    prefill: tuple[int, int]
    elementwise: tuple[int, ...]
    batch: int

    @property
    def qkv_size(self) -> int:
        """Rows of the joined q, k, v projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


FULL = Scale(
    1024, 3072, 16, 8, 128, 151_936,
    few_rows=(1, 4), products=(1, 32, 256, 8192), decodes=((256, 560), (256, 1100), (32, 1100), (1, 4000)),
    prefill=(16, 1024), elementwise=(256, 8192), batch=256,
)  # fmt: skip
QUICK = Scale(
    1024, 3072, 16, 8, 128, 151_936,
    few_rows=(1,), products=(256,), decodes=((256, 560), (1, 4000)), prefill=(4, 1024), elementwise=(256,), batch=256,
)  # fmt: skip
SMALL = Scale(
    256, 512, 4, 2, 64, 4096,
    few_rows=(1, 4), products=(1, 32), decodes=((8, 60), (1, 250)), prefill=(2, 64), elementwise=(32,), batch=16,
)  # fmt: skip
SMALL_QUICK = Scale(
    64, 128, 4, 2, 16, 512,
    few_rows=(1,), products=(4,), decodes=((2, 20),), prefill=(1, 16), elementwise=(4,), batch=2,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """An operation to time.

    Attributes:
        name: of the operation.
        shape: of this case, for people.
        calls: one for each set of inputs.
        num_bytes: that a call has to read and write.
        flops: of a call's products.
        reference: the torch form of the same on the same inputs; empty where the operation is torch's own.
        flash: the same work by flash-attn on pages of its own; empty without it.
    """

    name: str
    shape: str
    calls: list[Call]
    num_bytes: int
    flops: int = 0
    reference: tuple[Call, ...] = ()
    flash: tuple[Call, ...] = ()
