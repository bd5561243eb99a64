"""Pure functions of a flat vector that become graphs: one training step, one forward pass, one loss.

They run the very modules and losses of the torch runtime, on parameters that come in as inputs. Sizes of a batch and of
class sets are symbols while a function is traced, so a graph serves all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import onnx
import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from device_sdk.export.decompositions import Table, table
from device_sdk.export.onnx_graph import to_onnx
from device_sdk.export.rewrites import recompute_activations
from device_sdk.runtimes.forms import EXAMPLE_SIZES, ObjectiveForm
from device_sdk.runtimes.manifest import cut_for
from device_sdk.runtimes.objectives import LossInput, find_loss
from mien.backbones import Backbone
from mien.errors import ConfigError
from mien.layout import ParameterPart
from mien.objectives.heads import l2_normalise

Values = Mapping[str, Tensor]
Shape = tuple[str | int, ...]
NUMBERS: Final = ("lr", "momentum", "weight_decay", "private_lr", "private_momentum", "gradient_scale")
"""Inputs of a step that are one number."""


@dataclass(frozen=True)
class Traced:
    """A traced function: its graph, the names of its results in order, and those of its symbols by torch's for them."""

    module: GraphModule = field(repr=False)
    outputs: tuple[str, ...]
    symbols: dict[str, str]


@dataclass(frozen=True)
class Function:
    """A function of named tensors to trace, with the shapes of its inputs, in which letters are symbols.

    `broadcast` names inputs of one element that may also have the shape that it gives them.
    """

    run: Callable[[Values], Values] = field(repr=False)
    inputs: Mapping[str, Shape]
    broadcast: Mapping[str, Shape] = field(default_factory=dict)

    def to_onnx(self) -> onnx.ModelProto:
        """Return the function as an ONNX model; its inputs and outputs keep their names."""
        traced = self.traced(table())
        return to_onnx(traced.module, tuple(self.inputs), traced.outputs, traced.symbols, tuple(self.broadcast))

    def traced(self, rules: Table, tidy: Callable[[GraphModule], None] = lambda _module: None) -> Traced:
        """Return the function as a graph of the operators that `rules` leave, its sizes symbols, after `tidy`."""
        environment = ShapeEnv()
        mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
        examples = [_example(mode, name, shape) for name, shape in self.inputs.items()]
        outputs: list[str] = []

        def positional(*arguments: Tensor) -> list[Tensor]:
            results = self.run(dict(zip(self.inputs, arguments, strict=True)))
            outputs[:] = results
            return list(results.values())

        with mode, enable_python_dispatcher():
            module = make_fx(
                positional, decomposition_table=dict(rules), tracing_mode="real", _allow_non_fake_inputs=True
            )(*examples)
        module.graph.eliminate_dead_code()
        tidy(module)
        if "trained_out" in outputs:
            results: Any = module.graph.output_node().args[0]
            recompute_activations(module, results[outputs.index("loss")])
        return Traced(module, tuple(outputs), self._words(examples))

    def _words(self, examples: Sequence[Tensor]) -> dict[str, str]:
        """Return the letters of symbols by the names that torch gave them, refusing one that became a number."""
        words: dict[str, str] = {}
        for (name, shape), example in zip(self.inputs.items(), examples, strict=True):
            for letter, size in zip(shape, example.shape, strict=True):
                if not isinstance(letter, str):
                    continue
                symbol: Any = size  # `Tensor.shape` is declared to hold numbers
                if not isinstance(symbol, torch.SymInt) or symbol.node.expr.is_Integer:
                    raise ConfigError(f"the step works for one size of {letter} (in {name}) only; change the objective")
                words.setdefault(str(symbol), letter)
        return words


def _example(mode: FakeTensorMode, name: str, shape: Shape) -> Tensor:
    """Return a tensor without numbers; letters of its shape become symbols that any size may stand for."""
    sizes = [EXAMPLE_SIZES[size] if isinstance(size, str) else size for size in shape]
    kinds = [DimDynamic.DYNAMIC if isinstance(size, str) else DimDynamic.STATIC for size in shape]
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
    return mode.from_tensor(torch.empty(sizes), symbolic_context=context, source=ConstantSource(name))


