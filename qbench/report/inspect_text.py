"""An inspection as parts, each a title, a sentence and rows of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qbench.report import text

if TYPE_CHECKING:
    from qbench.inspection.record import Inspection, OnTarget, Shapes

NODES = 3                      # names shown of a group
ROWS = 10                      # conversions and trials shown


@dataclass(frozen=True, slots=True)
class Part:
    """said   the finding in one sentence; note   what it rests on, or what is left out; numbers   columns that stand to the right"""

    title: str
    said: str
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    note: str = ""
    numbers: tuple[int, ...] = ()


def parts(i: Inspection, whole_model: bool = True) -> list[Part]:
    """In the order of the report. whole_model   with the parts that do not depend on the target"""
    found = [shapes(i.shapes), types(i.shapes)] if whole_model else []
    if i.found is None:
        return found
    on = i.found
    return [*found, operators(on), segments(on), utilisation(on), sizes(on), layouts(on), onchip(on), graph(on), rewrites(on)]


def headline(i: Inspection) -> str:
    """Model, target, and the predicted latency with its interval."""
    where = f"{text.plain(i.model)} on {i.target} (toolkit {i.toolkit}), {i.precision} at {i.op_point}"
    if i.found is None:
        return f"{where}: no static network can be had, so nothing that needs shapes is told: {text.plain(i.shapes.static)}"
    on = i.found
    assumed = " at the assumed sizes" if i.shapes.assumed else ""
    parted = "CPU segments not known" if on.fallback.possible is None else count(len(on.fallback.segments), "CPU segment")
    stopped = sum(o.placements.get("refused", 0) for o in on.operators)
    parted += f", {count(stopped, 'node')} refused (conversion stops)" if stopped else ""
    return (f"{where}: {parted}, {text.significant(on.latency_ms)} ms {text.interval(on.latency_ms, on.latency_ms_low, on.latency_ms_high)} "
            f"predicted{assumed}")


def basis(i: Inspection) -> str:
    checked = i.provenance["validated_on"]
    return f"interval: {i.provenance['interval']}; " + (checked if checked.startswith("unvalidated") else f"validated on {checked}")


def count(n: int, what: str) -> str:
    """"1 segment", "2 segments", "no segment"."""
    return f"no {what}" if n == 0 else f"{n} {what}{'' if n == 1 else 's'}"


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more."""
    return text.some(names, NODES)


def ms(value: float | None) -> str:
    return text.MISSING if value is None else f"{value:.3g}"


def shapes(s: Shapes) -> Part:
    tensors = len({a.tensor for a in s.axes})
    if not s.axes:
        return Part("Shapes", f"all {s.tensors} tensors have static shapes")
    closed = sum(a.becomes is not None or a.folds for a in s.axes)
    said = f"{count(len(s.axes), 'open axis').replace('axiss', 'axes')} in {tensors} of {s.tensors} tensors"
    if not s.static:
        said += f"; with the inputs fixed {closed} close and {len(s.axes) - closed} stay open"
    rows = tuple((text.plain(o.what), str(n), some(names), text.plain(cure)) for o, cure, n, names in s.by_origin)
    note = "; ".join(f"{text.plain(name)} is assumed to be {list(shape)} below" for name, shape in s.assumed.items())
    return Part("Shapes", said, ("where it comes from", "axes", "tensors", "cure"), rows, note, (1,))


def types(s: Shapes) -> Part:
    rows = tuple((text.plain(t.tensor), t.declared, t.needed, text.plain(t.why)) for t in s.types)
    return Part("Types", count(len(rows), "tensor") + " declared wider than needed", ("tensor", "declared", "needed", "why"), rows[:ROWS], hidden(len(rows)))


def hidden(n: int) -> str:
    return f"{n - ROWS} more in --json" if n > ROWS else ""


def operators(on: OnTarget) -> Part:
    nodes = sum(o.count for o in on.operators)
    counts: dict[str, int] = {}
    for o in on.operators:
        for where, n in o.placements.items():
            counts[where] = counts.get(where, 0) + n
    said = f"{len(on.operators)} operator types, {count(nodes, 'node')}: " + ", ".join(f"{n} {w}" for w, n in counts.items())
    rows = []
    for o in on.operators:
        differs = {p: w for p, w in o.at.items() if w != str(o.worst)}
        why = "; ".join([*o.why, *(f"{p}: {w}" + (f" ({o.why_at[p]})" if o.why_at.get(p) and o.why_at[p] not in " ".join(o.why) else "") for p, w in differs.items())])
        away = some([n.node for n in o.nodes]) if o.nodes and len(o.nodes) < o.count else ""
        rows.append((o.op, str(o.count), ", ".join(f"{n} {w}" if len(o.placements) > 1 else w for w, n in o.placements.items()),
                     text.plain(why) + (f" ({away})" if away else "")))
    sources = dict.fromkeys(part for o in on.operators if o.source for part in o.source.split("; "))
    return Part("Operators", said, ("operator", "nodes", "where", "why"), tuple(rows), "; ".join([*on.remarks, *(["source: " + "; ".join(sources)] if sources else [])]), (1,))


