"""The tables of figures in the documents are what the benchmarks' last runs wrote.

`make verify-figures` runs them alone.
"""

import difflib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = {
    "small: training step, 4 samples, reversible (s)": ("small, batch 4, reversible", "training step"),
    "paper: training step, 1 sample, reversible (s)": ("paper, batch 1, reversible", "training step"),
    "paper: the same, activations stored (s)": ("paper, batch 1, none", "training step"),
    "paper: peak memory of that step, stored (MiB)": ("paper, batch 1, none", "peak of a step"),
    "paper: peak memory, reversible (MiB)": ("paper, batch 1, reversible", "peak of a step"),
    "small: codes per second, 1 candidate": ("small, 1 candidate of a caption", "image codes"),
    "small: codes per second, 8 candidates": ("small, 8 candidates of a caption", "image codes"),
    "paper: codes per second, 1 candidate": ("paper, 1 candidate of a caption", "image codes"),
    "paper: codes per second, 8 candidates": ("paper, 8 candidates of a caption", "image codes"),
    "paper: reading a caption for 128 candidates (s)": ("paper, 128 candidates", "reading the caption"),
    "paper: cache of one of 8 candidates (MiB)": ("paper, 8 candidates of a caption", "cache of a candidate"),
}


DATASET_ROWS = {
    "shipped codec, the demo's pictures: pictures per second": (0, "ours"),
    "shipped codec, JPEGs of 256 pixels: pictures per second": (2, "ours"),
    "published size, JPEGs of 256 pixels: pictures per second": (11, "ours"),
    "VQ-16's size, JPEGs of 256 pixels: pictures per second": (20, "ours"),
    "bytes of a sample of the demo": (4, "ours"),
    "the same as raw 16-bit codes, without the caption": (4, "peer"),
    "the same as a JPEG of 128 x 128 pixels": (5, "peer"),
    "entropy of its codes": (4, "floor"),
    "bytes of a sample, published size, random weights": (13, "ours"),
    "bytes of a sample, VQ-16's size, random weights": (22, "ours"),
    "codes that change if pictures are encoded one at a time (%)": (7, "ours"),
    "codes that bfloat16 changes, shipped codec (%)": (9, "ours"),
    "codes that bfloat16 changes, published size, random weights (%)": (18, "ours"),
    "codes that bfloat16 changes, VQ-16's size, random weights (%)": (27, "ours"),
    "mean error of pictures of the shipped codec, of 1: float32": (6, "ours"),
    "the same: bfloat16": (10, "ours"),
}
"""By their place in the benchmark, whose rows always come in one order."""


READERS = (
    "ours, own order", "datasets, in order", "datasets, shuffled", "litdata, in order", "litdata, shuffled",
)  # fmt: skip
SHAPES = ("many small shards, 200", "one large shard, 1 x", "one row group of LAION's layout")
STREAM_ROWS = {
    "MB before the first batch": "bytes before the first batch",
    "first batch after (s)": "first batch after",
    "samples per second of a core": "samples",
    "bytes of a sample": "bytes of a sample",
    "memory (MB)": "memory taken",
}
OTHER_STREAM_ROWS = {
    "restart in the middle: next batch after (s)": ("many small shards, resumed", "first batch after a restart"),
    "the same: MB before it": ("many small shards, resumed", "bytes before it"),
    "the same: records lost": ("many small shards, resumed", "records of the pass lost"),
    "the same: records read twice": ("many small shards, resumed", "records of the pass read twice"),
    "20 Mbit/s, 50 ms: first batch after (s)": ("one large shard, 20 Mbit/s", "first batch after"),
    "the same: waited for the other 63 batches (s)": ("one large shard, 20 Mbit/s", "waited for later batches"),
}


ATTACKS = {
    "sign flip, ten times as long": "sign flip x10",
    "ALIE, hidden in the noise": "ALIE, z of the paper",
    "ALIE, z = 10": "ALIE, z = 10",
    "IPM, epsilon 0.1": "IPM, epsilon 0.1",
    "IPM, epsilon 10": "IPM, epsilon 10",
    "copies of one honest peer": "copies of one peer",
    "spikes where nobody sends": "spikes where nobody sends",
}
DIVERGED = 1000


