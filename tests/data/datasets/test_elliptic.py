"""Bitcoin transactions and wallets in the formats of Elliptic and Elliptic++."""

import numpy as np
import pytest
import torch
from published import masks

from isthmus.data.datasets.elliptic import Elliptic, EllipticPlusPlus
from isthmus.errors import IsthmusError

STEPS = {230425980: 1, 5530458: 1, 232022460: 30, 232438397: 34, 230460314: 35, 230459870: 49}
CLASSES = dict(zip(STEPS, ["unknown", "2", "1", "2", "1", "2"], strict=True))


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_elliptic(folder):
    x = np.random.default_rng(0).normal(size=(6, 165)).astype(np.float32)
    rows = [
        ",".join([str(tx), str(step), *map(str, own)])
        for (tx, step), own in zip(STEPS.items(), x.tolist(), strict=True)
    ]
    write(folder / "elliptic_txs_features.csv", *rows)
    write(
        folder / "elliptic_txs_classes.csv", "txId,class", *(f"{tx},{kind}" for tx, kind in reversed(CLASSES.items()))
    )
    write(folder / "elliptic_txs_edgelist.csv", "txId1,txId2", "230425980,5530458")
    return x


def write_plus_plus(folder):
    local = [f"Local_feature_{at}" for at in range(1, 94)]
    sums = [f"Aggregate_feature_{at}" for at in range(1, 73)]
    names = [*local, *sums, "fees", "total_BTC"]
    values = {tx: ["0.5"] * 165 + (["", ""] if step == 49 else ["-1.0", "3.0"]) for tx, step in STEPS.items()}
    rows = [",".join([str(tx), str(step), *values[tx]]) for tx, step in STEPS.items()]
    write(folder / "txs_features.csv", ",".join(["txId", "Time step", *names]), *rows)
    kinds = {tx: kind.replace("unknown", "3") for tx, kind in CLASSES.items()}
    write(folder / "txs_classes.csv", "txId,class", *(f"{tx},{kind}" for tx, kind in kinds.items()))
    write(folder / "txs_edgelist.csv", "txId1,txId2", "230425980,5530458")
    wallets = ["111a,1,0.0,7.0", "111a,30,0.0,7.0", "1zz,1,2.0,1.0"]
    write(folder / "wallets_features.csv", "address,Time step,num_txs_as_sender,lifetime_in_blocks", *wallets)
    write(folder / "wallets_classes.csv", "address,class", "1zz,2", "111a,1")
    write(folder / "AddrTx_edgelist.csv", "input_address,txId", "111a,230425980", "1zz,5530458", "1zz,232022460")
    write(folder / "TxAddr_edgelist.csv", "txId,output_address", "230425980,1zz", "232022460,111a")


def splits(pool):
    return {split: mask.nonzero().flatten().tolist() for split, mask in masks(pool).items()}


def test_elliptic_is_read_from_its_three_files(empty_root):
    x = write_elliptic(Elliptic().raw_folder())
    pool = Elliptic().load(0)
    assert torch.equal(pool.party.graph.x, torch.from_numpy(x))
    assert pool.party.graph.y.tolist() == [-1, 0, 1, 0, 1, 0]
    assert pool.party.graph.edge_index.tolist() == [[0, 1], [1, 0]]
    assert splits(pool) == {"train": [1], "val": [2, 3], "test": [4, 5]}
    assert (pool.classes, pool.labels) == (2, ("licit", "illicit"))
    assert Elliptic(undirected=False).load(0).party.graph.edge_index.tolist() == [[0], [1]]
    assert splits(Elliptic(val_from=35).load(0)) == {"train": [1, 2, 3], "val": [], "test": [4, 5]}


def test_wallets_are_nodes_of_each_of_their_time_steps(empty_root):
    write_plus_plus(EllipticPlusPlus().raw_folder())
    pool = EllipticPlusPlus().load(0)
    typed = pool.party.typed()
    assert {kind[1]: typed[kind].edge_index.tolist() for kind in typed.edge_types} == {
        "pays": [[0], [1]],
        "pays into": [[0, 2], [0, 1]],  # the wallet 1zz has no features in step 30
        "pays out to": [[0, 2], [2, 1]],
    }
    assert typed["transaction"].x[0, 165:].tolist() == pytest.approx([-np.log(2), np.log(4)])
    assert typed["transaction"].x[5, 164:].tolist() == [0.5, 0, 0]
    wallets = typed["wallet"].x
    assert wallets.flatten().tolist() == pytest.approx([0, np.log(8), 0, np.log(8), np.log(3), np.log(2)])
    assert typed["transaction"].y.tolist() == [-1, 0, 1, 0, 1, 0]
    assert splits(pool) == {"train": [1], "val": [2, 3], "test": [4, 5]}


def test_wallets_may_be_classified(empty_root):
    write_plus_plus(EllipticPlusPlus().raw_folder())
    typed = EllipticPlusPlus(classify="wallet").load(0).party.typed()
    assert typed["wallet"].y.tolist() == [1, 1, 0]
    assert typed["wallet"].train_mask.tolist() == [True, False, True]
    assert typed["wallet"].val_mask.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("name", "lines", "text"),
    [
        ("elliptic_txs_edgelist.csv", ["txId1,txId2", "7,5530458"], "names 7, which has no features"),
        ("elliptic_txs_edgelist.csv", ["a,b", "7,5530458"], "has columns a, b; expected txId1, txId2"),
        ("elliptic_txs_classes.csv", ["txId,class", "5530458,2"], "has no class of 230425980"),
        ("elliptic_txs_classes.csv", ["txId,class", "5530458,good"], "has a class good"),
        ("elliptic_txs_features.csv", ["1,2"], "expected an id, a time step and features"),
    ],
)
def test_other_tables_are_one_line(empty_root, name, lines, text):
    write_elliptic(Elliptic().raw_folder())
    write(Elliptic().raw_folder() / name, *lines)
    with pytest.raises(IsthmusError, match=text) as error:
        Elliptic().load(0)
    assert "\n" not in str(error.value)


def test_steps_in_the_wrong_order_are_one_line(empty_root):
    with pytest.raises(IsthmusError, match="val_from = 40 comes after test_from = 35"):
        Elliptic(val_from=40).load(0)
