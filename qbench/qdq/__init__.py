"""Plans as ONNX files: QuantizeLinear / DequantizeLinear pairs, written, checked, saved."""

from qbench.qdq.tensors import clamped, quantized_tensors
from qbench.qdq.writer import Written, save, to_bytes, write

__all__ = ["Written", "clamped", "quantized_tensors", "save", "to_bytes", "write"]
