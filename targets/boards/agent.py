"""The side of qbench that runs on a board: one file, nothing but Python 3.8 and the runtime that is measured.

    python3 agent.py facts RUNTIME                      prints what the machine and the runtime are, as JSON
    python3 agent.py measure RUNTIME REQUEST ANSWER     times a model; REQUEST and ANSWER are JSON files
    python3 agent.py outputs RUNTIME REQUEST ANSWER     runs it once on every input; ANSWER holds what came out

REQUEST: model, inputs (list of .npz), runs, warmup, seconds, threads, clock (null, or device and hertz), outputs (folder or ""),
sysfs ("/" on a real machine). A terminated agent puts back the clock that it has fixed.
Nothing is printed on standard output but the JSON of `facts`; runtimes write what they like to standard error.
"""

from __future__ import annotations

import base64
import glob
import json
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

POLL_S = 0.02
SLOW = 5
"""Polls of the power meter for one of the clocks and temperatures."""
LONGEST = 400
"""Readings that a series keeps; past it every second one is dropped."""
SETTLE_S = 1.0
"""Within which a clock must be where it was set."""
TOLERANCE = 0.02
STOPPED = threading.Event()
"""Set by a signal: the exception that it raises may be swallowed by a module that is being imported."""


class Runtime(Protocol):
    """A loaded model. `run` calls step(name) at the end of each step of the tensors' life and gives the outputs by name."""

    def run(self, feeds: dict[str, Any], step: Callable[[str], None]) -> dict[str, Any]: ...


# ---------------------------------------------------------------------------------------------------- runtimes


class OnnxRuntime:
    """CPU execution provider; the optimizer that would store float weights in 8 bits stays off."""

    def __init__(self, model: str, threads: int | None) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        if threads:
            options.intra_op_num_threads = threads
        self.ort = ort
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=["WeightBiasQuantization"])
        self.inputs = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]

    @staticmethod
    def version() -> str:
        import onnxruntime

        return f"onnxruntime {onnxruntime.__version__}"

    def run(self, feeds: dict[str, Any], step: Callable[[str], None]) -> dict[str, Any]:
        binding = self.session.io_binding()
        values = {n: self.ort.OrtValue.ortvalue_from_numpy(feeds[n]) for n in self.inputs}
        step("wrap")
        for name in self.inputs:
            binding.bind_ortvalue_input(name, values[name])
        for name in self.outputs:
            binding.bind_output(name)
        step("bind")
        self.session.run_with_iobinding(binding)
        step("execute")
        made = binding.copy_outputs_to_cpu()
        step("read")
        return dict(zip(self.outputs, made))  # noqa: B905  Python 3.8 knows no strict=


class OpenVino:
    """CPU plugin, latency mode."""

    def __init__(self, model: str, threads: int | None) -> None:
        import openvino

        config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
        if threads:
            config["INFERENCE_NUM_THREADS"] = threads
        core = openvino.Core()
        self.compiled = core.compile_model(core.read_model(model), "CPU", config)
        self.request = self.compiled.create_infer_request()
        self.inputs = [i.get_any_name() for i in self.compiled.inputs]
        self.outputs = [o.get_any_name() for o in self.compiled.outputs]

    @staticmethod
    def version() -> str:
        import openvino

        return f"openvino {openvino.__version__}"

    def run(self, feeds: dict[str, Any], step: Callable[[str], None]) -> dict[str, Any]:
        import openvino

        for name in self.inputs:
            self.request.set_tensor(name, openvino.Tensor(feeds[name], shared_memory=True))
        step("bind")
        self.request.infer()
        step("execute")
        made = {n: self.request.get_tensor(n).data.copy() for n in self.outputs}
        step("read")
        return made


