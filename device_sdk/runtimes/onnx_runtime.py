"""ONNX Runtime: runs exported graphs wherever it runs itself, phones included."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, Final

import numpy as np
import onnxruntime

from device_sdk.runtimes.graph_runtime import Feed, GraphRuntime
from device_sdk.runtimes.manifest import Graph, GraphFolder
from mien.errors import ConfigError, CorruptDataError
from mien.shell.memory import return_freed_memory

# What ONNX Runtime may raise for a graph that it cannot load or run; it has no public base class for them.
_STATE: Final = onnxruntime.capi.onnxruntime_pybind11_state
REFUSALS: Final = (
    _STATE.Fail,
    _STATE.InvalidGraph,
    _STATE.InvalidProtobuf,
    _STATE.InvalidArgument,
    _STATE.NotImplemented,
)
FEW_RUNS: Final = 1
"""Runs of a graph, but of one that trains, before its session is made anew with an arena."""

NO_ARENA: Final = {"initial_chunk_size_bytes": 1}
_LONGEST_REGION: Final = 2**31 - 1
"""Bytes that the C integer of an arena's settings can hold."""


def step_arena(feed: Feed) -> dict[str, int]:
    """Return the settings of a step's arena: one region, of whose addresses memory is what was ever written to.

    By default an arena grows by regions, none of whose free pieces can join another's, and gives a piece to whoever
    asks for half of it. A region costs a thirty-second of itself in notes, so that it is no longer than a step is
    likely to need: several copies of the trained vector, and maps that are many times the batch. Beyond that there is a
    second one.
    """
    vectors, batch = feed["trained"].nbytes + feed["velocity"].nbytes, feed["x"].nbytes
    size_bytes = min(4 * vectors + 32 * batch, _LONGEST_REGION)
    return {"initial_chunk_size_bytes": size_bytes, "max_dead_bytes_per_chunk": 64 << 10}


class _OnnxEngine:
    """ONNX Runtime's sessions of one architecture's graphs, each loaded when it is first used."""

    def __init__(self, graphs: GraphFolder, threads: int) -> None:
        self._graphs = graphs
        self._threads = threads
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        self._runs: Counter[str] = Counter()

    def most_images(self, graph: Graph) -> int:
        """Return the number of images that one run of a graph can take: any number."""
        return sys.maxsize

    def release(self, graph: Graph) -> None:
        """Give back the memory that a graph's session holds."""
        if self._sessions.pop(graph.file, None) is not None and graph.kind == "train":
            _register_arena(NO_ARENA)  # in place of the step's, which nothing else refers to now

    def run(self, graph: Graph, feed: Feed, into: Feed | None = None) -> dict[str, Any]:
        """Return the outputs of a graph by name, those that `into` names in its arrays."""
        if graph.kind != "train" and self._runs[graph.file] == FEW_RUNS:
            self.release(graph)
            return_freed_memory()
        session = self._session(graph, feed)
        self._runs[graph.file] += 1
        given = {each.name: feed[each.name] for each in session.get_inputs() if each.name in feed}
        try:
            return _run(session, given) if into is None else _run_into(session, given, into)
        except (*REFUSALS, RuntimeError) as error:  # of bound outputs it refuses in the plainest class
            raise ConfigError(
                f"ONNX Runtime refused {graph.file}: the tensors that the task gives do not fit each other or the "
                "graph; export the graphs again, or use torch"
            ) from error

    def _session(self, graph: Graph, feed: Feed) -> onnxruntime.InferenceSession:
        if graph.file not in self._sessions:
            if graph.kind == "train":
                _register_arena(step_arena(feed))  # for sessions that are made from now on
            try:
                self._sessions[graph.file] = onnxruntime.InferenceSession(
                    self._graphs.read(graph), self._options(graph), providers=["CPUExecutionProvider"]
                )
            except REFUSALS as error:
                raise CorruptDataError(f"ONNX Runtime cannot load {graph.file}; export the graphs again") from error
        return self._sessions[graph.file]

    def _options(self, graph: Graph) -> onnxruntime.SessionOptions:
        options = session_options(self._threads)
        # Runs ask for the same memory again and again. Where the C library gives it, a step takes a third longer, and
        # the holes between its pieces grow with every face: 203 MB after 48 faces of SFace, 127 MB with the arena. But
        # an arena keeps what the first layers took until the last ones have read the rest of the model: a program that
        # looks at one face and ends has none. Planning memory by pattern keeps another 10 MB.
        options.enable_cpu_mem_arena = graph.kind == "train" or self._runs[graph.file] >= FEW_RUNS
        options.enable_mem_pattern = False
        if graph.kind == "train":
            # Optimisers join equal values of both passes, and so keep those of the first alive for the second: twice as
            # much memory, for no time. Reuse hands a buffer from value to value and gives it back after the last one:
            # half as much again as giving it back after each.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.enable_mem_reuse = False
            options.add_session_config_entry("session.use_env_allocators", "1")
            # In the order of the traced step, which frees a map before it makes the next.
            options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        return options


class OnnxRuntime(GraphRuntime):
    """A `GraphRuntime` on ONNX Runtime."""

    engine = _OnnxEngine


def _register_arena(settings: dict[str, int]) -> None:
    """Let sessions that ask for the process's arena share a new one; those that have the one before keep it."""
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(settings))


def session_options(threads: int) -> onnxruntime.SessionOptions:
    """Return the options of an inference session: it gives its memory back, and waiting threads use no battery."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # it keeps what it ever held, and a phone embeds a face now and then
    options.log_severity_level = 3  # errors; they are raised too
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _run(session: onnxruntime.InferenceSession, feed: Feed) -> dict[str, Any]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def _run_into(session: onnxruntime.InferenceSession, feed: Feed, into: Feed) -> dict[str, Any]:
    """Return the outputs, those of `into` written where they lie.

    An array may be an input too: a step reads its vectors into pieces first, and once more in the operator that writes
    the output, element by element.
    """
    binding = session.io_binding()
    for name, values in feed.items():
        binding.bind_cpu_input(name, np.asarray(values, order="C"))
    names = [output.name for output in session.get_outputs()]
    for name in names:
        if name in into:
            binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(into[name]))
        else:
            binding.bind_output(name)
    session.run_with_iobinding(binding)
    found = zip(names, binding.get_outputs(), strict=True)
    return {name: into[name] if name in into else value.numpy() for name, value in found}
