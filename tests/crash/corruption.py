"""Damages one file of a store, by a seed: a flipped bit, a cut, zeros, a file that is gone."""

import random
import re
import shutil

KINDS = ("flipped", "cut", "zeroed", "deleted")
_SKIPPED = ("-shm", ".lock", ".gate")  # made anew at the next open; nothing is read from locks


def files_of(store):
    """The files that hold something, as paths relative to the store."""
    return sorted(
        path.relative_to(store)
        for path in store.rglob("*")
        if path.is_file() and not path.name.endswith(_SKIPPED) and path.stat().st_size
    )


def damage(store, file, kind, seed):
    """Damage a file of the store in place, and say how."""
    path = store / file
    if kind == "deleted":
        path.unlink()
        return f"{file} deleted"
    rng = random.Random(f"{file}/{kind}/{seed}")
    data = bytearray(path.read_bytes())
    at = _place(rng, data)
    if kind == "flipped":
        data[at] ^= 1 << rng.randrange(8)
        told = f"{file}: a bit of byte {at} flipped"
    elif kind == "cut":
        del data[at:]
        told = f"{file}: cut to {at} bytes"
    else:
        length = min(rng.choice((16, 512, 4096, 8192, 50_000)), len(data) - at)
        data[at : at + length] = bytes(length)
        told = f"{file}: {length} bytes at {at} zeroed"
    path.write_bytes(data)
    return told


def _place(rng, data):
    # Records and the beginnings of pages are few among much content, and matter most.
    where = rng.choice(("page", "record", "anywhere"))
    if where == "page":
        pages = max(1, len(data) // 8192)
        return min(len(data) - 1, rng.randrange(pages) * 8192 + rng.randrange(120))
    records = [match.start() for match in re.finditer(b"sha256", data)]
    if where == "record" and records:
        return min(len(data) - 1, max(0, rng.choice(records) - rng.randrange(-70, 300)))
    return rng.randrange(len(data))


def copy_of(store, place):
    """A copy of a store that may be open, without what SQLite makes anew."""
    shutil.copytree(store, place, ignore=shutil.ignore_patterns("*-shm"))
    return place


def cases(store, number):
    """Which damages to try: about so many, spread over kinds and files alike.

    Yields (file, kind, seed). A file can be deleted only once.
    """
    files = files_of(store)
    for file in files:
        yield file, "deleted", 0
    chosen = random.Random(number)
    files = [file for file in files if file.name != ".reserve"]  # room for bad days; holds nothing
    main = [file for file in files if file.parent.name == ""]
    for seed in range(number - len(files)):
        # Half of them in the database and its log: they hold what finds everything else.
        yield chosen.choice(main if seed % 2 and main else files), KINDS[seed % 3], seed
