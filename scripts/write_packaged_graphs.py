"""Write the graphs that come with the package: those that embed, for every recogniser that phones use.

With an adapter or a gate also in two pieces: a picture goes through the frozen network once, whatever these become.

python -m scripts.write_packaged_graphs
"""

from __future__ import annotations

from device_sdk.export.build import export_graphs
from device_sdk.runtimes.manifest import PACKAGED, folder_for
from mien.backbones import BACKBONES, adapter, build_backbone, gate, layout_of
from mien.specs import ModelSpec


def main() -> None:
    """Write a folder for each layout."""
    for name in (name for name, entry in BACKBONES.items() if entry.for_phones):
        backbone = build_backbone(name)
        layout = layout_of(backbone)
        spec = ModelSpec(name, layout.sha256, backbone.input_spec, "", "", backbone.default_trainable)
        parts = (layout.part(spec.trainable),) if name.endswith((adapter.SUFFIX, gate.SUFFIX)) else ()
        export_graphs(spec, layout, folder_for(PACKAGED, layout), forms=(), parts=parts, tell=print)


if __name__ == "__main__":
    main()
