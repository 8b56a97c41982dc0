"""For each cause: how to make sure, and what to do. Facts about chips with their source."""

from __future__ import annotations

from typing import NamedTuple

from qbench.diagnosis.records import Cause


class Cure(NamedTuple):
    confirm: str
    cure: str


CURES: dict[Cause, Cure] = {
    Cause.HEALTHY: Cure("", ""),
    Cause.ROUNDING: Cure("Feed values that lie exactly between two codes and look which one comes out.",
                         "Usually harmless, at most one step a layer. Cast inputs on the host with rint, never with astype alone; name the rounding to the search by measuring "
                         "accuracy on the board's outputs."),
    Cause.CHANNEL_ORDER: Cure("Feed a picture that is red alone and compare with one that is blue alone.",
                              "Decode in the order of the training: pixels[..., ::-1] after cv2.imread; on RKNN quant_img_RGB2BGR or reorder_channel, on Ascend the AIPP's "
                              "rbuv_swap_switch. Only one of host and model may swap. `qbench contract` checks it."),
    Cause.NORMALISATION: Cure("Feed the pixels with and without the host's normalisation; one of them equals the reference.",
                              "Normalise once: either in the host program or in the model (mean_values/std_values of RKNN, AIPP of Ascend), never both or neither. "
                              "`qbench contract --pipeline` checks it."),
    Cause.LAYOUT: Cure("Feed a picture with one bright row and one with one bright column.",
                       "Transpose, never reshape: x.transpose(0, 3, 1, 2). With zero-copy take the width stride that the runtime reports (rknn_query: w_stride) and pad or strip rows: "
                       "qbench.buffers pad_rows and strip_rows. `qbench contract` shows layout and strides."),
    Cause.SATURATION: Cure("Scale the input down by 4: the relative gap shrinks.",
                           "Accumulate in 32 bits (compiler option or another kernel), give the layer INT16 or FP16, or a wider range: `qbench analyze` shows what is clipped."),
    Cause.OVERFLOW: Cure("Scale the input down by 4: the gap vanishes, it does not merely shrink.",
                         "Accumulate in 32 bits, widen the weight scale of the layer so that bias and sums fit (BUG case B08), or give the layer INT16 or FP16."),
    Cause.RANGE: Cure("Compare the scale in the artefact with the plan's: `qbench export` reads it back.",
                      "Calibrate on data like those that are run; hand the plan's ranges to the compiler instead of letting it calibrate again; another --calibrator for the tensor."),
    Cause.PRECISION: Cure("Count the distinct values of the layer's output on the board: 256 or fewer are 8 bits.",
                          "Read the precision of each layer back after compiling (`qbench export` does) and state every layer in the plan; none may be left to the converter (BUG case B29)."),
    Cause.STALE: Cure("Run the same input twice in a row, then another twice: the second of each pair is right.",
                      "Wait for the device before reading (synchronise, rknn_outputs_get, aclrtSynchronizeStream), and never reuse the input buffer before the run has ended."),
    Cause.CACHE: Cure("Read the output after touching a buffer larger than the CPU's cache.",
                      "Invalidate the CPU cache after the device has written and flush it before the device reads (RKNN: rknn_mem_sync; dma-buf: DMA_BUF_IOCTL_SYNC), or use uncached buffers."),
    Cause.ZEROS: Cure("Fill the output buffer with a pattern before the run: if it is still there, nothing was written.",
                      "Check the return code of the run, that the output is bound to the buffer that is read, and its size."),
    Cause.NON_FINITE: Cure("Run the layer alone in float32 on the board's inputs.",
                           "Values above 65504 do not fit float16 (BUG case B22): give the layer INT8, INT16 or bf16, or scale it down; replace constants of -3.4e38 in masks by -1e4."),
    Cause.ZERO_POINT: Cure("Compare the raw codes with the reference's: they differ by 128, or by the zero point.",
                           "Read codes with the sign that the model declares; int8 = uint8 - 128, zero point with it. Real = (q - zero_point) * scale, once. Pad with the zero point."),
    Cause.SCALE: Cure("Divide board by reference: one constant comes out.",
                      "Dequantize once, with the scale that the artefact states for this output (RKNN: want_float=1, or scale and zp of rknn_query)."),
    Cause.ORDER: Cure("Feed one sample alone, then the others one by one.",
                      "Match samples and outputs by name or number, not by order of completion; with asynchronous queues keep the request's id with its result."),
    Cause.LATENCY: Cure("`qbench measure` with --clock: is the clock what the prediction assumes?",
                        "Outputs are right, time is not: look for layers that fall back to the CPU (`qbench inspect`), the clock (200 MHz when nothing drives devfreq), and layout copies."),
    Cause.CUT: Cure("Ask again with a larger --search-seconds, or with --samples 1.",
                    "Nothing wrong was seen in what was examined. Dump the tensors between the layers and give them with --outputs: that needs no search."),
    Cause.UNKNOWN: Cure("Dump the tensors between the layers and give them with --outputs: the first open layer is then found by itself.",
                        "Check that both sides run the same model and the same samples."),
}
