"""BUG case B13 on attention as torch itself exports it: masked_fill with infinity, causal and from an input."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from qbench.workbench import quantize

TOKENS, WIDTH, HEADS = 8, 16, 2


class Attention(torch.nn.Module):
    """form   how the mask is applied; huge   what takes the place of masked logits"""

    def __init__(self, form: str, huge: float) -> None:
        super().__init__()
        self.form, self.huge = form, huge
        torch.manual_seed(0)
        self.query, self.key, self.value = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("later", torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1))

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(2 * x).view(x.shape[0], TOKENS, HEADS, -1).transpose(1, 2) for layer in (self.query, self.key, self.value))
        drop = 1.0 - keep[:, None, None, :]
        if self.form == "scaled dot product":
            made: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=drop < 0.5)
            return made
        logits = q @ k.transpose(-1, -2) / WIDTH**0.5
        if self.form == "fill":
            logits = logits.masked_fill(self.later, self.huge).masked_fill(drop > 0, self.huge)
        else:                                                         # as in BERT: the mask fills itself
            logits = logits + drop.masked_fill(drop.to(torch.bool), self.huge)
        weighed: torch.Tensor = torch.softmax(logits, dim=-1) @ v
        return weighed


@pytest.mark.parametrize(("form", "huge"), [("fill", float("-inf")), ("fill", float(torch.finfo(torch.float16).min)), ("of itself", float(torch.finfo(torch.float32).min)),
                                            ("scaled dot product", 0.0)])
def test_attention_of_torch_keeps_its_signal(form: str, huge: float, tmp_path: Path) -> None:
    """Every kernel with logits in integers; 27 dB in 8 bits and 65 dB in 16 behind the values, which are quantized too."""
    path, rng = tmp_path / "net.onnx", np.random.default_rng(0)
    x, keep = torch.randn(2, TOKENS, WIDTH), torch.ones(2, TOKENS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                               # of torch's exporter
        torch.onnx.export(Attention(form, huge).eval(), (x, keep), str(path), dynamo=False, opset_version=17, input_names=["x", "keep"], output_names=["y"],
                          dynamic_axes={n: {0: "N"} for n in ("x", "keep", "y")})
    np.savez(tmp_path / "d.npz", x=rng.normal(size=(48, TOKENS, WIDTH)).astype(np.float32),
             keep=(np.arange(TOKENS) < rng.integers(5, TOKENS + 1, 48)[:, None]).astype(np.float32))
    for precision, least in (("int8", 27.0), ("int16", 65.0)):
        done = quantize(path, tmp_path / "q.onnx", data=str(tmp_path / "d.npz"), precision=precision)
        assert done["corrections"][-1]["sqnr_after_db"] >= least
        integers = {r["op"] for r in done["coverage"]["rows"] if r["precision"] == precision}
        assert {"Softmax", "MatMul"} | ({"Where"} if form == "fill" else set()) <= integers
        scales = [onnx.numpy_helper.to_array(i) for i in onnx.load(tmp_path / "q.onnx").graph.initializer if i.name.endswith("_scale")]
        assert max(float(s.max()) for s in scales) < 1.0
