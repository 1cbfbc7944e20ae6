"""A picture of a model: its layers and what flows between them (by torchview and Graphviz)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from lightkit.common.errors import UserError, writing_to
from lightkit.common.failures import in_short, user_frame
from lightkit.diagnostics.footprint import on_copy
from lightkit.diagnostics.layers import Call
from lightkit.processes.files import write_whole

FORMATS = ("svg", "png", "pdf", "dot")
MOST = 60
"""Boxes of a picture that is as deep as can be."""
_DEEPEST = 12
_PACKAGES = ("torchview", "graphviz")
_TRAINS, _PARTLY, _FROZEN, _PLAIN = "#d6e6f7", "#e2e8ee", "#e4e4e4", "#ffffff"
_FUNCTION, _ENDS = "#f6f6f6", "#fdf3d6"
_INK, _LINE = "#1f2933", "#9aa5b1"
_FONT = "Helvetica,Arial,sans-serif"
_DPI = "144"
_FRAME, _BOX = re.compile(r"subgraph cluster_(\d+) \{"), re.compile(r"(\s*)(\d+) \[label=")


@dataclass(frozen=True)
class Graph:
    """A picture in Graphviz's language."""

    picture: Any
    """What it is, a `graphviz.Digraph`."""
    depth: int
    """Levels of layers in it."""
    boxes: int
    """How many boxes it has."""

    def write(self, path: Path) -> None:
        """Write it to a file, whose name ends in one of `FORMATS`; `.dot` needs no Graphviz.

        Raises:
            UserError: Another end of the name, Graphviz is missing, or the file cannot be written.
        """
        import graphviz

        kind = path.suffix.removeprefix(".").lower()
        if kind not in FORMATS:
            raise UserError("not a picture", key="--output", received=path.name, choices=FORMATS, family="wrong-value")
        picture = self.picture.copy()
        if kind == "png":
            picture.graph_attr["dpi"] = _DPI
        try:
            drawn = picture.source.encode() if kind == "dot" else picture.pipe(format=kind)
        except graphviz.ExecutableNotFound as error:
            raise UserError(
                "Graphviz, which draws the picture, is not installed on this machine",
                key="lightkit graph",
                fix="apt install graphviz (brew, dnf, conda and winget have it too); or --output "
                f"{path.with_suffix('.dot').name}, which any Graphviz draws: dot -Tsvg",
                family="package-missing",
            ) from error
        with writing_to(path, "cannot write the file"):
            write_whole(path, drawn)


def draw(model: nn.Module, call: Call, *, depth: int | None = None, direction: str = "TB", most: int = MOST) -> Graph:
    """Draw a model.

    Boxes are layers with their names, classes, parameters and the shape that they give: blue where they train, grey
    where they are frozen, both where a part trains; small ones are functions. A frame is a layer with others in it.

    Args:
        model: The network; nothing of it changes.
        call: How to call it.
        depth: Levels of layers below the model; None goes as deep as `most` boxes let.
        direction: `TB` from top to bottom, `LR` from left to right.
        most: Boxes that are enough; the first level is shown whatever it has.

    Raises:
        UserError: The packages are missing, or the model cannot be run.
    """
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        what = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise UserError(what, key="lightkit graph", fix="pip install 'lightkit[graph]'", family="package-missing")
    if depth is not None:
        return _drawn(model, call, depth, direction)
    found = _drawn(model, call, 1, direction)
    while found.depth < _DEEPEST:
        deeper = _drawn(model, call, found.depth + 1, direction)
        if deeper.boxes > most or deeper.boxes == found.boxes:
            break
        found = deeper
    return found


def _drawn(model: nn.Module, call: Call, depth: int, direction: str) -> Graph:
    def trace(copied: nn.Module, given: Any, device: str) -> Graph:
        graph = _traced(copied, Call(*given), depth, direction, device)
        names = {id(module): (name, module) for name, module in copied.named_modules()}
        return Graph(graph.visual_graph, depth, _restyle(graph, names, direction))

    try:
        return on_copy(model, (call.args, dict(call.kwargs)), trace)
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        what = f"the model cannot be drawn: {in_short(cause)}"
        raise UserError(what, key="model", origin=user_frame(cause), family="model-misfit") from error


