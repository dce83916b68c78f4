"""A session in which one step broke something: for the pictures of bisect, blame and revert."""

from pathlib import Path
from typing import Any

from agent_checkpoint import CheckpointManager, Session, bisect, replay
from tests.unit.trajectory.trajectories import shell, write

KEY = "add-discounts"
PRICES = '''"""Prices of the shop."""

RATES = {"book": 0.05, "toy": 0.19}


def total(items):
    return round(sum(price for _, price in items), 2)


def with_tax(kind, price):
    return round(price * (1 + RATES[kind]), 2)
'''
BAD = PRICES.replace("round(sum(price for _, price in items), 2)", "sum(map(float, items))")
DISCOUNT = """

def discounted(price, percent):
    return round(price * (100 - percent) / 100, 2)
"""


def is_right(branch: Any) -> bool:
    """Return whether the total is computed from the prices."""
    file = branch.path / "prices.py"
    return not file.exists() or "sum(price" in file.read_text()


def _work(session: Any, last: str = "Prices, taxes and discounts.\n") -> None:
    say = session.messages.append
    say({"role": "user", "content": "Write the prices of the shop, with taxes."})
    write("prices.py", PRICES)
    write("README.md", "Prices.\n")
    shell("mkdir -p tests && printf 'from prices import total\\n' > tests/test_prices.py")
    say({"role": "user", "content": "Make it shorter."})
    say({"role": "assistant", "content": "The total can be a single call of sum."})
    write("prices.py", BAD)
    write("README.md", "Prices and taxes.\n")
    say({"role": "user", "content": "Add discounts."})
    write("prices.py", BAD + DISCOUNT)
    write("CHANGES", "Discounts.\n")
    write("README.md", last)


def make_trajectory(manager: CheckpointManager, place: Path) -> None:
    """Fill a store: the session, a bisection (result 1) and a replay that diverges (result 2)."""
    place.mkdir()
    with Session(KEY, workspace=place, store=manager) as session:
        _work(session)
    bisect(KEY, is_right, store=manager)
    with replay(KEY, lambda fork: _work(fork, "Discounts, too.\n"), store=manager):
        pass
