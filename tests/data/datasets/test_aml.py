"""Payments in the format of IBM's files: two columns have the name Account, and zeros before a bank's number count."""

import numpy as np
import pytest
import torch

from isthmus.data.datasets.aml import HEADER, IbmAml, read_payments
from isthmus.errors import IsthmusError

ROWS = [
    # time, from bank, account, to bank, account, received, currency, paid, currency, format, laundering
    "2022/09/01 00:20,010,8000EBD30,010,8000EBD30,3697.34,US Dollar,3697.34,US Dollar,Reinvestment,0",
    "2022/09/01 00:20,03208,8000F4580,010,8000EBD30,0.01,US Dollar,0.01,US Dollar,Cheque,0",
    "2022/09/01 00:26,010,8000EBD30,0110,8000F5030,14675.57,Euro,14000.00,US Dollar,Wire,1",
    "2022/09/02 12:00,0110,8000F5030,10,8000EBD30,14000.00,Euro,14000.00,Euro,ACH,1",
    "2022/09/03 12:00,010,8000F5030,03208,8000F4580,5.5,Euro,5.5,Euro,ACH,0",
]


def write(folder, rows=ROWS, header=HEADER, title="HI-Small"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{title}_Trans.csv").write_text("\n".join([",".join(header), *rows]) + "\n", encoding="utf-8")


def test_banks_are_the_parties_and_classify_what_they_send(empty_root):
    write(IbmAml().raw_folder())
    pool = IbmAml(parties=0).load(0)
    assert {party.name: party.ids.tolist() for party in pool.parties} == {
        "bank-010": [0, 1, 2, 4],
        "bank-0110": [2, 3],
        "bank-03208": [1, 4],
    }
    labels = {party.name: party.graph.y.tolist() for party in pool.parties}
    assert labels == {"bank-010": [0, -1, 1, 0], "bank-0110": [-1, 1], "bank-03208": [0, -1]}
    assert pool.labels == ("ordinary", "laundering")
    assert [party.name for party in IbmAml(parties=1).load(0).parties] == ["bank-010"]


def test_payments_read_the_earlier_ones_of_their_accounts(empty_root):
    write(IbmAml().raw_folder())
    first = IbmAml(parties=1, history=2).load(0).parties[0].typed()
    found = {kind[1]: first[kind].edge_index.tolist() for kind in first.edge_types}
    assert found == {
        "sent by its sender": [[0], [2]],
        "received by its sender": [[0, 1], [2, 2]],
        "sent by its receiver": [[1], [3]],
        "received by its receiver": [[], []],
    }
    kind = ("payment", "sent by its sender", "payment")
    assert first[kind].edge_attr.flatten().tolist() == pytest.approx(
        [np.log1p(0.1) / 4, np.log(14000 / 3697.34)], abs=1e-6
    )


def test_columns_are_those_of_the_file(empty_root, tmp_path):
    write(tmp_path)
    banks, payments = read_payments(tmp_path / "HI-Small_Trans.csv")
    assert banks == ["010", "0110", "03208", "10"]
    assert payments.sender[0] == payments.receiver[0] == payments.receiver[1] != payments.receiver[3]
    assert payments.amount.tolist() == [3697.34, 0.01, 14000.0, 14000.0, 5.5]
    assert payments.launders.tolist() == [False, False, True, True, False]
    hours = (payments.time - payments.time[0]) / 3600
    assert hours.tolist() == pytest.approx([0, 0, 0.1, 35 + 2 / 3, 59 + 2 / 3])
    weekend, crosses = payments.x[:, 3].tolist(), payments.x[:, 4].tolist()
    assert weekend == [0, 0, 0, 0, 1]  # the third of September 2022 was a Saturday
    assert crosses == [0, 1, 1, 1, 1]
    assert payments.x[:, 5:].sum(1).tolist() == [3] * 5


def test_splits_follow_each_other_in_time(empty_root):
    generator = np.random.default_rng(0)
    rows = [
        f"2022/09/{day:02d} {hour:02d}:00,0{bank},A{bank},0{other},B{other},1.0,Euro,1.0,Euro,ACH,{int(bank == other)}"
        for day, hour, bank, other in generator.integers([1, 0, 1, 1], [20, 24, 4, 4], size=(300, 4))
    ]
    write(IbmAml().raw_folder(), rows)
    parties = IbmAml(train=0.5, val=0.2).load(0).parties
    sizes = [sum(int(getattr(party, split).sum()) for party in parties) for split in ("train", "val", "test")]
    assert sizes == pytest.approx([150, 60, 90], abs=5)
    assert sum(sizes) == 300
    whole = torch.cat([party.ids[party.test] for party in parties]).tolist()
    days = sorted(rows[at][:13] for at in whole)
    assert days[0] >= sorted(row[:13] for row in rows)[200]


@pytest.mark.parametrize(
    ("rows", "header", "text"),
    [
        (ROWS, HEADER[1:], "expected Timestamp, From Bank"),
        ([ROWS[0].replace("2022/09/01", "1 September")], HEADER, "HI-Small_Trans.csv"),
        ([ROWS[0].replace("3697.34", "much")], HEADER, "HI-Small_Trans.csv"),
        ([ROWS[0].replace(",3697.34,US Dollar,R", ",,US Dollar,R")], HEADER, "Amount Paid is empty"),
    ],
)
def test_other_tables_are_one_line(empty_root, rows, header, text):
    write(IbmAml().raw_folder(), rows, header)
    with pytest.raises(IsthmusError, match=text) as error:
        IbmAml().load(0)
    assert "\n" not in str(error.value)


def test_a_file_that_is_missing_is_asked_for(empty_root):
    with pytest.raises(IsthmusError, match=r"no LI-Large_Trans.csv in .*Kaggle asks for an account.*kaggle.com"):
        IbmAml(title="LI-Large").load(0)
