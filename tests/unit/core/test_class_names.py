"""The names by which states refer to classes."""

import gc
from typing import Any

import pytest

from agent_checkpoint import Checkpointable, InvalidInputError, StateError, register_alias
from agent_checkpoint.core.class_names import canonical, find_class, name_of


class Known(Checkpointable):
    pass


class TestFinding:
    def test_a_defined_class_is_found_by_its_name(self) -> None:
        assert find_class("Known") is Known

    @pytest.mark.parametrize("name", ["Nobody", "", "os.system", "builtins.eval", "\ud800"])
    def test_an_unknown_name_is_refused(self, name: str) -> None:
        with pytest.raises(StateError, match="which is not defined here"):
            find_class(name)

    def test_a_name_of_two_classes_is_refused_naming_both(self) -> None:
        class Here:
            class Shared(Checkpointable):
                pass

        class There:
            class Shared(Checkpointable):
                pass

        with pytest.raises(StateError) as caught:
            find_class("Shared")
        assert "Here.Shared" in str(caught.value)
        assert "There.Shared" in str(caught.value)

    def test_a_class_defined_again_in_the_same_place_replaces_the_first(self) -> None:
        def define() -> type:  # a notebook cell that is run twice
            class Again(Checkpointable):
                pass

            return Again

        first, second = define(), define()
        assert first is not second
        assert find_class("Again") is second

    def test_a_class_that_is_gone_is_forgotten(self) -> None:
        def define() -> None:
            class Passing(Checkpointable):
                pass

        define()
        gc.collect()
        with pytest.raises(StateError):
            find_class("Passing")

    def test_the_name_is_the_class_name_unless_the_class_says_otherwise(self) -> None:
        class Renamed(Checkpointable):
            @classmethod
            def _checkpoint_name(cls) -> str:
                return "shop.Agent"

        assert name_of(Known) == "Known"
        assert name_of(Renamed) == "shop.Agent"
        assert find_class("shop.Agent") is Renamed

    @pytest.mark.parametrize("kind", [classmethod, staticmethod, lambda function: function])
    def test_the_hook_may_be_any_kind_of_method(self, kind: Any) -> None:
        hook = kind((lambda: "Own") if kind is staticmethod else (lambda self: "Own"))
        cls = type("Hooked", (Checkpointable,), {"_checkpoint_name": hook})
        assert name_of(cls) == "Own"

    def test_a_hook_that_needs_an_instance_is_refused_where_the_class_is_defined(self) -> None:
        def needy(self: Any) -> str:
            return str(self.title)

        with pytest.raises(InvalidInputError, match="must work without an instance"):
            type("Needy", (Checkpointable,), {"_checkpoint_name": needy})


class TestAliases:
    def test_an_alias_leads_to_the_present_name(self) -> None:
        register_alias("Former", "Known")
        assert canonical("Former") == "Known"
        assert find_class("Former") is Known

    def test_aliases_chain(self) -> None:
        register_alias("First", "Second")
        register_alias("Second", "Known")
        assert find_class("First") is Known

    def test_a_name_without_an_alias_is_itself(self) -> None:
        assert canonical("Whatever") == "Whatever"

    def test_an_alias_may_be_given_again(self) -> None:
        register_alias("Former", "Other")
        register_alias("Former", "Known")
        assert canonical("Former") == "Known"

    def test_an_alias_to_itself_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="'Known' would form a cycle"):
            register_alias("Known", "Known")

    def test_a_circle_of_aliases_is_refused(self) -> None:
        register_alias("A", "B")
        register_alias("B", "C")
        with pytest.raises(InvalidInputError, match="'C' would form a cycle"):
            register_alias("C", "A")
        assert canonical("A") == "C"

    @pytest.mark.parametrize("names", [("", "Known"), ("Old", ""), (5, "Known"), ("Old", None)])
    def test_what_is_no_name_is_refused(self, names: Any) -> None:
        with pytest.raises(InvalidInputError, match="non-empty string"):
            register_alias(*names)
