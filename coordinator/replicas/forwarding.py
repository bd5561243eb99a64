"""Calls that came to the wrong replica: passed on to the one that runs the population's tasks, and its answers back.

The owner hears the call on a port that only replicas may enter, with the caller's own certificate in the metadata, and
judges that certificate itself (`PeerAccess`): a replica is believed about who is connected to it, and about nothing
that a certificate says. A call is passed on once; a replica that is not the owner either says so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import grpc
from cryptography import x509

from coordinator.keys import pki
from coordinator.keys.pki import PeerIdentity, Role
from coordinator.replicas.keeper import Keeper, Owner
from coordinator.replicas.peers import RETRY_AFTER_S, Peers, explained
from coordinator.replicas.registry import View
from coordinator.service.access import ALLOWED, AccessInterceptor, Gate, caller
from coordinator.service.rpc import CallInterceptor, Handler, peer_leaf_pem
from coordinator.store.store import Store
from coordinator.store.thread import StoreThread
from mien.errors import MienError, NotFoundError, UnreachableError
from mien.protocol.canonical import task_from_json
from mien.protocol.ids import PopulationId, TaskId
from mien.protocol.v1 import operator_pb2
from mien.rounds.records import TaskState
from mien.shell.clock import Clock

CALLER_KEY: Final = "mien-caller-bin"
REPLICAS: Final = "mien.v1.Replicas"
PEERS_ALLOWED: Final = {
    **{service: roles for service, roles in ALLOWED.items() if service != "mien.v1.Models"},
    REPLICAS: frozenset({Role.REPLICA}),
}
"""Roles that may call a service on the replicas' own port: the callers whose calls are passed on, and replicas."""

_ANYWHERE: Final = frozenset({"Hello", "Upload", "GetUploadStatus"})
"""Calls of `Rounds` that any replica answers; all others need the runner of the round."""

_CACHED_LEAVES: Final = 256
_LIST_TASKS: Final = "/mien.v1.Operator/ListTasks"
_OTHERS_S: Final = 3.0
"""How long the other replicas are asked what their phones are for who lists tasks."""

_OF_TASKS: Final = frozenset({"WatchTask", "PauseTask", "ResumeTask", "CancelTask"})


class Routes:
    """Finds the owner of a call, by its task. Other calls are answered by any replica: what they need is shared."""

    def __init__(self, keeper: Keeper, store: Store, thread: StoreThread) -> None:
        self._keeper, self._store, self._thread = keeper, store, thread

    async def owner(self, method: str, request: Any) -> Owner | None:
        """Return the replica that has to answer a call, None where it is this one or any."""
        service, _, name = method.strip("/").rpartition("/")
        if service == "mien.v1.Rounds" and name not in _ANYWHERE:
            found = await self._keeper.owner(PopulationId(caller().population or ""), is_sure=name != "CheckIn")
        elif service == "mien.v1.Operator" and name == "SubmitTask":
            found = await self._keeper.claim(PopulationId(task_from_json(request.task_json).population))
        elif service == "mien.v1.Operator" and name in _OF_TASKS:
            found = await self._keeper.owner(await self._population(TaskId(request.task_id)))
        else:
            found = None
        return None if found is None or found.address is None else found

    async def _population(self, task_id: TaskId) -> PopulationId:
        try:
            return (await self._thread.run(self._store.task, task_id)).population
        except NotFoundError:
            return PopulationId("")  # the handler says so