def measured(name):
    return json.loads((ROOT / f"tests/benchmarks/results/{name}.json").read_text(encoding="utf-8"))["rows"]


def long_run(name):
    return json.loads((ROOT / f"tests/long/results/{name}.json").read_text(encoding="utf-8"))


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def check_quoted(said, name):
    """Fail, in words that an author can use, unless a page says this."""
    text = page(name)
    if said not in text:
        nearest = difflib.get_close_matches(said, text.splitlines(), n=1, cutoff=0.3)
        pytest.fail(
            f"docs/{name}.md is stale.\n  measured: {said}\n  it says:  {nearest[0] if nearest else 'nothing like it'}",
            pytrace=False,
        )


def test_a_stale_figure_is_named_with_what_was_measured_and_the_line_that_is_to_be_changed():
    with pytest.raises(
        pytest.fail.Exception, match=r"faults.md is stale.\n  measured: In 9,038 epochs .*\n  it says:  In "
    ):
        check_quoted("In 9,038 epochs (`tests/long/results/soak.json`)", "faults")


@pytest.mark.parametrize("label", ROWS)
def test_a_row_of_the_model_beside_dalle_pytorch_is_as_measured(label):
    case, metric = ROWS[label]
    (row,) = [row for row in measured("model") if row["case"].startswith(case) and row["metric"].startswith(metric)]
    ours, peer = row["ours"], row["peer"]
    better, worse = ("less", "more") if row["unit"] == "MiB" else ("faster", "slower")
    ratio = ours / peer if row["unit"] == "1/s" else peer / ours
    said = f"{_short(ratio)} x {better}" if ratio >= 1 else f"{_short(1 / ratio)} x {worse}"
    check_quoted(f"| {label} | {_short(ours)} | {_short(peer)} | {said} |", "measurements/model")


def test_the_rows_of_the_model_on_a_gpu_are_as_measured():
    for row in measured("gpu"):
        ours, peer, unit = row["ours"], row["peer"], row["unit"]
        ratio = peer and (peer / ours if unit == "s" else ours / peer)
        beside = f"{_short(peer)} | {_short(ratio)} x better" if peer else "- | -"
        label = f"{row['case'].removeprefix('paper, ')}: {row['metric']}{'' if unit == '1' else f' ({unit})'}"
        check_quoted(f"| {label} | {_short(ours)} | {beside} |", "measurements/model")


@pytest.mark.parametrize("label", DATASET_ROWS)
def test_a_row_about_making_a_dataset_is_as_measured(label):
    number, key = DATASET_ROWS[label]
    check_quoted(f"| {label} | {_short(measured('data')[number][key])} |", "measurements/datasets")


def stream_rows():
    """The lines of the table of streams, from what was measured."""
    wanted = [
        (f"{shape.split(',')[0]}: {label}", shape, metric) for shape in SHAPES for label, metric in STREAM_ROWS.items()
    ] + [(label, *names) for label, names in OTHER_STREAM_ROWS.items()]
    rows = measured("data_streams")
    for label, case, metric in wanted:
        of_peers = {
            row["metric"].partition(", peer: ")[2]: row
            for row in rows
            if row["case"].startswith(case) and row["metric"].startswith(metric)
        }
        values = [next(iter(of_peers.values()))["ours"], *(of_peers.get(reader, {}).get("peer") for reader in READERS)]
        yield f"| {label} | {' | '.join('-' if value is None else _short(value) for value in values)} |"


def test_the_table_of_streams_is_as_measured():
    for line in stream_rows():
        check_quoted(line, "measurements/datasets")