class Tail:
    """The stages from the first trained one on, as a function of the trained part's vector and of frozen tensors.

    Frozen tensors are inputs each of their own: a phone hands them over where they lie in the model's vector, where
    cutting them from one input would copy them at every step.

    `split` 0 is the whole network, on crops instead of features.
    """

    def __init__(self, backbone: Backbone, split: int, trained: Sequence[str], frozen: Sequence[str]) -> None:
        shapes = {name: tuple(p.shape) for name, p in backbone.named_parameters()}
        shapes |= {name: tuple(b.shape) for name, b in backbone.named_buffers() if b.is_floating_point()}
        self.split = split
        self._backbone = backbone
        self._trained = {name: shapes[name] for name in trained}
        self._frozen = {name: shapes[name] for name in frozen}

    @property
    def inputs(self) -> dict[str, Shape]:
        """The parameters and the batch of features (or of network inputs) that the tail is a function of."""
        spec = self._backbone.input_spec
        inputs: dict[str, Shape] = {"trained": (sum(map(math.prod, self._trained.values())),)} if self._trained else {}
        inputs |= {f"parameter.{name}": shape for name, shape in self._frozen.items()}
        features = self._backbone.feature_shape(self.split) if self.split else (3, spec.height, spec.width)
        return inputs | {"x": ("B", *features)}

    def parameters(self, at: Values) -> dict[str, Tensor]:
        """Return the trained tensors, cut from their vector, as leaves that gradients are taken of."""
        return {name: t.detach().requires_grad_(True) for name, t in _cut(at["trained"], self._trained).items()}

    def features(self, at: Values, stop: int) -> Tensor:
        """Return the input of stage `stop`, nothing being trained."""
        return _call(self._backbone, self._constants(at), at["x"], self.split, stop)

    def embeddings(self, at: Values, trained: Values) -> Tensor:
        """Return the embeddings (B, D), not normalised."""
        return _call(self._backbone, {**self._constants(at), **trained}, at["x"], self.split, None)

    def _constants(self, at: Values) -> dict[str, Tensor]:
        return {name: at[f"parameter.{name}"] for name in self._frozen}


def embedding_function(backbone: Backbone, split: int, names: Sequence[str]) -> Function:
    """Return the forward pass from stage `split` on: the tensors `names` and a batch -> `embeddings` (B, D)."""
    tail = Tail(backbone, split, (), names)
    return Function(lambda at: {"embeddings": tail.embeddings(at, {})}, tail.inputs)


def trunk_function(backbone: Backbone, split: int, names: Sequence[str]) -> Function:
    """Return the forward pass up to stage `split`: the tensors `names` and crops -> `features`."""
    whole = Tail(backbone, 0, (), names)
    return Function(lambda at: {"features": whole.features(at, split)}, whole.inputs)


def loss_function(form: ObjectiveForm, dim: int) -> Function:
    """Return an objective's loss as a function of embeddings (B, D)."""
    inputs = {"embeddings": ("B", dim), **_objective_inputs(form, dim)}
    return Function(lambda at: {"loss": _loss(form, at, at["embeddings"], _private(form, at))}, inputs)


