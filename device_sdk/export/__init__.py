"""Graphs of a model that phones run without torch: inference, and the whole training step, for two engines.

`python -m device_sdk.export` makes them; `device_sdk.runtimes.onnx_runtime` and `executorch_runtime` run them. `forms`
and `manifest` import no torch; all others do, on the machine that exports.
"""
