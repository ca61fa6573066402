"""Triton's interpreter, which runs kernels on the CPU. `load_interpreter()` comes before anything imports triton."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest


def load_interpreter() -> ModuleType:
    """Give triton with its interpreter on; skip the calling module where that can't be.

    A process either interprets or compiles. Where there is a GPU it compiles, for tests/gpu.
    """
    import torch

    if torch.cuda.is_available():
        pytest.skip("a GPU is here: its kernels are compiled, and tested in tests/gpu", allow_module_level=True)
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.fail("triton was imported before the interpreter was asked for: kernels made so far would be compiled")
    os.environ["TRITON_INTERPRET"] = "1"
    if os.environ.get("CI", "").lower() not in ("1", "true"):
        pytest.importorskip("triton", reason="needs triton, which is not here")
    import triton
    import triton.runtime.interpreter as interpreter

    _allow_numpy_scalars(interpreter)
    _multiply_bfloat16(interpreter)
    _keep_masks_boolean(interpreter)
    return triton


def _allow_numpy_scalars(interpreter: ModuleType) -> None:
    """Let scalars be loop bounds: Triton 3.6 keeps them as arrays of one element, which numpy 2.4 refuses as an int."""
    original = interpreter._patch_lang_tensor
    if getattr(original, "takes_numpy_scalars", False):
        return

    def patch(tensor: type, scope: object) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    patch.takes_numpy_scalars = True
    interpreter._patch_lang_tensor = patch


def _multiply_bfloat16(interpreter: ModuleType) -> None:
    """Let `tl.dot` take bfloat16, which the interpreter keeps as the bits in a uint16 and would multiply as such."""
    import triton.language as tl

    builder = interpreter.InterpreterBuilder
    original = builder.create_dot
    if getattr(original, "takes_bfloat16", False):
        return

    def widened(handle: Any) -> Any:
        if handle.data.dtype != np.uint16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: object, a: Any, b: Any, *others: Any) -> Any:
        return original(self, widened(a), widened(b), *others)

    create_dot.takes_bfloat16 = True
    builder.create_dot = create_dot


def _keep_masks_boolean(interpreter: ModuleType) -> None:
    """Let a scalar condition be part of a mask: spread over a block it gets the type of what was compared.

    Triton 3.9 refuses masks of other types than bool; its predecessors took the integers for truth values.
    """
    builder = interpreter.InterpreterBuilder
    original = builder.create_splat
    if getattr(original, "keeps_masks_boolean", False):
        return

    def create_splat(self: object, shape: Any, value: Any) -> Any:
        spread = original(self, shape, value)
        if value.data.dtype == np.bool_:
            spread.data = spread.data.astype(np.bool_)
        return spread

    create_splat.keeps_masks_boolean = True
    builder.create_splat = create_splat