def test_the_coverage_of_a_pass_is_as_measured():
    rows = [row for row in measured("data_streams") if row["metric"].startswith("coverage of a pass")]
    assert len(rows) == 5
    for row in rows[:3]:
        num_peers = f"{int(row['case'].split()[0]):,}"
        said = f"| {num_peers} peers | {_short(row['ours'])} | {_short(row['peer'])} |"
        check_quoted(said, "measurements/datasets")
    alone, with_ledger = rows[3:]
    said = f"{_short(with_ledger['ours'])} %, without it {_short(alone['ours'])} %, and one of `datasets`"
    check_quoted(said, "measurements/datasets")
    check_quoted(f"{_short(alone['peer'])} %", "measurements/datasets")


def test_the_vqgans_shares_are_as_measured():
    shares = [row["ours"] for row in measured("data") if row["metric"].startswith("share of the time")]
    lines = page("measurements/datasets").splitlines()
    said = [line for line in lines if line.startswith("| the same: the VQGAN's share")]
    assert said == [f"| the same: the VQGAN's share (%) | {_short(share)} |" for share in shares]


def test_the_memory_of_killed_preparations_is_as_measured():
    runs = long_run("preparation")["runs"]
    check_quoted(f"held at most {max(run['peak_bytes'] for run in runs) / 1e9:.2f} GB", "measurements/datasets")
    assert len({run["digest"] for run in runs}) == 1 and all(run["is_every_sample_counted"] for run in runs)
    assert {(run["workers"], run["batch_size"]) for run in runs if run["kills"] == 3} == {
        (workers, batch_size) for workers in (1, 2) for batch_size in (1, 7, 64)
    }


@pytest.mark.parametrize("label", ATTACKS)
def test_a_row_of_the_losses_under_attack_is_as_measured(label):
    rows = {
        row["case"].partition(":")[0]: row
        for row in measured("robust_aggregation")
        if row["case"].endswith(f": {ATTACKS[label]}") and row["metric"] in ("CenteredClip", "at most the median norm")
    }
    single = rows["single gradients"]
    undefended = "diverged" if single["peer"] >= DIVERGED else _short(single["peer"] / single["floor"])
    defended = (single, rows["means of gradients"], *(row for case, row in rows.items() if "progress" in case))
    said = [undefended, *(f"{row['ratio_to_floor']:.2f}" for row in defended)]
    check_quoted(f"| {label} | {' | '.join(said)} |", "faults")


def test_the_errors_of_the_codecs_are_as_measured():
    rows = [row for row in measured("averaging_codecs") if row["unit"] == "1"]
    for single, average in zip(rows[::2], rows[1::2], strict=True):
        assert single["case"] == average["case"]
        said = [f"{_per_cent(single[key])}, {_per_cent(average[key])}" for key in ("ours", "peer", "floor")]
        check_quoted(f"| {single['case']} | {' | '.join(said)} |", "measurements/training")


def test_the_losses_of_averaging_in_8_bits_are_as_measured_and_within_half_a_per_cent_of_float32():
    *pairs, mean = [row for row in measured("averaging_codecs") if row["unit"] == "nat"]
    assert len(pairs) == 3
    assert mean["ours"] == pytest.approx(mean["peer"], rel=0.005)
    for row in (*pairs, mean):
        label = row["case"].partition(": ")[2]
        check_quoted(f"| {label} | {row['ours']:.4f} | {row['peer']:.4f} |", "measurements/training")


def test_the_losses_and_bytes_of_sparse_rounds_are_as_measured():
    rows, said = measured("sparse_rounds"), page("measurements/training").splitlines()
    losses = [row for row in rows if row["unit"] == "nat"]
    assert len(losses) >= 4
    for row in losses:
        case, seed = row["case"], row["metric"].removeprefix("held-out loss, ")
        figures = f"{row['ours']:.3f} | {row['peer']:.3f} | {row['ratio_to_peer']:.3f}"
        assert f"| {case} | {seed} | {figures} |" in said
    for row in rows:
        if row["unit"] == "MB":
            case = f"{row['case'].partition(',')[0]}: {row['metric']}"
            assert f"| {case} | {_short(row['ours'])} | {_short(row['peer'])} |" in said
    (of_a_sample,) = [row for row in rows if row["metric"].startswith("upload of a trainer for each sample")]
    check_quoted(f"{of_a_sample['ours']:.1f} bytes for each sample of the swarm", "measurements/training")


