"""GPU modules are loaded at their first use, and what is missing is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nanolens.errors import InvalidConfig
from nanolens.kernels.dispatch import on_gpu


def test_without_triton_the_error_says_what_to_install_or_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # importing it raises
    on_gpu.cache_clear()
    with pytest.raises(InvalidConfig, match=r"pip install triton.*device='cpu'"):
        on_gpu("triton_norm", "rms_norm")


def test_a_function_is_looked_up_once() -> None:
    pytest.importorskip("triton")
    assert on_gpu("triton_norm", "rms_norm") is on_gpu("triton_norm", "rms_norm")


def test_the_operations_on_a_cpu_load_no_triton(tmp_path: Path) -> None:
    code = (
        "import sys, torch\n"
        "from nanolens.kernels import activation, norm, qkv, linear, fused_linear\n"
        "x = torch.ones(2, 8)\n"
        "norm.add_rms_norm(x, x, x[0], 1e-6), activation.silu_and_mul(x), linear.pack_linear(torch.ones(4, 8))(x)\n"
        "sys.exit('triton was loaded' if 'triton' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_whole_engine_on_a_cpu_loads_no_triton(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from nanolens import LLM, SamplingParams\n"
        "with LLM('dummy:llama-tiny', device='cpu', num_blocks=64) as llm:\n"
        "    params = SamplingParams(max_tokens=4, top_k=9, presence_penalty=0.5, ignore_eos=True)\n"
        "    assert len(llm.generate([[1, 2, 3]], params)[0].outputs[0].token_ids) == 4\n"
        "sys.exit('triton was loaded' if 'triton' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
