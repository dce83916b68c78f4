"""Backends that are right as long as no process dies."""

from agent_checkpoint import FileBackend
from agent_checkpoint.backends.base import NO_OBJECTS


class Opened(FileBackend):
    def reopened(self):
        return type(self)(self.path)


class ParentsFirst(Opened):
    """Stores an object before the objects that it refers to."""

    def put_objects(self, objects):
        for name in reversed(list(objects)):
            super().put_objects({name: objects[name]})


class EntryFirst(Opened):
    """Stores an entry before its objects."""

    def append(self, stream, entry, *, objects=NO_OBJECTS, **options):
        seq = super().append(stream, entry, **options)
        self.put_objects(objects)
        return seq


class ChildrenFirst(Opened):
    """Deletes an object before the objects that refer to it."""

    def delete_objects(self, ids):
        for name in reversed(list(ids)):
            super().delete_objects([name])
