"""The table of symptoms: each entry is whole, real messages find theirs first, and nothing finds nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbench.cli.app import app
from qbench.diagnosis import look_up, symptoms

MESSAGES = {
    "E RKNN: [10:21:11.392] 6, 1 Invalid RKNN model version 6": "runtime-older-than-model",
    "E RKNN: [02:42:54.787] clip_truncate < 0, plz make sure bias_scale > weight_scale * input_scale": "rknn-clip-truncate",
    "E load_onnx: Unsupport onnx opset 21, need <= 19!": "opset-too-new",
    "E RKNN: [02:54:07.615] Not Support Dtype: 2. please check precision!": "rknn-dtype-not-supported",
    "E RKNN: Unkown op target: 0": "rknn-harmless-op-target",
    "AttributeError: module 'onnx' has no attribute 'mapping'": "python-package-cohabitation",
    "ValueError: setting an array element with a sequence. The requested array has an inhomogeneous shape": "calibration-shapes",
    "Quantization parameters are not specified for param conv1_output": "quantization-parameters-missing",
    "This is an invalid model. Error: two nodes with same node name (Conv_0).": "duplicate-node-name",
    "ERROR: unknown command line flag 'optimize_level'": "atc-unknown-flag",
    "Permission denied: cannot open /dev/dri/renderD129": "device-busy-or-missing",
    "E RKNN: [14:57:51.577] failed to submit!, op id: 1, op name: Conv:Conv_0, flags: 0x5, task start: 0, task number: 22": "rknn-failed-to-submit",
    "QnnDsp <E> Failed to create transport for device, error: 4000": "qnn-transport",
    "QNN.backendValidateOpConfig() failed for node `Conv_token_353` of type `Conv2d` with error code 3110": "qnn-op-validation",
    "Unsupported Einsum Op on RK3588S": "operator-unsupported",
    "ValueError: model contains dynamic input shape, set dynamic_input or fix the shape": "atc-input-shape",
    "all outputs of the NPU are zero": "all-zeros",
    "my int8 yolo detects nothing, confidence is always 0": "scores-zero",
    "the result lags one frame behind": "stale-output",
    "64 byte stripes of garbage in the picture": "cache-not-flushed",
    "colors look blue, I use cv2.imread": "bgr-for-rgb",
    "the output image is slanted, width 100": "layout-sheared",
    "inference takes 96 ms instead of 13": "slow-clock",
    "E RKNN: [11:25:33.723] rknn_inputs_set, param input size(3072000) < model input size(4608000)": "rknn-input-size",
    "ATC run failed, E10016: Opname [x] specified in [--input_shape] is not found in the model": "atc-input-shape",
    "ModuleNotFoundError: No module named 'rknn'": "toolkit-not-installed",
    "failed to open rknpu module, need to insmod rknpu dirver!": "device-busy-or-missing",
    "aclmdlExecute failed, errorCode is 507011": "acl-return-code",
    "[ERROR] ACL_ERROR_RT_PARAM_INVALID 107000": "acl-return-code",
    "libQnnHtp.so: cannot open shared object file: No such file or directory": "qnn-library-path",
    "Type Error: Type 'tensor(int16)' of input parameter (x) of operator (QuantizeLinear) in node (q) is invalid.": "per-channel-opset",
    "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!": "host-key",
    "scp: write remote \"/tmp/model.rknn\": No space left on device": "board-full",
    "accuracy is much lower on the board than in the simulator": "sim-good-board-bad",
    "detections have zero confidence": "scores-zero",
    "the board gets slower after some minutes": "slow-clock",
    "bounding boxes are shifted": "boxes-shifted",
    "模型推理结果全是0": "all-zeros",
}


@pytest.mark.parametrize("message", MESSAGES)
def test_the_right_symptom_comes_first(message: str) -> None:
    found = look_up(message)
    assert found and found[0].symptom.name == MESSAGES[message], [(m.symptom.name, m.score) for m in found]
    assert found[0].because


def test_entries_are_whole_and_their_patterns_compile() -> None:
    table = symptoms()
    assert len(table) >= 40
    commands = {c.name for c in app.registered_commands} | {g.name for g in app.registered_groups}
    for s in table:
        assert s.title and s.cause and s.cure and s.source and 2015 <= s.year <= 2100 and s.steps and (s.says or s.patterns), s.name
        assert s.check.split()[0] == "qbench" and s.check.split()[1] in commands, s.name
        for p in s.patterns:
            re.compile(p)


@pytest.mark.parametrize("name", [s.name for s in symptoms()])
def test_every_phrase_finds_its_own_entry_first(name: str) -> None:
    entry = next(s for s in symptoms() if s.name == name)
    for phrase in entry.says:
        assert look_up(phrase)[0].symptom.name == name, phrase


def test_a_log_is_searched_line_by_line() -> None:
    log = "\n".join(["I rknn building ...", *("D layer done" for _ in range(50)), "E RKNN: clip_truncate < 0, plz make sure bias_scale", "I end"])
    assert look_up(log)[0].symptom.name == "rknn-clip-truncate"


@pytest.mark.parametrize("text", ["hello world", "", "\n\n", "lorem ipsum dolor sit amet"])
def test_what_is_no_symptom_finds_nothing(text: str) -> None:
    assert not look_up(text)


@given(st.text(max_size=200))
def test_any_text_is_answered_in_order(text: str) -> None:
    found = look_up(text)
    assert [m.score for m in found] == sorted((m.score for m in found), reverse=True)
    assert all(0.0 < m.score <= 1.0 for m in found) and len(found) <= 5
