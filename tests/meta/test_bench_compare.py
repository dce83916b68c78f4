"""Two runs of the benchmarks compared: what is worse on the same machine."""

from dataclasses import replace

from bench.compare import report, rows_of
from bench.rows import Row

SAVE = Row("P7", "a save", 1.0, 4.0, "ms", "LangGraph", target=0.33)
IMPORT = Row("P9", "session", 60.0, 10.0, "ms", "bare", target=70.0, difference=True)
FORK = Row("P5", "fork", 10.0, 4000.0, "ms", "cp -a", target=20.0, absolute=True)
BYTES = Row("P6", "stored", 1000.0, None, "B", "", target=2000.0, absolute=True)
FLOOR = Row("P7", "a save", 1.0, 0.1, "ms", "one commit", floor=True)


def compared(old, new):
    old, new = ({"rows": [row.as_json() for row in rows]} for rows in (old, new))
    return report(rows_of(old), rows_of(new))


def slower(row, factor, peer_factor):
    peer = row.peer and row.peer * peer_factor
    return replace(row, ours=row.ours * factor, peer=peer)


def test_a_slower_machine_makes_no_row_worse():
    old = [SAVE, IMPORT, FORK, FLOOR]
    lines = compared(old, [slower(row, 1.5, 1.5) for row in old])
    assert lines == [
        "3 rows in both runs; the peers take 1.50 x as long as then.",
        "0 got better by more than 10%, 0 got worse:",
    ]


def test_rows_that_got_worse_worst_first():
    old = [SAVE, IMPORT, FORK, BYTES]
    new = [slower(SAVE, 1.4, 1), IMPORT, slower(FORK, 3, 1), slower(BYTES, 1.05, 1)]
    assert compared(old, new)[1:] == [
        "0 got better by more than 10%, 2 got worse:",
        "  3.00 x  P5 fork, cp -a: 10.0 ms -> 30.0 ms (holds -> misses)",
        "  1.40 x  P7 a save, LangGraph: 1.00 ms = 0.25 x -> 1.40 ms = 0.35 x (holds -> misses)",
    ]


def test_bytes_do_not_depend_on_the_machine():
    old, new = [SAVE, BYTES], [slower(SAVE, 2, 2), slower(BYTES, 1.5, 1)]
    assert compared(old, new)[2:] == ["  1.50 x  P6 stored, alone: 1.00 kB -> 1.50 kB"]
