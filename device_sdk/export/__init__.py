"""Graphs of a model that phones run without torch: inference, and the whole training step as an ordinary ONNX graph.

`python -m device_sdk.export` makes them; `device_sdk.runtimes.onnx_runtime` runs them. `forms` and `manifest` import no
torch; `build`, `steps`, `onnx_graph` and `decompositions` do, on the machine that exports.
"""
