"""The table of moments in the documentation is that of the committed results."""

from tests.coding_agents.moments import table
from tests.meta.test_docs import ROOT

PAGE = ROOT / "docs" / "how-to" / "coding-agents.md"


def test_the_table_of_moments() -> None:
    assert f"<!-- python -m tests.coding_agents.moments -->\n{table()}" in PAGE.read_text()
