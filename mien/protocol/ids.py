"""Ids by what they name, so that a type checker refuses a task's where a model's is meant; at run time all are plain.

A program makes them where it reads what others wrote: a message, a certificate, a file. Everything behind takes them by
these types. In secure aggregation devices and tasks are raw bytes (`mien.secagg`), which nothing takes for these.
"""

from __future__ import annotations

from typing import NewType

DeviceId = NewType("DeviceId", str)
"""A device: the first half of its public key's SHA-256, 32 hex digits."""

PopulationId = NewType("PopulationId", str)
"""A population: the name under which devices are invited, trained together and given models."""

ModelId = NewType("ModelId", str)
"""A model: a SHA-256 over its layout and parameters, 64 hex digits; empty for the one that is released."""

TaskId = NewType("TaskId", str)
"""A task: the id that the coordinator gave it when it was submitted."""

RoundNumber = NewType("RoundNumber", int)
"""A round of a task, from 1."""

AttemptNumber = NewType("AttemptNumber", int)
"""An attempt of a round, from 1; `mien.protocol.rounds.RoundRef` names one among all."""

RoundId = NewType("RoundId", int)
"""An attempt of a round among all of a coordinator's: the number of its record in the store."""