def local_steps_lines():
    """The lines of both tables of optimizers and local steps, from what was measured so far."""
    rows = {(row["case"], row["metric"]): row for row in measured("local_steps")}
    for (case, metric), row in rows.items():
        loss, ratios = f"{row['ours']:.3f}", [row["ratio_to_peer"], row["ratio_to_floor"]]
        steps, _, which = metric.partition(" steps, ")
        if row["unit"] == "nat" and row["ours"] > 100:
            if not metric.startswith("tuning, "):
                yield f"| {case} | {int(steps):,}, {which} | diverged | | |"
            continue
        if which == "mean of the seeds":
            names = [
                f"{steps} steps, ratio to {name}" for name in ("the former default", "the same optimizer, synchronous")
            ]
            ends = [[rows[case, name + end]["ours"] for end in ("", ", low end", ", high end")] for name in names]
            intervals = " | ".join("{:.3f} ({:.3f} to {:.3f})".format(*own) for own in ends)
            yield f"| {case} | {int(steps):,}, three seeds | {loss} | {intervals} |"
        elif metric.startswith("tuning, "):
            yield f"| {case} | {loss} | {ratios[0]:.3f} | {ratios[1]:.3f} |"
        elif which.startswith("seed ") and (case, f"{steps} steps, mean of the seeds") not in rows:
            yield f"| {case} | {int(steps):,}, {which} | {loss} | {ratios[0]:.3f} | {ratios[1]:.3f} |"


def test_the_losses_of_optimizers_and_local_steps_are_as_measured():
    said, metrics = page("measurements/training").splitlines(), [row["metric"] for row in measured("local_steps")]
    missing = [line for line in local_steps_lines() if line not in said]
    assert not missing, "\n".join(["docs/measurements/training.md lacks:", *missing])
    tuned = sum(metric.startswith("tuning, ") for metric in metrics)
    compared = metrics.count("3000 steps, mean of the seeds")
    check_quoted(f"So far {tuned} of 26 cells are tuned, and {compared} of the 14 best", "measurements/training")


def _per_cent(value):
    return f"{100 * value:.3g} %"


def test_a_peers_memory_is_as_measured():
    said = page("measurements/model").splitlines()
    (start,) = [number for number, line in enumerate(said) if line == "| | holds | needs |"]
    rows = {row["metric"]: row for row in measured("peer_memory") if row["case"].startswith("paper")}
    check_quoted(f"is {_short(rows['highest']['peer'])} MB.", "measurements/model")
    table = said[start + 2 : said.index("", start)]
    assert len(table) == 10
    for line in table:
        row = rows[line.split("|")[1].strip()]
        needs = "-" if row["floor"] is None else _short(row["floor"])
        assert line == f"| {row['metric']} | {_short(row['ours'])} | {needs} |"


def _short(value):
    """Return a number with three significant digits, as the table has it."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def slow_links_lines():
    """The lines of the README's table: the best tuned cell of each setting, divided by that of synchronous LAMB."""
    rows = [row for row in measured("local_steps") if row["metric"].startswith("tuning, ")]

    def ratios(optimizer, steps):
        how = "every gradient" if steps == 1 else f"{steps} local steps"
        for run in ("language", "pictures"):
            own = [row["ours"] for row in rows if row["case"].startswith(f"{run}: {optimizer}, {how}")]
            lamb = [row["ours"] for row in rows if row["case"].startswith(f"{run}: lamb, every gradient")]
            yield f"{min(own) / min(lamb):.3f}" if own else "not measured"

    for optimizer, steps in (("lamb", 1), ("muon", 1), ("muon", 15), ("muon", 50)):
        said = "every gradient" if steps == 1 else f"`local_steps={steps}`"
        name = f"{said}, `{'inner_' if steps > 1 else ''}optimizer={optimizer}`"
        name += ", the default" * (optimizer == "lamb")
        yield f"| {name} | {45_776 / steps:,.0f} | 100 | 15 | {' | '.join(ratios(optimizer, steps))} |"


