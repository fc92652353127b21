"""All that the project uses of hivemind beyond its public interface, and why: the contract with its next release.

A row: what it is, as a path below `hivemind`; how hivemind's source writes it (a method's signature, or what is first
assigned to an attribute); our files, below `pipelines`, that use it; the reason. `test_hivemind_contract.py` prints the
row that is missing or wrong, ready to be put in here.
"""

from typing import NamedTuple

ATTACKERS = "tools/chaos/attacks/hostile_averagers.py"
AVERAGER = "core/averaging/averager.py"
DIALLING = "core/swarm/dialling.py"
FORKS = "core/swarm/forks.py"
GATE = "core/admission/averaging_gate.py"
MISSED = "core/epoch/missed_rounds.py"
NAMES = "core/admission/protocol_names.py"
NODE = "core/admission/dht_gate.py"
RECORD_LIMITS = "core/swarm/record_limits.py"
ROUND_STATE = "core/averaging/round_state.py"
SEARCH = "core/averaging/group/matchmaking.py"
TRACKER = "core/epoch/progress_tracking.py"


class Row(NamedTuple):
    """One name of hivemind's."""

    name: str
    form: str
    files: tuple[str, ...]
    reason: str


NOT_HIVEMINDS = {"epoch": "PacedKeyManager's own", "value": "cells of shared memory"}
"""Attributes that our files set on other objects, whose names hivemind happens to use too."""

