"""Search for a device that spoils sums, by halves: nobody can look at a masked vector, only at sums that do not hold.

Group testing (Dorfman 1943), one spoiler at a time: all of a spoiled sum are suspects, later cohorts leave half of them
out, and each spoiled sum leaves those suspects that were in it. So n suspects take at most log2 n more spoiled sums. A
device is found only where its sum was spoiled and it was the only suspect in it, never because others were cleared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mien.protocol.ids import DeviceId


@dataclass(frozen=True)
class Search:
    """State of the search: the suspects, none where no sum was spoiled lately, and the devices found so far."""

    suspects: frozenset[DeviceId] = frozenset()
    found: frozenset[DeviceId] = frozenset()

    def after(self, spoiled: Sequence[frozenset[DeviceId]], sound: frozenset[DeviceId]) -> Search:
        """Return the state after an attempt: the devices of each sum that did not hold, and those of all that did.

        Of several spoiled sums the smallest share of suspects is followed first. A sum without a suspect that is
        spoiled begins the search anew: there are two spoilers, or one that has bided its time.
        """
        suspects = self.suspects - sound
        if spoiled:
            narrowed = [(suspects & members) or members - self.found for members in spoiled]
            suspects = min(
                (each for each in narrowed if each), key=lambda each: (len(each), sorted(each)), default=suspects
            )
            if len(suspects) == 1:
                return Search(frozenset(), self.found | suspects)
        return replace(self, suspects=suspects)

    def left_out(self, num_known: int, num_wanted: int) -> frozenset[DeviceId]:
        """Return the devices to leave out of the next cohort: those found, and half of the suspects.

        Fewer of them where of `num_known` devices `num_wanted` would not be left to choose from.
        """
        spare = max(0, num_known - len(self.found) - num_wanted)
        return self.found | frozenset(sorted(self.suspects)[: min(len(self.suspects) // 2, spare)])
