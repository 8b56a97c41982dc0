"""Networks that listen: note transcription (basic-pitch) and voice activity (three forms of Silero VAD)."""

from __future__ import annotations

import wave
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from made import Array, Made, session
from onnx import TensorProto, helper, numpy_helper
from packages import Package, unpacked

PITCH = Package("pypi", "basic-pitch==0.4.0", ("basic_pitch/saved_models/icassp_2022/nmp.onnx",))
SILERO = Package(
    "pypi",
    "silero-vad==6.2.3",
    tuple(f"silero_vad/data/silero_vad_{n}.onnx" for n in ("16k_op15", "op18_ifless", "16k_sequence")),
)
SPEECH = Package("deb", "pocketsphinx-testdata", ("usr/share/pocketsphinx/test/data/*",))
PITCH_HZ, PITCH_SAMPLES, PITCH_HOP, PITCH_FRAMES, LOWEST_KEY, KEYS = 22050, 43844, 256, 172, 21, 88
SPEECH_HZ, WINDOW, CONTEXT, STEPS = 16000, 512, 64, 32
QUIET_DB = -30.0  # a frame of a clean recording below its loudest frame by this much is a pause


def basic_pitch(cache: Path) -> Made:
    """Notes of synthesised chords. Outputs are put in another order: the sounding notes first."""
    model = onnx.load(next(unpacked(PITCH, cache).rglob("nmp.onnx")))
    notes = next(o for o in model.graph.output if o.name == "StatefulPartitionedCall:1")
    others = [o for o in model.graph.output if o is not notes and o.name != notes.name]
    ordered = [onnx.ValueInfoProto.FromString(o.SerializeToString()) for o in (notes, *others)]
    del model.graph.output[:]
    model.graph.output.extend(ordered)
    feed = model.graph.input[0].name
    calibration, _ = _played(16, 10)
    evaluation, labels = _played(48, 11)
    return Made(
        model,
        {feed: calibration},
        {feed: evaluation, "labels": labels},
        "scores:notes",
        "plucked synthetic tones, no recordings",
    )


def _played(count: int, seed: int) -> tuple[Array, Array]:
    """Windows [count, samples, 1] of two to six decaying tones each, and which keys sound in which frame."""
    rng = np.random.default_rng(seed)
    sound = rng.normal(0, 0.002, (count, PITCH_SAMPLES))
    labels = np.zeros((count, PITCH_FRAMES, KEYS), np.uint8)
    for wave_, keys in zip(sound, labels, strict=True):
        for _ in range(int(rng.integers(2, 7))):
            key, start = int(rng.integers(19, 67)), int(rng.integers(0, PITCH_SAMPLES - 8000))
            length = min(int(rng.integers(6000, 24000)), PITCH_SAMPLES - start)
            t = np.arange(length) / PITCH_HZ
            hz = 440.0 * 2.0 ** ((key + LOWEST_KEY - 69) / 12)
            partials = [n for n in range(1, 8) if hz * n < PITCH_HZ / 2]
            tone = np.sum([np.sin(2 * np.pi * hz * n * t + rng.uniform(0, 6.28)) / n**1.2 for n in partials], axis=0)
            wave_[start : start + length] += (
                rng.uniform(0.1, 0.3) * tone * np.exp(-2.0 * t) * np.minimum(1, (length - np.arange(length)) / 400)
            )
            keys[round(start / PITCH_HOP) : round((start + length) / PITCH_HOP), key] = 1
    return sound[..., None].astype(np.float32), labels


def silero_lstm(cache: Path) -> Made:
    """Silero VAD for a whole stretch: the LSTM in the open graph. 32 windows are a sample, state starts at zero."""
    model = onnx.load(next(unpacked(SILERO, cache).rglob("*_16k_sequence.onnx")))
    graph = model.graph
    state = numpy_helper.from_array(np.zeros((1, 1, 128), np.float32))
    for name in ("h", "c"):
        graph.initializer.add().CopyFrom(state)
        graph.initializer[-1].name = name
    _replace_inputs(graph, [helper.make_tensor_value_info("windows", TensorProto.FLOAT, [1, STEPS, WINDOW + CONTEXT])])
    _reshape(graph, "windows", "input", (STEPS, WINDOW + CONTEXT), first=True)
    _reshape(graph, "speech_probs", "speech", (1, STEPS), first=False)
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("speech", TensorProto.FLOAT, [1, STEPS]))
    parts = {}
    for split, (windows, labels) in _spoken(cache).items():
        count = len(windows) // STEPS
        parts[split] = (
            windows[: count * STEPS].reshape(count, STEPS, -1),
            labels[: count * STEPS].reshape(count, STEPS),
        )
    return Made(
        model,
        {"windows": parts["calibration"][0]},
        {"windows": parts["evaluation"][0], "labels": parts["evaluation"][1]},
        "scores:frames",
        "labels from the loudness of the clean recording",
    )


def silero_if(cache: Path) -> Made:
    """Silero VAD, one window with its state; the decoder lies in If bodies. State and rate get a sample axis."""
    return _stepped(cache, "*_16k_op15.onnx", constant_rate=False)


def silero_ifless(cache: Path) -> Made:
    """Silero VAD, one window with its state, the LSTM spelled out; the rate is a constant, so the If can be folded."""
    return _stepped(cache, "*_op18_ifless.onnx", constant_rate=True)


