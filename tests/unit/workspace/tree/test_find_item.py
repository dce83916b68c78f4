"""One entry of a directory object, without the others."""

import pytest

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.store.objects.object_format import Object
from agent_checkpoint.workspace.tree.tree_format import (
    FILE,
    FOLDER,
    LINK,
    Item,
    find_item,
    put_directory,
    read_directory,
)

HEX = "0123456789abcdef"


def directory(number: int) -> "list[Item]":
    items = []
    for index in range(number):
        name, content = b"n%05d" % index, HEX[index % 16] * 64
        if index % 4 == 0:
            items.append(Item(name, LINK, 0o777, 3, target=b"abc"))
        elif index % 4 == 1:
            items.append(Item(name, FOLDER, 0o755, 0, content, content[::-1]))
        elif index % 4 == 2:
            items.append(Item(name, FILE, 0o644, 5, content, content))
        else:
            items.append(Item(name, FILE, 0o644, 5 << 20, content, "f" * 64))  # in chunks
    return items


@pytest.mark.parametrize("number", [0, 1, 9, 2000])
def test_it_is_what_the_whole_directory_has(number):
    objects = {}

    def put(kind, payload, refs=()):
        name = f"{len(objects):064x}"
        objects[name] = Object(kind, tuple(refs), payload)
        return name

    def get(names):
        return [objects[name] for name in names]

    stored = put_directory(directory(number), put)
    whole = {item.name: item for item in read_directory(stored.ref, get)}
    for name in [*whole, b"", b"n", b"n00000x", b"zzz"]:
        assert find_item(objects[stored.ref], name, get) == whole.get(name)


def test_a_damaged_directory_is_refused():
    with pytest.raises(IntegrityError):
        find_item(Object(b"b", (), b""), b"x", lambda names: [])
    with pytest.raises(IntegrityError):
        find_item(Object(b"d", (), b"f"), b"x", lambda names: [])
