"""From a traced graph of tensor operators to an ordinary ONNX graph: opset 13, IR 8, float32, no control flow.

Sizes may be symbols (batch, number of classes): what depends on them is computed from the inputs' shapes, so that one
file serves every size. Such a file loads in every ONNX Runtime from 1.10 on; an operator without a rule is an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
import sympy  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch.fx import GraphModule, Node

from device_sdk.export.rewrites import untransposed
from mien.errors import ConfigError

OPSET: Final = 13
IR_VERSION: Final = 8
_TO_THE_START: Final = -(2**63) + 1
"""The end of a backward slice that takes the first element too (ONNX, Slice)."""


def to_onnx(
    module: GraphModule,
    inputs: Sequence[str],
    outputs: Sequence[str],
    symbols: Mapping[str, str],
    broadcast: Sequence[str] = (),
) -> onnx.ModelProto:
    """Return the ONNX model of a traced function, its inputs and outputs named in order.

    `symbols` gives symbols, as torch names them, names for people; inputs in `broadcast` may be longer than traced.
    Raises ConfigError for an operator without a rule.
    """
    writer = _Writer(dict(symbols), frozenset(broadcast))
    graph_inputs = writer.read_inputs(module, inputs)
    graph_outputs: list[onnx.ValueInfoProto] = []
    for node in module.graph.nodes:
        if node.op == "get_attr":
            writer.names[node] = writer.constant(getattr(module, node.target).detach().cpu().numpy())
        elif node.op == "call_function" and not isinstance(node.meta["val"], torch.SymInt):
            writer.names[node] = writer.emit(node)
        elif node.op == "output":
            graph_outputs = writer.name_outputs(node, outputs)
    writer.drop_unused(outputs)
    graph = helper.make_graph(writer.nodes, "step", graph_inputs, graph_outputs, writer.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="mien")
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model)
    return model


class _Writer:
    """Collects the ONNX nodes of one graph; `names` are the ONNX values of traced nodes."""

    def __init__(self, symbols: dict[str, str], broadcast: frozenset[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.names: dict[Node, Any] = {}
        self._symbols = symbols
        self._broadcast = broadcast
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._sizes: dict[sympy.Expr, str] = {}
        self._sources: dict[sympy.Expr, tuple[str, int]] = {}
        self._num_values = 0

    # --- inputs, outputs, constants ---

    def read_inputs(self, module: GraphModule, names: Sequence[str]) -> list[onnx.ValueInfoProto]:
        """Read the graph's placeholders as inputs of these names; where a symbol is first seen it will be read off."""
        infos = []
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        for node, name in zip(placeholders, names, strict=True):
            self.names[node] = name
            for axis, size in enumerate(node.meta["val"].shape):
                if isinstance(size, torch.SymInt):
                    self._sources.setdefault(size.node.expr, (name, axis))
            shape = [f"any_{name}"] if name in self._broadcast else self._stated(node)
            infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return infos

    def name_outputs(self, node: Node, names: Sequence[str]) -> list[onnx.ValueInfoProto]:
        """Give the graph's results their names."""
        results = torch.utils._pytree.tree_leaves(node.args[0])
        made = {value for each in self.nodes for value in each.output}
        final: dict[str, str] = {}
        infos = []
        for result, name in zip(results, names, strict=True):
            value = self.names[result]
            if value in made and value not in final:  # a copy would be another vector as long as the model
                final[value] = name
            else:
                self.nodes.append(helper.make_node("Identity", [final.get(value, value)], [name]))
            infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, self._stated(result)))
        _rename(self.nodes, final)
        return infos

    def constant(self, values: NDArray[Any]) -> str:
        """Return the name of a constant, held once however often it is used."""
        key = (values.dtype.str, values.shape, values.tobytes())
        if key not in self._constants:
            self._constants[key] = f"c{len(self._constants)}"
            self.initializers.append(numpy_helper.from_array(values, self._constants[key]))
        return self._constants[key]

    def integers(self, values: Sequence[int]) -> str:
        """Return a constant vector of integers."""
        return self.constant(np.asarray(values, np.int64).reshape(len(values)))

    def scalar(self, value: float) -> str:
        """Return a constant number."""
        return self.constant(np.asarray(value, np.float32))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return its result's name."""
        return self.ops(kind, *inputs, num_outputs=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, num_outputs: int, **attributes: Any) -> list[str]:
        """Add a node of several results and return their names."""
        outputs = [f"t{self._num_values + i}" for i in range(num_outputs)]
        self._num_values += num_outputs
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, **attributes))
        return outputs

    def drop_unused(self, outputs: Sequence[str]) -> None:
        """Leave out nodes that nothing is made of: what other rules took apart."""
        used, kept = set(outputs), []
        for node in reversed(self.nodes):
            if used & set(node.output):
                used.update(node.input)
                kept.append(node)
        self.nodes = kept[::-1]
        self.initializers = [constant for constant in self.initializers if constant.name in used]

    def _stated(self, node: Node) -> list[int | str]:
        """Return a shape for the model's signature: numbers, and names where a size is a symbol."""
        shape = node.meta["val"].shape
        return [self._symbols.get(str(d), str(d)) if isinstance(d, torch.SymInt) else int(d) for d in shape]

    # --- sizes ---

    def shape(self, sizes: Sequence[Any]) -> str:
        """Return an integer vector for Reshape or Expand; sizes that are symbols are computed from the inputs."""
        if not any(isinstance(size, torch.SymInt) for size in sizes):
            return self.integers([int(size) for size in sizes])
        return self.op("Concat", *(self._size(size) for size in sizes), axis=0)

    def _size(self, size: Any) -> str:
        return self._expression(size.node.expr) if isinstance(size, torch.SymInt) else self.integers([int(size)])

    def _expression(self, expression: sympy.Expr) -> str:
        if expression not in self._sizes:
            self._sizes[expression] = self._compute(expression)
        return self._sizes[expression]

    def _compute(self, expression: sympy.Expr) -> str:
        """Return an integer vector of one element with the value of a sum or product of symbols."""
        if expression in self._sources:
            name, axis = self._sources[expression]
            return self.op("Gather", self.op("Shape", name), self.integers([axis]), axis=0)
        if expression.is_Integer:
            return self.integers([int(expression)])
        if not (expression.is_Add or expression.is_Mul):
            raise ConfigError(f"the exporter cannot compute the size {expression}; change the objective")
        total = self._expression(expression.args[0])
        for part in expression.args[1:]:
            total = self.op("Add" if expression.is_Add else "Mul", total, self._expression(part))
        return total

    # --- operators ---

    def value(self, argument: Any) -> str:
        """Return the ONNX value of an operator's argument: a tensor, a number, or a size as a number."""
        if not isinstance(argument, Node):
            return self.scalar(float(argument))
        size = argument.meta["val"]
        if not isinstance(size, torch.SymInt):
            name: str = self.names[argument]
            return name
        number = self.op("Cast", self._size(size), to=TensorProto.FLOAT)
        return self.op("Reshape", number, self.integers([]))

    def emit(self, node: Node) -> Any:
        """Add the nodes of one traced operator and return its value's name."""
        if node.target is operator.getitem:
            return self.names[node.args[0]][node.args[1]]  # type: ignore[index]
        name = str(node.target).removeprefix("aten.").split(".")[0]
        if name in _ELEMENTWISE:
            return self.op(_ELEMENTWISE[name], *(self.value(argument) for argument in node.args))
        rule = _RULES.get(name)
        if rule is None:
            raise ConfigError(f"the exporter has no rule for the operator {node.target}; change the backbone")
        return rule(self, node, *node.args, **node.kwargs)