def segments(on: OnTarget) -> Part:
    f = on.fallback
    said = count(len(f.segments), "known CPU segment")
    if f.segments:
        said += (f", {sum(s.returns for s in f.segments)} of them between NPU parts; the NPU's share falls into {count(f.npu_parts, 'part')}; "
                 f"{f.ms:.3g} ms of the predicted latency")
    if f.split:
        said += f"; of {count(len(f.split), 'more kernel')} the toolchain puts a part on the CPU, which is not priced ({some(f.split)})"
    if f.possible:
        said += f"; {count(f.possible, 'more segment')} if the operators that no table lists fall back"
    rows = tuple((some(s.kernels), "+".join(s.ops), text.size(sum(c.bytes for c in s.enters)), text.size(sum(c.bytes for c in s.leaves)),
                  ("yes" if s.returns else "no, the end") + (", once it is rewritten" if s.refused else ""), ms(s.ms), ms(s.npu_ms)) for s in f.segments)
    return Part("Fallback", said, ("kernels", "operators", "in", "out", "NPU goes on", "ms", "ms on NPU"), rows[:ROWS],
                "; ".join(filter(None, (f.note, hidden(len(rows))))), (2, 3, 5, 6))


def utilisation(on: OnTarget) -> Part:
    p = on.padding
    if p.utilisation is None:
        return Part("Padding", p.note)
    rows = tuple((text.plain(u.kernel), u.shape, f"{100 * u.utilisation:.0f} %", f"{u.wasted_macs / 1e6:.3g} M", ms(u.ms), u.bound, u.better) for u in p.worst)
    return Part("Padding", f"{100 * p.utilisation:.0f} % of the array's multiplications are useful, over {p.kernels} kernels; those that waste most:",
                ("kernel", "shape", "used", "wasted", "ms", "binds", "better"), rows, "", (2, 3, 4))


def sizes(on: OnTarget) -> Part:
    s = on.sizes
    if not s.trials:
        return Part("Input size", s.why_not)
    best = s.best
    rows = tuple((f"{t.height} x {t.width}" + (" (given)" if t.given else ""), ms(t.ms), f"{t.ns_per_pixel:.3g}",
                  text.MISSING if t.utilisation is None else f"{100 * t.utilisation:.0f} %") for t in s.trials)
    said = f"least time per pixel at {best.height} x {best.width}" if best and len(s.trials) > 1 else "no other size tried"
    return Part("Input size", said, (f"input {text.plain(s.input)}", "ms", "ns per pixel", "array used"), rows, text.plain(s.why_not), (1, 2, 3))


def layouts(on: OnTarget) -> Part:
    lay = on.layouts
    inside = [c for c in lay.conversions if c.where == "inside"]
    said = (f"the chip wants {lay.native}; " if lay.native else "") + f"{count(len(inside), 'conversion')} inside, {lay.ms_inside:.3g} ms"
    rows = tuple((c.where, text.plain(c.tensor), text.plain(c.what), text.size(c.bytes), ms(c.ms) + ("" if c.charged else " *"), c.avoid) for c in lay.conversions)
    free = "* done by the host outside the predicted latency; its speed is assumed" if any(not c.charged for c in lay.conversions) else ""
    return Part("Layout", said if lay.conversions else lay.note, ("where", "tensor", "what", "moved", "ms", "avoid"), rows[:ROWS],
                "; ".join(filter(None, (free, lay.note if lay.conversions else "", hidden(len(rows))))), (3, 4))


def onchip(on: OnTarget) -> Part:
    o = on.onchip
    if o.memory_bytes is None:
        return Part("Memory", text.plain(o.note))
    states = ", ".join(f"{n} {s}" for s, n in sorted(o.states.items())) or "no kernel is placed in it by the model"
    said = f"{text.size(o.memory_bytes)} of {o.where}: {states}"
    if o.largest_batch is not None:
        said += f"; the network needs {text.size(o.needed_bytes)} at once and would fit whole " + (f"up to batch {o.largest_batch}" if o.largest_batch else "at no batch")
    if o.largest_input is not None:
        said += f", at batch 1 {'up to ' + ' x '.join(map(str, o.largest_input)) if min(o.largest_input) else 'at no size'}"
    rows = tuple((text.plain(f.kernel), f.op, f.state, text.size(f.activations_bytes), text.size(f.weights_bytes)) for f in o.worst)
    note = f"largest image: {text.plain(o.note)}" if o.note else ""
    return Part("Memory", said, ("kernel", "operators", "state", "activations", "weights"), rows, note, (3, 4))


def graph(on: OnTarget) -> Part:
    g = on.graph
    launches = "" if g.launches is None else f", {g.launches:.0f} launches"
    rows = [("gone", why, str(n)) for why, n in g.gone.items()] + [("fused", ops.replace("+", " + "), str(n)) for ops, n in g.fused.items()]
    return Part("Graph", f"{g.before} nodes in the file, {g.after} after folding, {g.kernels} kernels{launches} ({100 * g.fewer:.0f} % fewer)",
                ("", "what", "nodes or kernels"), tuple(rows), "", (2,))


def rewrites(on: OnTarget) -> Part:
    rows = tuple((o.op, o.placement, str(len(o.nodes)), o.becomes, " ".join(filter(None, (o.exactness, o.meaning))), o.note) for o in on.rewrites)
    return Part("Rewrites known", f"{count(len(rows), 'rewrite')}, none applied" if rows else "nothing to rewrite", ("operator", "now", "nodes", "could become", "exactness", "note"),
                rows, "", (2,))