def test_what_slow_links_cost_is_what_was_simulated():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [line for line in slow_links_lines() if line not in readme.splitlines()]
    assert not missing, "\n".join(["README.md lacks:", *missing])
    sparse = next(line for line in readme.splitlines() if "| `local_steps=15`, `synchronisation=sparse` |" in line)
    for run in ("language", "pictures"):
        case = f"{run}: sparse, local_steps 15, k 64, decay 0.9, outer rate 2.0, lamb 0.02"
        row = next(row for row in measured("sparse_rounds") if row["case"] == case)
        assert f"{row['ours'] / row['peer']:.3f}" in sparse


def test_the_memory_estimates_are_as_measured():
    rows = measured("memory_estimate")
    assert len(rows) > 50
    for row in rows:
        model, precision, *settings = row["case"].rsplit(", ", 3)
        lines = page("memory_estimate").splitlines()
        start, figures = f"| {model} | {', '.join([precision, *settings])} |", f"{row['ours']:.3f} | {row['peer']:.3f}"
        said = next((line for line in lines if line.startswith(start)), start)
        check_quoted(f"{start} exact | exact | {figures} | {said.rpartition('| ')[2]}", "memory_estimate")


def test_what_attacks_cost_is_as_measured():
    found = long_run("attacks")
    names = sorted({case.partition(",")[0] for case in found})
    assert len(names) > 10
    usual = found["bystander, open"]["epochs_per_minute"]
    check_quoted(f"{usual} in both", "faults")
    for name in names:
        if f"{name}, admitted" not in found:
            case = found[f"{name}, open"]
            check_quoted(f"| {name} | {case['goodput']:.3f} | {case['memory_growth_mb']:.0f} MB |", "faults")
            continue
        cases = [found[f"{name}, {door}"] for door in ("open", "admitted")]
        label = "bystander, which only computes" if name == "bystander" else name
        label += "" if cases[0]["made_with"][1] == 60 else f" ({cases[0]['made_with'][1]:.0f} s)"
        epochs = " | ".join(f"{case['epochs_per_minute'] / usual:.2f}" for case in cases)
        grown = " | ".join(f"{case['memory_growth_mb']:.0f} MB" for case in cases)
        named = "" if name == "bystander" else "yes" if any(case["named"] for case in cases) else "no"
        check_quoted(f"| {label} | {epochs} | {grown} | {named} |", "faults")


def test_the_growth_over_many_epochs_is_as_measured():
    soak = long_run("soak")
    check_quoted(f"In {soak['epochs']:,} epochs (`tests/long/results/soak.json`)", "faults")
    assert all(grown.get("anonymous KiB", 0) < 10 for grown in soak["growth_per_epoch"].values())


def test_drawing_in_fewer_passes_is_as_measured():
    rows = measured("decoding")
    shares = {row["case"]: row["ours"] for row in rows if row["metric"] == "passes a code"}
    differ = {row["case"]: row["ours"] for row in rows if row["metric"].startswith("pictures that part")}
    for name, window in [*(("default", window) for window in (2, 4, 8, 16)), ("top-p 0.9", 16), ("guidance 2", 16)]:
        case = f"trained on scenes, {name}{' sampling' * (name == 'default')}, window {window}"
        label = f"{name}, {window} codes in a pass"
        check_quoted(f"| {label} | {_short(shares[case])} | {differ[case]:.0f} |", "measurements/model")
    for row in rows:
        if row["case"].startswith("paper") and row["metric"].startswith("image codes, passes x"):
            _, weights, number, *_ = row["case"].split(", ")
            line = f"| {weights}, {number.split()[0]} | {_short(row['ours'])} | {_short(row['floor'])} |"
            check_quoted(line, "measurements/model")
    (loss,) = [row for row in rows if row["metric"] == "held-out loss"]
    change = (loss["ours"] / loss["peer"] - 1) * 100
    check_quoted(f"held-out loss of {loss['peer']:.4f} by {change:.3f} %.", "measurements/model")


