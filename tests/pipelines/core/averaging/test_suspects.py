"""Who is counted, for what, and what of it other processes and other peers get to see."""

import multiprocessing

from pipelines.core.averaging.figures import SharedFigures
from pipelines.core.averaging.reduce.suspects import Misbehaviour, Suspect, SuspectLedger
from pipelines.core.peer.training_peer import suspect_record
from pipelines.core.swarm.peer_records import MAX_SUSPECTS, PeerMetrics


def test_a_peers_offence_counts_once_a_round_and_the_most_frequent_comes_first():
    ledger = SuspectLedger()
    ledger.record_round([("b", Misbehaviour.SILENT)])
    for _ in range(3):
        ledger.record_round([("a", Misbehaviour.FAR_OFF), ("a", Misbehaviour.FAR_OFF)])
    assert ledger.suspects() == (
        Suspect(peer_id="a", offence=Misbehaviour.FAR_OFF, num_rounds=3),
        Suspect(peer_id="b", offence=Misbehaviour.SILENT, num_rounds=1),
    )


def test_the_trainer_sees_what_the_averagers_process_has_recorded():
    figures = SharedFigures()
    assert figures.read().suspects == ()

    def rounds_of_a_process():
        figures.ledger.record_round([("Qm123", Misbehaviour.NOT_FINITE)])
        figures.num_withheld.value += 2
        figures.count_bytes(7)

    process = multiprocessing.get_context("fork").Process(target=rounds_of_a_process)
    process.start()
    process.join()
    seen = figures.read()
    assert seen.suspects == (Suspect(peer_id="Qm123", offence=Misbehaviour.NOT_FINITE, num_rounds=1),)
    assert (seen.num_withheld, seen.bytes_sent) == (2, 7)


def test_a_flood_of_names_pushes_out_the_rarest_alone():
    ledger = SuspectLedger()
    for _ in range(2):
        ledger.record_round([("frequent", Misbehaviour.FAR_OFF)])
    ledger.record_round((f"Qm{number:044}", offence) for number in range(1000) for offence in Misbehaviour)
    suspects = ledger.suspects()
    assert suspects[0].peer_id == "frequent"
    assert 100 < len(suspects) < 1000


def test_suspects_travel_in_a_peers_figures_and_figures_of_older_peers_can_still_be_read():
    older = dict(
        username="alice", epoch=1, loss=1.0, num_samples=4, samples_per_second=1.0, share_averaged=1.0, bytes_sent=1,
        num_rounds=1, round_seconds=0.1, num_refused_gradients=0, client_mode=False, package_version="0",
    )  # fmt: skip
    assert PeerMetrics(**older).suspects == []
    suspects = [Suspect(peer_id="Qm1", offence=offence, num_rounds=1) for offence in list(Misbehaviour)[:MAX_SUSPECTS]]
    metrics = PeerMetrics(**older, suspects=[suspect_record(suspect) for suspect in suspects])
    again = PeerMetrics.parse_obj(metrics.dict())
    assert [record.offence for record in again.suspects] == [suspect.offence.name for suspect in suspects]
