"""LangGraph's own conformance suite: every capability, asynchronous and synchronous."""

import asyncio

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

from agent_checkpoint.adapters.langgraph import CheckpointSaver


class SyncCalls(BaseCheckpointSaver):
    """Offers the synchronous methods of a saver as asynchronous ones, which the suite calls."""

    def __init__(self, saver):
        super().__init__(serde=saver.serde)
        self.saver = saver

    async def aget_tuple(self, config):
        return self.saver.get_tuple(config)

    async def alist(self, config, **options):
        for found in self.saver.list(config, **options):
            yield found

    async def aput(self, *args):
        return self.saver.put(*args)

    async def aput_writes(self, config, writes, task_id, task_path=""):
        return self.saver.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id):
        return self.saver.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids):
        return self.saver.delete_for_runs(run_ids)

    async def acopy_thread(self, source, target):
        return self.saver.copy_thread(source, target)

    async def aprune(self, thread_ids, *, strategy="keep_latest"):
        return self.saver.prune(thread_ids, strategy=strategy)


def passed(store_url, wrap):
    @checkpointer_test(name="agent-checkpoint")
    async def fresh():
        with CheckpointSaver(store_url) as saver:
            yield wrap(saver)

    results = asyncio.run(validate(fresh)).results
    assert {name: result.failures for name, result in results.items() if result.failures} == {}
    assert set(results) == {item.value for item in Capability}
    assert all(result.detected and result.passed for result in results.values())
    return sum(result.tests_passed for result in results.values())


def test_all_capabilities_are_detected_and_pass(store_url):
    assert passed(store_url, lambda saver: saver) == 81


def test_the_synchronous_methods_pass_as_well(store_url):
    assert passed(store_url, SyncCalls) == 81