def _stepped(cache: Path, pattern: str, constant_rate: bool) -> Made:
    model = onnx.load(next(unpacked(SILERO, cache).rglob(pattern)))
    graph = model.graph
    inputs = [
        helper.make_tensor_value_info("window", TensorProto.FLOAT, ["batch", WINDOW + CONTEXT]),
        helper.make_tensor_value_info("state_before", TensorProto.FLOAT, ["batch", 2, 128]),
    ]
    nodes = [
        helper.make_node("Identity", ["window"], ["input"], "take_window"),
        helper.make_node("Transpose", ["state_before"], ["state"], "take_state", perm=[1, 0, 2]),
    ]
    if constant_rate:
        graph.initializer.append(numpy_helper.from_array(np.array(SPEECH_HZ, np.int64), "sr"))
    else:
        inputs.append(helper.make_tensor_value_info("rate", TensorProto.INT64, ["batch"]))
        graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "first_sample"))
        nodes.append(helper.make_node("Gather", ["rate", "first_sample"], ["sr"], "take_rate", axis=0))
    _replace_inputs(graph, inputs)
    for node in reversed(nodes):
        graph.node.insert(0, node)
    graph.node.append(helper.make_node("Transpose", ["stateN"], ["state_after"], "give_state", perm=[1, 0, 2]))
    del graph.output[1:]
    graph.output.append(helper.make_tensor_value_info("state_after", TensorProto.FLOAT, ["batch", 2, 128]))
    spoken = _spoken(cache)
    made = {split: _with_states(model, windows, constant_rate) for split, (windows, _) in spoken.items()}
    chosen = np.random.default_rng(12).permutation(len(made["calibration"]["window"]))[:64]
    evaluated = slice(0, 500)
    return Made(
        model,
        {k: v[chosen] for k, v in made["calibration"].items()},
        {**{k: v[evaluated] for k, v in made["evaluation"].items()}, "labels": spoken["evaluation"][1][evaluated]},
        "auc",
        "labels from the loudness of the clean recording; every window has the state that the float model left",
    )


def _replace_inputs(graph: onnx.GraphProto, inputs: Sequence[onnx.ValueInfoProto]) -> None:
    del graph.input[:]
    graph.input.extend(inputs)


def _reshape(graph: onnx.GraphProto, source: str, goal: str, shape: tuple[int, ...], first: bool) -> None:
    graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"{goal}_shape"))
    node = helper.make_node("Reshape", [source, f"{goal}_shape"], [goal], f"reshape_{goal}")
    graph.node.insert(0 if first else len(graph.node), node)


def _with_states(model: onnx.ModelProto, windows: Array, constant_rate: bool) -> dict[str, Array]:
    """Feeds of every window, each with the state that the float model has before it."""
    run, state, states = session(model), np.zeros((1, 2, 128), np.float32), []
    rate = {} if constant_rate else {"rate": np.full(1, SPEECH_HZ, np.int64)}
    for window in windows:
        states.append(state)
        _, state = run.run(None, {"window": window[None], "state_before": state, **rate})
    return {
        "window": windows,
        "state_before": np.concatenate(states),
        **({} if constant_rate else {"rate": np.full(len(windows), SPEECH_HZ, np.int64)}),
    }


def _spoken(cache: Path) -> Mapping[str, tuple[Array, Array]]:
    """Per split: windows [n, 576] of a long recording with pauses, hum and hiss, and 1 where speech is."""
    folder = unpacked(SPEECH, cache)
    novel = sorted(p for p in folder.rglob("*.wav") if p.name.startswith("sense"))
    others = sorted(p for p in [*folder.rglob("*.wav"), *folder.rglob("*.raw")] if not p.name.startswith("sense"))
    return {
        "calibration": _timeline(others, np.random.default_rng(13)),
        "evaluation": _timeline(novel, np.random.default_rng(14)),
    }


def _timeline(files: Sequence[Path], rng: np.random.Generator) -> tuple[Array, Array]:
    parts, labels = [], []
    for path in files:
        clean = _recording(path)
        clean = clean[: len(clean) // WINDOW * WINDOW]
        energy = (clean.reshape(-1, WINDOW) ** 2).mean(1)
        gap = int(rng.integers(10, 40))
        parts += [np.zeros(gap * WINDOW), clean / max(np.abs(clean).max(), 1e-6) * rng.uniform(0.2, 0.9)]
        labels += [np.zeros(gap, np.int64), (energy > energy.max() * 10 ** (QUIET_DB / 10)).astype(np.int64)]
    sound = np.concatenate(parts)
    hum = 0.01 * np.sin(2 * np.pi * 50 * np.arange(len(sound)) / SPEECH_HZ)
    sound = (sound + hum + rng.normal(0, 0.01, len(sound))).astype(np.float32)
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), sound])
    starts = range(0, len(sound) - WINDOW + 1, WINDOW)
    return np.stack([padded[s : s + CONTEXT + WINDOW] for s in starts]), np.concatenate(labels)


def _recording(path: Path) -> Array:
    """16-bit mono at 16 kHz as -1..1."""
    if path.suffix == ".raw":
        return np.frombuffer(path.read_bytes(), "<i2").astype(np.float64) / 32768
    with wave.open(str(path)) as opened:
        if (opened.getframerate(), opened.getsampwidth(), opened.getnchannels()) != (SPEECH_HZ, 2, 1):
            raise ValueError(f"{path.name}: {opened.getparams()}; expected 16-bit mono at {SPEECH_HZ} Hz")
        return np.frombuffer(opened.readframes(opened.getnframes()), "<i2").astype(np.float64) / 32768
