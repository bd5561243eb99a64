"""What is changed in a traced training step so that it takes less memory: its numbers stay the same."""

from __future__ import annotations

from typing import Any, Final

from torch.fx import Graph, GraphModule, Node

from device_sdk.export.decompositions import aten

_SAME: Final = (aten.detach.default, aten.alias.default)
_OF_A_PRELU: Final = (
    aten.relu.default,
    aten.neg.default,
    aten.mul.Tensor,
    aten.sub.Tensor,
    aten.view.default,
)


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
