"""Write the graphs that come with the package: those that embed, for every recogniser that phones use.

python -m scripts.write_packaged_graphs
"""

from __future__ import annotations

from device_sdk.export.build import export_graphs
from device_sdk.runtimes.manifest import PACKAGED, folder_for
from mien.backbones import BACKBONES, build_backbone, layout_of
from mien.specs import ModelSpec


def main() -> None:
    """Write a folder for each layout."""
    for name in (name for name, entry in BACKBONES.items() if entry.for_phones):
        backbone = build_backbone(name)
        layout = layout_of(backbone)
        spec = ModelSpec(name, layout.sha256, backbone.input_spec, "", "", backbone.default_trainable)
        export_graphs(spec, layout, folder_for(PACKAGED, layout), forms=(), parts=(), tell=print)


if __name__ == "__main__":
    main()