def _traced(model: nn.Module, call: Call, depth: int, direction: str, device: str) -> Any:
    from torchview import draw_graph

    return draw_graph(
        model,
        input_data=list(call.args),
        depth=depth,
        device=device,
        mode="eval",
        expand_nested=True,
        graph_dir=direction,
        **call.kwargs,
    )


def _restyle(graph: Any, names: Mapping[int, tuple[str, nn.Module]], direction: str) -> int:
    """Let torchview's boxes and frames say what we want them to; returns how many boxes there are."""
    picture = graph.visual_graph
    picture.graph_attr.clear()
    picture.graph_attr.update(fontname=_FONT, fontcolor=_INK, nodesep="0.25", ranksep="0.22", rankdir=direction)
    picture.node_attr.clear()
    picture.node_attr.update(shape="box", style="filled,rounded", color=_LINE, fontname=_FONT, fontcolor=_INK)
    picture.node_attr.update(margin="0.12,0.05", fontsize="10", height="0.2")
    picture.edge_attr.update(color=_LINE, arrowsize="0.6", fontname=_FONT)
    frames, boxes = dict[str, str](), dict[str, str]()
    for node in _nodes(graph.node_hierarchy):
        name, module = names.get(getattr(node, "compute_unit_id", 0), ("", None))
        if node.node_id in graph.subgraph_dict and module is not None:
            frames[str(graph.subgraph_dict[node.node_id])] = f"{name}  {type(module).__name__}"
        if id(node) in graph.node_set:
            boxes[str(graph.id_dict[node.node_id])] = _box(node, name, module)
    frame = ""
    for at, line in enumerate(picture.body):
        opened, stated = _FRAME.search(line), _BOX.match(line)
        frame = opened[1] if opened else frame
        if stated and stated[2] in boxes:
            picture.body[at] = f"{stated[1]}{stated[2]} [{boxes[stated[2]]}]\n"
        elif not opened and "style=dashed" in line and frame in frames:
            indent = line[: len(line) - len(line.lstrip())]
            style = f'fontsize=9 labeljust=l style=rounded color="{_LINE}"'
            picture.body[at] = f'{indent}label="{frames[frame]}" {style}\n'
    return len(boxes)


def _nodes(place: Any) -> Iterator[Any]:
    if isinstance(place, Mapping):
        for node, below in place.items():
            yield node
            yield from _nodes(below)
    elif isinstance(place, (list, tuple)):
        for item in place:
            yield from _nodes(item)
    else:
        yield place


def _box(node: Any, name: str, module: nn.Module | None) -> str:
    """Write the attributes of a box."""
    if not hasattr(node, "output_shape"):
        kind = "input" if node.name == "input-tensor" else "output" if node.name == "output-tensor" else node.name
        return f'label={_label(kind, "", str(node.tensor_shape))} fillcolor="{_ENDS}"'
    shape = ", ".join(map(str, node.output_shape[:2])) + (", …" if len(node.output_shape) > 2 else "")
    if module is None:
        return f'label={_label("", node.name, shape)} fillcolor="{_FUNCTION}" fontsize=9'
    count = sum(p.numel() for p in module.parameters())
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    some = ", frozen" if not trained else f", {trained:,} train" if trained < count else ""
    more = f"{count:,} parameters{some}" if count else ""
    colour = _PLAIN if not count else _FROZEN if not trained else _PARTLY if trained < count else _TRAINS
    return f'label={_label(name or "model", node.name, shape, more)} fillcolor="{colour}"'


def _label(name: str, kind: str, *lines: str) -> str:
    """Write the label of a box: the name in bold, the class, and lines in small."""
    # Each in a line of its own: a viewer with other letters than Graphviz measured would write one over the other.
    head = "<BR/>".join(text for text in (f"<B>{html.escape(name)}</B>" if name else "", html.escape(kind)) if text)
    below = "".join(f'<BR/><FONT POINT-SIZE="8">{html.escape(line)}</FONT>' for line in lines if line)
    return f"<{head}{below}>"
