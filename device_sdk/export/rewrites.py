"""Rewrites of a traced step that save memory or time: its numbers stay the same."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import Graph, GraphModule, Node

from device_sdk.export.decompositions import aten

_SAME: Final = (aten.detach.default, aten.alias.default)
_ARITHMETIC: Final = (aten.relu.default, aten.neg.default, aten.mul.Tensor, aten.sub.Tensor)
_OF_A_PRELU: Final = (*_ARITHMETIC, aten.view.default)
_ELEMENTWISE: Final = (*_SAME, *_ARITHMETIC, aten.add.Tensor)
_TRANSPOSES: Final = (aten.permute.default, aten.transpose.int, aten.t.default)

TURN: Final = (1, 0, 2, 3)
"""Between (B, C, H, W) and (C, B, H, W), both ways."""


def untransposed(node: Any) -> tuple[Any, bool]:
    """Return the matrix that a node is made of by turning it, and whether it is turned: twice turned it is not."""
    turned = False
    while isinstance(node, Node) and node.target in _TRANSPOSES and node.meta["val"].dim() == 2:
        node, turned = node.args[0], not turned
    return node, turned


def keep_turned(module: GraphModule) -> None:
    """Leave maps turned (`TURN`) from rule to rule: turned twice they are not, and elementwise work is done before.

    Sums over images and pixels are sums of rows then.
    """
    graph = module.graph
    known: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if (source := _turned_from(node)) is not None:
            twice = _turned_from(source)
            node.replace_all_uses_with(known.setdefault(source, node) if twice is None else twice)
            continue
        found = {each: _turned_from(each) for each in node.all_input_nodes}
        sources = {each: other for each, source in found.items() if (other := source or known.get(each))}
        if len(sources) < len(found) or not any(found.values()):
            continue
        with graph.inserting_before(node):
            if node.target in _ELEMENTWISE:
                done = graph.node_copy(node, sources.__getitem__)
                done.meta = {"val": node.meta["val"].permute(TURN)}
                node.replace_all_uses_with(_turn(graph, done))
            elif node.target is aten.sum.dim_IntList and list(node.args[1]) == [0, 2, 3]:
                channels = node.meta["val"].numel()
                rows = graph.call_function(aten.view.default, (*sources.values(), [channels, -1]))
                total = graph.call_function(aten.sum.dim_IntList, (rows, [1]))
                result = graph.call_function(aten.view.default, (total, list(node.meta["val"].shape)))
                result.meta = dict(node.meta)
                node.replace_all_uses_with(result)
    graph.eliminate_dead_code()
    module.recompile()


def _turned_from(node: Any) -> Node | None:
    """Return the source that a node is turned from, or None."""
    if not isinstance(node, Node) or node.target is not aten.clone.default:
        return None
    permuted = node.args[0]
    if not isinstance(permuted, Node) or permuted.target is not aten.permute.default:
        return None
    source, dims = permuted.args
    assert isinstance(source, Node)
    return source if tuple(dims) == TURN else None  # type: ignore[arg-type]


def _turn(graph: Graph, source: Node) -> Node:
    permuted = graph.call_function(aten.permute.default, (source, list(TURN)))
    turned = graph.call_function(aten.clone.default, (permuted,), {"memory_format": torch.contiguous_format})
    for node in (permuted, turned):
        node.meta = {"val": source.meta["val"].permute(TURN)}
    return turned


def recompute_activations(module: GraphModule, loss: Node) -> None:
    """Work each PReLU's result out anew in the backward pass, from its input, which is kept for that anyway.

    Without it both are held from one pass to the other, and activations are most of what a step takes. `loss` ends the
    forward pass.
    """
    graph = module.graph
    while loss.target in _SAME:
        loss = loss.args[0]  # type: ignore[assignment]
    place = {node: index for index, node in enumerate(graph.nodes)}
    end = place[loss]
    for node in [each for each in graph.nodes if place[each] < end]:
        kept = _input_of_prelu(node)
        later = sorted((user for user in node.users if place.get(user, 0) > end), key=place.__getitem__)
        if kept is None or not later or all(place.get(user, end) <= end for user in kept.users):
            continue
        with graph.inserting_before(later[0]):
            again = _copied(graph, node, kept)
        for user in later:
            user.replace_input_with(node, again)
    module.recompile()


def _input_of_prelu(node: Node) -> Node | None:
    """Return x where a node is relu(x) - w relu(-x), which is what PReLUs are traced to."""
    if node.target is not aten.sub.Tensor:
        return None
    positive, negative = node.args[:2]
    if not isinstance(positive, Node) or positive.target is not aten.relu.default:
        return None
    x = positive.args[0]
    assert isinstance(x, Node)
    return x if isinstance(negative, Node) and _leads_to(negative, x) else None


def _leads_to(node: Any, x: Node) -> bool:
    """Return whether a node is made of x by a PReLU's operators alone."""
    if node is x:
        return True
    return node.target in _OF_A_PRELU and any(_leads_to(each, x) for each in node.all_input_nodes)


def _copied(graph: Graph, node: Node, x: Node) -> Node:
    """Return a copy of a PReLU's result; its weight is taken as it is."""
    if node is x or not _leads_to(node, x):
        return node
    return graph.node_copy(node, lambda each: _copied(graph, each, x))