# fmt: off
CONTRACT = (
    Row("p2p.servicer.ServicerBase._get_handle_name",
        "@classmethod (cls, namespace: Optional[str], method_name: str) -> str",
        (NAMES,), "overridden: a call has the name of the protocol, not of a class"),
    Row("p2p.servicer.ServicerBase._rpc_handlers", ": Optional[List[RPCHandler]] = None",
        (NAMES,), "cleared per class: a subclass would be handed its parent's list of calls"),
    Row("p2p.servicer.ServicerBase._stub_type", ": Optional[Type[StubBase]] = None",
        (NAMES,), "cleared per class: a subclass would be handed its parent's stub"),
    Row("dht.dht.DHT._node", ": DHTNode",
        (NODE,), "read: a node whose parent has died ends its daemon"),
    Row("p2p.p2p_daemon.P2P._child", "= None",
        (NODE,), "read: the daemon's process is watched, and ends with its node"),
    Row("p2p.p2p_daemon.P2P.add_binary_stream_handler",
        "async (self, name: str, handler: p2pclient.StreamHandler, balanced: bool=False) -> None",
        ("core/swarm/streams/bounded.py",), "replaced on the object: all streams to averagers are bounded there"),
    Row("p2p.p2p_daemon.P2P._client", "= None",
        (DIALLING, FORKS), "called: only there can a daemon that runs be told an address of a peer; read: its calls"),
    Row("p2p.p2p_daemon_bindings.control.ControlClient._handler_tasks", ": Dict[CallID, asyncio.Task] = {}",
        (FORKS,), "replaced: calls that were cancelled, or are for nobody, would be kept for ever"),
    Row("dht.protocol.DHTProtocol.wait_timeout", ": float",
        (NODE,), "set: a node that is gone must not hold every look up for three seconds"),
    Row("dht.protocol.DHTProtocol._validate_dictionary",
        "(self, key_bytes: bytes, dictionary: DictionaryDHTValue) -> bool",
        (RECORD_LIMITS,), "replaced: one invalid record must not hide the others in a dictionary"),
    Row("dht.protocol.DHTProtocol._validate_record",
        "(self, key_bytes: bytes, subkey_bytes: bytes, value_bytes: bytes, expiration_time: float) -> bool",
        (RECORD_LIMITS,), "called: judges one record"),
    Row("dht.protocol.DHTProtocol.storage", ": DHTLocalStorage",
        (RECORD_LIMITS,), "replaced: a flood of keys and owners must not fill the memory"),
    Row("dht.protocol.DHTProtocol.cache", ": DHTLocalStorage",
        (RECORD_LIMITS,), "replaced: whoever fills it hides what is stored"),
    Row("dht.protocol.DHTProtocol.rpc_find",
        "async (self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse",
        ("tools/chaos/attacks/hostile_records.py",),
        "replaced on the object: a hostile node answers with its own records"),
    Row("dht.protocol.DHTProtocol.call_find",
        "async (self, peer: PeerID, keys: Collection[DHTID]) "
        "-> Optional[Dict[DHTID, Tuple[Optional[ValueWithExpiration["
        "Union[BinaryDHTValue, DictionaryDHTValue]]], Dict[DHTID, PeerID]]]]",
        (RECORD_LIMITS,), "wrapped on the object: an answer must not say how long it lasts, nor how large it is"),
    Row("utils.mpfuture.SharedBytes._lock", "= mp.Lock()",
        (FORKS,), "replaced: forked peers would share the lock, and a killed one would keep it"),
    Row("utils.mpfuture.MPFuture._initialization_lock", "= mp.Lock()",
        (FORKS,), "replaced: as SharedBytes._lock"),
    Row("utils.mpfuture.MPFuture._update_lock", "= mp.Lock()",
        (FORKS,), "replaced: as SharedBytes._lock"),
    Row("averaging.averager.DecentralizedAverager._run_internal", "(self)",
        (AVERAGER,), "overridden: the first that runs in the averager's process, where the stub must be replaced"),
    Row("averaging.averager.DecentralizedAverager._p2p", ": P2P",
        (AVERAGER,), "read: the process's own connection, for calls to other averagers"),
    Row("averaging.averager.DecentralizedAverager._outer_pipe", "= mp.Pipe(duplex=True)",
        (AVERAGER,), "called: the one way to have something done in the averager's process"),
    Row("averaging.averager.DecentralizedAverager._matchmaking", ": Matchmaking",
        (AVERAGER, ATTACKERS), "read: its searches are paced, and changed after a round that was given up"),
    Row("averaging.averager.DecentralizedAverager._step",
        "async (self, *, step: StepControl, future_for_init: MPFuture)",
        (AVERAGER, ATTACKERS), "overridden: adds the proof of admission, counts attempts, begins a search"),
    Row("averaging.averager.DecentralizedAverager._aggregate_with_group",
        "async (self, group_info: GroupInfo, min_vector_size: int, **kwargs) -> GatheredData",
        (AVERAGER,), "overridden: checks all members' admissions before anything is aggregated, divides the vector"),
    Row("averaging.averager.DecentralizedAverager._running_groups",
        ": Dict[GroupID, asyncio.Future[AllReduceRunner]] = {}",
        (AVERAGER,), "read and filled: parts may come before this peer has checked the group"),
    Row("averaging.averager.DecentralizedAverager._pending_groups_registered", ": asyncio.Event",
        (AVERAGER,), "awaited: as _running_groups"),
    Row("averaging.averager.DecentralizedAverager._declare_for_download_periodically", "async (self)",
        (AVERAGER,), "overridden to do nothing: states are in signed records, and the DHT is spared"),
    Row("averaging.averager.DecentralizedAverager._shutdown", "async (self, timeout: Optional[float]) -> None",
        (AVERAGER,), "overridden: senders that are still being served get their answers first"),
    Row("averaging.control.StepControl._data_for_gather", "= (data_for_gather, deadline, allow_retries)",
        (GATE, ATTACKERS),
        "set: what is known of links and the proof of admission are added after the step has been scheduled"),
    Row("averaging.control.StepControl._deadline", "= (data_for_gather, deadline, allow_retries)",
        (AVERAGER,), "set: an attempt may take what its members' links need, and the group then meets once more"),
    Row("averaging.control.StepControl._cancel", ": Optional[MPFuture] = None",
        (SEARCH,), "awaited: the only event of a cancelled step"),
    Row("averaging.control.StepControl.weight", "@property (self) -> float",
        (AVERAGER, MISSED), "set: known only once the epoch has its samples; nothing if the round is left"),
    Row("averaging.control.StepControl.wait_for_cancel", "async (self)",
        (AVERAGER,), "replaced on the object: hivemind looks once, sometimes too early, and searches on for ever"),
    Row("averaging.matchmaking.Matchmaking.client_mode", "= client_mode", ("core/averaging/averager.py",),
        "who only listens is led by others and leads nobody"),
    Row("averaging.matchmaking.Matchmaking.group_key_manager",
        "= GroupKeyManager(dht, prefix, initial_group_bits, target_group_size)",
        (SEARCH,), "replaced: the DHT is asked at a pace, and not at all when members meet again"),
    Row("averaging.matchmaking.Matchmaking._request_join_group", "async (self, leader: PeerID) -> Optional[GroupInfo]",
        (SEARCH,), "wrapped on the object: a leader that accepts and never begins is remembered"),
    Row("averaging.matchmaking.Matchmaking.look_for_group", "async (self, step: StepControl) -> Optional[GroupInfo]",
        (SEARCH,), "wrapped on the object: its task is kept from the garbage collector until the DHT knows it is over"),
    Row("averaging.matchmaking.Matchmaking.min_matchmaking_time", "= (min_matchmaking_time, request_timeout)",
        (SEARCH,), "set: a search after a round that was given up is short"),
    Row("averaging.matchmaking.Matchmaking.target_group_size", "= (target_group_size, min_group_size)",
        (SEARCH,), "set: such a search ends when the members are there"),
    Row("averaging.matchmaking.PotentialLeaders.min_matchmaking_time", "= (peer_id, min_matchmaking_time)",
        (SEARCH,), "set: as Matchmaking.min_matchmaking_time"),
    Row("averaging.partition.TensorPartContainer._input_parts_by_peer", "= [deque() for _ in range(self.group_size)]",
        (ROUND_STATE,), "read: parts go over several streams, and are compressed again"),
    Row("optim.progress_tracker.ProgressTracker.local_progress",
        "= self._get_local_progress(local_epoch=0, samples_accumulated=0)",
        ("core/epoch/progress_tracking.py",),
        "an epoch begins with samples of a round that failed, which say nothing of this peer's speed"),
    Row("optim.progress_tracker.GlobalTrainingProgress.samples_accumulated", ": int",
        ("core/epoch/progress_tracking.py",), "the same, in the swarm's count"),
    Row("optim.progress_tracker.ProgressTracker.global_progress", "= self._parse_swarm_progress_data(metadata)",
        (TRACKER,), "set: what is known counts at once without those whose claims came to nothing"),
    Row("optim.progress_tracker.ProgressTracker._parse_swarm_progress_data",
        "(self, metadata: TrainingProgressSchema) -> GlobalTrainingProgress",
        (TRACKER,), "overridden: only admitted and witnessed progress counts"),
    Row("optim.progress_tracker.ProgressTracker.should_report_progress", "= (threading.Event(), threading.Event())",
        (TRACKER,), "replaced: by an event that paces reports"),
)
# fmt: on