class RknnLite:
    """rknn-toolkit-lite2 on a Rockchip board; inputs in the order of the request, as NCHW."""

    def __init__(self, model: str, threads: int | None) -> None:
        from rknnlite.api import RKNNLite

        self.rknn = RKNNLite(verbose=False)
        for code, what in ((self.rknn.load_rknn(model), "load_rknn"), (self.rknn.init_runtime(core_mask=RKNNLite.NPU_CORE_0), "init_runtime")):
            if code != 0:
                raise RuntimeError(f"{what} answered {code}")

    @staticmethod
    def version() -> str:
        from importlib.metadata import version

        return "rknnlite " + version("rknn-toolkit-lite2")

    def run(self, feeds: dict[str, Any], step: Callable[[str], None]) -> dict[str, Any]:
        made = self.rknn.inference(inputs=list(feeds.values()), data_format=["nchw"] * len(feeds))
        step("execute")
        if made is None:
            raise RuntimeError("inference answered None: see the runtime's own log")
        return {f"output{i}": v for i, v in enumerate(made)}


class Acl:
    """ais_bench's interface to AscendCL."""

    def __init__(self, model: str, threads: int | None) -> None:
        from ais_bench.infer.interface import InferSession

        self.session = InferSession(0, model)
        self.outputs = [o.name for o in self.session.get_outputs()]

    @staticmethod
    def version() -> str:
        from importlib.metadata import version

        return "ais_bench " + version("ais_bench")

    def run(self, feeds: dict[str, Any], step: Callable[[str], None]) -> dict[str, Any]:
        made = self.session.infer(list(feeds.values()))
        step("execute")
        return dict(zip(self.outputs, made))  # noqa: B905  Python 3.8 knows no strict=


RUNTIMES: dict[str, Any] = {"onnxruntime": OnnxRuntime, "openvino": OpenVino, "rknnlite": RknnLite, "acl": Acl}


# ---------------------------------------------------------------------------------------------------- the machine


