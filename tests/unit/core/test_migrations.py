"""Old states are brought to the version of the code, step by step."""

import threading
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    InvalidInputError,
    MigrationError,
    register_alias,
    register_migration,
)


class Migrant(Checkpointable):
    """Keeps the steps that its state has gone through in `trace`."""

    version = "2.0"

    def __init__(self) -> None:
        self.trace: list[Any] = []

    def _checkpoint_version(self) -> str:
        return self.version


class MigrantV3(Migrant):
    version = "3.0"

    @classmethod
    def _checkpoint_name(cls) -> str:
        return "Migrant"


def step(name: Any) -> Any:
    """Return a migration that leaves its name in the trace."""

    def run(state: "dict[str, Any]") -> "dict[str, Any]":
        return {**state, "trace": [*state["trace"], name]}

    return run


def old(version: str = "1.0", **fields: Any) -> "dict[str, Any]":
    return {"trace": [], **fields, "__class__": "Migrant", "__version__": version}


def traced(state: "dict[str, Any]", cls: Any = Migrant) -> "list[Any]":
    agent = cls()
    agent.load_state_dict(state)
    return agent.trace  # type: ignore[no-any-return]


class TestChains:
    def test_one_step_leads_to_the_present_version(self) -> None:
        register_migration("Migrant", from_version="1.0", fn=step("1>2"))
        assert traced(old()) == ["1>2"]

    def test_a_step_may_change_the_state_in_place(self) -> None:
        register_migration("Migrant", from_version="1.0", fn=lambda state: state["trace"].append(1))
        assert traced(old()) == [1]

    def test_a_step_without_a_goal_leads_to_the_next_registered_one(self) -> None:
        register_migration("Migrant", from_version="1.0", fn=step("1>1.5"))
        register_migration("Migrant", from_version="1.5", fn=step("1.5>2"))
        assert traced(old()) == ["1>1.5", "1.5>2"]

    def test_a_step_with_a_goal_leads_there(self) -> None:
        register_migration("Migrant", from_version="1.0", to_version="1.5", fn=step("1>1.5"))
        register_migration("Migrant", from_version="1.2", fn=step("never"))
        register_migration("Migrant", from_version="1.5", to_version="2.0", fn=step("1.5>2"))
        assert traced(old()) == ["1>1.5", "1.5>2"]

    def test_a_state_in_the_middle_of_a_chain_takes_the_rest(self) -> None:
        register_migration("Migrant", from_version="1.0", fn=step("1>1.5"))
        register_migration("Migrant", from_version="1.5", fn=step("1.5>2"))
        assert traced(old("1.5")) == ["1.5>2"]

    def test_steps_for_later_versions_wait_for_the_code(self) -> None:
        register_migration("Migrant", from_version="1.0", fn=step("1>2"))
        register_migration("Migrant", from_version="2.0", fn=step("2>3"))
        assert traced(old()) == ["1>2"]
        assert traced(old(), MigrantV3) == ["1>2", "2>3"]

    def test_versions_are_ordered_by_number_not_by_text(self) -> None:
        class Tenth(Migrant):
            version = "1.10"

        register_migration("Tenth", from_version="1.9", fn=step("1.9>1.10"))
        assert traced({**old("1.9"), "__class__": "Tenth"}, Tenth) == ["1.9>1.10"]

    @pytest.mark.parametrize("version", ["2", "2.0", "2.0.0", "02.0"])
    def test_equal_versions_in_other_words_need_no_step(self, version: str) -> None:
        assert traced(old(version)) == []

    @pytest.mark.parametrize("version", ["1", "1.0", "1.0.0"])
    def test_a_step_is_found_by_any_word_for_its_version(self, version: str) -> None:
        register_migration("Migrant", from_version=version, fn=step("1>2"))
        assert traced(old("1.0.0.0")) == ["1>2"]

    def test_a_step_registered_again_replaces_the_first(self) -> None:
        register_migration("Migrant", from_version="1.0", fn=step("first"))
        register_migration("Migrant", from_version="1.0.0", fn=step("second"))
        assert traced(old()) == ["second"]

    def test_a_state_without_a_version_is_of_the_present_one(self) -> None:
        register_migration("Migrant", from_version="1.0", fn=step("never"))
        assert traced({"trace": []}) == []

    def test_a_step_sees_version_and_class_of_its_state(self) -> None:
        seen: list[Any] = []

        def look(state: "dict[str, Any]") -> "dict[str, Any]":
            seen.append((state["__class__"], state["__version__"]))
            return {"trace": []}  # neither class nor version: they are put back

        register_migration("Migrant", from_version="1.0", to_version="1.5", fn=look)
        register_migration("Migrant", from_version="1.5", fn=look)
        traced(old())
        assert seen == [("Migrant", "1.0"), ("Migrant", "1.5")]

    def test_the_given_state_is_not_changed(self) -> None:
        def spoil(state: "dict[str, Any]") -> None:
            state["trace"].append("spoilt")
            state.clear()

        register_migration("Migrant", from_version="1.0", fn=spoil)
        state = old(deep={"list": [1]})
        traced(state)
        assert state == old(deep={"list": [1]})

    def test_steps_are_those_of_the_class_alone(self) -> None:
        register_migration("Another", from_version="1.0", fn=step("never"))
        with pytest.raises(MigrationError):
            traced(old())

    def test_steps_under_a_former_name_count(self) -> None:
        register_migration("Emigrant", from_version="1.0", fn=step("as it was called"))
        register_alias("Emigrant", "Migrant")
        assert traced({**old(), "__class__": "Emigrant"}) == ["as it was called"]
        assert traced(old()) == ["as it was called"]

    def test_steps_under_the_present_name_win(self) -> None:
        register_migration("Migrant", from_version="1.0", fn=step("present"))
        register_migration("Emigrant", from_version="1.0", fn=step("former"))
        register_alias("Emigrant", "Migrant")
        assert traced({**old(), "__class__": "Emigrant"}) == ["present"]