def _rename(nodes: Sequence[onnx.NodeProto], names: Mapping[str, str]) -> None:
    """Give values other names wherever they stand."""
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


def _sizes_of(node: Any) -> list[Any]:
    return list(node.meta["val"].shape)


def _axes(node: Any, dims: Sequence[int] | None) -> list[int]:
    rank = len(_sizes_of(node))
    return [dim % rank for dim in dims] if dims else list(range(rank))


def _reshaped(w: _Writer, x: str, node: Node) -> str:
    """Return the value `x` in the shape of a traced node."""
    sizes = _sizes_of(node)
    unknown = [i for i, size in enumerate(sizes) if isinstance(size, torch.SymInt)]
    if len(unknown) == 1:
        sizes[unknown[0]] = -1  # it follows from the others
    return w.op("Reshape", x, w.shape(sizes))


def _expand(w: _Writer, node: Node, x: Any, *_: Any, **__: Any) -> str:
    sizes, had = _sizes_of(node), _sizes_of(x)
    had = [1] * (len(sizes) - len(had)) + had
    # ONNX broadcasts both ways: a symbol that the input has already need not be stated.
    wanted = [
        1 if isinstance(new, torch.SymInt) and _equal(new, old) else new for new, old in zip(sizes, had, strict=True)
    ]
    return w.op("Expand", w.value(x), w.shape(wanted))


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.SymInt) and isinstance(second, torch.SymInt):
        return bool(first.node.expr == second.node.expr)
    return not isinstance(first, torch.SymInt) and not isinstance(second, torch.SymInt) and int(first) == int(second)


