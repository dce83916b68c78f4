"""The repository that the demo agent works on. Owns its files; does not use checkpoints."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

BROKEN = '''\
"""Invoices."""


def total(prices, discount):
    """The sum of prices in cents, less a discount in per cent."""
    return sum(prices) * (1.0 - discount)
'''

TESTS = """\
import unittest

from invoice import total


class TotalTest(unittest.TestCase):
    def test_no_discount(self):
        self.assertEqual(total([100, 250], 0), 350)

    def test_half(self):
        self.assertEqual(total([100, 300], 50), 200)

    def test_cents_are_whole_numbers(self):
        self.assertIsInstance(total([99], 10), int)

    def test_half_a_cent_is_the_customers(self):
        self.assertEqual(total([1, 1, 1], 50), 1)
"""

README = "# Invoices\n\nA shop's invoices. Run the tests with `python -m unittest`.\n"


def make_project(place: Path) -> None:
    """Create the project, as a git repository if git is installed."""
    place.mkdir()
    (place / "invoice.py").write_text(BROKEN)
    (place / "test_invoice.py").write_text(TESTS)
    (place / "README.md").write_text(README)
    git = shutil.which("git")
    if git is not None:
        who = ["-c", "user.name=demo", "-c", "user.email=demo@localhost"]
        commit = [*who, "commit", "-qm", "A shop's invoices"]
        for arguments in (["init", "-q"], ["add", "-A"], commit):
            subprocess.run([git, *arguments], cwd=place, check=False, capture_output=True)


def run_tests(place: Path) -> tuple[int, int]:
    """Run the tests of the project; return the numbers of passed tests and of all tests."""
    command = [sys.executable, "-B", "-m", "unittest", "-v"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    passed = sum(line.endswith("... ok") for line in lines)
    return passed, sum(" ... " in line for line in lines)