class ForwardingInterceptor(CallInterceptor):
    """Passes calls on that are another replica's to answer. Goes behind `AccessInterceptor`.

    Without `peers` such calls were passed on already, and are refused.
    """

    def __init__(self, keeper: Keeper, routes: Routes, peers: Peers | None) -> None:
        self._keeper, self._routes, self._peers = keeper, routes, peers
        self._open: dict[str, set[Any]] = {}
        keeper.on_view.append(self._see)

    def wrapped(self, call: Any, form: str, method: str) -> Any:
        """Return a method that asks the owner; uploads end where they arrive."""
        ways = {"unary_unary": self._call, "unary_stream": self._stream}
        return ways[form](call, method) if form in ways else call

    def codec(self, handler: Handler) -> tuple[Any, Any]:
        """Return what reads requests, and what writes replies, but leaves an owner's as they came."""
        serializer: Any = handler.response_serializer

        def written(reply: Any) -> bytes:
            return reply if isinstance(reply, bytes) else serializer(reply)

        return handler.request_deserializer, written

    def _call(self, call: Any, method: str) -> Callable[[Any, Any], Awaitable[Any]]:
        async def routed(request: Any, context: Any) -> Any:
            owner = await self._routes.owner(method, request)
            if owner is None:
                reply = await call(request, context)
                return await self._with_others(reply, request, context) if method == _LIST_TASKS else reply
            there: Any = self._channel(owner).unary_unary(method)(request.SerializeToString(), **_as_called(context))
            with self._watched(owner, there):
                return await there

        return routed

    async def _with_others(
        self, reply: operator_pb2.ListTasksReply, request: operator_pb2.ListTasksRequest, context: Any
    ) -> operator_pb2.ListTasksReply:
        """Return a list of tasks with what those replicas say of some that run them: they alone hear of their phones.

        What the database has of a task is told at once of one whose replica does not answer.
        """
        if self._peers is None:
            return reply
        running = {task.task_id: _population_of(task) for task in reply.tasks if not TaskState(task.state).is_over}
        owners = {population: await self._owner(population) for population in set(running.values())}
        told = dict[tuple[PopulationId, str], operator_pb2.TaskStatus]()
        for owner in {each for each in owners.values() if each is not None and each.address is not None}:
            for task in await self._tasks_of(owner, request, context):
                told |= {(name, task.task_id): task for name, runs in owners.items() if runs == owner}
        listed = [
            told.get((running[each.task_id], each.task_id), each) if each.task_id in running else each
            for each in reply.tasks
        ]
        return operator_pb2.ListTasksReply(tasks=listed)

    async def _owner(self, population: PopulationId) -> Owner | None:
        try:
            return await self._keeper.owner(population, is_sure=False)
        except UnreachableError:  # another one takes it over just now
            return None

    async def _tasks_of(
        self, owner: Owner, request: operator_pb2.ListTasksRequest, context: Any
    ) -> Sequence[operator_pb2.TaskStatus]:
        """Return all tasks as another replica tells them; none where it does not answer soon."""
        named = {**_as_called(context), "timeout": min(context.time_remaining() or _OTHERS_S, _OTHERS_S)}
        channel: Any = self._channel(owner)
        there = channel.unary_unary(_LIST_TASKS)(request.SerializeToString(), **named)
        try:
            with self._watched(owner, there):
                return operator_pb2.ListTasksReply.FromString(await there).tasks
        except MienError:
            return ()

    def _stream(self, call: Any, method: str) -> Callable[[Any, Any], AsyncGenerator[Any, None]]:
        async def routed(request: Any, context: Any) -> AsyncGenerator[Any, None]:
            owner = await self._routes.owner(method, request)
            if owner is None:
                async with contextlib.aclosing(call(request, context)) as replies:
                    async for reply in replies:
                        yield reply
                return
            there: Any = self._channel(owner).unary_stream(method)(request.SerializeToString(), **_as_called(context))
            with self._watched(owner, there):
                async for reply in there:
                    yield reply

        return routed

    def _channel(self, owner: Owner) -> grpc.aio.Channel:
        if self._peers is None or owner.address is None:
            self._keeper.nudge()
            raise UnreachableError("this replica does not run that task; try again", retry_after_s=RETRY_AFTER_S)
        return self._peers.channel(owner.replica_id, owner.address)

    @contextlib.contextmanager
    def _watched(self, owner: Owner, there: Any) -> Iterator[None]:
        """Turn a passed-on call's end into an error of ours, and end it once its replica is not heard of any more."""
        calls = self._open.setdefault(owner.replica_id, set())
        calls.add(there)
        try:
            yield
        except grpc.aio.AioRpcError as error:
            self._keeper.nudge()
            raise explained(error) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if there in calls or task is None or task.cancelling():
                raise  # the caller went away
            raise UnreachableError("this task is being taken over; try again", retry_after_s=RETRY_AFTER_S) from None
        finally:
            calls.discard(there)
            there.cancel()

    def _see(self, view: View) -> None:
        """End calls to replicas that own nothing any more: a machine that is stopped would never answer."""
        owners = set(view.owners.values()) & set(view.addresses)
        for replica_id in set(self._open) - owners:
            calls = self._open.pop(replica_id)
            while calls:
                calls.pop().cancel()
        if self._peers is not None:
            self._peers.keep_only(view.addresses)


def _population_of(task: operator_pb2.TaskStatus) -> PopulationId:
    return PopulationId(task_from_json(task.task_json).population)


def _as_called(context: Any) -> dict[str, Any]:
    """Return whose call it is, and how long it may take, for the replica that it is passed on to."""
    return {"metadata": ((CALLER_KEY, peer_leaf_pem(context)),), "timeout": context.time_remaining()}


def is_passed_on(context: Any) -> bool:
    """Return whether a call came to another replica first."""
    return any(key == CALLER_KEY for key, _ in context.invocation_metadata() or ())


class PeerAccess(AccessInterceptor):
    """Lets only replicas in; what they pass on is a call of the device or operator whose certificate comes with it.

    Allowances are counted where devices are connected.
    """

    def __init__(self, gate: Gate, ca: x509.Certificate, clock: Clock) -> None:
        super().__init__(gate, None, PEERS_ALLOWED)
        self._ca, self._clock = ca, clock
        self._known: dict[bytes, PeerIdentity] = {}

    def _identify(self, context: Any) -> PeerIdentity:
        replica = self._replica(peer_leaf_pem(context))
        leaf = dict(context.invocation_metadata() or ()).get(CALLER_KEY)
        if leaf is None:
            return replica
        return self._gate.admit(leaf if isinstance(leaf, bytes) else leaf.encode())

    def _replica(self, leaf_pem: bytes) -> PeerIdentity:
        """Return the replica that a leaf names; its signature is checked once, its end at every call."""
        identity = self._known.get(leaf_pem)
        if identity is None:
            leaf = pki.load_certificate(leaf_pem)
            identity = pki.replica_identity(leaf, self._ca, self._clock.now_utc())
            if len(self._known) >= _CACHED_LEAVES:
                self._known.clear()
            self._known[leaf_pem] = identity
        self._gate.check(identity)
        return identity