def _filled(value: float | None) -> Callable[..., str]:
    def rule(w: _Writer, node: Node, _like: Any, *arguments: Any, **__: Any) -> str:
        number = w.scalar(float(arguments[0]) if value is None else value)
        sizes = _sizes_of(node)
        return w.op("Expand", number, w.shape(sizes)) if sizes else number

    return rule


def _pow(w: _Writer, node: Node, x: Any, exponent: Any) -> str:
    if not isinstance(exponent, Node) and float(exponent) == 2.0:
        return w.op("Mul", w.value(x), w.value(x))
    if not isinstance(exponent, Node) and float(exponent) == 1.0:
        return w.value(x)
    return w.op("Pow", w.value(x), w.value(exponent))


def _mm(w: _Writer, node: Node, a: Any, b: Any) -> str:
    # A linear layer's weights are taken as they lie: turning them would copy them at every step.
    b, turned = untransposed(b)
    kind = ("Gemm", {"transB": 1}) if turned else ("MatMul", {})
    return w.op(kind[0], w.value(a), w.value(b), **kind[1])


def _transpose(w: _Writer, node: Node, x: Any, first: int = 0, second: int = 1) -> str:
    order = list(range(len(_sizes_of(node))))
    order[first], order[second] = order[second], order[first]
    return w.op("Transpose", w.value(x), perm=order)


def _sum(w: _Writer, node: Node, x: Any, dims: Sequence[int] | None = None, keep: bool = False, **_: Any) -> str:
    if not _sizes_of(x):
        return w.value(x)
    return w.op("ReduceSum", w.value(x), w.integers(_axes(x, dims)), keepdims=int(keep))


def _reduce(kind: str) -> Callable[..., str]:
    def rule(w: _Writer, node: Node, x: Any, dims: Sequence[int] | None = None, keep: bool = False, **_: Any) -> str:
        return w.op(kind, w.value(x), axes=_axes(x, dims), keepdims=int(keep))

    return rule


def _cat(w: _Writer, node: Node, tensors: Sequence[Any], dim: int = 0) -> str:
    return w.op("Concat", *(w.value(tensor) for tensor in tensors), axis=dim % len(_sizes_of(node)))


def _split(w: _Writer, node: Node, x: Any, sizes: Sequence[Any], dim: int = 0) -> Any:
    stated = [size.meta["val"] if isinstance(size, Node) else size for size in sizes]
    return w.ops("Split", w.value(x), w.shape(stated), num_outputs=len(sizes), axis=dim % len(_sizes_of(x)))


