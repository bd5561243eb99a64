"""Data sets of aligned crops in one memory-mapped file, with an index of whose they are and hashes of all of it.

::

    store.json     what it is: format, size of a crop, counts, terms, origin, and the hash of everything below
    crops.u8       all crops, (images, height, width, 3) uint8 RGB, one identity after another
    index.u64      where each identity's crops and name begin, and where each crop's file name does
    names.txt      identities in order, UTF-8, sorted by their bytes
    files.txt      what each crop was called where it came from
    failures.txt   images that gave no crop: error code, tab, identity/file

Crops of real people lie here in clear, as they do in the data sets that researchers get: files are their owner's alone
(mode 0600), and a store of real faces is never written into a git work tree. Phones keep theirs encrypted.
"""

from simulation.stores.store import CropStore, StoreCrops

__all__ = ["CropStore", "StoreCrops"]
