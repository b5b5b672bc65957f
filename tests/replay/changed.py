"""Workflows changed as a careless commit would change them: the replay must notice each."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows.agent_task import AgentTask
    from workflows.contracts import IngestInput, IngestOutcome, TaskInput, TaskOutcome, ToolCall
    from workflows.ingest import IngestDocument


@workflow.defn(name="AgentTask")
class WithALayerMore(AgentTask):
    """Another activity before the first."""

    @workflow.init
    def __init__(self, task: TaskInput) -> None:
        super().__init__(task)

    @workflow.run
    async def run(self, task: TaskInput) -> TaskOutcome:
        await workflow.execute_activity(
            "policy.check", start_to_close_timeout=timedelta(seconds=10)
        )
        return await super().run(task)


@workflow.defn(name="AgentTask")
class WithoutTools(AgentTask):
    """The tool that was chosen is not called."""

    @workflow.init
    def __init__(self, task: TaskInput) -> None:
        super().__init__(task)

    @workflow.run
    async def run(self, task: TaskInput) -> TaskOutcome:
        return await super().run(task)

    async def _use_tool(self, call: ToolCall, held: str | None) -> None:
        return


@workflow.defn(name="AgentTask")
class OneByOne(AgentTask):
    """Calls of a step are made one after the other."""

    @workflow.init
    def __init__(self, task: TaskInput) -> None:
        super().__init__(task)

    @workflow.run
    async def run(self, task: TaskInput) -> TaskOutcome:
        return await super().run(task)

    async def _use_tools(self, calls: list[tuple[int, ToolCall]], held: str | None) -> None:
        for call in calls:
            await super()._use_tools([call], held)


@workflow.defn(name="AgentTask")
class WithAPause(AgentTask):
    """A timer before the loop."""

    @workflow.init
    def __init__(self, task: TaskInput) -> None:
        super().__init__(task)

    @workflow.run
    async def run(self, task: TaskInput) -> TaskOutcome:
        await workflow.sleep(timedelta(milliseconds=1))
        return await super().run(task)


@workflow.defn(name="IngestDocument")
class IngestTwice(IngestDocument):
    """Everything twice."""

    @workflow.run
    async def run(self, document: IngestInput) -> IngestOutcome:
        await super().run(document)
        return await super().run(document)