class TestRefused:
    def test_a_missing_step_is_named_with_what_to_call(self) -> None:
        register_migration("Migrant", from_version="1.5", fn=step("1.5>2"))
        with pytest.raises(MigrationError) as caught:
            traced(old())
        for words in (
            "agent",
            "version 1.0 of Migrant",
            "registered: from 1.5",
            "from_version='1.0'",
        ):
            assert words in str(caught.value)

    def test_a_chain_that_ends_too_early_is_named(self) -> None:
        register_migration("Migrant", from_version="1.0", to_version="1.5", fn=step("1>1.5"))
        with pytest.raises(MigrationError, match=r"no migration leads from 1\.5 to 2\.0"):
            traced(old())

    def test_a_step_past_the_version_of_the_code_is_refused(self) -> None:
        register_migration("Migrant", from_version="1.0", to_version="3.0", fn=step("too far"))
        with pytest.raises(MigrationError, match=r"leads to 3\.0, but the class has version 2\.0"):
            traced(old())

    def test_a_state_newer_than_the_code_is_refused(self) -> None:
        with pytest.raises(MigrationError, match=r"version 2\.1 of Migrant, newer"):
            traced(old("2.1"))

    def test_a_step_that_fails_is_named_with_its_error(self) -> None:
        register_migration("Migrant", from_version="1.0", fn=lambda state: state["absent"])
        with pytest.raises(MigrationError, match=r"from version 1\.0 failed \(KeyError\)") as error:
            traced(old())
        assert isinstance(error.value.__cause__, KeyError)

    @pytest.mark.parametrize("result", [5, "state", [("a", 1)]])
    def test_a_step_that_returns_no_state_is_refused(self, result: Any) -> None:
        register_migration("Migrant", from_version="1.0", fn=lambda state: result)
        with pytest.raises(MigrationError, match=r"returned .*, expected a dict"):
            traced(old())

    @pytest.mark.parametrize(
        "version", ["", "v1", "1.", ".1", "1.a", "-1", "1" * 50, 1, None, [], 1e5]
    )
    def test_a_version_that_is_none_is_refused(self, version: Any) -> None:
        with pytest.raises(MigrationError, match="is not a version"):
            traced(old(version))

    def test_a_version_that_python_cannot_even_print_is_refused(self) -> None:
        with pytest.raises(MigrationError, match="is not a version"):
            traced(old(10**5000))  # type: ignore[arg-type]

    def test_a_state_that_cannot_be_copied_is_refused(self) -> None:
        register_migration("Migrant", from_version="1.0", fn=step("never"))
        with pytest.raises(MigrationError, match="state of Migrant cannot be copied"):
            traced(old(lock=threading.Lock()))


class TestRegistering:
    @pytest.mark.parametrize("version", ["", "v1", 1, None, "1.x"])
    def test_versions_are_checked(self, version: Any) -> None:
        with pytest.raises(InvalidInputError, match="is not a version"):
            register_migration("Migrant", from_version=version, fn=step(1))

    @pytest.mark.parametrize("goal", ["1.0", "1", "0.9"])
    def test_a_step_leads_forward(self, goal: str) -> None:
        with pytest.raises(InvalidInputError, match="later version"):
            register_migration("Migrant", from_version="1.0", to_version=goal, fn=step(1))

    @pytest.mark.parametrize("name", ["", None, Migrant])
    def test_a_class_is_given_by_its_name(self, name: Any) -> None:
        with pytest.raises(InvalidInputError, match="takes the name of a class"):
            register_migration(name, from_version="1.0", fn=step(1))

    def test_a_migration_is_a_function(self) -> None:
        with pytest.raises(InvalidInputError, match="A migration must be a function"):
            register_migration("Migrant", from_version="1.0", fn="no")  # type: ignore[arg-type]
