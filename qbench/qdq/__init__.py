"""Plans as ONNX files: QuantizeLinear / DequantizeLinear pairs, written, checked, saved."""

from qbench.qdq.saving import BIG_MODEL_BYTES, save, to_bytes
from qbench.qdq.tensors import clamped, quantized_tensors, watched_tensors
from qbench.qdq.writer import Written, write

__all__ = ["BIG_MODEL_BYTES", "Written", "clamped", "quantized_tensors", "save", "to_bytes", "watched_tensors", "write"]
