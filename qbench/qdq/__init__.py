"""Plans as ONNX files: QuantizeLinear / DequantizeLinear pairs, written, checked, saved."""

from qbench.qdq.tensors import clamped, quantized_tensors
from qbench.qdq.writer import BIG_MODEL_BYTES, Written, save, to_bytes, write

__all__ = ["BIG_MODEL_BYTES", "Written", "clamped", "quantized_tensors", "save", "to_bytes", "write"]