@pytest.mark.parametrize("situation", ["quiet", "a core is busy", "quiet again"])
def test_training_beside_other_programs_is_as_measured(situation):
    rows = [row for row in measured("training") if row["case"].endswith(f"micro-batches of 4, {situation}")]
    rates = {row["metric"]: _short(row["ours"]) for row in rows}
    adaptive = rates["adaptive threads beside the best number"]
    check_quoted(f"| {situation} | {adaptive} | {rates['1 thread']} | {rates['2 threads']} |", "measurements/model")


def test_sparse_peers_over_slow_links_are_as_measured():
    (row,) = [row for row in measured("training") if row["metric"].startswith("goodput, links of 2 Mbit/s")]
    check_quoted(f"trained {_short(row['ours'] / row['peer'])} times as many samples", "measurements/training")


def test_a_run_over_the_hub_costs_what_was_measured():
    def figure(rows, metric, case=""):
        return next(row["ours"] for row in rows if row["metric"].startswith(metric) and case in row["case"])

    api, others = (
        figure(measured("hub_rounds_requests"), kind) for kind in ("API requests", "resolver requests besides")
    )
    check_quoted(f"| {api:.0f} of the API; 1 resolver request a member, and {others:.0f} |", "over_the_hub")
    counted = figure(measured("hub_rounds_goodput"), "samples that count")
    check_quoted(f"| samples that count, of those computed | {100 * counted:.0f} % |", "over_the_hub")
    crowd = [
        figure(measured("hub_rounds_crowd"), metric, "1000 vol") for metric in ("from the", "peak memory", "processor")
    ]
    check_quoted(f"| {crowd[0]:.0f} s, {crowd[1]:.0f} MB and {crowd[2]:.1f} s of a core |", "over_the_hub")
    cases = [f"{rounds} rounds of 8 members, 3.2 million parameters, answers 0.1 s late" for rounds in (5, 20, 60)]
    seconds = [figure(measured("hub_rounds_newcomer"), "until a newcomer", case) for case in cases]
    check_quoted(f"| {seconds[0]:.1f}, {seconds[1]:.0f} and {seconds[2]:.0f} s for 5, 20 and 60 rounds", "over_the_hub")
    (loss, *_) = measured("hub_rounds_loss")
    check_quoted(f"| {loss['ours']:.2f} beside {loss['peer']:.2f} peer to peer", "over_the_hub")
    share = figure(measured("hub_rounds_utilisation"), "time in micro-batches")
    check_quoted(f"{100 * share:.0f} %", "over_the_hub")


NOT_CHECKED = {
    *("drawing_audits", "drawing_servers", "drawn_scenes", "petals", "served_blocks"),
    *("averaging_codecs_cells", "sparse_rounds_language", "sparse_rounds_pictures"),
    *("simulation", "two_anchors"),
    *("drawn_contributions", "drawn_contributions_cells"),
}
"""Results of which no test compares figures with the documents: single sentences, material of another file, or figures
that were measured once."""


def test_every_file_of_results_is_compared_with_the_documents_or_named_as_not_compared():
    source = Path(__file__).read_text(encoding="utf-8").partition("NOT_CHECKED = ")[0]
    files = [*(ROOT / "tests/benchmarks/results").glob("*.json"), *(ROOT / "tests/long/results").glob("*.json")]
    compared = {path.stem for path in files if re.search(rf'(measured|long_run|losses)\("{path.stem}"\)', source)}
    compared |= {path.stem for path in files if path.stem.startswith("local_steps_")}
    assert {path.stem for path in files} == compared | NOT_CHECKED and not compared & NOT_CHECKED