def read(path: str) -> str:
    """Text of a small file, "" where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip("\0\n\t ")
    except OSError:
        return ""


def number(path: str) -> float | None:
    try:
        return float(read(path))
    except ValueError:
        return None


def binary(path: str) -> bytes:
    """A file as it is, b"" where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def clocks(root: str) -> dict[str, float]:
    """Clock of each domain in hertz: devices with devfreq, the fastest CPU core."""
    found = {}
    for folder in sorted(glob.glob(os.path.join(root, "sys/class/devfreq/*"))):
        value = number(os.path.join(folder, "cur_freq"))
        if value:
            found[os.path.basename(folder)] = value
    every = [number(p) for p in glob.glob(os.path.join(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"))]
    cores = [c for c in every if c]
    if cores:
        found["cpu"] = max(cores) * 1e3
    return found


def temperature(root: str) -> float | None:
    """Highest of all thermal zones in degrees Celsius, None without one."""
    raw = [number(p) for p in glob.glob(os.path.join(root, "sys/class/thermal/thermal_zone*/temp"))]
    values = [v / 1e3 for v in raw if v is not None and -4e4 < v < 2e5]
    return max(values) if values else None


class Clock:
    """A devfreq device held at one clock by its userspace governor (Linux kernel, Documentation/ABI/testing/sysfs-class-devfreq)."""

    def __init__(self, root: str, name: str, hz: float) -> None:
        base = os.path.join(root, "sys/class/devfreq")
        found = sorted(n for n in (os.listdir(base) if os.path.isdir(base) else []) if (name or "npu").lower() in n.lower())
        if len(found) != 1:
            have = ", ".join(sorted(os.listdir(base))) if os.path.isdir(base) else "none"
            raise RuntimeError(f"clock: {len(found)} devfreq devices have {name or 'npu'!r} in their name (there are: {have}); name one as in npu:1000MHz")
        self.name, self.folder, self.hz = found[0], os.path.join(base, found[0]), hz
        steps = read(os.path.join(self.folder, "available_frequencies")).split()
        if steps and str(int(hz)) not in steps:
            raise RuntimeError(f"clock: {self.name} has no {hz / 1e6:g} MHz, only {', '.join(f'{float(s) / 1e6:g}' for s in steps)} MHz")
        self.before = read(os.path.join(self.folder, "governor"))
        self.set_before = ""

    def __enter__(self) -> Clock:  # noqa: PYI034  Python 3.8 knows no Self
        try:
            self._write("governor", "userspace")
            self.set_before = read(os.path.join(self.folder, "userspace/set_freq"))
            self._write("userspace/set_freq", str(int(self.hz)))
            self._verify()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.before == "userspace" and self.set_before.isdigit():
            self._write("userspace/set_freq", self.set_before)
        if read(os.path.join(self.folder, "governor")) != self.before:
            self._write("governor", self.before)

    def _verify(self) -> None:
        until = time.perf_counter() + SETTLE_S
        now = number(os.path.join(self.folder, "cur_freq"))
        while now is None or abs(now / self.hz - 1.0) > TOLERANCE:
            if time.perf_counter() > until:
                raise RuntimeError(f"clock: {self.name} was set to {self.hz / 1e6:g} MHz and runs at {(now or 0.0) / 1e6:g} MHz: too hot, or limited by min_freq or max_freq")
            time.sleep(POLL_S)
            now = number(os.path.join(self.folder, "cur_freq"))

    def _write(self, name: str, text: str) -> None:
        path = os.path.join(self.folder, name)
        try:
            with open(path, "w", encoding="ascii") as stream:
                stream.write(text)
        except OSError as error:
            raise RuntimeError(f"clock: {text!r} cannot be written to {path} ({error.strerror}): run as root, with a kernel that has the userspace governor") from error


class Meter:
    """The first power reading that this machine offers: hwmon in microwatts, an INA's current and voltage, a power supply."""

    def __init__(self, root: str) -> None:
        self.paths: tuple[str, ...] = ()
        self.source = ""
        for path in sorted(glob.glob(os.path.join(root, "sys/class/hwmon/hwmon*/power1_input"))):
            self._take((path,), read(os.path.join(os.path.dirname(path), "name")) or path)
        for path in sorted(glob.glob(os.path.join(root, "sys/class/hwmon/hwmon*/curr1_input"))):
            folder = os.path.dirname(path)
            volts = next((v for v in (os.path.join(folder, n) for n in ("in1_input", "in2_input", "in0_input")) if os.path.exists(v)), None)
            if volts:
                self._take((path, volts), read(os.path.join(folder, "name")) or path)
        for path in sorted(glob.glob(os.path.join(root, "sys/class/power_supply/*/power_now"))):
            self._take((path,), os.path.basename(os.path.dirname(path)))

    def _take(self, paths: tuple[str, ...], source: str) -> None:
        if not self.paths and all(number(p) is not None for p in paths):
            self.paths, self.source = paths, source

    def watts(self) -> float | None:
        values = [v for v in map(number, self.paths) if v is not None]
        if not values or len(values) < len(self.paths):
            return None
        return values[0] * 1e-6 if len(values) == 1 else values[0] * values[1] * 1e-6


# What loads a model on the device may be older than the Python package in front of it.
VERSIONS = (
    ("librknnrt", "usr/lib/librknnrt.so", rb"librknnrt version: (\d+(?:\.\d+)+)"),
    ("npu_driver", "usr/local/Ascend/driver/version.info", rb"(?m)^Version=(\S+)"),
)


# What a runtime opens: misc device or DRM render node of Rockchip, Ascend's, Cambricon's, Qualcomm's FastRPC, AMD's accelerator node.
NODES = ("dev/rknpu*", "dev/dri/renderD*", "dev/davinci[0-9]*", "dev/davinci_manager", "dev/cambricon_dev*", "dev/adsprpc-smd", "dev/fastrpc-*", "dev/accel/accel*")
SERVERS = ("rknn_server", "msnpureport", "slogd", "adbd")
"""Processes that serve a connected computer, or whose absence says that a driver package is not whole."""


def device_nodes(root: str) -> str:
    """Accelerators' device nodes, each with whether this user may open it."""
    found = []
    for pattern in NODES:
        for path in sorted(glob.glob(os.path.join(root, pattern))):
            name = "/" + os.path.relpath(path, root).replace(os.sep, "/")
            if "renderD" in name:
                driver = os.path.basename(os.path.realpath(os.path.join(root, "sys/class/drm", os.path.basename(path), "device/driver")))
                name += f" ({driver})" if driver not in ("", "driver") else ""
            found.append(name + ("" if os.access(path, os.R_OK | os.W_OK) else ": no permission"))
    return ", ".join(found)


def servers(root: str) -> str:
    """Those of SERVERS that run, by their names in /proc; versions where they print one are left to the user."""
    running = {read(p) for p in glob.glob(os.path.join(root, "proc/[0-9]*/comm"))}
    return ", ".join(s for s in SERVERS if s[:15] in running)


def facts(runtime: str, root: str = "/") -> dict[str, str]:
    """Versions and machine as texts."""
    found = {"python": platform.python_version(), "system": platform.platform(), "machine": platform.machine(), "cores": str(os.cpu_count())}
    for key, path in (("board", "proc/device-tree/model"), ("npu_driver", "sys/module/rknpu/version"), ("npu_driver", "sys/kernel/debug/rknpu/version")):
        text = read(os.path.join(root, path))
        if text:
            found[key] = text
    for key, path, pattern in VERSIONS:
        match = re.search(pattern, binary(os.path.join(root, path)))
        if match:
            found.setdefault(key, match.group(1).decode())
    names = [line.split(":", 1)[1].strip() for line in read(os.path.join(root, "proc/cpuinfo")).splitlines() if line.startswith("model name")]
    if names:
        found["cpu"] = names[0]
    governors = {read(p) for p in glob.glob(os.path.join(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))}
    for folder in glob.glob(os.path.join(root, "sys/class/devfreq/*")):
        governors.add(os.path.basename(folder) + " " + read(os.path.join(folder, "governor")))
    if governors:
        found["governor"] = ", ".join(sorted(governors))
    found["device_nodes"], found["servers"] = device_nodes(root), servers(root)
    if runtime:
        found["runtime"] = RUNTIMES[runtime].version()
    return found


class Watch(threading.Thread):
    """Reads power, temperature and clocks while others work. series: "temperature_c" or a clock's domain -> [second, value]; power likewise, in watts."""

    def __init__(self, root: str, meter: Meter) -> None:
        threading.Thread.__init__(self, daemon=True)
        self.root, self.meter, self.stop_now = root, meter, threading.Event()
        self.watts: list[float] = []
        self.power: list[list[float]] = []
        self.series: dict[str, list[list[float]]] = {}
        self.began = time.perf_counter()

    def run(self) -> None:
        polls = 0
        while not self.stop_now.is_set():
            watts = self.meter.watts()
            if watts is not None:
                self.watts.append(watts)
                self.power.append([time.perf_counter() - self.began, watts])
                if len(self.power) > LONGEST:
                    del self.power[1::2]
            if polls % SLOW == 0:
                self.look()
            polls += 1
            self.stop_now.wait(POLL_S)

    def look(self) -> None:
        now = clocks(self.root)
        celsius = temperature(self.root)
        if celsius is not None:
            now["temperature_c"] = celsius
        second = time.perf_counter() - self.began
        for name, value in now.items():
            rows = self.series.setdefault(name, [])
            rows.append([second, value])
            if len(rows) > LONGEST:
                del rows[1::2]

    @property
    def hottest(self) -> float | None:
        return max((value for _, value in self.series.get("temperature_c", [])), default=None)

    def end(self) -> None:
        self.stop_now.set()
        self.join()
        self.look()


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


# ---------------------------------------------------------------------------------------------------- measuring


def measure(runtime: str, request: dict[str, Any]) -> dict[str, Any]:
    """Everything that `Measurement` of qbench needs, as a dict."""
    root = request["sysfs"]
    if request["clock"]:
        with Clock(root, *request["clock"]) as held:
            answer = timed(runtime, request)
        seen = [hz for _, hz in answer["series"][held.name]]
        kept = all(abs(hz / held.hz - 1.0) <= TOLERANCE for hz in seen)
        answer["facts"]["clock_lock"] = f"{held.name} at {held.hz / 1e6:g} MHz, " + ("verified" if kept else f"not held: {min(seen) / 1e6:g} to {max(seen) / 1e6:g} MHz")
        return answer
    return timed(runtime, request)


def timed(runtime: str, request: dict[str, Any]) -> dict[str, Any]:
    """What `measure` says, at whatever clocks there are."""
    import numpy as np

    root = request["sysfs"]
    samples = []
    for path in request["inputs"]:
        with np.load(path, allow_pickle=False) as stored:
            samples.append({k: np.ascontiguousarray(stored[k]) for k in stored.files})
    meter = Meter(root)
    idle = Watch(root, meter)
    if meter.paths:
        idle.start()
        time.sleep(10 * POLL_S)
        idle.end()
    began = time.perf_counter()
    engine: Runtime = RUNTIMES[runtime](request["model"], request["threads"])
    load_ms = 1e3 * (time.perf_counter() - began)
    steps: dict[str, list[float]] = {}

    def one(feeds: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        if STOPPED.is_set():
            sys.exit(143)
        marks = [time.perf_counter()]

        def step(name: str) -> None:
            marks.append(time.perf_counter())
            steps.setdefault(name, []).append(1e3 * (marks[-1] - marks[-2]))

        made = engine.run(feeds, step)
        return 1e3 * (marks[-1] - marks[0]), made

    first_ms, made = one(samples[0])
    if request["outputs"]:
        for i, feeds in enumerate(samples):
            np.savez(os.path.join(request["outputs"], f"{i:04d}.npz"), **(made if i == 0 else one(feeds)[1]))
    for i in range(request["warmup"]):
        one(samples[i % len(samples)])
    steps.clear()
    before, watch = clocks(root), Watch(root, meter)
    times: list[float] = []
    watch.start()
    until = time.perf_counter() + request["seconds"]
    while len(times) < request["runs"] or time.perf_counter() < until:
        times.append(one(samples[len(times) % len(samples)])[0])
    ended = time.perf_counter()
    after = clocks(root)
    watch.end()
    return {
        "runtime": RUNTIMES[runtime].version(), "facts": facts(runtime, root), "load_ms": load_ms, "first_run_ms": first_ms, "samples_ms": times,
        "steps_ms": {k: median(v) for k, v in steps.items()}, "temperature_c": watch.hottest, "series": watch.series,
        "clocks_hz": {k: [v, after.get(k, v)] for k, v in before.items()}, "power_w": mean(watch.watts), "idle_w": mean(idle.watts),
        "power_source": meter.source, "power_readings": watch.power, "ended": ended, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def outputs(runtime: str, request: dict[str, Any]) -> dict[str, Any]:
    """What the model gives for every input, in their order: name -> dtype, shape and the values' bytes in base64.

    All inputs are run before anything is encoded, back to back as an application would: a runtime that hands out a buffer that it writes
    again shows so.
    """
    import numpy as np

    engine: Runtime = RUNTIMES[runtime](request["model"], request["threads"])
    made = []
    for path in request["inputs"]:
        if STOPPED.is_set():
            sys.exit(143)
        with np.load(path, allow_pickle=False) as stored:
            feeds = {k: np.ascontiguousarray(stored[k]) for k in stored.files}
        made.append({k: np.array(v) for k, v in engine.run(feeds, lambda name: None).items()})
    rows = [{k: {"dtype": str(v.dtype), "shape": list(v.shape), "data": base64.b64encode(v.tobytes()).decode("ascii")} for k, v in row.items()} for row in made]
    return {"runtime": RUNTIMES[runtime].version(), "outputs": rows}


def stop(*_: Any) -> None:
    STOPPED.set()
    sys.exit(143)


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "facts":
        print(json.dumps(facts(arguments[1])))
        return 0
    if len(arguments) != 4 or arguments[0] not in ("measure", "outputs"):
        print(__doc__, file=sys.stderr)
        return 2
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stop)
    with open(arguments[2], encoding="utf-8") as stream:
        request = json.load(stream)
    try:
        answer = (measure if arguments[0] == "measure" else outputs)(arguments[1], request)
    except Exception as error:      # noqa: BLE001  whatever a runtime raises goes to the other side as text
        if STOPPED.is_set():
            return 143
        answer = {"error": f"{type(error).__name__}: {error}"}
    if "ended" in answer:
        answer["ended_ago_s"] = time.perf_counter() - answer.pop("ended")
    with open(arguments[3] + ".part", "w", encoding="utf-8") as stream:
        json.dump(answer, stream)
    os.replace(arguments[3] + ".part", arguments[3])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