def step_function(backbone: Backbone, part: ParameterPart, form: ObjectiveForm) -> Function:
    """Return one step of SGD with momentum on the part and the private tensors, as `TorchRuntime` takes it.

    With gradient g of the loss: v <- momentum v + gradient_scale (g + weight_decay p) + correction, p <- p - lr v;
    private tensors v <- private_momentum v + g, p <- p - private_lr v, and their rows are brought to length 1 where
    `unit_norm.NAME` is 1. `correction` is a vector like the part, or one number.
    """
    dim = backbone.input_spec.dim
    split = backbone.split_for(part.names)
    trained = set(part.names)
    tail = Tail(backbone, split, part.names, [name for name in cut_for(part).tail.names if name not in trained])
    learned = {name for name, _ in backbone.named_parameters()}
    buffers = [name for name in part.names if name not in learned]
    if buffers:
        raise ConfigError(
            f"the trained part holds BatchNorm statistics ({buffers[0]} ...), which no graph trains; fold it away"
        )
    size = part.size
    inputs: dict[str, Shape] = {**tail.inputs, **_objective_inputs(form, dim)}
    inputs |= {"velocity": (size,), **{f"velocity.{name}": _sized(shape, dim) for name, shape in form.private}}
    inputs |= {f"unit_norm.{name}": () for name, _ in form.private} | dict.fromkeys(NUMBERS, ())
    inputs["correction"] = (1,)

    def run(at: Values) -> Values:
        parameters = tail.parameters(at)
        private = {name: tensor.detach().requires_grad_(True) for name, tensor in _private(form, at).items()}
        loss = _loss(form, at, tail.embeddings(at, parameters), private)
        leaves = [*parameters.values(), *private.values()]
        gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        gradient = torch.cat([g.reshape(-1) for g in gradients[: len(parameters)]])
        outputs = _part_step(at, gradient)
        for (name, tensor), g in zip(private.items(), gradients[len(parameters) :], strict=True):
            outputs |= _private_step(at, name, tensor.detach(), g)
        return outputs | {"loss": loss.detach()}

    return Function(run, inputs, broadcast={"correction": (size,)})


def _part_step(at: Values, gradient: Tensor) -> dict[str, Tensor]:
    p = at["trained"]
    velocity = at["momentum"] * at["velocity"] + (
        at["gradient_scale"] * (gradient + at["weight_decay"] * p) + at["correction"]
    )
    return {"trained_out": p - at["lr"] * velocity, "velocity_out": velocity}


def _private_step(at: Values, name: str, tensor: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    velocity = at["private_momentum"] * at[f"velocity.{name}"] + gradient
    moved = tensor - at["private_lr"] * velocity
    unit = torch.where(at[f"unit_norm.{name}"] > 0, l2_normalise(moved), moved)
    return {f"private_out.{name}": unit, f"velocity_out.{name}": velocity}


def _objective_inputs(form: ObjectiveForm, dim: int) -> dict[str, Shape]:
    inputs = {f"private.{name}": _sized(shape, dim) for name, shape in form.private}
    inputs |= {f"fixed.{name}": _sized(shape, dim) for name, shape in form.fixed}
    inputs |= {f"per_crop.{name}": _sized(shape, dim) for name, shape in form.per_crop}
    if form.sees_mirroring:
        inputs["mirrored"] = ("B",)
    return inputs | {f"constant.{name}": () for name in form.constants}


def _private(form: ObjectiveForm, at: Values) -> dict[str, Tensor]:
    return {name: at[f"private.{name}"] for name, _ in form.private}


def _loss(form: ObjectiveForm, at: Values, embeddings: Tensor, private: Values) -> Tensor:
    per_crop = {name: at[f"per_crop.{name}"] for name, _ in form.per_crop}
    # A constant that is an input is a tensor here, where losses otherwise see a number.
    constants: dict[str, Any] = dict(form.built_in) | {name: at[f"constant.{name}"] for name in form.constants}
    fixed = {name: at[f"fixed.{name}"] for name, _ in form.fixed}
    seen = LossInput(embeddings, private, per_crop, constants, fixed, at.get("mirrored"))
    return find_loss(form.objective)(seen)


def _call(backbone: Backbone, parameters: Values, x: Tensor, start: int, stop: int | None) -> Tensor:
    stages = _Stages(backbone, start, stop)
    result: Tensor = torch.func.functional_call(stages, {f"backbone.{k}": v for k, v in parameters.items()}, (x,))
    return result


class _Stages(torch.nn.Module):
    """Some stages of a backbone as a module."""

    def __init__(self, backbone: Backbone, start: int, stop: int | None) -> None:
        super().__init__()
        self.backbone = backbone
        self._start, self._stop = start, stop

    def forward(self, x: Tensor) -> Tensor:
        """Return the stages' output for `x`."""
        return self.backbone.forward_stages(x, self._start, self._stop)


def _cut(vector: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    sizes = [math.prod(shape) for shape in shapes.values()]
    pieces = torch.split(vector, sizes)
    return {name: piece.reshape(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def _sized(shape: Shape, dim: int) -> Shape:
    """Return a shape whose letter D is the embedding's length."""
    return tuple(dim if size == "D" else size for size in shape)