def _slice(w: _Writer, node: Node, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> str:
    sizes = [size.meta["val"] if isinstance(size, Node) else size for size in (start, end)]
    if _equal(_sizes_of(node)[dim], _sizes_of(x)[dim]) and step == 1:
        return w.value(x)
    begin = w.shape([0 if sizes[0] is None else sizes[0]])
    stop = w.shape([_sizes_of(x)[dim] if sizes[1] is None else sizes[1]])
    return w.op("Slice", w.value(x), begin, stop, w.integers([dim % len(_sizes_of(x))]), w.integers([step]))


def _select(w: _Writer, node: Node, x: Any, dim: int, index: int) -> str:
    rank = len(_sizes_of(x))
    taken = w.op("Slice", w.value(x), *(w.integers([v]) for v in (index, index + 1, dim % rank, 1)))
    return _reshaped(w, taken, node)


def _flip(w: _Writer, node: Node, x: Any, dims: Sequence[int]) -> str:
    count = len(dims)
    bounds = ([-1] * count, [_TO_THE_START] * count, list(dims), [-1] * count)
    return w.op("Slice", w.value(x), *(w.integers(bound) for bound in bounds))


def _pad(w: _Writer, node: Node, x: Any, padding: Sequence[Any], value: float = 0.0) -> str:
    rank = len(_sizes_of(node))
    before, after = [0] * rank, [0] * rank
    stated = [size.meta["val"] if isinstance(size, Node) else size for size in padding]
    for i in range(len(stated) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = stated[2 * i], stated[2 * i + 1]
    return w.op("Pad", w.value(x), w.shape(before + after), w.scalar(float(value)))


def _convolution(
    w: _Writer,
    node: Node,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> str:
    attributes: dict[str, Any] = {
        "strides": list(stride),
        "pads": list(padding) * 2,
        "dilations": list(dilation),
        "group": groups,
    }
    if transposed:
        attributes["output_padding"] = list(output_padding)
    inputs = [w.value(x), w.value(weight)] + ([] if bias is None else [w.value(bias)])
    return w.op("ConvTranspose" if transposed else "Conv", *inputs, **attributes)


def _avg_pool2d(w: _Writer, node: Node, x: Any, kernel: Sequence[int], stride: Sequence[int] = (), *_: Any) -> str:
    return w.op("AveragePool", w.value(x), kernel_shape=list(kernel), strides=list(stride or kernel))


def _softplus(w: _Writer, node: Node, x: Any, beta: float = 1, threshold: float = 20) -> str:
    if beta != 1:
        raise ConfigError("the exporter knows softplus with beta 1 only; change the objective")
    return w.op("Softplus", w.value(x))


def _clamp(w: _Writer, node: Node, x: Any, low: Any = None, high: Any = None) -> str:
    name = w.value(x)
    if low is not None:
        name = w.op("Max", name, w.scalar(float(low)))
    return name if high is None else w.op("Min", name, w.scalar(float(high)))


def _addition(kind: str) -> Callable[..., str]:
    def rule(w: _Writer, node: Node, a: Any, b: Any, alpha: float = 1) -> str:
        second = w.value(b) if alpha == 1 else w.op("Mul", w.value(b), w.scalar(float(alpha)))
        return w.op(kind, w.value(a), second)

    return rule


_ELEMENTWISE: Final = {
    "mul": "Mul",
    "div": "Div",
    "relu": "Relu",
    "neg": "Neg",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "sigmoid": "Sigmoid",
    "reciprocal": "Reciprocal",
    "bmm": "MatMul",
    "where": "Where",
    "gt": "Greater",
    "lt": "Less",
    "ge": "GreaterOrEqual",
    "le": "LessOrEqual",
    "eq": "Equal",
    "logical_and": "And",
    "logical_and_": "And",
    "minimum": "Min",
    "maximum": "Max",
}
_RULES: Final[Mapping[str, Callable[..., Any]]] = {
    **dict.fromkeys(
        ("alias", "detach", "clone", "lift_fresh_copy", "_to_copy"), lambda w, _, x, *__, **___: w.value(x)
    ),
    **dict.fromkeys(
        ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"),
        lambda w, node, x, *_: _reshaped(w, w.value(x), node),
    ),
    "add": _addition("Add"),
    "sub": _addition("Sub"),
    "rsub": lambda w, node, a, b, alpha=1: _addition("Sub")(w, node, b, a, alpha),
    "rsqrt": lambda w, _, x: w.op("Reciprocal", w.op("Sqrt", w.value(x))),
    "pow": _pow,
    "addmm": lambda w, node, bias, a, b, **_: w.op("Add", _mm(w, node, a, b), w.value(bias)),
    "mm": _mm,
    "permute": lambda w, node, x, dims: w.op("Transpose", w.value(x), perm=_axes(node, dims)),
    "transpose": _transpose,
    "t": _transpose,
    "sum": _sum,
    "mean": _reduce("ReduceMean"),
    "amax": _reduce("ReduceMax"),
    "expand": _expand,
    "full_like": _filled(None),
    "full": _filled(None),
    "zeros_like": _filled(0.0),
    "ones_like": _filled(1.0),
    "new_zeros": _filled(0.0),
    "scalar_tensor": lambda w, _, value, **__: w.scalar(float(value)),
    "cat": _cat,
    "split_with_sizes": _split,
    "slice": _slice,
    "select": _select,
    "flip": _flip,
    "constant_pad_nd": _pad,
    "convolution": _convolution,
    "avg_pool2d": _avg_pool2d,
    "softplus": _softplus,
    "clamp": _clamp,
    "clamp_min": _clamp,
}
